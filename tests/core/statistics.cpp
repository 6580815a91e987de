// An optimizer's statistics: traffic compared with formulas, norms compared with doubles, memory that adds up, counters.
#include "slamb/core/statistics.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "slamb/slamb.hpp"
#include "support/cluster.hpp"

namespace core_statistics_tests {
namespace {

constexpr auto bytes_sent_by = slamb::traffic::bytes_sent_by;
using slamb::collective;
using slamb::thread_communicator;
using test_support::experiment;
using test_support::make_experiment;
using test_support::model;
using test_support::replica;

double norm_of(std::span<const double> values) {
  return std::sqrt(std::inner_product(values.begin(), values.end(), values.begin(), 0.0));
}

double relative(double got, double expected) { return std::abs(got - expected) / expected; }

std::size_t bytes_for(const slamb::memory_report& report, const std::string& purpose) {
  std::size_t bytes = 0;
  for (const slamb::memory_report::use& use : report.uses)
    if (use.purpose == purpose) bytes += use.bytes;
  return bytes;
}

/// Checks that hold for every report.
void check_report(const slamb::memory_report& report, std::size_t parameters) {
  constexpr std::size_t most_regions = 16;
  std::size_t used = 0;
  double per_parameter = 0.0;
  std::set<std::string> purposes;
  for (const slamb::memory_report::use& use : report.uses) {
    CHECK_FALSE(use.purpose.empty());
    CHECK(purposes.insert(use.purpose).second);
    used += use.bytes;
    per_parameter += use.bytes_per_parameter;
    CHECK(use.bytes_per_parameter == doctest::Approx(static_cast<double>(use.bytes) / static_cast<double>(parameters)));
  }
  CHECK(report.total_bytes % 256 == 0);
  CHECK(report.total_bytes == used);
  CHECK(report.uses.back().purpose == "padding");
  CHECK(report.uses.back().bytes < 256 * most_regions);  // each region begins at a multiple of 256
  CHECK(report.bytes_per_parameter ==
        doctest::Approx(static_cast<double>(report.total_bytes) / static_cast<double>(parameters)));
  CHECK(per_parameter == doctest::Approx(report.bytes_per_parameter));
}

}  // namespace

TEST_CASE("bytes_sent_by: 2(N−1)/N of an all_reduce and (N−1)/N of the others, rounded down") {
  for (const int world : {1, 2, 3, 4, 7, 8, 64}) {
    for (const std::uint64_t bytes : {0ULL, 1ULL, 4ULL, 7ULL, 1000ULL, 4'000'012ULL, 1'344'929'032ULL}) {
      const auto ranks = static_cast<std::uint64_t>(world);
      const std::uint64_t once = bytes * (ranks - 1) / ranks;
      CAPTURE(world);
      CAPTURE(bytes);
      CHECK(bytes_sent_by(collective::all_reduce, bytes, world) == 2 * once);
      CHECK(bytes_sent_by(collective::all_gather, bytes, world) == once);
      CHECK(bytes_sent_by(collective::all_to_all, bytes, world) == once);
      CHECK(bytes_sent_by(collective::broadcast, bytes, world) == once);
    }
  }
  // Sizes whose product with N − 1 does not fit 64 bits.
  constexpr std::uint64_t most = ~std::uint64_t{0} / 2;
  CHECK(bytes_sent_by(collective::broadcast, most, 2) == most / 2);
  CHECK(bytes_sent_by(collective::broadcast, most / 64 * 64, 64) == most / 64 * 63);
}

TEST_CASE("traffic: adds up") {
  constexpr slamb::traffic a{1, 2, 3, 4};
  constexpr slamb::traffic b{10, 20, 30, 40};
  CHECK(a + b == slamb::traffic{11, 22, 33, 44});
  slamb::traffic_counts counts;
  counts[collective::all_gather] = a;
  counts[collective::broadcast] = b;
  CHECK(counts.total() == a + b);
  CHECK(counts[collective::all_reduce] == slamb::traffic{});
}

TEST_CASE("statistics: the traffic of SLAMB follows the formulas") {
  const experiment e = make_experiment({{20'000}, {9000, 1}}, 80, 4, 10);
  slamb::run_ranks(4, [&](thread_communicator communicator) {
    replica mine(e.tensors, e.start);
    slamb::slamb<thread_communicator> run(mine.parameters(), {.local_steps = 5}, std::move(communicator),
                                          test_support::one_thread());
    for (std::size_t t = 0; t < e.steps(); ++t) run.step(0.01);
    const slamb::traffic total = run.statistics().traffic.total();
    const std::uint64_t elements =
        20'000 + 10 * 9000 + 2 * 29'000;  // every element once, the dense ones ten times, two means
    CHECK(total.elements == elements);
    CHECK(total.payload_bytes == 4 * elements);
    CHECK(total.sent_bytes == 4 * elements / 4 * 3 * 2);
    CHECK(total.rounds >= 10 + 2);
  });
}

TEST_CASE("statistics: the traffic of comparisons is counted apart from that of steps") {
  const experiment e = make_experiment({{2000}, {33, 1}}, 86, 4, 3);
  slamb::run_ranks(4, [&](thread_communicator communicator) {
    replica mine(e.tensors, e.start);
    slamb::lamb<thread_communicator> run(mine.parameters(), {}, std::move(communicator), test_support::one_thread());
    CHECK(run.statistics().comparisons == slamb::traffic{});
    for (std::uint64_t t = 1; t <= e.steps(); ++t) {
      run.step(0.01);
      const slamb::statistics now = run.statistics();
      CHECK(now.traffic.total() == slamb::traffic{t, t * 2033, t * 8132, t * 12198});
      const std::uint64_t headers = 1 + t;  // one of them before the first step
      CHECK(now.comparisons == slamb::traffic{1, 16 * headers, 64 * headers, 96 * headers});
    }
  });
}

TEST_CASE("statistics: norms equal those of the oracle's state") {
  const experiment e = make_experiment(test_support::random_model(81, 8), 81, 2, 5);
  oracle::adam_family dense(test_support::oracle_tensors(e.tensors, 0.01), test_support::widened(e.start),
                            test_support::oracle_settings(slamb::lamb<>::options_type{}));
  using slamb_type = slamb::slamb<thread_communicator>;
  const slamb_type::options_type options{.compressor = {.k = 0.25}};
  experiment told = e;
  test_support::take_masks(told, options.compressor);
  oracle::slamb sparse = test_support::slamb_oracle(told, options);
  for (std::size_t t = 0; t < e.steps(); ++t) {
    const oracle::vector rates = test_support::rates_of(e.tensors, e.rates[t]);
    dense.step(rates, test_support::widened(e.gradients[t]));
    sparse.step(rates, test_support::widened(e.gradients[t]), told.masks[t]);
  }
  slamb::run_ranks(2, [&](thread_communicator communicator) {
    const int rank = communicator.rank();
    replica mine(e.tensors, e.start);
    slamb_type run(mine.parameters(), options, std::move(communicator), test_support::one_thread());
    for (std::size_t t = 0; t < e.steps(); ++t) {
      mine.set_gradient(e.gradients[t][static_cast<std::size_t>(rank)]);
      run.step(e.rates[t]);
    }
    const slamb::statistics::norms_type norm = run.statistics(true).norm;
    CHECK(relative(norm.parameters, norm_of(sparse.parameters(rank))) <= 1e-6);
    CHECK(relative(norm.momentum, norm_of(sparse.momentum(rank))) <= 1e-6);
    CHECK(relative(norm.variance, norm_of(sparse.variance(rank))) <= 1e-6);
    CHECK(norm_of(test_support::widened(mine.values())) == doctest::Approx(norm.parameters).epsilon(1e-12));
    CHECK(run.statistics().norm.parameters == 0.0);
  });
  slamb::run_ranks(2, [&](thread_communicator communicator) {
    const int rank = communicator.rank();
    replica mine(e.tensors, e.start);
    slamb::lamb<thread_communicator> run(mine.parameters(), {}, std::move(communicator), test_support::one_thread());
    for (std::size_t t = 0; t < e.steps(); ++t) {
      mine.set_gradient(e.gradients[t][static_cast<std::size_t>(rank)]);
      run.step(e.rates[t]);
    }
    const slamb::statistics::norms_type norm = run.statistics(true).norm;
    CHECK(relative(norm.parameters, norm_of(dense.parameters())) <= 1e-6);
    CHECK(relative(norm.momentum, norm_of(dense.momentum())) <= 1e-6);
    CHECK(relative(norm.variance, norm_of(dense.variance())) <= 1e-6);
  });
}

TEST_CASE("statistics: computing norms changes nothing") {
  const experiment e = make_experiment(test_support::random_model(82, 5), 82, 1, 4);
  const auto expected = test_support::train<slamb::slamb<thread_communicator>>(e, {});
  replica mine(e.tensors, e.start);
  slamb::slamb<> run(mine.parameters());
  for (std::size_t t = 0; t < e.steps(); ++t) {
    mine.set_gradient(e.gradients[t][0]);
    run.step(e.rates[t]);
    CHECK(run.statistics(true).step == t + 1);
    CHECK(test_support::same_bits(mine.values(), expected[t][0]));
  }
}

TEST_CASE("statistics: names the phase") {
  const model tensors{{20}};
  const std::vector<float> start(20);
  replica mine(tensors, start);
  CHECK(slamb::lamb<>(mine.parameters()).statistics().phase == "dense");
  CHECK(slamb::adamw<>(mine.parameters()).statistics().phase == "dense");
  CHECK(slamb::slamb<>(mine.parameters()).statistics().phase == "sparse");
}

TEST_CASE("memory: the report adds up, and equals the allocated memory") {
  const experiment e = make_experiment({{70'001}, {8200}, {33, 1}, {0}}, 83, 2, 1);
  const std::size_t n = e.start.size();
  slamb::run_ranks(2, [&](thread_communicator communicator) {
    replica mine(e.tensors, e.start);
    std::size_t allocated = 0;
    std::size_t allocations = 0;
    std::size_t freed = 0;
    slamb::host_backend backend = test_support::one_thread();
    const slamb::allocator from = backend.memory;
    backend.memory = {.allocate =
                          [&](std::size_t bytes) {
                            allocated += bytes;
                            ++allocations;
                            return from.allocate(bytes);
                          },
                      .deallocate =
                          [&](void* memory, std::size_t bytes) {
                            freed += bytes;
                            from.deallocate(memory, bytes);
                          }};
    {
      slamb::slamb<thread_communicator> run(mine.parameters(), {}, std::move(communicator), backend);
      check_report(run.memory(), n);
      CHECK(run.memory().total_bytes == allocated);
      run.step(0.01);
      CHECK(allocations == 1);
      CHECK(freed == 0);
    }
    CHECK(freed == allocated);
  });
}

TEST_CASE("memory: 8 bytes of state per parameter, and the buffers of the exchange") {
  const model tensors{{200'000}, {100'000}};
  const std::vector<float> start(300'000);
  const auto of = [&](auto make) {
    slamb::memory_report report;
    slamb::run_ranks(2, [&](thread_communicator communicator) {
      replica mine(tensors, start);
      const bool first = communicator.rank() == 0;
      const auto optimizer = make(mine.parameters(), std::move(communicator));
      check_report(optimizer.memory(), start.size());
      if (first) report = optimizer.memory();
    });
    return report;
  };
  using parameters = std::vector<slamb::parameter>;
  const auto lamb = of([](const parameters& p, thread_communicator c) {
    return slamb::lamb<thread_communicator>(p, {}, std::move(c), test_support::one_thread());
  });
  CHECK(bytes_for(lamb, "momentum") == 4 * 300'000);
  CHECK(bytes_for(lamb, "variance") == 4 * 300'000);
  CHECK(bytes_for(lamb, "exchange") == 4 * (16 + 300'000));
  CHECK(lamb.bytes_per_parameter < 12.1);

  const auto slamb_sparse = of([](const parameters& p, thread_communicator c) {
    return slamb::slamb<thread_communicator>(p, {}, std::move(c), test_support::one_thread());
  });
  CHECK(bytes_for(slamb_sparse, "momentum") == 4 * 300'000);
  CHECK(bytes_for(slamb_sparse, "variance") == 4 * 300'000);
  CHECK(bytes_for(slamb_sparse, "age") == 0);
  CHECK(slamb_sparse.bytes_per_parameter < 8.0 + 12 * 0.1 + 0.1);

  using random = slamb::random_k<slamb::sampling::bernoulli>;
  const auto with_ages = of([](const parameters& p, thread_communicator c) {
    return slamb::slamb<thread_communicator, random>(p, {}, std::move(c), test_support::one_thread());
  });
  CHECK(bytes_for(with_ages, "age") == 300'000);
}

TEST_CASE("memory: LAMB on a single rank has no exchange buffer") {
  const model tensors{{100'000}};
  const std::vector<float> start(100'000);
  replica mine(tensors, start);
  const slamb::lamb<> run(mine.parameters());
  CHECK(bytes_for(run.memory(), "exchange") == 0);
  CHECK(run.memory().bytes_per_parameter < 8.1);
}

}  // namespace core_statistics_tests
