// Runs the threads of a block over a tile: at once, or in windows if the pass writes arrays in blocks, whose scales are known when
// all elements of a block are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "slamb/backend/cuda/detail/group.hpp"
#include "slamb/backend/cuda/detail/reals.hpp"
#include "slamb/backend/cuda/detail/tile_access.hpp"
#include "slamb/core/detail/eight_bits.hpp"
#include "slamb/core/real.hpp"
#include "slamb/detail/pass/pass.hpp"
#include "slamb/detail/pass/precision.hpp"

namespace slamb::detail::cuda {

/// The arrays of a list that are stored in blocks.
template <class Precision, class List>
struct in_blocks;
template <class Precision, class... Arrays>
struct in_blocks<Precision, arrays<Arrays...>> {
  using type = union_of_t<arrays<>, arrays_if<is_in_blocks<stored_pointer_t<Arrays, Precision>>, arrays<Arrays>>...>;
};
/// The others.
template <class Precision, class List>
struct at_once;
template <class Precision, class... Arrays>
struct at_once<Precision, arrays<Arrays...>> {
  using type = union_of_t<arrays<>, arrays_if<!is_in_blocks<stored_pointer_t<Arrays, Precision>>, arrays<Arrays>>...>;
};

/// Four values of one thread for arrays stored in blocks, kept in registers until the scale of the block is known.
template <class List>
struct waiting_group;
template <class... Arrays>
struct waiting_group<arrays<Arrays...>> {
  reals<4> of[sizeof...(Arrays)] = {};
};

/// The arrays of a tile for one thread, which keeps what it writes to arrays in blocks.
template <class Arrays, class Precision, class Writes>
struct arrays_in_window {
  using blocks = typename in_blocks<Precision, Writes>::type;

  const Arrays& at;
  waiting_group<blocks>& waiting;
  std::uint32_t first;  // of the four elements in the tile

  template <class List, class Element, class At>
  SLAMB_ELEMENT void load(List some, Element& e, At here) const {
    at.load(some, e, here);
  }
  template <class Element, class At>
  SLAMB_ELEMENT void store(Writes /*all*/, const Element& e, At here) const {
    at.store(typename at_once<Precision, Writes>::type(), e, here);
    keep(blocks(), e, here);
  }

 private:
  template <class... In, class Element, unsigned W>
  SLAMB_ELEMENT void keep(arrays<In...> /*blocks*/, const Element& e, group<W> here) const {
    unsigned k = 0;
    (keep_one(value_of<In, reals<W>>(e), waiting.of[k++], here.i - first), ...);
  }
  SLAMB_ELEMENT static void keep_one(const reals<4>& x, reals<4>& to, std::uint32_t /*place*/) { to = x; }
  // Each lane of `to` has a known place, so that all stay in registers.
  SLAMB_ELEMENT static void keep_one(const reals<1>& x, reals<4>& to, std::uint32_t place) {
    for (unsigned j = 0; j < 4; ++j)
      if (j == place) to.of[j] = x.of[0];
  }
};

/// Writes the array that is number K of the arrays in blocks, for elements first … past − 1 of the tile: four a thread.
template <class Array, std::size_t K, class Block, class Arrays, class Waiting>
SLAMB_ELEMENT void store_window(Block& block, const Arrays& at, const Waiting& waiting, std::uint32_t first,
                                std::uint32_t past) {
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
    if (i + 4 <= past) return at.template store_codes<Array>(waiting[thread].of[K], scale, group<4>{i});
    for (unsigned j = 0; j < 3; ++j)
      if (i + j < past) at.template store_codes<Array>(reals<1>(waiting[thread].of[K].of[j]), scale, group<1>{i + j});
  });
}
template <class... In, std::size_t... K, class Block, class Arrays, class Waiting>
SLAMB_ELEMENT void store_windows(arrays<In...> /*blocks*/, std::index_sequence<K...> /*numbers*/, Block& block,
                                 const Arrays& at, const Waiting& waiting, std::uint32_t first, std::uint32_t past) {
  (store_window<In, K>(block, at, waiting, first, past), ...);
}

/// The groups of `for_each_group` of one thread.
template <unsigned Threads>
struct strided_groups {
  unsigned thread;
  std::uint32_t count;

  template <class Body>
  SLAMB_ELEMENT void visit(const Body& body) const {
    for_each_group<Threads>(thread, count, body);
  }
};

/// The elements i … i + 3 below `count`, of one thread.
struct single_group {
  std::uint32_t i;
  std::uint32_t count;

  template <class Body>
  SLAMB_ELEMENT void visit(const Body& body) const {
    if (i + 4 <= count) return body(group<4>{i});
    for (std::uint32_t j = 0; j < 3; ++j)
      if (i + j < count) body(group<1>{i + j});
  }
};

/// Calls body(thread, arrays, groups, begins) for each thread, where groups.visit covers all elements as `for_each_group`, and the body
/// reads and writes by `arrays`. A pass that writes arrays in blocks runs in windows of four elements a thread, in order; after each
/// window its blocks are written. `begins` is true in the first one.
///
/// @param first  of the elements in the tile; a multiple of code_block
/// @param count  elements
template <class Writes, class Precision, class Block, class Arrays, class Body>
SLAMB_ELEMENT void for_each_window(Block& block, const Arrays& at, std::uint32_t first, std::uint32_t count,
                                   const Body& body) {
  using blocks = typename in_blocks<Precision, Writes>::type;
  if constexpr (blocks::count == 0) {
    block.each([&](unsigned thread) { body(thread, at, strided_groups<Block::threads>{thread, count}, true); });
  } else {
    constexpr std::uint32_t window = 4 * Block::threads;
    static_assert(window % code_block == 0);
    typename Block::template registers<waiting_group<blocks>> waiting;
    for (std::uint32_t begin = 0; begin < count; begin += window) {
      const std::uint32_t past = count - begin < window ? count : begin + window;
      block.each([&](unsigned thread) {
        body(thread, arrays_in_window<Arrays, Precision, Writes>{at, waiting[thread], first + begin + 4 * thread},
             single_group{begin + 4 * thread, past}, begin == 0);
      });
      store_windows(blocks(), std::make_index_sequence<blocks::count>(), block, at, waiting, first + begin,
                    first + past);
    }
  }
}

}  // namespace slamb::detail::cuda
