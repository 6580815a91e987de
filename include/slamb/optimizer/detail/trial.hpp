// Times a few steps of an optimizer on synthetic tensors, to estimate a mean step of a training.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "slamb/compressor/chain.hpp"
#include "slamb/core/config.hpp"
#include "slamb/core/detail/rounding.hpp"
#include "slamb/core/half.hpp"
#include "slamb/core/parameter.hpp"
#include "slamb/core/random.hpp"
#include "slamb/core/real.hpp"
#include "slamb/detail/pass/arena.hpp"
#include "slamb/detail/pass/layout.hpp"
#include "slamb/optimizer/detail/rank_agreement.hpp"
#include "slamb/optimizer/lamb.hpp"
#include "slamb/optimizer/one_bit.hpp"
#include "slamb/optimizer/slamb.hpp"
#include "slamb/optimizer/zero_one_adam.hpp"
#include "slamb/schedule/intervals.hpp"
#include "slamb/schedule/warm_up.hpp"

namespace slamb::detail {

/// Elements of a tensor of `size` in a model scaled by `part`: at least one, unless it has none.
constexpr std::uint64_t scaled_size(std::uint64_t size, double part) noexcept {
  if (part >= 1.0 || size == 0) return size;
  return std::max<std::uint64_t>(1, static_cast<std::uint64_t>(static_cast<double>(size) * part));
}

/// Synthetic tensors: finite parameters and gradients other than 0, in memory that is freed with the object.
class synthetic_model {
 public:
  /// @param part  in (0, 1]: part of the elements of each tensor; tensors with rows keep complete rows, at least one
  synthetic_model(std::span<const parameter> like, double part, const machine& on);

  std::span<const parameter> tensors() const noexcept { return tensors_; }
  std::uint64_t elements() const noexcept { return elements_; }

 private:
  // In ±[0.01, 0.02).
  static std::vector<float> made_up_values();

  // The values as numbers of a type.
  static std::vector<std::byte> bytes_of_values(std::span<const float> values, element_type type);

  static std::byte* filled(const machine& on, std::span<std::byte> tensor, std::span<const std::byte> values);

  std::vector<parameter> tensors_;
  arena memory_;
  std::uint64_t elements_ = 0;
};

/// The learning rate of trials, at which parameters stay in the range of floats unless λ is very large.
inline constexpr double trial_rate = 1e-4;

/// Tells `choose` how to time an optimizer of this recipe. This one is for recipes whose steps all cost the same.
template <class Optimizer, class Recipe>
struct trial_of_recipe {
  static_assert(
      !requires { requires Recipe::has_several_kinds_of_step; },
      "slamb: the steps of this recipe do not all cost the same; specialise kit::trial_of for its optimizer");
  using type = Optimizer;
  using options_type = typename Optimizer::options_type;

  /// Kinds of step that are timed. Kinds from `each_time` on are taken once per round only.
  static constexpr std::size_t kinds = 1, each_time = 1;

  /// The options of `type` for tensors of `part` of their size.
  static const options_type& options(const options_type& o, double /*part*/) { return o; }
  /// The number of steps of each kind in a mean step of a training.
  static std::array<double, kinds> weights(const options_type& /*o*/, std::uint64_t /*training_steps*/) {
    return {1.0};
  }
  /// Takes a step of number `kind`.
  static void take(type& optimizer, std::size_t /*kind*/) { optimizer.step(trial_rate); }
};

/// SLAMB: a step, and the averaging of parameters, which counts once in H steps. Differences are exchanged in each step of the
/// trial, for any H.
template <class Optimizer, class Compressor, class ErrorFeedback, class TrustRatio, class Backend, class ParameterSync>
struct trial_of_recipe<Optimizer, slamb_recipe<Compressor, ErrorFeedback, TrustRatio, Backend, ParameterSync>> {
  using type = Optimizer;
  using options_type = typename type::options_type;
  static constexpr std::size_t kinds = 2, each_time = 1;

