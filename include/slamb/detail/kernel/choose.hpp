// The kernel of data-dependent sparsifiers: a compressor reads the values of a tile and selects the elements to send.
#pragma once

#include <cstddef>
#include <cstdint>

#include "slamb/core/concepts.hpp"
#include "slamb/core/config.hpp"
#include "slamb/detail/kernel/kernel.hpp"
#include "slamb/detail/kernel/run_pass.hpp"
#include "slamb/detail/kernel/signals.hpp"
#include "slamb/detail/kernel/tile_arrays.hpp"
#include "slamb/detail/pass/layout.hpp"
#include "slamb/detail/pass/pass.hpp"

namespace slamb::detail {

/// A compressor whose `choose_in_block` lets the threads of a block choose together, with shared memory of a type that it names
/// `block_memory`. docs/extend/sparsifier.md, "Choose by values".
template <class Compressor, class Block>
concept chooses_in_block = requires(const Compressor& c, Block& block, typename Compressor::block_memory& own,
                                    const float* values, std::uint16_t* bits) {
  c.choose_in_block(block, own, values, 1U, bits);
};

/// The shared memory that a compressor needs beside the values.
template <class Compressor>
struct block_memory_of {
  struct type {};
};
template <class Compressor>
requires requires { typename Compressor::block_memory; }
struct block_memory_of<Compressor> {
  using type = typename Compressor::block_memory;
};

/// The shared memory of a team that chooses.
template <class Compressor>
struct choice_memory {
  alignas(16) float value[layout::tile_size];
  typename block_memory_of<Compressor>::type own;
};

/// Lets `compressor` select among the values that `pass` forms for each tile. Skips dense tensors, and tiles with a value that is
/// not finite.
template <class Pass, class Compressor, class Precision = single_precision>
struct choose_elements {
  static_assert(sizeof(choice_memory<Compressor>) <= 44 * 1024,
                "slamb: a block has 48 KiB of shared memory, 32 KiB of them for the values and 4 KiB for its sums; a "
                "sparsifier's block_memory must fit in the other 12 KiB");

  Pass pass;
  Compressor compressor;
  view_of<Pass, Precision> view;
  tile_range tiles;
  std::uint16_t* bits = nullptr;        ///< [state elements/16], zeroed
  std::uint32_t* not_finite = nullptr;  ///< becomes 1 if a value is not finite: `bits` is then not valid; may be null

  std::size_t work() const noexcept { return tiles.last - tiles.first; }

  template <class Team>
  SLAMB_HOST_DEVICE void operator()(Team& team) const {
    if (is_skipped(view.skip)) return;
    using arrays_type = arrays_of_tile<Team, Pass, Precision>;
    for (std::size_t i = tiles.first + team.index(); i < tiles.last; i += team.count()) {
      const tile t = view.tiles[i];
      const segment& s = view.segments[t.segment];
      if (s.dense || leaves_out<Pass>(s)) continue;
      const worker_source<Pass, arrays_type, decltype(pass.constants(0)), no_storage> source{
          pass, pass.constants(t.segment), arrays_type(view, s, t, i), {nullptr, 0}, {}};
      typename Team::template registers<typename Team::template results<0, 0>> checks;
      each_position(team, 0, t.count, checks, true, [&](auto at, auto& own) {
        store_together(source(at, own), team.template shared<choice_memory<Compressor>>().value, at);
      });
      if (team.any([&](unsigned thread) { return !is_usable(checks[thread]); })) {
        if (not_finite != nullptr) raise(team, *not_finite);
      } else {
        choose(team, t.count, bits + (s.state + t.first) / code_group);
      }
    }
  }

 private:
  // Chooses among the `count` values in shared memory.
  template <class Team>
  SLAMB_HOST_DEVICE void choose(Team& team, std::uint32_t count, std::uint16_t* chosen) const {
    static_assert(
        Team::threads == 1 || chooses_in_block<Compressor, Team> || !requires { typename Compressor::block_memory; },
        "slamb: a sparsifier with a block_memory must have choose_in_block(Block&, block_memory&, const float* values, "
        "std::uint32_t count, std::uint16_t* bits) const");
    auto& memory = team.template shared<choice_memory<Compressor>>();
    if constexpr (Team::threads > 1 && chooses_in_block<Compressor, Team>)
      compressor.choose_in_block(team, memory.own, memory.value, count, chosen);
    else
      team.first([&] { compressor.choose(memory.value, count, chosen); });
  }
};
template <class Pass, class Compressor, class View, class... More>
choose_elements(const Pass&, const Compressor&, const View&, tile_range, More...)
    -> choose_elements<Pass, Compressor, typename View::precision>;

}  // namespace slamb::detail
