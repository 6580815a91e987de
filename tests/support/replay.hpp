// Runs traces through the library, one thread for each rank with its own gradients, and compares the parameters after every
// step. slamb_replay and the tests of all backends call these functions.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <slamb/backend/precision.hpp>
#include <slamb/slamb.hpp>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "generate.hpp"
#include "rank_memory.hpp"
#include "sixteen_bits.hpp"
#include "trace.hpp"

namespace test_support {

/// The type that a trace names; float32 if it names none.
inline element_type type_in(const trace_settings& settings, std::string_view key) {
  const std::string name = settings.word(key, "f32");
  if (name == "bf16" || name == "bfloat16") return element_type::bfloat16;
  return name == "f32" || name == "float32" ? element_type::float32 : element_type::float16;
}

/// True if the trace has parameters or gradients of sixteen bits.
inline bool has_types(const trace& given) {
  return type_in(given.settings, "parameter_type") != element_type::float32 ||
         type_in(given.settings, "gradient_type") != element_type::float32;
}

/// An array of a rank, of a type that the trace names.
template <class Memory>
class replayed_array {
 public:
  replayed_array(Memory& memory, std::span<const float> values, element_type type) : memory_(&memory), type_(type) {
    if (type == element_type::float32)
      floats_ = memory.hold(values);
    else
      bits_ = memory.hold(std::span<const std::uint16_t>(bits_of(values)));
  }

  /// From element `first` on.
  slamb::parameter::data_pointer pointer(std::size_t first) const {
    if (type_ == element_type::float32) return floats_.data() + first;
    return {bits_.data() + first, type_};
  }
  void write(std::span<const float> values) const {
    if (type_ == element_type::float32)
      memory_->write(values, floats_);
    else
      memory_->write(std::span<const std::uint16_t>(bits_of(values)), bits_);
  }
  std::vector<float> values() const { return memory_->read(floats_); }  // of float32
  /// True if it consists of these values, each rounded to the nearest number of its type.
  bool holds_rounded(std::span<const float> values) const {
    if (type_ == element_type::float32) return std::ranges::equal(memory_->read(floats_), values);
    return memory_->read(bits_) == bits_of(values);
  }

 private:
  std::vector<std::uint16_t> bits_of(std::span<const float> values) const {
    std::vector<std::uint16_t> all;
    for (const float x : values) all.push_back(nearest_bits(type_, x));
    return all;
  }