  static options_type options(options_type o, double part) {
    o.local_steps = capability::sends_differences<ParameterSync> && o.local_steps > 0 ? 1 : 0;
    o.dense_below = scaled_size(o.dense_below, part);
    return o;
  }
  static std::array<double, 2> weights(const options_type& o, std::uint64_t /*training_steps*/) {
    const bool averages = !capability::sends_differences<ParameterSync> && o.local_steps > 0;
    return {1.0, averages ? 1.0 / static_cast<double>(o.local_steps) : 0.0};
  }
  static void take(type& optimizer, std::size_t kind) {
    kind == 0 ? optimizer.step(trial_rate) : optimizer.synchronize_parameters();
  }
};

/// 1-bit optimizers: a step of the compressed phase. Warm-up steps cost as much as a dense optimizer's.
template <class Optimizer, class Compressor, class ErrorFeedback, class TrustRatio, class Backend, class WarmUp,
          class DenseCompressor>
struct trial_of_recipe<Optimizer,
                       one_bit_recipe<Compressor, ErrorFeedback, TrustRatio, Backend, WarmUp, DenseCompressor>> {
  using type =
      optimizer_over<one_bit_recipe<Compressor, ErrorFeedback, TrustRatio, Backend, fixed_warm_up, DenseCompressor>,
                     typename Optimizer::communicator_type>;
  using options_type = one_bit_options<Compressor, ErrorFeedback, TrustRatio, WarmUp, DenseCompressor>;
  static constexpr std::size_t kinds = 1, each_time = 1;

  static typename type::options_type options(const options_type& o, double /*part*/) {
    // All members by place: a new one does not compile until it is copied.
    const auto& [beta1, beta2, epsilon, weight_decay, bound, max_gradient_norm, clip_locally, compress_single_rank,
                 ranks, warm_up, compressor, error_feedback, trust_ratio, dense_compressor] = o;
    return {beta1,        beta2,
            epsilon,      weight_decay,
            bound,        max_gradient_norm,
            clip_locally, compress_single_rank,
            ranks,        {.steps = 1},
            compressor,   error_feedback,
            trust_ratio,  dense_compressor};
  }
  static std::array<double, 1> weights(const options_type& /*o*/, std::uint64_t /*training_steps*/) { return {1.0}; }
  static void take(type& optimizer, std::size_t /*kind*/) { optimizer.step(trial_rate); }
};

/// 0/1 Adam: a local step with an exchange and one without, in turn.
template <class Optimizer, class Compressor, class ErrorFeedback, class Backend, class VarianceSchedule,
          class LocalSchedule, class DenseCompressor>
struct trial_of_recipe<Optimizer, zero_one_adam_recipe<Compressor, ErrorFeedback, Backend, VarianceSchedule,
                                                       LocalSchedule, DenseCompressor>> {
  using type = optimizer_over<zero_one_adam_recipe<Compressor, ErrorFeedback, Backend, exponential_variance_interval,
                                                   doubling_local_interval, DenseCompressor>,
                              typename Optimizer::communicator_type>;
  using options_type =
      zero_one_adam_options<Compressor, ErrorFeedback, VarianceSchedule, LocalSchedule, DenseCompressor>;
  static constexpr std::size_t kinds = 2, each_time = 2;

  // The variance is frozen after the first step. The interval is 2 after the second, so that the third exchanges, the
  // fifth, and so on.
  static typename type::options_type options(const options_type& o, double /*part*/) {
    const auto& [beta1, beta2, epsilon, weight_decay, bound, max_gradient_norm, clip_locally, compress_single_rank,
                 ranks, variance_schedule, local_schedule, compressor, error_feedback, dense_compressor] = o;
    return {beta1,
            beta2,
            epsilon,
            weight_decay,
            bound,
            max_gradient_norm,
            clip_locally,
            compress_single_rank,
            ranks,
            {.freeze_step = 1},
            {.scaler = 1, .clipper = 2},
            compressor,
            error_feedback,
            dense_compressor};
  }
  static std::array<double, 2> weights(const options_type& o, std::uint64_t training_steps) {
    typename LocalSchedule::state_type state{};
    std::uint64_t exchanges = 0;
    for (std::uint64_t tau = 1; tau <= training_steps; ++tau) {
      if (o.local_schedule.exchanges(state, tau)) ++exchanges;
      o.local_schedule.advance(state);
    }
    const double part = static_cast<double>(exchanges) / static_cast<double>(training_steps);
    return {part, 1.0 - part};
  }
  static void take(type& optimizer, std::size_t /*kind*/) { optimizer.step(trial_rate); }
};

}  // namespace slamb::detail

