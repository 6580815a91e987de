// The outer step, which ranks take together after steps of their own, so that their parameters stay together. A ParameterSync
// chooses it: an average of the parameters, or quantized differences from the anchor.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "slamb/core/concepts.hpp"
#include "slamb/detail/exchange/norms.hpp"
#include "slamb/detail/exchange/quantized.hpp"
#include "slamb/detail/pass/arena.hpp"
#include "slamb/detail/pass/pass.hpp"
#include "slamb/detail/pass/precision.hpp"
#include "slamb/detail/pass/quantized_pass.hpp"
#include "slamb/detail/pass/step_state.hpp"
#include "slamb/detail/state/saved_state.hpp"
#include "slamb/optimizer/detail/anchor.hpp"
#include "slamb/optimizer/detail/parameter_average.hpp"
#include "slamb/optimizer/detail/state_arrays.hpp"

namespace slamb::detail {

/// The outer step without an anchor: parameters are replaced by their mean.
template <class Context>
class outer_average {
 public:
  static constexpr bool sends_codes = false;

  template <class ParameterSync>
  explicit outer_average(const ParameterSync& /*sync*/) {}

  static void plan(Context& /*context*/) {}
  static void start(Context& /*context*/) {}
  static void begin(Context& /*context*/) {}
  static float* anchor(const Context& /*context*/) noexcept { return nullptr; }
  /// True if the next step begins from parameters that must be equal on all ranks.
  static bool needs_anchor(const Context& /*context*/) noexcept { return false; }

  /// Averages the parameters after a step.
  /// @param buffer  floats, as for `average_parameters`; @param skip  as there
  static void take(Context& context, std::span<float> buffer, const std::uint32_t* skip) {
    average_parameters(context, buffer, skip);
  }
  /// Continues from the mean of the parameters.
  static void on_averaged(Context& /*context*/) {}
  /// Continues from parameters that have been replaced by equal ones.
  static void on_broadcast(Context& /*context*/) {}
  /// Continues from a saved state. @param from_other_ranks  it was another number of ranks
  static void on_state_loaded(bool /*from_other_ranks*/) {}
  /// As statistics::parameter_drift.
  static std::vector<double> drift(const Context& /*context*/) { return {}; }
  static void visit_state(const Context& /*context*/, const state_visitor& /*part*/) {}
};

/// d_i is sent, and ref and p_i move by the received mean: docs/algorithms/slamb.md (19) … (21)
struct exchange_difference : pass_without_constants {
  using signal_reads = arrays<array::parameter, array::anchor>;
  using reads = signal_reads;
  using writes = signal_reads;
  static constexpr int sums = 0;
  static constexpr bool uses_compression_error = true;
  static constexpr bool follows_gradient =
      true;  // a tensor without a gradient stays as it is, with what it has not sent

  template <class Element, class Sums>
  SLAMB_ELEMENT auto signal(const Element& e, no_constants /*constants*/, Sums& results) const {
    const auto difference = e.parameter - e.anchor;
    results.check_finite(difference);
    return difference;
  }

  template <class Element, class Sums>
  SLAMB_ELEMENT void operator()(Element& e, no_constants /*constants*/, Sums& /*sums*/) const {
    e.anchor = e.anchor + e.exchanged;
    e.parameter = e.anchor + e.compression_error;
  }
};

/// ref ← p
struct set_anchor : pass_without_constants {
  using reads = arrays<array::parameter>;
  using writes = arrays<array::anchor>;
  static constexpr int sums = 0;

  template <class Element, class Sums>
  SLAMB_ELEMENT void operator()(Element& e, no_constants /*constants*/, Sums& /*sums*/) const {
    e.anchor = e.parameter;
  }
};

/// ‖d_i‖²
struct sum_difference : pass_without_constants {
  using reads = arrays<array::parameter, array::anchor>;
  using writes = arrays<>;
  static constexpr int sums = 1;

  template <class Element, class Sums>
  SLAMB_ELEMENT void operator()(Element& e, no_constants /*constants*/, Sums& results) const {
    results.add_square(0, e.parameter - e.anchor);
  }
};

/// ErrorFeedback of the differences: what a rank does not send stays in its parameters, and the error of the mean is kept.
struct error_of_mean {
  static constexpr bool keeps_unsent = false;
  static constexpr bool worker_state = false;
  static constexpr bool server_state = true;
};

/// An outer step from an anchor, which is equal on all ranks: `Pass` forms a signal of parameters and anchor, ranks exchange its
/// mean, and `Pass` moves both. With one rank, which encodes nothing, it does nothing.
///
/// @tparam Exchange  as `quantized_exchange`
/// @tparam Pass      a pass around an exchange, which reads and writes array::anchor, and the arrays of `More`
/// @tparam More      state arrays of the pass, saved with the errors of a rank
template <class Exchange, class Pass, class Context, class... More>
class outer_step {
 public:
  static constexpr bool sends_codes = true;

