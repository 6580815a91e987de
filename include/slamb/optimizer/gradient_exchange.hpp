// How LAMB's gradient becomes its mean over ranks: whole. By other Compressors: compressed_gradient.hpp.
#pragma once

#include <span>

#include "slamb/core/arena.hpp"
#include "slamb/core/concepts.hpp"
#include "slamb/core/saved_state.hpp"
#include "slamb/core/statistics.hpp"
#include "slamb/exchange/summable.hpp"
#include "slamb/optimizer/batches.hpp"
#include "slamb/optimizer/mean_gradient.hpp"

namespace slamb {

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
  /// Begins to exchange a bucket, if that can be done before the rest.
  bool send_early(const tensor_batch& bucket, Base& base) {
    return send_whole_gradient(base, payload_in(base.memory.view(buffer_)), settings_.skip_non_finite, bucket);
  }
  model_view exchange(Base& base) {
    return exchange_whole_gradient(base, payload_in(base.memory.view(buffer_)), settings_.skip_non_finite,
                                   settings_.max_norm);
  }

  void report(const Base& /*base*/, bool /*with_norms*/, statistics& /*all*/) const {}
  void visit_state(const Base& /*base*/, const state_visitor& /*part*/) const {}

 private:
  gradient_settings settings_;
  region<float> buffer_;
};

}  // namespace slamb
