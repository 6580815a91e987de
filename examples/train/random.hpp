// Random numbers that are the same with every standard library: the standard fixes std::mt19937_64, but not std::shuffle and
// the distributions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <random>
#include <span>
#include <utility>

namespace train {

/// Mixes 64 bits so that the results of neighbouring numbers are unrelated (a step of SplitMix64 and its finalizer).
constexpr std::uint64_t mix(std::uint64_t x) {
  x += 0x9E3779B97F4A7C15U;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9U;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBU;
  return x ^ (x >> 31);
}

/// Its own engine for each purpose of a seed: initial parameters, the batches of each rank.
inline std::mt19937_64 engine_for(std::uint64_t seed, std::uint64_t purpose) {
  return std::mt19937_64(mix(mix(seed) + purpose));
}

/// Uniform in 0 … bound − 1, for bound >= 1.
inline std::uint64_t uniform_below(std::mt19937_64& engine, std::uint64_t bound) {
  constexpr std::uint64_t largest = std::numeric_limits<std::uint64_t>::max();
  const std::uint64_t accepted =
      largest - largest % bound;  // a multiple of `bound`, so that all values are equally likely
  std::uint64_t value = engine();
  while (value >= accepted) value = engine();
  return value % bound;
}

/// Uniform in [−limit, limit).
inline double uniform_within(std::mt19937_64& engine, double limit) {
  const double unit = static_cast<double>(engine() >> 11) * 0x1.0p-53;
  return (2.0 * unit - 1.0) * limit;
}

/// Shuffles `values` (Fisher–Yates).
template <class T>
void shuffle(std::span<T> values, std::mt19937_64& engine) {
  for (std::size_t i = values.size(); i > 1; --i) {
    std::swap(values[i - 1], values[static_cast<std::size_t>(uniform_below(engine, i))]);
  }
}

}  // namespace train
