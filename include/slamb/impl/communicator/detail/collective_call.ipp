#pragma once

#include <cstddef>
#include <string>

#include "slamb/communicator/detail/collective_call.hpp"

namespace slamb::detail {

SLAMB_DECL std::string to_text(const collective_call& call) {
  const std::string bits = std::to_string(8 * call.element_size);
  const std::string family = call.family == 'f' ? "float" : call.family == 'i' ? "int" : "uint";
  const std::string type = call.family == '?' ? bits + "-bit elements" : family + bits;
  std::string text = std::string(to_text(call.kind)) + " of " + std::to_string(call.count) + " " + type;
  if (call.kind == collective::broadcast) text += " from root " + std::to_string(call.root);
  return text;
}

SLAMB_DECL std::string broadcast_fault(int root, int ranks) {
  if (root >= 0 && root < ranks) return {};
  return "broadcast: root = " + std::to_string(root) + ", but it must be in [0, " + std::to_string(ranks) + ")";
}

SLAMB_DECL std::string all_gather_fault(std::size_t mine, std::size_t all, int ranks) {
  const auto chunks = static_cast<std::size_t>(ranks);
  if (all % chunks == 0 && all / chunks == mine) return {};
  return "all_gather: all.size() = " + std::to_string(all) +
         ", but it must be size() * mine.size() = " + std::to_string(ranks) + " * " + std::to_string(mine);
}

SLAMB_DECL std::string all_to_all_fault(std::size_t send, std::size_t receive, int ranks) {
  if (send % static_cast<std::size_t>(ranks) == 0 && receive == send) return {};
  return "all_to_all: send.size() = " + std::to_string(send) + " and receive.size() = " + std::to_string(receive) +
         ", but they must be equal and a multiple of size() = " + std::to_string(ranks);
}

}  // namespace slamb::detail
