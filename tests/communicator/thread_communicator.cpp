// thread_communicator, thread_group and run_ranks: the order of sums, failures on every rank, handles.
#include "slamb/communicator/run_ranks.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <latch>
#include <limits>
#include <numeric>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace communicator_thread_communicator_tests {
namespace {

using namespace std::chrono_literals;
using slamb::communicator_error;
using slamb::host_stream;
using slamb::thread_communicator;
using slamb::thread_group;
using fault_kind = slamb::thread_group::fault::kind_type;

static_assert(std::movable<thread_communicator> && !std::copyable<thread_communicator>);
static_assert(slamb::capability::has_all_reduce_sum<thread_communicator, std::int8_t>);
static_assert(!slamb::capability::has_all_reduce_sum<thread_communicator, bool>);
static_assert(!slamb::capability::has_broadcast<thread_communicator, std::string>);

constexpr auto at_once = 20s;  // below the default timeout of 30 s, far above the delays of a busy machine
constexpr auto brief = 3s;     // a timeout that runs out; delays between ranks of a busy machine are shorter

template <class T = float>
void sum(thread_communicator& communicator, std::size_t count = 1) {
  std::vector<T> values(count, T{1});
  communicator.all_reduce_sum(std::span<T>(values), host_stream{});
}

void gather(thread_communicator& communicator, std::size_t count) {
  const std::vector<float> mine(count);
  std::vector<float> all(count * static_cast<std::size_t>(communicator.size()));
  communicator.all_gather(std::span<const float>(mine), std::span<float>(all), host_stream{});
}

void broadcast_from(thread_communicator& communicator, int root) {
  std::vector<float> values(3);
  communicator.broadcast(std::span<float>(values), root, host_stream{});
}

/// The exception of each rank's body: "communicator_error: …", "invalid_argument: …", "other", or "" if it returned.
struct report {
  std::vector<std::string> thrown;
  std::chrono::steady_clock::duration elapsed{};

  bool all_are(const std::string& text) const {
    return std::all_of(thrown.begin(), thrown.end(), [&](const auto& what) { return what == text; });
  }
};

report run_and_catch(thread_group& group, const std::function<void(thread_communicator&)>& body) {
  report result{std::vector<std::string>(static_cast<std::size_t>(group.size())), {}};
  const auto start = std::chrono::steady_clock::now();
  slamb::run_ranks(group, [&](thread_communicator communicator) {
    std::string& thrown = result.thrown[static_cast<std::size_t>(communicator.rank())];
    try {
      thread_communicator own(std::move(communicator));
      body(own);
    } catch (const communicator_error& e) {
      thrown = std::string("communicator_error: ") + e.what();
    } catch (const std::invalid_argument& e) {
      thrown = std::string("invalid_argument: ") + e.what();
    } catch (...) {
      thrown = "other";
    }
  });
  result.elapsed = std::chrono::steady_clock::now() - start;
  return result;
}

/// Counts down when its scope ends, also by an exception.
struct counted_down_at_the_end {
  std::latch& latch;

