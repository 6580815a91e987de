// The Real of kernels: one float, or a few that behave as one. Each operation is rounded, so that element functions give the same bits
// as with the host backend's vectors.
//
// nvcc and g++ fuse a product with a sum where they can, and then round once instead of twice. These numbers are rounded after each
// operation, for all compiler flags.
#pragma once

#include <cstdint>

#include "slamb/core/config.hpp"
#include "slamb/core/detail/eight_bits.hpp"
#include "slamb/core/real.hpp"

namespace slamb::detail::cuda {

// Operations of one float that are rounded before their result is used; for a product there is rounded_product.

SLAMB_ELEMENT float rounded_sum(float a, float b) {
#if defined(SLAMB_ON_DEVICE)
  return __fadd_rn(a, b);
#else
  return a + b;
#endif
}
SLAMB_ELEMENT float rounded_difference(float a, float b) {
#if defined(SLAMB_ON_DEVICE)
  return __fsub_rn(a, b);
#else
  return a - b;
#endif
}
SLAMB_ELEMENT float rounded_quotient(float a, float b) {
#if defined(SLAMB_ON_DEVICE)
  return __fdiv_rn(a, b);
#else
  return a / b;
#endif
}
SLAMB_ELEMENT float rounded_root(float x) {
#if defined(SLAMB_ON_DEVICE)
  return __fsqrt_rn(x);
#else
  return ::slamb::square_root(x);
#endif
}

// `W` numbers, integers or truth values. All operators and functions work lane by lane; loops over the lanes are unrolled. Element
// functions find them by argument-dependent lookup; core/real.hpp describes them.

/// True or false in each lane.
template <unsigned W>
struct masks {
  bool of[W];

  friend SLAMB_ELEMENT masks operator&(const masks& a, const masks& b) {
    masks both;
    for (unsigned j = 0; j < W; ++j) both.of[j] = a.of[j] && b.of[j];
    return both;
  }
  friend SLAMB_ELEMENT masks operator~(const masks& a) {
    masks inverse;
    for (unsigned j = 0; j < W; ++j) inverse.of[j] = !a.of[j];
    return inverse;
  }
};

/// Unsigned integers, modulo 2^32.
template <unsigned W>
struct words {
  std::uint32_t of[W];

  words() = default;
  SLAMB_ELEMENT words(std::uint32_t value) {  // NOLINT(google-explicit-constructor): as for floats
    for (unsigned j = 0; j < W; ++j) of[j] = value;
  }

  friend SLAMB_ELEMENT words operator+(const words& a, const words& b) {
    words sum;
    for (unsigned j = 0; j < W; ++j) sum.of[j] = a.of[j] + b.of[j];
    return sum;
  }
  friend SLAMB_ELEMENT words operator-(const words& a, const words& b) {
    words difference;
    for (unsigned j = 0; j < W; ++j) difference.of[j] = a.of[j] - b.of[j];
    return difference;
  }
  friend SLAMB_ELEMENT words operator&(const words& a, const words& b) {
    words both;
    for (unsigned j = 0; j < W; ++j) both.of[j] = a.of[j] & b.of[j];
    return both;
  }
  friend SLAMB_ELEMENT words operator|(const words& a, const words& b) {
    words either;
    for (unsigned j = 0; j < W; ++j) either.of[j] = a.of[j] | b.of[j];
    return either;
  }
  friend SLAMB_ELEMENT words operator^(const words& a, const words& b) {
    words differing;
    for (unsigned j = 0; j < W; ++j) differing.of[j] = a.of[j] ^ b.of[j];
    return differing;
  }
  /// Shifts by 0 … 31 bits.
  friend SLAMB_ELEMENT words operator<<(const words& a, int count) {
    words shifted;
    for (unsigned j = 0; j < W; ++j) shifted.of[j] = a.of[j] << count;
    return shifted;
  }
  friend SLAMB_ELEMENT words operator>>(const words& a, int count) {
    words shifted;
    for (unsigned j = 0; j < W; ++j) shifted.of[j] = a.of[j] >> count;
    return shifted;
  }
  friend SLAMB_ELEMENT masks<W> operator<(const words& a, const words& b) {
    masks<W> less;
    for (unsigned j = 0; j < W; ++j) less.of[j] = a.of[j] < b.of[j];
    return less;
  }
  friend SLAMB_ELEMENT masks<W> operator==(const words& a, const words& b) {
    masks<W> equal;
    for (unsigned j = 0; j < W; ++j) equal.of[j] = a.of[j] == b.of[j];
    return equal;
  }
  friend SLAMB_ELEMENT words select(const masks<W>& mask, const words& yes, const words& no) {
    words chosen;
    for (unsigned j = 0; j < W; ++j) chosen.of[j] = mask.of[j] ? yes.of[j] : no.of[j];
    return chosen;
  }
};

/// Floats. Element functions are templates over Real, which is this type on a device.
template <unsigned W>
struct reals {
  float of[W];

  reals() = default;
  SLAMB_ELEMENT reals(float value) {  // NOLINT(google-explicit-constructor): formulas say 2.0F * x
    for (unsigned j = 0; j < W; ++j) of[j] = value;
  }

