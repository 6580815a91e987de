// The Python module: optimizers over tensors that are given as addresses. It knows no framework; slamb/torch does.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <slamb/communicator/self_communicator.hpp>
#include <slamb/communicator/sharded_communicator.hpp>
#include <slamb/core/config.hpp>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "combination.hpp"
#include "python_communicator.hpp"
#include "settings.hpp"
#include "tensor_layouts.hpp"

#if defined(SLAMB_BINDING_CUDA)
#include <slamb/nccl.hpp>
#include <slamb/staged.hpp>
#endif

namespace binding {

namespace {

namespace nb = nanobind;
using nb::literals::operator""_a;

static_assert(slamb::capability::has_all_to_all<slamb::self_communicator, std::byte, stream_type>,
              "1-bit optimizers of a single rank exchange codes too");

struct recipe_row {
  std::string_view name;
  std::span<const combination> (*combinations)();
};
constexpr recipe_row recipes[] = {{"mean", mean_combinations},
                                  {"adamw", adamw_combinations},
                                  {"lamb", lamb_combinations},
                                  {"slamb", slamb_combinations},
                                  {"one_bit_adam", one_bit_adam_combinations},
                                  {"one_bit_lamb", one_bit_lamb_combinations},
                                  {"zero_one_adam", zero_one_adam_combinations}};

const recipe_row& recipe_named(std::string_view name) {
  const auto found = std::ranges::find(recipes, name, &recipe_row::name);
  if (found == std::end(recipes)) throw std::invalid_argument("slamb: there is no recipe '" + std::string(name) + "'");
  return *found;
}

/// The compressors of a recipe, with the given storage of moments.
std::vector<std::string> compressors_of(const std::string& recipe, const std::string& moments) {
  std::vector<std::string> all;
  for (const combination& one : recipe_named(recipe).combinations())
    if (one.moments == moments) all.emplace_back(one.compressor);
  return all;
}

/// 'a', 'b', 'c'
std::string quoted(const std::vector<std::string>& names) {
  std::string all;
  for (const std::string& name : names) all += (all.empty() ? "'" : ", '") + name + "'";
  return all;
}

maker find_maker(const std::string& recipe, const std::string& compressor, const std::string& moments) {
  std::vector<std::string> moments_with_it;
  for (const combination& one : recipe_named(recipe).combinations()) {
    if (one.compressor != compressor) continue;
    if (one.moments == moments) return one.make;
    moments_with_it.emplace_back(one.moments);
  }
  if (moments_with_it.empty())
    throw std::invalid_argument("slamb: compressor = '" + compressor + "' cannot be used with " + recipe +
                                ", which takes " + quoted(compressors_of(recipe, "float32")));
  throw std::invalid_argument("slamb: moments = '" + moments + "' cannot be used with " + recipe +
                              " with compressor = '" + compressor + "', which takes " + quoted(moments_with_it));
}

using address = std::uintptr_t;

/// An array of numbers that is given by its address; 0 for none.
slamb::parameter::data_pointer pointer_to(address at, slamb::parameter::element_type type) {
  return {reinterpret_cast<void*>(at), type};
}

slamb::parameter::element_type type_named(const std::string& name) {
  if (name == "float32") return slamb::parameter::float32;
  if (name == "bfloat16") return slamb::parameter::bfloat16;
  if (name == "float16") return slamb::parameter::float16;
  throw std::invalid_argument("slamb: tensors can be of type float32, bfloat16 or float16, not " + name);
}

/// A tensor as Python describes it.
struct tensor {
  std::uint64_t size = 0;
  std::string type = "float32";
  int dimensions = 2;
  double weight_decay = 0.0;
  int group = 0;
  bool adapt = true;
  bool compress = true;
  int shard = -1;
  std::uint64_t whole_size = 0;
};

nb::dict to_dict(const slamb::traffic_counts& counts) {
  const slamb::traffic all = counts.total();
  nb::dict to;
  to["collectives"] = all.rounds;
  to["payload_bytes"] = all.payload_bytes;
  to["sent_bytes"] = all.sent_bytes;
  return to;
}

#if defined(SLAMB_BINDING_CUDA)
stream_type stream_at(address stream) { return reinterpret_cast<cudaStream_t>(stream); }

/// Calls `use` with the communicator of these ranks.
/// @param ranks  the address of an ncclComm_t, which must outlive the optimizer; or an object as python_communicator takes it, through
///   which payloads go by way of pinned memory of the host
template <class Use>
rank_communicator with_communicator(nb::object ranks, const Use& use) {
  if (nb::isinstance<nb::int_>(ranks))
    return use(slamb::nccl_communicator::borrow(reinterpret_cast<ncclComm_t>(nb::cast<address>(ranks))));
  python_communicator own(std::move(ranks));
  const nb::gil_scoped_release released;  // ranks compare their options
  return use(slamb::staged_communicator(std::move(own)));
}
#else
stream_type stream_at(address /*stream*/) { return {}; }

/// Calls `use` with the communicator of these ranks.
template <class Use>
rank_communicator with_communicator(nb::object ranks, const Use& use) {
  return use(python_communicator(std::move(ranks)));
}
#endif

/// @param ranks   those that exchange; None for one
/// @param shards  those that hold a model together; None if this rank holds all of it
rank_communicator communicator_of(nb::object ranks, const nb::object& shards) {
  const auto with_its_shards = [&shards](auto exchange) {
    if (shards.is_none()) return rank_communicator(std::move(exchange));
    const nb::gil_scoped_acquire lock;
    return with_communicator(shards, [&exchange](auto own) {
      return rank_communicator(slamb::sharded_communicator(std::move(exchange), std::move(own)));
    });
  };
  if (ranks.is_none()) return with_its_shards(slamb::self_communicator{});
  return with_communicator(std::move(ranks), with_its_shards);
}

/// An optimizer of any type, over tensors that the caller keeps alive.
class optimizer {
 public:
  optimizer(const std::string& recipe, const std::string& compressor, const std::string& moments,
            const std::vector<tensor>& tensors, const std::vector<address>& data, const std::vector<address>& gradients,
            const std::vector<address>& masters, std::map<std::string, settings::value> given, unsigned threads,
            std::uint64_t rounding_seed, nb::object ranks, const nb::object& shards, address stream)
      : held_(make(find_maker(recipe, compressor, moments), tensors, data, gradients, masters,
                   settings(std::move(given), recipe + " with compressor = '" + compressor + "'"),
                   {threads, rounding_seed, stream_at(stream)}, std::move(ranks), shards)) {
    for (const tensor& t : tensors) {
      types_.push_back(type_named(t.type));
      sizes_.push_back(static_cast<std::size_t>(t.size));
    }
    gradient_types_ = types_;
  }

