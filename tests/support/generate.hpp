// Made-up inputs for tests, and measures for comparing results.
//
// The distributions of <random> differ between standard libraries. So this header uses only the raw words of std::mt19937_64,
// which the standard fixes: a failing case is the same on every machine.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <span>
#include <stdexcept>
#include <vector>

namespace test_support {

/// A stream of random numbers, fixed by up to four words.
class random_source {
 public:
  explicit random_source(std::uint64_t seed, std::uint64_t a = 0, std::uint64_t b = 0, std::uint64_t c = 0)
      : words_(mixed(mixed(mixed(mixed(seed) ^ a) ^ b) ^ c)) {}

  std::uint64_t next() { return words_(); }

  /// In [0, bound); the bias of the remainder is below bound / 2^64.
  std::uint64_t below(std::uint64_t bound) { return words_() % bound; }

  /// In [0, 1), a multiple of 2^-53.
  double uniform() { return static_cast<double>(words_() >> 11) * 0x1p-53; }

  /// Bell-shaped, mean 0, standard deviation 1, within ±6: the sum of twelve uniform numbers less 6.
  double bell() {
    double sum = -6.0;
    for (int i = 0; i < 12; ++i) sum += uniform();
    return sum;
  }

 private:
  // A bijection of 64-bit words: each bit of the input changes about half of the output bits.
  static std::uint64_t mixed(std::uint64_t x) {
    x += 0x632BE59BD9B4E019U;
    x = (x ^ x >> 32) * 0xD6E8FEB86659FD93U;
    x = (x ^ x >> 32) * 0xD6E8FEB86659FD93U;
    return x ^ x >> 32;
  }

  std::mt19937_64 words_;
};

/// The shape of a made-up tensor.
struct tensor_shape {
  std::size_t size = 0;
  int dimensions = 2;
};

using tensor_shapes = std::vector<tensor_shape>;

/// Sizes around the ends of passes, tiles and vectors.
inline constexpr std::array<std::size_t, 10> edge_sizes{0, 1, 2, 7, 15, 16, 17, 63, 257, 9000};

/// A two-dimensional tensor of each edge size, then a one-dimensional tensor of 33.
inline tensor_shapes edge_shapes() {
  tensor_shapes shapes;
  for (const std::size_t size : edge_sizes) shapes.push_back({size, 2});
  shapes.push_back({33, 1});
  return shapes;
}

/// `tensors` tensors of one to four dimensions; sizes are edge sizes or below 400.
inline tensor_shapes random_shapes(std::uint64_t seed, std::size_t tensors) {
  random_source source(seed, 0x5A);
  tensor_shapes shapes;
  for (std::size_t l = 0; l < tensors; ++l) {
    const std::size_t size = source.below(2) == 0 ? edge_sizes[source.below(edge_sizes.size())] : source.below(400);
    shapes.push_back({size, 1 + static_cast<int>(source.below(4))});
  }
  return shapes;
}

inline std::size_t total_size(std::span<const tensor_shape> shapes) {
  return std::accumulate(shapes.begin(), shapes.end(), std::size_t{0},
                         [](std::size_t sum, const tensor_shape& s) { return sum + s.size; });
}

/// [n] bell-shaped parameters of standard deviation `scale`.
inline std::vector<float> random_parameters(std::uint64_t seed, std::size_t n, double scale = 0.1) {
  random_source source(seed, 0xB0);
  std::vector<float> values(n);
  for (float& x : values) x = static_cast<float>(scale * source.bell());
  return values;
}

/// [n] the gradient of one rank at one step. It depends only on the arguments, not on earlier calls.
inline std::vector<float> random_gradient(std::uint64_t seed, std::uint64_t step, int rank, std::size_t n,
                                          double scale = 1.0) {
  random_source source(seed, 0x6A, step, static_cast<std::uint64_t>(rank));
  std::vector<float> values(n);
  for (float& x : values) x = static_cast<float>(scale * source.bell());
  return values;
}

/// [world][n] the gradients of all ranks at one step.
inline std::vector<std::vector<float>> random_gradients(std::uint64_t seed, std::uint64_t step, int world,
                                                        std::size_t n, double scale = 1.0) {
  std::vector<std::vector<float>> gradients;
  for (int rank = 0; rank < world; ++rank) gradients.push_back(random_gradient(seed, step, rank, n, scale));
  return gradients;
}

/// [n] a mask of one step: 1 with probability k.
inline std::vector<std::uint8_t> random_mask(std::uint64_t seed, std::uint64_t step, std::size_t n, double k) {
  random_source source(seed, 0x3A, step);
  std::vector<std::uint8_t> mask(n);
  for (std::uint8_t& byte : mask) byte = source.uniform() < k ? 1 : 0;
  return mask;
}

inline std::vector<double> widened(std::span<const float> values) { return {values.begin(), values.end()}; }

inline std::vector<std::vector<double>> widened(const std::vector<std::vector<float>>& rows) {
  std::vector<std::vector<double>> result;
  for (const auto& row : rows) result.push_back(widened(std::span(row)));
  return result;
}

/// The number of floats between a and b, counting one end: 0 if equal (−0 equals +0), the largest integer if either is NaN.
inline std::uint64_t ulp_distance(float a, float b) {
  if (std::isnan(a) || std::isnan(b)) return std::numeric_limits<std::uint64_t>::max();
  const auto place = [](float x) {
    const auto bits = std::bit_cast<std::uint32_t>(x);
    const auto magnitude = static_cast<std::int64_t>(bits & 0x7FFFFFFFU);
    return (bits >> 31) != 0 ? -magnitude : magnitude;
  };
  const std::int64_t distance = place(a) - place(b);
  return static_cast<std::uint64_t>(distance < 0 ? -distance : distance);
}

/// The largest `ulp_distance` of two arrays of one size.
inline std::uint64_t max_ulp_distance(std::span<const float> a, std::span<const float> b) {
  if (a.size() != b.size()) throw std::invalid_argument("max_ulp_distance: the arrays differ in size");
  std::uint64_t most = 0;
  for (std::size_t i = 0; i < a.size(); ++i) most = std::max(most, ulp_distance(a[i], b[i]));
  return most;
}

/// True if the arrays are equal bit for bit: unlike ==, NaN equals itself and −0 differs from +0.
inline bool same_bits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size_bytes()) == 0);
}

