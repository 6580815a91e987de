// slamb's optimizers as torch::optim::Optimizer: for C++ programs that train with libtorch, in one process or on several ranks.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/InferenceMode.h>
#include <torch/arg.h>
#include <torch/optim/optimizer.h>
#include <torch/ordered_dict.h>
#include <torch/serialize/archive.h>
#include <slamb/communicator/self_communicator.hpp>
#include <slamb/core/concepts.hpp>
#include <slamb/core/parameter.hpp>
#include <slamb/core/saved_state.hpp>
#include <slamb/optimizer/optimizer.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace slamb_libtorch {

/// Options of a parameter group. `lr` and `weight_decay` are read at each step, so schedulers and programs may change them. `adapt` and
/// `compress` are those of slamb::tensor_options, and must stay as they were at the construction of the optimizer.
class group_options final : public torch::optim::OptimizerCloneableOptions<group_options> {
 public:
  group_options(double rate = 1e-3) : lr_(rate) {}  // NOLINT(google-explicit-constructor): as those of torch::optim

  TORCH_ARG(double, lr) = 1e-3;                         ///< learning rate γ ≥ 0, finite
  TORCH_ARG(c10::optional<double>, weight_decay) = {};  ///< λ ≥ 0, finite; unset: that of the optimizer's options
  TORCH_ARG(bool, adapt) = true;                        ///< false: trust ratio 1
  TORCH_ARG(bool, compress) = true;                     ///< false: always exchanged dense (by a chain: quantized)

 public:
  double get_lr() const override { return lr(); }
  void set_lr(const double rate) override { lr(rate); }

  /// Writes `lr` and `weight_decay`.
  void serialize(torch::serialize::OutputArchive& archive) const override {
    archive.write("lr", c10::IValue(lr()));
    archive.write("weight_decay", c10::IValue(weight_decay()));
  }
  /// Reads `lr` and `weight_decay`.
  /// @throws c10::Error if one is missing or of another type
  void serialize(torch::serialize::InputArchive& archive) override {
    c10::IValue rate, decay;
    archive.read("lr", rate);
    archive.read("weight_decay", decay);
    lr(rate.toDouble()).weight_decay(decay.toOptional<double>());
  }
};

/// Tensors in parameter groups, with names for messages.
class parameter_groups {
 public:
  using group = torch::optim::OptimizerParamGroup;
  using named_tensors = torch::OrderedDict<std::string, torch::Tensor>;

  // NOLINTBEGIN(google-explicit-constructor): torch::optim's optimizers take these
  parameter_groups(std::vector<torch::Tensor> tensors) { groups_.emplace_back(std::move(tensors)); }
  parameter_groups(std::initializer_list<torch::Tensor> tensors) : parameter_groups(std::vector(tensors)) {}
  parameter_groups(std::vector<group> groups) : groups_(std::move(groups)) {}
  parameter_groups(std::initializer_list<group> groups) : groups_(groups) {}
  // NOLINTEND(google-explicit-constructor)

  /// The parameters of a module in two groups. Group 0, with `options`: those of two and more dimensions. Group 1, with a weight decay
  /// of 0 and a trust ratio of 1: biases and the weights of normalisation layers.
  static parameter_groups split_by_dimensions(const named_tensors& named, const group_options& options) {
    std::vector<torch::Tensor> matrices, vectors;
    std::vector<std::string> names, names_of_vectors;
    for (const auto& item : named) {
      const bool is_matrix = item.value().dim() >= 2;
      (is_matrix ? matrices : vectors).push_back(item.value());
      (is_matrix ? names : names_of_vectors).push_back(item.key());
    }
    group_options others = options;
    others.weight_decay(0.0).adapt(false);
    parameter_groups both(std::vector<group>{{std::move(matrices), std::make_unique<group_options>(options)},
                                             {std::move(vectors), std::make_unique<group_options>(others)}});
    both.names_ = std::move(names);
    both.names_.insert(both.names_.end(), names_of_vectors.begin(), names_of_vectors.end());
    return both;
  }

  const std::vector<group>& groups() const noexcept { return groups_; }
  /// [tensors] in the order of the groups; empty: no names.
  const std::vector<std::string>& names() const noexcept { return names_; }

 private:
  std::vector<group> groups_;
  std::vector<std::string> names_;
};

