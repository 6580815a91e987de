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
#include "slamb/detail/state/saved_state.hpp"
#include "slamb/optimizer/detail/adam_passes.hpp"
#include "slamb/optimizer/detail/overlap.hpp"

namespace slamb::detail {

class optimizer_core;
class wire_layout;

/// True if c bounds the norm; ∞ does not.
inline bool bounds_norm(double c) noexcept { return std::isfinite(c); }

/// g ← g min(1, c/(‖g‖ + 1e-6)), through the gradient scale of the step.
///
/// @param gradients   the view in which passes read them
/// @param not_finite  becomes 1 if a gradient is not finite
void clip_gradient(optimizer_core& core, const any_view& gradients, double c, std::uint32_t* not_finite = nullptr);

/// The same for gradients in the exchange buffer, `exchanged`.
void clip_exchanged(optimizer_core& core, float* exchanged, double c);

/// Clips gradients whose mean no rank knows, by one factor for all ranks: with the norm √(mean ‖g_i‖²), which is at least the
/// norm of the mean. It takes a collective of one float. Or by ‖g_i‖ of each rank, without a collective.
class own_gradient_clip {
 public:
  template <class Options>
  void plan(optimizer_core& core, const Options& o) {
    plan(core, o.max_gradient_norm, o.clip_locally);
  }
  void plan(optimizer_core& core, double c, bool is_local);

  bool is_active() const noexcept { return bounds_norm(c_); }