  void step(const std::vector<double>& rates) { held_.step(std::span<const double>(rates)); }
  void step_at(address rates) { held_.step(slamb::device_learning_rates{reinterpret_cast<const double*>(rates)}); }
  /// For the addresses that are set next.
  void set_gradient_types(const std::vector<std::string>& names) {
    require_one_for_each(names.size(), "types of gradients");
    std::vector<slamb::parameter::element_type> all;
    for (const std::string& name : names) all.push_back(type_named(name));
    gradient_types_ = std::move(all);
  }
  void set_gradients(const std::vector<address>& to) {
    held_.set_gradients(std::span<const slamb::parameter::gradient_pointer>(gradients_at(to)));
  }
  void set_parameters(const std::vector<address>& data, const std::vector<address>& gradients) {
    require_one_for_each(data.size(), "addresses of parameters");
    std::vector<slamb::parameter::data_pointer> all;
    for (std::size_t i = 0; i < data.size(); ++i) all.push_back(pointer_to(data[i], types_[i]));
    held_.set_parameters(all, gradients_at(gradients));
  }
  void set_gradient_scaling(address loss_scale, address found_inf) {
    held_.set_gradient_scaling(
        {.loss_scale = reinterpret_cast<const float*>(loss_scale), .found_inf = reinterpret_cast<float*>(found_inf)});
  }
  void set_options(double beta1, double beta2, double epsilon, const std::vector<double>& weight_decay) {
    held_.set_options({.beta1 = beta1, .beta2 = beta2, .epsilon = epsilon, .weight_decay = weight_decay});
  }

