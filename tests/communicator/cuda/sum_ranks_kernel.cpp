// The kernel that sums over the ranks of one process, run on the CPU and compared with sums computed here.
#include <doctest/doctest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "slamb/backend/cuda/detail/emulator.hpp"
#include "slamb/communicator/cuda/sum_ranks_kernel.hpp"
#include "support/generate.hpp"

namespace communicator_cuda_sum_ranks_kernel_tests {
namespace {

using slamb::detail::cuda::emulator;
using slamb::detail::cuda::share_of_rank;
using slamb::detail::cuda::sum_ranks_kernel;
using slamb::detail::cuda::thread_order;

/// Each rank launches the kernel for its share, one rank after the other.
template <class T>
void all_reduce(std::vector<std::vector<T>>& of_rank, const emulator& device) {
  const int ranks = static_cast<int>(of_rank.size());
  sum_ranks_kernel<T> kernel{.ranks = ranks};
  for (std::size_t i = 0; i < of_rank.size(); ++i) kernel.buffers[i] = of_rank[i].data();
  for (int rank = 0; rank < ranks; ++rank) {
    const auto share = share_of_rank(of_rank[0].size(), rank, ranks, sum_ranks_kernel<T>::piece);
    kernel.first = share.first;
    kernel.last = share.last;
    device.launch(kernel, kernel.work());
  }
}

}  // namespace

TEST_CASE("sum_ranks_kernel: floats are summed in double precision, in rank order, and rounded once") {
  for (const auto& [blocks, order] :
       {std::pair{5U, thread_order::forwards}, {1U, thread_order::backwards}, {64U, thread_order::interleaved}})
    for (const int ranks : {1, 2, 3, 7, 64})
      for (const std::size_t n : {0U, 1U, 255U, 1024U, 1025U, 5000U}) {
        CAPTURE(ranks);
        CAPTURE(n);
        test_support::random_source source(n, static_cast<std::uint64_t>(ranks));
        std::vector<std::vector<float>> of_rank(static_cast<std::size_t>(ranks), std::vector<float>(n));
        std::vector<double> sum(n);
        for (auto& values : of_rank)
          for (std::size_t i = 0; i < n; ++i) {
            values[i] = static_cast<float>(source.bell() * (source.below(2) == 0 ? 1e-6 : 1e4));
            sum[i] = &values == &of_rank[0] ? static_cast<double>(values[i]) : sum[i] + static_cast<double>(values[i]);
          }
        all_reduce(of_rank, emulator(blocks, order));
        std::size_t wrong = 0;
        for (const auto& values : of_rank)
          for (std::size_t i = 0; i < n; ++i) wrong += values[i] == static_cast<float>(sum[i]) ? 0 : 1;
        CHECK(wrong == 0);
      }
}

TEST_CASE("sum_ranks_kernel: values that nearly cancel keep their precision") {
  std::vector<std::vector<float>> of_rank{{1e8F}, {1.0F}, {-1e8F}};
  all_reduce(of_rank, emulator());
  for (const auto& values : of_rank) CHECK(values[0] == 1.0F);
}

TEST_CASE("sum_ranks_kernel: integers wrap around, and doubles are summed in double precision") {
  std::vector<std::vector<std::int32_t>> integers{{std::numeric_limits<std::int32_t>::max(), 5}, {1, -7}};
  all_reduce(integers, emulator());
  CHECK(integers[0] == std::vector{std::numeric_limits<std::int32_t>::min(), -2});
  CHECK(integers[1] == integers[0]);
  std::vector<std::vector<std::uint8_t>> bytes{{200}, {100}};
  all_reduce(bytes, emulator());
  CHECK(bytes[1][0] == 44);
  std::vector<std::vector<double>> doubles{{0.1}, {0.2}, {0.3}};
  all_reduce(doubles, emulator());
  CHECK(doubles[2][0] == 0.1 + 0.2 + 0.3);
}

TEST_CASE("sum_ranks_kernel: the shares of ranks are disjoint and complete") {
  for (const std::size_t n : {0U, 1U, 1023U, 1024U, 1025U, 100000U})
    for (const int ranks : {1, 2, 5, 64}) {
      std::size_t next = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        const auto share = share_of_rank(n, rank, ranks, 1024);
        CHECK(share.first == next);
        CHECK(share.last >= share.first);
        next = share.last;
      }
      CHECK(next == n);
    }
}

}  // namespace communicator_cuda_sum_ranks_kernel_tests
