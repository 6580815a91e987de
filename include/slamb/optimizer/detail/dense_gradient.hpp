// Dense gradients: their exchange, clipping, and Adam's step with their mean.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "slamb/core/concepts.hpp"
#include "slamb/core/statistics.hpp"
#include "slamb/detail/exchange/summable.hpp"
#include "slamb/detail/pass/arena.hpp"
#include "slamb/detail/pass/layout.hpp"
#include "slamb/detail/pass/pass.hpp"
#include "slamb/detail/pass/step_state.hpp"
#include "slamb/detail/state/saved_state.hpp"
#include "slamb/optimizer/detail/adam_passes.hpp"
#include "slamb/optimizer/detail/overlap.hpp"

namespace slamb::detail {

/// True if c bounds the norm; 0 and ∞ do not.
inline bool bounds_norm(double c) noexcept { return c > 0.0 && std::isfinite(c); }

/// g ← g / max(1, ‖g‖/c), the norm over all tensors; for an executor to invoke.
struct clip_gradient_scale {
  step_record* record;
  adam_scalars* scalars;
  const double* square;  ///< sum of the squares of the gradient as it is read
  double c;

  SLAMB_HOST_DEVICE void operator()() const {
    record->norm = record->gradient_scale * sqrt(*square);
    const double excess = record->norm / c;
    if (excess > 1.0) record->gradient_scale /= excess;
    scalars->gradient_scale = static_cast<float>(record->gradient_scale);
  }
};

/// g ← g / max(1, ‖g‖/c), through the gradient scale of the step.
///
/// @param not_finite  becomes 1 if a gradient is not finite
template <class Context>
void clip_gradient(const model_view& view, Context& context, double c, std::uint32_t* not_finite = nullptr) {
  if (!bounds_norm(c)) return;
  context.executor.run(dense_gradient_passes::norm{}, view, context.all_tiles(), context.sums(), not_finite);
  context.executor.add_up({context.sums(), context.tensors.tiles().size()}, context.sums());
  context.executor.invoke(clip_gradient_scale{context.record(), context.scalars(), context.sums(), c});
}

/// Exchanges the gradients of a bucket, in a step that has begun with the scale 1/N; passes then read `dense_mean`. Changes
/// nothing that lasts. With the last bucket all ranks skip the step if any rank's gradient is not finite.
///
/// @param buffer  [elements] with a `sum_header` in front, with more than one rank
/// @param skip_non_finite  false: exchanges gradients without a check
/// @param max_norm  c, used by a single rank, whose check then also clips; 0 or ∞: no clipping
/// @return false if the bucket is not the last and nothing is exchanged early
template <class Context>
bool exchange_dense_gradient(Context& context, std::span<float> buffer, bool skip_non_finite,
                             const gradient_bucket& bucket, double max_norm = 0.0) {
  model_view g = context.view();
  std::uint32_t* const not_finite = skip_non_finite ? context.not_finite() : nullptr;
  if (context.ranks.size() == 1) {
    if (!bucket.is_last) return false;
    if (bounds_norm(max_norm))
      clip_gradient(g, context, max_norm, not_finite);
    else if (skip_non_finite)
      context.executor.run(dense_gradient_passes::check{}, g, context.all_tiles(), nullptr, not_finite);
    if (skip_non_finite) context.executor.invoke(skip_if_not_finite{context.record()});
    return true;
  }
  g.exchanged = buffer.data();
  context.executor.run(dense_gradient_passes::gather{}, g, bucket.tiles, nullptr, not_finite);
  const std::uint64_t first = context.tensors.first_element(bucket.first);
  const std::span<float> values = buffer.subspan(first, context.tensors.first_element(bucket.last) - first);
  if (!bucket.is_last) {
    context.overlap.start_sum(values, context.ranks);
  } else {
    context.overlap.join();
    all_reduce_payload(values, buffer.size(), context, skip_non_finite);
  }
  return true;
}

/// The view in which passes read these gradients; times the scale of the step, they are the mean.
template <class Context>
model_view dense_mean(const Context& context, std::span<float> buffer) noexcept {
  model_view g = context.view();
  if (context.ranks.size() == 1) return g;
  g.exchanged = buffer.data();
  g.gradient_is_exchanged = true;
  return g;
}

/// m, v, p ← …, by a gradient that is the same on all ranks: docs/algorithms/lamb.md (3) … (7).
///
/// @param finish  computes the trust ratio of a tensor from its sums, if there are any, as `compute_trust_ratios` does
/// @param view    the state and the gradient
template <trust_ratio TrustRatio, class Context, class View, class Finish>
void take_adam_step(Context& context, const View& view, const adam_update<TrustRatio>& update,
                    std::span<const tensor_batch> batches, const Finish& finish) {
  using passes = adam_passes<TrustRatio>;
  for (const tensor_batch& tensors : batches) {
    context.executor.run(typename passes::update{update}, view, tensors.tiles,
                         passes::needs_norms ? context.sums() : nullptr);
    if constexpr (passes::needs_norms) {
      context.template finish_sums<TrustRatio::sums_per_segment>(tensors.first, tensors.last, finish);
      context.executor.run(typename passes::apply{update}, view, tensors.tiles);
    }
  }
}

/// The batches of tensors for `take_adam_step`.
template <trust_ratio TrustRatio, class Context>
std::vector<tensor_batch> batches_for(const Context& context, std::size_t bytes) {
  return TrustRatio::sums_per_segment == 0 ? one_batch_of(context.tensors)
                                           : batches_of(context.tensors, context.cache_bytes(), bytes);
}

/// Options of an exchange of gradients.
struct gradient_settings {
  bool skip_non_finite = true;
  double max_norm = 0.0;        ///< 0 or ∞: no clipping
  bool on_single_rank = false;  ///< compresses with a single rank too
};

/// The dense exchange: one all_reduce of all gradients.
template <class Compressor, class ErrorFeedback, class Context>
class gradient_exchange {
  static_assert(
      requires { requires Compressor::selects_all; } || !(quantizer<Compressor> || selects<Compressor>),
      "slamb: basic_lamb with a Compressor other than no_compressor needs #include <slamb/compressed_lamb.hpp>");
  static_assert(
      requires { requires Compressor::selects_all; } || quantizer<Compressor> || selects<Compressor>,
      "slamb: basic_lamb's Compressor must be no_compressor, a quantizer (bits of every element), a sparsifier (some "
      "elements) or a chain of a sparsifier and a quantizer");
  static_assert(!ErrorFeedback::worker_state && !ErrorFeedback::server_state,
                "slamb: basic_lamb without compression has no compression error; its ErrorFeedback must have no error "
                "buffers, such as no_error_feedback");

