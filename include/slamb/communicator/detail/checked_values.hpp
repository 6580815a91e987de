// The values that ranks hand to collectives in `check_communicator`, and the expected results: every rank can compute the
// values of every other rank. Spans with margins show writes outside of the result.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "slamb/communicator/detail/collective_call.hpp"
#include "slamb/core/error.hpp"

namespace slamb::detail {

/// The terms of a checked sum.
enum class sum_content {
  plain,     ///< of either sign, with magnitudes in [1, 256]
  integers,  ///< one rank: a value up to 65535; other ranks: 0
  bytes,     ///< 0 … 255 on every rank; sums are exact for up to 2^16 ranks
  tiny,      ///< one rank: a denormal; other ranks: 0
  huge,      ///< of either sign, up to 2.6e31
  nan,       ///< NaN on one rank
  infinite   ///< infinite on one rank, or on two ranks with opposite signs
};

constexpr std::uint64_t checked_bits(std::uint64_t call, int rank, std::size_t i) noexcept {
  std::uint64_t x = (call << 40U) + (static_cast<std::uint64_t>(rank) << 20U) * 0x9E3779B97F4A7C15U + i + 1;
  x = (x ^ (x >> 30U)) * 0xBF58476D1CE4E5B9U;
  x = (x ^ (x >> 27U)) * 0x94D049BB133111EBU;
  return x ^ (x >> 31U);
}

/// Element i of what `rank` hands to call number `call`: floats of either sign, or any bits of another type.
template <class T>
T checked_value(std::uint64_t call, int rank, std::size_t i) {
  const std::uint64_t bits = checked_bits(call, rank, i);
  if constexpr (std::is_floating_point_v<T>) {
    const double fraction = 1.0 + static_cast<double>(bits >> 40U) / 16'777'216.0;
    return static_cast<T>(std::ldexp((bits & 1U) != 0 ? fraction : -fraction, static_cast<int>(bits >> 1U & 7U)));
  } else {
    return static_cast<T>(bits);
  }
}

/// The index of the first element that differs from chunk `chunk` of what `from` hands to call number `call`; the size if none
/// does.
template <class T>
std::size_t first_altered(std::span<const T> found, std::uint64_t call, int from, int chunk) {
  const std::size_t first = static_cast<std::size_t>(chunk) * found.size();
  std::size_t i = 0;
  while (i < found.size() && found[i] == checked_value<T>(call, from, first + i)) ++i;
  return i;
}

/// The term of `rank`, one of `ranks`, in a sum of floating-point values.
template <class T>
T special_term(sum_content content, std::uint64_t call, int rank, int ranks, std::size_t i) {
  const bool has_special = static_cast<std::size_t>(rank) == i % static_cast<std::size_t>(ranks);
  const bool is_next = ranks > 1 && static_cast<std::size_t>(rank) == (i + 1) % static_cast<std::size_t>(ranks);
  switch (content) {
    case sum_content::plain:
      break;
    case sum_content::integers:
      return has_special ? static_cast<T>(checked_bits(call, rank, i) % 65536U) : T(0);
    case sum_content::bytes:
      return static_cast<T>(checked_bits(call, rank, i) % 256U);
    case sum_content::tiny:
      return has_special ? std::numeric_limits<T>::min() / T(8) : T(0);
    case sum_content::huge:
      return checked_value<T>(call, rank, i) * static_cast<T>(1e29);
    case sum_content::nan:
      if (has_special) return std::numeric_limits<T>::quiet_NaN();
      break;
    case sum_content::infinite:
      if (has_special) return std::numeric_limits<T>::infinity();
      if (is_next && i % 2 == 1) return -std::numeric_limits<T>::infinity();
      break;
  }
  return checked_value<T>(call, rank, i);
}

/// The term of `rank`, one of `ranks`, in a sum. Integers are the same for every `content`.
template <class T>
T checked_term(sum_content content, std::uint64_t call, int rank, [[maybe_unused]] int ranks, std::size_t i) {
  if constexpr (std::is_floating_point_v<T>) return special_term<T>(content, call, rank, ranks, i);
  return checked_value<T>(call, rank, i);
}

/// "1 byte", "17 floats".
template <class T>
std::string count_of(std::size_t n) {
  std::string type = std::to_string(8 * sizeof(T)) + "-bit element";
  if constexpr (std::is_same_v<T, std::byte>) type = "byte";
  if constexpr (std::is_same_v<T, float>) type = "float";
  if constexpr (std::is_same_v<T, double>) type = "double";
  return std::to_string(n) + " " + type + (n == 1 ? "" : "s");
}

template <class T>
std::string checked_text(T x) {
  if constexpr (std::is_same_v<T, std::byte>)
    return std::to_string(std::to_integer<int>(x));
  else if constexpr (std::is_same_v<T, float>)
    return float_to_text(x);
  else
    return to_text(static_cast<double>(x));
}

/// A description of the fault in element i of a sum over `ranks`; empty if there is none.
/// @param wire_error  as in communicator_check
template <class T>
std::string wrong_sum(T found, sum_content content, std::uint64_t call, int ranks, std::size_t i,
                      [[maybe_unused]] double wire_error) {
  if constexpr (std::is_floating_point_v<T>) {
    long double sum = 0.0L, magnitude = 0.0L;
    for (int rank = 0; rank < ranks; ++rank) {
      const T x = checked_term<T>(content, call, rank, ranks, i);
      if (std::isnan(x) && !std::isnan(found))
        return "but rank " + std::to_string(rank) + "'s value is NaN, so the sum must be NaN";
      if (std::isinf(x) && std::isfinite(found))
        return "but rank " + std::to_string(rank) + "'s value is infinite, so the sum must be infinite or NaN";
      sum += static_cast<long double>(x);
      magnitude += std::fabs(static_cast<long double>(x));
    }
    if (!std::isfinite(sum)) return {};
    const bool is_integer = content == sum_content::integers || content == sum_content::bytes;
    const long double rounding =
        ranks == 1 ? 0.0L : ranks * static_cast<long double>(std::numeric_limits<T>::epsilon());
    const bool is_exact = is_integer || content == sum_content::tiny;
    const long double most = is_exact ? 0.0L : (rounding + static_cast<long double>(wire_error)) * magnitude;
    if (std::fabs(static_cast<long double>(found) - sum) <= most) return {};
    if (content == sum_content::tiny && found == T(0)) return {};  // hardware may be set to flush denormals to 0
    return "but the ranks' values add up to " + to_text(static_cast<double>(sum)) +
           (is_integer ? " (sums of such integers must be exact)" : "");
  } else {
    std::uint64_t sum = 0;
    for (int rank = 0; rank < ranks; ++rank)
      sum += static_cast<std::uint64_t>(checked_term<T>(content, call, rank, ranks, i));
    if (found == static_cast<T>(sum)) return {};
    return "but the ranks' values add up to " + checked_text(static_cast<T>(sum));
  }
}

/// A span between two margins that must not be written. It is aligned to its element type only.
template <class T>
class checked_span {
 public:
  explicit checked_span(std::size_t size) : all_(size + 2 * margin), size_(size) {
    std::memset(static_cast<void*>(all_.data()), mark, all_.size() * sizeof(T));
  }

  std::span<T> span() noexcept { return std::span<T>(all_).subspan(margin, size_); }
  std::span<const T> values() const noexcept { return std::span<const T>(all_).subspan(margin, size_); }
  bool is_intact_before() const { return is_marked(0); }
  bool is_intact_behind() const { return is_marked(margin + size_); }
  /// Overwrites all values, as the owner may do once a collective has returned.
  void spoil() { std::memset(static_cast<void*>(span().data()), spoilt, size_ * sizeof(T)); }
  bool is_spoilt() const { return has_bytes(margin, size_, spoilt); }

  static constexpr std::size_t margin = 3;  ///< elements before, and as many behind

 private:
  static constexpr unsigned char mark = 0xA5, spoilt = 0x5A;

  bool is_marked(std::size_t first) const { return has_bytes(first, margin, mark); }
  bool has_bytes(std::size_t first, std::size_t count, unsigned char value) const {
    const auto bytes = std::as_bytes(std::span<const T>(all_).subspan(first, count));
    return std::ranges::all_of(bytes, [value](std::byte b) { return b == std::byte{value}; });
  }

  std::vector<T> all_;
  std::size_t size_;
};

}  // namespace slamb::detail
