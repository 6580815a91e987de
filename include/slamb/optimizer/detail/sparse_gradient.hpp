// The exchange of selected elements of LAMB's gradient.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <utility>

#include "slamb/compressor/chain.hpp"
#include "slamb/core/concepts.hpp"
#include "slamb/detail/exchange/norms.hpp"
#include "slamb/detail/exchange/quantized.hpp"
#include "slamb/detail/exchange/sparse.hpp"
#include "slamb/detail/pass/sparse_pass.hpp"
#include "slamb/detail/state/saved_state.hpp"
#include "slamb/optimizer/detail/dense_gradient.hpp"
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

/// The passes of an exchange of selected gradients: steps run these.
struct sparse_gradient_passes {
  using form = form_selected_gradient;
  using receive = receive_selected_gradient;
};

/// The exchange of selected elements of the gradient. Elements that are left out, and the compression error of a chain, are kept
/// and sent later. A single rank sends nothing.
template <class Compressor, class ErrorFeedback, class Context>
requires(!requires { requires Compressor::selects_all; } &&
         selects<Compressor>) class compressed_gradient<Compressor, ErrorFeedback, Context> {
  static_assert(
      ErrorFeedback::worker_state && !ErrorFeedback::server_state,
      "slamb: LAMB or AdamW with a Compressor that leaves elements out needs an ErrorFeedback that keeps them at "
      "the rank: residual<>; or use slamb, which keeps them in the momentum");
  static_assert(std::is_same_v<typename error_storage<ErrorFeedback>::type, float>,
                "slamb: a sparsifier keeps its residual as float; use residual<float>");
  using passes = sparse_gradient_passes;

 public:
  compressed_gradient(const Compressor& compressor, bool /*on_single_rank*/)
      : compressor_(compressor), elements_(compressor) {}

  static bool is_active(const Context& context) noexcept { return context.ranks.size() > 1; }
  void plan(Context& context) {
    residual_.plan(context);
    elements_.plan(context, sparsifier_of(compressor_), {});
  }
  static std::uint64_t buffer_bytes(const Context& context) noexcept {
    return context.tensors.elements() * sizeof(float);
  }
  void use_buffer(region<std::byte> buffer, const Context& context) noexcept {
    mean_ = {buffer.offset, static_cast<std::size_t>(context.tensors.elements())};
  }
  void start(Context& context) { elements_.start(context); }

  void send(Context& context) {
    context.invoke(elements_.selection_kernel(context, sparsifier_of(compressor_)));
    elements_.select(passes::form{}, context, sparsifier_of(compressor_), view(context));
    elements_.send(passes::form{}, context, view(context), context.all_tiles(), true);
  }
  typename Context::view_type receive(Context& context) const {
    const auto g = view(context);
    elements_.receive(passes::receive{{}, elements_.scale(context)}, context, g);
    return g;
  }

  Compressor& compressor() noexcept { return compressor_; }
  void report(const Context& context, bool with_norms, statistics& all) const {
    static_assert(std::is_same_v<storage_of_t<array::residual, typename Context::precision>, as_floats>,
                  "slamb: the residual of sparse gradients must be stored as floats");
    const std::span<const float> residual =
        residual_.template floats_of<array::residual, typename Context::precision>(context.memory);
    if (with_norms) all.worker_error = norms_by_group(context, residual);
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

  Compressor compressor_;
  sparse_exchange<Compressor, ErrorFeedback, Context> elements_;
  state_arrays<array::residual> residual_;
  region<float> mean_;
};

}  // namespace slamb::detail
