// A state saved on one backend resumes on the other.
#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "instances/emulated.hpp"
#include "slamb/slamb.hpp"
#include "support/generate.hpp"

namespace properties_interchange_tests {
namespace {

/// The parameters and state of a training.
struct training {
  std::vector<float> parameters;
  std::vector<std::byte> state;
};

/// Resumes from `from` with steps `first` … `last`, on one rank. Without steps, the state is saved as it was loaded.
template <class Optimizer>
training go_on(const training& from, const typename Optimizer::options_type& options, std::uint64_t first,
               std::uint64_t last) {
  training now = from;
  std::vector<float> gradient(now.parameters.size());
  const std::size_t sizes[] = {300, 17, 0, 9000};
  std::vector<slamb::parameter> tensors;
  std::size_t at = 0;
  for (const std::size_t size : sizes) {
    tensors.push_back({.data = now.parameters.data() + at, .gradient = gradient.data() + at, .size = size});
    at += size;
  }
  Optimizer optimizer(tensors, options);
  if (!from.state.empty()) optimizer.load_state(from.state);
  for (std::uint64_t t = first; t <= last; ++t) {
    test_support::random_source random(23, t);
    for (float& g : gradient) g = static_cast<float>(random.bell());
    optimizer.step(0.01);
  }
  now.state = optimizer.save_state();
  return now;
}

training start() {
  training made;
  test_support::random_source random(24, 0);
  for (int i = 0; i < 9317; ++i) made.parameters.push_back(static_cast<float>(0.5 * random.bell()));
  return made;
}

double distance(const std::vector<float>& a, const std::vector<float>& b) {
  double most = 0.0;
  for (std::size_t i = 0; i < b.size(); ++i) {
    const double apart = std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i]));
    if (!(apart <= most)) most = std::isnan(apart) ? std::numeric_limits<double>::infinity() : apart;
  }
  return most;
}

/// Trains on `First`, and resumes on `Second`. The result must equal that of resuming on `First`, up to the order of sums.
template <class First, class Second>
void check_interchange(const typename First::options_type& options) {
  const training half = go_on<First>(start(), options, 1, 5);
  CHECK(go_on<Second>(half, options, 6, 5).state == half.state);
  const training same = go_on<First>(half, options, 6, 9);
  const training other = go_on<Second>(half, options, 6, 9);
  CHECK(distance(half.parameters, same.parameters) > 1e-3);
  CHECK(distance(other.parameters, same.parameters) < 1e-5);
  CHECK(other.state.size() == same.state.size());
}

template <template <class> class Recipe, class Options>
void check_both_ways(const Options& options) {
  using on_host = Recipe<slamb::host_backend>;
  using on_kernels = Recipe<slamb::emulated_backend>;
  check_interchange<on_host, on_kernels>(options);
  check_interchange<on_kernels, on_host>(options);
}

template <class Backend>
using lamb = slamb::lamb<slamb::self_communicator, Backend>;
template <class Backend>
using sparse = slamb::slamb<slamb::self_communicator, slamb::random_k<>, slamb::rescaled_trust_ratio<>, Backend>;
template <class Backend>
using one_bit_lamb = slamb::one_bit_lamb<slamb::self_communicator, slamb::sign, Backend>;
template <class Backend>
using zero_one_adam = slamb::zero_one_adam<slamb::self_communicator, slamb::sign, Backend>;

}  // namespace

TEST_CASE("interchange: each backend loads the other's saved state") {
  check_both_ways<lamb>(lamb<slamb::host_backend>::options_type{});
  check_both_ways<sparse>(sparse<slamb::host_backend>::options_type{.local_steps = 3, .dense_below = 100});
  check_both_ways<one_bit_lamb>(one_bit_lamb<slamb::host_backend>::options_type{
      .epsilon = 1e-2, .compress_single_rank = true, .warm_up = {.steps = 3}});
  zero_one_adam<slamb::host_backend>::options_type options{.epsilon = 1e-2, .compress_single_rank = true};
  options.variance_schedule.freeze_step = 3;
  check_both_ways<zero_one_adam>(options);
}

}  // namespace properties_interchange_tests
