// Passes over selected elements, and the elements' places in the payload, emulated on the CPU and compared with the host
// backend.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "slamb/backend/cuda/detail/emulator.hpp"
#include "slamb/backend/cuda/detail/pass_kernel.hpp"
#include "slamb/backend/cuda/detail/payload_offset_kernels.hpp"
#include "slamb/backend/cuda/detail/selected_kernel.hpp"
#include "slamb/backend/host/detail/executor.hpp"
#include "slamb/communicator/any_communicator.hpp"
#include "slamb/communicator/self_communicator.hpp"
#include "slamb/compressor/random_k.hpp"
#include "slamb/optimizer/detail/slamb_passes.hpp"
#include "slamb/optimizer/detail/sparse_gradient.hpp"
#include "slamb/trust_ratio/rescaled_trust_ratio.hpp"
#include "slamb/trust_ratio/unit_trust_ratio.hpp"
#include "support/cuda_model.hpp"
#include "support/cuda_payload.hpp"
#include "support/sparse_memory.hpp"

namespace backend_cuda_selected_kernel_tests {
namespace {

using slamb::detail::cuda::emulator;
using slamb::detail::cuda::group;
using slamb::detail::cuda::packed_kernel;
using slamb::detail::cuda::selected_kernel;
using test_support::for_every_launch;
using test_support::guarded_model;
using test_support::guarded_payload;
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

std::vector<std::uint64_t> placed_by_host(const slamb::detail::layout& tensors, const auto& selection) {
  std::vector<std::uint64_t> tile_offsets(tensors.tiles().size() + 1);
  const slamb::detail::view_in<> view{{.segments = tensors.segments().data(), .tiles = tensors.tiles().data()}};
  slamb::detail::host::executor(1, 1).scan_payload_offsets(view, selection, tile_offsets,
                                                           slamb::any_communicator<>(slamb::self_communicator()));
  return tile_offsets;
}

void check_places(const std::vector<std::uint64_t>& places, const std::vector<std::uint64_t>& expected) {
  CHECK(places == expected);
}

/// Computes places from counts. The counts lie between two poisoned words: the first becomes 0, the last is removed.
void place_counted(const emulator& launcher, std::size_t tiles, std::vector<std::uint64_t>& tile_offsets,
                   std::uint64_t poison) {
  CHECK(tile_offsets.front() == poison);  // not yet computed
  const slamb::detail::cuda::place_tiles_kernel place{.tiles = tiles, .tile_offsets = tile_offsets.data()};
  launcher.launch(place, place.work());
  CHECK(tile_offsets.back() == poison);
  tile_offsets.pop_back();
}

std::vector<std::uint64_t> placed_by_kernels(const emulator& launcher, const slamb::detail::model_view& view,
                                             std::size_t tiles, const auto& selection) {
  constexpr std::uint64_t poison = 0xFFFFFFFFDEADBEEFU;
  std::vector<std::uint64_t> tile_offsets(tiles + 2, poison);
  using selection_type = std::remove_cvref_t<decltype(selection)>;
  const slamb::detail::cuda::count_selected_kernel<selection_type> count{view, selection, tiles, tile_offsets.data()};
  launcher.launch(count, count.work());
  place_counted(launcher, tiles, tile_offsets, poison);
  return tile_offsets;
}

/// Checks that one kernel finds the same places as two kernels do, and that it notices if there is too little room.
template <class Selection>
void check_placed_at_once(const emulator& launcher, const slamb::detail::model_view& view,
                          const std::vector<std::uint64_t>& expected, const Selection& selection) {
  constexpr std::uint64_t poison = 0xFFFFFFFFDEADBEEFU;
  std::vector<std::uint64_t> tile_offsets(expected.size() + 1, poison);
  std::uint32_t too_many = 7;
  slamb::detail::cuda::place_kernel<Selection> place{
      view, selection, expected.size() - 1, tile_offsets.data(), expected.back(), &too_many};
  launcher.launch(place, place.work());
  CHECK(too_many == 7);
  CHECK(tile_offsets.back() == poison);
  tile_offsets.pop_back();
  CHECK(tile_offsets == expected);
  if (expected.back() == 0) return;
  --place.capacity;
  launcher.launch(place, place.work());
  CHECK(too_many == 1);
}

/// Compares the memory and sums of a launch with the host's. The function is not a template, so that it is compiled once.
void check_launch(bool same_model, bool same_payload, const std::vector<double>& sums,
                  const std::vector<double>& host_sums, const std::vector<double>& first_sums,
                  std::uint32_t not_finite) {
  CHECK(same_model);
  CHECK(same_payload);
  CHECK(test_support::are_near(sums, host_sums));
  CHECK(not_finite == 7);
  CHECK(test_support::are_same(sums, first_sums));
}

/// Checks that a pass wrote everything that it packs and writes.
void check_written(const guarded_model& on_device, std::span<const std::size_t> unwritten_of_planes, std::size_t packs,
                   unsigned writes) {
  for (std::size_t plane = 0; plane < packs; ++plane) CHECK(unwritten_of_planes[plane] == 0);
  for (unsigned bit = stream::parameter; bit <= stream::residual; bit <<= 1U)
    if ((writes & bit) != 0) CHECK(on_device.unwritten(bit) == 0);
}

void check_finite(std::uint32_t not_finite) { CHECK(not_finite == 0); }

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
  std::vector<double> host_sums = poisoned_doubles((tiles.last + 1) * pass_type::sums);
  payload_type host_payload = payload_of();
  const slamb::detail::host::executor executor(1, 1);
  std::uint32_t host_not_finite = 0;
  executor.run(make(on_host), on_host.view(), host_payload.view(), selection, tiles, host_sums.data(),
               &host_not_finite);
  check_finite(host_not_finite);