namespace slamb::kit {

/// Tells `choose` how to time an optimizer. This is for the library's recipes, and for others whose steps all cost the same;
/// specialise it for others, with the members of `detail::trial_of_recipe`. `type` is the optimizer that is timed. After two steps
/// its schedules must have reached the kinds of step that make up most of a training.
template <class Optimizer>
struct trial_of : detail::trial_of_recipe<Optimizer, typename Optimizer::recipe_type> {};

}  // namespace slamb::kit

namespace slamb::detail {

/// A time and the spread of its measurements, in seconds.
struct typical_time {
  double seconds = 0.0;
  double deviation = 0.0;
};

/// The median of n > 0 values; of an even number, the mean of the middle two.
double median_of(std::vector<double> values);

/// The median, and the median distance to it. Single slow steps do not change them.
typical_time typical_of(const std::vector<double>& seconds);

/// Times the steps of an optimizer.
template <class Optimizer>
class trial {
 public:
  using traits = kit::trial_of<Optimizer>;
  using communicator_type = typename Optimizer::communicator_type;
  using backend_type = typename Optimizer::backend_type;

  /// @param options  validated options
  trial(const typename Optimizer::options_type& options, double part, std::uint64_t training_steps)
      : options_(traits::options(options, part)), weights_(traits::weights(options, training_steps)) {
    static_assert(
        !requires { sparsifier_of(options_.compressor).require_ready(std::uint64_t{}); },
        "slamb: choose cannot try a compressor whose selection the caller sets before each step, such as "
        "explicit_mask; construct that optimizer directly");
  }

  /// Runs a round: two steps that are not timed, then `steps` timed steps. Takes the communicator and gives it back.
  /// @param clock  clock(): seconds, a double
  /// @throws the exceptions of the optimizer
  template <class Ranks, class Clock>
  void run(Ranks& ranks, const synthetic_model& model, const backend_type& backend, std::uint64_t steps, Clock& clock) {
    typename traits::type optimizer(model.tensors(), options_, std::move(ranks.template get<communicator_type>()),
                                    backend);
    const auto wait = [&] {
      if constexpr (!backend_type::launcher_type::is_synchronous) static_cast<void>(optimizer.statistics());
    };
    for (int untimed = 0; untimed < 2; ++untimed) optimizer.step(trial_rate);
    wait();
    for (std::uint64_t i = 0; i < steps; ++i) {
      for (std::size_t kind = 0; kind < (i == 0 ? traits::kinds : traits::each_time); ++kind) {
        const double start = clock();
        traits::take(optimizer, kind);
        wait();
        seconds_[kind].push_back(static_cast<float>(clock() - start));
      }
    }
    ranks = Ranks(std::move(optimizer.communicator()));
  }

  /// The time of a mean step of the training on the synthetic tensors, averaged over ranks, equal on all. Collective.
  typical_time time(const summing_ranks& ranks) {
    typical_time all;
    for (std::size_t kind = 0; kind < traits::kinds; ++kind) {
      ranks.all_reduce_sum(seconds_[kind]);
      std::vector<double> means(seconds_[kind].begin(), seconds_[kind].end());
      for (double& sum : means) sum /= ranks.size;
      const typical_time one = typical_of(means);
      all.seconds += rounded_product(weights_[kind], one.seconds);
      all.deviation += rounded_product(weights_[kind], one.deviation);
    }
    return all;
  }

 private:
  typename traits::type::options_type options_;
  std::array<double, traits::kinds> weights_;
  std::array<std::vector<float>, traits::kinds> seconds_;
};

}  // namespace slamb::detail

#if !defined(SLAMB_SEPARATE_COMPILATION)
#include "slamb/impl/optimizer/detail/trial.ipp"
#endif
