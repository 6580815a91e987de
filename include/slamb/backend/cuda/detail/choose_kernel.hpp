// The kernel of data-dependent sparsifiers: a compressor reads the values of a tile and selects the elements to send.
#pragma once

#include <cstddef>
#include <cstdint>

#include "slamb/backend/cuda/detail/pass_kernel.hpp"
#include "slamb/backend/cuda/detail/quantized_kernels.hpp"
#include "slamb/backend/cuda/detail/scalar.hpp"
#include "slamb/backend/cuda/detail/tile_access.hpp"
#include "slamb/backend/cuda/detail/tile_codes.hpp"
#include "slamb/compressor/top_k.hpp"
#include "slamb/core/concepts.hpp"
#include "slamb/detail/pass/layout.hpp"

namespace slamb::detail::cuda {

/// The shared memory of a block that selects: 40 KiB.
struct choice_memory {
  alignas(16) float value[layout::tile_size];
  std::uint32_t in_bin[2048];  // the number of keys with each digit
  ::slamb::detail::magnitude_threshold threshold;
};

/// Selects among the `count` values in the shared memory of a block. The primary template serves any compressor whose `choose`
/// is SLAMB_HOST_DEVICE: one thread calls it.
///
/// *Cost*: the time of one thread of a device for up to 8192 values, milliseconds for a `choose` that sorts or counts. A fast
/// compressor needs a specialisation in which the threads select together, as top_k has.
template <class Compressor>
struct block_choice {
  template <class Block>
  SLAMB_HOST_DEVICE static void choose(Block& block, const Compressor& compressor, std::uint32_t count,
                                       std::uint16_t* bits) {
    block.first([&] { compressor.choose(block.template shared<choice_memory>().value, count, bits); });
  }
};

/// Radix selection as on the host: a histogram for each digit of the keys, from the highest. All threads count in the same bins;
/// the counts do not depend on the order of threads.
template <>
struct block_choice<top_k> {
  template <class Block>
  SLAMB_HOST_DEVICE static void choose(Block& block, const top_k& compressor, std::uint32_t count,
                                       std::uint16_t* bits) {
    if (count == 0) return;
    auto& memory = block.template shared<choice_memory>();
    block.first([&] { memory.threshold = {0, compressor.chosen_of(count)}; });
    narrow<20, 11>(block, memory, count);
    narrow<10, 10>(block, memory, count);
    narrow<0, 10>(block, memory, count);
    typename Block::template registers<part> mine;
    block.each([&](unsigned thread) { mine[thread] = compare(memory, thread, count); });
    typename Block::template registers<std::uint32_t> before;
    block.exclusive_sum([&](unsigned thread) { return count_of(mine[thread].equal); }, before);
    block.each([&](unsigned thread) {
      const std::uint32_t chosen =
          mine[thread].above | first_of(mine[thread].equal, before[thread], memory.threshold.ties);
      for (std::uint32_t half = 0; half < 2; ++half)
        if (const std::uint32_t first = elements * thread + code_group * half; first < count)
          bits[first / code_group] = static_cast<std::uint16_t>(chosen >> (code_group * half) & 0xFFFFU);
    });
  }

 private:
  static constexpr std::uint32_t elements = 32;  // consecutive elements of a thread: the bits of a word

  struct part {
    std::uint32_t above;
    std::uint32_t equal;
  };

  // The bits of a float without its sign, which have the order of magnitudes.
  SLAMB_ELEMENT static std::uint32_t key_at(const choice_memory& memory, std::uint32_t i) {
    return as_word(memory.value[i]) & 0x7FFFFFFFU;
  }

  // Adds the digit of the wanted rank to the threshold, and subtracts the number of keys with a higher digit. Counts only keys
  // with the digits found before.
  template <int Shift, int Bits, class Block>
  SLAMB_HOST_DEVICE static void narrow(Block& block, choice_memory& memory, std::uint32_t count) {
    constexpr std::uint32_t bins = 1U << Bits;
    constexpr std::uint32_t of_thread = bins / Block::threads;
    const ::slamb::detail::magnitude_threshold known = memory.threshold;  // read before the barrier; written after it
    block.each([&](unsigned thread) {
      for (std::uint32_t bin = thread; bin < bins; bin += Block::threads) memory.in_bin[bin] = 0;
    });
    block.each([&](unsigned thread) {
      const std::uint32_t found = known.key >> (Shift + Bits);
      for (std::uint32_t i = thread; i < count; i += Block::threads) {
        const std::uint32_t key = key_at(memory, i);
        if (key >> (Shift + Bits) == found) Block::add_one(memory.in_bin[key >> Shift & (bins - 1)]);
      }
    });
    // Threads divide the bins in descending order.
    const auto bin_of = [](unsigned thread, std::uint32_t i) { return bins - 1 - (of_thread * thread + i); };
    typename Block::template registers<std::uint32_t> above;
    block.exclusive_sum(
        [&](unsigned thread) {
          std::uint32_t own = 0;
          for (std::uint32_t i = 0; i < of_thread; ++i) own += memory.in_bin[bin_of(thread, i)];
          return own;
        },
        above);
    block.each([&](unsigned thread) {
      if (above[thread] >= known.ties) return;
      std::uint32_t left = known.ties - above[thread];
      for (std::uint32_t i = 0; i < of_thread; ++i) {
        const std::uint32_t bin = bin_of(thread, i);
        if (left <= memory.in_bin[bin]) {
          memory.threshold = {known.key | bin << Shift, left};
          return;
        }
        left -= memory.in_bin[bin];
      }
    });
  }

  // Threads begin at different positions of their elements, because shared memory has 32 banks of one float.
  SLAMB_ELEMENT static part compare(const choice_memory& memory, unsigned thread, std::uint32_t count) {
    part own{0, 0};
    for (std::uint32_t k = 0; k < elements; ++k) {
      const std::uint32_t j = (k + thread) % elements;
      if (elements * thread + j >= count) continue;
      const std::uint32_t key = key_at(memory, elements * thread + j);
      own.above |= (key > memory.threshold.key ? 1U : 0U) << j;
      own.equal |= (key == memory.threshold.key ? 1U : 0U) << j;
    }
    return own;
  }

  // The lowest ties − before bits of `equal`.
  SLAMB_ELEMENT static std::uint32_t first_of(std::uint32_t equal, std::uint32_t before, std::uint32_t ties) {
    std::uint32_t chosen = 0;
    for (; equal != 0 && before < ties; ++before, equal &= equal - 1) chosen |= equal & (0U - equal);
    return chosen;
  }
};

/// Lets `compressor` select among the values that `pass` forms for each tile. Skips dense tensors, and tiles with a value that is
/// not finite.
template <class Pass, class Compressor>
struct choose_kernel {
  static constexpr unsigned threads = 256;
  static_assert(threads * 32 == layout::tile_size, "slamb: a thread has the bits of a word");

  Pass pass;
  Compressor compressor;
  view_of<Pass> view;
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
      if (s.dense) continue;
      const worker_source<Pass, decltype(pass.constants(0)), no_storage> source{
          pass, pass.constants(t.segment), tile_arrays_of<Pass>(view, s, t), {nullptr, 0}, {}};
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

}  // namespace slamb::detail::cuda