/// One rank's optimizer over tensors of libtorch: dense and contiguous, in host memory, of float32. With the Backend
/// slamb::precision::mixed they may also be of bfloat16 or float16. It does what torch::optim's optimizers do: zero_grad(),
/// closures, learning-rate schedulers, torch::save and torch::load.
///
/// Each rank gives it the gradient of its own data; the optimizer averages. A tensor without a gradient is left as it is, on
/// all ranks. A parameter or a gradient may get other memory between steps, as by torch::load of its module. There is one
/// number of steps for all tensors, as in slamb, and not one for each, as in torch::optim.
///
/// Errors in tensors, options of groups and archives are c10::Error; they name the tensor, and nothing has changed then. Other
/// exceptions are those of slamb. An optimizer that was moved from takes no calls. An error on one rank alone leaves the others
/// waiting, as docs/how-to/errors.md describes.
///
/// @tparam Wrapped  slamb::lamb<…>, slamb::one_bit_lamb<…> or another, with a Backend for host memory
template <class Wrapped>
class optimizer final : public torch::optim::Optimizer {
  static_assert(std::is_base_of_v<slamb::optimizer, Wrapped> &&
                    std::is_same_v<typename Wrapped::backend_type::stream_type, slamb::host_stream>,
                "slamb_libtorch::optimizer wraps an optimizer of slamb in host memory, such as slamb::lamb<>");
  using default_ranks = std::conditional_t<Wrapped::takes_any_communicator, slamb::self_communicator,
                                           typename Wrapped::communicator_type>;

 public:
  using options_type = typename Wrapped::options_type;

  /// @param parameters    tensors, one group of them, groups, or split_by_dimensions(…); equal on all ranks, as are all options. Each
  ///                      tensor once: tied weights too
  /// @param defaults      the options for groups without their own; a number is a learning rate
  /// @param options       of the wrapped optimizer; its weight decay is that of groups that set none
  /// @param communicator  the rank; without one, a single rank
  /// @throws c10::Error without a group; for tensors that are undefined, given twice, or of another type, place or layout; for groups
  ///         with options of another type; else as the constructor of Wrapped
  template <class Communicator = default_ranks>
  explicit optimizer(const parameter_groups& parameters, const group_options& defaults = group_options(),
                     const options_type& options = {}, Communicator communicator = {},
                     typename Wrapped::backend_type backend = {})
      : torch::optim::Optimizer(defined(parameters), std::make_unique<group_options>(defaults)),
        names_(parameters.names()),
        default_decay_(options.weight_decay),
        wrapped_(describe(), options, std::move(communicator), std::move(backend)) {}

  /// Calls `closure`, if there is one, with gradients enabled; then takes a step.
  /// @return what the closure has returned, else an undefined tensor
  /// @throws c10::Error for a gradient that is sparse, not contiguous, of another type, place or size than its parameter; for a
  ///         tensor that has changed in these; for a parameter of InferenceMode outside of it; for a learning rate or a weight
  ///         decay that is negative or not finite; for groups that have changed in number, size, `adapt` or `compress`: nothing
  ///         has changed then. Else as slamb::optimizer::step
  torch::Tensor step(LossClosure closure = nullptr) override {
    torch::Tensor loss;
    if (closure != nullptr) {
      at::AutoGradMode with_gradients(true);
      loss = closure();
    }
    point_to_tensors();
    const group_values now = values_of_groups();
    if (now.decays != decays_) {
      wrapped_.set_options({.weight_decay = now.decays});
      decays_ = now.decays;
    }
    wrapped_.step(std::span<const double>(now.rates).first(groups_in_use_));
    each_tensor([](std::size_t, std::size_t, const torch::Tensor& tensor) {
      if (tensor.grad().defined()) tensor.unsafeGetTensorImpl()->bump_version();  // autograd detects writes by it
    });
    return loss;
  }

  /// The wrapped optimizer: for statistics, broadcast_parameters, with_averaged_parameters and others, but not for steps. Points it to
  /// where the tensors are now.
  /// @throws as `step` for tensors
  Wrapped& wrapped() {
    point_to_tensors();
    return wrapped_;
  }

  /// How `load` restores, until it is called again: {.from_other_ranks = true} accepts the state of another rank, or of another
  /// number of ranks. Call it on all ranks or on none.
  void set_restore_options(const slamb::restore_options& options) { restore_options_ = options; }

