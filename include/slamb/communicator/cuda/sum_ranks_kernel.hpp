// The kernel that sums the buffers of the ranks of one process, for cuda_thread_communicator's all_reduce_sum.
#pragma once

#include <cstddef>

#include "slamb/communicator/detail/rank_sums.hpp"
#include "slamb/communicator/detail/thread_rendezvous.hpp"
#include "slamb/core/config.hpp"

namespace slamb::detail::cuda {

/// Elements first … last − 1 of every rank's buffer become their sum over ranks. Terms are added in rank order, floats in double
/// precision and rounded once. The bits are the same as with thread_communicator.
///
/// One thread reads and writes the same element of all buffers, so ranks may sum different ranges at the same time.
template <::slamb::detail::summable T>
struct sum_ranks_kernel {
  static constexpr unsigned threads = 256;
  static constexpr std::size_t elements_a_thread = 4;
  static constexpr std::size_t piece = threads * elements_a_thread;

  T* buffers[::slamb::detail::thread_rendezvous::max_size] = {};  ///< [ranks] each in memory that this device can reach
  int ranks = 0;
  std::size_t first = 0;
  std::size_t last = 0;

  /// The most blocks that have work to do.
  std::size_t work() const noexcept { return (last - first + piece - 1) / piece; }

  template <class Block>
  SLAMB_HOST_DEVICE void operator()(Block& block) const {
    for (std::size_t from = first + block.index() * piece; from < last; from += block.count() * piece)
      block.each([&](unsigned thread) {
        for (std::size_t i = from + thread; i < from + piece && i < last; i += threads) add_up(i);
      });
  }

 private:
  using wide = ::slamb::detail::wide<T>;

  SLAMB_HOST_DEVICE void add_up(std::size_t i) const {
    auto sum = static_cast<wide>(buffers[0][i]);
    for (int rank = 1; rank < ranks; ++rank)
      sum = ::slamb::detail::wrapping_sum(sum, static_cast<wide>(buffers[rank][i]));
    for (int rank = 0; rank < ranks; ++rank) buffers[rank][i] = static_cast<T>(sum);
  }
};

/// The range of elements that one rank sums. It consists of whole pieces, so that ranks seldom write to the same cache line.
struct rank_share {
  std::size_t first = 0;
  std::size_t last = 0;
};
inline rank_share share_of_rank(std::size_t elements, int rank, int ranks, std::size_t piece) noexcept {
  const std::size_t pieces = (elements + piece - 1) / piece;
  const std::size_t count = static_cast<std::size_t>(ranks);
  const std::size_t each = (pieces + count - 1) / count * piece;
  const std::size_t first = static_cast<std::size_t>(rank) * each;
  return {first < elements ? first : elements, first + each < elements ? first + each : elements};
}

}  // namespace slamb::detail::cuda
