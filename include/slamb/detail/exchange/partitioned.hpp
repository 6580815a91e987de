// The exchange of a step in which each rank updates a part of the model: signals go to the ranks that own them, and what these have
// made of them goes to all ranks: docs/algorithms/partition.md.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "slamb/core/concepts.hpp"
#include "slamb/core/statistics.hpp"
#include "slamb/detail/exchange/norms.hpp"
#include "slamb/detail/exchange/quantized.hpp"
#include "slamb/detail/exchange/two_phase.hpp"
#include "slamb/detail/kernel/parts.hpp"
#include "slamb/detail/kernel/scales.hpp"
#include "slamb/detail/pass/arena.hpp"
#include "slamb/detail/pass/layout.hpp"
#include "slamb/detail/pass/messages.hpp"
#include "slamb/detail/pass/quantized_pass.hpp"
#include "slamb/detail/pass/step_state.hpp"
#include "slamb/detail/pass/wire_layout.hpp"
#include "slamb/detail/state/state_part.hpp"

namespace slamb::detail {

/// The tables of this rank's parts in the backend's memory, for the kernels of an exchange.
struct parts_view {
  model_view stored{};                   ///< parts of the user's parameters
  const std::size_t* numbers = nullptr;  ///< [tiles] of the parts' tiles among all
  std::size_t tiles = 0;
  const float* exact = nullptr;  ///< [state elements of the parts] the exact parameters; null: the user's are exact
};

/// A partitioned exchange over several ranks.
///
/// The chunks of a quantized exchange are the parts: rank r owns chunk r. The first phase is that of the exchange. In place of encoding
/// the mean of its chunk, a rank updates its parameters, and the second phase sends these. Both phases may send floats as they are.
/// Tensors that are not sent as codes are summed over ranks, and belong to all of them.
///
/// @tparam Signal      quantizer of the signals, or whole_floats
/// @tparam Parameters  quantizer of the differences of parameters, or whole_floats: of the parameters themselves
/// @tparam ErrorFeedback  keeps the worker error of signals, or none. There is no server error, because the mean is not encoded
template <quantizer Signal, quantizer Parameters, class ErrorFeedback, class Context>
class partitioned_exchange {
  static_assert(!ErrorFeedback::keeps_unsent,
                "slamb: a quantizer sends every element, so an ErrorFeedback with keeps_unsent = true would lose the "
                "compression error; use two_sided, residual or no_error_feedback");
  static constexpr bool has_error = ErrorFeedback::worker_state && !is_lossless<Signal>;
  using storage = typename error_storage<ErrorFeedback>::type;
  using worker_storage = std::conditional_t<has_error, storage, no_storage>;
  using precision = typename Context::precision;

 public:
  /// True if parameters are sent as differences, so that the user's differ from the exact ones.
  static constexpr bool sends_differences = !is_lossless<Parameters>;
  /// True if the mean of the signals is their received sum divided by N.
  static constexpr bool receives_sums = is_lossless<Signal>;

  partitioned_exchange(const Signal& signal, const Parameters& parameters) : codes_({signal, parameters}) {}

  /// Lays out the messages, divides the tiles of the model to fit, and plans memory. To be called before sums are planned.
  void plan(Context& context) {
    std::vector<wire_tensor> tensors;
    for (const segment& s : std::as_const(context.tensors).segments()) tensors.push_back({s.size, is_cut(s)});
    codes_.lay_out(tensors, context.ranks.size(), context.ranks.rank());
    context.tensors.make_tiles(codes_.wire().pieces());
    codes_.plan_tables(context);
    if constexpr (has_error)
      worker_error_ = context.memory.template plan<storage>("worker error", context.tensors.state_elements());
    active_.plan(context, codes_.wire(), false, !is_lossless<Signal>, false);
    all_.plan(context, codes_.wire(), false, false, false);
    const wire_layout& sent = codes_.wire();
    const std::uint64_t messages = std::max(sent.all_message_bytes(), codes_.mean_wire().all_message_bytes());
    const std::uint64_t work =
        std::max({sent.all_message_bytes(), gradients() * sizeof(float), codes_.mean_wire().message_bytes()});
    received_ = context.memory.template plan<std::byte>("exchange", messages);
    work_ = context.memory.template plan<std::byte>("exchange", work);
    dense_ = context.memory.template plan<float>("exchange", sent.dense_elements() + wire_layout::code_unit);
    measured_.reserve(context.tensors.groups());
  }