  std::uint64_t state_bytes(bool with_parameters, bool whole_tensors) const {
    std::uint64_t bytes = 0;
    held_.save_state([&bytes](std::span<const std::byte> piece) { bytes += piece.size(); },
                     {.with_parameters = with_parameters, .whole_tensors = whole_tensors});
    return bytes;
  }
  void save_state(address to, std::uint64_t bytes, bool with_parameters, bool whole_tensors) const {
    std::span<std::byte> left(reinterpret_cast<std::byte*>(to), bytes);
    held_.save_state(
        [&left](std::span<const std::byte> piece) {
          if (piece.size() > left.size())
            throw std::invalid_argument("slamb: the state has more bytes than there is room for");
          std::ranges::copy(piece, left.begin());
          left = left.subspan(piece.size());
        },
        {.with_parameters = with_parameters, .whole_tensors = whole_tensors});
  }
  void load_state(address from, std::uint64_t bytes, bool from_other_ranks, bool whole_tensors) {
    held_.load_state({reinterpret_cast<const std::byte*>(from), bytes},
                     {.from_other_ranks = from_other_ranks, .whole_tensors = whole_tensors});
  }

  /// @param self  keeps the memory alive
  /// @return the momentum and the variance of a tensor; None if they are not floats
  nb::object moments(const nb::object& self, std::size_t tensor) {
    if (tensor >= sizes_.size())
      throw std::invalid_argument("slamb: moments() was given tensor " + std::to_string(tensor) + ", but there are " +
                                  std::to_string(sizes_.size()));
    const auto own = held_.moments(tensor);
    if (own.momentum.size() != sizes_[tensor]) return nb::none();
    return nb::make_tuple(array_of(own.momentum, self), array_of(own.variance, self));
  }
  /// @return v_f of 1-bit LAMB; None in the others
  nb::object fresh_variance(const nb::object& self, std::size_t tensor) {
    const auto own = held_.moments(tensor);
    if (own.momentum.empty() || own.fresh_variance.size() != own.momentum.size()) return nb::none();
    return array_of(own.fresh_variance, self);
  }
  /// @param warm_up    0: not given
  /// @param ratios     (mean_ratio, factor, signal_scale) of each tensor; none: not given
  /// @param intervals  (variance, refreshes, local, local_steps); none: not given
  void set_steps(std::uint64_t taken, std::uint64_t warm_up,
                 const std::vector<std::tuple<double, double, double>>& ratios,
                 const std::vector<std::uint64_t>& intervals) {
    slamb::optimizer::past_steps past{.taken = taken};
    if (warm_up > 0) past.warm_up = warm_up;
    std::vector<slamb::optimizer::frozen_ratio> all;
    for (const auto& [mean_ratio, factor, signal_scale] : ratios) all.push_back({mean_ratio, factor, signal_scale});
    past.ratios = all;
    if (intervals.size() == 4)
      past.intervals = slamb::optimizer::past_intervals{intervals[0], intervals[1], intervals[2], intervals[3]};
    held_.set_steps(past);
  }

  void broadcast_parameters(int root) { held_.broadcast_parameters(root); }
  void synchronize_parameters() { held_.synchronize_parameters(); }
  void compare_ranks() { held_.compare_ranks(); }
  void with_averaged_parameters(const nb::callable& evaluate) {
    const nb::gil_scoped_release released;
    held_.with_averaged_parameters([&evaluate] {
      const nb::gil_scoped_acquire lock;
      evaluate();
    });
  }

