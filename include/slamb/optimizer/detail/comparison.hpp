// The comparisons by which ranks notice that they have diverged, and the schedule of these comparisons.
#pragma once

#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <type_traits>
#include <utility>

#include "slamb/core/detail/consistency_check.hpp"
#include "slamb/detail/exchange/consistency.hpp"
#include "slamb/detail/exchange/summable.hpp"
#include "slamb/detail/pass/arena.hpp"
#include "slamb/detail/pass/layout.hpp"
#include "slamb/detail/pass/model_passes.hpp"
#include "slamb/detail/pass/pass.hpp"
#include "slamb/detail/pass/sparse_pass.hpp"
#include "slamb/detail/pass/step_state.hpp"
#include "slamb/detail/runtime/late_read.hpp"
#include "slamb/optimizer/detail/difference_of_ranks.hpp"

namespace slamb::detail {

/// Compares one rank's optimizer with the other ranks'. In the first step, and in the first after the state or the parameters
/// have been replaced, ranks compare by one small collective, because they may be at different steps with different collectives.
/// Later the fingerprints travel with the payloads.
///
/// It counts ended steps, taken or skipped. All ranks end the same steps, so all compare in the same steps.
template <class Stream>
class comparison {
 public:
  /// @param every  steps between comparisons of parameters, masks and received payloads; 0: steps compare none of these
  explicit comparison(std::uint64_t every) noexcept : every_(every), next_(every), next_in_node_(every) {}

  template <class Context>
  void plan(Context& context) {
    header_ = context.memory.template plan<float>("scalars", context.has_peers() ? sum_header::floats : 0);
  }

  /// Compares before a step begins, once its learning rates are set.
  /// @param are_equal  are_equal() is true if all ranks must have the same parameters before this step
  /// @throws rank_mismatch_error, on every rank
  template <class Context, class AreEqual>
  void compare_before_step(Context& context, const AreEqual& are_equal) {
    compares_exchange_ = false;
    begins_with_equal_parameters_ = std::exchange(has_equal_parameters_, false) && knows_all_steps_;
    if (!context.has_peers() || context.is_captured()) return;
    if constexpr (!Context::executor_type::is_synchronous)
      if (has_been_seen(context)) throw_difference(context, comparing_call::step, are_equal);
    if (is_first_) is_in_first_ = true;
    compares_exchange_ = every_ > 0 && (is_in_first_ || (ended_ + 1) % every_ == 0);
    if (is_first_) {
      require_alike(context, comparing_call::step, are_equal);
      if (context.read(&context.record()->skip) == 0)
        is_first_ = false;  // else a rank has no usable rate, and the step will not happen
    } else if (is_due(next_) && anchor_ == nullptr && must_be_equal(are_equal)) {
      note_sum(context, fingerprint_of_parameters{}, unskipped_view(context));
      next_ = next_in_node_ = ended_ + 1 + every_;
    } else if (is_due(next_in_node_) && context.ranks.local_size() > 1) {
      note_sum(context, fingerprint_of_parameters{}, unskipped_view(context), true);
      next_in_node_ = ended_ + 1 + every_;
    }
  }

  /// Sets the anchor, which is equal on all ranks when parameters are not.
  /// @param anchor  [state elements] in the backend's memory; null: there is no anchor
  void set_anchor(float* anchor) noexcept { anchor_ = anchor; }
  /// Compares the anchor, if there is one, before a step with an exchange begins. Other steps send nothing.
  template <class Context>
  void compare_anchor(const Context& context) {
    if (anchor_ == nullptr || !context.has_peers() || !is_due(next_)) return;
    note_sum(context, fingerprint_of_anchor{}, view_of_anchor(context, anchor_));
    next_ = ended_ + 1 + every_;
  }

  /// Compares in a call between steps, which all ranks make. Waits.
  /// @throws rank_mismatch_error, on every rank
  template <class Context, class AreEqual>
  void compare_in_call(Context& context, comparing_call call, const AreEqual& are_equal) {
    if (!context.has_peers() || context.is_captured()) return;
    begins_with_equal_parameters_ = has_equal_parameters_ && knows_all_steps_;
    require_alike(context, call, are_equal);  // also tells other ranks of a difference that a device has found
  }

  /// Compares the root of broadcast_parameters().
  /// @throws rank_mismatch_error, on every rank, if ranks name different roots
  template <class Context>
  void require_same_root(Context& context, int root) const {
    if (!context.has_peers()) return;
    consistency_check facts("", 0);
    facts.add_word("the rank that they pass to broadcast_parameters()", static_cast<std::uint64_t>(root),
                   "all ranks must pass the same rank");
    const allocator room = context.memory_source();
    facts.require(host_ranks(context.ranks.wrapped(), context.executor, room).all());
  }

