// The kernel that computes scales that several tiles share.
#pragma once

#include <cstddef>
#include <cstdint>

#include "slamb/backend/cuda/detail/tile_access.hpp"
#include "slamb/backend/cuda/detail/tile_codes.hpp"
#include "slamb/backend/cuda/detail/tile_encoder.hpp"
#include "slamb/core/concepts.hpp"
#include "slamb/core/real.hpp"
#include "slamb/detail/pass/messages.hpp"
#include "slamb/detail/pass/quantized_pass.hpp"
#include "slamb/detail/pass/wire_layout.hpp"

namespace slamb::detail::cuda {

/// Computes the scales that tiles share, one block for each, and writes the overflow flags of messages.
template <quantizer Quantizer>
struct scale_kernel {
  static constexpr unsigned threads = 512;

  scale_table table;
  const double* statistic = nullptr;      ///< [all tiles] the statistic of each
  const std::uint64_t* counts = nullptr;  ///< [all tiles] active elements of each
  std::byte* messages = nullptr;
  const std::uint32_t* skip = nullptr;
  write_overflow_flags write_flags{};

  /// The most blocks that have work to do.
  std::size_t work() const noexcept {
    return table.group_count == 0 && write_flags.record != nullptr ? 1 : table.group_count;
  }

  template <class Block>
  SLAMB_HOST_DEVICE void operator()(Block& block) const {
    if (is_skipped(skip)) return;
    if (block.index() == 0) block.each([&](unsigned thread) { write_flags(thread, threads); });
    for (std::size_t i = block.index(); i < table.group_count; i += block.count()) {
      const scale_entry group = table.groups[i];
      typename Block::template registers<sum> mine;
      block.each([&](unsigned thread) {
        sum own;
        for (std::uint64_t k = group.first_tile + thread; k < group.last_tile; k += threads) {
          const double its = statistic[table.tiles[k]];
          if (its < 0.0) continue;  // left out
          own.total = is_largest ? (own.total < its ? its : own.total) : own.total + its;
          own.count += counts[table.tiles[k]];
        }
        mine[thread] = own;
      });
      double total = 0.0;
      if constexpr (is_largest)  // largest magnitudes are floats, so the conversion is exact
        total =
            static_cast<double>(block.maximum([&](unsigned thread) { return static_cast<float>(mine[thread].total); }));
      else
        total = block.sum([&](unsigned thread) { return mine[thread].total; });
      const double count = block.sum([&](unsigned thread) { return static_cast<double>(mine[thread].count); });
      const float scale = scale_of<Quantizer::scale>(total, static_cast<std::uint64_t>(count));
      block.each([&](unsigned thread) {
        for (std::uint64_t k = group.first_place + thread; k < group.last_place; k += threads)
          store_scale(messages, table.places[k], scale);
      });
    }
  }

 private:
  static constexpr bool is_largest = Quantizer::scale == segment_scale::max;

  struct sum {
    double total = 0.0;
    std::uint64_t count = 0;
  };
};

}  // namespace slamb::detail::cuda