  std::vector<double> first_sums;
  for_every_launch([&](const emulator& launcher) {
    guarded_model on_device(spec);
    payload_type payload = payload_of();
    std::vector<double> sums = poisoned_doubles(host_sums.size());
    std::uint32_t not_finite = 7;
    const selected_kernel<pass_type, Selection> kernel{make(on_device), on_device.view(), payload.view(), selection,
                                                       tiles,           sums.data(),      &not_finite};
    launcher.launch(kernel, kernel.work());
    if (first_sums.empty()) first_sums = sums;
    check_launch(on_device == on_host, payload == host_payload, sums, host_sums, first_sums, not_finite);
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

TEST_CASE("cuda selected_kernel: payload, ages, model and sums have the host's bits, with every selection") {
  std::uint64_t t = 1;
  for (unsigned alignment = 0; alignment <= 4; ++alignment) {
    CAPTURE(alignment);
    expect_all_as_host(alignment, t);
    t = t * 7 + 1;  // 1, 8, 57, 400, 2801
  }
}

TEST_CASE("cuda selected_kernel: tails of every length, and ten thousand tensors of one element") {
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

TEST_CASE("cuda placement_kernels: counts and places equal the host's") {
  for (const std::uint64_t t : {1U, 2U, 3U, 300U}) {
    for (const std::uint64_t cut : {0U, 37U}) {
      guarded_model m({.sizes = {1, 300, 0, 77, 9000, 40, 20000}, .filled = 0, .cut = cut, .dense = {3}});
      int number = 0;
      test_support::for_every_selection(m.tensors(), t, [&](const auto& selection) {
        CAPTURE(number++);
        const std::vector<std::uint64_t> expected = placed_by_host(m.tensors(), selection);
        for_every_launch([&](const emulator& launcher) {
          check_places(placed_by_kernels(launcher, m.view(), m.tensors().tiles().size(), selection), expected);
          if constexpr (slamb::capability::has_selected_before<std::remove_cvref_t<decltype(selection)>>)
            check_placed_at_once(launcher, m.view(), expected, selection);
        });
      });
    }
  }
}

TEST_CASE("cuda placement_kernels: any number of tiles, more than 2^32 elements, and their memory") {
  test_support::random_source source(2);
  for (const std::size_t tiles : {0U, 1U, 2U, 4095U, 4096U, 4097U, 50000U}) {
    CAPTURE(tiles);
    std::vector<std::uint64_t> counts(tiles + 1, ~std::uint64_t{0});  // the first is not read
    for (std::size_t i = 1; i <= tiles; ++i) counts[i] = source.below(1U << 20U);
    std::vector<std::uint64_t> expected(tiles + 1, 0);
    for (std::size_t i = 1; i <= tiles; ++i) expected[i] = expected[i - 1] + counts[i];
    if (tiles == 50000) CHECK(expected.back() > std::uint64_t{1} << 34U);
    for_every_launch([&](const emulator& launcher) {
      std::vector<std::uint64_t> tile_offsets = counts;
      std::uint32_t too_many = 7;
      const slamb::detail::cuda::place_tiles_kernel place{
          .tiles = tiles, .tile_offsets = tile_offsets.data(), .capacity = expected.back(), .too_many = &too_many};
      launcher.launch(place, place.work());
      CHECK(tile_offsets == expected);
      CHECK(too_many == 7);
      tile_offsets = counts;
      if (tiles == 0) return;
      tile_offsets = counts;
      const slamb::detail::cuda::place_tiles_kernel short_of_room{
          .tiles = tiles, .tile_offsets = tile_offsets.data(), .capacity = expected.back() - 1, .too_many = &too_many};
      launcher.launch(short_of_room, short_of_room.work());
      CHECK(tile_offsets == expected);
      CHECK(too_many == 1);
    });
  }
}

TEST_CASE("cuda packed_kernel: the sums of the payload are added as on the host") {
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
      const std::size_t tiles = m.tensors().tiles().size();
      std::vector<double> before = poisoned_doubles(tiles * 4 + 1);
      for (std::size_t i = 4; i < tiles * 4; ++i) before[i] = static_cast<double>(i % 13);
      std::vector<double> expected = before;
      slamb::detail::host::executor(1, 1).run_packed(pass, m.view(), payload.view(), {1, tiles}, expected.data());
      std::vector<double> first_sums;
      for_every_launch([&](const emulator& launcher) {
        std::vector<double> sums = before;
        const packed_kernel<slamb::detail::sum_received<rescaled>> kernel{
            pass, m.view(), payload.view(), {1, tiles}, sums.data()};
        launcher.launch(kernel, kernel.work());
        CHECK(test_support::are_near(sums, expected));
        if (first_sums.empty()) first_sums = sums;
        CHECK(test_support::are_same(sums, first_sums));
      });
      if (tile_offsets.back() > tile_offsets[1]) CHECK(!test_support::are_same(first_sums, before));
    }
  }
}

TEST_CASE("cuda selected_kernel: finds a value that is not finite, selected or not") {
  const model_spec spec{.sizes = {3, 4096 + 21, 50}, .filled = stream::gradient | stream::momentum, .dense = {2}};
  guarded_model m(spec);
  using pass_type = slamb::detail::form_payload<slamb::unit_trust_ratio>;
  const test_support::made_up_tables<slamb::unit_trust_ratio> tables(m.tensors(), {});
  const auto selection = slamb::random_k<>{.k = 0.5}.at(2);
  const std::vector<std::uint64_t> tile_offsets = placed_by_host(m.tensors(), selection);
  const guarded_payload<std::uint8_t> payload(tile_offsets, m.tensors(), spec, false, true);
  const auto finds = [&](std::uint32_t first) {
    std::uint32_t not_finite = first;
    const selected_kernel<pass_type, std::remove_cv_t<decltype(selection)>> kernel{
        {tables.update(m.view())}, m.view(), payload.view(), selection, m.tiles(), nullptr, &not_finite};
    emulator(2, slamb::detail::cuda::thread_order::backwards).launch(kernel, kernel.work());
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

TEST_CASE("cuda selected_kernel: a skipped step changes nothing") {
  const model_spec spec = spec_of(0);
  const auto selection = slamb::random_k<slamb::sampling::bernoulli>{.k = 0.5}.at(2);
  for (const std::uint32_t skip : {0U, 1U})
    for_every_launch([&](const emulator& launcher) {
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
      const selected_kernel<everything_selected, slamb::detail::bernoulli_selection> kernel{
          {}, view, payload.view(), selection, m.tiles(), sums.data(), &not_finite};
      launcher.launch(kernel, kernel.work());
      CHECK((m == untouched) == (skip != 0));
      CHECK((payload == untouched_payload) == (skip != 0));
      CHECK(test_support::are_same(sums, poisoned_doubles(sums.size())) == (skip != 0));
      CHECK(not_finite == (skip == 0 ? 1U : 0U));

      const test_support::made_up_tables<rescaled> tables(m.tensors(), {});
      std::vector<double> added(m.tiles().last * 4, 1.0);
      const packed_kernel<slamb::detail::sum_received<rescaled>> packed{
          {tables.update(view), 0.25F}, view, untouched_payload.view(), m.tiles(), added.data()};
      launcher.launch(packed, packed.work());
      CHECK((added == std::vector<double>(added.size(), 1.0)) == (skip != 0));

      const std::vector<std::uint64_t> nothing(tile_offsets.size(), 12345);
      std::vector<std::uint64_t> placed = nothing;
      const std::size_t tiles = m.tiles().last;
      launcher.launch(
          slamb::detail::cuda::count_selected_kernel<slamb::detail::bernoulli_selection>{view, selection, tiles,
                                                                                         placed.data()},
          tiles);
      CHECK((placed == nothing) == (skip != 0));
      placed = nothing;
      std::uint32_t too_many = 0;
      launcher.launch(slamb::detail::cuda::place_tiles_kernel{tiles, placed.data(), &skip, 1, &too_many}, 1);
      CHECK((placed == nothing) == (skip != 0));
      CHECK(too_many == (skip == 0 ? 1U : 0U));
    });
}

TEST_CASE("cuda selected_kernel: packing a payload clears the rest of its buffer") {
  for_every_launch([](const emulator& launcher) {
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
      const slamb::detail::cuda::selected_kernel<pass, std::remove_cvref_t<decltype(selection)>> kernel{
          {tables.update(m.view())}, m.view(), payload, selection, {0, tiles}, sums.data(), nullptr};
      launcher.launch(kernel, kernel.work());
      for (std::uint64_t i = size; i < size + 6000; ++i) REQUIRE(plane[i] == (i < capacity ? 0.0F : 7.0F));
    }
  });
}

TEST_CASE("cuda selected_kernel: no tensors") {
  const guarded_model m({.sizes = {}});
  const auto selection = slamb::random_k<>{}.at(1);
  CHECK(placed_by_kernels(emulator(), m.view(), 0, selection) == std::vector<std::uint64_t>{0});
  expect_selected_as_host({.sizes = {}}, selection,
                          [](const guarded_model& /*model*/) { return everything_selected{}; });
}

TEST_CASE("cuda selected_kernel: a tensor of more than 2^32 elements") {
  constexpr std::uint64_t size = (std::uint64_t{1} << 32U) + 5;
  test_support::sparse_memory parameter(size), gradient(size), momentum(size), variance(size), ages(size / 4 + 1);
  if (!parameter || !gradient || !momentum || !variance || !ages) {
    MESSAGE("skipped: the system gives no address space of 17 GB");
    return;
  }
  const slamb::parameter tensor{.data = parameter.data(), .gradient = gradient.data(), .size = size};
  const slamb::detail::layout tensors({&tensor, 1}, 0.01);
  // A view of only the last two tiles.
  const slamb::detail::state_view<slamb::detail::view_in<>, arrays<array::momentum, array::variance>> view{
      {{.segments = tensors.segments().data(), .tiles = tensors.tiles().data() + (tensors.tiles().size() - 2)}},
      {momentum.data()},
      {variance.data()}};
  constexpr std::uint64_t seen = 8192 + 5;
  const test_support::made_up_tables<rescaled> tables(tensors, {});
  const slamb::detail::apply_received<rescaled> pass{tables.update(view), 0.5F};
  std::vector<float> received(seen, 0.7F);
  const std::vector<float> fresh{1.0F, 0.5F, 0.25F};
  const auto expect = [&](const auto& selection) {
    using selection_type = std::remove_cvref_t<decltype(selection)>;
    std::vector<std::uint64_t> tile_offsets(3);
    slamb::detail::host::executor(1, 1).scan_payload_offsets(view, selection, tile_offsets,
                                                             slamb::any_communicator<>(slamb::self_communicator()));
    CHECK(tile_offsets.back() > seen / 20);
    CHECK(placed_by_kernels(emulator(), view, 2, selection) == tile_offsets);
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
    const auto by_host = result_of([&] {
      slamb::detail::host::executor(1, 1).run(pass, view, payload, selection, {0, 2}, nullptr);
    });
    const auto by_kernel = result_of([&] {
      const selected_kernel<slamb::detail::apply_received<rescaled>, selection_type> kernel{
          pass, view, payload, selection, {0, 2}};
      emulator().launch(kernel, kernel.work());
    });
    CHECK(by_host == by_kernel);
    CHECK(by_host != result_of([] {}));
  };
  expect(slamb::random_k<>{.k = 0.1}.at(3));
  expect(slamb::random_k<slamb::sampling::bernoulli>{.k = 0.1}.at(3));
}

TEST_CASE("cuda selected_elements: groups agree with round robin on every element") {
  constexpr unsigned threads = 256;
  constexpr std::uint32_t size = 16 * threads;
  const std::vector<float> discount = slamb::detail::discounts_by_age(0.93);
  const slamb::capability::staleness_discounts table{discount.data(), static_cast<std::uint32_t>(discount.size())};
  std::size_t wrong = 0, groups = 0;
  for (const double slots : {8.0, 9.0, 10.0, 13.0, 16.0, 31.0, 32.0})
    for (const std::uint64_t step : {1U, 3U, 7U, 40U, 12345U})
      for (const std::uint64_t elements :
           {std::uint64_t{1}, std::uint64_t{9}, std::uint64_t{33}, std::uint64_t{4095}, std::uint64_t{4096},
            std::uint64_t{4097}, std::uint64_t{12288 + 5}, (std::uint64_t{1} << 33U) + 7})
        for (std::uint64_t begin = elements > size * 8 ? elements / size * size - size : 0; begin < elements;
             begin += size) {
          const auto selection = slamb::random_k<>{.k = 1.0 / slots, .seed = 5}.at(step);
          REQUIRE(selection.deals_small_groups());
          const slamb::coordinate c{.tensor = 3, .index = begin, .tensor_size = elements};
          const auto count = static_cast<std::uint32_t>(std::min<std::uint64_t>(size, elements - begin));
          slamb::detail::cuda::groups_of_piece<size, true> piece;
          for (unsigned thread = threads; thread-- > 0;) {
            piece.prepare<threads>(thread, selection, table);
            piece.deal<threads>(thread, selection, c, count);
          }
          const slamb::detail::cuda::grouped_piece known = piece.piece;
          groups += known.in_whole;
          CHECK(count - known.in_whole < static_cast<std::uint32_t>(slots));
          for (std::uint32_t i = 0; i < count; ++i) {
            slamb::coordinate at = c;
            at.index += i;
            const std::uint32_t in_sixteen = i % 16, of_sixteen = std::min(count - (i - in_sixteen), 16U);
            const bool sent = ((piece.bits(i - in_sixteen, of_sixteen) >> in_sixteen) & 1U) != 0;
            wrong += sent == selection.selects(at) ? 0 : 1;
            if (i >= known.in_whole) continue;
            wrong += piece.discounts(known, group<1>{i}).of[0] == table[selection.age(at)] ? 0 : 1;
            if (i + 4 > known.in_whole) continue;
            const auto four = piece.discounts(known, group<4>{i});
            for (std::uint32_t j = 0; j < 4; ++j, ++at.index) wrong += four.of[j] == table[selection.age(at)] ? 0 : 1;
          }
        }
  CHECK(wrong == 0);
  CHECK(groups > 0);
}

}  // namespace backend_cuda_selected_kernel_tests
