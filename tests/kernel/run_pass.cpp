// Passes, emulated and on the host.
#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "slamb/backend/cuda/detail/emulator.hpp"
#include "slamb/detail/kernel/run_pass.hpp"
#include "slamb/detail/pass/quantized_pass.hpp"
#include "slamb/optimizer/detail/adam_passes.hpp"
#include "slamb/optimizer/detail/direction_counts.hpp"
#include "slamb/optimizer/detail/late_variance.hpp"
#include "slamb/optimizer/detail/one_bit_passes.hpp"
#include "slamb/optimizer/detail/zero_one_passes.hpp"
#include "slamb/trust_ratio/frozen_trust_ratio.hpp"
#include "slamb/trust_ratio/layerwise_trust_ratio.hpp"
#include "slamb/trust_ratio/unit_trust_ratio.hpp"
#include "support/cuda_model.hpp"
#include "support/launchers.hpp"
#include "support/sparse_memory.hpp"

namespace kernel_run_pass_tests {
namespace {

using slamb::detail::run_pass;
using test_support::emulated;
using test_support::emulated_on;
using test_support::for_every_launch;
using test_support::guarded_model;
using test_support::host_launcher;
using test_support::model_spec;
using test_support::poisoned_doubles;
namespace array = slamb::detail::array;
namespace stream = test_support::stream;
using slamb::detail::arrays;

/// p ← p + m, but only p is in the list of arrays to read.
struct forgets_a_read : slamb::detail::pass_without_constants {
  using reads = arrays<array::parameter>;
  using writes = arrays<array::parameter, array::momentum>;
  static constexpr int sums = 0;
  template <class Element, class Sums>
  SLAMB_ELEMENT void operator()(Element& e, no_constants /*constants*/, Sums& /*sums*/) const {
    e.parameter = e.parameter + e.momentum;
  }
};

/// Tails of every length up to two vectors, alone and after a whole tile; and an empty tensor.
model_spec every_tail(unsigned alignment) {
  model_spec spec{.alignment = alignment};
  for (std::size_t size = 0; size <= 33; ++size) spec.sizes.push_back(size);
  for (std::size_t tail = 0; tail < 16; ++tail) spec.sizes.push_back(8192 + tail);
  return spec;
}

/// A few tensors, in a few tiles that are not full.
model_spec small_spec(unsigned alignment = 0) {
  return {.sizes = {1, 777, 0, 1040, 33}, .alignment = alignment, .cut = 500};
}

/// Runs a pass over a model of `spec`, made by make(model), on the host, and compares each launch with it.
template <class Make>
void expect_as_host(model_spec spec, const Make& make) {
  using pass_type = decltype(make(std::declval<const guarded_model&>()));
  constexpr std::size_t results = slamb::detail::results_of<pass_type>();
  spec.filled = test_support::streams_of(typename pass_type::reads());
  if (spec.gradient_is_exchanged) spec.filled |= stream::exchanged;
  guarded_model on_host(spec);
  const slamb::detail::tile_range tiles = on_host.tiles();
  const auto sums_of = [&](const auto& launcher, const guarded_model& m) {
    std::vector<double> sums = poisoned_doubles((tiles.last + 1) * results);
    std::uint32_t not_finite = 7;
    launcher.launch(run_pass{make(m), m.view(), tiles, sums.data(), &not_finite});
    CHECK(not_finite == 7);
    return sums;
  };
  const std::vector<double> host_sums = sums_of(host_launcher(), on_host);
  std::vector<double> first_sums;
  for_every_launch([&](const emulated& launcher) {
    guarded_model on_device(spec);
    const std::vector<double> sums = sums_of(launcher, on_device);
    CHECK(on_device == on_host);
    CHECK(test_support::are_near(sums, host_sums));
    if (first_sums.empty()) first_sums = sums;
    CHECK(test_support::are_same(sums, first_sums));
    for (unsigned bit = stream::parameter; bit <= stream::residual; bit <<= 1U)
      if ((test_support::streams_of(typename pass_type::writes()) & bit) != 0) CHECK(on_device.unwritten(bit) == 0);
  });
}

/// As above, for all shapes.
template <class Make>
void expect_as_host_everywhere(const Make& make) {
  for (unsigned alignment = 0; alignment <= 4; ++alignment) {
    CAPTURE(alignment);
    expect_as_host(small_spec(alignment), make);
  }
}

// With one parameter each, as the function below wants them: clang matches no template of two, with a default, to one of one.
template <class TrustRatio>
using sum_living = slamb::detail::update_and_sum<TrustRatio>;
template <class TrustRatio>
using apply_living = slamb::detail::apply_update<TrustRatio>;
template <class TrustRatio>
using update_living = slamb::detail::update_and_apply<TrustRatio>;

/// Compares a pass on Adam's update, with its tables.
template <template <class> class Pass, class TrustRatio>
void expect_update_as_host(const model_spec& spec, const TrustRatio& ratio) {
  const guarded_model shape(spec);
  const test_support::made_up_tables<TrustRatio> tables(shape.tensors(), ratio);
  expect_as_host(spec, [&](const guarded_model& m) { return Pass<TrustRatio>{tables.update(m.view())}; });
}

/// Reads and writes every array that a pass may, and shifts each value to another array, so that a mix-up of two arrays shows.
struct everything : slamb::detail::pass_without_constants {
  using writes = arrays<array::parameter, array::momentum, array::variance, array::exchanged, array::fresh_variance,
                        array::accumulated_update, array::anchor, array::residual>;
  using reads = slamb::detail::union_of_t<writes, arrays<array::gradient>>;
  static constexpr int sums = 3;
  static constexpr int maxima = 2;

