// The parts of an optimizer's state: how each is restored, and the rules for saved values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <span>
#include <string_view>
#include <type_traits>
#include <utility>

#include "slamb/core/error.hpp"

namespace slamb::detail {

/// The kinds of parts, which are restored differently.
enum class state_part {
  common,          ///< valid on every rank: always restored
  errors,          ///< this rank's own errors: set to 0 with restore_options::from_other_ranks
  fact,            ///< not restored: must be equal, or the state does not fit
  fact_of_errors,  ///< likewise for the errors: not compared with restore_options::from_other_ranks
  parameters,      ///< the user's parameters: saved and restored on request
  masters          ///< the optimizer's own copies of parameters: saved if these are not
};

/// Checks the saved bytes of a part before they are restored. Throws std::invalid_argument that names the value and the valid
/// values. The hash detects bytes that have changed; a rule detects values that were written wrongly.
using state_rule = std::function<void(std::span<const std::byte> saved)>;

/// Tells that a part has numbers of elements, so that the parts of shards make up one of whole tensors.
struct of_elements {
  static constexpr std::size_t all_tensors = std::numeric_limits<std::size_t>::max();

  std::size_t bytes = 0;             ///< of a number; 0: the part does not belong to elements
  std::size_t tensor = all_tensors;  ///< the one tensor, or all of them, at the places of state arrays
};

template <class Visit>
concept visits_parts = std::is_invocable_v<Visit&, std::string_view, std::span<std::byte>, state_part>;
template <class Visit>
concept visits_parts_with_rules =
    !visits_parts<Visit> &&
    std::is_invocable_v<Visit&, std::string_view, std::span<std::byte>, state_part, const state_rule&>;
template <class Visit>
concept visits_elements = !visits_parts<Visit> && !visits_parts_with_rules<Visit> &&
                          std::is_invocable_v<Visit&, std::string_view, std::span<std::byte>, state_part,
                                              const state_rule&, const of_elements&>;

/// A function that is called for each part of a state, with its name, its bytes in the backend's memory or in host memory, its
/// kind, its rule if it has one, and the elements that it belongs to.
class state_visitor {
 public:
  /// @param visit  visit(name, bytes, whose)
  template <visits_parts Visit>
  state_visitor(Visit visit)  // NOLINT(google-explicit-constructor): converts from any function
      : visit_([visit = std::move(visit)](std::string_view name, std::span<std::byte> bytes, state_part whose,
                                          const state_rule& /*rule*/,
                                          const of_elements& /*of*/) mutable { visit(name, bytes, whose); }) {}
  /// @param visit  visit(name, bytes, whose, rule)
  template <visits_parts_with_rules Visit>
  state_visitor(Visit visit)  // NOLINT(google-explicit-constructor)
      : visit_([visit = std::move(visit)](std::string_view name, std::span<std::byte> bytes, state_part whose,
                                          const state_rule& rule,
                                          const of_elements& /*of*/) mutable { visit(name, bytes, whose, rule); }) {}
  /// @param visit  visit(name, bytes, whose, rule, of)
  template <visits_elements Visit>
  state_visitor(Visit visit) : visit_(std::move(visit)) {}  // NOLINT(google-explicit-constructor)

  void operator()(std::string_view name, std::span<std::byte> bytes, state_part whose, const state_rule& rule = {},
                  const of_elements& of = {}) const {
    visit_(name, bytes, whose, rule, of);
  }
  /// A part of elements.
  void operator()(std::string_view name, std::span<std::byte> bytes, state_part whose, const of_elements& of) const {
    visit_(name, bytes, whose, {}, of);
  }

 private:
  std::function<void(std::string_view, std::span<std::byte>, state_part, const state_rule&, const of_elements&)> visit_;
};

/// The bytes of a value in host memory.
template <class T>
requires std::is_trivially_copyable_v<std::remove_const_t<T>>
auto bytes_of(T& value) noexcept {
  static_assert(!std::is_same_v<std::remove_const_t<T>, bool>,
                "slamb: visit a bool by visit_flag(), because a file may have bytes other than 0 and 1, which are not "
                "valid for a bool");
  if constexpr (std::is_const_v<T>)
    return std::as_bytes(std::span(&value, 1));
  else
    return std::as_writable_bytes(std::span(&value, 1));
}

/// The bytes of a vector's values.
template <class Vector>
auto bytes_of_all(Vector& values) noexcept {
  if constexpr (std::is_const_v<Vector>)
    return std::as_bytes(std::span(values));
  else
    return std::as_writable_bytes(std::span(values));
}

/// The value in the bytes of a part.
template <class T>
T value_of(std::span<const std::byte> saved) {
  T value{};
  std::memcpy(static_cast<void*>(&value), saved.data(), sizeof(value));
  return value;
}

/// The rule for a count, such as a number of steps.
inline void require_saved_count(std::span<const std::byte> saved) {
  require_count("the count", value_of<std::uint64_t>(saved));
}

/// Visits a count, such as a number of steps.
inline void visit_count(const state_visitor& part, std::string_view name, std::uint64_t& count, state_part whose) {
  part(name, bytes_of(count), whose, require_saved_count);
}

/// Visits a flag.
inline void visit_flag(const state_visitor& part, std::string_view name, bool& flag, state_part whose) {
  part(name, std::as_writable_bytes(std::span(&flag, 1)), whose, [](std::span<const std::byte> saved) {
    const auto byte = std::to_integer<std::uint64_t>(saved.front());
    require_word_in(byte <= 1, "the flag", byte, "0 or 1");
  });
}

/// Visits the state of a schedule. Its rule is the schedule's `validate(state)`, if it has one.
template <class Schedule, class State>
void visit_schedule(const state_visitor& part, std::string_view name, const Schedule& schedule, State& state,
                    state_part whose) {
  if constexpr (requires { schedule.validate(std::as_const(state)); })
    part(name, bytes_of(state), whose,
         [&schedule](std::span<const std::byte> saved) { schedule.validate(value_of<State>(saved)); });
  else
    part(name, bytes_of(state), whose);
}

}  // namespace slamb::detail
