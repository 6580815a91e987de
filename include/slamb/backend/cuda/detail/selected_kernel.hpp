// The kernel of a selected pass (detail/pass/sparse_pass.hpp), which exchanges selected elements.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>

#include "slamb/backend/cuda/detail/lanes.hpp"
#include "slamb/backend/cuda/detail/pass_kernel.hpp"
#include "slamb/backend/cuda/detail/selected_elements.hpp"
#include "slamb/backend/cuda/detail/tile_access.hpp"
#include "slamb/backend/cuda/detail/tile_windows.hpp"
#include "slamb/core/concepts.hpp"
#include "slamb/detail/pass/sparse_pass.hpp"

namespace slamb::detail::cuda {

/// Adds to the sums of a thread only the elements in `counts`, those that are not selected. Checks all.
template <class Sums, class Mask>
struct unsent_sums {
  Sums& all;
  Mask counts;

  template <unsigned W>
  SLAMB_ELEMENT void add_square(int index, const reals<W>& x) {
    add_square_of(counts, index, x);
  }
  /// Adds the elements in `others` instead.
  template <unsigned W>
  SLAMB_ELEMENT void add_square_of(const masks<W>& others, int index, const reals<W>& x) {
    for (unsigned j = 0; j < W; ++j)
      if (others.of[j]) all.add_square(index, reals<1>(x.of[j]));
  }
  template <unsigned W>
  SLAMB_ELEMENT void check_finite(const reals<W>& x) {
    all.check_finite(x);
  }
};

template <class Sums, unsigned W>
SLAMB_ELEMENT unsent_sums<Sums, masks<1>> sums_of_lane(unsent_sums<Sums, masks<W>>& sums, unsigned j) {
  return {sums.all, lane_of(sums.counts, j)};
}

/// Writes the selected lanes of x, one after another.
template <unsigned W>
SLAMB_ELEMENT void pack(const masks<W>& selected, const reals<W>& x, float* to) {
  std::uint32_t offset = 0;
  for (unsigned j = 0; j < W; ++j) {
    if (selected.of[j]) to[offset] = x.of[j];
    offset += selected.of[j] ? 1U : 0U;
  }
}
/// Reads consecutive values into the selected lanes. The others become 0.
template <unsigned W>
SLAMB_ELEMENT reals<W> unpack(const masks<W>& selected, const float* from) {
  reals<W> x;
  std::uint32_t offset = 0;
  for (unsigned j = 0; j < W; ++j) {
    x.of[j] = selected.of[j] ? from[offset] : 0.0F;
    offset += selected.of[j] ? 1U : 0U;
  }
  return x;
}

/// Runs a selected pass over a range of tiles.
template <class Pass, class Selection, class Precision = single_precision>
struct selected_kernel {
  static_assert(maxima_of<Pass>() == 0, "slamb: a selected pass cannot compute maxima");
  static_assert(layout::tile_size % 16 == 0, "slamb: a tile's ages must be aligned so that four can be read at once");
  static constexpr unsigned threads = 256;
  using selection_type = resolved_t<Selection>;
  /// 4 blocks allow 64 registers a thread. Without a limit, ptxas spills for sm_100; with 48, for sm_80.
  static constexpr unsigned blocks_at_once = 4;
  static constexpr bool stores_ages = Pass::needs_discount && !capability::has_age<selection_type>;
  using age_type = stored_age_t<selection_type>;
  using elements_type = selected_elements<threads, Pass::needs_discount && capability::has_age<selection_type>,
                                          may_deal_small_groups<selection_type>>;

  Pass pass;
  view_of<Pass, Precision> view;
  payload_view payload;
  Selection selection;
  tile_range tiles;
  double* sums = nullptr;               ///< [all tiles][Pass::sums]
  std::uint32_t* not_finite = nullptr;  ///< becomes 1 if a value that the pass checked is not finite; may be null

  /// The most blocks that have work to do.
  std::size_t work() const noexcept { return tiles.last - tiles.first; }

  template <class Block>
  SLAMB_HOST_DEVICE void operator()(Block& block) const {
    if (is_skipped(view.skip)) return;
    if constexpr (Pass::packs::count != 0) clear_rest(block);
    typename Block::template registers<sums_of<Pass>> mine;
    auto& elements = block.template shared<elements_type>();
    prepare_selected(block, elements, resolved(selection), payload.discount);
    for (std::size_t number = tiles.first + block.index(); number < tiles.last; number += block.count()) {
      const tile t = view.tiles[number];
      const segment& s = view.segments[t.segment];
      const std::uint64_t offset = payload.tile_offsets[number];
      if (leaves_out<Pass>(s)) {
        leave_out<Pass>(block, view, s, t, Pass::sums == 0 ? nullptr : sums + number * Pass::sums);
        if constexpr (Pass::packs::count != 0) clear_planes(block, offset, payload.tile_offsets[number + 1]);
        continue;
      }
      tile_under_way under_way{.at = tile_arrays_of<Pass, Precision>(view, s, t, number),
                               .age = nullptr,
                               .plane = {from_element(payload.plane[0], offset), from_element(payload.plane[1], offset),
                                         from_element(payload.plane[2], offset)},
                               .dense = s.dense};
      if constexpr (stores_ages) under_way.age = static_cast<age_type*>(payload.age) + s.state + t.first;
      const auto constants = pass.constants(t.segment);
      block.each([&](unsigned thread) {
        const bool usable = mine[thread].usable;
        mine[thread] = {};
        mine[thread].usable = usable;
      });
      for (std::uint32_t first = 0; first < t.count; first += elements_type::size) {
        const std::uint32_t count = t.count - first < elements_type::size ? t.count - first : elements_type::size;
        const coordinate c = coordinate_of(s, t.segment, t.first + first);
        const std::uint32_t selected =
            find_selected(block, elements, resolved(selection), s, c, count, payload.discount);
        const grouped_piece piece = elements.piece(elements.in_groups(resolved(selection), s));
        for_each_window<typename Pass::writes, Precision>(
            block, under_way.at, first, count, [&](unsigned thread, const auto& arrays, const auto& groups, bool) {
              sums_of<Pass> own = mine[thread];
              groups.visit([&](auto at) { run(under_way, arrays, elements, piece, c, constants, first, at, own); });
              mine[thread] = own;
            });
        under_way.advance(selected);
      }
      if constexpr (Pass::sums > 0) {
        double total[Pass::sums];
        add_threads<Pass::sums, 0>(block, mine, total);
        double* const to = sums + number * static_cast<std::size_t>(Pass::sums);
        block.first([&] {
          for (int k = 0; k < Pass::sums; ++k) to[k] = total[k];
        });
      }
    }
    note_usable(block, mine, not_finite);
  }