  std::uint64_t steps() const { return held_.statistics().step; }
  std::uint64_t skipped_steps() const { return held_.statistics().skipped_steps; }
  nb::dict statistics(bool with_norms) const {
    const slamb::statistics all = [&] {
      const nb::gil_scoped_release released;
      return held_.statistics(with_norms);
    }();
    nb::dict to = to_dict(all.traffic);
    to["shard_collectives"] = all.in_shards.rounds;
    to["shard_sent_bytes"] = all.in_shards.sent_bytes;
    to["step"] = all.step;
    to["skipped_steps"] = all.skipped_steps;
    to["skipped_exchanges"] = all.skipped_exchanges;
    to["local_skips"] = all.local_skips;
    to["phase"] = all.phase;
    to["warm_up_ended_after"] = all.warm_up.ended_after;
    to["gradient_norm"] = all.gradient_norm ? nb::cast(*all.gradient_norm) : nb::none();
    nb::dict phases;
    for (const auto& phase : all.phases) {
      nb::dict its = to_dict(phase.traffic);
      its["first_step"] = phase.first_step;
      phases[phase.name.c_str()] = its;
    }
    to["phases"] = phases;
    if (with_norms) {
      to["parameter_norm"] = all.norm.parameters;
      to["momentum_norm"] = all.norm.momentum;
      to["variance_norm"] = all.norm.variance;
      to["bounded_elements"] = all.bounded_elements;
      to["late_elements"] = all.late_elements;
      to["worker_error_norms"] = nb::cast(all.worker_error);
      to["parameter_drift"] = nb::cast(all.parameter_drift);
    }
    return to;
  }
  nb::dict memory() const {
    const slamb::memory_report report = held_.memory();
    nb::dict to;
    for (const auto& use : report.uses) to[use.purpose.c_str()] = use.bytes;
    to["total"] = report.total_bytes;
    return to;
  }

 private:
  static slamb::optimizer make(maker make, const std::vector<tensor>& tensors, const std::vector<address>& data,
                               const std::vector<address>& gradients, const std::vector<address>& masters,
                               settings given, const machine& m, nb::object ranks, const nb::object& shards) {
    if (data.size() != tensors.size() || gradients.size() != tensors.size() || masters.size() != tensors.size())
      throw std::invalid_argument("slamb: there must be one address of each kind for each tensor");
    std::vector<slamb::parameter> all;
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      const tensor& t = tensors[i];
      const auto type = type_named(t.type);
      all.push_back(
          {.data = pointer_to(data[i], type),
           .gradient = pointer_to(gradients[i], type),
           .size = static_cast<std::size_t>(t.size),
           .dimensions = t.dimensions,
           .options = {.weight_decay = t.weight_decay, .adapt = t.adapt, .compress = t.compress, .group = t.group},
           .master = reinterpret_cast<float*>(masters[i]),
           .shard = t.shard,
           .whole_size = static_cast<std::size_t>(t.whole_size)});
    }
    rank_communicator joined = communicator_of(std::move(ranks), shards);
    const nb::gil_scoped_release released;  // ranks compare themselves
    return make(all, given, std::move(joined), m);
  }

  static nb::object array_of(std::span<float> numbers, const nb::object& owner) {
#if defined(SLAMB_BINDING_CUDA)
    int device = 0;
    if (cudaPointerAttributes where{}; cudaPointerGetAttributes(&where, numbers.data()) == cudaSuccess)
      device = where.device;
    constexpr int kind = nb::device::cuda::value;
#else
    constexpr int device = 0, kind = nb::device::cpu::value;
#endif
    const std::size_t shape[] = {numbers.size()};
    return nb::cast(nb::ndarray<float>(numbers.data(), 1, shape, owner, nullptr, nb::dtype<float>(), kind, device));
  }

