// What a rank calls: a collective, its sizes and element type, what is wrong with them, and its words for error messages.
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <type_traits>

#include "slamb/core/statistics.hpp"

namespace slamb::detail {

/// What ranks must agree on in one collective.
struct collective_call {
  collective kind = collective::all_reduce;
  char family = '?';             // of the elements: f(loat), i(nt), u(nsigned), ?
  std::size_t element_size = 0;  // bytes
  std::size_t count = 0;         // elements one rank hands in
  int root = 0;

  friend bool operator==(const collective_call&, const collective_call&) = default;
};

template <class T>
constexpr char element_family() noexcept {
  if constexpr (std::is_floating_point_v<T>) return 'f';
  if constexpr (std::is_integral_v<T>) return std::is_signed_v<T> ? 'i' : 'u';
  return '?';
}

template <class T>
constexpr collective_call call_of(collective kind, std::size_t count, int root = 0) noexcept {
  return {kind, element_family<T>(), sizeof(T), count, root};
}

constexpr const char* to_text(collective kind) noexcept {
  constexpr std::array names{"all_reduce_sum", "all_gather", "all_to_all", "broadcast"};
  return names[static_cast<std::size_t>(kind)];
}

/// What a collective must do, for error messages.
constexpr const char* rule_of(collective kind) noexcept {
  constexpr std::array rules{"every rank's `values` must become their sum over ranks",
                             "`all` must be every rank's `mine`, in rank order",
                             "chunk j of `receive` must be this rank's chunk of rank j's `send`",
                             "every rank's `values` must become the `values` of `root`"};
  return rules[static_cast<std::size_t>(kind)];
}

/// "all_reduce_sum of 100 float32", "broadcast of 7 uint8 from root 1".
inline std::string to_text(const collective_call& call) {
  const std::string bits = std::to_string(8 * call.element_size);
  const std::string family = call.family == 'f' ? "float" : call.family == 'i' ? "int" : "uint";
  const std::string type = call.family == '?' ? bits + "-bit elements" : family + bits;
  std::string text = std::string(to_text(call.kind)) + " of " + std::to_string(call.count) + " " + type;
  if (call.kind == collective::broadcast) text += " from root " + std::to_string(call.root);
  return text;
}

/// What is wrong with the arguments of a collective among `ranks` ranks, for an error message; empty if nothing is.
inline std::string broadcast_fault(int root, int ranks) {
  if (root >= 0 && root < ranks) return {};
  return "broadcast: root = " + std::to_string(root) + ", but it must be in [0, " + std::to_string(ranks) + ")";
}
inline std::string all_gather_fault(std::size_t mine, std::size_t all, int ranks) {
  const auto chunks = static_cast<std::size_t>(ranks);
  if (all % chunks == 0 && all / chunks == mine) return {};
  return "all_gather: all.size() = " + std::to_string(all) +
         ", but it must be size() * mine.size() = " + std::to_string(ranks) + " * " + std::to_string(mine);
}
inline std::string all_to_all_fault(std::size_t send, std::size_t receive, int ranks) {
  if (send % static_cast<std::size_t>(ranks) == 0 && receive == send) return {};
  return "all_to_all: send.size() = " + std::to_string(send) + " and receive.size() = " + std::to_string(receive) +
         ", but they must be equal and a multiple of size() = " + std::to_string(ranks);
}

}  // namespace slamb::detail