 public:
  gradient_exchange(const Compressor& /*compressor*/, const gradient_settings& settings) : settings_(settings) {}

  void plan(Context& context) {
    if (context.ranks.size() > 1) buffer_ = plan_summable(context.memory, "exchange", context.tensors.elements());
  }
  void start(Context& /*context*/) {}

  /// The gradient as it is read, times this, is the mean.
  static double scale(const Context& context) noexcept { return 1.0 / context.ranks.size(); }
  /// Exchanges a bucket. Returns false if it is not the last and nothing is exchanged early.
  bool exchange(const gradient_bucket& bucket, Context& context) {
    return exchange_dense_gradient(context, payload_in(context.memory.view(buffer_)), settings_.skip_non_finite, bucket,
                                   settings_.max_norm);
  }
  /// The view in which passes read the clipped mean, once everything has been exchanged and the step is not skipped.
  model_view receive(Context& context) {
    const model_view g = dense_mean(context, payload_in(context.memory.view(buffer_)));
    if (context.ranks.size() > 1) clip_gradient(g, context, settings_.max_norm);
    return g;
  }

  void report(const Context& /*context*/, bool /*with_norms*/, statistics& /*all*/) const {}
  void visit_state(const Context& /*context*/, const state_visitor& /*part*/) const {}

 private:
  gradient_settings settings_;
  region<float> buffer_;
};

}  // namespace slamb::detail