  void require_one_for_each(std::size_t count, const char* of_what) const {
    if (count != types_.size())
      throw std::invalid_argument("slamb: " + std::to_string(count) + " " + of_what + " were given for " +
                                  std::to_string(types_.size()) + " tensors");
  }
  std::vector<slamb::parameter::gradient_pointer> gradients_at(const std::vector<address>& to) const {
    require_one_for_each(to.size(), "addresses of gradients");
    std::vector<slamb::parameter::gradient_pointer> all;
    all.reserve(to.size());
    for (std::size_t i = 0; i < to.size(); ++i) all.emplace_back(pointer_to(to[i], gradient_types_[i]));
    return all;
  }

  slamb::optimizer held_;
  std::vector<slamb::parameter::element_type> types_;
  std::vector<slamb::parameter::element_type> gradient_types_;
  std::vector<std::size_t> sizes_;
};

/// Adds the bits of numbers to a hash (FNV-1a).
/// @param exponent  the bits that are all set in a number that is not finite
/// @return true if all numbers are finite
template <class Word>
bool add_to_hash(std::span<const Word> numbers, Word exponent, std::uint64_t& hash, bool& differ) {
  for (const Word bits : numbers) {
    if ((bits & exponent) == exponent) return false;
    hash = (hash ^ bits) * 1099511628211ULL;
    differ = differ || bits != numbers.front();
  }
  return true;
}

/// A hash of 63 bits of gradients, to compare those of different ranks. At most 64 KiB of each are read.
/// @param arrays  the address, the number of elements and the type of each
/// @return 0 if they say nothing about the data: one is not finite, or each has the same number everywhere
std::int64_t hash_of_gradients(const std::vector<std::tuple<address, std::uint64_t, std::string>>& arrays) {
  constexpr std::uint64_t most = 1U << 16U;
  std::uint64_t hash = 14695981039346656037ULL;
  bool differ = false;
  for (const auto& [at, elements, type_name] : arrays) {
    const auto type = type_named(type_name);
    const auto count = static_cast<std::size_t>(std::min(elements, most / slamb::detail::size_of(type)));
    const bool is_finite =
        type == slamb::parameter::float32
            ? add_to_hash<std::uint32_t>({reinterpret_cast<const std::uint32_t*>(at), count}, 0x7F800000U, hash, differ)
            : add_to_hash<std::uint16_t>({reinterpret_cast<const std::uint16_t*>(at), count},
                                         type == slamb::parameter::bfloat16 ? 0x7F80U : 0x7C00U, hash, differ);
    if (!is_finite) return 0;
  }
  return differ ? static_cast<std::int64_t>(hash >> 1U | 1U) : 0;
}

/// True if these dictionaries, one after another, have these very objects as values.
bool hold(const nb::list& dictionaries, const nb::list& values) {
  const auto count = static_cast<Py_ssize_t>(values.size());
  Py_ssize_t i = 0;
  for (const nb::handle one : dictionaries) {
    if (!PyDict_Check(one.ptr())) return false;
    PyObject* value = nullptr;
    for (Py_ssize_t at = 0; PyDict_Next(one.ptr(), &at, nullptr, &value) != 0; ++i)
      if (i >= count || value != PyList_GetItem(values.ptr(), i)) return false;
  }
  return i == count;
}

}  // namespace

}  // namespace binding

#ifndef SLAMB_MODULE
#define SLAMB_MODULE _native
#endif
#define SLAMB_DEFINE_MODULE(name, variable) NB_MODULE(name, variable)

