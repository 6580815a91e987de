#pragma once

#include <bit>
#include <cstddef>
#include <stdexcept>
#include <string>
#include <typeinfo>
#include <utility>
#include <vector>

#include "slamb/core/error.hpp"
#include "slamb/detail/pass/arena.hpp"
#include "slamb/detail/ranks/agreement.hpp"
#include "slamb/detail/ranks/probe.hpp"
#include "slamb/impl/optimizer/detail/difference_of_ranks.ipp"
#include "slamb/optimizer/detail/optimizer_core.hpp"
#include "slamb/optimizer/detail/rank_agreement.hpp"

namespace slamb::detail {

SLAMB_DECL void require_equal_nodes(const summing_ranks& in_node, const summing_ranks& inter_node) {
  const auto nodes = static_cast<std::uint64_t>(inter_node.size);
  const auto node = static_cast<std::uint64_t>(inter_node.rank);
  const bool is_one = all_equal(nodes << 32U | node, in_node);
  constexpr std::uint64_t is_none = 0;  // no node has this size
  const bool are_alike = all_equal(is_one ? static_cast<std::uint64_t>(in_node.size) : is_none, inter_node);
  if (is_one && are_alike) return;
  throw rank_mismatch_error(
      "slamb: nodes must have equal numbers of ranks, "
      "and all ranks of a node must report the same node id; rank " +
      std::to_string(in_node.rank) + " of " + std::to_string(in_node.size) + " reports node " + std::to_string(node) +
      " of " + std::to_string(nodes) +
      ". Connect each rank with the ranks that have the same number in the other nodes, and check that collectives "
      "within a node and between nodes sum over all their ranks");
}

SLAMB_DECL void require_equal_shard_groups(const summing_ranks& in_shards, const summing_ranks& between) {
  const auto groups = static_cast<std::uint64_t>(between.size), shards = static_cast<std::uint64_t>(in_shards.size);
  const bool is_one = all_equal(groups << 32U | static_cast<std::uint64_t>(between.rank), in_shards);
  constexpr std::uint64_t is_none = 0;  // no group has this size
  const bool is_right =
      all_equal(is_one ? shards << 32U | static_cast<std::uint64_t>(in_shards.rank) : is_none, between) && is_one;
  if (all_equal(is_right ? 1 : 0, in_shards) && is_right) return;
  throw rank_mismatch_error(
      "slamb: shard groups must have equal numbers of ranks, and the ranks that exchange must hold the same shard; "
      "this rank is rank " +
      std::to_string(between.rank) + " of " + std::to_string(between.size) + ", and shard " +
      std::to_string(in_shards.rank) + " of " + std::to_string(in_shards.size) +
      ". Exchange among the ranks that hold the same shard, in the order of the groups: the Exchange of a "
      "sharded_communicator, or process_group; and take sums over the ranks of a group, in the order of shards: its "
      "Shards, or shard_group");
}

SLAMB_DECL void require_equal_in_nodes(std::span<const std::uint64_t> of_tensor, const summing_ranks& in_node,
                                       const summing_ranks& all) {
  constexpr std::size_t pieces = 4;  // of 16 bits, which a float holds exactly
  const auto piece = [of_tensor](std::size_t i) {
    return static_cast<float>((of_tensor[i / pieces] >> (16 * (i % pieces))) & 0xFFFFU);
  };
  std::vector<float> of_first(of_tensor.size() * pieces, 0.0F);
  if (in_node.rank == 0)
    for (std::size_t i = 0; i < of_first.size(); ++i) of_first[i] = piece(i);
  in_node.all_reduce_sum(of_first);
  std::size_t same = 0;
  while (same < of_first.size() && of_first[same] == piece(same)) ++same;

  // The tensor in which each rank differs, and 1; 0: none.
  const std::uint64_t number = same == of_first.size() ? 0 : same / pieces + 1;
  const rank_table of_ranks(all, std::span(&number, 1), 2);
  for (std::size_t rank = 0; rank < static_cast<std::size_t>(all.size); ++rank) {
    const std::uint64_t found = of_ranks.sent_word(rank, 0);
    if (found == 0) continue;
    synchronize_before_throwing(all);
    throw rank_mismatch_error("slamb: ranks of a node differ in the parameters of tensor " + std::to_string(found - 1) +
                              ": rank " + std::to_string(rank) +
                              " has other parameters than the first rank of its node; ranks of a node must load the "
                              "same state, and start with the same parameters");
  }
}

SLAMB_DECL void require_rank(int rank, int size) {
  if (size < 1 || rank < 0 || rank >= size)
    throw std::invalid_argument("slamb: the communicator says it is rank " + std::to_string(rank) + " of " +
                                std::to_string(size) + "; ranks must be 0 … size − 1");
}

SLAMB_DECL void host_ranks::in_backend(std::span<std::byte> values,
                                       function_ref<void(std::span<std::byte>)> call) const {
  if (on_.properties().is_synchronous) return call(values);
  arena copy;
  const region<std::byte> planned = copy.plan<std::byte>("comparison", values.size());
  copy.allocate(on_.memory_source());
  const std::span<std::byte> there = copy.view(planned);
  on_.upload(std::span<const std::byte>(values), there);
  call(there);
  on_.download(there, values, ranks_);
}

SLAMB_DECL std::function<void(std::span<float>)> host_ranks::sum_by(void (*sum)(collectives&, std::span<float>,
                                                                                any_stream)) const {
  return [*this, sum](std::span<float> values) {
    in_backend(std::as_writable_bytes(values), [this, sum](std::span<std::byte> there) {
      sum(ranks_, {reinterpret_cast<float*>(there.data()), there.size() / sizeof(float)}, on_.stream());
    });
  };
}

SLAMB_DECL summing_ranks host_ranks::inter_node() const {
  return {ranks_.rank(), ranks_.size(), sum_by([](collectives& ranks, std::span<float> values, any_stream stream) {
            ranks.all_reduce_sum(values, stream);
          })};
}

SLAMB_DECL summing_ranks host_ranks::in_node() const {
  return {ranks_.local_rank(), ranks_.local_size(),
          sum_by([](collectives& ranks, std::span<float> values, any_stream stream) {
            ranks.all_reduce_in_node(values, stream);
          })};
}

SLAMB_DECL summing_ranks host_ranks::in_shards() const {
  return {ranks_.shard_rank(), ranks_.shard_size(),
          sum_by([](collectives& ranks, std::span<float> values, any_stream stream) {
            ranks.all_reduce_in_shards(values, stream);
          })};
}

SLAMB_DECL summing_ranks host_ranks::all() const {
  if (const int shards = ranks_.shard_size(); shards > 1)
    return {ranks_.rank() * shards + ranks_.shard_rank(), ranks_.size() * shards,
            sum_by([](collectives& ranks, std::span<float> values, any_stream stream) {
              ranks.all_reduce_in_shards(values, stream);
              ranks.all_reduce_sum(values, stream);
            }),
            shards};
  if (!ranks_.joins_nodes()) return inter_node();
  return {ranks_.rank() * ranks_.local_size() + ranks_.local_rank(), ranks_.size() * ranks_.local_size(),
          sum_by([](collectives& ranks, std::span<float> values, any_stream stream) {
            ranks.all_reduce_in_node(values, stream);
            ranks.all_reduce_sum(values, stream);
          })};
}

SLAMB_DECL void host_ranks::require_sums() const { require_right_results(sums_on_trial(id())); }

SLAMB_DECL void host_ranks::require_bytes(byte_collectives called) const {
  require_right_results(bytes_on_trial(id(), called.of_codes, called.of_choices));
}

SLAMB_DECL void host_ranks::require_gather() const { require_right_results(gather_on_trial(id())); }

SLAMB_DECL rank_id host_ranks::id() const {
  return {ranks_.rank(), ranks_.size(), ranks_.local_rank(), ranks_.local_size(), ranks_.joins_nodes()};
}

SLAMB_DECL void host_ranks::make(const probe& p, std::span<std::byte> memory) const {
  const any_stream stream = on_.stream();
  const std::span<std::byte> sent = p.sent_in(memory), received = p.received_in(memory);
  const std::span<float> floats(reinterpret_cast<float*>(sent.data()), sent.size() / sizeof(float));
  if (p.in_node) return ranks_.all_reduce_in_node(floats, stream);
  switch (p.call.kind) {
    case collective::all_reduce:
      return ranks_.all_reduce_sum(floats, stream);
    case collective::all_gather:
      return ranks_.all_gather(sent, received, stream);
    case collective::all_to_all:
      return ranks_.all_to_all(sent, received, stream);
    case collective::broadcast:
      return ranks_.broadcast(sent, p.call.root, stream);
  }
}

SLAMB_DECL void host_ranks::require_right_results(const std::vector<probe>& calls) const {
  const auto make_one = [this](const probe& p, std::span<std::byte> memory) {
    in_backend(memory, [this, &p](std::span<std::byte> there) { make(p, there); });
  };
  detail::require_right_results(calls, id(), make_one, ranks_.shard_size() > 1 ? inter_node() : all(),
                                [this](const std::string& reason) { ranks_.abort(reason); });
}

// A shard group as the ranks of a communicator.
class shards_as_ranks final : public collectives {
 public:
  explicit shards_as_ranks(collectives& all) noexcept : all_(all) {}