  /// Writes the state of this rank, the sizes of the tensors, and the learning rate and the weight decay of each group.
  /// torch::save calls it. The parameters are not written: save the module too. Each rank writes its own.
  void save(torch::serialize::OutputArchive& archive) const override {
    point_to_tensors();
    const auto bytes = std::make_shared<std::vector<std::byte>>(wrapped_.save_state());
    archive.write("slamb_state", at::from_blob(
                                     bytes->data(), {static_cast<std::int64_t>(bytes->size())}, [bytes](void*) {},
                                     at::TensorOptions(at::kByte)));
    each_tensor([&](std::size_t number, std::size_t, const torch::Tensor& tensor) {
      archive.write(key_of_sizes(number), c10::IValue(tensor.sizes().vec()));
    });
    archive.write("groups", c10::IValue(static_cast<std::int64_t>(param_groups_.size())));
    for (std::size_t g = 0; g < param_groups_.size(); ++g) {
      torch::serialize::OutputArchive of_group(archive.compilation_unit());
      options_of(g).serialize(of_group);
      archive.write("group_" + std::to_string(g), of_group);
    }
  }

  /// Continues from a state that `save` has written on this rank, with the parameters that belong to it. torch::load calls it. A
  /// scheduler that is constructed later begins with the learning rates that were saved.
  /// @throws c10::Error if the archive is not one of `save`, or has another number of groups or other sizes of a tensor;
  ///         std::invalid_argument if the state is damaged, or of another optimizer, rank, or list of tensors: nothing has changed then
  void load(torch::serialize::InputArchive& archive) override {
    check_list();
    c10::IValue groups;
    torch::Tensor state;
    TORCH_CHECK(archive.try_read("groups", groups) && archive.try_read("slamb_state", state),
                "slamb: load: the archive has no 'slamb_state' and 'groups'; it must be one that torch::save has "
                "written of a slamb_libtorch::optimizer");
    TORCH_CHECK(groups.toInt() == static_cast<std::int64_t>(param_groups_.size()), "slamb: load: the archive has ",
                groups.toInt(), " parameter groups, but the optimizer has ", param_groups_.size(),
                "; construct it as the one that was saved");
    each_tensor([&](std::size_t number, std::size_t, const torch::Tensor& tensor) {
      c10::IValue sizes;
      if (!archive.try_read(key_of_sizes(number), sizes))
        return;  // there are fewer, or an older program has written it
      TORCH_CHECK(sizes.toIntVector() == tensor.sizes().vec(), "slamb: load: ", name_of(number), " has the sizes ",
                  tensor.sizes(), ", but those of the state are ", c10::IntArrayRef(sizes.toIntVector()),
                  "; construct the optimizer as the one that was saved");
    });
    std::vector<group_options> saved;
    for (std::size_t g = 0; g < param_groups_.size(); ++g) {
      torch::serialize::InputArchive of_group;
      archive.read("group_" + std::to_string(g), of_group);
      saved.push_back(options_of(g));
      saved.back().serialize(of_group);
    }
    point_to_tensors();
    state = state.contiguous();
    wrapped_.load_state(
        std::as_bytes(std::span(state.data_ptr<std::uint8_t>(), static_cast<std::size_t>(state.numel()))),
        restore_options_);
    for (std::size_t g = 0; g < param_groups_.size(); ++g)
      static_cast<group_options&>(param_groups_[g].options()) = saved[g];
  }

 private:
  struct tensor_flags {
    bool adapt;
    bool compress;
    bool operator==(const tensor_flags&) const = default;
  };

  struct group_values {
    std::vector<double> rates;   // [groups]
    std::vector<double> decays;  // [tensors]
  };

  /// @throws c10::Error if they are of another type
  const group_options& options_of(std::size_t group) const {
    const auto* const own = dynamic_cast<const group_options*>(&param_groups_[group].options());
    TORCH_CHECK(own != nullptr, "slamb: the options of parameter group ", group,
                " are of another optimizer; they must be slamb_libtorch::group_options");
    return *own;
  }

  /// Calls visit(number, group, tensor) for each tensor.
  template <class Visit>
  void each_tensor(const Visit& visit) const {
    std::size_t number = 0;
    for (std::size_t g = 0; g < param_groups_.size(); ++g)
      for (const torch::Tensor& tensor : param_groups_[g].params()) visit(number++, g, tensor);
  }

  static std::string name_in(const std::vector<std::string>& names, std::size_t number) {
    return number < names.size() ? "parameter '" + names[number] + "'" : "parameter " + std::to_string(number);
  }
  std::string name_of(std::size_t number) const { return name_in(names_, number); }
  static std::string key_of_sizes(std::size_t number) { return "sizes_" + std::to_string(number); }