  explicit counted_down_at_the_end(std::latch& counted) : latch(counted) {}
  counted_down_at_the_end(const counted_down_at_the_end&) = delete;
  counted_down_at_the_end& operator=(const counted_down_at_the_end&) = delete;
  ~counted_down_at_the_end() { latch.count_down(); }
};

const std::string failed = "communicator_error: slamb: the thread_group failed because ";

/// Numbers whose sum depends on the order of additions.
template <class T>
T awkward(int rank, std::size_t i) {
  const int exponent = static_cast<int>((static_cast<std::size_t>(rank) * 7 + i * 5) % 41) - 20;
  const T fraction = T{1} + static_cast<T>((i * 37 + static_cast<std::size_t>(rank) * 11) % 1021) / T{1021};
  return std::ldexp((static_cast<std::size_t>(rank) + i) % 3 == 0 ? -fraction : fraction, exponent);
}

// Sums of floats are made in double precision and rounded once.
template <class T>
void check_rank_order(int ranks, std::size_t n) {
  CAPTURE(ranks);
  CAPTURE(n);
  std::vector<T> expected(n);
  std::vector<T> reversed(n);
  for (std::size_t i = 0; i < n; ++i) {
    double forwards = 0.0, backwards = 0.0;
    for (int rank = 0; rank < ranks; ++rank) {
      forwards += static_cast<double>(awkward<T>(rank, i));
      backwards += static_cast<double>(awkward<T>(ranks - 1 - rank, i));
    }
    expected[i] = static_cast<T>(forwards);
    reversed[i] = static_cast<T>(backwards);
  }
  std::vector<int> right(static_cast<std::size_t>(ranks));
  slamb::run_ranks(ranks, [&](thread_communicator communicator) {
    std::vector<T> values(n);
    for (std::size_t i = 0; i < n; ++i) values[i] = awkward<T>(communicator.rank(), i);
    communicator.all_reduce_sum(std::span<T>(values), host_stream{});
    right[static_cast<std::size_t>(communicator.rank())] =
        n == 0 || std::memcmp(values.data(), expected.data(), n * sizeof(T)) == 0;
  });
  CHECK(std::accumulate(right.begin(), right.end(), 0) == ranks);
  if (std::is_same_v<T, double> && ranks >= 3 && n >= 1000)
    CHECK(reversed != expected);  // otherwise the order is not visible
}

}  // namespace

