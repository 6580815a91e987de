// AdamW and LAMB: the mean gradient over ranks, one adaptive step, a rate for each tensor.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "slamb/backend/host/host_backend.hpp"
#include "slamb/communicator/self_communicator.hpp"
#include "slamb/compressor/no_compressor.hpp"
#include "slamb/core/concepts.hpp"
#include "slamb/error_feedback/no_error_feedback.hpp"
#include "slamb/exchange/summable.hpp"
#include "slamb/optimizer/foundation.hpp"
#include "slamb/optimizer/lamb_passes.hpp"
#include "slamb/optimizer/settings.hpp"
#include "slamb/trust_ratio/layerwise_trust_ratio.hpp"
#include "slamb/trust_ratio/unit_trust_ratio.hpp"

namespace slamb {

/// Settings of `basic_lamb`.
template <class Compressor, class ErrorFeedback, class TrustRatio>
struct lamb_options {
  double beta1 = 0.9;                                                ///< in [0, 1)
  double beta2 = 0.999;                                              ///< in [0, 1)
  double epsilon = TrustRatio::sums_per_segment == 0 ? 1e-8 : 1e-6;  ///< > 0; Adam's customary value, and LAMB's
  double weight_decay = 0.01;                                        ///< λ ≥ 0
  bool bias_correction = true;                                       ///< false: m̂ = m, v̂ = v
  double max_gradient_norm = 0.0;  ///< c: g ← g / max(1, ‖g‖/c) with the norm over all tensors; 0 or ∞: off
  bool skip_non_finite = true;     ///< skip a step, on all ranks, when a gradient of any is not finite
  Compressor compressor{};
  ErrorFeedback error_feedback{};
  TrustRatio trust_ratio{};
};

/// Exchanges the gradient.
///
///     m ← β1 m + (1−β1) g          v ← β2 v + (1−β2) g²
///     u = m̂/(√v̂ + ε) + λ p         p_l ← p_l − γ φ_l u_l
///
/// *Memory*: 8 bytes of state a parameter, and 4 of exchange buffer with more than one rank.
/// *Cost*: 24 + 16 bytes of memory traffic a parameter (LAMB) or 28 (AdamW), and 4 to see that the gradient is finite;
/// with more than one rank, 4 more to gather. On the wire: one all_reduce of all gradients a step.
/// *Determinism*: the same bits from run to run and on all ranks, for every number of threads.
/// *Reference*: LAMB, arXiv 1904.00962, algorithm 2; AdamW, arXiv 1711.05101.
template <compressor Compressor, error_feedback ErrorFeedback, trust_ratio TrustRatio, communicator Communicator,
          class Backend>
class basic_lamb {
  static_assert(
      requires { requires Compressor::selects_all; },
      "slamb: basic_lamb sends whole gradients; a Compressor that leaves elements out needs an ErrorFeedback "
      "that keeps them: use basic_slamb, which exchanges the momentum");
  static_assert(!ErrorFeedback::worker_state && !ErrorFeedback::server_state,
                "slamb: basic_lamb loses nothing and has no error buffers; its ErrorFeedback must ask for none, as "
                "no_error_feedback does");

 public:
  using options_type = lamb_options<Compressor, ErrorFeedback, TrustRatio>;

  /// @param parameters  the tensors; the spans must outlive the optimizer
  /// @throws std::invalid_argument naming what is wrong; disagreement_error, on every rank, if ranks are given
  ///         different tensors or settings; communicator_error
  explicit basic_lamb(std::span<const parameter> parameters, const options_type& options = {},
                      Communicator communicator = {}, Backend backend = {})
      : options_((validate(options), options)),
        base_(parameters, options.weight_decay, std::move(communicator), std::move(backend)) {
    base_.plan_sums(std::max<int>(TrustRatio::sums_per_segment, sum_gradient::sums));
    factors_ = base_.memory.template plan<factors_type>("trust ratios", base_.tensors.segments().size());
    if (base_.ranks.size() > 1) exchange_ = base_.memory.template plan<float>("exchange", base_.tensors.elements());
    base_.allocate(facts());
    make_batches();
  }

  /// One step with one learning rate.
  /// @throws std::invalid_argument for a rate that is negative or not finite; communicator_error, with all state as it
  /// was
  void step(double learning_rate) { step(std::span<const double>(&learning_rate, 1)); }

  /// One step with a learning rate for each group. *Stream*: synchronous on the host.
  void step(std::span<const double> rates_by_group) {
    base_.set_rates(rates_by_group);
    const mean_gradient g = exchange_gradient();  // docs/algorithms/lamb.md (1), (2)
    if (g.overflowed) return void(++base_.skipped_steps);
    base_.set_scalars(scalars_at<TrustRatio>(base_.step + 1, options_, g.scale));
    const adam_update<TrustRatio> update{base_.tables(factors_), options_.trust_ratio};
    for (const batch& tensors : batches_) {
      if constexpr (TrustRatio::sums_per_segment == 0) {
        base_.find_factors(options_.trust_ratio, base_.memory.view(factors_), tensors.first, tensors.last);
        base_.executor.run(update_and_apply<TrustRatio>{update}, g.view, tensors.tiles);
      } else {
        base_.executor.run(update_and_sum<TrustRatio>{update}, g.view, tensors.tiles, base_.sums());
        base_.find_factors(options_.trust_ratio, base_.memory.view(factors_), tensors.first, tensors.last);
        base_.executor.run(apply_update<TrustRatio>{update}, g.view, tensors.tiles);
      }
    }
    ++base_.step;
  }