/// max |got − expected|; infinite if any difference is NaN.
template <class Got, class Expected>
double max_absolute_error(std::span<Got> got, std::span<Expected> expected) {
  if (got.size() != expected.size()) throw std::invalid_argument("max_absolute_error: the arrays differ in size");
  double worst = 0.0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double error = std::abs(static_cast<double>(got[i]) - static_cast<double>(expected[i]));
    worst = error >= 0.0 ? std::max(worst, error) : std::numeric_limits<double>::infinity();
  }
  return worst;
}

/// max |x|; 0 of an empty array, infinite if any is NaN.
template <class T>
double max_magnitude(std::span<T> values) {
  double most = 0.0;
  for (const T x : values) {
    const double magnitude = std::abs(static_cast<double>(x));
    most = magnitude >= 0.0 ? std::max(most, magnitude) : std::numeric_limits<double>::infinity();
  }
  return most;
}

/// error / scale; if the scale is 0, then 0 or infinity. Never NaN, so that a comparison with it is meaningful.
inline double relative_error(double error, double scale) {
  if (error == 0.0) return 0.0;
  const double quotient = error / scale;
  return quotient >= 0.0 ? quotient : std::numeric_limits<double>::infinity();
}

/// max |got − expected| / max |expected|.
template <class Got, class Expected>
double max_relative_error(std::span<Got> got, std::span<Expected> expected) {
  return relative_error(max_absolute_error(got, expected), max_magnitude(expected));
}

template <class Got, class Expected>
double max_relative_error(const std::vector<Got>& got, const std::vector<Expected>& expected) {
  return max_relative_error(std::span(got), std::span(expected));
}

}  // namespace test_support
