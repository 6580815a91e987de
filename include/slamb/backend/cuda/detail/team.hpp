// A block of threads as a team, one element or four at a time: devices and the emulator run kernels by it.
// detail/kernel/kernel.hpp.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "slamb/backend/cuda/detail/codes.hpp"
#include "slamb/backend/cuda/detail/group.hpp"
#include "slamb/backend/cuda/detail/lanes.hpp"
#include "slamb/backend/cuda/detail/reals.hpp"
#include "slamb/backend/cuda/detail/selected_elements.hpp"
#include "slamb/core/concepts.hpp"
#include "slamb/core/config.hpp"
#include "slamb/core/detail/eight_bits.hpp"
#include "slamb/core/random.hpp"
#include "slamb/core/real.hpp"
#include "slamb/detail/kernel/scale_statistic.hpp"
#include "slamb/detail/kernel/tile_arrays.hpp"
#include "slamb/detail/pass/layout.hpp"
#include "slamb/detail/pass/pass.hpp"
#include "slamb/detail/pass/precision.hpp"
#include "slamb/detail/pass/quantized_pass.hpp"

namespace slamb::detail::cuda {

/// The random numbers of a tile, by which numbers are rounded.
template <class Precision>
struct drawn_words {
  drawn_words() = default;
  template <class View>
  SLAMB_HOST_DEVICE drawn_words(const View& /*view*/, const tile& /*t*/) {}
};
template <class Precision>
requires(has_draws<Precision>) struct drawn_words<Precision> {
  drawn_words() = default;
  template <class View>
  SLAMB_HOST_DEVICE drawn_words(const View& view, const tile& t)
      : draws_(view.draws), tensor_(t.segment), first_(t.first) {}

  template <unsigned W>
  SLAMB_ELEMENT words<W> draw(group<W> at) const {
    static_assert(W == 1 || W == 4);
    const std::uint64_t element = first_ + at.i;
    words<W> all;
    if constexpr (W == 1) {
      all.of[0] = draws_.draw_of(words_of(element), element);
    } else {
      const std::uint32_t by = element % 4;  // not 0 in a tile that begins at an odd place
      std::uint64_t drawn = draws_.four_draws_of(words_of(element), element - by);
      if (by != 0) {
        const std::uint64_t next = draws_.four_draws_of(words_of(element + 3), element - by + 4);
        drawn = drawn >> 16 * by | next << (64 - 16 * by);
      }
      for (unsigned j = 0; j < 4; ++j) all.of[j] = static_cast<std::uint32_t>(drawn >> 16 * j) & 0xFFFFU;
    }
    return all;
  }

 private:
  SLAMB_ELEMENT random_words words_of(std::uint64_t element) const {
    return philox(draws_.seed, draws_.counter(element), draws_.stream(tensor_));
  }

  rounding_draws draws_{};
  std::uint32_t tensor_ = 0;
  std::uint64_t first_ = 0;
};

/// Uniform numbers for the stochastic quantizer of a piece of values; 1/2 for others.
template <class Quantizer>
struct uniform_of_piece {
  SLAMB_ELEMENT static void draw(const Quantizer& /*quantizer*/, std::uint64_t /*stream*/, std::uint64_t /*first*/,
                                 std::uint32_t /*count*/) {}
  SLAMB_ELEMENT static reals<8> at(group<8> /*here*/) { return reals<8>(0.5F); }
};
template <capability::stochastic_quantizer Quantizer>
struct uniform_of_piece<Quantizer> {
  /// @param first  place of the piece's first element among the codes of all messages
  SLAMB_ELEMENT void draw(const Quantizer& quantizer, std::uint64_t stream, std::uint64_t first,
                          std::uint32_t /*count*/) {
    seed_ = quantizer.seed;
    stream_ = stream;
    first_ = first;
  }
  SLAMB_ELEMENT reals<8> at(group<8> here) const { return draw_uniform(seed_, stream_, first_ + here.i); }

 private:
  std::uint64_t seed_ = 0;
  std::uint64_t stream_ = 0;
  std::uint64_t first_ = 0;
};

/// The types by which a block of threads runs kernels.
template <unsigned Threads>
struct block_team {
  static constexpr unsigned threads = Threads;

