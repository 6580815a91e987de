// The thread pool: each index runs once, results are visible to the caller, and loops can be repeated any number of times.
#include "slamb/backend/host/detail/thread_pool.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <set>
#include <thread>
#include <vector>

namespace backend_host_thread_pool_tests {
namespace {

using slamb::detail::host::thread_pool;

/// The number of calls of a loop's body for each index in [0, size + 1). The last index is beyond every loop.
template <class Pool>
std::vector<int> calls(Pool& pool, std::size_t first, std::size_t last, std::size_t grain, std::size_t size) {
  std::vector<int> count(size + 1,
                         0);  // plain ints, so that the thread sanitizer sees two threads at one index as a race
  pool.for_each(first, last, grain, [&count](std::size_t i) { ++count[std::min(i, count.size() - 1)]; });
  return count;
}

std::vector<int> expected_calls(std::size_t first, std::size_t last, std::size_t size) {
  std::vector<int> count(size + 1, 0);
  for (std::size_t i = first; i < last; ++i) count[i] = 1;
  return count;
}

/// Skips the last index of every loop.
struct lossy_pool {
  template <class Body>
  void for_each(std::size_t first, std::size_t last, std::size_t /*grain*/, const Body& body) {
    for (std::size_t i = first; i + 1 < last; ++i) body(i);
  }
};

}  // namespace

TEST_CASE("thread_pool: the count of calls finds a missing index") {
  lossy_pool pool;
  CHECK(calls(pool, 0, 10, 1, 10) != expected_calls(0, 10, 10));
}

TEST_CASE("thread_pool: every index once, for any range, grain and number of threads") {
  for (unsigned threads = 0; threads <= 8; ++threads) {
    thread_pool pool(threads);
    for (const std::size_t grain : {1U, 2U, 4U, 7U, 1000U})
      for (const std::size_t first : {0U, 1U, 5U})
        for (const std::size_t size : {0U, 1U, 2U, 3U, 8U, 17U, 100U, 1001U})
          REQUIRE(calls(pool, first, first + size, grain, 1010) == expected_calls(first, first + size, 1010));
  }
}

TEST_CASE("thread_pool: thousands of loops in a row, each of which sees the writes of the previous one") {
  for (const unsigned threads : {1U, 2U, 3U, 8U}) {
    thread_pool pool(threads);
    std::vector<std::size_t> value(64, 0);
    constexpr std::size_t loops = 2000;
    for (std::size_t n = 0; n < loops; ++n) {
      // Each loop reads the half that the loop before wrote. The result is wrong if a loop begins before the last one ended.
      const std::size_t from = n % 2 == 0 ? 0 : 32;
      pool.for_each(0, 32, 1, [&](std::size_t i) { value[(32 - from) + i] = value[from + (i + 1) % 32] + 1; });
    }
    const auto last = static_cast<std::ptrdiff_t>(loops % 2 == 0 ? 0 : 32);
    CHECK(std::all_of(value.begin() + last, value.begin() + last + 32, [](std::size_t v) { return v == loops; }));
  }
}

TEST_CASE("thread_pool: the indices of one grain run on one thread, in order") {
  thread_pool pool(4);
  constexpr std::size_t size = 400;
  constexpr std::size_t grain = 5;
  std::vector<std::thread::id> who(size);
  std::atomic<bool> ordered{true};
  pool.for_each(0, size, grain, [&](std::size_t i) {
    who[i] = std::this_thread::get_id();
    if (i % grain != 0 && who[i - 1] != who[i]) ordered = false;
  });
  CHECK(ordered);
}

TEST_CASE("thread_pool: uses no more threads than requested, including the caller") {
  thread_pool pool(3);
  std::vector<std::thread::id> who(10000);
  pool.for_each(0, who.size(), 1, [&](std::size_t i) { who[i] = std::this_thread::get_id(); });
  CHECK(std::set<std::thread::id>(who.begin(), who.end()).size() <= 3);

  thread_pool alone(1);
  alone.for_each(0, who.size(), 1, [&](std::size_t i) { who[i] = std::this_thread::get_id(); });
  CHECK(std::set<std::thread::id>(who.begin(), who.end()) == std::set<std::thread::id>{std::this_thread::get_id()});
}

TEST_CASE("thread_pool: loops that need no second thread leave the pool usable") {
  thread_pool pool(4);
  for (int n = 0; n < 200; ++n) {
    REQUIRE(calls(pool, 0, 3, 4, 100) == expected_calls(0, 3, 100));
    REQUIRE(calls(pool, 0, 100, 4, 100) == expected_calls(0, 100, 100));
  }
}

TEST_CASE("thread_pool: pools are created and destroyed, used or not, also on several threads at a time") {
  std::atomic<int> wrong{0};
  {
    std::vector<std::jthread> callers;
    for (int caller = 0; caller < 4; ++caller)
      callers.emplace_back([&wrong] {
        for (unsigned n = 0; n < 20; ++n) {
          thread_pool unused(n % 5);
          thread_pool pool(1 + n % 4);
          if (calls(pool, 0, 200, 4, 200) != expected_calls(0, 200, 200)) ++wrong;
        }
      });
  }
  CHECK(wrong == 0);
}

}  // namespace backend_host_thread_pool_tests
