// The kernel of data-dependent sparsifiers: a compressor reads the values of a tile and selects the elements to send.
#pragma once

#include <cstddef>
#include <cstdint>

#include "slamb/backend/cuda/detail/pass_kernel.hpp"
#include "slamb/backend/cuda/detail/quantized_kernels.hpp"
#include "slamb/backend/cuda/detail/reals.hpp"
#include "slamb/backend/cuda/detail/tile_access.hpp"
#include "slamb/backend/cuda/detail/tile_codes.hpp"
#include "slamb/core/concepts.hpp"
#include "slamb/detail/pass/layout.hpp"

namespace slamb::detail::cuda {

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

/// The shared memory of a block that selects.
template <class Compressor>
struct choice_memory {
  alignas(16) float value[layout::tile_size];
  typename block_memory_of<Compressor>::type own;
};

/// Lets `compressor` select among the values that `pass` forms for each tile. Skips dense tensors, and tiles with a value that is
/// not finite.
template <class Pass, class Compressor, class Precision = single_precision>
struct choose_kernel {
  static constexpr unsigned threads = 256;
  static_assert(
      sizeof(choice_memory<Compressor>) <= 48 * 1024,
      "slamb: a block has 48 KiB of shared memory, 32 KiB of them for the values; a sparsifier's block_memory must "
      "fit in the other 16 KiB");
  static_assert(threads * 32 == layout::tile_size,
                "slamb: a thread must have 32 elements of a tile, one for each bit of a word");

  Pass pass;
  Compressor compressor;
  view_of<Pass, Precision> view;
  tile_range tiles;
  std::uint16_t* bits = nullptr;        ///< [state elements/16], zeroed
  std::uint32_t* not_finite = nullptr;  ///< becomes 1 if a value is not finite: `bits` is then not valid; may be null

  /// The most blocks that have work to do.
  std::size_t work() const noexcept { return tiles.last - tiles.first; }

  template <class Block>
  SLAMB_HOST_DEVICE void operator()(Block& block) const {
    if (is_skipped(view.skip)) return;
    for (std::size_t i = tiles.first + block.index(); i < tiles.last; i += block.count()) {
      const tile t = view.tiles[i];
      const segment& s = view.segments[t.segment];
      if (s.dense || leaves_out<Pass>(s)) continue;
      const worker_source<Pass, Precision, decltype(pass.constants(0)), no_storage> source{
          pass, pass.constants(t.segment), tile_arrays_of<Pass, Precision>(view, s, t, i), {nullptr, 0}, {}};
      typename Block::template registers<thread_sums<0>> checks;
      block.each([&](unsigned thread) {
        thread_sums<0> own;
        for_each_group<threads>(thread, t.count, [&](auto at) {
          store_together(source(at, own), block.template shared<memory_type>().value, at);
        });
        checks[thread] = own;
      });
      if (block.any([&](unsigned thread) { return !checks[thread].usable; })) {
        if (not_finite != nullptr) block.first([&] { *not_finite = 1; });
      } else {
        choose(block, t.count, bits + (s.state + t.first) / code_group);
      }
    }
  }

 private:
  using memory_type = choice_memory<Compressor>;

  // Chooses among the `count` values in shared memory.
  template <class Block>
  SLAMB_HOST_DEVICE void choose(Block& block, std::uint32_t count, std::uint16_t* chosen) const {
    static_assert(
        chooses_in_block<Compressor, Block> || !requires { typename Compressor::block_memory; },
        "slamb: a sparsifier with a block_memory must have choose_in_block(Block&, block_memory&, const float* values, "
        "std::uint32_t count, std::uint16_t* bits) const");
    auto& memory = block.template shared<memory_type>();
    if constexpr (chooses_in_block<Compressor, Block>)
      compressor.choose_in_block(block, memory.own, memory.value, count, chosen);
    else
      block.first([&] { compressor.choose(memory.value, count, chosen); });
  }
};

}  // namespace slamb::detail::cuda