  /// Call it once in a step, when all gradients are ready and before a signal is formed. Also checks that they are finite.
  void clip(optimizer_core& core) const;

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
bool exchange_dense_gradient(optimizer_core& core, std::span<float> buffer, bool skip_non_finite,
                             const gradient_bucket& bucket, double max_norm = std::numeric_limits<double>::infinity());

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
  if (context.ranks.size() > 1) clip_exchanged(context, g.exchanged, max_norm);  // a single rank has clipped it
  return g;
}

/// m, v, p ← …, by a gradient that is the same on all ranks: docs/algorithms/lamb.md (3) … (7).
///
/// @param finish      computes the trust ratio of a tensor from its sums, if there are any, as `compute_trust_ratios` does
/// @param view        the state and the gradient
/// @param is_checked  a step whose gradient is not finite is skipped
template <trust_ratio TrustRatio, class Variance, class Context, class View, class Finish>
void take_adam_step(Context& context, const View& view, const adam_update<TrustRatio, Variance>& update,
                    std::span<const tensor_batch> batches, const Finish& finish, bool is_checked = true) {
  using passes = adam_passes<TrustRatio, Variance>;
  // Checked gradients of several ranks may have a mean that is larger by its rounding.
  const typename passes::update first{{update, is_checked && !view.gradient_is_exchanged}};
  for (const tensor_batch& tensors : batches) {
    context.run(first, view, tensors.tiles, passes::needs_norms ? context.sums() : nullptr);
    if constexpr (passes::needs_norms) {
      context.template finish_sums<TrustRatio::sums_per_segment>(tensors.first, tensors.last, finish, true);
      context.run(typename passes::apply{update}, view, tensors.tiles);
    }
  }
}

/// The batches of tensors for `take_adam_step`.
template <trust_ratio TrustRatio, class Context>
std::vector<tensor_batch> batches_for(const Context& context, std::size_t bytes) {
  // Sums over shards are taken of all tensors together.
  return TrustRatio::sums_per_segment == 0 || context.shards.exists()
             ? one_batch_of(context.tensors)
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

/// The compressed exchange of gradients, chosen by the kind of the Compressor: this one is for no_compressor, and is never active.
/// The others are in slamb/compressed_lamb.hpp, with the same members.
template <class Compressor, class ErrorFeedback, class Context>
class compressed_gradient {
  static_assert(
      requires { requires Compressor::selects_all; } || !(quantizer<Compressor> || selects<Compressor>),
      "slamb: LAMB or AdamW with a Compressor other than no_compressor needs #include <slamb/compressed_lamb.hpp>");
  static_assert(
      requires { requires Compressor::selects_all; } || quantizer<Compressor> || selects<Compressor>,
      "slamb: the Compressor of LAMB or AdamW must be no_compressor, a quantizer (bits of every element), a sparsifier "
      "(some elements) or a chain of a sparsifier and a quantizer");
  static_assert(
      !ErrorFeedback::worker_state && !ErrorFeedback::server_state,
      "slamb: LAMB or AdamW without compression has no compression error; its ErrorFeedback must have no error "
      "buffers, such as no_error_feedback");

 public:
  compressed_gradient(const Compressor& /*compressor*/, bool /*on_single_rank*/) {}

  /// False: gradients are exchanged dense, and none of the functions below is called.
  static constexpr bool is_active(const Context& /*context*/) noexcept { return false; }

  /// Plans lasting memory.
  void plan(Context& /*context*/) {}
  /// The same beside the exchange of codes, whose layout is `other`.
  void plan_beside(Context& /*context*/, const wire_layout& /*other*/) {}
  /// Bytes of a buffer for a step.
  static std::uint64_t buffer_bytes(const Context& /*context*/) noexcept { return 0; }
  void use_buffer(region<std::byte> /*buffer*/, const Context& /*context*/) noexcept {}
  void start(Context& /*context*/) {}

  /// Sends all gradients. Changes nothing that lasts.
  void send(Context& /*context*/) {}
  /// The view in which passes read the mean.
  static typename Context::view_type receive(Context& context) { return context.view(); }

  void report(const Context& /*context*/, bool /*with_norms*/, statistics& /*all*/) const {}
  void visit_state(const Context& /*context*/, const state_visitor& /*part*/) const {}
};

/// The exchange of gradients by any Compressor: one all_reduce of floats, or codes, or selected elements. A single rank exchanges
/// nothing, unless a quantizer is active there.
template <class Compressor, class ErrorFeedback, class Context>
class gradient_exchange {
 public:
  gradient_exchange(const Compressor& compressor, const gradient_settings& settings)
      : settings_(settings), compressed_(compressor, settings.on_single_rank) {}

  /// Plans memory of its own.
  void plan(Context& context) {
    if (compressed_.is_active(context)) compressed_.plan(context);
    if (const std::uint64_t bytes = buffer_bytes(context); bytes > 0)
      use_buffer(context.memory.template plan<std::byte>("exchange", bytes), context);
  }

  // In place of `plan`, for a recipe that exchanges dense gradients at some steps and codes at others, in one buffer.
  /// Plans memory beside the exchange of codes, whose layout is `other`, but no buffer.
  void plan_beside(const wire_layout& other, Context& context) {
    if (compressed_.is_active(context)) compressed_.plan_beside(context, other);
  }
  /// Bytes of the buffer. It need not be kept between steps.
  std::uint64_t buffer_bytes(const Context& context) const noexcept {
    if (compressed_.is_active(context)) return compressed_.buffer_bytes(context);
    return context.ranks.size() > 1 ? (sum_header::floats + context.tensors.elements()) * sizeof(float) : 0;
  }
  /// Uses a buffer of at least `buffer_bytes`.
  void use_buffer(region<std::byte> buffer, const Context& context) noexcept {
    dense_ = {buffer.offset, 0};
    if (compressed_.is_active(context))
      compressed_.use_buffer(buffer, context);
    else
      dense_.count = static_cast<std::size_t>(buffer_bytes(context) / sizeof(float));
  }

  void start(Context& context) {
    if (compressed_.is_active(context)) compressed_.start(context);
  }

  /// The gradient as it is read, times this, is the mean, or what the codes are of.
  double scale(const Context& context) const noexcept {
    return compressed_.is_active(context) ? 1.0 : 1.0 / context.ranks.size();
  }
  /// Exchanges a bucket. Returns false if it is not the last and nothing is exchanged early: scales depend on all gradients, and
  /// so do the places of selected elements.
  bool exchange(const gradient_bucket& bucket, Context& context) {
    if (!compressed_.is_active(context))
      return exchange_dense_gradient(context, payload_in(context.memory.view(dense_)), settings_.skip_non_finite,
                                     bucket, settings_.max_norm);
    if (bucket.is_last) compressed_.send(context);
    return bucket.is_last;
  }
  /// The view in which passes read the clipped mean, once everything has been exchanged and the step is not skipped.
  typename Context::view_type receive(Context& context) {
    if (!compressed_.is_active(context))
      return clipped_mean(context, payload_in(context.memory.view(dense_)), settings_.max_norm);
    typename Context::view_type g = compressed_.receive(context);
    g.gradient_is_exchanged = true;
    context.has_half_step = context.shards.exists();  // errors have changed, and the norm is of all shards
    clip_exchanged(context, g.exchanged, settings_.max_norm);
    context.has_half_step = false;
    return g;
  }

  Compressor& compressor() noexcept requires selects<Compressor> { return compressed_.compressor(); }
  void measure_next() noexcept requires quantizer<Compressor> { compressed_.measure_next(); }
  void report(const Context& context, bool with_norms, statistics& all) const {
    if (compressed_.is_active(context)) compressed_.report(context, with_norms, all);
  }
  void visit_state(const Context& context, const state_visitor& part) const { compressed_.visit_state(context, part); }

 private:
  gradient_settings settings_;
  compressed_gradient<Compressor, ErrorFeedback, Context> compressed_;
  region<float> dense_;
};

}  // namespace slamb::detail