 private:
  // Zeroes the first plane from the end of the payload to its capacity.
  template <class Block>
  SLAMB_HOST_DEVICE void clear_rest(Block& block) const {
    const std::uint64_t size = payload.tile_offsets[tiles.last];
    if (size >= payload.capacity) return;
    block.each([&](unsigned thread) {
      for (std::uint64_t i = size + block.index() * threads + thread; i < payload.capacity;
           i += block.count() * threads)
        payload.plane[0][i] = 0.0F;
    });
  }

  // Zeroes the payload of a tile.
  template <class Block>
  SLAMB_HOST_DEVICE void clear_planes(Block& block, std::uint64_t first, std::uint64_t past) const {
    block.each([&](unsigned thread) {
      for (std::size_t plane = 0; plane < Pass::packs::count; ++plane)
        for (std::uint64_t i = first + thread; i < past; i += threads) payload.plane[plane][i] = 0.0F;
    });
  }

  static constexpr age_type oldest = std::numeric_limits<age_type>::max();

  struct tile_under_way {
    tile_arrays_of<Pass, Precision> at;
    age_type* age;    // [elements of the tile]; null if ages are not stored
    float* plane[3];  // the payload planes, from the first selected element of the piece on
    bool dense;

    SLAMB_HOST_DEVICE void advance(std::uint32_t selected) {
      for (float*& all : plane) all = from_element(all, selected);
    }
  };

  // Runs the pass over elements of the piece that begins at element `first` of the tile.
  template <class At, class Arrays, class Constants>
  SLAMB_ELEMENT void run(const tile_under_way& t, const Arrays& arrays, const elements_type& elements,
                         const grouped_piece& piece, const coordinate& c, const Constants& constants,
                         std::uint32_t first, At at, sums_of<Pass>& own) const {
    using real = typename At::real;
    element_of<Pass, real> e;
    hide(e);
    arrays.load(typename Pass::reads(), e, at + first);
    const auto known = elements.from(at.i);
    selected_lanes<real, typename At::mask> lane{mask_of(known.bits, at), real(0.0F)};
    if constexpr (Pass::needs_discount) lane.discount = discounts(t, elements, piece, c, first, at, lane.selected);
    if constexpr (Pass::receives) e.exchanged = unpack(lane.selected, t.plane[0] + known.before);
    if constexpr (requires { Pass::receives_compression_error; })
      e.compression_error = payload.plane[1] == nullptr ? real(0.0F) : unpack(lane.selected, t.plane[1] + known.before);
    unsent_sums<sums_of<Pass>, typename At::mask> unsent{own, ~lane.selected};
    apply(pass, e, lane, constants, unsent);
    pack_into_planes(typename Pass::packs(), lane.selected, e, t.plane, known.before);
    arrays.store(typename Pass::writes(), e, at + first);
  }

  template <class... Arrays, unsigned W, class Element>
  SLAMB_ELEMENT static void pack_into_planes(arrays<Arrays...> /*packs*/, const masks<W>& selected,
                                             [[maybe_unused]] const Element& e,
                                             [[maybe_unused]] float* const (&planes)[3],
                                             [[maybe_unused]] std::uint32_t offset) {
    [[maybe_unused]] unsigned plane = 0;
    (pack(selected, value_of<Arrays, reals<W>>(e), planes[plane++] + offset), ...);
  }

  // β3^age. Ages that the selection does not know are stored, and are incremented once a step: by the pass that receives.
  template <unsigned W>
  SLAMB_ELEMENT reals<W> discounts(const tile_under_way& t, const elements_type& elements, const grouped_piece& piece,
                                   const coordinate& c, std::uint32_t first, group<W> at,
                                   const masks<W>& selected) const {
    if (t.dense) return reals<W>(1.0F);
    if constexpr (!stores_ages) {
      return elements.discounts(piece, resolved(selection), c, payload.discount, at);
    } else {
      age_type age[W];
      load_aligned(static_cast<const age_type*>(t.age), at + first, age);
      reals<W> all;
      for (unsigned j = 0; j < W; ++j) {
        if (selected.of[j])
          age[j] = 0;
        else if (age[j] != oldest)
          age[j] = static_cast<age_type>(age[j] + 1U);
        all.of[j] = payload.discount[static_cast<std::uint32_t>(age[j])];
      }
      if constexpr (Pass::receives) store_aligned(age, t.age, at + first);
      return all;
    }
  }
};

}  // namespace slamb::detail::cuda
