// Masks of sixteen elements a word, as selections have them.
#pragma once

#include <cstdint>

#include "slamb/core/config.hpp"

namespace slamb {

/// Sets bit i % 16 of `bits[i / 16]`, or, with `bit` = 0, does nothing without a branch.
///
/// Loops that set bits in place should call this: where it can follow how i grows, clang 14 makes vectors of them in which
/// bits of one word overwrite each other (seen at -O3 with AVX-512). The empty statement hides the place from it.
SLAMB_ELEMENT void set_bit(std::uint16_t* bits, std::uint32_t i, std::uint32_t bit = 1) {
  std::uint16_t* word = bits + i / 16;
#if defined(__clang__) && !defined(__CUDA_ARCH__)
  asm("" : "+r"(word));
#endif
  *word = static_cast<std::uint16_t>(*word | bit << (i % 16));
}

}  // namespace slamb
