// Dense gradients: their exchange, clipping, and Adam's step with their mean.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "slamb/core/concepts.hpp"
#include "slamb/core/statistics.hpp"
#include "slamb/detail/exchange/summable.hpp"
#include "slamb/detail/pass/arena.hpp"
#include "slamb/detail/pass/layout.hpp"
#include "slamb/detail/pass/pass.hpp"
#include "slamb/detail/pass/step_state.hpp"
#include "slamb/detail/pass/wire_layout.hpp"
#include "slamb/detail/state/saved_state.hpp"
#include "slamb/optimizer/detail/adam_passes.hpp"
#include "slamb/optimizer/detail/overlap.hpp"

namespace slamb::detail {

/// True if c bounds the norm; ∞ does not.
inline bool bounds_norm(double c) noexcept { return std::isfinite(c); }

/// g ← g min(1, c/(‖g‖ + 1e-6)), the norm over all tensors; for an executor to invoke.
struct clip_gradient_scale {
  step_record* record;
  adam_scalars* scalars;
  const double* square;  ///< sum of the squares of the gradient as it is read
  double c;

  SLAMB_HOST_DEVICE void operator()() const {
    record->norm = record->gradient_scale * sqrt(*square);
    const double factor = c / (record->norm + 1e-6);
    if (factor < 1.0) record->gradient_scale *= factor;
    scalars->gradient_scale = static_cast<float>(record->gradient_scale);
  }
};

/// g ← g min(1, c/(‖g‖ + 1e-6)), through the gradient scale of the step.
///
/// @param not_finite  becomes 1 if a gradient is not finite
template <class View, class Context>
void clip_gradient(const View& view, Context& context, double c, std::uint32_t* not_finite = nullptr) {
  if (!bounds_norm(c)) return;
  context.executor.run(dense_gradient_passes::norm{}, view, context.all_tiles(), context.sums(), not_finite);
  context.executor.add_up({context.sums(), context.tensors.tiles().size()}, context.sums());
  context.executor.invoke(clip_gradient_scale{context.record(), context.scalars(), context.sums(), c});
}

/// This rank's share of the mean of ‖g_i‖² over ranks.
struct write_square_share {
  const double* square;
  float* share;
  int ranks;

  SLAMB_HOST_DEVICE void operator()() const { *share = static_cast<float>(*square / static_cast<double>(ranks)); }
};

/// Reads the mean. If it is not finite, all ranks skip the step.
struct read_mean_square {
  step_record* record;
  const float* mean;
  double* square;

  SLAMB_HOST_DEVICE void operator()() const {
    *square = static_cast<double>(*mean);
    if (!(*mean <= 0x1.fffffep127F)) record->not_finite = 1;
  }
};

/// Clips gradients whose mean no rank knows, by one factor for all ranks: with the norm √(mean ‖g_i‖²), which is at least the
/// norm of the mean. It takes a collective of one float. Or by ‖g_i‖ of each rank, without a collective.
class own_gradient_clip {
 public:
  template <class Context, class Options>
  void plan(Context& context, const Options& o) {
    c_ = o.max_gradient_norm;
    is_local_ = o.clip_locally || context.ranks.size() == 1;
    share_ = context.memory.template plan<float>("scalars", 1);
  }

  bool is_active() const noexcept { return bounds_norm(c_); }

  /// Call it once in a step, when all gradients are ready and before a signal is formed. Also checks that they are finite.
  template <class Context>
  void clip(Context& context) const {
    if (!is_active()) return;
    if (is_local_) return clip_gradient(context.view(), context, c_, context.not_finite());
    context.executor.run(dense_gradient_passes::norm{}, context.view(), context.all_tiles(), context.sums(),
                         context.not_finite());
    context.executor.add_up({context.sums(), context.tensors.tiles().size()}, context.sums());
    const std::span<float> share = context.memory.view(share_);
    context.executor.invoke(write_square_share{context.sums(), share.data(), context.ranks.size()});
    context.ranks.all_reduce_sum(share, context.executor.stream());
    context.executor.invoke(read_mean_square{context.record(), share.data(), context.sums()},
                            clip_gradient_scale{context.record(), context.scalars(), context.sums(), c_});
  }

