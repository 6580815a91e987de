// Monitoring of compression by parameter group: relative errors and norms of kept errors, compared with the equations in double
// precision; and that nothing is computed without a request.
#include <doctest/doctest.h>

#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "slamb/slamb.hpp"
#include "support/cluster.hpp"

namespace properties_monitoring_tests {
namespace {

using slamb::host_backend;
using slamb::scale_sharing;
using slamb::self_communicator;
using slamb::thread_communicator;
using test_support::experiment;
using test_support::model;
using test_support::replica;
using test_support::tensor_spec;
using test_support::widened;

/// Three groups. The second tensor is dense, and is all of group 1.
experiment three_groups(int world, std::size_t steps) {
  model tensors{{300}, {129}, {40}, {8193}, {0}, {1}};
  tensors[1].options = {.compress = false, .group = 1};
  for (const std::size_t i : {2U, 4U, 5U}) tensors[i].options.group = 2;
  return test_support::make_experiment(tensors, 61, world, steps);
}

/// The exchange of signs on one rank, with its errors: docs/algorithms/one_bit_exchange.md.
class sign_exchange {
 public:
  sign_exchange(model tensors, scale_sharing scales, bool keeps_at_server)
      : tensors_(std::move(tensors)), scales_(scales), keeps_at_server_(keeps_at_server) {
    lost_.resize(test_support::total_size(tensors_));
    server_ = lost_;
  }

  /// The exchanged mean of one rank's signal; elements that are not compressed are unchanged.
  std::vector<double> mean_of(std::vector<double> x) {
    groups_.assign(3, {});
    for (std::size_t j = 0; j < x.size(); ++j) x[j] += lost_[j];
    const std::vector<double> sent = encoded(x);
    std::vector<double> mean = sent;
    for (std::size_t j = 0; j < x.size(); ++j) {
      lost_[j] = x[j] - sent[j];
      mean[j] += server_[j];
    }
    const std::vector<double> received = encoded(mean);
    if (keeps_at_server_)
      for (std::size_t j = 0; j < x.size(); ++j) server_[j] = mean[j] - received[j];
    for_each_compressed([&](std::size_t j, const tensor_spec& l) {
      slamb::statistics::compression_type& of_group = groups_[static_cast<std::size_t>(l.options.group)];
      of_group.signal = std::hypot(of_group.signal, x[j]);
      of_group.error = std::hypot(of_group.error, lost_[j]);
    });
    return received;
  }

  /// [groups] of the last signal
  const std::vector<slamb::statistics::compression_type>& groups() const { return groups_; }

 private:
  template <class Visit>
  void for_each_compressed(const Visit& visit) const {
    std::size_t j = 0;
    for (const tensor_spec& l : tensors_)
      for (std::size_t i = 0; i < l.size; ++i, ++j)
        if (l.options.compress) visit(j, l);
  }

  std::vector<double> encoded(std::vector<double> x) const {
    std::vector<double> squares(tensors_.size()), counts(tensors_.size());
    const auto part = [&](const tensor_spec& l) {
      return scales_ == scale_sharing::fused ? 0 : static_cast<std::size_t>(&l - tensors_.data());
    };
    for_each_compressed([&](std::size_t j, const tensor_spec& l) {
      squares[part(l)] += x[j] * x[j];
      counts[part(l)] += 1.0;
    });
    for_each_compressed([&](std::size_t j, const tensor_spec& l) {
      const double scale = std::sqrt(squares[part(l)] / counts[part(l)]);
      x[j] = x[j] >= 0.0 ? scale : -scale;
    });
    return x;
  }

