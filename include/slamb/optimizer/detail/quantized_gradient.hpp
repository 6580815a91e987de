// The exchange of a quantized gradient, in two phases: of LAMB with a quantizer, and of the dense steps of recipes that send codes
// at other steps.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>

#include "slamb/core/concepts.hpp"
#include "slamb/core/statistics.hpp"
#include "slamb/detail/exchange/quantized.hpp"
#include "slamb/detail/pass/arena.hpp"
#include "slamb/detail/pass/pass.hpp"
#include "slamb/detail/pass/quantized_pass.hpp"
#include "slamb/detail/pass/wire_layout.hpp"
#include "slamb/detail/state/saved_state.hpp"
#include "slamb/optimizer/detail/adam_passes.hpp"
#include "slamb/optimizer/detail/dense_gradient.hpp"
#include "slamb/optimizer/detail/overlap.hpp"

namespace slamb::detail {

/// Sends the gradient as the signal, and writes the received mean to the exchange buffer.
struct decode_gradient : pass_without_constants {
  static constexpr bool follows_gradient = true;
  using signal_reads = arrays<array::gradient>;
  using reads = arrays<>;
  using writes = arrays<array::exchanged>;
  static constexpr int sums = 0;

  template <class Element, class Sums>
  SLAMB_ELEMENT auto signal(const Element& e, no_constants /*constants*/, Sums& results) const {
    results.check_finite(e.gradient);
    return e.gradient;
  }
  template <class Element, class Sums>
  SLAMB_ELEMENT void operator()(Element& /*e*/, no_constants /*constants*/, Sums& /*sums*/) const {}
};

/// The exchange of a quantized gradient, in two phases.
template <quantizer Compressor, class ErrorFeedback, class Context>
class compressed_gradient<Compressor, ErrorFeedback, Context> {
 public:
  compressed_gradient(const Compressor& compressor, bool on_single_rank) : codes_(compressor, on_single_rank) {
    if constexpr (requires { compressor.zero_aware; })
      if (compressor.zero_aware)
        throw std::invalid_argument(
            "slamb: the compressor of LAMB or AdamW has zero_aware = true, but it must be false, because the variance "
            "starts at 0 and would exclude every element for good; mark rows without a gradient by "
            "tensor_options::rows");
  }

  bool is_active(const Context& context) const noexcept { return codes_.is_active(context); }
  void plan(Context& context) { codes_.plan(context); }
  void plan_beside(Context& context, const wire_layout& other) { codes_.plan_beside(context, other); }
  std::uint64_t buffer_bytes(const Context& context) const noexcept {
    return std::max(codes_.buffer_bytes(), mean_at() + context.tensors.elements() * sizeof(float));
  }
  void use_buffer(region<std::byte> buffer, const Context& context) noexcept {
    messages_ = {buffer.offset, static_cast<std::size_t>(codes_.buffer_bytes())};
    mean_ = {buffer.offset + static_cast<std::size_t>(mean_at()), static_cast<std::size_t>(context.tensors.elements())};
  }
  void start(Context& context) { codes_.start(context); }

  void send(Context& context) {
    const std::span<std::byte> messages = context.memory.view(messages_);
    context.invoke(codes_.message_initializer(context, messages));
    codes_.send(decode_gradient{}, context, context.view(), messages);
  }
  typename Context::view_type receive(Context& context) const {
    auto g = context.view();
    g.exchanged = context.memory.view(mean_).data();
    codes_.receive(decode_gradient{}, context, g, context.memory.view(messages_), context.all_tiles());
    return g;
  }

  void measure_next() noexcept { codes_.measure_next(); }
  void report(const Context& context, bool with_norms, statistics& all) const {
    all.compression = codes_.measured();
    if (with_norms) all.worker_error = codes_.worker_error(context);
  }
  void visit_state(const Context& context, const state_visitor& part) const { codes_.visit_state(context, part); }

 private:
  // The received mean is written behind the messages of which it is decoded, in place of those that have been sent.
  std::uint64_t mean_at() const noexcept { return codes_.template received_bytes<decode_gradient>(); }

  quantized_exchange<Compressor, ErrorFeedback, Context> codes_;
  region<std::byte> messages_;
  region<float> mean_;  // overlaps the messages
};

}  // namespace slamb::detail
