// One test suite for every Communicator: the contents of the buffers after each collective, for the element types that it takes.
// The expected values are computed from the ranks' inputs.
#pragma once

#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "slamb/core/concepts.hpp"

namespace test_support::communicator_suite {

using slamb::host_stream;

inline constexpr std::array sizes{0U, 1U, 2U, 15U, 17U, 1000U};
inline constexpr std::size_t large = 1'000'003;

// ------------------------------------------------------------------------------------------------------- inputs

inline std::uint64_t mixed(std::uint64_t x) {
  x = (x ^ (x >> 32)) * 0x9E3779B97F4A7C15U;
  return x ^ (x >> 29);
}

/// The input of `rank` at `index`: any bits for integers; signed numbers over nine binades for floats, none of them zero.
template <class T>
T input(int rank, std::size_t index) {
  const std::uint64_t bits = mixed(index * 64 + static_cast<std::uint64_t>(rank) + 1);
  if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(bits);
  } else {
    const double fraction = 1.0 + static_cast<double>(bits >> 40) / 16777216.0;
    return static_cast<T>(std::ldexp((bits & 1) != 0 ? fraction : -fraction, static_cast<int>(bits >> 1 & 7)));
  }
}

/// A span of one rank with a margin on both sides that no collective may touch. Its start is not aligned to a cache line.
template <class T>
class buffer {
 public:
  explicit buffer(std::size_t size) : elements_(size + 2 * margin, sentinel()), size_(size) {}
  buffer(std::size_t size, int rank) : buffer(size) {
    std::size_t i = 0;
    for (T& element : span()) element = input<T>(rank, i++);
  }

  std::span<T> span() { return std::span<T>(elements_).subspan(margin, size_); }
  std::span<const T> values() const { return std::span<const T>(elements_).subspan(margin, size_); }
  std::span<T> with_margins() { return elements_; }
  bool margins_are_intact() const {
    for (std::size_t i = 0; i < margin; ++i) {
      if (elements_[i] != sentinel() || elements_[elements_.size() - 1 - i] != sentinel()) return false;
    }
    return true;
  }

 private:
  static constexpr std::size_t margin = 3;
  static constexpr T sentinel() { return static_cast<T>(77); }

  std::vector<T> elements_;
  std::size_t size_;
};

// --------------------------------------------------------------------------------------------------------- runs

// A world runs ranks: `run(ranks, body)` calls body(communicator) on each of them. A world whose ranks are several processes
// also has `share(outcome)`, which gives all processes the outcomes of all ranks.

template <class T>
using outcome = std::vector<buffer<T>>;  // [rank]

template <class T, class World>
void share(const World& world, outcome<T>& result) {
  if constexpr (requires { world.share(result); }) world.share(result);
}

/// Keeps a rank's buffer. Of the ranks of a node, it keeps the buffer of the rank that is furthest from the leader.
template <class T, class Communicator>
void keep(outcome<T>& result, const Communicator& communicator, buffer<T> values) {
  if constexpr (requires { communicator.local_rank(); })
    if (communicator.local_rank() != communicator.local_size() - 1) return;
  result[static_cast<std::size_t>(communicator.rank())] = std::move(values);
}

template <class T, class World>
outcome<T> all_reduce(const World& world, int ranks, std::size_t n) {
  outcome<T> result(static_cast<std::size_t>(ranks), buffer<T>(0));
  world.run(ranks, [&](auto communicator) {
    buffer<T> values(n, communicator.rank());
    communicator.all_reduce_sum(values.span(), host_stream{});
    keep(result, communicator, std::move(values));
  });
  share(world, result);
  return result;
}

template <class T, class World>
outcome<T> broadcast(const World& world, int ranks, std::size_t n, int root) {
  outcome<T> result(static_cast<std::size_t>(ranks), buffer<T>(0));
  world.run(ranks, [&](auto communicator) {
    buffer<T> values(n, communicator.rank());
    communicator.broadcast(values.span(), root, host_stream{});
    keep(result, communicator, std::move(values));
  });
  share(world, result);
  return result;
}

template <class T, class World>
outcome<T> all_gather(const World& world, int ranks, std::size_t n) {
  outcome<T> result(static_cast<std::size_t>(ranks), buffer<T>(0));
  world.run(ranks, [&](auto communicator) {
    const buffer<T> mine(n, communicator.rank());
    buffer<T> all(n * static_cast<std::size_t>(ranks));
    communicator.all_gather(mine.values(), all.span(), host_stream{});
    keep(result, communicator, std::move(all));
  });
  share(world, result);
  return result;
}

template <class T, class World>
outcome<T> all_to_all(const World& world, int ranks, std::size_t n) {
  outcome<T> result(static_cast<std::size_t>(ranks), buffer<T>(0));
  world.run(ranks, [&](auto communicator) {
    const buffer<T> send(n * static_cast<std::size_t>(ranks), communicator.rank());
    buffer<T> receive(send.values().size());
    communicator.all_to_all(send.values(), receive.span(), host_stream{});
    keep(result, communicator, std::move(receive));
  });
  share(world, result);
  return result;
}

// ------------------------------------------------------- checks: each returns the fault of an outcome, or ""

inline std::string at(std::size_t rank, std::size_t index) {
  return "rank " + std::to_string(rank) + ", element " + std::to_string(index);
}

template <class T>
bool same_bits(T a, T b) {
  return std::memcmp(&a, &b, sizeof(T)) == 0;
}