  model tensors_;
  scale_sharing scales_;
  bool keeps_at_server_;
  std::vector<double> lost_, server_;  // [n]
  std::vector<slamb::statistics::compression_type> groups_;
};

bool is_near(double got, double expected) { return std::abs(got - expected) <= 1e-5 * expected; }

/// True if both norms and the norm of the kept error agree with the expected ones, in all groups.
bool agree(const slamb::statistics& said, const std::vector<slamb::statistics::compression_type>& expected) {
  bool all = said.compression.size() == expected.size() && said.worker_error.size() == expected.size();
  for (std::size_t g = 0; all && g < expected.size(); ++g)
    all = is_near(said.compression[g].signal, expected[g].signal) &&
          is_near(said.compression[g].error, expected[g].error) && is_near(said.worker_error[g], expected[g].error) &&
          is_near(said.compression[g].relative() * expected[g].signal, expected[g].error);
  return all;
}

/// Trains one rank. `signal_of(gradient)` returns the expected signal of an exchange; `took(mean)` gets the expected result.
template <class Optimizer, class SignalOf, class Took>
void check_one_rank(const experiment& e, const typename Optimizer::options_type& options, bool keeps_at_server,
                    std::size_t whole_steps, const SignalOf& signal_of, const Took& took) {
  sign_exchange exchange(e.tensors, options.compressor.scales, keeps_at_server);
  replica mine(e.tensors, e.start);
  Optimizer run(mine.parameters(), options);
  for (std::size_t t = 0; t < e.steps(); ++t) {
    CAPTURE(t);
    const std::vector<double> x = signal_of(widened(e.gradients[t][0]));
    mine.set_gradient(e.gradients[t][0]);
    run.measure_next_step();
    run.step(0.01);
    if (t < whole_steps) {
      CHECK(run.statistics(true).compression.empty());
      took(x);
      continue;
    }
    took(exchange.mean_of(x));
    CHECK(agree(run.statistics(true), exchange.groups()));
    std::vector<slamb::statistics::compression_type> wrong = exchange.groups();
    wrong[2].error *= 1.0001;
    CHECK_FALSE(agree(run.statistics(true), wrong));
    CHECK(run.statistics().worker_error.empty());
  }
}

/// Checks a relation that holds for every signal: the compression error is the kept error. Returns the number of steps measured.
template <class Optimizer>
std::size_t steps_measured(const typename Optimizer::options_type& options, int world) {
  const experiment e = three_groups(world, 12);
  std::atomic<std::size_t> measured{0};
  slamb::run_ranks(world, [&](thread_communicator communicator) {
    const auto rank = static_cast<std::size_t>(communicator.rank());
    replica mine(e.tensors, e.start);
    Optimizer run(mine.parameters(), options, std::move(communicator), test_support::one_thread());
    std::vector<slamb::statistics::compression_type> before;
    for (std::size_t t = 0; t < e.steps(); ++t) {
      mine.set_gradient(e.gradients[t][rank]);
      run.measure_next_step();
      const std::uint64_t rounds = run.statistics().traffic[slamb::collective::all_to_all].rounds;
      run.step(0.01);
      const slamb::statistics said = run.statistics(true);
      if (said.traffic[slamb::collective::all_to_all].rounds == rounds) continue;  // no compression in this step
      ++measured;
      REQUIRE(said.compression.size() == 3);
      for (std::size_t g = 0; g < 3; ++g) {
        const bool is_forgotten =
            said.phases.back().first_step == said.step + 1;  // the next phase has another signal, so errors are cleared
        CHECK(is_near(said.worker_error[g], is_forgotten ? 0.0 : said.compression[g].error));
        CHECK((said.compression[g].signal > 0.0) == (g != 1));
        CHECK(said.compression[g].relative() < 3.0);
      }
    }
  });
  return measured / static_cast<std::size_t>(world);
}

/// Counts the passes that measure.
struct counted_launcher : slamb::detail::host::thread_launcher {
  using slamb::detail::host::thread_launcher::thread_launcher;

  using slamb::detail::host::thread_launcher::launch;
  template <class Storage, class Pass, class Quantizer, class Precision>
  void launch(const slamb::detail::measure_error<Storage, Pass, Quantizer, Precision>& kernel) const {
    ++measurements;
    slamb::detail::host::thread_launcher::launch(kernel);
  }

