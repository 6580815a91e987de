// Arrays of float32, bfloat16 or float16 for tests, and their conversions by the definition, not by the library.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <vector>

#include "nearest.hpp"
#include "slamb/core/parameter.hpp"

namespace test_support {

using element_type = slamb::parameter::element_type;

/// The bits of a finite or infinite number of a format of sixteen bits that has x exactly.
inline std::uint16_t bits_of_exact(element_type type, double x) {
  const bool is_half = type == element_type::float16;
  const int mantissa_bits = is_half ? 10 : 7, least = is_half ? -14 : -126, bias = is_half ? 15 : 127;
  const auto sign = static_cast<std::uint32_t>(std::signbit(x) ? 0x8000U : 0U);
  const double magnitude = std::abs(x);
  if (std::isinf(x)) return static_cast<std::uint16_t>(sign | (is_half ? 0x7C00U : 0x7F80U));
  if (magnitude == 0.0) return static_cast<std::uint16_t>(sign);
  int exponent = 0;
  std::frexp(magnitude, &exponent);
  exponent = std::max(exponent - 1, least);
  const auto whole = static_cast<std::uint32_t>(std::ldexp(magnitude, mantissa_bits - exponent));
  const bool is_normal = whole >> mantissa_bits != 0;
  const std::uint32_t biased = is_normal ? static_cast<std::uint32_t>(exponent + bias) : 0U;
  return static_cast<std::uint16_t>(sign | biased << mantissa_bits | (whole & ((1U << mantissa_bits) - 1U)));
}

/// The value of a number of sixteen bits.
inline double value_of_bits(element_type type, std::uint16_t bits) {
  const bool is_half = type == element_type::float16;
  const int mantissa_bits = is_half ? 10 : 7, bias = is_half ? 15 : 127;
  const double sign = (bits & 0x8000U) != 0 ? -1.0 : 1.0;
  const int largest = (1 << (15 - mantissa_bits)) - 1;
  const int exponent = bits >> mantissa_bits & largest;
  const double mantissa = bits & ((1 << mantissa_bits) - 1);
  if (exponent == largest)
    return mantissa != 0.0 ? std::numeric_limits<double>::quiet_NaN() : sign * std::numeric_limits<double>::infinity();
  const double one = std::ldexp(1.0, mantissa_bits);
  return sign * std::ldexp(exponent == 0 ? mantissa : one + mantissa, std::max(exponent, 1) - bias - mantissa_bits);
}

/// The bits of the number nearest to x, as IEEE 754 defines it. x is not NaN.
inline std::uint16_t nearest_bits(element_type type, float x) {
  const number_format& format = type == element_type::float16 ? binary16_format : bfloat16_format;
  const double wide = static_cast<double>(x);
  const double step = std::ldexp(format.largest, -format.precision);
  if (std::abs(wide) >= format.largest + 0.5 * step)
    return bits_of_exact(type, std::copysign(std::numeric_limits<double>::infinity(), wide));
  return bits_of_exact(type, nearest(format, wide));
}

/// The bytes of an array of this type with the values nearest to these.
inline std::vector<std::byte> rounded_bytes(std::span<const float> values, element_type type) {
  std::vector<std::byte> all;
  for (const float x : values) {
    const std::uint16_t bits = type == element_type::float32 ? std::uint16_t{} : nearest_bits(type, x);
    const auto bytes =
        type == element_type::float32 ? std::as_bytes(std::span(&x, 1)) : std::as_bytes(std::span(&bits, 1));
    all.insert(all.end(), bytes.begin(), bytes.end());
  }
  return all;
}

/// The number of bytes that differ; all of them if there are not as many.
inline std::size_t differences(const std::vector<std::byte>& a, const std::vector<std::byte>& b) {
  if (a.size() != b.size()) return std::max(a.size(), b.size());
  std::size_t different = 0;
  for (std::size_t i = 0; i < a.size(); ++i) different += a[i] == b[i] ? 0 : 1;
  return different;
}

/// Memory of an array, between bytes that nobody may write.
class typed_memory {
 public:
  /// @param shift  elements by which the array is off an alignment to 64 bytes
  typed_memory(std::span<const float> values, element_type type, std::size_t shift = 0)
      : type_(type),
        size_(values.size()),
        first_(guard + shift * slamb::detail::size_of(type)),
        all_((first_ + size_ * slamb::detail::size_of(type) + guard + sizeof(block) - 1) / sizeof(block)) {
    std::memset(static_cast<void*>(all_.data()), 0xA5, all_.size() * sizeof(block));
    write(values);
  }

  slamb::parameter::data_pointer pointer() { return {memory() + first_, type_}; }
  std::size_t size() const { return size_; }

  void write(std::span<const float> values) {
    const std::vector<std::byte> bytes = rounded_bytes(values, type_);
    std::memcpy(memory() + first_, bytes.data(), bytes.size());
  }
  std::vector<std::byte> bytes() const {
    return {memory() + first_, memory() + first_ + size_ * slamb::detail::size_of(type_)};
  }
  std::vector<float> values() const {
    std::vector<float> all(size_);
    for (std::size_t i = 0; i < size_; ++i) {
      if (type_ == element_type::float32) {
        std::memcpy(&all[i], memory() + first_ + 4 * i, 4);
      } else {
        std::uint16_t bits = 0;
        std::memcpy(&bits, memory() + first_ + 2 * i, 2);
        all[i] = static_cast<float>(value_of_bits(type_, bits));
      }
    }
    return all;
  }
  /// True if nothing was written in front of the array or behind it.
  bool is_intact() const {
    const std::byte* const end = memory() + all_.size() * sizeof(block);
    const auto is_guard = [](std::byte b) { return b == std::byte{0xA5}; };
    return std::all_of(memory(), memory() + first_, is_guard) &&
           std::all_of(memory() + first_ + size_ * slamb::detail::size_of(type_), end, is_guard);
  }

 private:
  static constexpr std::size_t guard = 64;
  struct alignas(64) block {
    std::byte of[64];
  };
  std::byte* memory() { return all_.data()->of; }
  const std::byte* memory() const { return all_.data()->of; }

  element_type type_;
  std::size_t size_;
  std::size_t first_;
  std::vector<block> all_;
};

}  // namespace test_support
