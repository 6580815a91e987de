// The choice by value on a device: a compressor looks at the values of a tile and says which of them are sent.
#pragma once

#include <cstddef>
#include <cstdint>

#include "slamb/backend/cuda/coded_kernels.hpp"
#include "slamb/backend/cuda/pass_kernel.hpp"
#include "slamb/backend/cuda/scalar.hpp"
#include "slamb/backend/cuda/tile_access.hpp"
#include "slamb/backend/cuda/tile_codes.hpp"
#include "slamb/compressor/top_k.hpp"
#include "slamb/core/concepts.hpp"
#include "slamb/core/layout.hpp"

namespace slamb::cuda {

/// What the threads of a block share while they choose: 32 KiB.
struct choice_memory {
  alignas(16) float value[layout::tile_size];
};

/// How a block chooses among the `count` values in its shared memory. This is the general way, for any compressor whose
/// `choose` is SLAMB_HOST_DEVICE: one thread calls it.
///
/// *Cost*: as long as one thread of a device takes for up to 8192 values, milliseconds for what sorts or counts. A
/// compressor that is to be quick says how threads choose together by a specialisation, as there is of top_k.
template <class Compressor>
struct block_choice {
  template <class Block>
  SLAMB_HOST_DEVICE static void choose(Block& block, const Compressor& compressor, std::uint32_t count,
                                       std::uint16_t* bits) {
    block.first([&] { compressor.choose(block.template shared<choice_memory>().value, count, bits); });
  }
};

/// Selection by the digits of the keys, two bits at a time, the highest first: what host code does with histograms, by
/// counting, which takes no atomic operations. Sixteen sums over the block, and so often a look at each value.
template <>
struct block_choice<top_k> {
  template <class Block>
  SLAMB_HOST_DEVICE static void choose(Block& block, const top_k& compressor, std::uint32_t count,
                                       std::uint16_t* bits) {
    if (count == 0) return;
    const std::uint32_t wanted = compressor.chosen_of(count);
    const std::uint32_t key = key_of_place(block, count, wanted);
    typename Block::template registers<part> mine;
    block.each([&](unsigned thread) { mine[thread] = compare(block, thread, count, key); });
    const double above = block.sum([&](unsigned thread) { return static_cast<double>(count_of(mine[thread].above)); });
    typename Block::template registers<std::uint32_t> before;
    block.exclusive_sum([&](unsigned thread) { return count_of(mine[thread].equal); }, before);
    const std::uint32_t ties = wanted - static_cast<std::uint32_t>(above);
    block.each([&](unsigned thread) {
      const std::uint32_t chosen = mine[thread].above | first_of(mine[thread].equal, before[thread], ties);
      for (std::uint32_t half = 0; half < 2; ++half)
        if (const std::uint32_t first = elements * thread + code_group * half; first < count)
          bits[first / code_group] = static_cast<std::uint16_t>(chosen >> (code_group * half) & 0xFFFFU);
    });
  }

 private:
  static constexpr std::uint32_t elements = 32;  // consecutive, of a thread: the bits of a word

  struct part {
    std::uint32_t above;
    std::uint32_t equal;
  };

  // Magnitudes are in the order of their bits.
  template <class Block>
  SLAMB_ELEMENT static std::uint32_t key(Block& block, std::uint32_t i) {
    return as_word(block.template shared<choice_memory>().value[i]) & 0x7FFFFFFFU;
  }

