// Ranks in nodes compare what they were given with all ranks of all nodes, once it is known that the nodes are alike.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "slamb/core/agreement.hpp"
#include "slamb/core/error.hpp"

namespace slamb {

/// Whether all ranks say the same number. Ranks may disagree on how many they are: each counts itself at each digit of its
/// number, in a table of one size, and the digits of a number that all say are counted as often as there are ranks.
inline bool all_say(std::uint64_t number, const summing_ranks& ranks) {
  constexpr std::size_t digits = 16;
  std::array<float, digits * 16> counted{};
  const auto place = [number](std::size_t digit) { return 16 * digit + ((number >> (4 * digit)) & 15U); };
  for (std::size_t digit = 0; digit < digits; ++digit) counted[place(digit)] = 1.0F;
  ranks.all_reduce_sum(counted);
  for (std::size_t digit = 0; digit < digits; ++digit)
    if (counted[place(digit)] != static_cast<float>(ranks.size)) return false;
  return true;
}

/// Ranks of a node compare the number of the node and how many nodes there are. Then nodes compare how many ranks they have. Every
/// rank makes both comparisons, also where the first has failed: else the others would wait for it.
///
/// @throws disagreement_error, on every rank
inline void require_alike_nodes(const summing_ranks& in_node, const summing_ranks& between) {
  const auto nodes = static_cast<std::uint64_t>(between.size);
  const auto node = static_cast<std::uint64_t>(between.rank);
  const bool is_one = all_say(nodes << 32U | node, in_node);
  constexpr std::uint64_t is_none = 0;  // which no node has for its size
  const bool are_alike = all_say(is_one ? static_cast<std::uint64_t>(in_node.size) : is_none, between);
  if (is_one && are_alike) return;
  throw disagreement_error(
      "slamb: nodes must have equal numbers of ranks, "
      "and all ranks of a node must report the same node id; rank " +
      std::to_string(in_node.rank) + " of " + std::to_string(in_node.size) + " reports node " + std::to_string(node) +
      " of " + std::to_string(nodes) +
      ". Each rank must be joined with the ranks of its number in the other nodes, "
      "and sums within a node and between nodes must be sums over ranks");
}

/// Requires that a rank has the same as the first of its node, where nodes may differ.
///
/// @param of_tensor  [tensors] a hash of this rank's parameters
/// @throws disagreement_error, on every rank of every node
inline void require_alike_in_nodes(std::span<const std::uint64_t> of_tensor, const summing_ranks& in_node,
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

  // The tensor in which each rank differs, as two halves; 0: none.
  const std::uint64_t number = same == of_first.size() ? 0 : same / pieces + 1;
  std::vector<float> of_ranks(static_cast<std::size_t>(all.size) * 2, 0.0F);
  of_ranks[static_cast<std::size_t>(all.rank) * 2] = static_cast<float>(number & 0xFFFFU);
  of_ranks[static_cast<std::size_t>(all.rank) * 2 + 1] = static_cast<float>(number >> 16U);
  all.all_reduce_sum(of_ranks);
  for (std::size_t rank = 0; 2 * rank < of_ranks.size(); ++rank) {
    const auto found = static_cast<std::uint64_t>(of_ranks[2 * rank] + 65536.0F * of_ranks[2 * rank + 1]);
    if (found == 0) continue;
    meet_before_throwing(all);
    throw disagreement_error(
        "slamb: ranks of a node differ in the parameters of tensor " + std::to_string(found - 1) + ": rank " +
        std::to_string(rank) +
        " has others than the first rank of its node; ranks of a node must load the same state, and "
        "start with the same parameters");
  }
}

}  // namespace slamb
