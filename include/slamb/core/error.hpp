// What the library throws, and the checks that name what was wrong and what would be right.
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

/// A collective failed: a peer threw, left, timed out, or called another collective. Or it gave other values than it should, as
/// far as a construction or `check_communicator` has tried it.
class communicator_error : public error {
 public:
  using error::error;
};

/// The ranks were constructed with different parameters or settings; thrown on every rank.
class rank_mismatch_error : public error {
 public:
  using error::error;
};

/// Memory could not be had. Says how many bytes were asked for, and for what; what the allocator has thrown is nested in it
/// (`std::rethrow_if_nested`).
class out_of_memory : public std::bad_alloc {
 public:
  explicit out_of_memory(std::string what) : what_(std::make_shared<const std::string>(std::move(what))) {}
  // Copies alone: an exception that is moved from still says what it is.
  out_of_memory(const out_of_memory&) noexcept = default;
  out_of_memory& operator=(const out_of_memory&) noexcept = default;
  ~out_of_memory() override = default;

  const char* what() const noexcept override { return what_->c_str(); }

 private:
  std::shared_ptr<const std::string> what_;  // of which copies cannot throw
};

/// A file cannot be written or read; the message names it and says why.
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

/// The same of an integer, to its last digit.
inline void require_word_in(bool holds, std::string_view name, std::uint64_t value, std::string_view range) {
  if (!holds)
    throw std::invalid_argument("slamb: " + std::string(name) + " = " + std::to_string(value) + ", but it must be " +
                                std::string(range));
}

/// `value` at most 2^53, to which doubles count: no training takes as many steps.
inline void require_count(std::string_view name, std::uint64_t value) {
  require_word_in(value <= (std::uint64_t{1} << 53U), name, value, "at most 9007199254740992");
}

/// `value` in [0, 1), as decay rates are.
inline void require_decay_rate(std::string_view name, double value) {
  require_in(value >= 0.0 && value < 1.0, name, value, "in [0, 1)");
}

/// What becomes a float must be one: not infinite, and not 0 if it was not.
inline void require_non_negative(std::string_view name, double value) {
  require_in(value >= 0.0 && value <= static_cast<double>(std::numeric_limits<float>::max()), name, value,
             "in [0, 3.4e38]");
}

inline void require_positive(std::string_view name, double value) {
  require_in(value >= static_cast<double>(std::numeric_limits<float>::min()) &&
                 value <= static_cast<double>(std::numeric_limits<float>::max()),
             name, value, "in [1.2e-38, 3.4e38]");
}

}  // namespace detail
}  // namespace slamb
