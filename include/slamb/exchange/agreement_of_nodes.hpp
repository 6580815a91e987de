// Ranks in nodes compare what they were given with all ranks of all nodes, once it is known that the nodes are alike.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

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

}  // namespace slamb
