// Ranks that would part: when they compare what they must have alike, by what, and what is said where they differ.
#pragma once

#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "slamb/backend/host/late_read.hpp"
#include "slamb/core/agreement.hpp"
#include "slamb/core/arena.hpp"
#include "slamb/core/error.hpp"
#include "slamb/core/hash.hpp"
#include "slamb/core/layout.hpp"
#include "slamb/core/pass.hpp"
#include "slamb/core/selected_pass.hpp"
#include "slamb/core/step_record.hpp"
#include "slamb/exchange/agreement_of_ranks.hpp"
#include "slamb/exchange/sum_header.hpp"
#include "slamb/optimizer/common_passes.hpp"

namespace slamb {

/// Σ h² of the parameters' fingerprints: the sums of `base` [tiles].
template <class Base>
void sum_parameters(const Base& base) {
  model_view model = base.view();
  model.refused = nullptr;  // a step that failed may have been refused before
  base.executor.run(fingerprint_of_parameters{}, model, base.all_tiles(), base.sums());
}

/// What ranks must have alike before a step, described in an order in which each comparison makes sense after those before it.
template <class Base>
class alike_before_step {
 public:
  /// @param has_equal_parameters  whether ranks must have equal parameters
  alike_before_step(const Base& base, bool has_equal_parameters)
      : base_(base), has_equal_parameters_(has_equal_parameters), record_(base.read(base.record())) {}

  /// Finds in what ranks differ.
  /// @throws disagreement_error, on every rank; communicator_error, on every rank, if they differ in nothing
  [[noreturn]] void throw_difference(const summing_ranks& ranks, bool compares_parameters) const {
    require(ranks, &alike_before_step::describe_step);
    require(ranks, &alike_before_step::describe_rates);
    if (has_equal_parameters_ && compares_parameters) require(ranks, &alike_before_step::describe_parameters);
    require(ranks, &alike_before_step::describe_selection);
    require(ranks, &alike_before_step::describe_lineage);
    require(ranks, &alike_before_step::describe_told);
    throw communicator_error(
        "slamb: ranks agree on all that they have, but not on the fingerprints of it that the Communicator has brought "
        "them: its collectives change what they carry");
  }

 private:
  static constexpr const char* of_one_run =
      "load states that were saved after the same step of the same run, on all ranks or on none";

  void require(const summing_ranks& ranks, void (alike_before_step::*describe)(agreement&) const) const {
    agreement facts("", 0);
    (this->*describe)(facts);
    facts.require(ranks);
  }

  void describe_step(agreement& facts) const {
    facts.add_word("the number of the step that they take", record_.taken + 1, of_one_run);
    facts.add_word("whether their parameters are equal before this step", has_equal_parameters_ ? 1 : 0, of_one_run);
  }
  void describe_rates(agreement& facts) const {
    const std::vector<double> of_group = base_.rates.read(base_.executor, base_.ranks.base());
    for (std::size_t i = 0; i < of_group.size(); ++i)
      if (base_.rates.has_tensors(i))
        facts.add_float("the learning rate of group " + std::to_string(i), static_cast<float>(of_group[i]),
                        "step() must be given the same learning rates on all ranks");
  }
  void describe_parameters(agreement& facts) const {
    sum_parameters(base_);
    base_.executor.template visit_segments<fingerprint_of_parameters::sums>(
        base_.tensors.first_tiles(), 0, base_.tensors.segments().size(), base_.sums(), base_.ranks.base(),
        [&facts](std::size_t i, const double* sum) {
          facts.add_hash("the parameters of tensor " + std::to_string(i), detail::bits_of(*sum),
                         "start all ranks with the same: broadcast_parameters() gives them those of one");
        });
  }
  void describe_selection(agreement& facts) const {
    const bool has_been_noted = record_.selected_in == record_.taken + 1;
    facts.add_hash("the elements that the compressor selects", has_been_noted ? record_.selection : 0,
                   "explicit_mask must be given the same mask on all ranks, and what a sparsifier selects must not "
                   "depend on the rank");
  }
  void describe_lineage(agreement& facts) const {
    facts.add_hash("what they have done and received in the steps before", record_.lineage,
                   "load states that were saved after the same step of the same run; if none was loaded, a collective "
                   "of the Communicator has left other bits on one rank than on another");
  }
  // Of a step that a device has refused some steps ago.
  void describe_told(agreement& facts) const {
    facts.add_hash("the learning rates or the parameters of step " + std::to_string(record_.taken + 1) +
                       ", which has not been taken",
                   record_.told, "step() must be given the same learning rates on all ranks");
  }

