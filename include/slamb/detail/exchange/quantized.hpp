// The quantized exchange, in two phases: each rank sends its quantized signal, averages its chunk of all signals, and sends the
// quantized mean: docs/algorithms/one_bit_exchange.md. Two collectives for any number of tensors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "slamb/core/concepts.hpp"
#include "slamb/core/config.hpp"
#include "slamb/core/statistics.hpp"
#include "slamb/detail/exchange/norms.hpp"
#include "slamb/detail/exchange/two_phase.hpp"
#include "slamb/detail/kernel/active.hpp"
#include "slamb/detail/kernel/run_pass.hpp"
#include "slamb/detail/kernel/two_phase.hpp"
#include "slamb/detail/pass/arena.hpp"
#include "slamb/detail/pass/layout.hpp"
#include "slamb/detail/pass/quantized_pass.hpp"
#include "slamb/detail/pass/wire_layout.hpp"
#include "slamb/detail/state/saved_state.hpp"

namespace slamb::detail {

class optimizer_core;

/// The pointer to an array that is only read; to floats if there is no array.
template <class Array, class Context>
struct read_pointer {
  using pointer = stored_pointer_t<Array, typename Context::precision>;
  using type = std::conditional_t<std::is_same_v<pointer, float*>, const float*, pointer>;
};
template <class Context>
struct read_pointer<void, Context> {
  using type = const float*;
};
template <class Array, class Context>
using read_pointer_t = typename read_pointer<Array, Context>::type;

/// The mask of active elements: a bit for each code of all messages, if any element is inactive, and the number of active
/// elements of each tile.
class active_elements {
 public:
  /// @param reads_rows  false: all rows are active
  /// @param announces   elements that are inactive because a number of theirs is 0 announce signals
  void plan(optimizer_core& core, const wire_layout& wire, bool zero_aware, bool reads_rows, bool announces);

  /// Copies the row masks to the backend's memory.
  void upload(optimizer_core& core) const;

  /// Finds the elements that may announce signals: row masks exclude others for good.
  template <class Array, class Context>
  void find_announcing(Context& context, const wire_view& wire) const {
    if (may_announce_.count > 0)
      mark<Array>(context, wire, context.all_tiles(), {}, context.memory.view(may_announce_).data());
  }
  /// Finds the active elements of some tiles again, if they depend on an array [state elements].
  template <class Array, class Context>
  void find(Context& context, const wire_view& wire, read_pointer_t<Array, Context> numbers, tile_range tiles) const {
    if (!zero_aware_) numbers = {};
    mark<Array>(context, wire, tiles, numbers, exists_ ? context.memory.view(bits_).data() : nullptr);
  }
  bool is_zero_aware() const noexcept { return zero_aware_; }

  /// Sets the masks of a wire_view.
  void set_masks(const optimizer_core& core, wire_view& wire) const noexcept;
  /// [tiles] numbers of active elements, in the backend's memory.
  const std::uint64_t* counts(const optimizer_core& core) const noexcept;

 private:
  template <class Array, class Context>
  void mark(Context& context, const wire_view& wire, tile_range tiles, read_pointer_t<Array, Context> numbers,
            std::uint16_t* bits) const {
    context.launch(mark_active<Array, read_pointer_t<Array, Context>>{context.view(), wire, tiles,
                                                                      context.memory.view(masks_).data(), numbers, bits,
                                                                      context.memory.view(counts_).data()});
  }

