// The kernel of a sparse pass: detail/pass/sparse_pass.hpp.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>

#include "slamb/core/concepts.hpp"
#include "slamb/core/config.hpp"
#include "slamb/detail/kernel/kernel.hpp"
#include "slamb/detail/kernel/run_pass.hpp"
#include "slamb/detail/kernel/tile_arrays.hpp"
#include "slamb/detail/pass/layout.hpp"
#include "slamb/detail/pass/pass.hpp"
#include "slamb/detail/pass/sparse_pass.hpp"

namespace slamb::detail {

/// The sums of a sparse pass: of the elements that are not selected. All are checked.
template <class Sums, class Mask>
struct unsent_sums {
  Sums& all;
  Mask unsent;

  template <class Real>
  SLAMB_ELEMENT void add_square(int index, const Real& x) {
    all.add_square_of(unsent, index, x);
  }
  /// Adds `some` instead.
  template <class Real>
  SLAMB_ELEMENT void add_square_of(const Mask& some, int index, const Real& x) {
    all.add_square_of(some, index, x);
  }
  template <class Real>
  SLAMB_ELEMENT void check_finite(const Real& x) {
    all.check_finite(x);
  }
};

/// Runs a sparse pass over a range of tiles.
template <class Pass, class Selection, class Precision = single_precision>
struct run_selected {
  static_assert(maxima_of<Pass>() == 0, "slamb: a selected pass cannot compute maxima");

  using selection_type = resolved_t<Selection>;
  using age_type = stored_age_t<selection_type>;
  static constexpr bool stores_ages = Pass::needs_discount && !capability::has_age<selection_type>;

  Pass pass;
  view_of<Pass, Precision> view;
  payload_view payload;
  Selection selection;
  tile_range tiles;
  double* sums = nullptr;               ///< [all tiles][Pass::sums]
  std::uint32_t* not_finite = nullptr;  ///< becomes 1 if a value that the pass checked is not finite; may be null

  std::size_t work() const noexcept { return tiles.last - tiles.first; }

  template <class Team>
  SLAMB_HOST_DEVICE void operator()(Team& team) const {
    if (is_skipped(view.skip)) return;
    if constexpr (Pass::packs::count != 0) clear_rest(team);
    using elements_type = typename Team::template selected<Pass::needs_discount, selection_type>;
    auto& elements = team.template shared<elements_type>();
    elements.prepare(team, resolved(selection), payload.discount);
    typename Team::template registers<sums_of<Team, Pass>> mine;
    for (std::size_t number = tiles.first + team.index(); number < tiles.last; number += team.count()) {
      const tile t = view.tiles[number];
      const segment& s = view.segments[t.segment];
      const std::uint64_t offset = payload.tile_offsets[number];
      double* const of_tile = Pass::sums == 0 ? nullptr : sums + number * static_cast<std::size_t>(Pass::sums);
      if (leaves_out<Pass>(s)) {
        leave_out<Pass>(team, view, s, t, of_tile);
        if constexpr (Pass::packs::count != 0) clear_planes(team, offset, payload.tile_offsets[number + 1]);
        continue;
      }
      const arrays_of_tile<Team, Pass, Precision> at(view, s, t, number);
      const auto constants = pass.constants(t.segment);
      tile_of_payload its{{from_element(payload.plane[0], offset), from_element(payload.plane[1], offset),
                           from_element(payload.plane[2], offset)},
                          nullptr,
                          s.dense};
      if constexpr (stores_ages) its.age = static_cast<age_type*>(payload.age) + s.state + t.first;
      for (std::uint32_t first = 0; first < t.count; first += elements_type::size) {
        const std::uint32_t count = t.count - first < elements_type::size ? t.count - first : elements_type::size;
        const coordinate c = coordinate_of(s, t.segment, t.first + first);
        std::uint32_t passed = 0;
        const auto found = elements.find(team, resolved(selection), s, c, count, payload.discount);
        each_position_of<typename Pass::writes>(
            team, at, first, count, mine, first == 0, [&](const auto& arrays, auto here, auto& own) {
              run(arrays, here, here.from(first), elements, found, passed, c, its, constants, own);
            });
        for (float*& all : its.plane) all = from_element(all, elements.number(found, passed));
      }
      if constexpr (Pass::sums > 0) write_results<Pass::sums, 0>(team, mine, of_tile);
    }
    note_usable(team, mine, not_finite);
  }

