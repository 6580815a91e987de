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
template <class Base>
void clip_gradient(const model_view& view, Base& base, double c, std::uint32_t* not_finite = nullptr) {
  if (!bounds_norm(c)) return;
  base.executor.run(sum_gradient{}, view, base.all_tiles(), base.sums(), not_finite);
  base.executor.add_up({base.sums(), base.tensors.tiles().size()}, base.sums());
  base.executor.invoke(clip_gradient_scale{base.record(), base.scalars(), base.sums(), c});
}

/// Exchanges the gradients of a bucket as they are, in a step that has begun with the scale 1/N: `dense_mean` is then what is read
/// as the gradient. Nothing that lasts is changed; with the last bucket the step is refused, on all ranks, if a gradient of any is
/// not finite.
///
/// @param buffer  [elements] with a `sum_header` in front, with more than one rank
/// @param skip_non_finite  false: takes gradients as they are
/// @param max_norm  c, for one rank, which has to look at gradients anyway; 0 or ∞: no clipping
/// @return false: there is nothing to exchange early
template <class Base>
bool exchange_dense_gradient(Base& base, std::span<float> buffer, bool skip_non_finite, const gradient_bucket& bucket,
                             double max_norm = 0.0) {
  model_view g = base.view();
  std::uint32_t* const not_finite = skip_non_finite ? base.not_finite() : nullptr;
  if (base.ranks.size() == 1) {
    if (!bucket.is_last) return false;
    if (bounds_norm(max_norm))
      clip_gradient(g, base, max_norm, not_finite);
    else if (skip_non_finite)
      base.executor.run(check_gradient{}, g, base.all_tiles(), nullptr, not_finite);
    if (skip_non_finite) base.executor.invoke(refuse_alone{base.record()});
    return true;
  }
  g.exchanged = buffer.data();
  base.executor.run(gather_gradient{}, g, bucket.tiles, nullptr, not_finite);
  const std::uint64_t first = base.tensors.first_element(bucket.first);
  const std::span<float> values = buffer.subspan(first, base.tensors.first_element(bucket.last) - first);
  if (!bucket.is_last) {
    base.parts.start_sum(values, base.ranks);
  } else {
    base.parts.join();
    all_reduce_or_refuse(values, buffer.size(), base, skip_non_finite);
  }
  return true;
}

/// Where the mean of gradients that have been exchanged so is read, times the scale of the step.
template <class Base>
model_view dense_mean(const Base& base, std::span<float> buffer) noexcept {
  model_view g = base.view();
  if (base.ranks.size() == 1) return g;
  g.exchanged = buffer.data();
  g.gradient_is_exchanged = true;
  return g;
}

/// m, v, p ← …, by a gradient that is the same on all ranks: docs/algorithms/lamb.md (3) … (7).
///
/// @param finish  makes the factors of a tensor from its sums, if there are any: `find_factors`, or what does so and more
/// @param view    the state, and where the gradient is read
template <trust_ratio TrustRatio, class Base, class View, class Finish>
void take_adam_step(Base& base, const View& view, const adam_update<TrustRatio>& update,
                    std::span<const tensor_batch> batches, const Finish& finish) {
  for (const tensor_batch& tensors : batches) {
    if constexpr (TrustRatio::sums_per_segment == 0) {
      base.executor.run(update_and_apply<TrustRatio>{update}, view, tensors.tiles);
    } else {
      base.executor.run(update_and_sum<TrustRatio>{update}, view, tensors.tiles, base.sums());
      base.template finish_sums<TrustRatio::sums_per_segment>(tensors.first, tensors.last, finish);
      base.executor.run(apply_update<TrustRatio>{update}, view, tensors.tiles);
    }
  }
}

/// The batches that suit it.
template <trust_ratio TrustRatio, class Base>
std::vector<tensor_batch> batches_for(const Base& base, std::size_t bytes) {
  return TrustRatio::sums_per_segment == 0 ? one_batch_of(base.tensors)
                                           : batches_of(base.tensors, base.cache_bytes(), bytes);
}

/// What is asked of an exchange of gradients.
struct gradient_settings {
  bool skip_non_finite = true;
  double max_norm = 0.0;   ///< 0 or ∞: no clipping
  bool alone_too = false;  ///< compresses with one rank as well
};

/// Whole: one all_reduce of all gradients.
template <class Compressor, class ErrorFeedback, class Base>
class gradient_exchange {
  static_assert(
      requires { requires Compressor::selects_all; } || !(quantizer<Compressor> || bool(Compressor::is_sparsifier)),
      "slamb: basic_lamb with a Compressor other than no_compressor needs #include <slamb/compressed_lamb.hpp>");
  static_assert(
      requires { requires Compressor::selects_all; } || quantizer<Compressor> || bool(Compressor::is_sparsifier),
      "slamb: basic_lamb's Compressor must be no_compressor, a quantizer (bits of every element), a sparsifier (some "
      "elements) or a chain of the last two");
  static_assert(
      !ErrorFeedback::worker_state && !ErrorFeedback::server_state,
      "slamb: basic_lamb without compression loses nothing and has no error buffers; its ErrorFeedback must ask "
      "for none, as no_error_feedback does");

 public:
  gradient_exchange(const Compressor& /*compressor*/, const gradient_settings& settings) : settings_(settings) {}

  void plan(Base& base) {
    if (base.ranks.size() > 1) buffer_ = plan_summable(base.memory, "exchange", base.tensors.elements());
  }
  void start(Base& /*base*/) {}

  /// What is read as the gradient, times this, is the mean.
  static double scale(const Base& base) noexcept { return 1.0 / base.ranks.size(); }
  /// Exchanges a bucket; false where it is not the last: only with the last.
  bool exchange(const gradient_bucket& bucket, Base& base) {
    return exchange_dense_gradient(base, payload_in(base.memory.view(buffer_)), settings_.skip_non_finite, bucket,
                                   settings_.max_norm);
  }
  /// The mean, clipped, once all has been exchanged and the step goes on: where it is read as the gradient.
  model_view receive(Base& base) {
    const model_view g = dense_mean(base, payload_in(base.memory.view(buffer_)));
    if (base.ranks.size() > 1) clip_gradient(g, base, settings_.max_norm);
    return g;
  }

  void report(const Base& /*base*/, bool /*with_norms*/, statistics& /*all*/) const {}
  void visit_state(const Base& /*base*/, const state_visitor& /*part*/) const {}

 private:
  gradient_settings settings_;
  region<float> buffer_;
};

}  // namespace slamb::detail