  // The largest key that at least `wanted` keys reach.
  template <class Block>
  SLAMB_HOST_DEVICE static std::uint32_t key_of_place(Block& block, std::uint32_t count, std::uint32_t wanted) {
    std::uint32_t found = 0;
    for (unsigned shift = 32; shift > 0;) {
      shift -= 2;
      // How many reach found + 1, 2, 3 at this digit, side by side: a double holds 3 · 16 bits exactly.
      const double reached = block.sum([&](unsigned thread) {
        std::uint32_t one = 0, two = 0, three = 0;
        for (std::uint32_t i = thread; i < count; i += Block::threads) {
          const std::uint32_t its_key = key(block, i);
          one += its_key >= (found | 1U << shift) ? 1U : 0U;
          two += its_key >= (found | 2U << shift) ? 1U : 0U;
          three += its_key >= (found | 3U << shift) ? 1U : 0U;
        }
        return static_cast<double>(std::uint64_t{three} << 32U | two << 16U | one);
      });
      const auto all = static_cast<std::uint64_t>(reached);
      std::uint32_t digit = 0;
      if ((all & 0xFFFFU) >= wanted) digit = 1;
      if ((all >> 16U & 0xFFFFU) >= wanted) digit = 2;
      if (all >> 32U >= wanted) digit = 3;
      found |= digit << shift;
    }
    return found;
  }

  // Threads begin at different elements of theirs: shared memory has 32 banks of a float.
  template <class Block>
  SLAMB_ELEMENT static part compare(Block& block, unsigned thread, std::uint32_t count, std::uint32_t threshold) {
    part own{0, 0};
    for (std::uint32_t k = 0; k < elements; ++k) {
      const std::uint32_t j = (k + thread) % elements;
      if (elements * thread + j >= count) continue;
      const std::uint32_t its_key = key(block, elements * thread + j);
      own.above |= (its_key > threshold ? 1U : 0U) << j;
      own.equal |= (its_key == threshold ? 1U : 0U) << j;
    }
    return own;
  }

  // The lowest bits of `equal`, as many as are left of `ties` after `before`.
  SLAMB_ELEMENT static std::uint32_t first_of(std::uint32_t equal, std::uint32_t before, std::uint32_t ties) {
    std::uint32_t chosen = 0;
    for (; equal != 0 && before < ties; ++before, equal &= equal - 1) chosen |= equal & (0U - equal);
    return chosen;
  }
};

/// Lets `compressor` choose among the values that `pass` forms of each tile; a tensor that is always sent whole needs no
/// choice, and a tile with a value that is not finite is given none.
template <class Pass, class Compressor>
struct choose_kernel {
  static constexpr unsigned threads = 256;
  static_assert(threads * 32 == layout::tile_size, "slamb: a thread has the bits of a word");

  Pass pass;
  Compressor compressor;
  model_view view;
  tile_range tiles;
  std::uint16_t* bits = nullptr;        ///< [state elements/16], zeroed
  std::uint32_t* not_finite = nullptr;  ///< becomes 1 if a value is not finite: the choice means nothing then

  /// Pieces to launch it for.
  std::size_t work() const noexcept { return tiles.last - tiles.first; }

  template <class Block>
  SLAMB_HOST_DEVICE void operator()(Block& block) const {
    if (is_refused(view.refused)) return;
    for (std::size_t i = tiles.first + block.index(); i < tiles.last; i += block.count()) {
      const tile t = view.tiles[i];
      const segment& s = view.segments[t.segment];
      if (s.dense) continue;
      const worker_source<Pass, decltype(pass.constants(0)), no_storage> source{
          pass, pass.constants(t.segment), tile_arrays(view, s, t), {nullptr, 0}, {}};
      typename Block::template registers<thread_sums<0>> checks;
      block.each([&](unsigned thread) {
        thread_sums<0> own;
        for_each_group<threads>(thread, t.count, [&]<unsigned Width>(std::uint32_t first, width<Width> /*here*/) {
          scalar x[Width];
          source(first, x, own);
          float values[Width];
          for (unsigned j = 0; j < Width; ++j) values[j] = x[j].value;
          store_together(values, block.template shared<choice_memory>().value + first);
        });
        checks[thread] = own;
      });
      if (block.any([&](unsigned thread) { return !checks[thread].usable; })) {
        if (not_finite != nullptr) block.first([&] { *not_finite = 1; });
      } else {
        block_choice<Compressor>::choose(block, compressor, t.count, bits + (s.state + t.first) / code_group);
      }
    }
  }
};

}  // namespace slamb::cuda