  Memory* memory_;
  element_type type_;
  std::span<float> floats_{};
  std::span<std::uint16_t> bits_{};
};

/// Runs the optimizer on the trace, on as many ranks as the trace has. Ranks are threads, unless rank_memory defines others.
///
/// @param options       the optimizer's
/// @param before_step   called as before_step(optimizer, step, rank_memory) with step = 0, 1, … before each step
/// @return max |got − expected| / max |expected| over all steps and the ranks of this process; infinite if a result is NaN
/// @throws the exceptions of the optimizer, and std::runtime_error if it skipped a step, or if parameters of sixteen bits are not
///         their master copies, rounded
template <class Optimizer, class Backend, class BeforeStep>
double replay_with(const trace& given, const typename Optimizer::options_type& options, BeforeStep before_step) {
  const trace_settings& settings = given.settings;
  std::vector<double> errors(static_cast<std::size_t>(settings.world), 0.0);
  rank_memory<Backend>::run(settings.world, [&](auto communicator) {
    const int rank = communicator.rank();
    rank_memory<Backend> memory;
    const element_type type = type_in(settings, "parameter_type");
    const replayed_array parameters(memory, given.start, type);
    const replayed_array gradients(memory, given.start, type_in(settings, "gradient_type"));
    const bool has_master = type != element_type::float32;
    if (has_master && settings.number("master", 0.0) == 0.0)
      throw std::runtime_error("a trace of parameters of sixteen bits must have `master 1`");
    const replayed_array master(memory, given.start, element_type::float32);
    std::vector<slamb::parameter> tensors;
    std::size_t first = 0;
    for (std::size_t i = 0; i < settings.shapes.size(); ++i) {
      tensors.push_back({.data = parameters.pointer(first),
                         .gradient = gradients.pointer(first),
                         .size = settings.size(i),
                         .dimensions = static_cast<int>(settings.shapes[i].size()),
                         .master = has_master ? master.pointer(first).template as<float>() : nullptr});
      first += settings.size(i);
    }
    Optimizer optimizer(tensors, options, std::move(communicator), memory.backend());
    double worst = 0.0;
    for (std::size_t step = 0; step < settings.steps; ++step) {
      gradients.write(given.gradient(step, rank));
      before_step(optimizer, step, memory);
      optimizer.step(settings.number("lr"));
      const std::vector<float> reached = (has_master ? master : parameters).values();
      if (!parameters.holds_rounded(reached))
        throw std::runtime_error("the parameters are not the master copies, rounded to nearest, ties to even");
      worst = std::max(worst, max_absolute_error(std::span<const float>(reached), given.after(step, rank)));
    }
    if (optimizer.statistics().step != settings.steps) throw std::runtime_error("the optimizer skipped a step");
    errors[static_cast<std::size_t>(rank)] = worst;
  });
  return relative_error(*std::ranges::max_element(errors), max_magnitude(std::span(given.expected)));
}

namespace detail {

// The settings common to all Adam variants, by the library's names.
template <class Options>
Options adam_options(const trace_settings& settings) {
  Options options{};
  options.beta1 = settings.number("beta1");
  options.beta2 = settings.number("beta2");
  options.epsilon = settings.number("eps");
  options.weight_decay = settings.number("weight_decay");
  if constexpr (requires { options.update_bound; })
    options.update_bound = std::numeric_limits<double>::infinity();  // traces are of the papers' steps
  if constexpr (requires { options.bias_correction; })
    options.bias_correction = settings.number("bias_correction", 1.0) != 0.0;
  if constexpr (requires { options.compressor.scales; })
    options.compressor.scales =
        settings.word("scales") == "fused" ? slamb::scale_sharing::fused : slamb::scale_sharing::per_tensor;
  return options;
}

inline std::uint64_t count(const trace_settings& settings, std::string_view key) {
  return static_cast<std::uint64_t>(settings.number(key));
}

inline constexpr auto nothing = [](auto&, std::size_t, auto&) {};

template <class Backend>
using ranks_of = typename rank_memory<Backend>::communicator;

template <class Backend, slamb::rescaling Form>
double replay_slamb_form(const trace& given) {
  using optimizer = slamb::slamb<ranks_of<Backend>, slamb::explicit_mask, slamb::rescaled_trust_ratio<Form>, Backend>;
  const trace_settings& settings = given.settings;
  auto options = adam_options<typename optimizer::options_type>(settings);
  options.beta3 = settings.number("beta3");
  options.local_steps = static_cast<std::int64_t>(count(settings, "local_steps"));
  options.dense_below = count(settings, "dense_below");
  options.trust_ratio.lower = settings.number("trust_min");
  options.trust_ratio.upper = settings.number("trust_max");
  return replay_with<optimizer, Backend>(given, options, [&](auto& o, std::size_t step, auto& memory) {
    o.compressor().set(memory.hold(given.mask(step)));
  });
}

}  // namespace detail

template <class Backend>
double replay_adamw(const trace& given) {
  using optimizer = slamb::adamw<detail::ranks_of<Backend>, Backend>;
  return replay_with<optimizer, Backend>(given, detail::adam_options<typename optimizer::options_type>(given.settings),
                                         detail::nothing);
}

template <class Backend>
double replay_lamb(const trace& given) {
  using optimizer = slamb::lamb<detail::ranks_of<Backend>, Backend>;
  auto options = detail::adam_options<typename optimizer::options_type>(given.settings);
  options.trust_ratio.lower = given.settings.number("trust_min", options.trust_ratio.lower);
  options.trust_ratio.upper = given.settings.number("trust_max", options.trust_ratio.upper);
  return replay_with<optimizer, Backend>(given, options, detail::nothing);
}

template <class Backend>
double replay_slamb(const trace& given) {
  return given.settings.word("rescaling") == "product"
             ? detail::replay_slamb_form<Backend, slamb::rescaling::product>(given)
             : detail::replay_slamb_form<Backend, slamb::rescaling::blend>(given);
}

template <class Backend>
double replay_one_bit_adam(const trace& given) {
  using optimizer = slamb::one_bit_adam<detail::ranks_of<Backend>, slamb::sign, Backend>;
  auto options = detail::adam_options<typename optimizer::options_type>(given.settings);
  options.warm_up.steps = detail::count(given.settings, "warmup_steps");
  return replay_with<optimizer, Backend>(given, options, detail::nothing);
}

template <class Backend>
double replay_one_bit_lamb(const trace& given) {
  using optimizer = slamb::one_bit_lamb<detail::ranks_of<Backend>, slamb::sign, Backend>;
  auto options = detail::adam_options<typename optimizer::options_type>(given.settings);
  options.warm_up.steps = detail::count(given.settings, "warmup_steps");
  options.trust_ratio.lower = given.settings.number("trust_min");
  options.trust_ratio.upper = given.settings.number("trust_max");
  options.trust_ratio.average = given.settings.number("trust_beta");
  options.trust_ratio.factor_lower = given.settings.number("factor_min");
  options.trust_ratio.factor_upper = given.settings.number("factor_max");
  options.trust_ratio.factor_change = given.settings.number("factor_threshold");
  return replay_with<optimizer, Backend>(given, options, detail::nothing);
}

template <class Backend>
double replay_zero_one_adam(const trace& given) {
  using optimizer = slamb::zero_one_adam<detail::ranks_of<Backend>, slamb::sign, Backend>;
  auto options = detail::adam_options<typename optimizer::options_type>(given.settings);
  options.variance_schedule.freeze_step = detail::count(given.settings, "variance_freeze_step");
  options.variance_schedule.update_scaler = detail::count(given.settings, "variance_update_scaler");
  options.local_schedule.scaler = detail::count(given.settings, "local_step_scaler");
  options.local_schedule.clipper = detail::count(given.settings, "local_step_clipper");
  return replay_with<optimizer, Backend>(given, options, detail::nothing);
}

/// An algorithm of traces, and the function that runs it.
struct replayable {
  const char* algorithm;
  double (*run)(const trace&);
};

template <class Backend>
inline constexpr replayable replayables[] = {
    {"adamw", replay_adamw<Backend>},
    {"lamb", replay_lamb<Backend>},
    {"slamb", replay_slamb<Backend>},
    {"one_bit_adam", replay_one_bit_adam<Backend>},
    {"one_bit_lamb", replay_one_bit_lamb<Backend>},
    {"zero_one_adam", replay_zero_one_adam<Backend>},
};

/// Runs one trace through the optimizer that it names; see `replay_with`.
///
/// @throws std::runtime_error if the library has no such optimizer
template <class Backend = slamb::host_backend>
double replay(const trace& given) {
  if constexpr (!requires { typename Backend::precision; }) {
    if (has_types(given)) return replay<slamb::precision::mixed<Backend>>(given);
  }
  for (const replayable& r : replayables<Backend>) {
    if (given.settings.algorithm == r.algorithm) return r.run(given);
  }
  throw std::runtime_error("this version has no optimizer for the algorithm " + given.settings.algorithm);
}

}  // namespace test_support
