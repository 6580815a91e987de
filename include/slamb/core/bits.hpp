// Masks of selections, sixteen elements a word.
#pragma once

#include <cstdint>

#include "slamb/core/config.hpp"

namespace slamb {

/// Sets bit i % 16 of `bits[i / 16]`, or, with `bit` = 0, does nothing without a branch.
///
/// Use it in loops that set bits in place. clang 14 otherwise vectorises such loops so that bits of one word overwrite each other
/// (seen at -O3 with AVX-512); the empty statement prevents this.
SLAMB_ELEMENT void set_bit(std::uint16_t* bits, std::uint32_t i, std::uint32_t bit = 1) {
  std::uint16_t* word = bits + i / 16;
#if defined(__clang__) && !defined(__CUDA_ARCH__)
  asm("" : "+r"(word));
#endif
  *word = static_cast<std::uint16_t>(*word | bit << (i % 16));
}

}  // namespace slamb
