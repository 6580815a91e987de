// The library's only source of random numbers: a function of key and counter, without a state.
#pragma once

#include <cstdint>

#include "slamb/core/config.hpp"

namespace slamb {

namespace detail {

/// Four random words.
struct random_words {
  std::uint32_t word[4];

  /// Word i mod 4, by comparisons, because an array that is indexed at run time would be in a device's local memory.
  SLAMB_HOST_DEVICE constexpr std::uint32_t at(std::uint64_t i) const noexcept {
    const std::uint32_t even = (i & 2U) == 0 ? word[0] : word[2];
    const std::uint32_t odd = (i & 2U) == 0 ? word[1] : word[3];
    return (i & 1U) == 0 ? even : odd;
  }
};

}  // namespace detail

/// Philox4x32-10: four random words from a 64-bit key and a 128-bit counter. Equal on host, device and every rank.
///
/// @param key  seed
/// @param low, high  the counter
/// *Reference*: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011, section 3.3.
SLAMB_HOST_DEVICE constexpr detail::random_words philox(std::uint64_t key, std::uint64_t low,
                                                        std::uint64_t high) noexcept {
  auto key0 = static_cast<std::uint32_t>(key);
  auto key1 = static_cast<std::uint32_t>(key >> 32U);
  auto x0 = static_cast<std::uint32_t>(low);
  auto x1 = static_cast<std::uint32_t>(low >> 32U);
  auto x2 = static_cast<std::uint32_t>(high);
  auto x3 = static_cast<std::uint32_t>(high >> 32U);
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t product0 = std::uint64_t{0xD2511F53U} * x0;
    const std::uint64_t product1 = std::uint64_t{0xCD9E8D57U} * x2;
    x0 = static_cast<std::uint32_t>(product1 >> 32U) ^ x1 ^ key0;
    x1 = static_cast<std::uint32_t>(product1);
    x2 = static_cast<std::uint32_t>(product0 >> 32U) ^ x3 ^ key1;
    x3 = static_cast<std::uint32_t>(product0);
    key0 += 0x9E3779B9U;  // the golden ratio
    key1 += 0xBB67AE85U;  // √3 − 1
  }
  return {{x0, x1, x2, x3}};
}

namespace detail {

/// Maps a word to 0 … n − 1 without a division. The bias is below n/2^32.
SLAMB_HOST_DEVICE constexpr std::uint32_t scaled_to(std::uint32_t word, std::uint32_t n) noexcept {
  return static_cast<std::uint32_t>((std::uint64_t{word} * n) >> 32U);
}

}  // namespace detail
}  // namespace slamb