  explicit outer_step(Exchange exchange, const Pass& pass = {}) : codes_(std::move(exchange)), pass_(pass) {}

  /// Plans memory, and cuts the tiles at the borders of chunks. Call it before tensors are marked as dense, and before sums are
  /// planned.
  void plan(Context& context) {
    codes_.plan(context, false);
    anchor_.plan(context, codes_.is_active(context));
    buffer_ = context.memory.template plan<std::byte>("exchange", codes_.buffer_bytes());
  }
  void start(Context& context) { codes_.start(context); }

  /// [state elements] equal on all ranks; null: there is none yet.
  float* anchor(const Context& context) const noexcept { return is_set_ ? view(context).anchor : nullptr; }

  /// The first step, and the first from another number of ranks: parameters are then the anchor.
  bool needs_anchor(const Context& context) const noexcept { return !is_set_ && codes_.is_active(context); }

  void begin(Context& context) {
    if (!needs_anchor(context)) return;
    context.require_no_capture("the first step sets the point that ranks have in common; take it before the capture");
    set(context);
    is_set_ = true;
  }

  void take(Context& context, std::span<float> /*buffer*/, const std::uint32_t* /*skip*/) {
    if (!codes_.is_active(context)) return;
    const auto model = view(context);
    context.invoke(begin_following_exchange{context.record()}, codes_.message_initializer(context, codes(context)));
    codes_.send(pass_, context, model, codes(context));
    context.shards.agree(context, shard_call::following_exchange);
    if (!context.is_skipped_on_host()) codes_.receive(pass_, context, model, codes(context), context.all_tiles());
    context.invoke(end_following_exchange{context.record()});
  }

  void on_averaged(Context& context) {
    if (is_set_) set(context);
  }
  // The next step sets the anchor again, because more may be replaced before.
  void on_broadcast(Context& context) {
    if (!codes_.is_active(context)) return;
    codes_.clear_errors(context);
    if (is_set_) set(context);
    is_set_ = false;
  }
  void on_state_loaded(bool from_other_ranks) {
    if (from_other_ranks) is_set_ = false;
  }

  std::vector<double> drift(const Context& context) const {
    if (!is_set_) return {};
    auto model = view(context);
    model.skip = nullptr;
    context.run(sum_difference{}, model, context.all_tiles(), context.sums());
    std::vector<double> all(context.tensors.groups(), 0.0);
    context.visit_sums(
        1, [&](std::size_t i, const double* square) { all[context.tensors.segments()[i].group] += *square; });
    for (double& norm : all) norm = std::sqrt(norm);
    return all;
  }

  void visit_state(const Context& context, const state_visitor& part) {
    anchor_.visit(part, context.memory, state_part::errors);  // another number of ranks begins with its parameters
    codes_.visit_state(context, part);
    visit_flag(part, "common parameters are set", is_set_, state_part::errors);
  }

 private:
  std::span<std::byte> codes(const Context& context) const noexcept { return context.memory.view(buffer_); }

  // ref ← p
  void set(Context& context) const {
    auto model = view(context);
    model.skip = nullptr;
    context.run(set_anchor{}, model, context.all_tiles());
  }

  auto view(const Context& context) const noexcept {
    auto model = anchor_.over(context.view(), context.memory);
    if constexpr (Context::precision::rounds_by_chance) model.draws.use = rounding_draws::of_average;
    return model;
  }

  Exchange codes_;
  Pass pass_;
  state_arrays<array::anchor, More...> anchor_;
  region<std::byte> buffer_;
  bool is_set_ = false;
};

/// The outer step of a ParameterSync.
template <class ParameterSync, class Context>
struct outer_step_of : outer_average<Context> {
  using outer_average<Context>::outer_average;
};
template <class ParameterSync>
using worker_and_server_of = worker_and_server<std::remove_cvref_t<decltype(ParameterSync::quantizer)>,
                                               std::remove_cvref_t<decltype(ParameterSync::mean_quantizer)>>;
template <capability::sends_differences ParameterSync, class Context>
struct outer_step_of<ParameterSync, Context>
    : outer_step<quantized_exchange<worker_and_server_of<ParameterSync>, error_of_mean, Context>, exchange_difference,
                 Context> {
  /// @throws std::invalid_argument for a quantizer that leaves out elements by their variance
  explicit outer_step_of(const ParameterSync& sync)
      : outer_step_of::outer_step({{sync.quantizer, sync.mean_quantizer}, false}) {
    require_all_elements("parameter_sync.quantizer", sync.quantizer);
    require_all_elements("parameter_sync.mean_quantizer", sync.mean_quantizer);
  }

 private:
  template <class Quantizer>
  static void require_all_elements(const char* name, const Quantizer& quantizer) {
    if constexpr (requires { quantizer.zero_aware; })
      if (quantizer.zero_aware)
        throw std::invalid_argument(std::string("slamb: ") + name +
                                    " has zero_aware = true, but differences of all elements are exchanged; it must be "
                                    "false");
  }
};

}  // namespace slamb::detail