  /// The groups, for the constructor of torch::optim::Optimizer, which does not check them.
  static const std::vector<parameter_groups::group>& defined(const parameter_groups& parameters) {
    TORCH_CHECK(!parameters.groups().empty(), "slamb: there is no parameter group; give the optimizer one or more");
    std::size_t number = 0;
    for (const auto& group : parameters.groups())
      for (const torch::Tensor& tensor : group.params()) {
        TORCH_CHECK(tensor.defined(), "slamb: ", name_in(parameters.names(), number), " is undefined");
        ++number;
      }
    return parameters.groups();
  }

  using element_type = slamb::parameter::element_type;
  static constexpr bool takes_sixteen_bits = requires { typename Wrapped::backend_type::precision; };

  /// The tensor's type, if the optimizer takes it.
  static std::optional<element_type> type_of(const torch::Tensor& tensor) {
    if (tensor.scalar_type() == at::kFloat) return slamb::parameter::float32;
    if (takes_sixteen_bits && tensor.scalar_type() == at::kBFloat16) return slamb::parameter::bfloat16;
    if (takes_sixteen_bits && tensor.scalar_type() == at::kHalf) return slamb::parameter::float16;
    return std::nullopt;
  }

  /// Checks a parameter or its gradient, `which` "" or "the gradient of ".
  void check(const char* which, std::size_t number, const torch::Tensor& tensor) const {
    const auto check_that = [&](bool is_right, const auto& found, const char* remedy) {
      TORCH_CHECK(is_right, "slamb: ", which, name_of(number), " ", found, "; ", remedy);
    };
    check_that(tensor.layout() == at::kStrided, "is not dense", "slamb_libtorch::optimizer takes dense tensors");
    check_that(tensor.device().is_cpu(), "is on " + tensor.device().str(), "it must be in host memory");
    check_that(type_of(tensor).has_value(), std::string("is of type ") + toString(tensor.scalar_type()),
               takes_sixteen_bits ? "it must be Float, BFloat16 or Half" : "it must be Float");
    check_that(!tensor._is_zerotensor(), "is a zero tensor, which has no memory", "call clone() first");
    check_that(tensor.is_contiguous() && !tensor.is_neg(), "is not contiguous", "call contiguous() first");
  }

  /// Checks a parameter. Outside of InferenceMode a step could not count its change of a tensor that was made there.
  void check_parameter(std::size_t number, const torch::Tensor& tensor) const {
    check("", number, tensor);
    TORCH_CHECK(!tensor.is_inference() || c10::InferenceMode::is_enabled(), "slamb: ", name_of(number),
                " was created under c10::InferenceMode; create it, or a clone() of it, outside of that mode");
  }

  /// The tensors for the constructor of the wrapped optimizer.
  std::vector<slamb::parameter> describe() {
    std::vector<slamb::parameter> all;
    std::map<const void*, std::size_t> begins_at;  // the number of the tensor there
    each_tensor([&](std::size_t number, std::size_t g, const torch::Tensor& tensor) {
      check_parameter(number, tensor);
      const std::size_t first =
          tensor.numel() == 0 ? number : begins_at.emplace(tensor.data_ptr(), number).first->second;
      TORCH_CHECK(first == number, "slamb: ", name_of(number), " has the memory of ", name_of(first),
                  "; give each tensor once, also a weight that two modules share");
      const group_options& own = options_of(g);
      groups_in_use_ = g + 1;
      in_group_.push_back(g);
      kept_.push_back({own.adapt(), own.compress()});
      sizes_.push_back(tensor.numel());
      data_.emplace_back(tensor.data_ptr(), *type_of(tensor));
      gradients_.emplace_back(nullptr);
      all.push_back({.data = data_.back(),
                     .size = static_cast<std::size_t>(tensor.numel()),
                     .dimensions = tensor.dim() > 1 ? static_cast<int>(tensor.dim()) : 1,
                     .options = {.adapt = own.adapt(), .compress = own.compress(), .group = static_cast<int>(g)}});
    });
    TORCH_CHECK(names_.empty() || names_.size() == all.size(), "slamb: ", names_.size(), " names for ", all.size(),
                " parameters");
    const group_values now = values_of_groups();
    for (std::size_t l = 0; l < all.size(); ++l) all[l].options.weight_decay = now.decays[l];
    decays_ = now.decays;
    return all;
  }

