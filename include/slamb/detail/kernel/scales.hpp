// The kernel that computes scales that several tiles share.
#pragma once

#include <cstddef>
#include <cstdint>

#include "slamb/core/concepts.hpp"
#include "slamb/core/real.hpp"
#include "slamb/detail/kernel/kernel.hpp"
#include "slamb/detail/pass/messages.hpp"
#include "slamb/detail/pass/quantized_pass.hpp"
#include "slamb/detail/pass/wire_layout.hpp"

namespace slamb::detail {

/// Computes the scales that tiles share, one team for each, and writes the overflow flags of messages.
template <quantizer Quantizer>
struct finish_scales {
  static constexpr bool is_small = true;

  scale_table table;
  const double* statistic = nullptr;      ///< [all tiles] the statistic of each
  const std::uint64_t* counts = nullptr;  ///< [all tiles] active elements of each
  std::byte* messages = nullptr;
  const std::uint32_t* skip = nullptr;
  write_overflow_flags write_flags{};

  std::size_t work() const noexcept {
    return table.group_count == 0 && write_flags.record != nullptr ? 1 : table.group_count;
  }

  template <class Team>
  SLAMB_HOST_DEVICE void operator()(Team& team) const {
    if (is_skipped(skip)) return;
    if (team.index() == 0) team.each([&](unsigned thread) { write_flags(thread, Team::threads); });
    for (std::size_t i = team.index(); i < table.group_count; i += team.count()) {
      const scale_entry group = table.groups[i];
      typename Team::template registers<sum> mine;
      team.each([&](unsigned thread) {
        sum own;
        for (std::uint64_t k = group.first_tile + thread; k < group.last_tile; k += Team::threads) {
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
            static_cast<double>(team.maximum([&](unsigned thread) { return static_cast<float>(mine[thread].total); }));
      else
        total = team.sum([&](unsigned thread) { return mine[thread].total; });
      const double count = team.sum([&](unsigned thread) { return static_cast<double>(mine[thread].count); });
      const float scale = scale_of<Quantizer::scale>(total, static_cast<std::uint64_t>(count));
      team.each([&](unsigned thread) {
        for (std::uint64_t k = group.first_place + thread; k < group.last_place; k += Team::threads)
          *(reinterpret_cast<float*>(messages) + table.places[k]) = scale;
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

}  // namespace slamb::detail
