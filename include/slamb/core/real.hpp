// The functions that element functions may call, in addition to operators.
//
// An element function is a template over Real: float on a device, a vector of floats on the host. Write `using slamb::minimum;`
// and call `minimum(a, b)`: overloads for vectors are found by argument-dependent lookup. word_of<Real> is an unsigned 32-bit
// integer or a vector of them, with + - & | ^ < == and << >> by an int of 0 … 31, constructed from a std::uint32_t. Vectors and
// floats give the same bits.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <utility>

#include "slamb/core/config.hpp"

namespace slamb {

/// The product a b, rounded before it is used. For products that are summed in scalar code, whose bits must not depend on
/// compiler flags or processor. Operators of Real in element functions round in the same way.
SLAMB_ELEMENT float rounded_product(float a, float b) {
#if defined(__CUDA_ARCH__)
  return __fmul_rn(a, b);
#else
  float product = a * b;
  SLAMB_ROUND(product);
  return product;
#endif
}
SLAMB_ELEMENT double rounded_product(double a, double b) {
#if defined(__CUDA_ARCH__)
  return __dmul_rn(a, b);
#else
  double product = a * b;
  SLAMB_ROUND(product);
  return product;
#endif
}

/// √x.
SLAMB_HOST_DEVICE inline float square_root(float x) { return sqrtf(x); }
/// |x|.
SLAMB_HOST_DEVICE inline float absolute(float x) { return fabsf(x); }
/// `yes` if the condition holds, else `no`; for vectors, element by element.
SLAMB_HOST_DEVICE inline float select(bool condition, float yes, float no) { return condition ? yes : no; }
SLAMB_HOST_DEVICE inline std::uint32_t select(bool condition, std::uint32_t yes, std::uint32_t no) {
  return condition ? yes : no;
}
/// The smaller of two; a, if either is NaN.
SLAMB_HOST_DEVICE inline float minimum(float a, float b) { return b < a ? b : a; }
/// The larger of two; a, if either is NaN.
SLAMB_HOST_DEVICE inline float maximum(float a, float b) { return a < b ? b : a; }

/// The bits of x: sign, eight bits of exponent, 23 of mantissa.
SLAMB_HOST_DEVICE inline std::uint32_t as_word(float x) {
#if defined(SLAMB_ON_DEVICE)
  return __float_as_uint(x);
#else
  return std::bit_cast<std::uint32_t>(x);
#endif
}
/// The float with these bits.
SLAMB_HOST_DEVICE inline float as_real(std::uint32_t bits) {
#if defined(SLAMB_ON_DEVICE)
  return __uint_as_float(bits);
#else
  return std::bit_cast<float>(bits);
#endif
}
/// x without its fraction, for 0 ≤ x < 2^31.
SLAMB_HOST_DEVICE inline std::uint32_t to_word(float x) {
  return static_cast<std::uint32_t>(static_cast<std::int32_t>(x));
}
/// The number nearest to `word` < 2^31.
SLAMB_HOST_DEVICE inline float to_real(std::uint32_t word) {
  return static_cast<float>(static_cast<std::int32_t>(word));
}

/// The 32-bit unsigned integer that belongs to Real: std::uint32_t to float.
template <class Real>
using word_of = decltype(as_word(std::declval<const Real&>()));

/// Sets bit i % 16 of `bits[i / 16]`, or, with `bit` = 0, does nothing without a branch.
///
/// Use it in loops that set bits in place. clang 14 otherwise vectorises such loops so that bits of one word overwrite each other
/// (seen at -O3 with AVX-512); the empty statement prevents this.
SLAMB_ELEMENT void set_bit(std::uint16_t* bits, std::uint32_t i, std::uint32_t bit = 1) {
  std::uint16_t* word = bits + i / 16;
#if defined(__clang__) && !defined(SLAMB_ON_DEVICE)
  asm("" : "+r"(word));
#endif
  *word = static_cast<std::uint16_t>(*word | bit << (i % 16));
}

namespace detail {

/// The number of bits that are 1.
SLAMB_ELEMENT std::uint32_t count_of(std::uint32_t bits) {
#if defined(SLAMB_ON_DEVICE)
  return static_cast<std::uint32_t>(__popc(bits));
#else
  return static_cast<std::uint32_t>(__builtin_popcount(bits));
#endif
}

/// The number of zeros below the lowest bit that is 1; there is one.
SLAMB_ELEMENT unsigned trailing_zeros_of(std::uint32_t bits) {
#if defined(SLAMB_ON_DEVICE)
  return static_cast<unsigned>(__ffs(static_cast<int>(bits)) - 1);
#else
  return static_cast<unsigned>(__builtin_ctz(bits));
#endif
}

}  // namespace detail
}  // namespace slamb
