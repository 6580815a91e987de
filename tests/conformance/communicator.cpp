// One suite for every Communicator: what each collective must leave in the buffers, for the element types it takes.
// The expected values are computed here, from the ranks' inputs alone.
#include <doctest/doctest.h>

#include <array>
#include <chrono>
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

#include "slamb/communicator/counting_communicator.hpp"
#include "slamb/communicator/run_ranks.hpp"
#include "slamb/communicator/self_communicator.hpp"
#include "support/odd_communicators.hpp"

namespace {

using slamb::host_stream;

constexpr std::array sizes{0U, 1U, 2U, 15U, 17U, 1000U};
constexpr std::size_t large = 1'000'003;
constexpr std::array ranks_of_threads{1, 2, 3, 4, 7, 8};

// ------------------------------------------------------------------------------------------------------- inputs

std::uint64_t mixed(std::uint64_t x) {
  x = (x ^ (x >> 32)) * 0x9E3779B97F4A7C15U;
  return x ^ (x >> 29);
}

/// What `rank` puts at `index`: any bits for integers; signed numbers over nine binades for floats, none of them zero.
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

/// A span of a rank with a margin on both sides that no collective may touch; its start is not aligned to a line.
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

// -------------------------------------------------------------------------------------------------- worlds, runs

struct self_world {
  using communicator_type = slamb::self_communicator;
  template <class F>
  void run(int /*ranks*/, F body) const {
    body(slamb::self_communicator{});
  }
};

struct thread_world {
  using communicator_type = slamb::thread_communicator;
  template <class F>
  void run(int ranks, F body) const {
    slamb::run_ranks(ranks, body, {.timeout = std::chrono::seconds(60)});
  }
};

struct counting_world {
  using communicator_type = slamb::counting_communicator<slamb::thread_communicator>;
  template <class F>
  void run(int ranks, F body) const {
    thread_world{}.run(ranks, [&](slamb::thread_communicator base) { body(communicator_type(std::move(base))); });
  }
};

struct postal_world {
  using communicator_type = test_support::postal_communicator;
  template <class F>
  void run(int ranks, F body) const {
    test_support::run_postal_ranks(ranks, body);
  }
};

struct faulty_world {
  using communicator_type = slamb::thread_communicator;
  slamb::fault planned;
  template <class F>
  void run(int ranks, F body) const {
    slamb::thread_group group(ranks);
    group.inject(planned);
    slamb::run_ranks(group, body);
  }
};

template <class T>
using outcome = std::vector<buffer<T>>;  // [rank]

template <class T, class World>
outcome<T> all_reduce(const World& world, int ranks, std::size_t n) {
  outcome<T> result(static_cast<std::size_t>(ranks), buffer<T>(0));
  world.run(ranks, [&](auto communicator) {
    buffer<T> values(n, communicator.rank());
    communicator.all_reduce_sum(values.span(), host_stream{});
    result[static_cast<std::size_t>(communicator.rank())] = std::move(values);
  });
  return result;
}

template <class T, class World>
outcome<T> broadcast(const World& world, int ranks, std::size_t n, int root) {
  outcome<T> result(static_cast<std::size_t>(ranks), buffer<T>(0));
  world.run(ranks, [&](auto communicator) {
    buffer<T> values(n, communicator.rank());
    communicator.broadcast(values.span(), root, host_stream{});
    result[static_cast<std::size_t>(communicator.rank())] = std::move(values);
  });
  return result;
}

template <class T, class World>
outcome<T> all_gather(const World& world, int ranks, std::size_t n) {
  outcome<T> result(static_cast<std::size_t>(ranks), buffer<T>(0));
  world.run(ranks, [&](auto communicator) {
    const buffer<T> mine(n, communicator.rank());
    buffer<T> all(n * static_cast<std::size_t>(ranks));
    communicator.all_gather(mine.values(), all.span(), host_stream{});
    result[static_cast<std::size_t>(communicator.rank())] = std::move(all);
  });
  return result;
}

template <class T, class World>
outcome<T> all_to_all(const World& world, int ranks, std::size_t n) {
  outcome<T> result(static_cast<std::size_t>(ranks), buffer<T>(0));
  world.run(ranks, [&](auto communicator) {
    const buffer<T> send(n * static_cast<std::size_t>(ranks), communicator.rank());
    buffer<T> receive(send.values().size());
    communicator.all_to_all(send.values(), receive.span(), host_stream{});
    result[static_cast<std::size_t>(communicator.rank())] = std::move(receive);
  });
  return result;
}

// ------------------------------------------------------------- checks: what is wrong with an outcome, "" if nothing

std::string at(std::size_t rank, std::size_t index) {
  return "rank " + std::to_string(rank) + ", element " + std::to_string(index);
}

template <class T>
bool same_bits(T a, T b) {
  return std::memcmp(&a, &b, sizeof(T)) == 0;
}

/// Ranks must hold the same bits, and nothing may be written outside the buffers.
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

/// `expected(rank, index)`: the exact value.
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
  if constexpr (slamb::has_all_reduce_sum<communicator_type, T>) {
    const auto result = all_reduce<T>(world, ranks, n);
    CHECK(disagreement(result) == "");
    CHECK(wrong_sums(result, n) == "");
    CHECK(overrun(result) == "");
    ++collectives;
  }
  if constexpr (slamb::has_broadcast<communicator_type, T>) {
    for (const int root : {0, ranks - 1}) {
      const auto result = broadcast<T>(world, ranks, n, root);
      CHECK(wrong_broadcast(result, n, root) == "");
      CHECK(overrun(result) == "");
    }
    ++collectives;
  }
  if constexpr (slamb::has_all_gather<communicator_type, T>) {
    const auto result = all_gather<T>(world, ranks, n);
    CHECK(wrong_gather(result, n) == "");
    CHECK(overrun(result) == "");
    ++collectives;
  }
  if constexpr (slamb::has_all_to_all<communicator_type, T>) {
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

}  // namespace

TEST_CASE("self_communicator: conforms") {
  check_all_types(self_world{}, 1);
  check_size<float>(self_world{}, 1, large);
}

TEST_CASE("thread_communicator: conforms for all element types and numbers of ranks") {
  for (const int ranks : ranks_of_threads) check_all_types(thread_world{}, ranks);
}

TEST_CASE("thread_communicator: conforms for large payloads") {
  check_size<float>(thread_world{}, 1, large);
  check_size<float>(thread_world{}, 3, large);
  check_size<std::uint8_t>(thread_world{}, 8, large);
  check_size<std::uint64_t>(thread_world{}, 2, large);
  for (const int ranks : ranks_of_threads) {
    const auto result = all_reduce<float>(thread_world{}, ranks, large);
    CHECK(disagreement(result) == "");
    CHECK(wrong_sums(result, large) == "");
  }
}

TEST_CASE("counting_communicator: conforms as its base does") {
  for (const int ranks : ranks_of_threads) check_all_types(counting_world{}, ranks);
  check_size<float>(counting_world{}, 2, large);
}

TEST_CASE("postal_communicator: conforms in what it offers") {
  static_assert(!slamb::has_all_reduce_sum<test_support::postal_communicator, double>);
  static_assert(!slamb::has_all_gather<test_support::postal_communicator, float>);
  for (const int ranks : ranks_of_threads) check_small_sizes<float>(postal_world{}, ranks);
  check_size<float>(postal_world{}, 3, large);
}

TEST_CASE("communicator suite: its checks see a value that all ranks got wrong") {
  const faulty_world world{{.rank = 1, .round = 0, .kind = slamb::fault_kind::corrupts}};
  for (const std::size_t n : {1U, 1000U}) {
    const auto sums = all_reduce<float>(world, 3, n);
    CHECK(disagreement(sums) == "");
    CHECK(wrong_sums(sums, n) == "rank 0, element 0: wrong sum " + std::to_string(sums[0].values()[0]));
    CHECK(std::isnan(sums[2].values()[0]));
    CHECK(wrong_broadcast(broadcast<double>(world, 3, n, 1), n, 1) == "rank 0, element 0: wrong value");
    CHECK(wrong_gather(all_gather<std::int32_t>(world, 3, n), n) == at(0, n) + ": wrong value");
    CHECK(wrong_exchange(all_to_all<std::uint8_t>(world, 3, n), n) == at(0, n) + ": wrong value");
  }
}

TEST_CASE("communicator suite: its checks see ranks that disagree") {
  const faulty_world world{{.rank = 2, .round = 0, .kind = slamb::fault_kind::corrupts_result}};
  for (const std::size_t n : {1U, 1000U}) {
    CHECK(disagreement(all_reduce<float>(world, 4, n)) == "rank 2, element 0: other bits than rank 0");
    CHECK(wrong_sums(all_reduce<std::uint64_t>(world, 4, n), n) == "rank 2, element 0: wrong sum");
    CHECK(disagreement(broadcast<float>(world, 4, n, 0)) == "rank 2, element 0: other bits than rank 0");
    CHECK(disagreement(all_gather<double>(world, 4, n)) == "rank 2, element 0: other bits than rank 0");
    CHECK(wrong_exchange(all_to_all<float>(world, 4, n), n) == "rank 2, element 0: wrong value");
  }
}

TEST_CASE("communicator suite: its checks see writes outside a buffer") {
  outcome<float> result(2, buffer<float>(5));
  CHECK(overrun(result) == "");
  float* const past = result[1].span().data() + 5;
  *past = 1.0F;
  CHECK(overrun(result) == "rank 1, element 0: margin written");
}
