// The library's exceptions, and checks of arguments.
#pragma once

#include <charconv>
#include <cstdint>
#include <iterator>
#include <limits>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <type_traits>
#include <utility>

namespace slamb {

/// Base of the library's run-time errors. Wrong arguments are `std::invalid_argument` instead.
class error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// A collective failed: a peer threw, left, timed out, or called another collective. Or a trial at construction or by
/// `check_communicator` found wrong values.
class communicator_error : public error {
 public:
  using error::error;
};

/// Ranks differ in options, tensors or state that must be equal. Thrown on every rank.
class rank_mismatch_error : public error {
 public:
  using error::error;
};

/// There is not enough memory. The message has the number of bytes and their purposes. The allocator's exception is nested in it
/// (`std::rethrow_if_nested`).
class out_of_memory : public std::bad_alloc {
 public:
  explicit out_of_memory(std::string what) : what_(std::make_shared<const std::string>(std::move(what))) {}
  // Copies only, so that the message of an exception that is moved from remains.
  out_of_memory(const out_of_memory&) noexcept = default;
  out_of_memory& operator=(const out_of_memory&) noexcept = default;
  ~out_of_memory() override = default;

  const char* what() const noexcept override { return what_->c_str(); }

 private:
  std::shared_ptr<const std::string> what_;  // shared, because copies of an exception must not throw
};

/// A file cannot be written or read. The message has its name and the reason.
class file_error : public error {
 public:
  using error::error;
};

namespace detail {

/// The shortest decimal text that reads back as `value`.
template <class T>
requires std::is_floating_point_v<T> std::string to_text(T value) {
  char text[32];
  const auto [end, failure] = std::to_chars(std::begin(text), std::end(text), value);
  return failure == std::errc{} ? std::string(text, end) : std::string("?");
}

[[noreturn]] inline void throw_out_of_range(std::string_view name, double value, std::string_view range) {
  throw std::invalid_argument("slamb: " + std::string(name) + " = " + to_text(value) + ", but it must be " +
                              std::string(range));
}

inline void require_in(bool holds, std::string_view name, double value, std::string_view range) {
  if (!holds) throw_out_of_range(name, value, range);
}

/// Requires `holds` of an integer. The error shows all its digits.
inline void require_word_in(bool holds, std::string_view name, std::uint64_t value, std::string_view range) {
  if (!holds)
    throw std::invalid_argument("slamb: " + std::string(name) + " = " + std::to_string(value) + ", but it must be " +
                                std::string(range));
}

/// Requires `value` ≤ 2^53, up to which doubles represent all integers.
inline void require_count(std::string_view name, std::uint64_t value) {
  require_word_in(value <= (std::uint64_t{1} << 53U), name, value, "at most 9007199254740992");
}

/// Requires `value` in [0, 1).
inline void require_decay_rate(std::string_view name, double value) {
  require_in(value >= 0.0 && value < 1.0, name, value, "in [0, 1)");
}

/// Requires a value ≥ 0 that stays finite as a float.
inline void require_non_negative(std::string_view name, double value) {
  require_in(value >= 0.0 && value <= static_cast<double>(std::numeric_limits<float>::max()), name, value,
             "in [0, 3.4e38]");
}

/// Requires a value > 0 that, as a float, stays finite and does not become 0.
inline void require_positive(std::string_view name, double value) {
  require_in(value >= static_cast<double>(std::numeric_limits<float>::min()) &&
                 value <= static_cast<double>(std::numeric_limits<float>::max()),
             name, value, "in [1.2e-38, 3.4e38]");
}

}  // namespace detail
}  // namespace slamb