 private:
  double c_ = 0.0;
  bool is_local_ = false;
  region<float> share_;
};

/// Exchanges the gradients of a bucket, in a step that has begun with the scale 1/N; passes then read `dense_mean`. Changes
/// nothing that lasts. With the last bucket all ranks skip the step if any rank's gradient is not finite.
///
/// @param buffer  [elements] with a `sum_header` in front, with more than one rank
/// @param skip_non_finite  false: exchanges gradients without a check
/// @param max_norm  c, used by a single rank, whose check then also clips; ∞: no clipping
/// @return false if the bucket is not the last and nothing is exchanged early
template <class Context>
bool exchange_dense_gradient(Context& context, std::span<float> buffer, bool skip_non_finite,
                             const gradient_bucket& bucket, double max_norm = std::numeric_limits<double>::infinity()) {
  auto g = context.view();
  std::uint32_t* const not_finite = skip_non_finite ? context.not_finite() : nullptr;
  if (context.ranks.size() == 1) {
    if (!bucket.is_last) return false;
    if (bounds_norm(max_norm))
      clip_gradient(g, context, max_norm, not_finite);
    else if (skip_non_finite)
      context.executor.run(dense_gradient_passes::check{}, g, context.all_tiles(), nullptr, not_finite);
    context.executor.invoke(skip_if_not_finite{context.record(), skip_non_finite});
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
auto dense_mean(const Context& context, std::span<float> buffer) noexcept {
  auto g = context.view();
  if (context.ranks.size() == 1) return g;
  g.exchanged = buffer.data();
  g.gradient_is_exchanged = true;
  return g;
}

/// The view in which passes read the clipped mean of dense gradients that `exchange_dense_gradient` has exchanged.
template <class Context>
auto clipped_mean(Context& context, std::span<float> buffer, double max_norm) {
  const auto g = dense_mean(context, buffer);
  if (context.ranks.size() > 1) clip_gradient(g, context, max_norm);  // a single rank has clipped it
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

/// The Compressor of dense gradients at some steps of a recipe, which sends codes of another Compressor at others: none, or a
/// quantizer that can follow the cuts of the other.
template <class C>
concept dense_compressor = compressor<C> &&(requires { requires C::selects_all; } || capability::has_no_scale<C>);

/// Options of an exchange of gradients.
struct gradient_settings {
  bool skip_non_finite = true;
  double max_norm = std::numeric_limits<double>::infinity();  ///< ∞: no clipping
  bool on_single_rank = false;                                ///< compresses with a single rank too
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

  /// Plans memory of its own.
  void plan(Context& context) {
    if (context.ranks.size() > 1) buffer_ = plan_summable(context.memory, "exchange", context.tensors.elements());
  }

  // In place of `plan`, for a recipe that exchanges dense gradients at some steps and codes at others, in one buffer.
  /// Plans memory beside the exchange of codes, whose layout is `other`, but no buffer.
  void plan_beside(const wire_layout& /*other*/, Context& /*context*/) {}
  /// Bytes of the buffer. It need not be kept between steps.
  static std::uint64_t buffer_bytes(const Context& context) noexcept {
    return context.ranks.size() > 1 ? (sum_header::floats + context.tensors.elements()) * sizeof(float) : 0;
  }
  /// Uses a buffer of at least `buffer_bytes`.
  void place(region<std::byte> buffer, const Context& context) noexcept {
    buffer_ = {buffer.offset, static_cast<std::size_t>(buffer_bytes(context) / sizeof(float))};
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
  auto receive(Context& context) {
    return clipped_mean(context, payload_in(context.memory.view(buffer_)), settings_.max_norm);
  }

  void report(const Context& /*context*/, bool /*with_norms*/, statistics& /*all*/) const {}
  void visit_state(const Context& /*context*/, const state_visitor& /*part*/) const {}

 private:
  gradient_settings settings_;
  region<float> buffer_;
};

}  // namespace slamb::detail