  /// Adds a hash of the selection to the fingerprint of the step that has begun, if a comparison is due. Before anything is
  /// exchanged.
  /// @param tile_offsets  [tiles + 1] as payload_view::tile_offsets
  template <class Context, class Selection>
  void note_selection(Context& context, const Selection& selection, std::span<std::uint64_t> tile_offsets) const {
    if (!compares_exchange_) return;
    context.executor.run(fingerprint_of_unselected{}, unskipped_view(context),
                         payload_view{.tile_offsets = tile_offsets.data()}, selection, context.all_tiles(),
                         context.sums());
    context.executor.add_up(sums_of(context), context.sums());
    context.executor.invoke(::slamb::detail::note_selection{context.record(), context.sums()});
  }

  /// Adds a hash of the received payload, which must be equal on all ranks, to the fingerprint of the next step, if a comparison
  /// is due.
  template <class Context>
  void note_payload(Context& context, const payload_view& payload) const {
    if (!compares_exchange_) return;
    context.executor.clear(std::as_writable_bytes(sums_of(context)));  // a pass over payloads adds to them
    context.executor.run_packed(fingerprint_of_payload{}, context.view(), payload, context.all_tiles(), context.sums());
    context.executor.add_up(sums_of(context), context.sums());
    context.executor.invoke(::slamb::detail::note_payload{context.record(), context.sums()});
  }

  /// Checks the result of comparisons after the exchange of a step.
  /// @throws rank_mismatch_error, on every rank, if ranks differ and this is known without waiting
  template <class Context, class AreEqual>
  void require_not_diverged(Context& context, const AreEqual& are_equal) {
    if constexpr (Context::executor_type::is_synchronous)
      if (context.record()->diverged != 0) throw_difference(context, comparing_call::step, are_equal);
  }

  /// @param is_captured  the step is part of a graph, and may be replayed any number of times
  void end_step(bool is_captured) noexcept {
    if (is_captured)
      knows_all_steps_ = false;
    else
      ++ended_;
    is_in_first_ = false;
  }

  /// State or parameters may be replaced on some ranks: ranks compare before the next step.
  void compare_next() noexcept {
    is_first_ = true;
    has_equal_parameters_ = false;
    anchor_ = nullptr;
    ended_ = looked_before_ = 0;
    next_ = next_in_node_ = every_;
  }
  /// All ranks have been given the same parameters since the last step.
  void note_equal_parameters() noexcept { has_equal_parameters_ = true; }

  /// Ranks may take steps again.
  template <class Context>
  void forget_difference(Context& context) {
    context.executor.write(&context.record()->diverged, std::uint32_t{0});
    context.executor.write(&context.record()->node_diverged, std::uint32_t{0});
    for (std::uint64_t* const step :
         {&context.record()->parameters_before, &context.record()->of_node_before, &context.record()->selected_in})
      context.executor.write(step, std::uint64_t{0});
    is_asked_ = false;
  }

 private:
  struct nothing_late {};
  // `late_read` of the stream, or nothing_late for a backend that cannot read later and has to wait.
  static auto late_read_of() {
    if constexpr (requires { sizeof(late_read<Stream, std::uint32_t>); })
      return std::type_identity<late_read<Stream, std::uint32_t>>();
    else
      return std::type_identity<nothing_late>();
  }
  using late_type = typename decltype(late_read_of())::type;

  bool is_due(std::uint64_t next) const noexcept { return every_ > 0 && ended_ + 1 >= next; }

  template <class AreEqual>
  bool must_be_equal(const AreEqual& are_equal) const {
    return begins_with_equal_parameters_ || are_equal();
  }

  // For a backend that runs behind the host. Returns true if ranks differed when the device was last asked, some steps ago, so
  // that the host need not wait. Asks before steps 4, 8, 16, 32, 64, 128, 192, ….
  template <class Context>
  bool has_been_seen(const Context& context) {
    constexpr std::uint64_t interval = 64;
    const std::uint64_t step = ended_ + 1;
    if (step < 4 || step == looked_before_ || !(std::has_single_bit(step) || step % interval == 0)) return false;
    looked_before_ = step;
    if constexpr (std::same_as<late_type, nothing_late>) {
      return context.read(&context.record()->diverged) != 0;
    } else {
      if (is_asked_) {
        context.ranks.wrapped().wait(late_->stream());
        is_asked_ = false;
        if (late_->finish() != 0) return true;
      }
      if (late_ == nullptr) late_ = std::make_unique<late_type>(context.executor.stream());
      context.executor.invoke(save_diverged{context.record()});
      context.executor.read_later(&context.record()->saved_diverged, *late_);
      is_asked_ = true;
      return false;
    }
  }