  friend SLAMB_ELEMENT reals operator+(const reals& a, const reals& b) {
    reals sum;
    for (unsigned j = 0; j < W; ++j) sum.of[j] = rounded_sum(a.of[j], b.of[j]);
    return sum;
  }
  friend SLAMB_ELEMENT reals operator-(const reals& a, const reals& b) {
    reals difference;
    for (unsigned j = 0; j < W; ++j) difference.of[j] = rounded_difference(a.of[j], b.of[j]);
    return difference;
  }
  friend SLAMB_ELEMENT reals operator*(const reals& a, const reals& b) {
    reals product;
    for (unsigned j = 0; j < W; ++j) product.of[j] = rounded_product(a.of[j], b.of[j]);
    return product;
  }
  friend SLAMB_ELEMENT reals operator/(const reals& a, const reals& b) {
    reals quotient;
    for (unsigned j = 0; j < W; ++j) quotient.of[j] = rounded_quotient(a.of[j], b.of[j]);
    return quotient;
  }
  friend SLAMB_ELEMENT reals operator-(const reals& a) {
    reals negative;
    for (unsigned j = 0; j < W; ++j) negative.of[j] = -a.of[j];
    return negative;
  }
  friend SLAMB_ELEMENT masks<W> operator<(const reals& a, const reals& b) {
    masks<W> less;
    for (unsigned j = 0; j < W; ++j) less.of[j] = a.of[j] < b.of[j];
    return less;
  }
  friend SLAMB_ELEMENT reals select(const masks<W>& mask, const reals& yes, const reals& no) {
    reals chosen;
    for (unsigned j = 0; j < W; ++j) chosen.of[j] = mask.of[j] ? yes.of[j] : no.of[j];
    return chosen;
  }
  friend SLAMB_ELEMENT reals minimum(const reals& a, const reals& b) {
    reals lesser;
    for (unsigned j = 0; j < W; ++j) lesser.of[j] = ::slamb::minimum(a.of[j], b.of[j]);
    return lesser;
  }
  friend SLAMB_ELEMENT reals maximum(const reals& a, const reals& b) {
    reals greater;
    for (unsigned j = 0; j < W; ++j) greater.of[j] = ::slamb::maximum(a.of[j], b.of[j]);
    return greater;
  }
  friend SLAMB_ELEMENT reals square_root(const reals& x) {
    reals root;
    for (unsigned j = 0; j < W; ++j) root.of[j] = rounded_root(x.of[j]);
    return root;
  }
  friend SLAMB_ELEMENT reals absolute(const reals& x) {
    reals magnitude;
    for (unsigned j = 0; j < W; ++j) magnitude.of[j] = ::slamb::absolute(x.of[j]);
    return magnitude;
  }
  friend SLAMB_ELEMENT words<W> as_word(const reals& x) {
    words<W> bits;
    for (unsigned j = 0; j < W; ++j) bits.of[j] = ::slamb::as_word(x.of[j]);
    return bits;
  }
  friend SLAMB_ELEMENT words<W> to_word(const reals& x) {
    words<W> whole;
    for (unsigned j = 0; j < W; ++j) whole.of[j] = ::slamb::to_word(x.of[j]);
    return whole;
  }
};

template <unsigned W>
SLAMB_ELEMENT reals<W> as_real(const words<W>& bits) {
  reals<W> x;
  for (unsigned j = 0; j < W; ++j) x.of[j] = ::slamb::as_real(bits.of[j]);
  return x;
}
template <unsigned W>
SLAMB_ELEMENT reals<W> to_real(const words<W>& whole) {
  reals<W> x;
  for (unsigned j = 0; j < W; ++j) x.of[j] = ::slamb::to_real(whole.of[j]);
  return x;
}
template <unsigned W, class Table>
SLAMB_ELEMENT reals<W> one_of_eight(const words<W>& i, Table table) {
  reals<W> x;
  for (unsigned j = 0; j < W; ++j) x.of[j] = ::slamb::detail::one_of_eight(i.of[j], table);
  return x;
}

/// The sums and maxima of one thread's elements of a tile, added lane by lane; `usable` is false if a checked value is not finite.
template <int Count, int Maxima = 0>
struct thread_sums {
  double sum[Count == 0 ? 1 : Count] = {};
  float highest[Maxima == 0 ? 1 : Maxima] = {};
  bool usable = true;

  template <unsigned W>
  SLAMB_ELEMENT void add_square(int index, const reals<W>& x) {
    for (unsigned j = 0; j < W; ++j) {
      const double wide = static_cast<double>(x.of[j]);  // its square is exact, fused with the sum or not
      sum[index] += wide * wide;
    }
  }
  template <unsigned W>
  SLAMB_ELEMENT void add(int index, const reals<W>& x) {
    for (unsigned j = 0; j < W; ++j) sum[index] += static_cast<double>(x.of[j]);
  }
  template <unsigned W>
  SLAMB_ELEMENT void add_square_of(const masks<W>& some, int index, const reals<W>& x) {
    for (unsigned j = 0; j < W; ++j)
      if (some.of[j]) add_square(index, reals<1>(x.of[j]));
  }
  template <unsigned W>
  SLAMB_ELEMENT void take_maximum(int index, const reals<W>& x) {
    for (unsigned j = 0; j < W; ++j) highest[index] = maximum(highest[index], x.of[j]);
  }
  template <unsigned W>
  SLAMB_ELEMENT void check_finite(const reals<W>& x) {
    constexpr float largest = 0x1.fffffep127F;
    for (unsigned j = 0; j < W; ++j) usable = (rounded_product(x.of[j], x.of[j]) < largest) & usable;
  }

  /// Begins another tile; checks go on.
  SLAMB_ELEMENT void restart() {
    for (double& one : sum) one = 0.0;
    for (float& one : highest) one = 0.0F;
  }
};
template <int Count, int Maxima>
SLAMB_ELEMENT bool is_usable(const thread_sums<Count, Maxima>& sums) {
  return sums.usable;
}

}  // namespace slamb::detail::cuda