  template <int Sums, int Maxima>
  using results = thread_sums<Sums, Maxima>;
  template <class Precision>
  using draws = drawn_words<Precision>;
  template <class Quantizer>
  using uniform_numbers = uniform_of_piece<Quantizer>;
  template <bool Discounted, class Selection>
  using selected = selected_elements<Threads, Discounted, Selection>;

  static constexpr std::uint32_t values_of_piece = code_group * Threads;  ///< one group of codes for each thread
  static constexpr bool forms_whole_groups = false;
  template <segment_scale Scale>
  struct group_statistics {
    std::conditional_t<Scale == segment_scale::max, float, double> of[Threads];
    std::uint32_t active[Threads];  // elements of each group
  };
};

// Phases over the elements of a tile. Neighbouring threads get neighbouring elements.

/// Calls body(group, own) for the elements first … first + count − 1 of a tile, in groups of four and the rest alone; `own` are the
/// results of the thread, which begin anew if `restarts`. Then calls after(thread), in the same phase.
/// @param first  a multiple of 4
template <class Block, class Mine, class Body, class After>
SLAMB_ELEMENT void each_position(Block& block, std::uint32_t first, std::uint32_t count, Mine& mine, bool restarts,
                                 const Body& body, const After& after) {
  block.each([&](unsigned thread) {
    auto own = mine[thread];
    if (restarts) own.restart();
    for_each_group<Block::threads>(thread, count, [&](auto at) { body(at.moved(first), own); });
    mine[thread] = own;
    after(thread);
  });
}
template <class Block, class Mine, class Body>
SLAMB_ELEMENT void each_position(Block& block, std::uint32_t first, std::uint32_t count, Mine& mine, bool restarts,
                                 const Body& body) {
  block.each([&](unsigned thread) {
    auto own = mine[thread];
    if (restarts) own.restart();
    for_each_group<Block::threads>(thread, count, [&](auto at) { body(at.moved(first), own); });
    mine[thread] = own;
  });
}

/// Four values of one thread for arrays stored in blocks, kept in registers until the scale of the block is known.
template <std::size_t Arrays>
struct waiting_group {
  reals<4> of[Arrays] = {};
};
template <std::size_t Arrays>
struct waiting_of_thread {
  waiting_group<Arrays>& all;
  std::uint32_t first;  // of the four elements in the tile

  SLAMB_ELEMENT void keep(unsigned k, const reals<4>& x, group<4> /*at*/) { all.of[k] = x; }
  // Each lane has a known place, so that all stay in registers.
  SLAMB_ELEMENT void keep(unsigned k, const reals<1>& x, group<1> at) {
    for (unsigned j = 0; j < 4; ++j)
      if (j == at.i - first) all.of[k].of[j] = x.of[0];
  }
};

/// The draws of four elements of a thread. All arrays in blocks share them, unless `Waits` is false: then each array draws anew,
/// because sums over a tile leave no registers in which they could wait.
template <bool Waits>
struct shared_draws {
  template <std::size_t K, class Arrays>
  SLAMB_ELEMENT words<4> of_array(const Arrays& all, group<4> at) {
    if constexpr (K == 0 || !Waits) drawn_ = all.draws_at(at);
    return drawn_;
  }

