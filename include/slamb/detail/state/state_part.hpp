// The parts of an optimizer's state: whose each of them is, and what no saved one can be.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <span>
#include <string_view>
#include <type_traits>
#include <utility>

#include "slamb/core/error.hpp"

namespace slamb::detail {

/// Whose a part of the state is.
enum class state_part {
  common,          ///< means the same to every rank
  errors,          ///< this rank's own errors: zero when they come from other ranks
  fact,            ///< not restored: must be the same, or the rest does not fit
  fact_of_errors,  ///< the same of the errors
  parameters       ///< the user's own: saved and restored on request
};

/// What the saved bytes of a part must obey to be restored: throws std::invalid_argument that says the value and what would be
/// right. The hash detects bytes that have changed; this detects values that were written wrongly.
using state_rule = std::function<void(std::span<const std::byte> saved)>;

template <class Visit>
concept visits_parts = std::is_invocable_v<Visit&, std::string_view, std::span<std::byte>, state_part>;
template <class Visit>
concept visits_parts_with_rules =
    !visits_parts<Visit> &&
    std::is_invocable_v<Visit&, std::string_view, std::span<std::byte>, state_part, const state_rule&>;

/// What is called for each part of a state: its name, its bytes in the memory of the backend or of the host, whose it is, and its
/// rule, if it has one.
class state_visitor {
 public:
  /// @param visit  visit(name, bytes, whose)
  template <visits_parts Visit>
  state_visitor(Visit visit)  // NOLINT(google-explicit-constructor): converts from any function
      : visit_([visit = std::move(visit)](std::string_view name, std::span<std::byte> bytes, state_part whose,
                                          const state_rule& /*rule*/) mutable { visit(name, bytes, whose); }) {}
  /// @param visit  visit(name, bytes, whose, rule)
  template <visits_parts_with_rules Visit>
  state_visitor(Visit visit) : visit_(std::move(visit)) {}  // NOLINT(google-explicit-constructor)

  void operator()(std::string_view name, std::span<std::byte> bytes, state_part whose,
                  const state_rule& rule = {}) const {
    visit_(name, bytes, whose, rule);
  }

 private:
  std::function<void(std::string_view, std::span<std::byte>, state_part, const state_rule&)> visit_;
};

/// The bytes of a value in host memory.
template <class T>
requires std::is_trivially_copyable_v<std::remove_const_t<T>>
auto bytes_of(T& value) noexcept {
  static_assert(!std::is_same_v<std::remove_const_t<T>, bool>,
                "slamb: of the bytes that a file may have, two alone are a bool; visit_flag() adds the rule for them");
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

/// The value that the bytes of a part are.
template <class T>
T value_of(std::span<const std::byte> saved) {
  T value{};
  std::memcpy(static_cast<void*>(&value), saved.data(), sizeof(value));
  return value;
}

/// The rule for a count, as of steps.
inline void require_saved_count(std::span<const std::byte> saved) {
  require_count("the count", value_of<std::uint64_t>(saved));
}

/// Visits a count, as of steps.
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

/// Visits what a schedule keeps. Its rule is the schedule's: `validate(state)`, if there is such a function.
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