  bool exists_ = false;
  bool zero_aware_ = false;
  bool announces_ = false;
  region<std::uint16_t> bits_;
  region<std::uint16_t> may_announce_;
  region<std::uint8_t> rows_;
  region<row_mask> masks_;
  region<std::uint64_t> counts_;
};

/// The type in which an ErrorFeedback stores errors: float, unless it names another.
template <error_feedback Feedback>
struct error_storage {
  using type = float;
};
template <error_feedback Feedback>
requires requires { typename Feedback::storage_type; }
struct error_storage<Feedback> {
  using type = typename Feedback::storage_type;
};

/// The exchange of the mean of the ranks' signals by any quantizer, with the errors that `ErrorFeedback` keeps.
///
/// `send` does both phases and changes nothing that lasts. `receive` then runs the pass with the mean and stores the errors. With
/// one rank the exchange is the identity.
///
/// *Wire*: 2 `wire_layout::all_message_bytes()`, and dense tensors as floats.
template <class Quantizer, class ErrorFeedback, class Context>
class quantized_exchange {
  static_assert(quantizer<signal_quantizer_t<Quantizer>> && quantizer<mean_quantizer_t<Quantizer>>,
                "slamb: the first template argument of quantized_exchange must be a quantizer, such as sign or int8");
  static_assert(error_feedback<ErrorFeedback>,
                "slamb: the second template argument of quantized_exchange must be an ErrorFeedback, such as "
                "two_sided<> or no_error_feedback");
  static_assert(!ErrorFeedback::keeps_unsent,
                "slamb: a quantizer sends every element, so an ErrorFeedback with keeps_unsent = true would lose the "
                "compression error; use two_sided, residual or no_error_feedback");

  using storage = typename error_storage<ErrorFeedback>::type;
  using worker_storage = std::conditional_t<bool(ErrorFeedback::worker_state), storage, no_storage>;
  using server_storage = std::conditional_t<bool(ErrorFeedback::server_state), storage, no_storage>;

 public:
  /// @param on_single_rank  encodes and decodes with a single rank too
  /// @param announces       elements that a zero-aware quantizer leaves out tell if they have a signal. Then all ranks receive
  ///                        `announced_value`
  quantized_exchange(const Quantizer& quantizer, bool on_single_rank, bool announces = false)
      : codes_(quantizer), on_single_rank_(on_single_rank), announces_(announces && can_announce<Quantizer>) {}

  /// True if anything is encoded.
  bool is_active(const Context& context) const noexcept { return context.ranks.size() > 1 || on_single_rank_; }

  /// Lays out the messages for the tensors, divides their tiles to fit, and plans lasting memory. To be called before sums are
  /// planned.
  /// @param reads_rows  false: all rows are active
  void plan(Context& context, bool reads_rows = true) {
    if (!is_active(context)) return;
    codes_.lay_out(wire_tensors_of(context), context.ranks.size(), context.ranks.rank());
    context.tensors.make_tiles(codes_.wire().pieces());
    plan_tables(context, reads_rows);
  }

  /// Plans the dense exchange of a recipe whose other exchange, with the layout `other`, has been planned. It uses the tiles of
  /// that one. As in a sum of floats, all rows are active.
  void plan_beside(Context& context, const wire_layout& other) {
    static_assert(Quantizer::scale == segment_scale::none, "only codes without scales can follow any cut");
    if (!is_active(context)) return;
    codes_.lay_out(wire_tensors_of(context), context.ranks.size(), context.ranks.rank(), other.chunks());
    plan_tables(context, false);
  }

  /// Bytes of a buffer that the exchange needs during a step.
  std::uint64_t buffer_bytes() const noexcept { return is_laid_out_ ? codes_.buffer_bytes() : 0; }

  /// The bytes at the beginning of that buffer that `receive` reads. Its pass may write over the rest.
  template <class Pass>
  std::uint64_t received_bytes() const noexcept {
    constexpr bool reads_own = ErrorFeedback::worker_state || ErrorFeedback::server_state || requires {
      Pass::uses_compression_error;
    };
    if (!is_laid_out_) return 0;
    return reads_own ? codes_.buffer_bytes() : codes_.received_bytes();
  }

  /// Fills the tables, once memory is allocated.
  /// @throws std::invalid_argument if the quantizer is zero-aware
  void start(Context& context) {
    if (is_zero_aware() && context.tensors.elements() > 0)
      throw std::invalid_argument(
          "slamb: the compressor has zero_aware = true, but this optimizer has no variance for it; it must be false");
    start_with<void>(context, {});
  }
  /// The same with an array of the state, for zero-aware quantizers too: as `find_active`.
  template <class View, class Array>
  void start(Context& context, const View& view, Array /*zeros*/) {
    start_with<Array>(context, pointer_in<Array>(view));
  }

