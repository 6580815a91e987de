// A rank's call of a collective: its sizes and element type, their validation, and its words for error messages.
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <type_traits>

#include "slamb/core/config.hpp"
#include "slamb/core/statistics.hpp"

namespace slamb::detail {

/// The parts of a call in which all ranks must agree.
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

/// The result that a collective must have, for error messages.
constexpr const char* rule_of(collective kind) noexcept {
  constexpr std::array rules{"every rank's `values` must become their sum over ranks",
                             "`all` must be every rank's `mine`, in rank order",
                             "chunk j of `receive` must be this rank's chunk of rank j's `send`",
                             "every rank's `values` must become the `values` of `root`"};
  return rules[static_cast<std::size_t>(kind)];
}

/// "all_reduce_sum of 100 float32", "broadcast of 7 uint8 from root 1".
std::string to_text(const collective_call& call);

/// Validates the arguments of a collective among `ranks` ranks. Returns the error text, or an empty string.
std::string broadcast_fault(int root, int ranks);
std::string all_gather_fault(std::size_t mine, std::size_t all, int ranks);
std::string all_to_all_fault(std::size_t send, std::size_t receive, int ranks);

}  // namespace slamb::detail

#if !defined(SLAMB_SEPARATE_COMPILATION)
#include "slamb/impl/communicator/detail/collective_call.ipp"
#endif