/// All ranks must hold the same bits, and nothing may be written outside the buffers.
template <class T>
std::string disagreement(const outcome<T>& result) {
  for (std::size_t rank = 0; rank < result.size(); ++rank) {
    const auto first = result[0].values();
    const auto values = result[rank].values();
    if (values.size() != first.size()) return at(rank, 0) + ": other size";
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (!same_bits(values[i], first[i])) return at(rank, i) + ": other bits than rank 0";
    }
  }
  return "";
}

template <class T>
std::string overrun(const outcome<T>& result) {
  for (std::size_t rank = 0; rank < result.size(); ++rank) {
    if (!result[rank].margins_are_intact()) return at(rank, 0) + ": margin written";
  }
  return "";
}

/// Values must equal `expected(rank, index)` exactly.
template <class T, class F>
std::string wrong_values(const outcome<T>& result, std::size_t size, F expected) {
  for (std::size_t rank = 0; rank < result.size(); ++rank) {
    const auto values = result[rank].values();
    if (values.size() != size) return at(rank, 0) + ": wrong size";
    for (std::size_t i = 0; i < size; ++i) {
      if (!same_bits(values[i], expected(rank, i))) return at(rank, i) + ": wrong value";
    }
  }
  return "";
}

/// Sums: exact modulo 2^bits for integers; for floats within the bound of any order of additions.
template <class T>
std::string wrong_sums(const outcome<T>& result, std::size_t size) {
  const int ranks = static_cast<int>(result.size());
  for (std::size_t i = 0; i < size; ++i) {
    std::uint64_t integer = 0;
    long double real = 0.0L;
    long double magnitude = 0.0L;
    for (int rank = 0; rank < ranks; ++rank) {
      const T x = input<T>(rank, i);
      integer += static_cast<std::uint64_t>(static_cast<std::int64_t>(std::is_integral_v<T> ? x : T{}));
      real += static_cast<long double>(x);
      magnitude += std::fabs(static_cast<long double>(x));
    }
    for (std::size_t rank = 0; rank < result.size(); ++rank) {
      if (result[rank].values().size() != size) return at(rank, 0) + ": wrong size";
      const T sum = result[rank].values()[i];
      if constexpr (std::is_integral_v<T>) {
        if (sum != static_cast<T>(integer)) return at(rank, i) + ": wrong sum";
      } else {
        const auto bound = static_cast<long double>(std::numeric_limits<T>::epsilon()) * ranks * magnitude;
        const bool close = std::fabs(static_cast<long double>(sum) - real) <= (ranks == 1 ? 0.0L : bound);
        if (!close) return at(rank, i) + ": wrong sum " + std::to_string(sum);
      }
    }
  }
  return "";
}

template <class T>
std::string wrong_broadcast(const outcome<T>& result, std::size_t n, int root) {
  return wrong_values(result, n, [&](std::size_t, std::size_t i) { return input<T>(root, i); });
}

template <class T>
std::string wrong_gather(const outcome<T>& result, std::size_t n) {
  return wrong_values(result, n * result.size(),
                      [&](std::size_t, std::size_t i) { return input<T>(static_cast<int>(i / n), i % n); });
}

template <class T>
std::string wrong_exchange(const outcome<T>& result, std::size_t n) {
  return wrong_values(result, n * result.size(), [&](std::size_t rank, std::size_t i) {
    return input<T>(static_cast<int>(i / n), rank * n + i % n);
  });
}

// -------------------------------------------------------------------------------------------------------- suite

template <class T, class World>
void check_size(const World& world, int ranks, std::size_t n) {
  using communicator_type = typename World::communicator_type;
  CAPTURE(ranks);
  CAPTURE(n);
  CAPTURE(sizeof(T));
  int collectives = 0;
  if constexpr (slamb::capability::has_all_reduce_sum<communicator_type, T>) {
    const auto result = all_reduce<T>(world, ranks, n);
    CHECK(disagreement(result) == "");
    CHECK(wrong_sums(result, n) == "");
    CHECK(overrun(result) == "");
    ++collectives;
  }
  if constexpr (slamb::capability::has_broadcast<communicator_type, T>) {
    for (const int root : {0, ranks - 1}) {
      const auto result = broadcast<T>(world, ranks, n, root);
      CHECK(wrong_broadcast(result, n, root) == "");
      CHECK(overrun(result) == "");
    }
    ++collectives;
  }
  if constexpr (slamb::capability::has_all_gather<communicator_type, T>) {
    const auto result = all_gather<T>(world, ranks, n);
    CHECK(wrong_gather(result, n) == "");
    CHECK(overrun(result) == "");
    ++collectives;
  }
  if constexpr (slamb::capability::has_all_to_all<communicator_type, T>) {
    const auto result = all_to_all<T>(world, ranks, n);
    CHECK(wrong_exchange(result, n) == "");
    CHECK(overrun(result) == "");
    ++collectives;
  }
  CHECK(collectives > 0);
}

template <class T, class World>
void check_small_sizes(const World& world, int ranks) {
  for (const std::size_t n : sizes) check_size<T>(world, ranks, n);
}

template <class World>
void check_all_types(const World& world, int ranks) {
  check_small_sizes<float>(world, ranks);
  check_small_sizes<double>(world, ranks);
  check_small_sizes<std::int32_t>(world, ranks);
  check_small_sizes<std::uint8_t>(world, ranks);
  check_small_sizes<std::uint64_t>(world, ranks);
}

}  // namespace test_support::communicator_suite