  template <class Element, class Sums>
  SLAMB_ELEMENT void operator()(Element& e, no_constants /*constants*/, Sums& sums) const {
    using slamb::absolute;
    sums.check_finite(e.gradient);
    sums.add_square(0, e.gradient);
    sums.add_square(1, e.residual);
    sums.add_square(2, e.anchor);
    sums.take_maximum(0, absolute(e.parameter));
    sums.take_maximum(1, e.variance);
    const auto residual = e.residual;
    e.residual = e.anchor + e.gradient;
    e.anchor = e.accumulated_update;
    e.accumulated_update = e.fresh_variance;
    e.fresh_variance = e.exchanged;
    e.exchanged = e.variance;
    e.variance = e.momentum;
    e.momentum = e.parameter;
    e.parameter = residual;
  }
};

everything make_everything(const guarded_model& /*model*/) { return {}; }

}  // namespace

TEST_CASE("run_pass: every array is read and written as on the host, at every alignment and length") {
  expect_as_host_everywhere(make_everything);
  for (const std::uint64_t cut : {1U, 3U, 4U, 64U, 100U}) {
    CAPTURE(cut);
    expect_as_host({.sizes = {100, 5, 259}, .cut = cut}, make_everything);
  }
  expect_as_host({.sizes = {1, 777, 0, 1040, 33}, .cut = 500, .gradient_is_exchanged = true}, make_everything);
}

TEST_CASE("run_pass: tails of every length, at every alignment") {
  for (unsigned alignment = 0; alignment <= 4; ++alignment) {
    CAPTURE(alignment);
    expect_update_as_host<sum_living>(every_tail(alignment), slamb::layerwise_trust_ratio{});
  }
}

TEST_CASE("run_pass: the passes of AdamW and LAMB have the host's bits") {
  for (unsigned alignment = 0; alignment <= 4; alignment += 2) {
    const model_spec spec = small_spec(alignment);
    expect_update_as_host<sum_living>(spec, slamb::layerwise_trust_ratio{});
    expect_update_as_host<sum_living>(spec, slamb::unit_trust_ratio{});
    expect_update_as_host<apply_living>(spec, slamb::layerwise_trust_ratio{});
    expect_update_as_host<update_living>(spec, slamb::unit_trust_ratio{});
  }
  expect_as_host_everywhere([](const guarded_model& /*model*/) { return slamb::detail::gather_gradient{}; });
  expect_as_host_everywhere([](const guarded_model& /*model*/) { return slamb::detail::check_gradient{}; });
  expect_as_host_everywhere([](const guarded_model& /*model*/) { return slamb::detail::sum_gradient{}; });
}

TEST_CASE("run_pass: the passes of averaging, monitoring, 1-bit LAMB and 0/1 Adam have the host's bits") {
  expect_as_host_everywhere([](const guarded_model& /*model*/) { return slamb::detail::gather_parameters{}; });
  expect_as_host_everywhere([](const guarded_model& /*model*/) { return slamb::detail::scatter_parameters{{}, 0.3F}; });
  expect_as_host_everywhere([](const guarded_model& /*model*/) { return slamb::detail::sum_of_variance{}; });
  expect_as_host_everywhere([](const guarded_model& /*model*/) { return slamb::detail::norms_of_model{}; });
  expect_as_host_everywhere([](const guarded_model& /*model*/) { return slamb::detail::fingerprint_of_parameters{}; });
  expect_as_host_everywhere([](const guarded_model& /*model*/) { return slamb::detail::start_fresh_variance{}; });
  expect_as_host_everywhere([](const guarded_model& /*model*/) { return slamb::detail::start_anchor{}; });

  using stopped = slamb::detail::stopped_variance;
  const guarded_model shape(small_spec());
  const test_support::made_up_tables<slamb::frozen_trust_ratio> frozen(shape.tensors(), {});
  using refresh = slamb::detail::receive_and_refresh<slamb::frozen_trust_ratio>;
  expect_as_host_everywhere([&](const guarded_model& m) {
    return slamb::detail::pass_with_own_signal<refresh>{{{frozen.update<stopped>(m.view()), nullptr}, 9.0F}};
  });
  const test_support::made_up_tables<slamb::unit_trust_ratio> unit(shape.tensors(), {});
  const std::vector<float> inverse_rate_sums(shape.tensors().segments().size(), 0.7F);
  expect_as_host_everywhere([&](const guarded_model& m) {
    return slamb::detail::pass_with_own_signal<slamb::detail::exchange_update>{
        {{unit.update<stopped>(m.view())}, inverse_rate_sums.data()}};
  });
  expect_as_host_everywhere(
      [&](const guarded_model& m) { return slamb::detail::local_update{unit.update<stopped>(m.view())}; });
  expect_as_host_everywhere([&](const guarded_model& /*model*/) {
    return slamb::detail::continue_late_variances<true, true>{unit.scalars()};
  });
  std::vector<float> has_common = inverse_rate_sums;
  has_common.back() = 0.0F;
  expect_as_host_everywhere([&](const guarded_model& /*model*/) {
    return slamb::detail::continue_late_variances<false, false>{unit.scalars(), has_common.data()};
  });
  expect_as_host_everywhere([](const guarded_model& /*model*/) { return slamb::detail::count_late{}; });
  expect_as_host_everywhere(
      [&](const guarded_model& /*model*/) { return slamb::detail::count_directions<stopped>{unit.scalars()}; });
}

TEST_CASE("run_pass: passes of a variance that has stopped have the bits of the host's loop without late elements") {
  using stopped = slamb::detail::stopped_variance;
  const guarded_model shape(small_spec());
  test_support::made_up_tables<slamb::frozen_trust_ratio> frozen(shape.tensors(), {});
  test_support::made_up_tables<slamb::unit_trust_ratio> unit(shape.tensors(), {});
  frozen.end_late_variances();
  unit.end_late_variances();
  using refresh = slamb::detail::receive_and_refresh<slamb::frozen_trust_ratio>;
  expect_as_host_everywhere([&](const guarded_model& m) {
    return slamb::detail::pass_with_own_signal<refresh>{{{frozen.update<stopped>(m.view()), nullptr}, 9.0F}};
  });
  expect_as_host_everywhere([&](const guarded_model& m) {
    return slamb::detail::apply_update<slamb::frozen_trust_ratio, stopped>{frozen.update<stopped>(m.view())};
  });
  expect_as_host_everywhere(
      [&](const guarded_model& m) { return slamb::detail::local_update{unit.update<stopped>(m.view())}; });
  expect_as_host_everywhere([&](const guarded_model& m) {
    return slamb::detail::update_with_frozen_variance{unit.update<stopped>(m.view())};
  });
}

TEST_CASE("run_pass: a range of tiles, with an exchange buffer that begins there") {
  for (std::size_t first = 0; first < 6; ++first) {
    CAPTURE(first);
    expect_as_host({.sizes = {1200, 33, 4000}, .cut = 700, .exchanged_tile = first}, make_everything);
  }
}

TEST_CASE("run_pass: in the emulator, an array that a pass does not list reads as NaN") {
  guarded_model m({.sizes = {5, 20}, .filled = stream::parameter | stream::momentum});
  emulated_on(2).launch(run_pass{forgets_a_read{}, m.view(), m.tiles()});
  for (std::size_t tensor = 0; tensor < 2; ++tensor)
    for (std::size_t i = 0; i < (tensor == 0 ? 5U : 20U); ++i)
      CHECK(std::isnan(static_cast<const float*>(m.view().segments[tensor].data)[i]));
}

TEST_CASE("run_pass: no tensors, and ten thousand of one element") {
  expect_as_host({.sizes = {}}, make_everything);
  expect_as_host({.sizes = std::vector<std::size_t>(10000, 1)}, make_everything);
  const guarded_model nothing({.sizes = {0, 0}});
  const run_pass kernel{everything{}, nothing.view(), nothing.tiles()};
  CHECK(kernel.work() == 0);
  emulated_on().launch(kernel);
  host_launcher().launch(kernel);
  CHECK(nothing == guarded_model({.sizes = {0, 0}}));
}

TEST_CASE("run_pass: finds a value that is not finite at any position, and reports no other") {
  constexpr float nan = std::numeric_limits<float>::quiet_NaN();
  constexpr float infinity = std::numeric_limits<float>::infinity();
  const auto host = host_launcher();
  for (const unsigned alignment : {0U, 1U}) {
    const model_spec spec{.sizes = {3, 8192 + 21, 40}, .filled = stream::gradient, .alignment = alignment};
    std::vector<std::pair<std::size_t, std::size_t>> places{{0, 0}, {0, 1}, {0, 2}};
    for (std::size_t i = 0; i < 20; ++i) places.emplace_back(1, i);
    for (std::size_t i = 8180; i < 8192 + 21; ++i) places.emplace_back(1, i);
    for (std::size_t i = 0; i < 40; ++i) places.emplace_back(2, i);
    guarded_model m(spec);
    for (const auto& at : places) {
      const std::size_t tensor = at.first;
      const std::size_t place = at.second;
      CAPTURE(tensor);
      CAPTURE(place);
      const float before = m.gradient(tensor)[place];
      for (const float value : {nan, -nan, infinity, -infinity, 2e19F, -3e38F, 1.8e19F, 0.0F, 1e-45F}) {
        CAPTURE(value);
        m.gradient(tensor)[place] = value;
        const bool expected = !(std::abs(value) < 1.84e19F);
        const slamb::detail::cuda::thread_order order = static_cast<slamb::detail::cuda::thread_order>(place % 3);
        const auto check = [&](const auto& launcher) {
          std::uint32_t not_finite = 7;
          launcher.launch(run_pass{slamb::detail::check_gradient{}, m.view(), m.tiles(), nullptr, &not_finite});
          CHECK(not_finite == (expected ? 1U : 7U));
        };
        check(emulated_on(2, order));
        check(host);
      }
      m.gradient(tensor)[place] = before;
    }
    m.gradient(2)[3] = nan;
    emulated_on().launch(run_pass{slamb::detail::check_gradient{}, m.view(), m.tiles()});  // the result is discarded
    std::uint32_t not_finite = 7;
    emulated_on().launch(run_pass{slamb::detail::check_gradient{}, m.view(), {0, 3}, nullptr, &not_finite});
    CHECK(not_finite == 7);
  }
}

TEST_CASE("run_pass: a skipped step changes nothing") {
  const model_spec spec = small_spec();
  for (const std::uint32_t skip : {0U, 1U, 5U}) {
    const auto check = [&](const auto& launcher) {
      guarded_model m(spec);
      m.gradient(1)[5] = std::numeric_limits<float>::infinity();
      guarded_model untouched(spec);
      untouched.gradient(1)[5] = std::numeric_limits<float>::infinity();
      std::vector<double> sums = poisoned_doubles(m.tiles().last * slamb::detail::results_of<everything>());
      std::uint32_t not_finite = 0;
      auto view = m.view();
      view.skip = &skip;
      launcher.launch(run_pass{everything{}, view, m.tiles(), sums.data(), &not_finite});
      CHECK((m == untouched) == (skip != 0));
      CHECK(test_support::are_same(sums, poisoned_doubles(sums.size())) == (skip != 0));
      CHECK(not_finite == (skip == 0 ? 1U : 0U));
    };
    check(host_launcher());
    for_every_launch(check);
  }
}

TEST_CASE("run_pass: a tensor of more than 2^32 elements") {
  constexpr std::uint64_t size = (std::uint64_t{1} << 32U) + 5;
  test_support::sparse_memory parameter(size), gradient(size), momentum(size), variance(size), exchanged(size);
  if (!parameter || !gradient || !momentum || !variance || !exchanged) {
    MESSAGE("skipped: the system gives no address space of 17 GB");
    return;
  }
  const slamb::parameter tensor{.data = parameter.data(), .gradient = gradient.data(), .size = size};
  const slamb::detail::layout tensors({&tensor, 1}, 0.01);
  const std::vector<slamb::detail::tile> table = tensors.tile_table();
  const std::size_t tiles = tensors.tile_count();
  REQUIRE(tiles == size / 8192 + 1);
  constexpr std::uint64_t seen = 8192 + 5;  // elements of the last two tiles
  const auto fill = [&] {
    test_support::random_source source(9);
    for (std::uint64_t i = size - seen; i < size; ++i) {
      for (auto* array : {&parameter, &gradient, &momentum, &exchanged})
        array->data()[i] = static_cast<float>(source.uniform() - 0.5);
      variance.data()[i] = static_cast<float>(source.uniform());
    }
  };
  const auto last_of = [&](test_support::sparse_memory& array) {
    return std::vector<float>(array.data() + (size - seen), array.data() + size);
  };
  const slamb::detail::state_view<slamb::detail::view_in<>, arrays<array::momentum, array::variance>> view{
      {{.segments = tensors.segments().data(), .tiles = table.data(), .exchanged = exchanged.data()}},
      {momentum.data()},
      {variance.data()}};
  const test_support::made_up_tables<slamb::unit_trust_ratio> tables(tensors, {});
  const slamb::detail::update_and_apply<slamb::unit_trust_ratio> pass{tables.update(view)};
  const slamb::detail::tile_range last_two{tiles - 2, tiles};

  std::uint32_t not_finite = 0;
  const run_pass update{pass, view, last_two};
  const run_pass gather{slamb::detail::gather_gradient{}, view, last_two, nullptr, &not_finite};
  const run_pass check{slamb::detail::check_gradient{}, view, last_two, nullptr, &not_finite};
  const auto results_on = [&](const auto& launcher) {
    fill();
    launcher.launch(update);
    launcher.launch(gather);
    launcher.launch(check);
    CHECK(not_finite == 0);
    return std::vector{last_of(parameter), last_of(momentum), last_of(variance), last_of(exchanged)};
  };
  const auto expected = results_on(host_launcher());
  fill();
  CHECK(last_of(parameter) != expected[0]);
  CHECK(results_on(emulated_on()) == expected);
  gradient.data()[size - 1] = std::numeric_limits<float>::infinity();
  emulated_on().launch(check);
  CHECK(not_finite == 1);
}

}  // namespace kernel_run_pass_tests
