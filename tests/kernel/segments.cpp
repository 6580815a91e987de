// The small kernels between passes, emulated and on the host.
#include "slamb/detail/kernel/segments.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <type_traits>
#include <vector>

#include "slamb/core/bfloat16.hpp"
#include "slamb/detail/pass/layout.hpp"
#include "slamb/detail/pass/step_state.hpp"
#include "support/cuda_model.hpp"
#include "support/generate.hpp"
#include "support/launchers.hpp"

namespace kernel_segments_tests {
namespace {

using test_support::emulated;
using test_support::for_every_launch;
using test_support::guarded_model;
using test_support::host_launcher;
using test_support::poisoned_doubles;

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
  const std::vector<double> of_tiles = made_up_results(tensors.tile_count());
  const auto finished_by = [&](const auto& launcher, std::uint32_t skip) {
    std::vector<double> finished = poisoned_doubles(count * 3);
    std::vector<int> calls(count, 0);
    launcher.launch(slamb::detail::finish_segments<2, 1, record_results>{
        {finished.data(), calls.data()}, of_tiles.data(), tensors.first_tiles().data(), first, last, &skip});
    if (skip != 0) CHECK(test_support::are_same(finished, poisoned_doubles(count * 3)));
    for (std::size_t l = 0; l < count; ++l) CHECK(calls[l] == (skip == 0 && l >= first && l < last ? 1 : 0));
    return finished;
  };
  finished_by(host_launcher(), 1);
  const std::vector<double> expected = finished_by(host_launcher(), 0);
  std::vector<double> of_first_launch;
  for_every_launch([&](const emulated& launcher) {
    finished_by(launcher, 1);
    const std::vector<double> finished = finished_by(launcher, 0);
    CHECK(test_support::are_near(finished, expected));
    for (std::size_t i = 2; i < finished.size(); i += 3)
      CHECK(test_support::are_same({&finished[i], 1}, {&expected[i], 1}));
    if (of_first_launch.empty()) of_first_launch = finished;
    CHECK(test_support::are_same(finished, of_first_launch));
  });
}

}  // namespace

TEST_CASE("segments: the results of a tensor's tiles are added as on the host, for one tile or many") {
  const guarded_model m({.sizes = {1, 0, 8192, 8193, 100000, 0, 3}, .filled = 0, .cut = 50});
  expect_segments_as_host(m.tensors(), 0, 7);
  expect_segments_as_host(m.tensors(), 2, 5);
  expect_segments_as_host(m.tensors(), 4, 4);
  const guarded_model many({.sizes = std::vector<std::size_t>(10000, 1), .filled = 0});
  expect_segments_as_host(many.tensors(), 0, 10000);
}

TEST_CASE("segments: half a million tiles, as of a tensor of 2^32 elements") {
  const guarded_model m({.sizes = {std::size_t{1} << 19U}, .filled = 0, .cut = 1});
  expect_segments_as_host(m.tensors(), 0, 1);
}

TEST_CASE("segments: totals and calls") {
  for (const std::size_t count : {0U, 1U, 31U, 512U, 513U, 100000U}) {
    CAPTURE(count);
    const std::vector<double> values = made_up_results(count);
    const auto total_by = [&](const auto& launcher, std::uint32_t skip) {
      double total[2] = {-1.0, -1.0};
      int calls = 0;
      launcher.launch(slamb::detail::add_up{values.data(), count, total, &skip});
      launcher.launch(slamb::detail::invoke_functions<count_calls>{{&calls}, &skip});
      CHECK(calls == (skip != 0 ? 0 : 1));
      CHECK(total[1] == -1.0);
      return total[0];
    };
    CHECK(total_by(host_launcher(), 1) == -1.0);
    const double expected = total_by(host_launcher(), 0);
    CHECK(expected ==
          doctest::Approx(std::accumulate(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(count), 0.0))
              .epsilon(1e-12));
    double of_first_launch = -1.0;
    for_every_launch([&](const emulated& launcher) {
      CHECK(total_by(launcher, 1) == -1.0);
      const double total = total_by(launcher, 0);
      CHECK(std::abs(total - expected) <= 1e-13 * expected);
      if (of_first_launch == -1.0) of_first_launch = total;
      CHECK(total == of_first_launch);
      int calls = 0;
      launcher.device().launch(slamb::detail::invoke_functions<count_calls>{{&calls}}, 4);
      CHECK(calls == 1);  // more blocks than needed make no more calls
    });
  }
}

TEST_CASE_TEMPLATE("segments: squares of floats and of bfloat16, without the gaps between tensors", T, float,
                   slamb::bfloat16) {
  const guarded_model m({.sizes = {1, 0, 8192, 8193, 777, 0, 3}, .filled = 0, .cut = 500});
  const slamb::detail::layout& tensors = m.tensors();
  const auto from_float = [](float x) {
    if constexpr (std::is_same_v<T, float>)
      return x;
    else
      return slamb::detail::to_bfloat16(x);
  };
  std::vector<T> values(tensors.state_elements(), from_float(std::numeric_limits<float>::quiet_NaN()));
  std::vector<double> expected;
  test_support::random_source source(7);
  for (const slamb::detail::tile& t : tensors.tile_table()) {
    double squares = 0.0;
    for (std::uint32_t i = 0; i < t.count; ++i) {
      const float x = static_cast<float>(source.below(2048)) / 256.0F - 4.0F;
      T& stored = values[tensors.segments()[t.segment].state + t.first + i] = from_float(x);
      if constexpr (std::is_same_v<T, float>)
        squares += static_cast<double>(stored) * static_cast<double>(stored);
      else
        squares += std::pow(static_cast<double>(slamb::detail::to_float(stored)), 2.0);
    }
    expected.push_back(squares);  // exact
  }
  const auto check = [&](const auto& launcher) {
    for (const std::uint32_t skip : {0U, 1U}) {
      auto view = m.view();
      view.skip = &skip;
      std::vector<double> sums(expected.size(), -1.0);
      launcher.launch(slamb::detail::sum_squares<T>{view, m.tiles(), values.data(), sums.data()});
      CHECK(sums == (skip == 0 ? expected : std::vector<double>(expected.size(), -1.0)));
    }
  };
  check(host_launcher());
  for_every_launch(check);
}

TEST_CASE("segments: threads run independent functions in parallel, in order with the others") {
  for_every_launch([&](const emulated& launcher) {
    std::vector<int> calls_of_thread(32), numbers(70), seen;
    const note_calls note{&calls_of_thread, &seen};
    const count_by_threads shared{calls_of_thread.data(), numbers.data(), 70};
    const auto all = slamb::detail::all_in_order(note, slamb::detail::all_in_order(shared, shared), note);
    launcher.launch(slamb::detail::invoke_functions<std::remove_cv_t<decltype(all)>>{all});
    CHECK(seen == std::vector<int>{0, 64});
    CHECK(calls_of_thread == std::vector<int>(32, 2));
    CHECK(numbers == std::vector<int>(70, 2));
    all();  // one thread does all of it
    CHECK(seen == std::vector<int>{0, 64, 64, 66});
    CHECK(numbers == std::vector<int>(70, 4));
  });
}

}  // namespace kernel_segments_tests
