// The bandwidth of the machine's memory, the reference for every step.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstring>

#include "huge_array.hpp"
#include "slamb/backend/host/detail/simd.hpp"

namespace bench {

/// In bytes per second.
struct bandwidth {
  double copy = 0.0;   ///< a = b: 8 bytes per element
  double triad = 0.0;  ///< a += s b, in place: 12 bytes per element

  friend bandwidth mean(const bandwidth& x, const bandwidth& y) {
    return {(x.copy + y.copy) / 2.0, (x.triad + y.triad) / 2.0};
  }
};

/// Measures copy and triad over two arrays.
class bandwidth_meter {
 public:
  /// @param bytes  of both arrays together
  bandwidth_meter(std::size_t bytes, unsigned threads)
      : a_(bytes / (2 * sizeof(float)) / 16 * 16), b_(a_.size()), threads_(threads) {
    a_.fill(1.0F, 1, threads);
    b_.fill(1.0F, 2, threads);
  }

  /// The best of three rounds, copy and triad in turn.
  bandwidth measure() {
    bandwidth best;
    for (int round = 0; round < 3; ++round) {
      best.copy = std::max(best.copy, bytes_per_second(8, [this](std::size_t begin, std::size_t end) {
                             std::memcpy(a_.data() + begin, b_.data() + begin, (end - begin) * sizeof(float));
                           }));
      best.triad = std::max(best.triad, bytes_per_second(12, [this](std::size_t begin, std::size_t end) {
                              add_scaled(a_.data() + begin, b_.data() + begin, end - begin);
                            }));
    }
    return best;
  }

 private:
  // In the widest registers that the program is compiled for, like the library's passes.
  static void add_scaled(float* a, const float* b, std::size_t count) {
    using slamb::detail::host::f32x16;
    const f32x16 scale(0.001F);
    for (std::size_t i = 0; i < count; i += slamb::detail::host::lanes)
      (f32x16::load(a + i) + scale * f32x16::load(b + i)).store(a + i);
  }

  template <class Body>
  double bytes_per_second(std::size_t bytes_per_element, const Body& body) const {
    const auto start = std::chrono::steady_clock::now();
    for_parts(threads_, a_.size(), body);
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
    return static_cast<double>(bytes_per_element * a_.size()) / taken.count();
  }

  huge_array a_;
  huge_array b_;
  unsigned threads_;
};

}  // namespace bench