SLAMB_DEFINE_MODULE(SLAMB_MODULE, m) {
  namespace nb = nanobind;
  using nb::literals::operator""_a;
  using binding::optimizer, binding::tensor;
  using without_lock = nb::call_guard<nb::gil_scoped_release>;

  nb::set_leak_warnings(false);  // a hook that holds its model lives as long as the process, in torch

  m.doc() = "Optimizers over tensors that are given as addresses. slamb.torch is the interface for users.";
  m.attr("version") = std::to_string(SLAMB_VERSION_MAJOR) + "." + std::to_string(SLAMB_VERSION_MINOR) + "." +
                      std::to_string(SLAMB_VERSION_PATCH);

  nb::class_<tensor>(m, "Tensor", "A tensor's description: number of elements, type, dimensions, and options.")
      .def(nb::init<std::uint64_t, std::string, int, double, int, bool, bool, int, std::uint64_t>(), "size"_a, "type"_a,
           "dimensions"_a, "weight_decay"_a, "group"_a, "adapt"_a, "compress"_a, "shard"_a = -1, "whole_size"_a = 0,
           "size: of this rank's part; dimensions and whole_size: of the whole tensor, 0 if its size is not known. "
           "shard: "
           "the number of the part, equal on ranks that hold the same elements, or -1 if no other rank of the shard "
           "group "
           "holds them.");

  nb::class_<optimizer>(m, "Optimizer", "An optimizer over tensors that the caller keeps alive.")
      .def(nb::init<const std::string&, const std::string&, const std::string&, const std::vector<tensor>&,
                    const std::vector<binding::address>&, const std::vector<binding::address>&,
                    const std::vector<binding::address>&, std::map<std::string, binding::settings::value>, unsigned,
                    std::uint64_t, nb::object, const nb::object&, binding::address>(),
           "recipe"_a, "compressor"_a, "moments"_a, "tensors"_a, "data"_a, "gradients"_a, "masters"_a, "settings"_a,
           "threads"_a, "rounding_seed"_a, "ranks"_a.none(), "shards"_a.none(), "stream"_a,
           "Collective, if there are several ranks. Addresses: 0 for none. ranks: None for one; an object with rank, "
           "size, all_reduce_sum, broadcast, all_gather and all_to_all, of memory of the host; on a GPU also the "
           "address of an ncclComm_t. shards: the ranks that hold a model together, in the same form. stream: the "
           "address of a cudaStream_t; on the host 0.")
      .def("step", &optimizer::step, "rates"_a, without_lock(), "One step, with a learning rate for each group.")
      .def("step_at", &optimizer::step_at, "rates"_a, without_lock(),
           "One step, with learning rates for each group that are read at this address, as float64, when it runs.")
      .def("set_gradient_types", &optimizer::set_gradient_types, "types"_a,
           "The types of the gradients whose addresses are set next.")
      .def("set_gradients", &optimizer::set_gradients, "gradients"_a, "The addresses of all gradients; 0 for none.")
      .def("set_parameters", &optimizer::set_parameters, "data"_a, "gradients"_a,
           "The addresses of all parameters and gradients.")
      .def("set_gradient_scaling", &optimizer::set_gradient_scaling, "loss_scale"_a, "found_inf"_a,
           "Addresses of floats that following steps read; 0 for none.")
      .def("set_options", &optimizer::set_options, "beta1"_a, "beta2"_a, "epsilon"_a, "weight_decay"_a,
           "Changes options of following steps; weight_decay: of each tensor.")
      .def("state_bytes", &optimizer::state_bytes, "with_parameters"_a, "whole_tensors"_a = false, without_lock(),
           "The size of the state. whole_tensors: of whole tensors instead of this rank's shards, at the first rank of "
           "the "
           "shard group; 0 at the others. Collective over the shard group then.")
      .def("save_state", &optimizer::save_state, "to"_a, "bytes"_a, "with_parameters"_a, "whole_tensors"_a = false,
           without_lock(), "Writes the state to memory. whole_tensors: as of state_bytes.")
      .def("load_state", &optimizer::load_state, "source"_a, "bytes"_a, "from_other_ranks"_a, "whole_tensors"_a = false,
           without_lock(), "Continues from a state in memory. whole_tensors: it is that of whole tensors.")
      .def(
          "moments",
          [](const nb::object& self, std::size_t tensor) { return nb::cast<optimizer&>(self).moments(self, tensor); },
          "tensor"_a, nb::sig("def moments(self, tensor: int) -> tuple[typing.Any, typing.Any] | None"),
          "The momentum and the variance of a tensor, as arrays in the optimizer's memory, which they keep alive. None "
          "if "
          "they are not float32.")
      .def(
          "fresh_variance",
          [](const nb::object& self, std::size_t tensor) {
            return nb::cast<optimizer&>(self).fresh_variance(self, tensor);
          },
          "tensor"_a, nb::sig("def fresh_variance(self, tensor: int) -> typing.Any | None"),
          "The fresh variance of a tensor with 1-bit LAMB, as `moments`; None with the others.")
      .def("set_steps", &optimizer::set_steps, "taken"_a, "warm_up"_a = 0,
           "ratios"_a = std::vector<std::tuple<double, double, double>>(), "intervals"_a = std::vector<std::uint64_t>(),
           without_lock(),
           "Continues as after so many steps. All ranks must. warm_up: the variance was frozen after so many; 0: its "
           "schedule decides. ratios: mean ratio, factor and signal scale of each tensor of 1-bit LAMB. intervals: of "
           "0/1 Adam: of the variance, its refreshes, of local steps, and local steps.")
      .def("broadcast_parameters", &optimizer::broadcast_parameters, "root"_a, without_lock(),
           "Gives all ranks the parameters of one. Collective.")
      .def("synchronize_parameters", &optimizer::synchronize_parameters, without_lock(),
           "Replaces parameters that differ between ranks by their mean. Collective.")
      .def("compare_ranks", &optimizer::compare_ranks, without_lock(), "Throws if ranks have diverged. Collective.")
      .def("with_averaged_parameters", &optimizer::with_averaged_parameters, "evaluate"_a,
           nb::sig("def with_averaged_parameters(self, evaluate: collections.abc.Callable[[], object]) -> None"),
           "Calls evaluate() while parameters are their mean over ranks. Collective.")
      .def_prop_ro("steps", &optimizer::steps, "The number of steps taken.")
      .def_prop_ro("skipped_steps", &optimizer::skipped_steps, "The number of steps that were skipped.")
      .def("statistics", &optimizer::statistics, "with_norms"_a,
           nb::sig("def statistics(self, with_norms: bool) -> dict[str, typing.Any]"), "Steps, phase and traffic.")
      .def("memory", &optimizer::memory, nb::sig("def memory(self) -> dict[str, int]"), "Bytes by purpose.");

  nb::class_<binding::tensor_layouts>(m, "TensorLayouts", "Types, shapes and the device of tensors.")
      .def_static("of", &binding::tensor_layouts::of, "table"_a, "tensors"_a,
                  nb::sig("def of(table: object, tensors: list[typing.Any]) -> TensorLayouts | None"),
                  "Of tensors of a framework that has this table for their exchange, DLPackExchangeAPI in a capsule. "
                  "None if it cannot describe them.")
      .def(
          "addresses", &binding::tensor_layouts::addresses, "tensors"_a,
          nb::sig("def addresses(self, tensors: list[typing.Any]) -> list[int] | None"),
          "The addresses of tensors, 0 for None. None if one has another type, shape or device, or is not contiguous.");

  m.def("compressors", &binding::compressors_of, "recipe"_a, "moments"_a = "float32",
        "The compressors with which a recipe can be made.");
  m.def("hold", &binding::hold, "dictionaries"_a, "values"_a,
        nb::sig("def hold(dictionaries: list[typing.Any], values: list[typing.Any]) -> bool"),
        "True if these dictionaries, one after another, have these very objects as values.");
  m.def(
      "hash_of_gradients", &binding::hash_of_gradients, "arrays"_a, without_lock(),
      "A hash of arrays, each given by its address, its number of elements and its type. 0 if a number is not finite, "
      "or each array has the same number everywhere.");
}