  const Base& base_;
  bool has_equal_parameters_;
  step_record record_;  // as it was when they were seen to differ
};

/// The comparisons of one optimizer with those of the other ranks. In the first step, and in the first after the state or the
/// parameters have been replaced, ranks compare by one small collective: they may be at different steps, and call different
/// collectives in them. Later fingerprints ride with what they exchange.
///
/// It counts the steps that have ended, taken or not: all ranks end the same ones, so that all compare in the same steps.
template <class Stream>
class comparison {
 public:
  /// @param every  steps; 0: neither parameters nor selections are ever compared
  explicit comparison(std::uint64_t every) noexcept : every_(every), next_(every) {}

  template <class Base>
  void plan(Base& base) {
    header_ = base.memory.template plan<float>("scalars", base.has_peers() ? sum_header::floats : 0);
  }

  /// Before a step begins, whose rates have been set.
  /// @param are_equal  are_equal(): whether ranks must have equal parameters before this step
  /// @throws disagreement_error, on every rank
  template <class Base, class AreEqual>
  void compare_before_step(Base& base, const AreEqual& are_equal) {
    compares_selection_ = false;
    begins_with_equal_parameters_ = std::exchange(has_equal_parameters_, false) && knows_all_steps_;
    if (!base.has_peers() || base.is_captured()) return;
    if constexpr (!Base::executor_type::is_synchronous)
      if (has_been_seen(base)) throw_difference(base, are_equal);
    compares_selection_ = every_ > 0 && (is_first_ || (ended_ + 1) % every_ == 0);
    if (is_first_) return require_alike(base, are_equal);
    if (every_ == 0 || ended_ + 1 < next_ || !must_be_equal(are_equal)) return;
    next_ = ended_ + 1 + every_;
    note_sum_of_parameters(base);
  }

  /// In a step that has begun, before anything is exchanged: what is selected becomes a part of what ranks compare, if it is
  /// time for that.
  /// @param tile_first  [tiles + 1] as payload_view::tile_first
  template <class Base, class Selection>
  void note_selection(Base& base, const Selection& selection, std::span<std::uint64_t> tile_first) const {
    if (!compares_selection_) return;
    model_view model = base.view();
    model.refused = nullptr;
    base.executor.run(fingerprint_of_unselected{}, model, payload_view{.tile_first = tile_first.data()}, selection,
                      base.all_tiles(), base.sums());
    base.executor.add_up({base.sums(), base.tensors.tiles().size()}, base.sums());
    base.executor.invoke(::slamb::note_selection{base.record(), base.sums()});
  }

  /// What ranks have on a device, where all of them call and wait.
  /// @throws disagreement_error, on every rank, if ranks have been seen to differ
  template <class Base, class AreEqual>
  void require_unparted_behind(Base& base, const AreEqual& are_equal) {
    if constexpr (!Base::executor_type::is_synchronous)
      if (base.has_peers() && !base.is_captured() && base.read(&base.record()->parted) != 0)
        throw_difference(base, are_equal);
  }

  /// After what a step has exchanged.
  /// @throws disagreement_error, on every rank, if ranks have been seen to differ, as far as that is known without waiting
  template <class Base, class AreEqual>
  void require_unparted(Base& base, const AreEqual& are_equal) {
    if constexpr (Base::executor_type::is_synchronous)
      if (base.record()->parted != 0) throw_difference(base, are_equal);
  }

  /// @param is_captured  it may be taken any number of times, of which nobody tells
  void end_step(bool is_captured) noexcept {
    if (is_captured)
      knows_all_steps_ = false;
    else
      ++ended_;
  }

  /// What ranks have may be replaced on some of them: they compare before the next step.
  void compare_next() noexcept {
    is_first_ = true;
    has_equal_parameters_ = false;
    ended_ = looked_before_ = 0;
    next_ = every_;
  }
  /// All ranks have been given the same parameters since the last step, whatever they had after it.
  void note_equal_parameters() noexcept { has_equal_parameters_ = true; }

  /// Ranks may take steps again.
  template <class Base>
  void forget_difference(Base& base) {
    base.executor.write(&base.record()->parted, std::uint32_t{0});
    base.executor.write(&base.record()->node_parted, std::uint32_t{0});
    base.executor.write(&base.record()->parameters_before, std::uint64_t{0});
    base.executor.write(&base.record()->selected_in, std::uint64_t{0});
    is_asked_ = false;
  }

