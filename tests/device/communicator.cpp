// cuda_thread_communicator compared bit for bit with thread_communicator, and failures of a rank.
#include <doctest/doctest.h>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <mutex>
#include <slamb/communicator/run_ranks.hpp>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "../support/generate.hpp"
#include "poisoned.hpp"
#include "ranks.hpp"

namespace {

using device_tests::downloaded;
using device_tests::poisoned;
using device_tests::ranks;
using device_tests::stream;
using device_tests::upload;

std::vector<float> values_of(int rank, std::size_t n) {
  test_support::random_source source(n, static_cast<std::uint64_t>(rank));
  std::vector<float> values(n);
  for (float& x : values) x = static_cast<float>(source.bell());
  return values;
}

/// A rank's calls of its communicator, with its buffers [n] and [size()·n] and its stream.
using body = std::function<void(ranks&, std::span<float>, std::span<float>, cudaStream_t)>;

/// Calls it on every rank, and returns both buffers of each.
std::vector<std::vector<float>> on_all(int size, std::size_t n, const body& of_rank) {
  std::vector<std::vector<float>> all(static_cast<std::size_t>(size));
  slamb::run_ranks(size, [&](slamb::thread_communicator host) {
    const stream on;
    const auto one = device_tests::ranks_on_device(std::move(host));
    const auto count = static_cast<std::size_t>(size) * n;
    auto memory = poisoned((n + count) * sizeof(float));
    float* const first = reinterpret_cast<float*>(memory.data().get());
    const std::vector<float> values = values_of(one->rank(), n);
    upload(std::span<const float>(values), first, on);
    of_rank(*one, {first, n}, {first + n, count}, on);
    on.wait();
    all[static_cast<std::size_t>(one->rank())] = downloaded(static_cast<const float*>(first), n + count, on);
  });
  return all;
}

constexpr std::size_t sizes[] = {0, 1, 1000, 1025, 100003};

}  // namespace

TEST_CASE("device ranks: sums have the host's bits, a hundred times over") {
  for (const int size : {1, 2, 5})
    for (const std::size_t n : sizes) {
      CAPTURE(size);
      CAPTURE(n);
      std::vector<float> expected;
      slamb::run_ranks(size, [&](slamb::thread_communicator host) {
        std::vector<float> values = values_of(host.rank(), n);
        for (int i = 0; i < 100; ++i) host.all_reduce_sum(std::span(values), slamb::host_stream{});
        if (host.rank() == 0) expected = values;
      });
      const auto all = on_all(size, n, [](ranks& r, std::span<float> values, std::span<float>, cudaStream_t on) {
        for (int i = 0; i < 100; ++i) r.all_reduce_sum(values, on);
      });
      std::size_t wrong = 0;
      for (const auto& values : all)
        for (std::size_t i = 0; i < n; ++i)
          wrong += std::bit_cast<std::uint32_t>(values[i]) == std::bit_cast<std::uint32_t>(expected[i]) ? 0 : 1;
      CHECK(wrong == 0);
    }
}

TEST_CASE("device ranks: cuda_thread_communicator passes check_communicator in the memory of the GPU") {
  for (const int size : {1, 2})
    CHECK_NOTHROW(slamb::run_ranks(size, [](slamb::thread_communicator host) {
      const stream on;
      device_tests::check_ranks_on_device(std::move(host), on);
    }));
}

TEST_CASE("device ranks: nccl_communicator of one rank passes check_communicator in the memory of the GPU") {
  const stream on;
  bool is_linked = true;
  CHECK_NOTHROW(is_linked = device_tests::check_nccl_on_device(on));
  if (!is_linked) MESSAGE("skipped: built without NCCL");
}

TEST_CASE("device ranks: sums of integers wrap around") {
  const auto all = on_all(2, 1, [](ranks& r, std::span<float> values, std::span<float>, cudaStream_t on) {
    const std::int32_t own = r.rank() == 0 ? std::numeric_limits<std::int32_t>::max() : 1;
    auto* const integers = reinterpret_cast<std::int32_t*>(values.data());
    upload(std::span<const std::int32_t>(&own, 1), integers, on);
    r.all_reduce_sum(std::span<std::int32_t>(integers, 1), on);
  });
  for (const auto& values : all)
    CHECK(std::bit_cast<std::int32_t>(values[0]) == std::numeric_limits<std::int32_t>::min());
}