  /// Nothing to do: parameters are the same on all ranks after every step.
  void synchronize_parameters() noexcept {}

  /// @param with_norms  also computes the norms, at the cost of one pass over the model; like `step`, by one thread at a
  ///                    time
  slamb::statistics statistics(bool with_norms = false) const { return base_.report("dense", with_norms); }
  memory_report memory() const { return base_.memory.report(base_.tensors.elements()); }
  Communicator& communicator() noexcept { return base_.ranks.base(); }
  const options_type& options() const noexcept { return options_; }

  /// Points tensor number `tensor` at another gradient of the same size.
  void set_gradient(std::size_t tensor, const float* gradient) { base_.set_gradient(tensor, gradient); }

 private:
  using factors_type =
      decltype(std::declval<const TrustRatio&>().factors(static_cast<const double*>(nullptr), segment_facts{}));

  // Tensors whose state fits the cache together.
  struct batch {
    std::size_t first, last;
    tile_range tiles;
  };

  struct mean_gradient {
    model_view view;
    double scale = 1.0;  // what is read as the gradient, times this, is g
    bool overflowed = false;
  };

  static void validate(const options_type& o) {
    validate_settings(o);
    detail::require_in(o.max_gradient_norm >= 0.0, "max_gradient_norm", o.max_gradient_norm, ">= 0 (0 or inf: off)");
  }

  agreement facts() const {
    agreement all = agreement_of("basic_lamb ", options_, base_.tensors.segments().size());
    all.add("max_gradient_norm", options_.max_gradient_norm);
    all.add("skip_non_finite", options_.skip_non_finite ? 1.0 : 0.0);
    return all;
  }

  void make_batches() {
    constexpr std::size_t bytes = 16;  // of p, g, m, v
    const std::size_t count = base_.tensors.segments().size();
    for (std::size_t first = 0; first < count;) {
      std::size_t last = first, size = 0;
      while (last < count &&
             (last == first || size + base_.tensors.segments()[last].size * bytes <= base_.cache_bytes()))
        size += base_.tensors.segments()[last++].size * bytes;
      batches_.push_back({first, last, {base_.tensors.tiles_of(first).first, base_.tensors.tiles_of(last - 1).last}});
      first = last;
    }
    if constexpr (TrustRatio::sums_per_segment == 0) batches_ = {{0, count, base_.all_tiles()}};
  }

  bool clips() const noexcept { return options_.max_gradient_norm > 0.0 && std::isfinite(options_.max_gradient_norm); }

  // g ← mean of the ranks' gradients, and its scale from the global norm. Nothing is changed yet.
  mean_gradient exchange_gradient() {
    mean_gradient g{.view = base_.view()};
    if (base_.ranks.size() > 1) {
      g.view.exchanged = base_.memory.view(exchange_).data();
      const bool finite = base_.executor.run(gather_gradient{}, g.view, base_.all_tiles());
      const bool summed = all_reduce_unless(!finite && options_.skip_non_finite, base_.memory.view(exchange_),
                                            base_.ranks, base_.executor);
      g.overflowed = !summed && options_.skip_non_finite;
      g.view.gradient_is_exchanged = true;
      g.scale = 1.0 / base_.ranks.size();
    } else if (options_.skip_non_finite && !clips()) {
      g.overflowed = !base_.executor.run(check_gradient{}, g.view, base_.all_tiles());
    }
    if (clips() && !g.overflowed) {
      const bool finite = base_.executor.run(sum_gradient{}, g.view, base_.all_tiles(), base_.sums());
      const double square = base_.executor.total({base_.sums(), base_.tensors.tiles().size()});
      g.overflowed = !finite && options_.skip_non_finite && base_.ranks.size() == 1;  // else seen when gathered
      g.scale /= std::max(1.0, g.scale * std::sqrt(square) / options_.max_gradient_norm);
    }
    return g;
  }

  options_type options_;
  foundation<Communicator, Backend> base_;
  region<factors_type> factors_;
  region<float> exchange_;
  std::vector<batch> batches_;
};

/// AdamW: every tensor at the learning rate.
template <class Communicator = self_communicator, class Backend = host_backend>
using adamw = basic_lamb<no_compressor, no_error_feedback, unit_trust_ratio, Communicator, Backend>;

/// LAMB: every tensor at a rate in proportion to its norm.
template <class Communicator = self_communicator, class Backend = host_backend>
using lamb = basic_lamb<no_compressor, no_error_feedback, layerwise_trust_ratio, Communicator, Backend>;

}  // namespace slamb