  /// The options of the groups, checked. The list of tensors must be as it was.
  group_values values_of_groups() const {
    group_values now;
    for (std::size_t g = 0; g < param_groups_.size(); ++g) {
      const double rate = options_of(g).lr();
      const double decay = options_of(g).weight_decay().value_or(default_decay_);
      TORCH_CHECK(rate >= 0.0 && std::isfinite(rate), "slamb: lr = ", rate, " in parameter group ", g,
                  ", but it must be a finite number >= 0");
      TORCH_CHECK(decay >= 0.0 && std::isfinite(decay), "slamb: weight_decay = ", decay, " in parameter group ", g,
                  ", but it must be a finite number >= 0");
      now.rates.push_back(rate);
    }
    each_tensor([&](std::size_t number, std::size_t g, const torch::Tensor&) {
      const group_options& own = options_of(g);
      TORCH_CHECK((kept_[number] == tensor_flags{own.adapt(), own.compress()}), "slamb: adapt or compress of group ", g,
                  " has changed since the optimizer was constructed; construct another optimizer");
      now.decays.push_back(own.weight_decay().value_or(default_decay_));
    });
    return now;
  }

  /// @throws c10::Error if the tensors are not those of the construction in number, group and size
  void check_list() const {
    TORCH_CHECK(param_groups_.size() >= groups_in_use_, "slamb: the optimizer has ", param_groups_.size(),
                " parameter groups, but had at least ", groups_in_use_,
                " when it was constructed; call the optimizer that it was moved to, or construct another one");
    std::size_t count = 0;
    each_tensor([&](std::size_t number, std::size_t g, const torch::Tensor& tensor) {
      ++count;
      TORCH_CHECK(tensor.defined(), "slamb: ", name_of(number), " is undefined");
      TORCH_CHECK(number < sizes_.size() && in_group_[number] == g && sizes_[number] == tensor.numel(),
                  "slamb: ", name_of(number),
                  " is not the one of the construction, in group or size; construct another optimizer");
    });
    TORCH_CHECK(count == sizes_.size(), "slamb: there are ", count, " parameters, but ", sizes_.size(),
                " when the optimizer was constructed; construct another optimizer");
  }

  /// Checks all tensors and gradients, then points the wrapped optimizer to those that have moved.
  void point_to_tensors() const {
    check_list();
    std::vector<slamb::parameter::data_pointer> data;
    std::vector<slamb::parameter::gradient_pointer> gradients;
    each_tensor([&](std::size_t number, std::size_t, const torch::Tensor& tensor) {
      check_parameter(number, tensor);
      data.emplace_back(tensor.data_ptr(), *type_of(tensor));
      TORCH_CHECK(data.back().type() == data_[number].type(), "slamb: ", name_of(number), " is now of type ",
                  toString(tensor.scalar_type()),
                  "; it must keep the type that it had when the optimizer was constructed");
      const torch::Tensor& gradient = tensor.grad();
      gradients.emplace_back(nullptr);
      if (!gradient.defined()) return;
      check("the gradient of ", number, gradient);
      TORCH_CHECK(gradient.sizes() == tensor.sizes(), "slamb: the gradient of ", name_of(number), " has the sizes ",
                  gradient.sizes(), "; it must have those of the parameter, ", tensor.sizes());
      gradients.back() = {gradient.data_ptr(), *type_of(gradient)};
    });
    if (data != data_)
      wrapped_.set_parameters(data, gradients);
    else if (gradients != gradients_)
      wrapped_.set_gradients(gradients);
    data_ = std::move(data);
    gradients_ = std::move(gradients);
  }

  std::vector<std::string> names_;  // [tensors], or empty
  double default_decay_;            // of groups that set none
  slamb::restore_options restore_options_{};
  std::size_t groups_in_use_ = 1;      // up to the last one with a tensor
  std::vector<std::size_t> in_group_;  // [tensors], and below
  std::vector<tensor_flags> kept_;
  std::vector<std::int64_t> sizes_;
  std::vector<double> decays_;  // as the wrapped optimizer has them
  // What the wrapped optimizer points to. It follows the tensors, also before a state is saved.
  mutable std::vector<slamb::parameter::data_pointer> data_;
  mutable std::vector<slamb::parameter::gradient_pointer> gradients_;
  mutable Wrapped wrapped_;  // last: describe() fills the others
};

}  // namespace slamb_libtorch