  /// Finds the active elements. To be called again when the array has changed.
  /// @param view   with the array
  /// @param zeros  Adam's v, for instance: elements where it is 0 are inactive, if the quantizer is zero-aware
  template <class View, class Array>
  void find_active(Context& context, const View& view, Array /*zeros*/) {
    if (is_active(context))
      active_.template find<Array>(context, wire_at(context, {}), pointer_in<Array>(view), context.all_tiles());
  }
  /// Finds the active elements of some tiles, if they depend on the array.
  template <class View, class Array>
  void find_active(Context& context, const View& view, Array /*zeros*/, tile_range tiles) {
    if (is_active(context) && active_.is_zero_aware())
      active_.template find<Array>(context, wire_at(context, {}), pointer_in<Array>(view), tiles);
  }

  /// The function that initialises the buffer; for a launcher to invoke before `send`.
  auto message_initializer(const Context& context, std::span<std::byte> buffer) const {
    return codes_.message_initializer(is_active(context) ? wire_at(context, buffer) : wire_view{}, context.record());
  }

  /// Encodes the signal that `pass` forms, and exchanges it. Changes nothing that lasts. All ranks skip the step if any rank's
  /// signal is not finite.
  ///
  /// @param view  the state; @param buffer  `buffer_bytes()`, to be left untouched until everything is received
  template <class Pass, class View>
  void send(const Pass& pass, Context& context, const View& view, std::span<std::byte> buffer) {
    if (!is_active(context)) {
      context.run(check_signal<Pass>{pass}, view, context.all_tiles(), nullptr, context.not_finite());
      return context.invoke(skip_if_not_finite{context.record()});
    }
    const wire_view wire = wire_of<Pass>(context, buffer);
    codes_.send(pass, context, view, wire, active_.counts(context), context.sums());
    if (measures_next_ && !context.is_captured() &&
        context.read(&context.record()->skip) == 0) {  // measuring waits anyway
      measures_next_ = false;
      measure(pass, context, view, wire);
    }
  }

  /// Runs `pass` with the mean of the signals over some tiles, and stores this rank's errors. To be called once for each tile.
  ///
  /// @param results  [tiles][results_of<Pass>()], if it takes sums
  template <class Pass, class View>
  void receive(const Pass& pass, Context& context, const View& view, std::span<std::byte> buffer, tile_range tiles,
               double* results = nullptr) const {
    if (is_active(context))
      codes_.receive(pass, context, view, wire_of<Pass>(context, buffer), tiles, results);
    else
      context.run(pass_with_own_signal<Pass>{pass}, view, tiles, results);
  }

  /// Leaves tensors out of the following exchanges whose pass does not follow gradients.
  /// @param takes_part  [tensors] 0: left out; equal on all ranks; null: none is left out
  void set_participants(const std::uint8_t* takes_part) noexcept { takes_part_ = takes_part; }

  /// Sets the errors to 0, for a signal in another unit.
  void clear_errors(Context& context) const {
    visit_state(context, [&context](std::string_view, std::span<std::byte> part, state_part what) {
      if (what == state_part::errors) context.launcher.clear(part);
    });
  }

  /// Measures the compression error of the next exchange, at the cost of a pass.
  void measure_next() noexcept { measures_next_ = true; }
  const std::vector<statistics::compression_type>& measured() const noexcept { return measured_; }

  /// ‖e‖ of the worker error, by group.
  std::vector<double> worker_error(const Context& context) const {
    if constexpr (bool(ErrorFeedback::worker_state))
      if (is_active(context))
        return norms_by_group(context, std::span<const storage>(context.memory.view(worker_error_)));
    return {};
  }

  const wire_layout& wire() const noexcept { return codes_.wire(); }

