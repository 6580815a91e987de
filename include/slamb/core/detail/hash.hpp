// Hashes of text and of words, the same on every machine, on the host and on devices.
#pragma once

#include <bit>
#include <cstdint>
#include <string_view>

#include "slamb/core/config.hpp"

namespace slamb::detail {

/// 64-bit FNV-1a.
constexpr std::uint64_t hash_of(std::string_view text) noexcept {
  std::uint64_t hash = 0xCBF29CE484222325U;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3U;
  return hash;
}

/// The bits of x.
SLAMB_HOST_DEVICE inline std::uint64_t bits_of(double x) noexcept {
#if defined(SLAMB_ON_DEVICE)
  return static_cast<std::uint64_t>(__double_as_longlong(x));
#else
  return std::bit_cast<std::uint64_t>(x);
#endif
}

/// The hash to which words are added.
inline constexpr std::uint64_t hash_of_nothing = 0x9E3779B97F4A7C15U;

/// Adds a word to a hash. Different words give different hashes.
SLAMB_HOST_DEVICE constexpr std::uint64_t hash_with(std::uint64_t hash, std::uint64_t word) noexcept {
  hash = (hash ^ word) * 0xD6E8FEB86659FD93U;
  return hash ^ (hash >> 32U);
}

}  // namespace slamb::detail