  int rank() const override { return all_.shard_rank(); }
  int size() const override { return all_.shard_size(); }
  void all_reduce_sum(std::span<float> values, any_stream stream) override {
    all_.all_reduce_in_shards(values, stream);
  }
  void broadcast(std::span<std::byte> /*values*/, int /*root*/, any_stream /*stream*/) override {}
  void all_gather(std::span<const std::byte> mine, std::span<std::byte> all, any_stream stream) override {
    all_.all_gather_in_shards(mine, all, stream);
  }
  void all_to_all(std::span<const std::byte> /*send*/, std::span<std::byte> /*receive*/,
                  any_stream /*stream*/) override {}
  bool has(collective kind) const override { return kind == collective::all_reduce || kind == collective::all_gather; }
  bool joins_nodes() const noexcept override { return false; }
  int local_rank() const override { return 0; }
  int local_size() const override { return 1; }
  void all_reduce_in_node(std::span<float> /*values*/, any_stream /*stream*/) override {}
  void wait(any_stream stream) const override { all_.wait(stream); }
  void check() override { all_.check(); }
  void abort(const std::string& reason) override { all_.abort(reason); }
  const std::type_info& type() const noexcept override { return all_.type(); }
  void* held() noexcept override { return all_.held(); }

 private:
  collectives& all_;
};

// The same with shards. The ranks of one group learn from a failure in another by `abort`.
SLAMB_DECL void require_consistent_shards(const consistency_check& fields, collectives& ranks, const machine& on,
                                          byte_collectives called) {
  const host_ranks all(ranks, on);
  shards_as_ranks group(ranks);
  try {
    require_equal_shard_groups(all.in_shards(), all.inter_node());
    host_ranks(group, on).require_sums();
    all.require_sums();
    fields.require(all.all());
    host_ranks(group, on).require_gather();
    all.require_bytes(called);
  } catch (const rank_mismatch_error&) {
    throw;  // on every rank
  } catch (const std::exception& failure) {
    ranks.abort(failure.what());
    throw;
  }
}

SLAMB_DECL void require_consistent_ranks(const consistency_check& fields, collectives& ranks, const machine& on,
                                         byte_collectives called) {
  if (ranks.shard_size() > 1) return require_consistent_shards(fields, ranks, on, called);
  const host_ranks all(ranks, on);
  if (ranks.joins_nodes()) require_equal_nodes(all.in_node(), all.inter_node());
  all.require_sums();
  fields.require(all.all());
  all.require_bytes(called);
}

SLAMB_DECL void rank_agreement::plan(optimizer_core& core) {
  header_ = core.memory.plan<float>("scalars", core.has_peers() ? sum_header::floats : 0);
}

// The ranks of a plan are all this one.
SLAMB_DECL bool rank_agreement::compares(const optimizer_core& core) { return core.has_peers() && !core.is_plan(); }

SLAMB_DECL void rank_agreement::compare_before_step(optimizer_core& core, const equality& replicas_are_equal) {
  compares_exchange_ = compares_gradients_ = false;
  begins_with_equal_parameters_ = std::exchange(has_equal_parameters_, false) && knows_all_steps_;
  if (!compares(core) || core.is_captured()) return;
  if (!core.is_synchronous() && has_been_seen(core)) throw_difference(core, comparing_call::step, replicas_are_equal);
  if (is_first_) is_in_first_ = true;
  compares_exchange_ = every_ > 0 && (is_in_first_ || (ended_ + 1) % every_ == 0);
  if (is_first_) {
    require_alike(core, comparing_call::step, replicas_are_equal);
    if (core.read(&core.record()->skip) == 0)
      is_first_ = false;  // else a rank has no usable rate, and the step will not happen
  } else if (is_due(next_) && anchor_ == nullptr && must_be_equal(replicas_are_equal)) {
    hash_parameters(core, fingerprint_of_parameters{});
    next_ = next_in_node_ = ended_ + 1 + every_;
  } else if (is_due(next_in_node_) && core.ranks.local_size() > 1) {
    hash_parameters(core, fingerprint_of_parameters{}, hashed_values::parameters_in_node);
    next_in_node_ = ended_ + 1 + every_;
  }
  compares_gradients_ = core.shards.has_copies() && every_ > 0 && (is_in_first_ || is_due(next_of_copies_));
  if (!is_in_first_ && is_due(next_of_copies_)) {
    compare_copies(core);
    next_of_copies_ = ended_ + 1 + every_;
  }
}

SLAMB_DECL void rank_agreement::compare_anchor(const optimizer_core& core) {
  if (anchor_ == nullptr || !compares(core) || !is_due(next_)) return;
  hash_parameters(core, fingerprint_of_anchor{});
  next_ = ended_ + 1 + every_;
}

SLAMB_DECL void rank_agreement::compare_in_call(optimizer_core& core, comparing_call call,
                                                const equality& replicas_are_equal) {
  if (!compares(core) || core.is_captured()) return;
  begins_with_equal_parameters_ = has_equal_parameters_ && knows_all_steps_;
  require_alike(core, call, replicas_are_equal);  // also tells other ranks of a difference that a device has found
}

SLAMB_DECL void rank_agreement::require_same_root(optimizer_core& core, int root) const {
  if (!compares(core)) return;
  consistency_check fields("", 0);
  fields.add_word("the rank that they pass to broadcast_parameters()", static_cast<std::uint64_t>(root),
                  "all ranks must pass the same rank");
  fields.require(host_ranks(core.ranks.wrapped(), core.on()).all());
}

SLAMB_DECL void rank_agreement::hash_payload(optimizer_core& core, const payload_view& payload) const {
  if (!compares_exchange_) return;
  core.on().clear(std::as_writable_bytes(core.sum_of_each_tile()));  // a pass over payloads adds to them
  core.on().hash_payload(core.whole_view(), payload, core.all_tiles(), core.sums());
  core.on().add_up(core.sum_of_each_tile(), core.sums());
  core.on().invoke({keep_hash{core.record(), hashed_values::payload, core.sums()}});
}

SLAMB_DECL void rank_agreement::require_not_diverged(optimizer_core& core, const equality& replicas_are_equal) {
  if (core.is_synchronous() && core.record()->agreement.diverged != 0)
    throw_difference(core, comparing_call::step, replicas_are_equal);
}

SLAMB_DECL void rank_agreement::end_step(bool is_captured) noexcept {
  if (is_captured)
    knows_all_steps_ = false;
  else
    ++ended_;
  is_in_first_ = false;
}

SLAMB_DECL void rank_agreement::compare_next() noexcept {
  is_first_ = true;
  has_equal_parameters_ = false;
  anchor_ = nullptr;
  ended_ = looked_before_ = 0;
  next_ = next_in_node_ = next_of_copies_ = every_;
}

SLAMB_DECL void rank_agreement::forget_difference(optimizer_core& core, bool is_other_run) {
  core.on().invoke({::slamb::detail::forget_difference{core.record(), is_other_run}});
  readback_pending_ = false;
}

// For a backend that runs behind the host. Returns true if ranks differed when the device was last asked, some steps ago, so
// that the host need not wait. Asks before steps 4, 8, 16, 32, 64, 128, 192, ….
SLAMB_DECL bool rank_agreement::has_been_seen(optimizer_core& core) {
  constexpr std::uint64_t interval = 64;
  const std::uint64_t step = ended_ + 1;
  if (step < 4 || step == looked_before_ || !(std::has_single_bit(step) || step % interval == 0)) return false;
  looked_before_ = step;
  if (readback_pending_) {
    readback_pending_ = false;
    if (late_->finish(core.ranks) != 0) return true;
  }
  if (late_ == nullptr) late_ = core.on().make_late_flag();
  if (late_ == nullptr) return core.read(&core.record()->agreement.diverged) != 0;
  core.on().invoke({save_diverged{core.record()}});
  late_->start(&core.record()->agreement.saved_diverged);
  readback_pending_ = true;
  return false;
}

// Sums fingerprints alone, headers without a payload. Waits.
// @throws rank_mismatch_error, on every rank
SLAMB_DECL void rank_agreement::require_alike(optimizer_core& core, comparing_call call,
                                              const equality& replicas_are_equal) {
  const bool is_step = call == comparing_call::step;
  const bool looks_at_parameters = call == comparing_call::compare_ranks || (is_step && every_ > 0);
  const bool has_equal_parameters = must_be_equal(replicas_are_equal);
  if (has_equal_parameters && looks_at_parameters)
    hash_parameters(core, fingerprint_of_parameters{});
  else if (anchor_ != nullptr && looks_at_parameters)
    hash_parameters(core, fingerprint_of_anchor{});
  else
    core.on().invoke({keep_hash{core.record(), hashed_values::parameters, nullptr,
                                2 * static_cast<std::uint64_t>(call) + (has_equal_parameters ? 1U : 0U)}});
  if (!has_equal_parameters && looks_at_parameters && core.ranks.local_size() > 1)
    hash_parameters(core, fingerprint_of_parameters{}, hashed_values::parameters_in_node);
  if (looks_at_parameters) compare_copies(core);
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
  if (core.shards.exists() && ranks.size() == 1) core.on().invoke({skip_if_not_finite{core.record()}});
  core.shards.agree(core, shard_call::first_comparison);
  if (core.read(&core.record()->agreement.diverged) != 0) throw_difference(core, call, replicas_are_equal);
}

SLAMB_DECL void rank_agreement::hash_parameters(const optimizer_core& core, const model_pass& fingerprint,
                                                hashed_values kept_as) const {
  any_view model = core.unskipped_view();
  model.compared = anchor_;
  core.on().run(fingerprint, model, core.all_tiles(), core.sums());
  core.on().add_up(core.sum_of_each_tile(), core.sums());
  core.on().invoke({keep_hash{core.record(), kept_as, core.sums()}});
}

// Copies of a tensor are equal in a shard group even where the parameters of the groups differ.
SLAMB_DECL void rank_agreement::compare_copies(optimizer_core& core) {
  if (!core.shards.has_equal_copies()) return;
  core.on().run(fingerprint_of_parameters{}, core.unskipped_view(), core.all_tiles(), core.sums());
  core.shards.compare(core, core.sum_of_each_tile());
}

SLAMB_DECL void rank_agreement::compare_gradients_of_copies(optimizer_core& core) const {
  if (compares_gradients_) core.shards.compare_gradients(core);
}

SLAMB_DECL void rank_agreement::keep_selection(const optimizer_core& core) const {
  core.on().add_up(core.sum_of_each_tile(), core.sums());
  core.on().invoke({keep_hash{core.record(), hashed_values::selection, core.sums()}});
}

// Ranks differ: finds the difference, and throws. They compare again before the next step.
SLAMB_DECL void rank_agreement::throw_difference(optimizer_core& core, comparing_call call,
                                                 const equality& replicas_are_equal) {
  const difference_of_ranks difference(core, call, must_be_equal(replicas_are_equal), anchor_);
  forget_difference(core);
  float* const anchor = anchor_;
  compare_next();
  set_anchor(anchor);
  difference.find(host_ranks(core.ranks.wrapped(), core.on()), every_ > 0 || call == comparing_call::compare_ranks,
                  core.has_half_step);
}

}  // namespace slamb::detail
