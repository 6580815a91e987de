// The Real of kernels: a float whose operations are each rounded, so that element functions give the same bits as with the host
// backend's vectors.
//
// nvcc and g++ fuse a product with a sum where they can, and then round once instead of twice. Scalars are rounded after each
// operation, for all compiler flags.
#pragma once

#include <cstdint>

#include "slamb/core/config.hpp"
#include "slamb/core/real.hpp"

namespace slamb::detail::cuda {

/// A float. Element functions are templates over Real, which is this type on a device.
struct scalar {
  float value;

  scalar() = default;
  SLAMB_ELEMENT scalar(float x) : value(x) {}  // NOLINT(google-explicit-constructor): as the host's `f32x16`
};

SLAMB_ELEMENT scalar operator+(scalar a, scalar b) {
#if defined(__CUDA_ARCH__)
  return __fadd_rn(a.value, b.value);
#else
  return a.value + b.value;
#endif
}
SLAMB_ELEMENT scalar operator-(scalar a, scalar b) {
#if defined(__CUDA_ARCH__)
  return __fsub_rn(a.value, b.value);
#else
  return a.value - b.value;
#endif
}
SLAMB_ELEMENT scalar operator*(scalar a, scalar b) { return rounded_product(a.value, b.value); }
SLAMB_ELEMENT scalar operator/(scalar a, scalar b) {
#if defined(__CUDA_ARCH__)
  return __fdiv_rn(a.value, b.value);
#else
  return a.value / b.value;
#endif
}
SLAMB_ELEMENT scalar operator-(scalar a) { return -a.value; }
SLAMB_ELEMENT bool operator<(scalar a, scalar b) { return a.value < b.value; }

// Found by argument-dependent lookup from the element functions; core/real.hpp describes them.
SLAMB_ELEMENT scalar square_root(scalar x) {
#if defined(__CUDA_ARCH__)
  return __fsqrt_rn(x.value);
#else
  return ::slamb::square_root(x.value);
#endif
}
SLAMB_ELEMENT scalar absolute(scalar x) { return ::slamb::absolute(x.value); }
SLAMB_ELEMENT scalar select(bool condition, scalar yes, scalar no) { return condition ? yes : no; }
SLAMB_ELEMENT scalar minimum(scalar a, scalar b) { return b < a ? b : a; }
SLAMB_ELEMENT scalar maximum(scalar a, scalar b) { return a < b ? b : a; }
SLAMB_ELEMENT std::uint32_t as_word(scalar x) { return ::slamb::as_word(x.value); }
SLAMB_ELEMENT std::uint32_t to_word(scalar x) { return ::slamb::to_word(x.value); }

/// The sums and maxima of one thread's elements of a tile; `usable` is false if a checked value is not finite. As
/// host::tile_sums.
template <int Count, int Maxima = 0>
struct thread_sums {
  double sum[Count == 0 ? 1 : Count] = {};
  float highest[Maxima == 0 ? 1 : Maxima] = {};
  bool usable = true;

  SLAMB_ELEMENT void add_square(int index, scalar x) {
    const double wide = static_cast<double>(x.value);  // its square is exact, fused with the sum or not
    sum[index] += wide * wide;
  }
  SLAMB_ELEMENT void take_maximum(int index, scalar x) { highest[index] = maximum(scalar(highest[index]), x).value; }
  SLAMB_ELEMENT void check_finite(scalar x) {
    constexpr float largest = 0x1.fffffep127F;
    usable = usable && (x * x).value < largest;
  }
};

}  // namespace slamb::detail::cuda