 private:
  struct nothing_late {};
  // A backend of which nothing can be read later is waited for.
  static auto late_read_of() {
    if constexpr (requires { sizeof(late_read<Stream, std::uint32_t>); })
      return std::type_identity<late_read<Stream, std::uint32_t>>();
    else
      return std::type_identity<nothing_late>();
  }
  using late_type = typename decltype(late_read_of())::type;

  template <class AreEqual>
  bool must_be_equal(const AreEqual& are_equal) const {
    return begins_with_equal_parameters_ || are_equal();
  }

  // Before a step of a backend that runs behind the host: whether ranks had been seen to differ when it was last asked, some
  // steps ago, so that the device need not be waited for: before steps 4, 8, 16, 32, 64, 128, 192, ….
  template <class Base>
  bool has_been_seen(const Base& base) {
    constexpr std::uint64_t interval = 64;
    const std::uint64_t step = ended_ + 1;
    if (step < 4 || step == looked_before_ || !(std::has_single_bit(step) || step % interval == 0)) return false;
    looked_before_ = step;
    if constexpr (std::same_as<late_type, nothing_late>) {
      return base.read(&base.record()->parted) != 0;
    } else {
      if (is_asked_) {
        base.ranks.base().wait(late_->stream());
        is_asked_ = false;
        if (late_->finish() != 0) return true;
      }
      if (late_ == nullptr) late_ = std::make_unique<late_type>(base.executor.stream());
      base.executor.invoke(keep_parted{base.record()});
      base.executor.read_later(&base.record()->parted_kept, *late_);
      is_asked_ = true;
      return false;
    }
  }

  // By sums of fingerprints alone, with nothing behind their headers. Waits.
  // @throws disagreement_error, on every rank
  template <class Base, class AreEqual>
  void require_alike(Base& base, const AreEqual& are_equal) {
    const bool has_equal_parameters = must_be_equal(are_equal);
    if (has_equal_parameters && every_ > 0)
      note_sum_of_parameters(base);
    else
      base.executor.invoke(note_word{base.record(), has_equal_parameters ? 1U : 2U});
    base.begin_history();
    const std::span<float> header = base.memory.view(header_);
    const auto stream = base.executor.stream();
    auto& ranks = base.ranks;
    if (ranks.local_size() > 1) {
      base.executor.invoke(write_sum_header{base.record(), header.data(), true});
      ranks.reduce_locally(header, stream);
      base.executor.invoke(
          read_local_sum_header{base.record(), header.data(), ranks.local_size(), ranks.rank(), ranks.size() == 1});
    }
    if (ranks.size() > 1) {
      base.executor.invoke(write_sum_header{base.record(), header.data(), true});
      ranks.all_reduce_sum_with_header(header, header.size(), stream);
      base.executor.invoke(read_sum_header{base.record(), header.data(), ranks.size(), false});
    }
    if (base.read(&base.record()->parted) != 0) throw_difference(base, are_equal);
    if (base.read(&base.record()->refused) == 0)
      is_first_ = false;  // else a rank has no usable rate, and the step will not happen
  }

  template <class Base>
  void note_sum_of_parameters(const Base& base) const {
    sum_parameters(base);
    base.executor.add_up({base.sums(), base.tensors.tiles().size()}, base.sums());
    base.executor.invoke(note_parameters{base.record(), base.sums()});
  }

  // Ranks have seen that they differ, and find in what; they compare again before the next step.
  template <class Base, class AreEqual>
  [[noreturn]] void throw_difference(Base& base, const AreEqual& are_equal) {
    const alike_before_step<Base> alike(base, must_be_equal(are_equal));
    forget_difference(base);
    compare_next();
    const allocator room = base.memory_source();
    alike.throw_difference(host_ranks(base.ranks.base(), base.executor, room).all(), every_ > 0);
  }

  std::uint64_t every_;
  std::uint64_t next_;  // the step, counted as `ended_` is, from which on parameters are compared that must be equal
  bool is_first_ = true;
  bool compares_selection_ = false;            // in the step that is taken
  bool has_equal_parameters_ = false;          // since the last step
  bool begins_with_equal_parameters_ = false;  // the step that is taken, by the same
  bool knows_all_steps_ = true;
  bool is_asked_ = false;
  std::uint64_t ended_ = 0;          // since it was first
  std::uint64_t looked_before_ = 0;  // the step before which has_been_seen looked last
  std::unique_ptr<late_type> late_;
  region<float> header_;  // of a sum of nothing
};

}  // namespace slamb
