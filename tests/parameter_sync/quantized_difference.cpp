// SLAMB whose parameters are kept together by quantized differences, compared with the oracle; what every exchange conserves; and
// the common point, which must be equal on all ranks.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "instances/emulated.hpp"
#include "slamb/slamb.hpp"
#include "support/archetype_quantizers.hpp"
#include "support/cluster.hpp"
#include "support/difference_oracle.hpp"

namespace parameter_sync_quantized_difference_tests {
namespace {

using slamb::thread_communicator;
using slamb::sync::quantized_difference;
using test_support::experiment;

using signs = slamb::basic_sign<slamb::segment_scale::l1>;

using exact = test_support::archetype_floats;  // loses nothing

template <class ParameterSync, class TrustRatio = slamb::rescaled_trust_ratio<>, class Backend = slamb::host_backend>
using optimizer = slamb::slamb<TrustRatio, ParameterSync, thread_communicator, Backend>;

/// Trains on the kernels of the CUDA backend, emulated.
template <class Optimizer>
test_support::trajectory train_on_kernels(const experiment& e, const typename Optimizer::options_type& options) {
  test_support::trajectory reached = test_support::place_of(e);
  slamb::run_ranks(e.world, [&](thread_communicator communicator) {
    const auto rank = static_cast<std::size_t>(communicator.rank());
    CHECK(test_support::train_rank<Optimizer>(e, rank, options, std::move(communicator), slamb::emulated_backend{},
                                              reached));
  });
  return reached;
}

oracle::vector unchanged(const oracle::vector& values) { return values; }
oracle::vector to_bfloat16(const oracle::vector& values) {
  oracle::vector all(values.size());
  std::transform(values.begin(), values.end(), all.begin(), [](double x) {
    return static_cast<double>(slamb::detail::to_float(slamb::detail::to_bfloat16(static_cast<float>(x))));
  });
  return all;
}

/// Three tensors: one that three ranks share, one that fits into one rank's part, and one of one dimension.
test_support::model some_model() { return {{.size = 700}, {.size = 100}, {.size = 60, .dimensions = 1}}; }

/// The largest error against the oracle; negative if a value was so near to a threshold that its code may differ.
template <class ParameterSync>
double error_of(std::uint64_t seed, int world, std::int64_t every, const oracle::lossy& difference,
                const oracle::lossy& mean, const oracle::vector& thresholds = {0.0}, std::size_t block = 0,
                std::size_t steps = 8) {
  using slamb_type = optimizer<ParameterSync>;
  experiment e = test_support::make_experiment(some_model(), seed, world, steps);
  const typename slamb_type::options_type options{
      .local_steps = every, .dense_below = 10, .compressor = {.k = 0.25, .seed = seed}};
  test_support::take_masks(e, options.compressor);
  const test_support::trajectory got = test_support::train<slamb_type>(e, options);
  auto never_averaged = options;
  never_averaged.local_steps = 0;
  oracle::slamb run = test_support::slamb_oracle(e, never_averaged);
  oracle::difference_exchange exchange(test_support::oracle_tensors(e.tensors, options.weight_decay),
                                       test_support::widened(e.start), difference, mean, thresholds, block);
  double worst = 0.0;
  for (std::size_t t = 0; t < e.steps(); ++t) {
    const std::vector<oracle::vector> before = run.all_parameters();
    run.step(test_support::rates_of(e.tensors, e.rates[t]), test_support::widened(e.gradients[t]), e.masks[t]);
    if (t % static_cast<std::size_t>(every) == 0) exchange(run.all_parameters());
    for (int rank = 0; rank < world; ++rank)
      worst = std::max(worst,
                       test_support::max_relative_error(got[t][static_cast<std::size_t>(rank)], run.parameters(rank)));
  }
  return exchange.closest() < 2e-4 ? -1.0 : worst;
}

constexpr double tolerance = 2e-6;

/// Ranks whose parameters are moved apart by hand before the second step. Steps have a learning rate of 0.
///
/// @return [step][rank][n] the parameters after each exchange; the first are those that were moved apart
template <class ParameterSync>
std::vector<std::vector<std::vector<float>>> exchanges_of(const ParameterSync& sync, int world, std::size_t n,
                                                          int steps) {
  std::vector<std::vector<std::vector<float>>> reached(
      static_cast<std::size_t>(steps) + 1, std::vector<std::vector<float>>(static_cast<std::size_t>(world)));
  slamb::run_ranks(world, [&](thread_communicator ranks) {
    const auto rank = static_cast<std::size_t>(ranks.rank());
    std::vector<float> p(n, 1.0F), g(n, 0.5F);
    const std::vector<slamb::parameter> parameters{{.data = p.data(), .gradient = g.data(), .size = n}};
    optimizer<ParameterSync> its({parameters}, {.local_steps = 1, .parameter_sync = sync}, std::move(ranks));
    its.step(0.0);
    test_support::random_source source(n, rank + 1);
    for (float& x : p) x += 0.01F * static_cast<float>(source.bell());
    reached[0][rank] = p;
    for (int t = 1; t <= steps; ++t) {
      its.step(0.0);
      reached[static_cast<std::size_t>(t)][rank] = p;
    }
  });
  return reached;
}

/// [n] the mean over ranks.
std::vector<double> mean_of(const std::vector<std::vector<float>>& of_ranks) {
  std::vector<double> mean(of_ranks[0].size());
  for (const std::vector<float>& p : of_ranks)
    for (std::size_t j = 0; j < mean.size(); ++j)
      mean[j] += static_cast<double>(p[j]) / static_cast<double>(of_ranks.size());
  return mean;
}
double largest_difference(std::span<const double> a, std::span<const double> b) {
  double largest = 0.0;
  for (std::size_t j = 0; j < a.size(); ++j) largest = std::max(largest, std::abs(a[j] - b[j]));
  return largest;
}

/// Q loses something, M nothing: the mean of the parameters stays.
template <class Quantizer>
void check_that_mean_stays(const Quantizer& quantizer) {
  const quantized_difference<Quantizer, exact> sync{quantizer};
  for (const int world : {2, 3, 8}) {
    const auto reached = exchanges_of(sync, world, 1000, 6);
    for (const auto& of_ranks : reached) CHECK(largest_difference(mean_of(of_ranks), mean_of(reached[0])) <= 1e-6);
  }
}

/// M loses something, Q nothing: all ranks have equal parameters, and reach the mean in the end, because its error is sent later.
template <class Quantizer>
void check_that_error_is_sent(const Quantizer& quantizer, double left) {
  const quantized_difference<exact, Quantizer> sync{{}, quantizer};
  const auto reached = exchanges_of(sync, 3, 1000, 40);
  for (std::size_t t = 1; t < reached.size(); ++t)
    for (const std::vector<float>& p : reached[t]) CHECK(largest_difference(mean_of({p}), mean_of(reached[t])) <= 1e-7);
  const double first = largest_difference(mean_of(reached[1]), mean_of(reached[0]));
  CHECK(largest_difference(mean_of(reached.back()), mean_of(reached[0])) <= left * first);
}

}  // namespace

TEST_CASE("differences: signs and their mean follow the oracle, at any interval") {
  int compared = 0;
  for (std::uint64_t seed = 1; seed <= 30; ++seed)
    for (const int world : {2, 3, 4}) {
      const double error = error_of<quantized_difference<signs, signs>>(
          seed, world, 1 + static_cast<std::int64_t>(seed % 3), oracle::signs_of, oracle::signs_of);
      CAPTURE(seed);
      CAPTURE(world);
      CHECK(error <= tolerance);
      if (error >= 0.0) ++compared;
    }
  CHECK(compared >= 10);
}

TEST_CASE("differences: four levels of both follow the oracle") {
  int compared = 0;
  for (std::uint64_t seed = 1; seed <= 60; ++seed)
    for (const int world : {2, 3}) {
      const double error =
          error_of<quantized_difference<>>(seed, world, 1 + static_cast<std::int64_t>(seed % 2), oracle::four_levels_of,
                                           oracle::four_levels_of, {0.0, 1.25}, 256, 4);
      CAPTURE(seed);
      CAPTURE(world);
      CHECK(error <= tolerance);
      if (error >= 0.0) ++compared;
    }
  CHECK(compared >= 10);
  CHECK(typename optimizer<quantized_difference<>>::options_type{}.local_steps == 2);
}

TEST_CASE("differences: without loss, parameters are averaged") {
  for (const int world : {1, 2, 3, 4}) {
    using paper = optimizer<slamb::sync::whole_average>;
    using by_differences = optimizer<quantized_difference<exact, exact>>;
    experiment e = test_support::make_experiment(some_model(), 5, world, 12);
    const auto averaged = test_support::train<paper>(e, {.local_steps = 1, .dense_below = 10});
    const auto reached = test_support::train<by_differences>(e, {.local_steps = 1, .dense_below = 10});
    for (std::size_t t = 0; t < e.steps(); ++t) {
      CHECK(test_support::ranks_agree(reached, t));
      CHECK(test_support::max_relative_error(reached[t][0], test_support::widened(averaged[t][0])) <= 1e-6);
    }
  }
}

TEST_CASE("differences: the oracle finds a lost error and a wrong sign") {
  const auto forgets = [](const oracle::vector& values) {
    oracle::vector all = oracle::signs_of(values);
    for (double& x : all) x *= 1.001;
    return all;
  };
  const auto negates = [](const oracle::vector& values) {
    oracle::vector all = oracle::signs_of(values);
    all[0] = -all[0];
    return all;
  };
  int compared = 0;
  for (const oracle::lossy& wrong : {oracle::lossy(forgets), oracle::lossy(negates)}) {
    for (std::uint64_t seed = 1; seed <= 60; ++seed) {
      const double of_difference = error_of<quantized_difference<signs, exact>>(seed, 3, 1, wrong, unchanged);
      const double of_mean = error_of<quantized_difference<exact, signs>>(seed, 3, 1, unchanged, wrong);
      CHECK((of_difference < 0.0 || of_difference > 10.0 * tolerance));
      CHECK((of_mean < 0.0 || of_mean > 10.0 * tolerance));
      compared += (of_difference > 0.0 ? 1 : 0) + (of_mean > 0.0 ? 1 : 0);
    }
  }
  CHECK(compared >= 10);
}

TEST_CASE("differences: the mean in sixteen bits follows the oracle") {
  // A number between two of sixteen bits may be rounded to another one than in the oracle; the next exchange sends the difference.
  CHECK(error_of<quantized_difference<exact, slamb::bf16>>(3, 3, 1, unchanged, to_bfloat16) <= 1e-4);
}

TEST_CASE("differences: for every kind of quantizer the mean of the ranks' parameters stays") {
  check_that_mean_stays(signs{.scales = slamb::scale_sharing::per_tensor});
  check_that_mean_stays(slamb::four_levels{});
  check_that_mean_stays(slamb::int4{.block = 16});
  check_that_mean_stays(slamb::natural{});
}

TEST_CASE("differences: for every kind of quantizer of the mean its error is sent later") {
  check_that_error_is_sent(slamb::int8{}, 0.01);
  check_that_error_is_sent(slamb::bf16{}, 0.1);
  check_that_error_is_sent(signs{}, 0.6);
}

TEST_CASE("differences: the common point is equal on all ranks for 1,000 steps, also after skipped ones") {
  constexpr int world = 3;
  constexpr std::size_t n = 500;
  std::vector<std::vector<float>> after(world);
  std::vector<slamb::statistics> said(world);
  slamb::run_ranks(world, [&](thread_communicator ranks) {
    const auto rank = static_cast<std::size_t>(ranks.rank());
    std::vector<float> p(n, 0.5F), g(n);
    const std::vector<slamb::parameter> parameters{{.data = p.data(), .gradient = g.data(), .size = n}};
    // Ranks compare the common point before each step.
    optimizer<quantized_difference<>> its(
        {parameters}, {.local_steps = 1, .dense_below = 10, .ranks = {.compare_every = 1}}, std::move(ranks));
    for (std::uint64_t t = 1; t <= 1000; ++t) {
      test_support::random_source source(t, rank);
      for (float& x : g) x = static_cast<float>(source.bell());
      if (t % 97 == rank * 10) g[t % n] = std::numeric_limits<float>::quiet_NaN();
      its.step(0.01);
    }
    its.synchronize_parameters();
    after[rank] = p;
    said[rank] = its.statistics();
  });
  for (int rank = 0; rank < world; ++rank) {
    CHECK(after[static_cast<std::size_t>(rank)] == after[0]);
    CHECK(said[static_cast<std::size_t>(rank)].skipped_steps >= 20);
    CHECK(said[static_cast<std::size_t>(rank)].step + said[static_cast<std::size_t>(rank)].skipped_steps == 1000);
  }
}

TEST_CASE("differences: a run that continues from a saved state has the bits of one that was not interrupted") {
  constexpr int world = 3;
  constexpr std::size_t n = 700;
  slamb::run_ranks(world, [&](thread_communicator ranks) {
    const auto rank = static_cast<std::size_t>(ranks.rank());
    std::vector<float> p(n, 0.5F), g(n);
    const std::vector<slamb::parameter> parameters{{.data = p.data(), .gradient = g.data(), .size = n}};
    optimizer<quantized_difference<>> its({parameters}, {.dense_below = 10}, std::move(ranks));
    const auto train = [&](std::uint64_t first, std::uint64_t last) {
      for (std::uint64_t t = first; t <= last; ++t) {
        test_support::random_source source(t, rank);
        for (float& x : g) x = static_cast<float>(source.bell());
        its.step(0.01);
      }
    };
    train(1, 7);
    const std::vector<std::byte> saved = its.save_state();
    const std::vector<float> saved_parameters = p;
    train(8, 12);
    const std::vector<float> uninterrupted = p;
    its.load_state(saved);
    p = saved_parameters;
    train(8, 12);
    CHECK(p == uninterrupted);
  });
}

TEST_CASE("differences: plans count the bytes of a run") {
  using by_differences = optimizer<quantized_difference<>>;
  for (const int world : {1, 2, 3}) {
    for (const std::int64_t every : {1, 3}) {
      const experiment e = test_support::make_experiment(some_model(), 6, world, 7);
      const typename by_differences::options_type options{.local_steps = every, .dense_below = 10};
      std::vector<slamb::plan::tensor_shape> shapes;
      for (const test_support::tensor_spec& l : e.tensors)
        shapes.push_back({.size = l.size, .dimensions = l.dimensions});
      const auto plan = slamb::plan::plan_traffic(shapes, options, {.ranks = world});
      slamb::run_ranks(world, [&](thread_communicator ranks) {
        const auto rank = static_cast<std::size_t>(ranks.rank());
        test_support::replica mine(e.tensors, e.start);
        by_differences its(mine.parameters(), options, std::move(ranks));
        slamb::traffic_counts before;
        for (std::size_t t = 0; t < e.steps(); ++t) {
          mine.set_gradient(e.gradients[t][rank]);
          its.step(0.01);
          const slamb::traffic_counts now = its.statistics().traffic;
          CHECK(now - before == plan.step(t + 1));
          before = now;
        }
        CHECK(before == plan.total(e.steps()));
      });
    }
  }
}

TEST_CASE("differences: the kernels of the CUDA backend follow the host") {
  using slamb::emulated_backend, slamb::rescaled_trust_ratio, slamb::rescaling;
  using mean_step = rescaled_trust_ratio<rescaling::mean_step>;
  const auto compare = []<class ParameterSync, class TrustRatio>(int world, std::int64_t every) {
    using on_host = optimizer<ParameterSync, TrustRatio>;
    using on_kernels = optimizer<ParameterSync, TrustRatio, emulated_backend>;
    const experiment e = test_support::make_experiment(some_model(), 17, world, 6);
    const typename on_host::options_type options{.local_steps = every, .dense_below = 10, .compressor = {.k = 0.25}};
    const typename on_kernels::options_type same{.local_steps = every, .dense_below = 10, .compressor = {.k = 0.25}};
    // Norms are summed in another order, so the parameters differ by rounding, and a sign may differ if it is of a small number.
    const auto host = test_support::train<on_host>(e, options);
    const auto kernels = train_on_kernels<on_kernels>(e, same);
    std::size_t differing = 0, all = 0;
    for (std::size_t rank = 0; rank < static_cast<std::size_t>(world); ++rank)
      for (std::size_t j = 0; j < host.back()[rank].size(); ++j, ++all)
        if (std::abs(host.back()[rank][j] - kernels.back()[rank][j]) > 1e-5F) ++differing;
    CHECK(differing * 100 <= all);
  };
  for (const int world : {2, 3}) {
    compare.operator()<quantized_difference<>, rescaled_trust_ratio<>>(world, 1);
    compare.operator()<quantized_difference<>, mean_step>(world, 2);
    compare.operator()<quantized_difference<exact, slamb::int8>, mean_step>(world, 1);
  }
}

TEST_CASE("differences: statistics have the distance from the common point") {
  for (const int world : {1, 2}) {
    constexpr std::size_t n = 300;
    slamb::run_ranks(world, [&](thread_communicator ranks) {
      std::vector<float> p(n, 0.5F), g(n, ranks.rank() == 0 ? 1.0F : -1.0F);
      const std::vector<slamb::parameter> parameters{
          {.data = p.data(), .gradient = g.data(), .size = n, .options = {.group = 1}}};
      // Nothing is lost, so the point that ranks have in common is what they had after the last exchange.
      optimizer<quantized_difference<exact, exact>> its({parameters}, {.local_steps = 2, .dense_below = 10},
                                                        std::move(ranks));
      const std::vector<double> rates{0.01, 0.01};
      CHECK(its.statistics(true).parameter_drift.empty());
      its.step(rates);
      const std::vector<float> common = p;
      its.step(rates);
      CHECK(its.statistics().parameter_drift.empty());
      const std::vector<double> found = its.statistics(true).parameter_drift;
      REQUIRE(found.size() == (world == 1 ? 0U : 2U));
      if (world == 1) return;
      double expected = 0.0;
      for (std::size_t j = 0; j < n; ++j) expected += std::pow(static_cast<double>(p[j] - common[j]), 2.0);
      CHECK(found[0] == 0.0);
      CHECK(found[1] > 0.0);
      CHECK(found[1] == doctest::Approx(std::sqrt(expected)));
    });
  }
}

TEST_CASE("differences: parameters that are replaced before the first step become the common point") {
  constexpr std::size_t n = 200;
  slamb::run_ranks(3, [&](thread_communicator ranks) {
    std::vector<float> p(n, 0.5F), g(n, 0.1F);
    const std::vector<slamb::parameter> parameters{{.data = p.data(), .gradient = g.data(), .size = n}};
    optimizer<quantized_difference<>> its({parameters}, {.dense_below = 10}, std::move(ranks));
    its.broadcast_parameters(0);
    std::fill(p.begin(), p.end(), 2.0F);  // as load_state_dict() of a framework does
    its.step(1e-3);
    CHECK(its.statistics(true).parameter_drift.at(0) < 0.05);
    for (const float x : p) CHECK(std::abs(x - 2.0F) < 0.05F);
  });
}

TEST_CASE("differences: a state of another number of ranks continues") {
  constexpr std::size_t n = 300;
  std::vector<std::byte> saved;
  const auto train = [&](int world, bool loads) {
    slamb::run_ranks(world, [&](thread_communicator ranks) {
      const int rank = ranks.rank();
      std::vector<float> p(n, 0.5F), g(n, rank == 0 ? 1.0F : 0.5F);
      const std::vector<slamb::parameter> parameters{{.data = p.data(), .gradient = g.data(), .size = n}};
      optimizer<quantized_difference<>> its({parameters}, {.dense_below = 10}, std::move(ranks));
      if (loads) its.load_state(saved, {.from_other_ranks = true});
      for (int t = 0; t < 5; ++t) its.step(1e-2);
      CHECK(its.statistics().step == (loads ? 10U : 5U));
      if (rank == 0 && !loads) saved = its.save_state();
    });
  };
  for (const auto& [from, to] : {std::pair(1, 2), std::pair(3, 1), std::pair(3, 2), std::pair(2, 4)}) {
    train(from, false);
    train(to, true);
  }
}

TEST_CASE("differences: ranks that continue from another number of ranks must begin with equal parameters") {
  constexpr std::size_t n = 300;
  slamb::run_ranks(2, [&](thread_communicator ranks) {
    const int rank = ranks.rank();
    std::vector<float> p(n, 0.5F), g(n, rank == 0 ? 1.0F : 0.5F);
    const std::vector<slamb::parameter> parameters{{.data = p.data(), .gradient = g.data(), .size = n}};
    optimizer<quantized_difference<>> its({parameters}, {.dense_below = 10}, std::move(ranks));
    for (int t = 0; t < 4; ++t) its.step(1e-2);
    its.load_state(its.save_state(), {.from_other_ranks = true});  // each its own, with its own parameters
    p[7] += 0.25F * static_cast<float>(rank);
    for (const bool is_step : {true, false}) {
      std::string said;
      try {
        is_step ? its.step(1e-2) : its.compare_ranks();
      } catch (const slamb::rank_mismatch_error& error) {
        said = error.what();
      }
      CHECK(said.find("ranks differ in the parameters of tensor 0") != std::string::npos);
      CHECK(said.find("a collective of the Communicator") == std::string::npos);  // which would be another mistake
    }
    its.synchronize_parameters();
    its.step(1e-2);
    its.compare_ranks();
    CHECK(its.statistics().step == 5);
  });
}

TEST_CASE("differences: an exchange of what is not finite is skipped and counted, and the step is taken") {
  constexpr std::size_t n = 100;
  slamb::run_ranks(2, [&](thread_communicator ranks) {
    const int rank = ranks.rank();
    std::vector<float> p(n, 0.5F), g(n, 0.1F);
    const std::vector<slamb::parameter> parameters{{.data = p.data(), .gradient = g.data(), .size = n}};
    optimizer<quantized_difference<>> its({parameters}, {.weight_decay = 0.0, .local_steps = 1, .dense_below = 10},
                                          std::move(ranks));
    its.step(1e-2);
    if (rank == 1) p[7] = std::numeric_limits<float>::infinity();
    its.step(0.0);
    CHECK(its.statistics().step == 2);
    CHECK(its.statistics().skipped_exchanges == 1);
    if (rank == 0)
      for (const float x : p) CHECK(std::isfinite(x));
    if (rank == 1) p[7] = 0.5F;
    its.step(0.0);
    CHECK(its.statistics().skipped_exchanges == 1);
  });
}

TEST_CASE("differences: a quantizer that leaves out elements by their variance is rejected") {
  const std::vector<slamb::parameter> none;
  using by_signs = optimizer<quantized_difference<signs, signs>>;
  slamb::run_ranks(2, [&](thread_communicator ranks) {
    typename by_signs::options_type options;
    (ranks.size() > 1 ? options.parameter_sync.mean_quantizer : options.parameter_sync.quantizer).zero_aware = true;
    CHECK_THROWS_WITH_AS(by_signs({none}, options, std::move(ranks)),
                         doctest::Contains("parameter_sync.mean_quantizer has zero_aware = true"),
                         std::invalid_argument);
  });
}

TEST_CASE("whole_average: ranks have equal parameters after an exchange, and their own between two") {
  using averaged = optimizer<slamb::sync::whole_average>;
  CHECK(typename averaged::options_type{}.local_steps == 100);
  const experiment e = test_support::make_experiment(some_model(), 21, 3, 5);
  const auto reached =
      test_support::train<averaged>(e, {.local_steps = 3, .dense_below = 10, .compressor = {.k = 0.1}});
  for (std::size_t t = 0; t < e.steps(); ++t) CHECK(test_support::ranks_agree(reached, t) == (t % 3 == 0));
}

TEST_CASE(
    "slamb_by_differences: ranks with targets of their own meet at the mean, with less than half a byte a parameter") {
  constexpr int world = 4;
  constexpr std::size_t n = 20'000;
  slamb::run_ranks(world, [&](thread_communicator ranks) {
    const float target = static_cast<float>(ranks.rank()) - 1.5F;  // the mean of all is 0
    std::vector<float> p(n, 1.0F), g(n);
    const std::vector<slamb::parameter> parameters{{.data = p.data(), .gradient = g.data(), .size = n}};
    slamb::slamb_by_differences<thread_communicator> its({parameters}, {}, std::move(ranks));
    for (int t = 0; t < 100; ++t) {
      for (std::size_t j = 0; j < n; ++j) g[j] = p[j] - target;
      its.step(0.05);
    }
    CHECK(static_cast<double>(its.statistics().traffic.total().sent_bytes) < 0.5 * 100.0 * static_cast<double>(n));
    its.synchronize_parameters();
    for (const float x : p) REQUIRE(std::abs(x) < 0.2F);
  });
}

}  // namespace parameter_sync_quantized_difference_tests
