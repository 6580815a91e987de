// Passes and the kernels between them, emulated on the CPU, compared with the host backend.
#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "slamb/backend/cuda/detail/emulator.hpp"
#include "slamb/backend/cuda/detail/pass_kernel.hpp"
#include "slamb/backend/cuda/detail/segment_kernels.hpp"
#include "slamb/backend/cuda/detail/tile_access.hpp"
#include "slamb/backend/host/detail/executor.hpp"
#include "slamb/communicator/any_communicator.hpp"
#include "slamb/communicator/self_communicator.hpp"
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
#include "support/sparse_memory.hpp"

namespace backend_cuda_pass_kernel_tests {
namespace {

using slamb::detail::cuda::emulator;
using slamb::detail::cuda::pass_kernel;
using test_support::for_every_launch;
using test_support::guarded_model;
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
  std::vector<double> host_sums = poisoned_doubles((tiles.last + 1) * results);
  const slamb::detail::host::executor executor(1, 1);
  std::uint32_t host_not_finite = 0;
  executor.run(make(on_host), on_host.view(), tiles, host_sums.data(), &host_not_finite);
  const bool finite = host_not_finite == 0;
  CHECK(finite);

  std::vector<double> first_sums;
  for_every_launch([&](const emulator& launcher) {
    guarded_model on_device(spec);
    std::vector<double> sums = poisoned_doubles(host_sums.size());
    std::uint32_t not_finite = 7;
    const pass_kernel<pass_type> kernel{make(on_device), on_device.view(), tiles, sums.data(), &not_finite};
    launcher.launch(kernel, kernel.work());
    CHECK(on_device == on_host);
    CHECK(test_support::are_near(sums, host_sums));
    CHECK(not_finite == 7);
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
using apply_living = slamb::detail::apply_update<TrustRatio>;

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

TEST_CASE("cuda tile_access: the threads of a block cover every element once, four at a time except at the end") {
  constexpr unsigned threads = 32;
  for (std::uint32_t count = 0; count <= 300; ++count) {
    std::vector<int> seen(count + 4, 0);
    std::uint32_t in_groups = 0;
    for (unsigned thread = 0; thread < threads; ++thread)
      slamb::detail::cuda::for_each_group<threads>(thread, count, [&]<unsigned W>(slamb::detail::cuda::group<W> at) {
        CHECK(at.i % W == 0);
        in_groups += W == 4 ? 4 : 0;
        for (unsigned j = 0; j < W; ++j) ++seen[at.i + j];
      });
    CHECK(std::accumulate(seen.begin(), seen.end(), 0) == static_cast<int>(count));
    for (std::uint32_t i = 0; i < count; ++i) CHECK(seen[i] == 1);
    CHECK(in_groups == count / 4 * 4);
  }
}

TEST_CASE("cuda tile_access: any single array may be misaligned to sixteen bytes") {
  constexpr std::size_t number = 9, length = 16;
  constexpr std::uint32_t first = 4;
  for (std::size_t moved = 0; moved < number; ++moved) {
    for (std::size_t offset = 0; offset < 8; ++offset) {
      CAPTURE(moved);
      CAPTURE(offset);
      alignas(16) float memory[number][length];
      for (std::size_t k = 0; k < number; ++k)
        for (std::size_t i = 0; i < length; ++i) memory[k][i] = static_cast<float>(100 * k + i);
      const auto array = [&](std::size_t k) { return memory[k] + (k == moved ? offset : 0); };
      const slamb::detail::segment nothing{};
      slamb::detail::cuda::tile_arrays_of<everything, slamb::detail::single_precision> at(test_support::full_view{},
                                                                                          nothing, {}, 0);
      at.parameter = array(0);
      at.gradient = {array(1), 1.0F};
      at.momentum = array(2);
      at.variance = array(3);
      at.exchanged = array(4);
      at.fresh_variance = array(5);
      at.accumulated_update = array(6);
      at.anchor = array(7);
      at.residual = array(8);
      slamb::detail::element_of<everything, slamb::detail::cuda::reals<4>> e;
      const slamb::detail::cuda::group<4> here{first};
      at.load(everything::reads(), e, here);
      for (std::size_t j = 0; j < 4; ++j) {
        const float read[number] = {e.parameter.of[j],          e.gradient.of[j],  e.momentum.of[j],
                                    e.variance.of[j],           e.exchanged.of[j], e.fresh_variance.of[j],
                                    e.accumulated_update.of[j], e.anchor.of[j],    e.residual.of[j]};
        for (std::size_t k = 0; k < number; ++k) CHECK(read[k] == array(k)[first + j]);
      }
      e.parameter = -1.0F;
      e.residual = -2.0F;
      at.store(arrays<slamb::detail::array::parameter, slamb::detail::array::residual>(), e, here);
      for (std::size_t i = 0; i < length - offset; ++i) {
        const bool inside = i >= first && i < first + 4;
        const auto was = [&](std::size_t k) { return static_cast<float>(100 * k + i + (k == moved ? offset : 0)); };
        CHECK(array(0)[i] == (inside ? -1.0F : was(0)));
        CHECK(array(2)[i] == was(2));
        CHECK(array(8)[i] == (inside ? -2.0F : was(8)));
      }
    }
  }
}

TEST_CASE("cuda pass_kernel: every array is read and written as on the host, at every alignment and length") {
  expect_as_host_everywhere(make_everything);
  for (const std::uint64_t cut : {1U, 3U, 4U, 64U, 100U}) {
    CAPTURE(cut);
    expect_as_host({.sizes = {100, 5, 259}, .cut = cut}, make_everything);
  }
  expect_as_host({.sizes = {1, 777, 0, 1040, 33}, .cut = 500, .gradient_is_exchanged = true}, make_everything);
}

TEST_CASE("cuda pass_kernel: tails of every length, at every alignment") {
  for (unsigned alignment = 0; alignment <= 4; ++alignment) {
    CAPTURE(alignment);
    expect_update_as_host<slamb::detail::update_and_sum>(every_tail(alignment), slamb::layerwise_trust_ratio{});
  }
}

TEST_CASE("cuda pass_kernel: the passes of AdamW and LAMB have the host's bits") {
  for (unsigned alignment = 0; alignment <= 4; alignment += 2) {
    const model_spec spec = small_spec(alignment);
    expect_update_as_host<slamb::detail::update_and_sum>(spec, slamb::layerwise_trust_ratio{});
    expect_update_as_host<slamb::detail::update_and_sum>(spec, slamb::unit_trust_ratio{});
    expect_update_as_host<apply_living>(spec, slamb::layerwise_trust_ratio{});
    expect_update_as_host<slamb::detail::update_and_apply>(spec, slamb::unit_trust_ratio{});
  }
  expect_as_host_everywhere([](const guarded_model& /*model*/) { return slamb::detail::gather_gradient{}; });
  expect_as_host_everywhere([](const guarded_model& /*model*/) { return slamb::detail::check_gradient{}; });
  expect_as_host_everywhere([](const guarded_model& /*model*/) { return slamb::detail::sum_gradient{}; });
}

TEST_CASE("cuda pass_kernel: the passes of averaging, monitoring, 1-bit LAMB and 0/1 Adam have the host's bits") {
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

TEST_CASE(
    "cuda pass_kernel: passes of a variance that has stopped have the bits of the host's loop without late elements") {
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

TEST_CASE("cuda pass_kernel: a range of tiles, with an exchange buffer that begins there") {
  for (std::size_t first = 0; first < 6; ++first) {
    CAPTURE(first);
    expect_as_host({.sizes = {1200, 33, 4000}, .cut = 700, .exchanged_tile = first}, make_everything);
  }
}

TEST_CASE("cuda pass_kernel: in the emulator, an array that a pass does not list reads as NaN") {
  guarded_model m({.sizes = {5, 20}, .filled = stream::parameter | stream::momentum});
  const pass_kernel<forgets_a_read> kernel{{}, m.view(), m.tiles(), nullptr, nullptr};
  emulator(2).launch(kernel, kernel.work());
  for (std::size_t tensor = 0; tensor < 2; ++tensor)
    for (std::size_t i = 0; i < (tensor == 0 ? 5U : 20U); ++i)
      CHECK(std::isnan(static_cast<const float*>(m.view().segments[tensor].data)[i]));
}

TEST_CASE("cuda pass_kernel: no tensors, and ten thousand of one element") {
  expect_as_host({.sizes = {}}, make_everything);
  expect_as_host({.sizes = std::vector<std::size_t>(10000, 1)}, make_everything);
  const guarded_model nothing({.sizes = {0, 0}});
  const pass_kernel<everything> kernel{{}, nothing.view(), nothing.tiles(), nullptr, nullptr};
  CHECK(kernel.work() == 0);
  slamb::detail::cuda::emulated_block<256> block(0, 1, slamb::detail::cuda::thread_order::forwards);
  kernel(block);
  CHECK(nothing == guarded_model({.sizes = {0, 0}}));
}

TEST_CASE("cuda pass_kernel: finds a value that is not finite at any position, and reports no other") {
  constexpr float nan = std::numeric_limits<float>::quiet_NaN();
  constexpr float infinity = std::numeric_limits<float>::infinity();
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
        std::uint32_t not_finite = 7;
        const pass_kernel<slamb::detail::check_gradient> kernel{{}, m.view(), m.tiles(), nullptr, &not_finite};
        emulator(2, order).launch(kernel, kernel.work());
        CHECK(not_finite == (expected ? 1U : 7U));
        std::uint32_t on_host = 0;
        slamb::detail::host::executor(1, 1).run(slamb::detail::check_gradient{}, m.view(), m.tiles(), nullptr,
                                                &on_host);
        CHECK(on_host == (expected ? 1 : 0));
      }
      m.gradient(tensor)[place] = before;
    }
    m.gradient(2)[3] = nan;
    const pass_kernel<slamb::detail::check_gradient> unseen{{}, m.view(), m.tiles(), nullptr, nullptr};
    emulator().launch(unseen, unseen.work());  // the result is discarded
    std::uint32_t not_finite = 7;
    const pass_kernel<slamb::detail::check_gradient> others{{}, m.view(), {0, 3}, nullptr, &not_finite};
    emulator().launch(others, others.work());
    CHECK(not_finite == 7);
  }
}

TEST_CASE("cuda pass_kernel: a skipped step changes nothing") {
  const model_spec spec = small_spec();
  for (const std::uint32_t skip : {0U, 1U, 5U}) {
    for_every_launch([&](const emulator& launcher) {
      guarded_model m(spec);
      m.gradient(1)[5] = std::numeric_limits<float>::infinity();
      guarded_model untouched(spec);
      untouched.gradient(1)[5] = std::numeric_limits<float>::infinity();
      std::vector<double> sums = poisoned_doubles(m.tiles().last * pass_kernel<everything>::results);
      std::uint32_t not_finite = 0;
      auto view = m.view();
      view.skip = &skip;
      const pass_kernel<everything> kernel{{}, view, m.tiles(), sums.data(), &not_finite};
      launcher.launch(kernel, kernel.work());
      CHECK((m == untouched) == (skip != 0));
      CHECK(test_support::are_same(sums, poisoned_doubles(sums.size())) == (skip != 0));
      CHECK(not_finite == (skip == 0 ? 1U : 0U));
    });
  }
}

namespace {

/// Stores its results, and counts its calls.
struct record_results {
  double* to;  // [segments][3]
  int* calls;  // [segments]

  void operator()(std::size_t tensor, const double* results) const {
    for (std::size_t k = 0; k < 3; ++k) to[tensor * 3 + k] = results[k];
    ++calls[tensor];
  }
};

struct count_calls {
  int* calls;
  void operator()() const { ++*calls; }
};

/// Work that threads share: counts each of `count` numbers once.
struct count_by_threads {
  int* calls_of_thread;
  int* numbers;
  unsigned count;
  void operator()(unsigned thread = 0, unsigned threads = 1) const {
    ++calls_of_thread[thread];
    for (unsigned i = thread; i < count; i += threads) ++numbers[i];
  }
};

/// Stores the number of earlier calls.
struct note_calls {
  const std::vector<int>* calls_of_thread;
  std::vector<int>* seen;
  void operator()() const { seen->push_back(std::accumulate(calls_of_thread->begin(), calls_of_thread->end(), 0)); }
};

/// [tiles][3] results of a pass: sums, and a maximum that is a float.
std::vector<double> made_up_results(std::size_t tiles) {
  test_support::random_source source(5);
  std::vector<double> results(tiles * 3);
  for (std::size_t i = 0; i < results.size(); ++i)
    results[i] = i % 3 == 2 ? static_cast<double>(static_cast<float>(source.uniform())) : source.uniform();
  return results;
}

void expect_segments_as_host(const slamb::detail::layout& tensors, std::size_t first, std::size_t last) {
  const std::size_t count = tensors.segments().size();
  const std::vector<double> of_tiles = made_up_results(tensors.tiles().size());
  std::vector<std::size_t> first_tile;
  for (std::size_t l = 0; l < count; ++l) first_tile.push_back(tensors.tiles_of(l).first);
  first_tile.push_back(tensors.tiles().size());

  std::vector<double> expected = poisoned_doubles(count * 3);
  const slamb::detail::host::executor executor(1, 1);
  executor.visit_segments<2, 1>(tensors.first_tiles(), first, last, of_tiles.data(),
                                slamb::any_communicator<>(slamb::self_communicator()),
                                [&](std::size_t l, const double* results) {
                                  for (std::size_t k = 0; k < 3; ++k) expected[l * 3 + k] = results[k];
                                });
  std::vector<double> of_first_launch;
  for (const std::uint32_t skip : {0U, 1U})
    for_every_launch([&](const emulator& launcher) {
      std::vector<double> finished = poisoned_doubles(count * 3);
      std::vector<int> calls(count, 0);
      const slamb::detail::cuda::segment_kernel<2, 1, record_results> kernel{
          {finished.data(), calls.data()}, of_tiles.data(), first_tile.data(), first, last, &skip};
      launcher.launch(kernel, kernel.work());
      if (skip != 0) {
        CHECK(test_support::are_same(finished, poisoned_doubles(count * 3)));
        return;
      }
      for (std::size_t l = 0; l < count; ++l) CHECK(calls[l] == (l >= first && l < last ? 1 : 0));
      CHECK(test_support::are_near(finished, expected));
      for (std::size_t i = 2; i < finished.size(); i += 3)
        CHECK(test_support::are_same({&finished[i], 1}, {&expected[i], 1}));
      if (of_first_launch.empty()) of_first_launch = finished;
      CHECK(test_support::are_same(finished, of_first_launch));
    });
}

}  // namespace

TEST_CASE("cuda segment_kernels: the results of a tensor's tiles are added as on the host, for one tile or many") {
  const guarded_model m({.sizes = {1, 0, 8192, 8193, 100000, 0, 3}, .filled = 0, .cut = 50});
  expect_segments_as_host(m.tensors(), 0, 7);
  expect_segments_as_host(m.tensors(), 2, 5);
  expect_segments_as_host(m.tensors(), 4, 4);
  const guarded_model many({.sizes = std::vector<std::size_t>(10000, 1), .filled = 0});
  expect_segments_as_host(many.tensors(), 0, 10000);
}

TEST_CASE("cuda segment_kernels: totals and calls") {
  const slamb::any_communicator<> alone{slamb::self_communicator()};
  for (const std::size_t count : {0U, 1U, 31U, 512U, 513U, 100000U}) {
    CAPTURE(count);
    const std::vector<double> values = made_up_results(count);
    const double expected = slamb::detail::host::executor::total(std::span(values).first(count), alone);
    double of_first_launch = -1.0;
    for (const std::uint32_t skip : {0U, 1U})
      for_every_launch([&](const emulator& launcher) {
        double total[2] = {-1.0, -1.0};
        int calls = 0;
        const slamb::detail::cuda::total_kernel add{values.data(), count, total, &skip};
        const slamb::detail::cuda::invoke_kernel<count_calls> call{{&calls}, &skip};
        launcher.launch(add, add.work());
        launcher.launch(call, call.work());
        launcher.launch(call, 4);  // more blocks than needed make no more calls
        CHECK(total[1] == -1.0);
        CHECK(calls == (skip != 0 ? 0 : 2));
        if (skip != 0) {
          CHECK(total[0] == -1.0);
          return;
        }
        CHECK(std::abs(total[0] - expected) <= 1e-13 * expected);
        if (of_first_launch == -1.0) of_first_launch = total[0];
        CHECK(total[0] == of_first_launch);
      });
  }
}

TEST_CASE("cuda segment_kernels: threads run independent functions in parallel, in order with the others") {
  for_every_launch([&](const emulator& launcher) {
    std::vector<int> calls_of_thread(32), numbers(70), seen;
    const note_calls note{&calls_of_thread, &seen};
    const count_by_threads shared{calls_of_thread.data(), numbers.data(), 70};
    const auto all = slamb::detail::all_in_order(note, slamb::detail::all_in_order(shared, shared), note);
    const slamb::detail::cuda::invoke_kernel<std::remove_cv_t<decltype(all)>> kernel{all};
    launcher.launch(kernel, kernel.work());
    CHECK(seen == std::vector<int>{0, 64});
    CHECK(calls_of_thread == std::vector<int>(32, 2));
    CHECK(numbers == std::vector<int>(70, 2));
    all();  // one thread does all of it
    CHECK(seen == std::vector<int>{0, 64, 64, 66});
    CHECK(numbers == std::vector<int>(70, 4));
  });
}

TEST_CASE("cuda pass_kernel: a tensor of more than 2^32 elements") {
  constexpr std::uint64_t size = (std::uint64_t{1} << 32U) + 5;
  test_support::sparse_memory parameter(size), gradient(size), momentum(size), variance(size), exchanged(size);
  if (!parameter || !gradient || !momentum || !variance || !exchanged) {
    MESSAGE("skipped: the system gives no address space of 17 GB");
    return;
  }
  const slamb::parameter tensor{.data = parameter.data(), .gradient = gradient.data(), .size = size};
  const slamb::detail::layout tensors({&tensor, 1}, 0.01);
  const std::size_t tiles = tensors.tiles().size();
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
      {{.segments = tensors.segments().data(), .tiles = tensors.tiles().data(), .exchanged = exchanged.data()}},
      {momentum.data()},
      {variance.data()}};
  const test_support::made_up_tables<slamb::unit_trust_ratio> tables(tensors, {});
  const slamb::detail::update_and_apply<slamb::unit_trust_ratio> pass{tables.update(view)};
  const slamb::detail::tile_range last_two{tiles - 2, tiles};

  fill();
  slamb::detail::host::executor(1, 1).run(pass, view, last_two);
  slamb::detail::host::executor(1, 1).run(slamb::detail::gather_gradient{}, view, last_two);
  const std::vector<float> expected[] = {last_of(parameter), last_of(momentum), last_of(variance), last_of(exchanged)};
  fill();
  CHECK(last_of(parameter) != expected[0]);
  std::uint32_t not_finite = 0;
  const pass_kernel<slamb::detail::update_and_apply<slamb::unit_trust_ratio>> update{pass, view, last_two};
  const pass_kernel<slamb::detail::gather_gradient> gather{{}, view, last_two, nullptr, &not_finite};
  const pass_kernel<slamb::detail::check_gradient> check{{}, view, last_two, nullptr, &not_finite};
  emulator().launch(update, update.work());
  emulator().launch(gather, gather.work());
  emulator().launch(check, check.work());
  CHECK(last_of(parameter) == expected[0]);
  CHECK(last_of(momentum) == expected[1]);
  CHECK(last_of(variance) == expected[2]);
  CHECK(last_of(exchanged) == expected[3]);
  CHECK(not_finite == 0);
  gradient.data()[size - 1] = std::numeric_limits<float>::infinity();
  emulator().launch(check, check.work());
  CHECK(not_finite == 1);
  expect_segments_as_host(tensors, 0, 1);  // half a million tiles
}

}  // namespace backend_cuda_pass_kernel_tests
