// Passes over selected elements, and the elements' places in the payload, emulated and on the host.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <stdexcept>
#include <type_traits>
#include <utility>
#include <vector>

#include "slamb/backend/cuda/detail/emulator.hpp"
#include "slamb/compressor/random_k.hpp"
#include "slamb/detail/kernel/run_pass.hpp"
#include "slamb/detail/kernel/run_selected.hpp"
#include "slamb/optimizer/detail/slamb_passes.hpp"
#include "slamb/optimizer/detail/sparse_gradient.hpp"
#include "slamb/trust_ratio/rescaled_trust_ratio.hpp"
#include "slamb/trust_ratio/unit_trust_ratio.hpp"
#include "support/cuda_model.hpp"
#include "support/cuda_payload.hpp"
#include "support/launchers.hpp"
#include "support/sparse_memory.hpp"

namespace kernel_run_selected_tests {
namespace {

using slamb::detail::run_packed;
using slamb::detail::run_selected;
using test_support::emulated;
using test_support::emulated_on;
using test_support::for_every_launch;
using test_support::guarded_model;
using test_support::guarded_payload;
using test_support::host_launcher;
using test_support::model_spec;
using test_support::poisoned_doubles;
namespace array = slamb::detail::array;
namespace stream = test_support::stream;
using slamb::detail::arrays;
using rescaled = slamb::rescaled_trust_ratio<>;

/// Small tiles and whole ones, tails of all sorts, a tensor that is always dense, and an empty one.
model_spec spec_of(unsigned alignment) {
  return {.sizes = {1, 300, 0, 77, 9000, 40}, .alignment = alignment, .cut = alignment == 3 ? 500U : 0U, .dense = {3}};
}

/// The offsets of tiles, by a launcher. Checks that it writes no more than them, and notices if there is too little room.
template <class Launcher, class Selection>
std::vector<std::uint64_t> placed_by(const Launcher& launcher, const slamb::detail::model_view& view, std::size_t tiles,
                                     const Selection& selection) {
  if (tiles == 0) return {0};
  constexpr std::uint64_t poison = 0xFFFFFFFFDEADBEEFU;
  std::vector<std::uint64_t> tile_offsets(tiles + 2, poison);
  const auto place = [&](std::vector<std::uint64_t>& to, std::uint64_t capacity, std::uint32_t* too_many) {
    slamb::detail::place_tiles(launcher, view, selection, std::span(to.data(), tiles + 1), capacity, too_many);
  };
  place(tile_offsets, std::numeric_limits<std::uint64_t>::max(), nullptr);
  CHECK(tile_offsets.back() == poison);
  tile_offsets.pop_back();
  std::vector<std::uint64_t> again(tiles + 1, poison);
  std::uint32_t too_many = 7;
  std::uint64_t capacity = tile_offsets.back();
  place(again, capacity, &too_many);
  CHECK(too_many == 7);
  if (capacity-- > 0) {
    place(again, capacity, &too_many);
    CHECK(too_many == 1);
  }
  CHECK(again == tile_offsets);
  return tile_offsets;
}
std::vector<std::uint64_t> placed_by_host(const slamb::detail::layout& tensors, const auto& selection) {
  const std::vector<slamb::detail::tile> table = tensors.tile_table();
  return placed_by(host_launcher(), {.segments = tensors.segments().data(), .tiles = table.data()},
                   tensors.tile_count(), selection);
}

void check_places(const std::vector<std::uint64_t>& places, const std::vector<std::uint64_t>& expected) {
  CHECK(places == expected);
}

/// Compares the memory and sums of a launch with the host's. The function is not a template, so that it is compiled once.
void check_launch(bool same_model, bool same_payload, const std::vector<double>& sums,
                  const std::vector<double>& host_sums, const std::vector<double>& first_sums) {
  CHECK(same_model);
  CHECK(same_payload);
  CHECK(test_support::are_near(sums, host_sums));
  CHECK(test_support::are_same(sums, first_sums));
}

/// Checks that a pass wrote everything that it packs and writes.
void check_written(const guarded_model& on_device, std::span<const std::size_t> unwritten_of_planes, std::size_t packs,
                   unsigned writes) {
  for (std::size_t plane = 0; plane < packs; ++plane) CHECK(unwritten_of_planes[plane] == 0);
  for (unsigned bit = stream::parameter; bit <= stream::residual; bit <<= 1U)
    if ((writes & bit) != 0) CHECK(on_device.unwritten(bit) == 0);
}

void check_finite(std::uint32_t not_finite) { CHECK(not_finite == 7); }

/// Runs a selected pass over a model of `spec`, made by make(model), on the host, and compares each launch with it.
template <class Selection, class Make>
void expect_selected_as_host(model_spec spec, const Selection& selection, const Make& make,
                             bool has_compression_error = true) {
  using pass_type = decltype(make(std::declval<const guarded_model&>()));
  using payload_type = guarded_payload<slamb::detail::stored_age_t<Selection>>;
  spec.filled = test_support::streams_of(typename pass_type::reads());
  guarded_model on_host(spec);
  const std::vector<std::uint64_t> tile_offsets = placed_by_host(on_host.tensors(), selection);
  const auto payload_of = [&] {
    return payload_type(tile_offsets, on_host.tensors(), spec, pass_type::receives, has_compression_error);
  };
  const slamb::detail::tile_range tiles = on_host.tiles();
  const auto sums_of = [&](const auto& launcher, const guarded_model& m, const payload_type& payload) {
    std::vector<double> sums = poisoned_doubles((tiles.last + 1) * pass_type::sums);
    std::uint32_t not_finite = 7;
    launcher.launch(run_selected{make(m), m.view(), payload.view(), selection, tiles, sums.data(), &not_finite});
    check_finite(not_finite);
    return sums;
  };
  const payload_type host_payload = payload_of();
  const std::vector<double> host_sums = sums_of(host_launcher(), on_host, host_payload);

  std::vector<double> first_sums;
  for_every_launch([&](const emulated& launcher) {
    guarded_model on_device(spec);
    const payload_type payload = payload_of();
    const std::vector<double> sums = sums_of(launcher, on_device, payload);
    if (first_sums.empty()) first_sums = sums;
    check_launch(on_device == on_host, payload == host_payload, sums, host_sums, first_sums);
    const std::size_t unwritten[] = {payload.unwritten(0), payload.unwritten(1), payload.unwritten(2)};
    check_written(on_device, unwritten, pass_type::packs::count,
                  test_support::streams_of(typename pass_type::writes()));
  });
}

/// Uses everything that a selected pass may use.
struct everything_selected : slamb::detail::pass_without_constants {
  using reads = arrays<array::parameter, array::gradient, array::anchor, array::residual>;
  using writes = arrays<array::exchanged, array::momentum, array::anchor>;
  using packs = arrays<array::variance, array::parameter>;
  static constexpr bool receives = true;
  static constexpr bool needs_discount = true;
  static constexpr int sums = 2;