  static inline int measurements = 0;
};
struct counted_backend : host_backend {
  using launcher_type = counted_launcher;
  launcher_type make_launcher(std::uint64_t elements) const { return {1U, elements}; }
};

/// Trains one rank, and measures at the steps for which `asks` is true. Returns its parameters.
template <class Optimizer, class Asks>
std::vector<float> reached_with(const typename Optimizer::options_type& options, const Asks& asks, int expected) {
  const experiment e = three_groups(1, 10);
  replica mine(e.tensors, e.start);
  Optimizer run(mine.parameters(), options);
  counted_launcher::measurements = 0;
  for (std::size_t t = 0; t < e.steps(); ++t) {
    mine.set_gradient(e.gradients[t][0]);
    if (asks(t)) run.measure_next_step();
    run.step(0.01);
    CHECK(run.statistics().compression.size() == (counted_launcher::measurements > 0 ? 3 : 0));
  }
  CHECK(counted_launcher::measurements == expected);
  return mine.values();
}

template <class Optimizer>
void check_cost(const typename Optimizer::options_type& options, int compressed_steps) {
  const std::vector<float> unasked = reached_with<Optimizer>(
      options, [](std::size_t) { return false; }, 0);
  const std::vector<float> once = reached_with<Optimizer>(
      options, [](std::size_t t) { return t == 0; }, 1);
  const std::vector<float> always = reached_with<Optimizer>(
      options, [](std::size_t) { return true; }, compressed_steps);
  CHECK(test_support::same_bits(once, unasked));
  CHECK(test_support::same_bits(always, unasked));
}

template <class Compressor, class ErrorFeedback, class Communicator = self_communicator, class Backend = host_backend>
using lamb = slamb::lamb<Compressor, ErrorFeedback, Communicator, Backend>;

}  // namespace

TEST_CASE("monitoring: the compression error of LAMB's gradients follows the equations, in each group") {
  const experiment e = three_groups(1, 6);
  const auto as_it_is = [](std::vector<double> g) { return g; };
  const auto ignored = [](const std::vector<double>&) {};
  for (const scale_sharing scales : {scale_sharing::fused, scale_sharing::per_tensor}) {
    CAPTURE(static_cast<int>(scales));
    check_one_rank<lamb<slamb::sign, slamb::two_sided<>>>(
        e, {.compress_single_rank = true, .compressor = {.scales = scales}}, true, 0, as_it_is, ignored);
    check_one_rank<lamb<slamb::sign, slamb::residual<>>>(
        e, {.compress_single_rank = true, .compressor = {.scales = scales}}, false, 0, as_it_is, ignored);
  }
}

TEST_CASE(
    "monitoring: the compression error of 1-bit Adam's momentum follows the equations, in each group, from its first "
    "compressed step") {
  const experiment e = three_groups(1, 8);
  for (const scale_sharing scales : {scale_sharing::fused, scale_sharing::per_tensor}) {
    CAPTURE(static_cast<int>(scales));
    std::vector<double> m(e.start.size());
    check_one_rank<slamb::one_bit_adam<>>(
        e, {.compress_single_rank = true, .warm_up = {3}, .compressor = {.scales = scales}}, true, 3,
        [&m](std::vector<double> g) {
          for (std::size_t j = 0; j < g.size(); ++j) g[j] = 0.9 * m[j] + 0.1 * g[j];
          return g;
        },
        [&m](const std::vector<double>& mean) { m = mean; });
  }
}

TEST_CASE(
    "monitoring: the measured compression error equals the kept error, for every optimizer with codes, on two ranks "
    "and on three") {
  using one_bit_lamb = slamb::one_bit_lamb<thread_communicator>;
  using bytes = slamb::one_bit_adam<thread_communicator, slamb::int8>;
  using zero_one = slamb::zero_one_adam<thread_communicator>;
  for (const int world : {2, 3}) {
    CAPTURE(world);
    CHECK(steps_measured<one_bit_lamb>({.warm_up = {4}}, world) == 8);
    CHECK(steps_measured<bytes>({.warm_up = {4}}, world) == 8);
    CHECK(steps_measured<zero_one>({.variance_schedule = {6, 2}, .local_schedule = {2, 4}}, world) == 6);
  }
}

TEST_CASE("monitoring: the part that a sparsifier leaves out equals the kept error, in each group") {
  const experiment e = three_groups(2, 5);
  using optimizer = lamb<slamb::random_k<>, slamb::residual<>, thread_communicator>;
  const optimizer::options_type options{.compressor = {.k = 0.3}};
  slamb::run_ranks(2, [&](thread_communicator communicator) {
    const auto rank = static_cast<std::size_t>(communicator.rank());
    replica mine(e.tensors, e.start);
    optimizer run(mine.parameters(), options, std::move(communicator), test_support::one_thread());
    std::vector<double> left(e.start.size());
    for (std::size_t t = 0; t < e.steps(); ++t) {
      mine.set_gradient(e.gradients[t][rank]);
      run.step(0.01);
      const std::vector<std::uint8_t> mask = test_support::mask_of(options.compressor.at(t + 1), e.tensors);
      std::vector<double> expected(3);
      std::size_t j = 0;
      for (const tensor_spec& l : e.tensors)
        for (std::size_t i = 0; i < l.size; ++i, ++j) {
          left[j] = mask[j] != 0 || !l.options.compress ? 0.0 : left[j] + static_cast<double>(e.gradients[t][rank][j]);
          double& norm = expected[static_cast<std::size_t>(l.options.group)];
          norm = std::hypot(norm, left[j]);
        }
      const std::vector<double> said = run.statistics(true).worker_error;
      REQUIRE(said.size() == 3);
      for (std::size_t g = 0; g < 3; ++g) CHECK(is_near(said[g], expected[g]));
      CHECK(expected[0] > 0.0);
      CHECK(run.statistics(true).compression.empty());
    }
  });
}

TEST_CASE("monitoring: reports nothing without compression") {
  const experiment e = three_groups(1, 1);
  replica mine(e.tensors, e.start);
  const auto says_nothing = [&](auto run) {
    mine.set_gradient(e.gradients[0][0]);
    run.step(0.01);
    return run.statistics(true).worker_error.empty() && run.statistics(true).compression.empty();
  };
  CHECK(says_nothing(slamb::lamb<>(mine.parameters())));
  CHECK(says_nothing(slamb::slamb<>(mine.parameters())));
  CHECK(says_nothing(slamb::one_bit_lamb<>(mine.parameters())));  // a single rank
  CHECK_FALSE(says_nothing(slamb::one_bit_lamb<>(mine.parameters(), {.compress_single_rank = true})));
}

TEST_CASE("monitoring: a measurement is a separate pass, only on request, and changes nothing") {
  using slamb::two_sided;
  using one_bit = slamb::one_bit_lamb<self_communicator, slamb::sign, counted_backend>;
  using zero_one = slamb::zero_one_adam<self_communicator, slamb::sign, counted_backend>;
  check_cost<lamb<slamb::sign, two_sided<>, self_communicator, counted_backend>>({.compress_single_rank = true}, 10);
  check_cost<one_bit>({.compress_single_rank = true, .warm_up = {4}}, 6);
  check_cost<zero_one>({.compress_single_rank = true, .variance_schedule = {6, 2}, .local_schedule = {2, 4}}, 5);
}

}  // namespace properties_monitoring_tests