TEST_CASE("device ranks: all_gather, all_to_all and broadcast give the right values") {
  for (const int size : {1, 2, 5})
    for (const std::size_t n : sizes) {
      CAPTURE(size);
      CAPTURE(n);
      const auto count = static_cast<std::size_t>(size);
      std::vector<float> expected;
      for (int rank = 0; rank < size; ++rank)
        for (const float x : values_of(rank, n)) expected.push_back(x);
      std::size_t wrong = 0;
      for (const auto& both :
           on_all(size, n, [](ranks&r, std::span<float> mine, std::span<float> all, cudaStream_t on) {
             r.all_gather(mine, all, on);
           }))
        for (std::size_t i = 0; i < count * n; ++i) wrong += both[n + i] == expected[i] ? 0 : 1;
      CHECK(wrong == 0);

      // Each rank gathers all values, sends chunk j to rank j, and so receives `size` times its own chunk.
      const auto exchanged =
          on_all(size, n, [](ranks& r, std::span<float> mine, std::span<float> all, cudaStream_t on) {
            r.all_gather(mine, all, on);
            auto memory = poisoned(all.size_bytes());
            const std::span<float> received(reinterpret_cast<float*>(memory.data().get()), all.size());
            r.all_to_all(all, received, on);
            r.all_reduce_sum(received.first(0), on);  // peers no longer use the memory that is freed next
            const std::vector<float> values =
                downloaded(static_cast<const float*>(received.data()), received.size(), on);
            upload(std::span<const float>(values), all.data(), on);
          });
      for (std::size_t rank = 0; rank < count; ++rank)
        for (std::size_t i = 0; i < count * n; ++i)
          wrong += exchanged[rank][n + i] == expected[rank * n + (n == 0 ? 0 : i % n)] ? 0 : 1;
      CHECK(wrong == 0);

      const int root = size - 1;
      for (const auto& both :
           on_all(size, n, [root](ranks&r, std::span<float> mine, std::span<float>, cudaStream_t on) {
             r.broadcast(mine, root, on);
           }))
        for (std::size_t i = 0; i < n; ++i)
          wrong += both[i] == expected[static_cast<std::size_t>(root) * n + i] ? 0 : 1;
      CHECK(wrong == 0);
    }
}

TEST_CASE("device ranks: streams wait for a late rank, independent of thread timing") {
  // Rank 0's values are overwritten repeatedly, in the order of its stream, before and after each sum.
  constexpr std::size_t n = 1 << 20;
  const auto all = on_all(2, n, [](ranks& r, std::span<float> values, std::span<float>, cudaStream_t on) {
    for (int i = 0; i < 50; ++i) {
      if (r.rank() == 0)
        for (int again = 0; again < 20; ++again)
          slamb::detail::check_cuda(cudaMemsetAsync(values.data(), again == 19 ? 0 : 0xFF, values.size_bytes(), on),
                                    "cudaMemsetAsync");
      r.all_reduce_sum(values, on);
    }
  });
  const std::vector<float> expected = values_of(1, n);
  std::size_t wrong = 0;
  for (const auto& values : all)
    for (std::size_t i = 0; i < n; ++i) wrong += values[i] == expected[i] ? 0 : 1;
  CHECK(wrong == 0);
}

TEST_CASE("device ranks: if ranks disagree, all throw, and stay failed") {
  int threw = 0;
  std::mutex mutex;
  slamb::run_ranks(3, [&](slamb::thread_communicator host) {
    const stream on;
    const auto one = device_tests::ranks_on_device(std::move(host));
    auto memory = poisoned(100 * sizeof(float));
    float* const values = reinterpret_cast<float*>(memory.data().get());
    const std::size_t n = one->rank() == 2 ? 50 : 100;
    for (int again = 0; again < 2; ++again) try {
        one->all_reduce_sum(std::span<float>(values, n), on);
      } catch (const slamb::communicator_error& failure) {
        const std::lock_guard lock(mutex);
        threw += std::string(failure.what()).find("different collectives") != std::string::npos ? 1 : 0;
      }
  });
  CHECK(threw == 6);
}

TEST_CASE("device ranks: a rank's wrong argument or exception ends its peers") {
  CHECK_THROWS_AS(on_all(3, 10,
                         [](ranks& r, std::span<float> mine, std::span<float>, cudaStream_t on) {
                           r.broadcast(mine, r.rank() == 1 ? 3 : 0, on);
                         }),
                  std::invalid_argument);
  CHECK_THROWS_AS(on_all(3, 10,
                         [](ranks& r, std::span<float> mine, std::span<float>, cudaStream_t on) {
                           if (r.rank() == 1) throw std::runtime_error("on purpose");
                           r.all_reduce_sum(mine, on);
                         }),
                  std::runtime_error);
}