  /// The parts of a rank, [tensors].
  std::vector<tensor_part> parts_of(const Context& context) const {
    std::vector<tensor_part> parts(context.tensors.segments().size());
    for (const wire_piece& piece : codes_.wire().pieces()) {
      const bool is_cut = piece.owner != wire_piece::dense;
      if (is_cut && piece.owner != static_cast<std::uint32_t>(context.ranks.rank())) continue;
      const std::uint64_t place = is_cut ? piece.code : codes_.wire().codes() + piece.code;
      parts[piece.segment] = {piece.first, piece.count, place, is_cut};
    }
    return parts;
  }
  /// The numbers of the parts' tiles among all.
  std::vector<std::size_t> tiles_of(const Context& context) const {
    std::vector<std::size_t> numbers;
    std::size_t number = 0;
    for (const wire_piece& piece : codes_.wire().pieces())
      for (std::uint64_t done = 0; done < piece.count; done += layout::tile_size, ++number)
        if (piece.owner == wire_piece::dense || piece.owner == static_cast<std::uint32_t>(context.ranks.rank()))
          numbers.push_back(number);
    return numbers;
  }

  /// Fills the tables, once memory is allocated.
  void start(Context& context) {
    codes_.upload_tables(context);
    active_.upload(context);
    active_.template find<void>(context, wire_at(context), {}, context.all_tiles());
    all_.template find<void>(context, plain_wire(context), {}, context.all_tiles());
  }

  /// Sends the signal that `pass` forms to the ranks that own its chunks. All ranks skip the step if any rank's signal is not finite, or if
  /// ranks have diverged. Otherwise the step is certain then, and this rank's compression error is kept.
  /// @param checks  false: values of the signal that are not finite are sent, if they are sent as they are
  template <class Pass, class View>
  void send(const Pass& pass, Context& context, const View& view, bool checks) {
    wire_view wire = wire_at(context);
    wire.follows_gradients = follows_gradient<Pass>();
    const wire_layout& messages = codes_.wire();
    context.invoke(start_messages{context.record(), wire.sent, messages.message_bytes(), messages.ranks()});
    codes_.encode_signal(pass, context, view, wire, active_.counts(context), context.sums(),
                         checks || !is_lossless<Signal> ? context.not_finite() : nullptr);
    context.ranks.all_to_all(std::span<const std::byte>(wire.sent, messages.all_message_bytes()),
                             {wire.received, messages.all_message_bytes()}, context.stream());
    context.invoke(read_overflow_flags{context.record(), wire.received, messages.message_bytes(), messages.ranks()},
                   compare_fingerprints{context.record(), wire.received, messages.message_bytes(), messages.ranks()});
    if (context.is_skipped_on_host()) return;
    if (messages.dense_elements() > 0)
      context.ranks.all_reduce_sum(std::span<float>(wire.dense, messages.dense_elements()), context.stream());
    if (measures_next_ && !context.is_captured() && context.read(&context.record()->skip) == 0) {
      measures_next_ = false;
      measure(pass, context, view, wire);
    }
    if constexpr (has_error)
      context.launch(keep_worker_error<worker_storage, Pass, Signal, precision>{pass, codes_.quantizer(), view, wire,
                                                                                context.all_tiles()});
  }

  /// The mean of the signals over this rank's parts, or their sum if `receives_sums`. In memory that `send_parts` uses again.
  float* average(Context& context, const parts_view& parts) const {
    auto* const gradients = reinterpret_cast<float*>(context.memory.view(work_).data());
    context.launch(average_parts<Signal>{codes_.quantizer(), parts.stored, wire_at(context), parts.numbers, parts.tiles,
                                         gradients});
    return gradients;
  }