 private:
  struct tile_of_payload {
    float* plane[3];  // from the first selected element of the piece on
    age_type* age;    // [elements of the tile]; null if ages are not stored
    bool dense;
  };

  // Runs the pass at a position of the tile, which is `in_piece` of the piece of elements.
  template <class Arrays, class At, class Elements, class Found, class Constants, class Sums>
  SLAMB_ELEMENT void run(const Arrays& arrays, At here, At in_piece, const Elements& elements, const Found& found,
                         std::uint32_t& passed, const coordinate& c, const tile_of_payload& its,
                         const Constants& constants, Sums& own) const {
    using Real = typename At::real;
    using Mask = typename At::mask;
    element_of<Pass, Real> e;
    hide(e);
    arrays.load(typename Pass::reads(), e, here);
    const auto group = elements.next(in_piece, passed);
    selected_lanes<Real, Mask> lane{mask_of(group.bits, here), {}};
    if constexpr (Pass::needs_discount)
      lane.discount = its.dense ? Real(1.0F) : discount_of(here, in_piece, elements, found, c, its, lane.selected);
    if constexpr (Pass::receives) e.exchanged = expand(group.bits, its.plane[0] + group.before, here);
    if constexpr (requires { Pass::receives_compression_error; })
      e.compression_error =
          its.plane[1] == nullptr ? Real(0.0F) : expand(group.bits, its.plane[1] + group.before, here);
    const Mask unsent = mask_of(~group.bits & here.existing(), here);
    unsent_sums<Sums, Mask> sums_of_unsent{own, unsent};
    apply(pass, e, lane, constants, sums_of_unsent);
    pack(typename Pass::packs(), group.bits, e, its.plane, group.before, here);
    arrays.store(typename Pass::writes(), e, here);
  }

  // β3^age. Ages that the selection does not know are stored, and grow once a step: by the pass that receives.
  template <class At, class Elements, class Found>
  SLAMB_ELEMENT typename At::real discount_of(At here, At in_piece, const Elements& elements, const Found& found,
                                              const coordinate& c, const tile_of_payload& its,
                                              const typename At::mask& selected) const {
    if constexpr (!stores_ages) {
      return elements.discounts(found, resolved(selection), c, payload.discount, in_piece);
    } else {
      using word = typename At::word;
      constexpr std::uint32_t oldest = static_cast<age_type>(~age_type{0});
      word age = load_words(its.age, here);
      age = select(age < word(oldest), age + word(1U), age);
      age = select(selected, word(0U), age);
      if constexpr (Pass::receives) store_words(age, its.age, here);
      return looked_up(payload.discount, age, here);
    }
  }

  template <class... Arrays, class Element, class At>
  SLAMB_ELEMENT static void pack(arrays<Arrays...> /*packs*/, [[maybe_unused]] std::uint32_t bits,
                                 [[maybe_unused]] const Element& e, [[maybe_unused]] float* const (&planes)[3],
                                 [[maybe_unused]] std::uint32_t before, [[maybe_unused]] At here) {
    [[maybe_unused]] unsigned plane = 0;
    (compress(bits, value_of<Arrays, typename At::real>(e), planes[plane++] + before, here), ...);
  }

  // Zeroes the first plane from the end of the payload to its capacity.
  template <class Team>
  SLAMB_HOST_DEVICE void clear_rest(Team& team) const {
    const std::uint64_t size = payload.tile_offsets[tiles.last];
    if (size >= payload.capacity) return;
    team.each([&](unsigned thread) {
      for (std::uint64_t i = size + team.index() * Team::threads + thread; i < payload.capacity;
           i += team.count() * Team::threads)
        payload.plane[0][i] = 0.0F;
    });
  }

  // Zeroes the payload of a tile.
  template <class Team>
  SLAMB_HOST_DEVICE void clear_planes(Team& team, std::uint64_t first, std::uint64_t past) const {
    team.each([&](unsigned thread) {
      for (std::size_t plane = 0; plane < Pass::packs::count; ++plane)
        for (std::uint64_t i = first + thread; i < past; i += Team::threads) payload.plane[plane][i] = 0.0F;
    });
  }
};
template <class Pass, class View, class Selection, class... More>
run_selected(const Pass&, const View&, const payload_view&, const Selection&, tile_range, More...)
    -> run_selected<Pass, Selection, typename View::precision>;

}  // namespace slamb::detail
