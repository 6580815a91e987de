// The exchange of selected elements of LAMB's gradient. With quantized_gradient.hpp: the compressed exchanges, of which the kind
// of the Compressor chooses one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "slamb/compressor/chain.hpp"
#include "slamb/core/concepts.hpp"
#include "slamb/detail/exchange/norms.hpp"
#include "slamb/detail/exchange/quantized.hpp"
#include "slamb/detail/exchange/sparse.hpp"
#include "slamb/detail/pass/memory_traffic.hpp"
#include "slamb/detail/pass/sparse_pass.hpp"
#include "slamb/detail/state/saved_state.hpp"
#include "slamb/optimizer/detail/dense_gradient.hpp"
#include "slamb/optimizer/detail/quantized_gradient.hpp"
#include "slamb/optimizer/detail/state_arrays.hpp"

namespace slamb::detail {

namespace array {

/// The residual: elements that earlier exchanges left out.
struct residual : state_array {
  static constexpr const char* name = "worker error";
  template <class T>
  struct field {
    T residual;
  };
};

}  // namespace array

/// Selected elements of gradient and error → payload.
struct form_selected_gradient : pass_without_constants {
  static constexpr bool follows_gradient = true;
  using signal_reads = arrays<array::gradient, array::residual>;
  using reads = signal_reads;
  using writes = arrays<>;
  using packs = arrays<array::exchanged>;
  static constexpr bool receives = false;
  static constexpr bool needs_discount = false;
  static constexpr int sums = 0;

  template <class Element, class Sums>
  SLAMB_ELEMENT auto signal(const Element& e, no_constants /*constants*/, Sums& results) const {
    using Real = typename Element::real;
    results.check_finite(e.gradient);
    const Real x = e.gradient + e.residual;
    results.check_finite(x);
    return x;
  }
  template <class Element, class Lanes, class Sums>
  SLAMB_ELEMENT void operator()(Element& e, const Lanes& /*at*/, no_constants constants, Sums& results) const {
    e.exchanged = signal(e, constants, results);
  }
};

/// Payload → exchange buffer, with 0 for elements that were not selected. These become the residual.
struct receive_selected_gradient : pass_without_constants {
  static constexpr bool follows_gradient = true;
  using reads = arrays<array::gradient, array::residual>;
  using writes = arrays<array::exchanged, array::residual>;
  using packs = arrays<>;
  static constexpr bool receives = true;
  static constexpr bool receives_compression_error = true;
  static constexpr bool needs_discount = false;
  static constexpr int sums = 0;

  float scale;  ///< makes the sum a mean

  // docs/algorithms/compressors.md (14), (18)
  template <class Element, class Lanes, class Sums>
  SLAMB_ELEMENT void operator()(Element& e, const Lanes& at, no_constants /*constants*/, Sums& /*sums*/) const {
    using Real = typename Element::real;
    e.residual = select(at.selected, e.compression_error, e.gradient + e.residual);
    e.exchanged = select(at.selected, e.exchanged * Real(scale), Real(0.0F));
  }
};

/// The passes of an exchange of selected gradients: steps run these, plans and benchmarks count these.
struct sparse_gradient_passes {
  using form = form_selected_gradient;
  using receive = receive_selected_gradient;

  /// Bytes of memory traffic an element, with more than one rank.
  /// @param sent  part of the elements that is exchanged
  template <class Compressor>
  static double memory_bytes(const Compressor& compressor, int ranks, double sent, const plan::storage_bytes& stored) {
    using sparsifier = std::remove_cvref_t<decltype(sparsifier_of(compressor))>;
    constexpr double value = sizeof(float);
    const double received = value * ((receive::receives ? 1 : 0) + (capability::chained<Compressor> ? 1 : 0));
    return choice_memory_bytes<form, sparsifier>(ranks, stored) + bytes_per_element<form>(stored) +
           bytes_per_element<receive>(stored) +
           sent * (value * form::packs::stored + received + payload_memory_bytes<true>(compressor, ranks));
  }
};

/// The exchange of selected elements of the gradient. Elements that are left out, and the compression error of a chain, are kept
/// and sent later.
template <class Compressor, class ErrorFeedback, class Context>
requires(!requires { requires Compressor::selects_all; } &&
         selects<Compressor>) class gradient_exchange<Compressor, ErrorFeedback, Context> {
  static_assert(
      ErrorFeedback::worker_state && !ErrorFeedback::server_state,
      "slamb: LAMB or AdamW with a Compressor that leaves elements out needs an ErrorFeedback that keeps them at "
      "the rank: residual<>; or use slamb, which keeps them in the momentum");
  static_assert(std::is_same_v<typename error_storage<ErrorFeedback>::type, float>,
                "slamb: a sparsifier keeps its residual as float; use residual<float>");
  using passes = sparse_gradient_passes;

 public:
  gradient_exchange(const Compressor& compressor, const gradient_settings& settings)
      : settings_(settings), elements_(compressor) {}

  void plan(Context& context) {
    if (context.ranks.size() == 1) return;
    residual_.plan(context);
    mean_ = context.memory.template plan<float>("exchange", context.tensors.elements());
    elements_.plan(context, {});
  }
  void start(Context& context) { elements_.start(context); }

  static double scale(const Context& /*context*/) noexcept { return 1.0; }
  bool exchange(const gradient_bucket& bucket, Context& context) {
    if (!bucket.is_last) return false;  // the selection computes places for all tensors
    if (context.ranks.size() == 1)
      return exchange_dense_gradient(context, {}, settings_.skip_non_finite, bucket, settings_.max_norm);
    context.executor.invoke(elements_.starts(context));
    elements_.select(passes::form{}, context, view(context));
    elements_.send(passes::form{}, context, view(context), bucket.tiles, true);
    return true;
  }
  typename Context::view_type receive(Context& context) {
    if (context.ranks.size() == 1) return dense_mean(context, {});
    auto g = view(context);
    elements_.receive(passes::receive{{}, elements_.scale(context)}, context, g);
    g.gradient_is_exchanged = true;
    clip_exchanged(context, g.exchanged, settings_.max_norm);
    return g;
  }

  Compressor& compressor() noexcept { return elements_.compressor(); }
  void report(const Context& context, bool with_norms, statistics& all) const {
    if (with_norms && context.ranks.size() > 1)
      all.worker_error = norms_by_group(context, residual_.of(0, context.memory));
  }
  void visit_state(const Context& context, const state_visitor& part) const {
    residual_.visit(part, context.memory, state_part::errors);
  }

 private:
  auto view(const Context& context) const noexcept {
    auto g = residual_.over(context.view(), context.memory);
    g.exchanged = context.memory.view(mean_).data();
    return g;
  }

  gradient_settings settings_;
  sparse_exchange<Compressor, ErrorFeedback, Context> elements_;
  state_arrays<array::residual> residual_;
  region<float> mean_;
};

}  // namespace slamb::detail