  template <class Element, class Lanes, class Sums>
  SLAMB_ELEMENT void operator()(Element& e, const Lanes& at, no_constants /*constants*/, Sums& sums) const {
    using slamb::select;
    sums.check_finite(e.gradient);
    sums.add_square(0, e.gradient);
    sums.add_square(1, e.parameter + at.discount);
    e.momentum = e.exchanged + at.discount;  // 0 where nothing is received
    e.exchanged = select(at.selected, e.exchanged, e.residual);
    e.variance = e.anchor + e.gradient;
    e.anchor = e.parameter;
    e.parameter = e.residual;
  }
};

/// For a model with arrays at this alignment: runs the pass that uses everything with all selections, and the library's passes
/// with one selection of each kind: ages by formula, ages stored in one byte, and ages stored in two.
void expect_all_as_host(unsigned alignment, std::uint64_t t) {
  const model_spec spec = spec_of(alignment);
  const guarded_model shape(spec);
  const test_support::made_up_tables<rescaled> tables(shape.tensors(), {});
  int number = 0;
  test_support::for_every_selection(shape.tensors(), t, [&](const auto& selection) {
    CAPTURE(number++);
    expect_selected_as_host(spec, selection, [](const guarded_model& /*model*/) { return everything_selected{}; });
  });
  const auto expect_passes = [&](const auto& selection) {
    const auto expect = [&](const auto& make) { expect_selected_as_host(spec, selection, make); };
    expect([&](const guarded_model& m) { return slamb::detail::form_payload<rescaled>{tables.update(m.view())}; });
    expect([&](const guarded_model& m) {
      return slamb::detail::apply_received<rescaled>{tables.update(m.view()), 0.3F};
    });
  };
  const std::vector<std::uint8_t> mask = test_support::random_mask(8, t, shape.tensors().elements(), 0.4);
  for (const std::size_t block : {1U, 5U}) expect_passes(slamb::random_k<>{.k = 0.3, .block = block, .seed = 4}.at(t));
  expect_passes(slamb::explicit_mask::selection{mask.data()});
  const auto drawn = slamb::random_k<slamb::sampling::bernoulli>{.k = 0.2, .seed = 6}.at(t);
  expect_passes(drawn);
  expect_selected_as_host(spec, drawn,
                          [](const guarded_model& /*model*/) { return slamb::detail::form_selected_gradient{}; });
  const auto receive = [](const guarded_model& /*model*/) {
    return slamb::detail::receive_selected_gradient{{}, 0.5F};
  };
  for (const bool has_compression_error : {true, false})
    expect_selected_as_host(spec, drawn, receive, has_compression_error);
}

}  // namespace

TEST_CASE("run_selected: payload, ages, model and sums have the host's bits, with every selection") {
  std::uint64_t t = 1;
  for (unsigned alignment = 0; alignment <= 4; ++alignment) {
    CAPTURE(alignment);
    expect_all_as_host(alignment, t);
    t = t * 7 + 1;  // 1, 8, 57, 400, 2801
  }
}

TEST_CASE("run_selected: tails of every length, and ten thousand tensors of one element") {
  model_spec tails;
  for (std::size_t tail = 0; tail < 16; ++tail) tails.sizes.insert(tails.sizes.end(), {tail, 4096 + tail, 8192 + tail});
  const model_spec many{.sizes = std::vector<std::size_t>(10000, 1)};
  for (const model_spec& spec : {tails, many}) {
    const auto round_robin = slamb::random_k<>{.k = 0.3}.at(5);
    const auto bernoulli = slamb::random_k<slamb::sampling::bernoulli>{.k = 0.3}.at(5);
    expect_selected_as_host(spec, round_robin, [](const guarded_model& /*model*/) { return everything_selected{}; });
    expect_selected_as_host(spec, bernoulli, [](const guarded_model& /*model*/) { return everything_selected{}; });
  }
}

TEST_CASE("place_tiles: counts and places equal the host's") {
  for (const std::uint64_t t : {1U, 2U, 3U, 300U}) {
    for (const std::uint64_t cut : {0U, 37U}) {
      guarded_model m({.sizes = {1, 300, 0, 77, 9000, 40, 20000}, .filled = 0, .cut = cut, .dense = {3}});
      int number = 0;
      test_support::for_every_selection(m.tensors(), t, [&](const auto& selection) {
        CAPTURE(number++);
        const std::vector<std::uint64_t> expected = placed_by_host(m.tensors(), selection);
        for_every_launch([&](const emulated& launcher) {
          check_places(placed_by(launcher, m.view(), m.tensors().tile_count(), selection), expected);
        });
      });
    }
  }
}

namespace {

/// Says that a tile of one element has a number of elements that no tile has.
struct made_up_counts {
  static constexpr bool runs_on_device = true;