TEST_CASE("thread_communicator: sums are made in rank order for all chunk sizes") {
  for (const int ranks : {1, 2, 3, 4, 7, 8}) {
    for (const std::size_t n : {0U, 1U, 2U, 15U, 17U, 1000U, 4096U, 4097U, 100'003U}) {
      check_rank_order<float>(ranks, n);
      check_rank_order<double>(ranks, n);
    }
  }
}

TEST_CASE("thread_communicator: the sum of crafted values shows the order of summation") {
  // In double precision ((1e16 + 1) − 1e16) + 1 = 1, because 1e16 + 1 = 1e16; other orders give 0 or 2.
  const std::vector<double> terms{1e16, 1.0, -1e16, 1.0};
  std::vector<double> sums(4);
  slamb::run_ranks(4, [&](thread_communicator communicator) {
    const auto me = static_cast<std::size_t>(communicator.rank());
    double value = terms[me];
    communicator.all_reduce_sum(std::span<double>(&value, 1), host_stream{});
    sums[me] = value;
  });
  CHECK(sums == std::vector<double>(4, 1.0));
}

TEST_CASE("thread_communicator: sums of floats are made in double precision") {
  const std::vector<float> terms{1e8F, 1.0F, -1e8F, 1.0F};  // 1 in single precision
  std::vector<float> sums(4);
  slamb::run_ranks(4, [&](thread_communicator communicator) {
    const auto me = static_cast<std::size_t>(communicator.rank());
    sums[me] = terms[me];
    communicator.all_reduce_sum(std::span<float>(&sums[me], 1), host_stream{});
  });
  CHECK(sums == std::vector<float>(4, 2.0F));
}

TEST_CASE("thread_communicator: integers wrap around, and values that are not finite propagate") {
  std::vector<std::int32_t> integers(3);
  std::vector<std::int16_t> shorts(3);
  std::vector<float> floats(3);
  slamb::run_ranks(3, [&](thread_communicator communicator) {
    const auto me = static_cast<std::size_t>(communicator.rank());
    integers[me] = std::numeric_limits<std::int32_t>::max();
    shorts[me] = std::numeric_limits<std::int16_t>::max();
    floats[me] = me == 1 ? std::numeric_limits<float>::infinity() : 1.0F;
    communicator.all_reduce_sum(std::span<std::int32_t>(&integers[me], 1), host_stream{});
    communicator.all_reduce_sum(std::span<std::int16_t>(&shorts[me], 1), host_stream{});
    communicator.all_reduce_sum(std::span<float>(&floats[me], 1), host_stream{});
  });
  CHECK(integers == std::vector<std::int32_t>(3, std::numeric_limits<std::int32_t>::max() - 2));
  CHECK(shorts == std::vector<std::int16_t>(3, std::numeric_limits<std::int16_t>::max() - 2));
  CHECK(floats == std::vector<float>(3, std::numeric_limits<float>::infinity()));
}

TEST_CASE("thread_communicator: gathers in place") {
  std::vector<std::vector<int>> gathered(3, std::vector<int>(6));
  slamb::run_ranks(3, [&](thread_communicator communicator) {
    const auto me = static_cast<std::size_t>(communicator.rank());
    const std::span<int> all(gathered[me]);
    const std::span<int> mine = all.subspan(2 * me, 2);
    mine[0] = communicator.rank() * 10;
    mine[1] = communicator.rank() * 10 + 1;
    communicator.all_gather(std::span<const int>(mine), all, host_stream{});
  });
  for (const auto& all : gathered) CHECK(all == std::vector<int>{0, 1, 10, 11, 20, 21});
}

TEST_CASE("thread_communicator: moves elements that are not numbers") {
  struct pair {
    float value;
    std::int64_t index;
  };
  std::vector<int> right(2);
  slamb::run_ranks(2, [&](thread_communicator communicator) {
    const pair mine{static_cast<float>(communicator.rank()), 5};
    std::vector<pair> all(2);
    communicator.all_gather(std::span<const pair>(&mine, 1), std::span<pair>(all), host_stream{});
    right[static_cast<std::size_t>(communicator.rank())] = all[0].value == 0.0F && all[1].value == 1.0F;
  });
  CHECK(right == std::vector<int>{1, 1});
}

TEST_CASE("thread_communicator: works for 64 ranks") {
  std::vector<int> sums(64);
  slamb::run_ranks(64, [&](thread_communicator communicator) {
    int value = communicator.rank();
    communicator.all_reduce_sum(std::span<int>(&value, 1), host_stream{});
    sums[static_cast<std::size_t>(communicator.rank())] = value;
  });
  CHECK(sums == std::vector<int>(64, 63 * 64 / 2));
}

TEST_CASE("thread_communicator: many rounds of all kinds") {
  constexpr int ranks = 4;
  constexpr std::size_t rounds = 500;
  std::vector<std::size_t> wrong(ranks);
  slamb::run_ranks(ranks, [&](thread_communicator communicator) {
    const int rank = communicator.rank();
    std::size_t& errors = wrong[static_cast<std::size_t>(rank)];
    for (std::size_t round = 0; round < rounds; ++round) {
      const std::size_t n = round * 13 % 97;
      const int value = static_cast<int>(round);
      const std::vector<int> mine(n, value + rank);
      std::vector<int> values(mine);
      std::vector<int> all(n * ranks);
      const std::vector<int> send(n * ranks, value + rank);
      std::vector<int> receive(n * ranks);
      communicator.all_reduce_sum(std::span<int>(values), host_stream{});
      communicator.all_gather(std::span<const int>(mine), std::span<int>(all), host_stream{});
      communicator.all_to_all(std::span<const int>(send), std::span<int>(receive), host_stream{});
      errors += values != std::vector<int>(n, 4 * value + 6);
      for (std::size_t i = 0; i < n * ranks; ++i) errors += all[i] != value + static_cast<int>(i / n);
      errors += all != receive;
      communicator.broadcast(std::span<int>(values), static_cast<int>(round % ranks), host_stream{});
      errors += values != std::vector<int>(n, 4 * value + 6);
    }
  });
  CHECK(wrong == std::vector<std::size_t>(ranks, 0));
}

// ------------------------------------------------------------------------------------- ranks that call different
// things

TEST_CASE("thread_communicator: different collectives are an error on every rank, which names the ranks") {
  thread_group group(3);
  const report result = run_and_catch(group, [](thread_communicator& communicator) {
    communicator.rank() == 2 ? gather(communicator, 7) : sum(communicator, 100);
  });
  CHECK(result.all_are(failed + "ranks called different collectives: ranks 0, 1 called all_reduce_sum of 100 float32; "
                                "rank 2 called all_gather of 7 float32"));
  CHECK(result.elapsed < at_once);
}

TEST_CASE("thread_communicator: different counts, element types and roots are errors on every rank") {
  const auto run = [](const std::function<void(thread_communicator&)>& body) {
    thread_group group(2);
    return run_and_catch(group, body);
  };
  CHECK(run([](auto& c) { sum(c, c.rank() == 0 ? 3 : 4); })
            .all_are(failed + "ranks called different collectives: rank 0 called all_reduce_sum of 3 float32; rank 1 "
                              "called all_reduce_sum of 4 float32"));
  CHECK(run([](auto& c) { c.rank() == 0 ? sum<float>(c) : sum<double>(c); })
            .all_are(failed + "ranks called different collectives: rank 0 called all_reduce_sum of 1 float32; rank 1 "
                              "called all_reduce_sum of 1 float64"));
  CHECK(run([](auto& c) { c.rank() == 0 ? sum<std::int32_t>(c) : sum<std::uint32_t>(c); })
            .all_are(failed + "ranks called different collectives: rank 0 called all_reduce_sum of 1 int32; rank 1 "
                              "called all_reduce_sum of 1 uint32"));
  CHECK(run([](auto& c) { broadcast_from(c, c.rank()); })
            .all_are(failed + "ranks called different collectives: rank 0 called broadcast of 3 float32 from root 0; "
                              "rank 1 called broadcast of 3 float32 from root 1"));
}

TEST_CASE("thread_communicator: a wrong size throws invalid_argument on that rank, and its peers fail at once") {
  thread_group group(3);
  const report result = run_and_catch(group, [](thread_communicator& communicator) {
    const std::vector<float> mine(4);
    std::vector<float> all(communicator.rank() == 1 ? 11 : 12);
    communicator.all_gather(std::span<const float>(mine), std::span<float>(all), host_stream{});
  });
  const std::string what = "all_gather: all.size() = 11, but it must be size() * mine.size() = 3 * 4";
  CHECK(result.thrown[0] == failed + "rank 1 called " + what);
  CHECK(result.thrown[1] == "invalid_argument: slamb: " + what);
  CHECK(result.thrown[2] == failed + "rank 1 called " + what);
  CHECK(result.elapsed < at_once);
}

TEST_CASE("thread_communicator: all_to_all rejects sizes that are unequal or not a multiple of the ranks") {
  for (const auto& [sent, received] : {std::pair{5U, 5U}, std::pair{4U, 6U}}) {
    thread_group group(2);
    const report result = run_and_catch(group, [sent = sent, received = received](thread_communicator& communicator) {
      const std::vector<float> send(sent);
      std::vector<float> receive(received);
      communicator.all_to_all(std::span<const float>(send), std::span<float>(receive), host_stream{});
    });
    const std::string what = "invalid_argument: slamb: all_to_all: send.size() = " + std::to_string(sent) +
                             " and receive.size() = " + std::to_string(received) +
                             ", but they must be equal and a multiple of size() = 2";
    CHECK(result.all_are(what));
  }
}

TEST_CASE("thread_communicator: a root that is not a rank is rejected") {
  for (const int root : {-1, 2}) {
    thread_group group(2);
    const report result = run_and_catch(group, [root](thread_communicator& c) { broadcast_from(c, root); });
    CHECK(result.all_are("invalid_argument: slamb: broadcast: root = " + std::to_string(root) +
                         ", but it must be in [0, 2)"));
  }
}

// -------------------------------------------------------------------------------------- ranks that do not come, or
// leave

TEST_CASE("thread_communicator: every rank names a rank that is late") {
  thread_group group(3, {.timeout = brief});
  std::latch started(3);
  std::latch gave_up(2);
  const report result = run_and_catch(group, [&](thread_communicator& communicator) {
    started.arrive_and_wait();
    if (communicator.rank() == 1) {
      gave_up.wait();
      return sum(communicator, 5);
    }
    const counted_down_at_the_end counts{gave_up};
    sum(communicator, 5);
  });
  CHECK(result.all_are(failed +
                       "after 3000 ms rank 1 had not arrived in the collective of the others: ranks 0, 2 called "
                       "all_reduce_sum of 5 float32"));
  CHECK(result.elapsed >= brief);
  CHECK(result.elapsed < at_once);
}

TEST_CASE("thread_communicator: a rank whose handle was never taken times out") {
  thread_group group(2, {.timeout = 200ms});
  thread_communicator alone = group.communicator(0);
  CHECK_THROWS_WITH_AS(sum(alone),
                       "slamb: the thread_group failed because after 200 ms rank 1 had not arrived in the collective "
                       "of the others: rank 0 called all_reduce_sum of 1 float32",
                       communicator_error);
}

TEST_CASE("thread_communicator: a rank that throws leaves and its waiting peers fail at once") {
  thread_group group(3);
  const report result = run_and_catch(group, [](thread_communicator& communicator) {
    sum(communicator);
    if (communicator.rank() == 2) {
      std::this_thread::sleep_for(50ms);  // by now the others wait
      throw std::runtime_error("no more data");
    }
    gather(communicator, 2);
  });
  CHECK(result.thrown[2] == "other");
  for (const std::size_t peer : {0U, 1U}) {
    CHECK(result.thrown[peer].find(failed + "rank 2 left before the collective of the others: rank") == 0);
    CHECK(result.thrown[peer].find("all_gather of 2 float32") != std::string::npos);
  }
  CHECK(result.elapsed < at_once);
}

TEST_CASE("thread_communicator: a peer that comes after a rank has left fails at once") {
  thread_group group(2);
  std::latch gone(1);
  const report result = run_and_catch(group, [&](thread_communicator& communicator) {
    if (communicator.rank() == 0) {
      { const thread_communicator own(std::move(communicator)); }
      gone.count_down();
      return;
    }
    gone.wait();
    sum(communicator);
  });
  CHECK(result.thrown[0] == "");
  CHECK(result.thrown[1] ==
        failed + "rank 0 left before the collective of the others: rank 1 called all_reduce_sum of 1 float32");
  CHECK(result.elapsed < at_once);
}

TEST_CASE("thread_communicator: ranks that leave at any moment never hang their peers nor touch freed buffers") {
  for (std::size_t trial = 0; trial < 60; ++trial) {
    const int leaver = static_cast<int>(trial % 4);
    const std::size_t last_round = trial / 4;
    thread_group group(4);
    const report result = run_and_catch(group, [&](thread_communicator& communicator) {
      for (std::size_t round = 0; round < 20; ++round) {
        if (communicator.rank() == leaver && round == last_round) throw std::runtime_error("enough");
        sum(communicator, 300);
      }
    });
    for (int rank = 0; rank < 4; ++rank) {
      const std::string& thrown = result.thrown[static_cast<std::size_t>(rank)];
      CHECK(
          (rank == leaver ? thrown == "other" : thrown.find(failed + "rank " + std::to_string(leaver) + " left") == 0));
    }
    REQUIRE(result.elapsed < at_once);
  }
}

TEST_CASE("thread_communicator: abort at any moment ends on all ranks at the same round") {
  for (int trial = 0; trial < 40; ++trial) {
    thread_group group(3);
    std::vector<int> rounds(3);
    std::latch started(3);
    std::jthread aborter([&] {
      started.wait();
      std::this_thread::sleep_for(std::chrono::microseconds(53 * trial));
      group.abort("the user asked");
    });
    const report result = run_and_catch(group, [&](thread_communicator& communicator) {
      started.count_down();
      for (;; ++rounds[static_cast<std::size_t>(communicator.rank())]) sum(communicator, 2000);
    });
    CHECK(result.all_are(failed + "it was aborted: the user asked"));
    CHECK(rounds == std::vector<int>(3, rounds[0]));
  }
}

TEST_CASE("thread_communicator: an abort fails the waiting ranks and the rank's own later calls") {
  thread_group group(3);
  const report result = run_and_catch(group, [&](thread_communicator& communicator) {
    if (communicator.rank() == 1) {
      communicator.abort("its disk is full");
      communicator.abort("twice");
    }
    sum(communicator);
  });
  CHECK(result.all_are(failed + "rank 1 was aborted: its disk is full"));

  thread_group other(1);
  thread_communicator moved = other.communicator(0);
  const thread_communicator here = std::move(moved);
  CHECK_NOTHROW(moved.abort("it is not there"));  // NOLINT(bugprone-use-after-move)
}

TEST_CASE("thread_communicator: a failed group stays failed with the first reason") {
  thread_group group(2);
  group.abort("first");
  group.abort("second");
  CHECK_THROWS_WITH_AS(group.communicator(0), "slamb: the thread_group failed because it was aborted: first",
                       communicator_error);

  thread_group other(2, {.timeout = 200ms});
  thread_communicator communicator = other.communicator(0);
  for (int call = 0; call < 3; ++call) {
    CHECK_THROWS_WITH_AS(call == 1 ? gather(communicator, 3) : sum(communicator),
                         "slamb: the thread_group failed because after 200 ms rank 1 had not arrived in the collective "
                         "of the others: rank 0 called all_reduce_sum of 1 float32",
                         communicator_error);
  }
}

// ---------------------------------------------------------------------------------------------------- injected faults

TEST_CASE("fault_kind: throws fails every rank at once in the planned round") {
  thread_group group(3);
  group.inject({.rank = 1, .round = 2, .kind = fault_kind::throws});
  std::vector<int> done(3);
  const report result = run_and_catch(group, [&](thread_communicator& communicator) {
    for (int round = 0; round < 5; ++round) {
      sum(communicator, 9);
      ++done[static_cast<std::size_t>(communicator.rank())];
    }
  });
  CHECK(done == std::vector<int>(3, 2));
  CHECK(result.all_are(failed + "rank 1 threw, by an injected fault, in all_reduce_sum of 9 float32"));
  CHECK(result.elapsed < at_once);
}

TEST_CASE("fault_kind: stalls makes every rank time out, also the stalled one") {
  thread_group group(3, {.timeout = brief});
  group.inject({.rank = 0, .round = 1, .kind = fault_kind::stalls});
  std::latch started(3);
  const report result = run_and_catch(group, [&started](thread_communicator& communicator) {
    started.arrive_and_wait();
    sum(communicator);
    broadcast_from(communicator, 2);
  });
  CHECK(result.all_are(failed +
                       "after 3000 ms rank 0 had not arrived in the collective of the others: ranks 1, 2 called "
                       "broadcast of 3 float32 from root 2"));
  CHECK(result.elapsed >= brief);
  CHECK(result.elapsed < at_once);
}

TEST_CASE("fault_kind: a stalled rank ends even if no rank waits for it") {
  thread_group group(1, {.timeout = 50ms});
  group.inject({.rank = 0, .round = 0, .kind = fault_kind::stalls});
  const report result = run_and_catch(group, [](thread_communicator& communicator) { sum(communicator); });
  CHECK(result.thrown[0] == failed + "rank 0 stalled in all_reduce_sum of 1 float32, and no peer waited for it");
}

TEST_CASE("fault_kind: corrupts makes the sum a NaN on every rank and corrupts_result on one") {
  for (const auto& [kind, ranks_hit] :
       {std::pair{fault_kind::corrupts, 3}, std::pair{fault_kind::corrupts_result, 1}}) {
    thread_group group(3);
    group.inject({.rank = 1, .round = 0, .kind = kind});
    std::vector<int> hit(3);
    std::vector<int> rest_right(3);
    slamb::run_ranks(group, [&](thread_communicator communicator) {
      const auto me = static_cast<std::size_t>(communicator.rank());
      std::vector<float> values(20, 1.0F);
      communicator.all_reduce_sum(std::span<float>(values), host_stream{});
      hit[me] = std::isnan(values[0]);
      rest_right[me] = std::all_of(values.begin() + 1, values.end(), [](float x) { return x == 3.0F; });
    });
    CHECK(std::accumulate(hit.begin(), hit.end(), 0) == ranks_hit);
    CHECK(hit[1] == 1);
    CHECK(rest_right == std::vector<int>(3, 1));
  }
}

TEST_CASE("fault_kind: corrupts does not change a separate send buffer") {
  thread_group group(2);
  group.inject({.rank = 0, .round = 0, .kind = fault_kind::corrupts});
  std::vector<std::uint8_t> seen(2);
  std::vector<std::uint8_t> sent(2);
  slamb::run_ranks(group, [&](thread_communicator communicator) {
    const auto me = static_cast<std::size_t>(communicator.rank());
    const std::vector<std::uint8_t> mine(3, 5);
    std::vector<std::uint8_t> all(6);
    communicator.all_gather(std::span<const std::uint8_t>(mine), std::span<std::uint8_t>(all), host_stream{});
    seen[me] = all[0];
    sent[me] = mine[0];
  });
  CHECK(seen == std::vector<std::uint8_t>{255, 255});
  CHECK(sent == std::vector<std::uint8_t>{5, 5});
}

TEST_CASE("fault_kind: nothing is corrupted in an empty payload, nor in a broadcast by a rank that only receives") {
  thread_group group(2);
  group.inject({.rank = 1, .round = 0, .kind = fault_kind::corrupts});
  group.inject({.rank = 1, .round = 1, .kind = fault_kind::corrupts});
  group.inject({.rank = 1, .round = 2, .kind = fault_kind::corrupts_result});
  std::vector<float> received(2);
  slamb::run_ranks(group, [&](thread_communicator communicator) {
    std::vector<float> values(1, 4.0F);
    communicator.broadcast(std::span<float>(values), 0, host_stream{});
    communicator.all_reduce_sum(std::span<float>{}, host_stream{});
    communicator.all_reduce_sum(std::span<float>{}, host_stream{});
    received[static_cast<std::size_t>(communicator.rank())] = values[0];
  });
  CHECK(received == std::vector<float>{4.0F, 4.0F});
}

TEST_CASE("fault_kind: a rank outside the group is rejected") {
  thread_group group(2);
  CHECK_THROWS_WITH_AS(group.inject({.rank = 2}), "slamb: fault::rank = 2, but it must be in [0, 2)",
                       std::invalid_argument);
}

// ------------------------------------------------------------------------------------------------------------ handles

TEST_CASE("thread_group: sizes and timeouts out of range are rejected") {
  CHECK_THROWS_WITH_AS(thread_group(0), "slamb: thread_group size = 0, but it must be in [1, 64]",
                       std::invalid_argument);
  CHECK_THROWS_AS(thread_group(65), std::invalid_argument);
  CHECK_THROWS_WITH_AS(thread_group(2, {.timeout = 0ms}), "slamb: thread_options::timeout = 0, but it must be > 0 ms",
                       std::invalid_argument);
  CHECK_NOTHROW(thread_group(2, {.timeout = std::chrono::milliseconds::max()}));
}

TEST_CASE("thread_group: each rank has at most one handle at a time") {
  thread_group group(2);
  CHECK_THROWS_WITH_AS(group.communicator(2), "slamb: rank = 2, but it must be in [0, 2)", std::invalid_argument);
  CHECK_THROWS_AS(group.communicator(-1), std::invalid_argument);
  std::optional<thread_communicator> first = group.communicator(1);
  CHECK(first->rank() == 1);
  CHECK(first->size() == 2);
  CHECK_THROWS_WITH_AS(group.communicator(1), "slamb: rank 1 of the thread_group already has a communicator",
                       std::invalid_argument);
  first.reset();
  CHECK_NOTHROW(group.communicator(1));
}

TEST_CASE("thread_group: serves one run after another") {
  thread_group group(3);
  for (int run = 0; run < 3; ++run) {
    CHECK(run_and_catch(group, [](thread_communicator& communicator) { sum(communicator); }).all_are(""));
  }
}

TEST_CASE("thread_group: may be destroyed before its communicators") {
  std::optional<thread_group> group(std::in_place, 1);
  thread_communicator communicator = group->communicator(0);
  group.reset();
  CHECK_NOTHROW(sum(communicator));
}

TEST_CASE("thread_communicator: a handle that was moved from does not leave the group, and rejects calls") {
  thread_group group(1);
  thread_communicator first = group.communicator(0);
  {
    thread_communicator gone(std::move(first));
    first = std::move(gone);
  }
  CHECK_NOTHROW(sum(first));
  thread_communicator second(std::move(first));
  CHECK_NOTHROW(sum(second));
  CHECK_THROWS_AS(sum(first), communicator_error);
}

TEST_CASE("thread_communicator: a handle that is assigned to leaves its old rank") {
  thread_group left(2);
  thread_group joined(1);
  thread_communicator communicator = left.communicator(0);
  communicator = joined.communicator(0);
  CHECK(communicator.size() == 1);
  CHECK_NOTHROW(sum(communicator));
  thread_communicator peer = left.communicator(1);
  CHECK_THROWS_WITH_AS(sum(peer),
                       "slamb: the thread_group failed because rank 0 left before the collective of the others: rank 1 "
                       "called all_reduce_sum of 1 float32",
                       communicator_error);
}

// ---------------------------------------------------------------------------------------------------------- run_ranks

TEST_CASE("run_ranks: rethrows the root cause, not the peers' errors") {
  for (int trial = 0; trial < 20; ++trial) {
    const auto run = [&] {
      slamb::run_ranks(4, [&](thread_communicator communicator) {
        sum(communicator);
        if (communicator.rank() == trial % 4) throw std::logic_error("the cause");
        sum(communicator);
      });
    };
    CHECK_THROWS_WITH_AS(run(), "the cause", std::logic_error);
  }
}

TEST_CASE("run_ranks: a wrong argument of one rank is the root cause") {
  const auto run = [] {
    slamb::run_ranks(
        3, [](thread_communicator communicator) { broadcast_from(communicator, communicator.rank() == 1 ? 3 : 0); });
  };
  CHECK_THROWS_WITH_AS(run(), "slamb: broadcast: root = 3, but it must be in [0, 3)", std::invalid_argument);
}

TEST_CASE("run_ranks: without collectives, rethrows the first exception in time") {
  const auto run = [] {
    std::latch caught(1);
    slamb::run_ranks(3, [&caught](thread_communicator communicator) {
      const std::runtime_error error("rank " + std::to_string(communicator.rank()));
      if (communicator.rank() == 1) {
        thread_local std::optional<counted_down_at_the_end> counts;  // when the thread ends
        counts.emplace(caught);
        throw error;
      }
      caught.wait();
      throw error;
    });
  };
  CHECK_THROWS_WITH_AS(run(), "rank 1", std::runtime_error);
}

TEST_CASE("run_ranks: a rank that returns early is a communicator_error of its peers") {
  const auto run = [] {
    slamb::run_ranks(2, [](thread_communicator communicator) {
      if (communicator.rank() == 1) sum(communicator);
    });
  };
  CHECK_THROWS_WITH_AS(run(),
                       "slamb: the thread_group failed because rank 0 left before the collective of the others: rank 1 "
                       "called all_reduce_sum of 1 float32",
                       communicator_error);
}

TEST_CASE("run_ranks: runs every rank at once and joins them all") {
  std::atomic<int> entered = 0;
  std::atomic<int> done = 0;
  slamb::run_ranks(5, [&](thread_communicator communicator) {
    ++entered;
    sum(communicator);
    CHECK(entered == 5);
    std::this_thread::sleep_for(std::chrono::milliseconds(10 * communicator.rank()));
    ++done;
  });
  CHECK(done == 5);
}

}  // namespace communicator_thread_communicator_tests
