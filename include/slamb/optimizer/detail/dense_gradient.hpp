// What recipes do with gradients in full precision: exchange them whole, and take a step of Adam's with their mean.
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
#include "slamb/detail/pass/element.hpp"
#include "slamb/detail/pass/layout.hpp"
#include "slamb/detail/pass/pass.hpp"
#include "slamb/detail/pass/step_state.hpp"
#include "slamb/detail/state/saved_state.hpp"
#include "slamb/optimizer/detail/adam_passes.hpp"
#include "slamb/optimizer/detail/overlap.hpp"

namespace slamb::detail {

/// Whether c is the bound of a norm: 0 and ∞ say that there is none.
inline bool bounds_norm(double c) noexcept { return c > 0.0 && std::isfinite(c); }

/// g ← g / max(1, ‖g‖/c), the norm over all tensors; for an executor to invoke.
struct clip_gradient_scale {
  step_record* record;
  adam_scalars* scalars;
  const double* square;  ///< Σ of the squares of what is read as the gradient
  double c;

  SLAMB_HOST_DEVICE void operator()() const {
    record->norm = record->gradient_scale * sqrt(*square);
    const double excess = record->norm / c;
    if (excess > 1.0) record->gradient_scale /= excess;
    scalars->gradient_scale = static_cast<float>(record->gradient_scale);
  }
};

/// g ← g / max(1, ‖g‖/c), by the scale of the gradient in the record of the step.
///
/// @param not_finite  becomes 1 if a gradient is not
template <class Context>
void clip_gradient(const model_view& view, Context& context, double c, std::uint32_t* not_finite = nullptr) {
  if (!bounds_norm(c)) return;
  context.executor.run(dense_gradient_passes::norm{}, view, context.all_tiles(), context.sums(), not_finite);
  context.executor.add_up({context.sums(), context.tensors.tiles().size()}, context.sums());
  context.executor.invoke(clip_gradient_scale{context.record(), context.scalars(), context.sums(), c});
}

/// Exchanges the gradients of a bucket as they are, in a step that has begun with the scale 1/N: `dense_mean` is then what is read
/// as the gradient. Nothing that lasts is changed; with the last bucket the step is refused, on all ranks, if a gradient of any is
/// not finite.
///
/// @param buffer  [elements] with a `sum_header` in front, with more than one rank
/// @param skip_non_finite  false: takes gradients as they are
/// @param max_norm  c, for one rank, which has to look at gradients anyway; 0 or ∞: no clipping
/// @return false: there is nothing to exchange early
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

/// Where the mean of gradients that have been exchanged so is read, times the scale of the step.
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
/// @param finish  makes the factors of a tensor from its sums, if there are any: `compute_trust_ratios`, or what does so and more
/// @param view    the state, and where the gradient is read
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

/// The batches that suit it.
template <trust_ratio TrustRatio, class Context>
std::vector<tensor_batch> batches_for(const Context& context, std::size_t bytes) {
  return TrustRatio::sums_per_segment == 0 ? one_batch_of(context.tensors)
                                           : batches_of(context.tensors, context.cache_bytes(), bytes);
}

/// What is asked of an exchange of gradients.
struct gradient_settings {
  bool skip_non_finite = true;
  double max_norm = 0.0;        ///< 0 or ∞: no clipping
  bool on_single_rank = false;  ///< compresses with one rank as well
};

/// Whole: one all_reduce of all gradients.
template <class Compressor, class ErrorFeedback, class Context>
class gradient_exchange {
  static_assert(
      requires { requires Compressor::selects_all; } || !(quantizer<Compressor> || selects<Compressor>),
      "slamb: basic_lamb with a Compressor other than no_compressor needs #include <slamb/compressed_lamb.hpp>");
  static_assert(
      requires { requires Compressor::selects_all; } || quantizer<Compressor> || selects<Compressor>,
      "slamb: basic_lamb's Compressor must be no_compressor, a quantizer (bits of every element), a sparsifier (some "
      "elements) or a chain of the last two");
  static_assert(
      !ErrorFeedback::worker_state && !ErrorFeedback::server_state,
      "slamb: basic_lamb without compression loses nothing and has no error buffers; its ErrorFeedback must ask "
      "for none, as no_error_feedback does");

 public:
  gradient_exchange(const Compressor& /*compressor*/, const gradient_settings& settings) : settings_(settings) {}

  void plan(Context& context) {
    if (context.ranks.size() > 1) buffer_ = plan_summable(context.memory, "exchange", context.tensors.elements());
  }
  void start(Context& /*context*/) {}

  /// What is read as the gradient, times this, is the mean.
  static double scale(const Context& context) noexcept { return 1.0 / context.ranks.size(); }
  /// Exchanges a bucket; false where it is not the last: only with the last.
  bool exchange(const gradient_bucket& bucket, Context& context) {
    return exchange_dense_gradient(context, payload_in(context.memory.view(buffer_)), settings_.skip_non_finite, bucket,
                                   settings_.max_norm);
  }
  /// The mean, clipped, once all has been exchanged and the step goes on: where it is read as the gradient.
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