  const std::uint32_t* counts;

  bool selects(slamb::coordinate) const { throw std::logic_error("made_up_counts: runs say all"); }
  template <class Visit>
  void runs(slamb::coordinate c, std::uint64_t count, Visit&& visit) const {
    for (std::uint64_t i = c.index; i < c.index + count; ++i) visit(i, counts[i], 0U);
  }
};

}  // namespace

TEST_CASE("place_tiles: any number of tiles, and more than 2^32 elements") {
  test_support::random_source source(2);
  for (const std::size_t tiles : {1U, 2U, 4095U, 4096U, 4097U, 50000U}) {
    CAPTURE(tiles);
    std::vector<std::uint32_t> counts(tiles);
    std::vector<std::uint64_t> expected(tiles + 1, 0);
    for (std::size_t i = 0; i < tiles; ++i) {
      counts[i] = static_cast<std::uint32_t>(source.below(1U << 20U));
      expected[i + 1] = expected[i] + counts[i];
    }
    if (tiles == 50000) CHECK(expected.back() > std::uint64_t{1} << 34U);
    const guarded_model m({.sizes = {tiles}, .filled = 0, .cut = 1});
    const auto check = [&](const auto& launcher) {
      check_places(placed_by(launcher, m.view(), tiles, made_up_counts{counts.data()}), expected);
    };
    check(emulated_on(1, slamb::detail::cuda::thread_order::backwards));
    check(emulated_on(1000));  // the host would look for as many elements
  }
}

TEST_CASE("run_packed: the sums of the payload are added as on the host") {
  for (unsigned alignment = 0; alignment <= 4; ++alignment) {
    CAPTURE(alignment);
    const guarded_model m(spec_of(alignment));
    const test_support::made_up_tables<rescaled> tables(m.tensors(), {});
    const slamb::detail::sum_received<rescaled> pass{tables.update(m.view()), 0.25F};
    std::vector<std::vector<std::uint64_t>> places;
    test_support::for_every_selection(
        m.tensors(), 6, [&](const auto& selection) { places.push_back(placed_by_host(m.tensors(), selection)); });
    for (const std::vector<std::uint64_t>& tile_offsets : places) {
      const guarded_payload<std::uint8_t> payload(tile_offsets, m.tensors(), spec_of(alignment), true, true);
      const std::size_t tiles = m.tensors().tile_count();
      std::vector<double> before = poisoned_doubles(tiles * 4 + 1);
      for (std::size_t i = 4; i < tiles * 4; ++i) before[i] = static_cast<double>(i % 13);
      const auto sums_of = [&](const auto& launcher) {
        std::vector<double> sums = before;
        launcher.launch(
            run_packed<slamb::detail::sum_received<rescaled>>{pass, m.view(), payload.view(), {1, tiles}, sums.data()});
        return sums;
      };
      const std::vector<double> expected = sums_of(host_launcher());
      std::vector<double> first_sums;
      for_every_launch([&](const emulated& launcher) {
        const std::vector<double> sums = sums_of(launcher);
        CHECK(test_support::are_near(sums, expected));
        if (first_sums.empty()) first_sums = sums;
        CHECK(test_support::are_same(sums, first_sums));
      });
      if (tile_offsets.back() > tile_offsets[1]) CHECK(!test_support::are_same(first_sums, before));
    }
  }
}

TEST_CASE("run_selected: finds a value that is not finite, selected or not") {
  const model_spec spec{.sizes = {3, 4096 + 21, 50}, .filled = stream::gradient | stream::momentum, .dense = {2}};
  guarded_model m(spec);
  using pass_type = slamb::detail::form_payload<slamb::unit_trust_ratio>;
  const test_support::made_up_tables<slamb::unit_trust_ratio> tables(m.tensors(), {});
  const auto selection = slamb::random_k<>{.k = 0.5}.at(2);
  const std::vector<std::uint64_t> tile_offsets = placed_by_host(m.tensors(), selection);
  const guarded_payload<std::uint8_t> payload(tile_offsets, m.tensors(), spec, false, true);
  const auto finds = [&](std::uint32_t first) {
    std::uint32_t not_finite = first;
    const run_selected kernel{
        pass_type{tables.update(m.view())}, m.view(), payload.view(), selection, m.tiles(), nullptr, &not_finite};
    std::uint32_t on_host = first;
    run_selected of_host = kernel;
    of_host.not_finite = &on_host;
    host_launcher().launch(of_host);
    emulated_on(2, slamb::detail::cuda::thread_order::backwards).launch(kernel);
    CHECK(on_host == not_finite);
    return not_finite;
  };
  CHECK(finds(0) == 0);
  CHECK(finds(9) == 9);
  for (std::size_t tensor = 0; tensor < 3; ++tensor) {
    const std::size_t size = spec.sizes[tensor];
    for (std::size_t i = 0; i < size; i += i >= 24 && i + 30 < size ? size - 30 - i : 1) {
      CAPTURE(i);
      const float before = std::exchange(m.gradient(tensor)[i], std::numeric_limits<float>::infinity());
      CHECK(finds(0) == 1);
      m.gradient(tensor)[i] = before;
    }
  }
  CHECK(finds(0) == 0);
}

TEST_CASE("run_selected: a skipped step changes nothing") {
  const model_spec spec = spec_of(0);
  const auto selection = slamb::random_k<slamb::sampling::bernoulli>{.k = 0.5}.at(2);
  for (const std::uint32_t skip : {0U, 1U})
    for_every_launch([&](const emulated& launcher) {
      guarded_model m(spec);
      m.gradient(4)[0] = std::numeric_limits<float>::infinity();
      guarded_model untouched(spec);
      untouched.gradient(4)[0] = std::numeric_limits<float>::infinity();
      const std::vector<std::uint64_t> tile_offsets = placed_by_host(m.tensors(), selection);
      guarded_payload<std::uint8_t> payload(tile_offsets, m.tensors(), spec, true, true);
      const guarded_payload<std::uint8_t> untouched_payload(tile_offsets, m.tensors(), spec, true, true);
      auto view = m.view();
      view.skip = &skip;
      std::vector<double> sums = poisoned_doubles(m.tiles().last * 4);
      std::uint32_t not_finite = 0;
      launcher.launch(
          run_selected{everything_selected{}, view, payload.view(), selection, m.tiles(), sums.data(), &not_finite});
      CHECK((m == untouched) == (skip != 0));
      CHECK((payload == untouched_payload) == (skip != 0));
      CHECK(test_support::are_same(sums, poisoned_doubles(sums.size())) == (skip != 0));
      CHECK(not_finite == (skip == 0 ? 1U : 0U));

      const test_support::made_up_tables<rescaled> tables(m.tensors(), {});
      std::vector<double> added(m.tiles().last * 4, 1.0);
      launcher.launch(run_packed<slamb::detail::sum_received<rescaled>>{
          {tables.update(view), 0.25F}, view, untouched_payload.view(), m.tiles(), added.data()});
      CHECK((added == std::vector<double>(added.size(), 1.0)) == (skip != 0));

      const std::vector<std::uint64_t> nothing(tile_offsets.size(), 12345);
      std::vector<std::uint64_t> placed = nothing;
      std::uint32_t too_many = 0;
      place_tiles(launcher, view, selection, placed, 1, &too_many);
      CHECK((placed == nothing) == (skip != 0));
      CHECK(too_many == (skip == 0 ? 1U : 0U));
    });
}

TEST_CASE("run_selected: packing a payload clears the rest of its buffer") {
  const auto check = [](const auto& launcher) {
    using pass = slamb::detail::form_payload<rescaled>;
    model_spec spec = spec_of(0);
    spec.filled = test_support::streams_of(pass::reads());
    guarded_model m(spec);
    const test_support::made_up_tables<rescaled> tables(m.tensors(), {});
    const auto selection = slamb::random_k<>{.k = 0.2}.at(3);
    const std::size_t tiles = m.tiles().last;
    const std::vector<std::uint64_t> placed = placed_by_host(m.tensors(), selection);
    const std::uint64_t size = placed.back();
    for (const std::uint64_t capacity : {std::uint64_t{0}, size, size + 1, size + 5000}) {
      std::vector<float> plane(3 * (size + 6000), 7.0F);
      const slamb::detail::payload_view payload{
          .tile_offsets = placed.data(),
          .plane = {plane.data(), plane.data() + size + 6000, plane.data() + 2 * (size + 6000)},
          .capacity = capacity};
      std::vector<double> sums = poisoned_doubles(tiles * pass::sums);
      launcher.launch(
          run_selected{pass{tables.update(m.view())}, m.view(), payload, selection, {0, tiles}, sums.data()});
      for (std::uint64_t i = size; i < size + 6000; ++i) REQUIRE(plane[i] == (i < capacity ? 0.0F : 7.0F));
    }
  };
  for_every_launch(check);
}

TEST_CASE("run_selected: no tensors") {
  const auto selection = slamb::random_k<>{}.at(1);
  expect_selected_as_host({.sizes = {}}, selection,
                          [](const guarded_model& /*model*/) { return everything_selected{}; });
}

TEST_CASE("run_selected: a tensor of more than 2^32 elements") {
  constexpr std::uint64_t size = (std::uint64_t{1} << 32U) + 5;
  test_support::sparse_memory parameter(size), gradient(size), momentum(size), variance(size), ages(size / 4 + 1);
  if (!parameter || !gradient || !momentum || !variance || !ages) {
    MESSAGE("skipped: the system gives no address space of 17 GB");
    return;
  }
  const slamb::parameter tensor{.data = parameter.data(), .gradient = gradient.data(), .size = size};
  const slamb::detail::layout tensors({&tensor, 1}, 0.01);
  const std::vector<slamb::detail::tile> table = tensors.tile_table();
  // A view of only the last two tiles.
  const slamb::detail::state_view<slamb::detail::view_in<>, arrays<array::momentum, array::variance>> view{
      {{.segments = tensors.segments().data(), .tiles = table.data() + (table.size() - 2)}},
      {momentum.data()},
      {variance.data()}};
  constexpr std::uint64_t seen = 8192 + 5;
  const test_support::made_up_tables<rescaled> tables(tensors, {});
  const slamb::detail::apply_received<rescaled> pass{tables.update(view), 0.5F};
  std::vector<float> received(seen, 0.7F);
  const std::vector<float> fresh{1.0F, 0.5F, 0.25F};
  const auto expect = [&](const auto& selection) {
    // From the first of the two tiles on: a selection that knows its elements counts those of earlier tiles.
    const auto placed = [&](const auto& launcher) {
      std::vector<std::uint64_t> offsets = placed_by(launcher, view, 2, selection);
      const std::uint64_t first = offsets.front();
      for (std::uint64_t& offset : offsets) offset -= first;
      return offsets;
    };
    const std::vector<std::uint64_t> tile_offsets = placed(host_launcher());
    CHECK(tile_offsets.back() > seen / 20);
    CHECK(placed(emulated_on()) == tile_offsets);
    const slamb::detail::payload_view payload{
        tile_offsets.data(), {received.data(), nullptr, nullptr}, {fresh.data(), 3}, ages.data()};
    const auto result_of = [&](const auto& run) {
      test_support::random_source source(9);
      for (std::uint64_t i = size - seen; i < size; ++i) {
        for (auto* array : {&parameter, &gradient, &momentum, &variance})
          array->data()[i] = static_cast<float>(source.uniform());
        reinterpret_cast<std::uint8_t*>(ages.data())[i] = static_cast<std::uint8_t>(i % 2);
      }
      run();
      std::vector<float> all;
      for (auto* array : {&parameter, &momentum, &variance})
        all.insert(all.end(), array->data() + (size - seen), array->data() + size);
      for (std::uint64_t i = size - seen; i < size; ++i)
        all.push_back(static_cast<float>(reinterpret_cast<std::uint8_t*>(ages.data())[i]));
      return all;
    };
    const run_selected kernel{pass, view, payload, selection, {0, 2}};
    const auto by_host = result_of([&] { host_launcher().launch(kernel); });
    CHECK(by_host == result_of([&] { emulated_on().launch(kernel); }));
    CHECK(by_host != result_of([] {}));
  };
  expect(slamb::random_k<>{.k = 0.1}.at(3));
  expect(slamb::random_k<slamb::sampling::bernoulli>{.k = 0.1}.at(3));
}

}  // namespace kernel_run_selected_tests
