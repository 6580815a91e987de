#pragma once

#include <stdexcept>
#include <string>
#include <vector>

#include "slamb/core/error.hpp"
#include "slamb/detail/exchange/consistency.hpp"
#include "slamb/detail/pass/arena.hpp"
#include "slamb/detail/ranks/probe.hpp"

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
  if (on_.facts().is_synchronous) return call(values);
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

SLAMB_DECL summing_ranks host_ranks::all() const {
  if (!ranks_.joins_nodes()) return inter_node();
  return {ranks_.rank() * ranks_.local_size() + ranks_.local_rank(), ranks_.size() * ranks_.local_size(),
          sum_by([](collectives& ranks, std::span<float> values, any_stream stream) {
            ranks.all_reduce_in_node(values, stream);
            ranks.all_reduce_sum(values, stream);
          })};
}

SLAMB_DECL void host_ranks::require_sums() const { require_right_results(sums_on_trial(place())); }

SLAMB_DECL void host_ranks::require_bytes(byte_collectives called) const {
  require_right_results(bytes_on_trial(place(), called.of_codes, called.of_choices));
}

SLAMB_DECL rank_place host_ranks::place() const {
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
  detail::require_right_results(calls, place(), make_one, all(),
                                [this](const std::string& reason) { ranks_.abort(reason); });
}

SLAMB_DECL void require_consistent_ranks(const consistency_check& facts, collectives& ranks, const machine& on,
                                         byte_collectives called) {
  const host_ranks all(ranks, on);
  if (ranks.joins_nodes()) require_equal_nodes(all.in_node(), all.inter_node());
  all.require_sums();
  facts.require(all.all());
  all.require_bytes(called);
}

}  // namespace slamb::detail