  /// Calls part(name, bytes, state_part) for each error buffer, and for the layout that it belongs to.
  void visit_state(const Context& context, const state_visitor& part) const {
    if constexpr (bool(ErrorFeedback::worker_state))
      part("worker error", std::as_writable_bytes(context.memory.view(worker_error_)), state_part::errors);
    if constexpr (bool(ErrorFeedback::server_state)) {
      std::uint64_t places = places_of_codes();
      part("chunks of messages", bytes_of(places), state_part::fact_of_errors);
      part("server error", std::as_writable_bytes(context.memory.view(server_error_)), state_part::errors);
    }
  }

 private:
  template <class Array, class View>
  static read_pointer_t<Array, Context> pointer_in(const View& view) noexcept {
    return value_of<Array, stored_pointer_t<Array, typename Context::precision>>(view);
  }

  template <class Array>
  void start_with(Context& context, read_pointer_t<Array, Context> numbers) {
    if (!is_active(context)) return;
    codes_.upload_tables(context);
    active_.upload(context);
    active_.template find_announcing<Array>(context, wire_at(context, {}));
    active_.template find<Array>(context, wire_at(context, {}), numbers, context.all_tiles());
  }

  static std::vector<wire_tensor> wire_tensors_of(const Context& context) {
    std::vector<wire_tensor> tensors;
    for (const segment& s : context.tensors.segments()) tensors.push_back({s.size, !s.dense});
    return tensors;
  }

  // Plans lasting memory for the messages that have been laid out.
  void plan_tables(Context& context, bool reads_rows) {
    is_laid_out_ = true;
    codes_.plan_tables(context);
    if constexpr (bool(ErrorFeedback::worker_state))
      worker_error_ = context.memory.template plan<storage>("worker error", context.tensors.state_elements());
    if constexpr (bool(ErrorFeedback::server_state))
      server_error_ = context.memory.template plan<storage>("server error", codes_.wire().codes());
    active_.plan(context, codes_.wire(), is_zero_aware(), reads_rows, announces_);
    measured_.reserve(context.tensors.groups());
  }

  // A hash of the elements of this rank's server errors.
  std::uint64_t places_of_codes() const noexcept {
    std::uint64_t hash = hash_of_nothing;
    for (const wire_piece& piece : codes_.wire().pieces())
      for (const std::uint64_t word :
           {std::uint64_t{piece.segment}, piece.first, std::uint64_t{piece.owner}, piece.code})
        hash = hash_with(hash, word);
    return hash;
  }

  bool is_zero_aware() const noexcept {
    if constexpr (requires { codes_.quantizer().zero_aware; })
      return codes_.quantizer().zero_aware;
    else
      return false;
  }

  wire_view wire_at(const Context& context, std::span<std::byte> buffer) const {
    wire_view wire = codes_.view(context, buffer);
    active_.set_masks(context, wire);
    if constexpr (bool(ErrorFeedback::worker_state)) wire.worker_error = context.memory.view(worker_error_).data();
    if constexpr (bool(ErrorFeedback::server_state)) wire.server_error = context.memory.view(server_error_).data();
    return wire;
  }

  template <class Pass>
  wire_view wire_of(const Context& context, std::span<std::byte> buffer) const {
    wire_view wire = wire_at(context, buffer);
    wire.follows_gradients = follows_gradient<Pass>();
    if (!wire.follows_gradients) wire.takes_part = takes_part_;
    return wire;
  }

  // ‖x − x̂‖ and ‖x‖ of this rank, by group.
  template <class Pass, class View>
  void measure(const Pass& pass, Context& context, const View& view, const wire_view& wire) {
    codes_.measure(pass, context, view, wire, context.sums());
    add_up_compression(context, measured_);
  }

  two_phase_exchange<Quantizer, worker_storage, server_storage> codes_;
  bool on_single_rank_;
  bool announces_ = false;
  bool is_laid_out_ = false;
  bool measures_next_ = false;
  const std::uint8_t* takes_part_ = nullptr;
  region<storage> worker_error_;
  region<storage> server_error_;
  active_elements active_;
  std::vector<statistics::compression_type> measured_;  // [groups]
};

}  // namespace slamb::detail

#if !defined(SLAMB_SEPARATE_COMPILATION)
#include "slamb/impl/detail/exchange/quantized.ipp"
#endif
