// The kernel that finds the active elements of a compressed exchange. Elements that a row mask excludes, or that have a 0 in an
// array such as Adam's v, are not active.
#pragma once

#include <cstddef>
#include <cstdint>

#include "slamb/core/real.hpp"
#include "slamb/detail/kernel/kernel.hpp"
#include "slamb/detail/pass/layout.hpp"
#include "slamb/detail/pass/quantized_pass.hpp"

namespace slamb::detail {

/// Sets the bits of active elements, and counts them. All elements of dense tensors are active; they have no bits.
/// @tparam Array    the state array whose zeros are inactive; void: none
/// @tparam Numbers  the pointer to it, however it is stored
template <class Array = void, class Numbers = const float*>
struct mark_active {
  model_view view;
  wire_view wire;
  tile_range tiles;
  const row_mask* rows = nullptr;   ///< [tensors]; null: no tensor has a mask
  Numbers numbers{};                ///< [state elements] elements where it is 0 are not active; null: ignored
  std::uint16_t* active = nullptr;  ///< [ranks][codes/16]; null: all elements are active
  std::uint64_t* counts = nullptr;  ///< [all tiles] receives the number of active elements

  std::size_t work() const noexcept { return tiles.last - tiles.first; }

  template <class Team>
  SLAMB_HOST_DEVICE void operator()(Team& team) const {
    if (is_skipped(view.skip)) return;
    for (std::size_t i = tiles.first + team.index(); i < tiles.last; i += team.count()) {
      const tile t = view.tiles[i];
      const wire_tile w = wire.tiles[i];
      double number = static_cast<double>(t.count);
      if (active != nullptr && w.owner != wire_tile::dense)
        number = mark(team, t, i, active + (w.owner * wire.codes + w.code) / code_group);
      team.first([&] { counts[i] = static_cast<std::uint64_t>(number); });
    }
  }

 private:
  struct memory {
    std::uint8_t takes_part[layout::tile_size];
  };

  // Marks one tile; returns its number of active elements. Neighbouring threads read neighbouring elements. Then each thread
  // makes the bits of sixteen elements.
  template <class Team>
  SLAMB_HOST_DEVICE double mark(Team& team, const tile& t, std::size_t tile_number, std::uint16_t* bits) const {
    const segment& s = view.segments[t.segment];
    const row_mask mask = rows == nullptr ? row_mask{} : rows[t.segment];
    const std::uint64_t row_size = mask.count == 0 ? 1 : s.size / mask.count;
    const auto of_tile = from_tile(numbers, s.state + t.first, tile_number);
    team.each([&](unsigned thread) {
      for (std::uint32_t i = thread; i < t.count; i += Team::threads) {
        bool takes_part = mask.count == 0 || mask.rows[(t.first + i) / row_size] != 0;
        if (exists(of_tile)) takes_part = takes_part && !is_zero(of_tile, i);
        team.template shared<memory>().takes_part[i] = takes_part ? 1 : 0;
      }
    });
    typename Team::template registers<std::uint32_t> number;
    team.each([&](unsigned thread) {
      std::uint32_t own = 0;
      for (std::uint32_t first = code_group * thread; first < t.count; first += code_group * Team::threads) {
        std::uint32_t group = 0;
        for (std::uint32_t i = first; i < first + code_group && i < t.count; ++i)
          group |= static_cast<std::uint32_t>(team.template shared<memory>().takes_part[i]) << (i - first);
        bits[first / code_group] = static_cast<std::uint16_t>(group);
        own += count_of(group);
      }
      number[thread] = own;
    });
    return team.sum([&](unsigned thread) { return static_cast<double>(number[thread]); });
  }
};

}  // namespace slamb::detail