  /// Sends this rank's parts of the parameters, and receives those of all ranks.
  void send_parts(Context& context, const parts_view& parts) const {
    const wire_view wire = plain_wire(context);
    const wire_layout& messages = codes_.mean_wire();
    context.invoke(start_messages{context.record(), wire.averaged, messages.message_bytes(), 1});
    const auto encode = [&](auto work) {
      context.launch(::slamb::detail::send_parts<work(), Parameters, precision>{
          parameters(), parts.stored, wire, parts.numbers, parts.tiles, parts.exact, context.sums()});
    };
    encode([] { return scale_is_first ? encode_mode::statistics : encode_mode::statistics_and_codes; });
    context.launch(finish_scales<Parameters>{codes_.tables().averaged_scales(context), context.sums(),
                                             all_.counts(context), wire.averaged, parts.stored.skip});
    if constexpr (scale_is_first) encode([] { return encode_mode::codes; });
    context.ranks.all_gather(std::span<const std::byte>(wire.averaged, messages.message_bytes()),
                             {wire.received, messages.all_message_bytes()}, context.stream());
    context.invoke(note_received{context.record(), wire.received, messages.message_bytes(), messages.ranks(),
                                 messages.codes_at(), has_scale_of_float, has_word_of_codes(context)});
    context.launch(receive_parts<Parameters, precision>{parameters(), context.view(), wire, context.all_tiles()});
  }

  /// Measures the compression error of the next signal, at the cost of a pass.
  void measure_next() noexcept { measures_next_ = true; }
  const std::vector<statistics::compression_type>& measured() const noexcept { return measured_; }

  /// ‖e‖ of the worker error, by group.
  std::vector<double> worker_error(const Context& context) const {
    if constexpr (has_error)
      return norms_by_group(context, std::span<const storage>(context.memory.view(worker_error_)));
    return {};
  }

  /// Calls part(name, bytes, state_part) for the errors.
  void visit_state(const Context& context, const state_visitor& part) const {
    if constexpr (has_error)
      part("worker error", std::as_writable_bytes(context.memory.view(worker_error_)), state_part::errors);
  }

 private:
  static constexpr bool scale_is_first = shared_scales<Parameters>::are_known_first;
  static constexpr bool has_scale_of_float =
      Parameters::scale != segment_scale::none && !capability::sends_scales_in_bytes<Parameters>;

  // True if the message of rank 0 begins with 32 bits of codes of this step, and not with padding.
  bool has_word_of_codes(const Context& context) const noexcept {
    for (const wire_piece& piece : codes_.wire().pieces())
      if (piece.owner != wire_piece::dense)
        return piece.owner == 0 && piece.count * Parameters::bits_per_element >= 32 &&
               std::as_const(context.tensors).segments()[piece.segment].has_gradient;
    return false;
  }

  static bool is_cut(const segment& s) noexcept { return !s.dense || (is_lossless<Signal> && is_lossless<Parameters>); }
  const Parameters& parameters() const noexcept { return server_quantizer(codes_.quantizers()); }
  std::uint64_t gradients() const noexcept { return codes_.wire().codes() + codes_.wire().dense_elements(); }

  // The buffers and tables. Messages of signals, gradients and the message of parameters take turns in one buffer.
  wire_view plain_wire(const Context& context) const {
    wire_view wire = codes_.view(context, {});
    wire.received = context.memory.view(received_).data();
    wire.sent = wire.averaged = context.memory.view(work_).data();
    wire.dense = context.memory.view(dense_).data();
    if constexpr (has_error) wire.worker_error = context.memory.view(worker_error_).data();
    return wire;
  }
  // With the mask of active rows.
  wire_view wire_at(const Context& context) const {
    wire_view wire = plain_wire(context);
    active_.set_masks(context, wire);
    return wire;
  }

  // ‖x − x̂‖ and ‖x‖ of this rank, by group.
  template <class Pass, class View>
  void measure(const Pass& pass, Context& context, const View& view, const wire_view& wire) {
    codes_.measure(pass, context, view, wire, context.sums());
    add_up_compression(context, measured_);
  }

  two_phase_exchange<worker_and_server<Signal, Parameters>, worker_storage, no_storage> codes_;
  active_elements active_;  // of signals
  active_elements all_;     // of parameters
  region<storage> worker_error_;
  region<std::byte> received_;
  region<std::byte> work_;
  region<float> dense_;
  bool measures_next_ = false;
  std::vector<statistics::compression_type> measured_;  // [groups]
};

}  // namespace slamb::detail
