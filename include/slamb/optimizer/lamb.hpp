// AdamW and LAMB: Adam's update with the mean gradient over ranks, and with LAMB's rate for each tensor.
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
#include "slamb/communicator/detail/requirements.hpp"
#include "slamb/compressor/no_compressor.hpp"
#include "slamb/core/concepts.hpp"
#include "slamb/detail/exchange/norms.hpp"
#include "slamb/detail/pass/layout.hpp"
#include "slamb/optimizer/detail/dense_gradient.hpp"
#include "slamb/optimizer/detail/optimizer_context.hpp"
#include "slamb/optimizer/detail/optimizer_over.hpp"
#include "slamb/optimizer/detail/recipe_base.hpp"
#include "slamb/optimizer/detail/roles.hpp"
#include "slamb/optimizer/detail/settings.hpp"
#include "slamb/optimizer/detail/state_arrays.hpp"
#include "slamb/optimizer/rank_options.hpp"
#include "slamb/trust_ratio/layerwise_trust_ratio.hpp"
#include "slamb/trust_ratio/unit_trust_ratio.hpp"

namespace slamb {

/// Options of `lamb` and `adamw`.
template <class Compressor, class ErrorFeedback, class TrustRatio>
struct lamb_options {
  double beta1 = 0.9;                                                ///< in [0, 1)
  double beta2 = 0.999;                                              ///< in [0, 1)
  double epsilon = TrustRatio::sums_per_segment == 0 ? 1e-8 : 1e-6;  ///< > 0; Adam's customary value, and LAMB's
  double weight_decay = 0.01;                                        ///< λ ≥ 0
  bool bias_correction = true;                                       ///< false: m̂ = m, v̂ = v
  /// c > 0: g ← g min(1, c/(‖g‖ + 1e-6)), with the norm of the mean over all tensors; ∞: off
  double max_gradient_norm = std::numeric_limits<double>::infinity();
  bool skip_non_finite = true;        ///< all ranks skip a step if a gradient of any rank is not finite
  bool compress_single_rank = false;  ///< encodes and decodes with one rank too, if the compressor is a quantizer
  rank_options ranks{};
  Compressor compressor{};
  ErrorFeedback error_feedback{};
  TrustRatio trust_ratio{};
};

namespace detail {

/// `lamb` on ranks of any Communicator.
template <compressor Compressor, error_feedback ErrorFeedback, trust_ratio TrustRatio, class Backend>
class lamb_recipe final : public recipe_with_state<Backend, lamb_options<Compressor, ErrorFeedback, TrustRatio>,
                                                   array::momentum, array::variance> {
  using base =
      recipe_with_state<Backend, lamb_options<Compressor, ErrorFeedback, TrustRatio>, array::momentum, array::variance>;
  using base::context_, base::options_, base::state_, base::view;

 public:
  using typename base::options_type;
  static constexpr const char* recipe_name = "basic_lamb";  ///< the name in saved states

  lamb_recipe(std::span<const parameter> parameters, const options_type& options, typename base::ranks_type ranks,
              Backend backend)
      : base(parameters, options, std::move(ranks), std::move(backend)),
        exchange_(options.compressor,
                  {options.skip_non_finite, options.max_gradient_norm, options.compress_single_rank}) {
    exchange_.plan(context_);
    context_.plan_sums(std::max<int>(TrustRatio::sums_per_segment, sum_gradient::sums));
    factors_ = context_.memory.template plan<factors_type>("trust ratios", context_.tensors.segments().size());
    context_.allocate(consistency(), byte_collectives_of<Compressor>);
    exchange_.start(context_);
    context_.compute_constant_trust_ratios(options_.trust_ratio, factors_);
    batches_ = batches_for<TrustRatio>(context_, 4 * sizeof(float));
    context_.enter_phase("dense");
  }

  statistics report(bool with_norms) override {
    statistics all = context_.report();
    if (with_norms) all.norm = norms_of(context_, any_view_of(view()));
    exchange_.report(context_, with_norms, all);
    return all;
  }

  auto& exchange() noexcept { return exchange_; }
  void measure_next_step() override {
    if constexpr (requires { exchange_.measure_next(); }) exchange_.measure_next();
  }

 private:
  using factors_type = factors_of<TrustRatio>;

  // A step: docs/algorithms/lamb.md.
  void begin() override { context_.template begin_step<TrustRatio>(options_, exchange_.scale(context_), {}); }

  // g ← the mean of the ranks' gradients: (1)
  bool exchange(const gradient_bucket& bucket) override { return exchange_.exchange(bucket, context_); }

  // g ← g min(1, c/(‖g‖ + 1e-6));  m, v, p ← …: (2) … (7)
  void finish() override {
    if (!context_.is_skipped_on_host()) {
      const auto g = exchange_.receive(context_);
      const adam_update<TrustRatio, unbounded_variance> update{context_.tables(factors_), options_.trust_ratio};
      take_adam_step(context_, state_.over(g, context_.memory), update, batches_,
                     context_.trust_ratios_from_sums(options_.trust_ratio, factors_), options_.skip_non_finite);
    }
    context_.end_step();
  }

  consistency_check consistency() const {
    consistency_check all = consistency_of(recipe_name, options_, context_.tensors.segments().size());
    all.add("skip_non_finite", options_.skip_non_finite ? 1.0 : 0.0);
    all.add("compress_single_rank", options_.compress_single_rank ? 1.0 : 0.0);
    return all;
  }

  state_kind kind() const noexcept override { return kind_of<lamb_recipe>(); }
  void visit_state(const state_visitor& part) override {
    base::visit_state(part);
    exchange_.visit_state(context_, part);
  }

  gradient_exchange<Compressor, ErrorFeedback, optimizer_context<Backend>> exchange_;
  region<factors_type> factors_;
  std::vector<tensor_batch> batches_;
};

/// The recipe of these options on a Backend: declared for plans.
template <class Compressor, class ErrorFeedback, class TrustRatio, class Backend>
lamb_recipe<Compressor, ErrorFeedback, TrustRatio, Backend> recipe_of(
    const lamb_options<Compressor, ErrorFeedback, TrustRatio>& options, const Backend& on);

/// Stands for a partition where there is none.
struct no_partition {};

/// The recipe of `lamb` and `adamw` with a partition, or without. That with one is in slamb/partitioned_lamb.hpp.
template <class Partition, class Compressor, class ErrorFeedback, class TrustRatio, class Backend>
struct lamb_recipe_with {
  static_assert(std::is_same_v<Partition, no_partition>,
                "slamb: LAMB or AdamW with sync::partition needs #include <slamb/partitioned_lamb.hpp>");
  using type = lamb_recipe<Compressor, ErrorFeedback, TrustRatio, Backend>;
};

inline namespace SLAMB_SIMD_NAMESPACE {

/// The policies of `lamb` and `adamw`.
template <class DefaultTrustRatio, class... Policies>
struct lamb_policies {
  using own_roles =
      roles<compressor_role, error_feedback_role, trust_ratio_role, partition_role, communicator_role, backend_role>;
  static_assert((is_policy<Policies, own_roles>::value && ...));

  using compressor_type = policy_of<compressor_role, no_compressor, Policies...>;
  using backend_type = policy_of<backend_role, host_backend, Policies...>;
  using recipe_type =
      typename lamb_recipe_with<policy_of<partition_role, no_partition, Policies...>, compressor_type,
                                policy_of<error_feedback_role, feedback_for<compressor_type>, Policies...>,
                                policy_of<trust_ratio_role, DefaultTrustRatio, Policies...>, backend_type>::type;
  using communicator_type = policy_of<communicator_role, typename recipe_type::ranks_type, Policies...>;
};

}  // namespace SLAMB_SIMD_NAMESPACE
}  // namespace detail

inline namespace SLAMB_SIMD_NAMESPACE {

/// LAMB: every tensor at a rate proportional to its norm. Exchanges the gradient.
///
///     m ← β1 m + (1−β1) g          v ← β2 v + (1−β2) g²
///     u = m̂/(√v̂ + ε) + λ p         p_l ← p_l − γ φ_l u_l
///
/// The Compressor decides how the mean g over ranks is exchanged: dense (no_compressor), quantized (a quantizer, with any
/// ErrorFeedback), or sparse (a sparsifier or a chain, with residual<>). Those of the library are in slamb/compressed_lamb.hpp.
///
/// *Memory*: 8 bytes of state a parameter, and 4 of exchange buffer with more than one rank. Compressed: also the errors of
/// the ErrorFeedback, and the messages.
/// *Cost*: 24 + 16 bytes of memory traffic a parameter (LAMB) or 28 (AdamW), and 4 to check that the gradient is finite;
/// with more than one rank, 4 more to gather. On the wire: one all_reduce of all gradients a step. Compressed: see
/// docs/algorithms/compressors.md and one_bit_exchange.md.
/// *Determinism*: the same bits from run to run and on all ranks, for every number of threads.
/// *Reference*: LAMB, arXiv 1904.00962, algorithm 2; AdamW, arXiv 1711.05101.
///
/// With sync::partition each of N ranks keeps the state of its own part alone: 8/N bytes a parameter.
///
/// @tparam Policies  in any order, each if it differs from its default: a Compressor (no_compressor), an ErrorFeedback (two_sided<>
///                   for a quantizer, residual<> for a sparsifier or a chain), a TrustRatio (layerwise_trust_ratio), a partition
///                   (none; sync::partition<>, in slamb/partitioned_lamb.hpp), a Communicator (the one that the constructor is
///                   given), and a Backend (host_backend)
template <class... Policies>
class lamb : public detail::optimizer_of<detail::lamb_policies<layerwise_trust_ratio, Policies...>> {
 public:
  using lamb::optimizer_over::optimizer_over;
};

/// AdamW: as LAMB, but every tensor at the learning rate.
///
/// @tparam Policies  as those of `lamb`, with the TrustRatio unit_trust_ratio
template <class... Policies>
class adamw : public detail::optimizer_of<detail::lamb_policies<unit_trust_ratio, Policies...>> {
 public:
  using adamw::optimizer_over::optimizer_over;
};

}  // namespace SLAMB_SIMD_NAMESPACE
}  // namespace slamb