 private:
  words<4> drawn_{};
};
template <class Sums>
inline constexpr bool keeps_sums = true;
template <int Maxima>
inline constexpr bool keeps_sums<thread_sums<0, Maxima>> = false;

/// Stores numbers of an array in blocks, with the scale of their block.
template <class Array, class Arrays, unsigned W>
SLAMB_ELEMENT void store_in_block(const Arrays& all, const reals<W>& x, float scale, const words<W>& draws,
                                  group<W> at) {
  const auto& array = all.template pointer_to<Array>();
  if (at.i % code_block == 0) array.scales[at.i / code_block] = scale;
  words<W> codes(1U);
  if (scale <= 0x1.fffffep127F) codes = all.template codes_by<Array>(x, per_scale(scale), draws);
  store_words(codes, array.codes, at);
}

/// Writes the array that is number K of the arrays in blocks, for elements first … past − 1 of the tile: four a thread.
/// @param draws  shared_draws of each thread
template <class Array, std::size_t K, class Block, class Arrays, class Waiting, class Draws>
SLAMB_ELEMENT void store_window(Block& block, const Arrays& all, const Waiting& waiting, Draws& draws,
                                std::uint32_t first, std::uint32_t past) {
  typename Block::template registers<std::uint32_t> largest;
  block.template maxima<code_block / 4>(
      [&](unsigned thread) {
        std::uint32_t own = 0;
        for (unsigned j = 0; j < 4; ++j) {
          const std::uint32_t magnitude = ::slamb::as_word(waiting[thread].of[K].of[j]) & 0x7FFFFFFFU;
          if (first + 4 * thread + j < past && own < magnitude) own = magnitude;
        }
        return own;
      },
      largest);
  block.each([&](unsigned thread) {
    const std::uint32_t i = first + 4 * thread;
    if (i >= past) return;
    const float scale = block_scale<stored_pointer_t<Array, typename Arrays::precision>::is_signed>(largest[thread]);
    if (i + 4 <= past) {
      const group<4> at{i};
      return store_in_block<Array>(all, waiting[thread].of[K], scale, draws[thread].template of_array<K>(all, at), at);
    }
    for (unsigned j = 0; j < 3; ++j) {
      const group<1> at{i + j};
      if (i + j < past) store_in_block<Array>(all, reals<1>(waiting[thread].of[K].of[j]), scale, all.draws_at(at), at);
    }
  });
}
template <bool SharesDraws, class... In, std::size_t... K, class Block, class Arrays, class Waiting>
SLAMB_ELEMENT void store_windows(arrays<In...> /*blocks*/, std::index_sequence<K...> /*numbers*/, Block& block,
                                 const Arrays& all, const Waiting& waiting, std::uint32_t first, std::uint32_t past) {
  typename Block::template registers<shared_draws<SharesDraws>> draws;
  (store_window<In, K>(block, all, waiting, draws, first, past), ...);
}

/// As `each_position`, but calls body(arrays, group, own) for a body that reads and writes by `arrays`. A pass that writes arrays in
/// blocks runs in windows of four elements a thread, in order; after each window its blocks are written.
/// @param first  a multiple of code_block
template <class Writes, class Block, class Arrays, class Mine, class Body>
SLAMB_ELEMENT void each_position_of(Block& block, const Arrays& all, std::uint32_t first, std::uint32_t count,
                                    Mine& mine, bool restarts, const Body& body) {
  using blocks = typename in_blocks<typename Arrays::precision, Writes>::type;
  if constexpr (blocks::count == 0) {
    each_position(block, first, count, mine, restarts, [&](auto at, auto& own) { body(all, at, own); });
  } else {
    constexpr std::uint32_t window = 4 * Block::threads;
    static_assert(window % code_block == 0);
    typename Block::template registers<waiting_group<blocks::count>> waiting;
    for (std::uint32_t begin = 0; begin < count; begin += window) {
      const std::uint32_t past = count - begin < window ? count : begin + window;
      block.each([&](unsigned thread) {
        auto own = mine[thread];
        if (restarts && begin == 0) own.restart();
        const std::uint32_t i = begin + 4 * thread;
        waiting_of_thread<blocks::count> its{waiting[thread], first + i};
        const arrays_in_window<Arrays, Writes, waiting_of_thread<blocks::count>> in_window{all, its};
        if (i + 4 <= past)
          body(in_window, group<4>{first + i}, own);
        else
          for (std::uint32_t j = 0; j < 3; ++j)
            if (i + j < past) body(in_window, group<1>{first + i + j}, own);
        mine[thread] = own;
      });
      constexpr bool shares_draws = !keeps_sums<std::remove_cvref_t<decltype(mine[0U])>>;
      store_windows<shares_draws>(blocks(), std::make_index_sequence<blocks::count>(), block, all, waiting,
                                  first + begin, first + past);
    }
  }
}

/// Calls body(group) for whole groups of codes of a piece of `count` values.
template <class Block, class Body>
SLAMB_ELEMENT void each_group_of_codes(Block& block, std::uint32_t count, const Body& body) {
  block.each([&](unsigned thread) {
    SLAMB_NO_UNROLL
    for (std::uint32_t i = 8 * thread; i < count; i += 8 * Block::threads) body(group<8>{i});
  });
}

/// scale_of_block[b] ← make(b, statistic, active elements) for each block of 2^shift of the `count` values of a piece.
/// @param active_among  active_among(i, n): active elements of the group of sixteen at i, of which n are there
template <segment_scale Scale, class Block, class Memory, class Active, class Make>
SLAMB_ELEMENT void each_block(Block& block, Memory& all, std::uint32_t count, unsigned shift,
                              const Active& active_among, const Make& make) {
  using statistic = scale_statistic<Scale>;
  // Each thread takes the statistic of a group. Threads begin at different quarters of their groups, because shared memory has 32
  // banks of one float.
  block.each([&](unsigned thread) {
    const std::uint32_t begin = thread * code_group;
    if (begin >= count) return;
    thread_sums<statistic::sums, statistic::maxima> own;
    for (unsigned k = 0; k < 4; ++k)
      statistic::add(own,
                     load_together(static_cast<const float*>(all.value), group<4>{begin + (k + thread / 2) % 4 * 4}));
    if constexpr (statistic::maxima > 0)
      all.groups.of[thread] = own.highest[0];
    else
      all.groups.of[thread] = own.sum[0];
    all.groups.active[thread] = active_among(begin, count - begin);
  });
  block.each([&](unsigned thread) {
    if (thread << shift >= count) return;
    const std::uint32_t of_block = (1U << shift) / code_group;
    const std::uint32_t groups = padded_codes(count) / code_group;
    std::remove_reference_t<decltype(all.groups.of[0])> own = 0;
    std::uint64_t active = 0;
    for (std::uint32_t i = thread * of_block; i < (thread + 1) * of_block && i < groups; ++i) {
      if constexpr (statistic::maxima > 0)
        own = ::slamb::maximum(own, all.groups.of[i]);
      else
        own += all.groups.of[i];
      active += all.groups.active[i];
    }
    all.scale_of_block[thread] = make(thread, static_cast<double>(own), active);
  });
}

// The results of the team.

/// total [Sums + Maxima] ← the sums over all threads of the block, then the maxima over them.
template <int Sums, int Maxima, class Block, class Mine, std::size_t Count>
SLAMB_HOST_DEVICE void add_threads(Block& block, const Mine& mine, double (&total)[Count]) {
  static_assert(Count == Sums + Maxima);
  if constexpr (Sums > 0) {
    double all[Sums];
    block.sums(
        [&](unsigned thread, double(&own)[Sums]) {
          for (int k = 0; k < Sums; ++k) own[k] = mine[thread].sum[k];
        },
        all);
    for (int k = 0; k < Sums; ++k) total[k] = all[k];
  }
  for (int k = 0; k < Maxima; ++k)
    total[Sums + k] = static_cast<double>(block.maximum([&](unsigned thread) { return mine[thread].highest[k]; }));
}
template <int Sums, int Maxima, class Block, class Mine>
SLAMB_HOST_DEVICE void write_results(Block& block, const Mine& mine, double* to) {
  double total[Sums + Maxima];
  add_threads<Sums, Maxima>(block, mine, total);
  block.first([&] {
    for (int k = 0; k < Sums + Maxima; ++k) to[k] = total[k];
  });
}
template <int Sums, class Block, class Mine>
SLAMB_HOST_DEVICE void add_results(Block& block, const Mine& mine, double* to) {
  double total[Sums];
  add_threads<Sums, 0>(block, mine, total);
  block.first([&] {
    for (int k = 0; k < Sums; ++k) to[k] += total[k];
  });
}
/// Sets a flag, as other teams may do at the same time.
template <class Block>
SLAMB_HOST_DEVICE void raise(Block& block, std::uint32_t& flag) {
  block.first([&] { flag = 1; });
}
/// @param not_finite  becomes 1 if a checked value is not finite; may be null
template <class Block, class Mine>
SLAMB_HOST_DEVICE void note_usable(Block& block, const Mine& mine, std::uint32_t* not_finite) {
  if (not_finite == nullptr) return;
  if (block.any([&](unsigned thread) { return !mine[thread].usable; })) raise(block, *not_finite);
}

/// Calls `run` with the constants of a tensor.
template <class Block, class Pass, class Run>
SLAMB_ELEMENT void with_constants(Block& /*block*/, const Pass& pass, std::uint32_t tensor, const Run& run) {
  run(pass.constants(tensor));
}

}  // namespace slamb::detail::cuda
