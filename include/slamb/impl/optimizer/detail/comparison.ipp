#pragma once

#include <bit>
#include <cstddef>
#include <utility>

#include "slamb/detail/exchange/consistency.hpp"
#include "slamb/detail/ranks/consistency_check.hpp"
#include "slamb/impl/optimizer/detail/difference_of_ranks.ipp"
#include "slamb/optimizer/detail/comparison.hpp"
#include "slamb/optimizer/detail/optimizer_core.hpp"

namespace slamb::detail {

SLAMB_DECL void comparison::plan(optimizer_core& core) {
  header_ = core.memory.plan<float>("scalars", core.has_peers() ? sum_header::floats : 0);
}

SLAMB_DECL void comparison::compare_before_step(optimizer_core& core, const equality& are_equal) {
  compares_exchange_ = false;
  begins_with_equal_parameters_ = std::exchange(has_equal_parameters_, false) && knows_all_steps_;
  if (!core.has_peers() || core.is_captured()) return;
  if (!core.is_synchronous() && has_been_seen(core)) throw_difference(core, comparing_call::step, are_equal);
  if (is_first_) is_in_first_ = true;
  compares_exchange_ = every_ > 0 && (is_in_first_ || (ended_ + 1) % every_ == 0);
  if (is_first_) {
    require_alike(core, comparing_call::step, are_equal);
    if (core.read(&core.record()->skip) == 0)
      is_first_ = false;  // else a rank has no usable rate, and the step will not happen
  } else if (is_due(next_) && anchor_ == nullptr && must_be_equal(are_equal)) {
    hash_parameters(core, fingerprint_of_parameters{});
    next_ = next_in_node_ = ended_ + 1 + every_;
  } else if (is_due(next_in_node_) && core.ranks.local_size() > 1) {
    hash_parameters(core, fingerprint_of_parameters{}, hashed_values::parameters_in_node);
    next_in_node_ = ended_ + 1 + every_;
  }
}

SLAMB_DECL void comparison::compare_anchor(const optimizer_core& core) {
  if (anchor_ == nullptr || !core.has_peers() || !is_due(next_)) return;
  hash_parameters(core, fingerprint_of_anchor{});
  next_ = ended_ + 1 + every_;
}

SLAMB_DECL void comparison::compare_in_call(optimizer_core& core, comparing_call call, const equality& are_equal) {
  if (!core.has_peers() || core.is_captured()) return;
  begins_with_equal_parameters_ = has_equal_parameters_ && knows_all_steps_;
  require_alike(core, call, are_equal);  // also tells other ranks of a difference that a device has found
}

SLAMB_DECL void comparison::require_same_root(optimizer_core& core, int root) const {
  if (!core.has_peers()) return;
  consistency_check facts("", 0);
  facts.add_word("the rank that they pass to broadcast_parameters()", static_cast<std::uint64_t>(root),
                 "all ranks must pass the same rank");
  facts.require(host_ranks(core.ranks.wrapped(), core.on()).all());
}

SLAMB_DECL void comparison::hash_payload(optimizer_core& core, const payload_view& payload) const {
  if (!compares_exchange_) return;
  core.on().clear(std::as_writable_bytes(core.sum_of_each_tile()));  // a pass over payloads adds to them
  core.on().hash_payload(core.whole_view(), payload, core.all_tiles(), core.sums());
  core.on().add_up(core.sum_of_each_tile(), core.sums());
  core.on().invoke({keep_hash{core.record(), hashed_values::payload, core.sums()}});
}

SLAMB_DECL void comparison::require_not_diverged(optimizer_core& core, const equality& are_equal) {
  if (core.is_synchronous() && core.record()->agreement.diverged != 0)
    throw_difference(core, comparing_call::step, are_equal);
}

SLAMB_DECL void comparison::end_step(bool is_captured) noexcept {
  if (is_captured)
    knows_all_steps_ = false;
  else
    ++ended_;
  is_in_first_ = false;
}

SLAMB_DECL void comparison::compare_next() noexcept {
  is_first_ = true;
  has_equal_parameters_ = false;
  anchor_ = nullptr;
  ended_ = looked_before_ = 0;
  next_ = next_in_node_ = every_;
}

SLAMB_DECL void comparison::forget_difference(optimizer_core& core, bool is_other_run) {
  core.on().invoke({::slamb::detail::forget_difference{core.record(), is_other_run}});
  is_asked_ = false;
}

// For a backend that runs behind the host. Returns true if ranks differed when the device was last asked, some steps ago, so
// that the host need not wait. Asks before steps 4, 8, 16, 32, 64, 128, 192, ….
SLAMB_DECL bool comparison::has_been_seen(optimizer_core& core) {
  constexpr std::uint64_t interval = 64;
  const std::uint64_t step = ended_ + 1;
  if (step < 4 || step == looked_before_ || !(std::has_single_bit(step) || step % interval == 0)) return false;
  looked_before_ = step;
  if (is_asked_) {
    is_asked_ = false;
    if (late_->finish(core.ranks) != 0) return true;
  }
  if (late_ == nullptr) late_ = core.on().make_late_flag();
  if (late_ == nullptr) return core.read(&core.record()->agreement.diverged) != 0;
  core.on().invoke({save_diverged{core.record()}});
  late_->start(&core.record()->agreement.saved_diverged);
  is_asked_ = true;
  return false;
}

// Sums fingerprints alone, headers without a payload. Waits.
// @throws rank_mismatch_error, on every rank
SLAMB_DECL void comparison::require_alike(optimizer_core& core, comparing_call call, const equality& are_equal) {
  const bool is_step = call == comparing_call::step;
  const bool looks_at_parameters = call == comparing_call::compare_ranks || (is_step && every_ > 0);
  const bool has_equal_parameters = must_be_equal(are_equal);
  if (has_equal_parameters && looks_at_parameters)
    hash_parameters(core, fingerprint_of_parameters{});
  else if (anchor_ != nullptr && looks_at_parameters)
    hash_parameters(core, fingerprint_of_anchor{});
  else
    core.on().invoke({keep_hash{core.record(), hashed_values::parameters, nullptr,
                                2 * static_cast<std::uint64_t>(call) + (has_equal_parameters ? 1U : 0U)}});
  if (!has_equal_parameters && looks_at_parameters && core.ranks.local_size() > 1)
    hash_parameters(core, fingerprint_of_parameters{}, hashed_values::parameters_in_node);
  if (is_step)
    core.begin_step();
  else
    core.on().invoke({::slamb::detail::begin_step{core.record(), 1.0}});

  const std::span<float> header = core.memory.view(header_);
  const any_stream stream = core.on().stream();
  counted_collectives& ranks = core.ranks;
  if (ranks.local_size() > 1) {
    core.on().invoke({write_sum_header{core.record(), header.data(), true}});
    ranks.all_reduce_in_node(header, stream);
    core.on().invoke(
        {read_local_sum_header{core.record(), header.data(), ranks.local_size(), ranks.rank(), ranks.size() == 1}});
  }
  if (ranks.size() > 1) {
    core.on().invoke({write_sum_header{core.record(), header.data()}});
    ranks.all_reduce_sum_with_header(header, header.size(), stream);
    core.on().invoke({read_sum_header{core.record(), header.data(), ranks.size()}});
  }
  if (core.read(&core.record()->agreement.diverged) != 0) throw_difference(core, call, are_equal);
}

SLAMB_DECL void comparison::hash_parameters(const optimizer_core& core, const model_pass& fingerprint,
                                            hashed_values kept_as) const {
  any_view model = core.unskipped_view();
  model.compared = anchor_;
  core.on().run(fingerprint, model, core.all_tiles(), core.sums());
  core.on().add_up(core.sum_of_each_tile(), core.sums());
  core.on().invoke({keep_hash{core.record(), kept_as, core.sums()}});
}

SLAMB_DECL void comparison::keep_selection(const optimizer_core& core) const {
  core.on().add_up(core.sum_of_each_tile(), core.sums());
  core.on().invoke({keep_hash{core.record(), hashed_values::selection, core.sums()}});
}

// Ranks differ: finds the difference, and throws. They compare again before the next step.
SLAMB_DECL void comparison::throw_difference(optimizer_core& core, comparing_call call, const equality& are_equal) {
  const difference_of_ranks difference(core, call, must_be_equal(are_equal), anchor_);
  forget_difference(core);
  float* const anchor = anchor_;
  compare_next();
  set_anchor(anchor);
  difference.find(host_ranks(core.ranks.wrapped(), core.on()), every_ > 0 || call == comparing_call::compare_ranks);
}

}  // namespace slamb::detail