  // Sums fingerprints alone, headers without a payload. Waits.
  // @throws rank_mismatch_error, on every rank
  template <class Context, class AreEqual>
  void require_alike(Context& context, comparing_call call, const AreEqual& are_equal) {
    const bool is_step = call == comparing_call::step;
    const bool looks_at_parameters = call == comparing_call::compare_ranks || (is_step && every_ > 0);
    const bool has_equal_parameters = must_be_equal(are_equal);
    if (has_equal_parameters && looks_at_parameters)
      note_sum(context, fingerprint_of_parameters{}, unskipped_view(context));
    else if (anchor_ != nullptr && looks_at_parameters)
      note_sum(context, fingerprint_of_anchor{}, view_of_anchor(context, anchor_));
    else
      context.executor.invoke(
          note_word{context.record(), 2 * static_cast<std::uint64_t>(call) + (has_equal_parameters ? 1U : 0U)});
    if (!has_equal_parameters && looks_at_parameters && context.ranks.local_size() > 1)
      note_sum(context, fingerprint_of_parameters{}, unskipped_view(context), true);
    if (is_step)
      context.begin_step();
    else
      context.executor.invoke(::slamb::detail::begin_step{context.record(), 1.0});

    const std::span<float> header = context.memory.view(header_);
    const auto stream = context.executor.stream();
    auto& ranks = context.ranks;
    if (ranks.local_size() > 1) {
      context.executor.invoke(write_sum_header{context.record(), header.data(), true});
      ranks.all_reduce_in_node(header, stream);
      context.executor.invoke(
          read_local_sum_header{context.record(), header.data(), ranks.local_size(), ranks.rank(), ranks.size() == 1});
    }
    if (ranks.size() > 1) {
      context.executor.invoke(write_sum_header{context.record(), header.data()});
      ranks.all_reduce_sum_with_header(header, header.size(), stream);
      context.executor.invoke(read_sum_header{context.record(), header.data(), ranks.size()});
    }
    if (context.read(&context.record()->diverged) != 0) throw_difference(context, call, are_equal);
  }

  template <class Context, class Fingerprint, class View>
  void note_sum(const Context& context, const Fingerprint& fingerprint, const View& model,
                bool only_in_node = false) const {
    context.executor.run(fingerprint, model, context.all_tiles(), context.sums());
    context.executor.add_up(sums_of(context), context.sums());
    context.executor.invoke(note_parameters{context.record(), context.sums(), only_in_node});
  }
  // One sum of each tile.
  template <class Context>
  static std::span<double> sums_of(const Context& context) noexcept {
    return {context.sums(), context.tensors.tiles().size()};
  }

  // Ranks differ: finds the difference, and throws. They compare again before the next step.
  template <class Context, class AreEqual>
  [[noreturn]] void throw_difference(Context& context, comparing_call call, const AreEqual& are_equal) {
    const difference_of_ranks<Context> difference(context, call, must_be_equal(are_equal), anchor_);
    forget_difference(context);
    float* const anchor = anchor_;
    compare_next();
    set_anchor(anchor);
    const allocator room = context.memory_source();
    difference.find(host_ranks(context.ranks.wrapped(), context.executor, room),
                    every_ > 0 || call == comparing_call::compare_ranks);
  }

  std::uint64_t every_;
  std::uint64_t next_;               // the step, counted like `ended_`, from which on equal parameters are compared
  std::uint64_t next_in_node_;       // likewise for parameters that are equal within a node
  std::uint64_t ended_ = 0;          // steps since construction or `compare_next`
  std::uint64_t looked_before_ = 0;  // the step before which has_been_seen last asked
  float* anchor_ = nullptr;          // equal on all ranks when parameters are not; null: none
  bool is_first_ = true;
  bool is_in_first_ = false;                   // also if it has failed and is taken again
  bool compares_exchange_ = false;             // the selection and the received payload of the current step
  bool has_equal_parameters_ = false;          // all ranks have been given the same since the last step
  bool begins_with_equal_parameters_ = false;  // the current step began with them
  bool knows_all_steps_ = true;
  bool is_asked_ = false;
  std::unique_ptr<late_type> late_;
  region<float> header_;  // of a sum without a payload
};

}  // namespace slamb::detail
