// The DenseCompressor of the 1-bit optimizers and of 0/1 Adam: dense gradients of sixteen bits on the wire. The oracle rounds each
// rank's gradient from the definition of the format, averages in double precision, and rounds once.
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "instances/emulated.hpp"
#include "slamb/slamb.hpp"
#include "support/cluster.hpp"
#include "support/nearest.hpp"
#include "support/one_bit_cluster.hpp"
#include "support/one_bit_inputs.hpp"
#include "support/said.hpp"

namespace properties_dense_compressor_tests {
namespace {

using slamb::bf16;
using slamb::fp16;
using slamb::host_backend;
using slamb::no_compressor;
using slamb::scale_sharing;
using slamb::sign;
using slamb::thread_communicator;
using slamb::two_sided;
using test_support::experiment;
using test_support::model;
using test_support::number_format;
using test_support::replica;
using test_support::same_bits;
using test_support::trajectory;

constexpr double tolerance = 1e-5;

template <class Dense, class Backend = host_backend>
using one_bit_adam = slamb::one_bit_adam<slamb::dense_in<Dense>, thread_communicator, Backend>;
template <class Dense, class Backend = host_backend>
using one_bit_lamb = slamb::one_bit_lamb<slamb::dense_in<Dense>, thread_communicator, Backend>;
template <class Dense, class Backend = host_backend>
using zero_one_adam = slamb::zero_one_adam<slamb::dense_in<Dense>, thread_communicator, Backend>;

static_assert(std::is_same_v<one_bit_adam<no_compressor>::recipe_type, slamb::one_bit_adam<>::recipe_type>);
static_assert(std::is_same_v<zero_one_adam<no_compressor>::recipe_type, slamb::zero_one_adam<>::recipe_type>);

template <class Dense>
const number_format& format_of() {
  return std::is_same_v<Dense, bf16> ? test_support::bfloat16_format : test_support::binary16_format;
}

template <class Optimizer>
typename Optimizer::options_type options_of(scale_sharing scales = scale_sharing::fused) {
  if constexpr (requires(typename Optimizer::options_type o) { o.warm_up; })
    return {.warm_up = {3}, .compressor = {.scales = scales}};
  else
    return {.variance_schedule = {.freeze_step = 6, .update_scaler = 2},
            .local_schedule = {.scaler = 2, .clipper = 4},
            .compressor = {.scales = scales}};
}

/// An oracle whose dense steps take the rounded mean of the rounded gradients.
template <class Oracle>
class with_rounded_gradients {
 public:
  with_rounded_gradients(Oracle run, const model& tensors, const number_format& format, std::uint64_t warm_up)
      : run_(std::move(run)), format_(&format), warm_up_(warm_up) {
    for (const auto& l : tensors)
      for (std::size_t i = 0; i < l.size; ++i) is_rounded_.push_back(l.options.compress);
  }

  void step(const oracle::vector& rates, const std::vector<oracle::vector>& gradients) {
    close_.clear();
    if (is_dense_step(rates, gradients)) {
      const oracle::vector mean = rounded_mean(gradients);
      run_.step(rates, std::vector<oracle::vector>(gradients.size(), mean));
    } else {
      run_.step(rates, gradients);
      close_ = run_.close_calls();
    }
    ++t_;
  }
  const oracle::vector& parameters(int rank) const { return run_.parameters(rank); }
  std::vector<std::size_t> close_calls() const { return close_; }

 private:
  bool is_dense_step(const oracle::vector& rates, const std::vector<oracle::vector>& gradients) const {
    if constexpr (requires(Oracle o) { o.last(); }) {
      Oracle tried = run_;
      tried.step(rates, gradients);
      return tried.last() == Oracle::kind::full_precision;
    } else {
      return t_ < warm_up_;
    }
  }

  // The mean of elements that are exchanged as floats, and the nearest number to the mean of the others. A mean about halfway
  // between two numbers, which floats may round elsewhere, is a close call, as is a gradient of this kind.
  oracle::vector rounded_mean(const std::vector<oracle::vector>& gradients) {
    oracle::vector all(is_rounded_.size());
    for (std::size_t j = 0; j < all.size(); ++j) {
      double sum = 0.0;
      for (const oracle::vector& of_rank : gradients)
        sum += is_rounded_[j] ? test_support::nearest(*format_, of_rank[j]) : of_rank[j];
      const double mean = sum / static_cast<double>(gradients.size());
      all[j] = is_rounded_[j] ? test_support::nearest(*format_, static_cast<double>(static_cast<float>(mean))) : mean;
      const auto rounded = [&](double factor) {
        return test_support::nearest(*format_, static_cast<double>(static_cast<float>(mean * factor)));
      };
      if (is_rounded_[j] && rounded(1.0 + 1e-6) != rounded(1.0 - 1e-6)) close_.push_back(j);
    }
    return all;
  }

  Oracle run_;
  const number_format* format_;
  std::uint64_t warm_up_;
  std::uint64_t t_ = 0;
  std::vector<bool> is_rounded_;
  std::vector<std::size_t> close_;
};

template <class Options>
auto rounding_oracle(const experiment& e, const Options& o, const number_format& format) {
  std::uint64_t warm_up = 0;
  if constexpr (requires { o.warm_up; }) warm_up = o.warm_up.steps;
  return with_rounded_gradients(test_support::oracle_at_start(e, o), e.tensors, format, warm_up);
}

/// Trains with a dense compressor, and returns the errors against the oracle that rounds and the one that does not.
template <class Optimizer, class Dense>
std::pair<double, double> errors_of(experiment e, const typename Optimizer::options_type& options) {
  const auto run = rounding_oracle(e, options, format_of<Dense>());
  test_support::settle(e, run);
  const trajectory reached = test_support::train<Optimizer>(e, options);
  for (std::size_t t = 0; t < 3; ++t) CHECK(test_support::ranks_agree(reached, t));
  return {test_support::worst_one_bit_error(e, reached, run),
          test_support::worst_one_bit_error(e, reached, test_support::oracle_at_start(e, options))};
}

template <template <class, class> class Recipe, class Dense>
void check_against_oracle(int world, scale_sharing scales) {
  using optimizer = Recipe<Dense, host_backend>;
  CAPTURE(world);
  const auto seed = static_cast<std::uint64_t>(70 + world);
  model tensors = test_support::mixed_model(seed);
  tensors.erase(tensors.begin() + 6);
  const experiment e = test_support::make_structured_experiment(tensors, seed, world, 9);
  const auto [rounded, plain] = errors_of<optimizer, Dense>(e, options_of<optimizer>(scales));
  CHECK(rounded <= tolerance);
  CHECK(plain > 10 * tolerance);  // the oracle notices a mean that was not rounded
}

/// Gradients of few bits, whose mean over two ranks has few bits too: every format and float sums have them exactly.
experiment exact_experiment(model tensors, std::size_t steps) {
  experiment e = test_support::make_experiment(std::move(tensors), 81, 2, steps);
  test_support::use_one_rate(e, 0.01);
  for (std::size_t t = 0; t < steps; ++t)
    for (std::size_t rank = 0; rank < 2; ++rank) {
      test_support::random_source source(82, t, rank);
      for (float& g : e.gradients[t][rank]) g = 0x1p-7F * (2.0F * static_cast<float>(source.below(64)) - 63.0F);
    }
  return e;
}

const model odd_tensors{{300}, {17, 1}, {9100}, {0}, {33}, {1}};

template <class Dense, template <class, class> class Recipe>
void check_exact(scale_sharing scales) {
  model tensors = odd_tensors;
  const std::vector<std::uint8_t> rows(30, 1);
  std::vector<std::uint8_t> some_rows = rows;
  some_rows[3] = some_rows[29] = 0;
  tensors[0].options.rows = some_rows;  // dense gradients of all rows are exchanged
  tensors[4].options.compress = false;
  const experiment e = exact_experiment(tensors, 15);
  using floats = Recipe<no_compressor, host_backend>;
  using sixteen = Recipe<Dense, host_backend>;
  const trajectory expected = test_support::train<floats>(e, options_of<floats>(scales));
  CHECK(test_support::same_bits(test_support::train<sixteen>(e, options_of<sixteen>(scales)), expected));
}

/// As test_support::train, on any backend.
template <class Optimizer>
trajectory trained(const experiment& e, const typename Optimizer::options_type& options,
                   const typename Optimizer::backend_type& backend = {}) {
  trajectory reached = test_support::place_of(e);
  slamb::run_ranks(e.world, [&](thread_communicator communicator) {
    const auto rank = static_cast<std::size_t>(communicator.rank());
    static_cast<void>(test_support::train_rank<Optimizer>(e, rank, options, std::move(communicator), backend, reached));
  });
  return reached;
}

/// Takes the steps of rank `rank` in parts: tensors become ready from the last to the first.
template <class Optimizer>
trajectory trained_in_parts(const experiment& e, typename Optimizer::options_type options) {
  options.ranks.bucket_bytes = 64;
  trajectory reached = test_support::place_of(e);
  slamb::run_ranks(e.world, [&](thread_communicator communicator) {
    const auto rank = static_cast<std::size_t>(communicator.rank());
    replica mine(e.tensors, e.start);
    Optimizer optimizer(mine.parameters(), options, std::move(communicator));
    for (std::size_t t = 0; t < e.steps(); ++t) {
      mine.set_gradient(e.gradients[t][rank]);
      optimizer.begin_step(e.rates[t]);
      for (std::size_t l = e.tensors.size(); l-- > 0;) optimizer.gradient_ready(l, 1);
      optimizer.finish_step();
      reached[t][rank] = mine.values();
    }
  });
  return reached;
}

/// Calls body(rank, replica, optimizer) on each of two ranks.
template <class Optimizer, class Body>
void on_two_ranks(const typename Optimizer::options_type& options, const Body& body) {
  const experiment e = test_support::make_experiment(odd_tensors, 91, 2, 0);
  slamb::run_ranks(2, [&](thread_communicator communicator) {
    const auto rank = static_cast<std::size_t>(communicator.rank());
    replica mine(e.tensors, e.start);
    Optimizer optimizer(mine.parameters(), options, std::move(communicator));
    body(rank, mine, optimizer);
  });
}

template <template <class, class> class Recipe>
void check_overflow() {
  using optimizer = Recipe<bf16, host_backend>;
  on_two_ranks<optimizer>(options_of<optimizer>(), [](std::size_t rank, replica& mine, optimizer& its) {
    float found_inf = 0.0F;
    its.set_gradient_scaling({.found_inf = &found_inf});
    std::vector<float> gradient(mine.values().size(), 0.25F);
    for (const float bad : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN(), 0.25F}) {
      const std::vector<float> before = mine.values();
      gradient[9000] = rank == 1 ? bad : 0.25F;
      if (bad == 0.25F && rank == 0) found_inf = 1.0F;  // found by the framework of one rank
      mine.set_gradient(gradient);
      its.step(0.01);
      CHECK(same_bits(mine.values(), before));
      CHECK(found_inf == 1.0F);
      found_inf = 0.0F;
    }
    gradient[9000] = 0.25F;
    const std::vector<float> before = mine.values();
    mine.set_gradient(gradient);
    its.step(0.01);
    CHECK_FALSE(same_bits(mine.values(), before));
    CHECK(its.statistics().skipped_steps == 3);
    CHECK(its.statistics().step == 1);
  });
}

}  // namespace

TEST_CASE("dense compressor: 1-bit optimizers agree with the oracle that rounds each gradient and their mean") {
  for (const int world : {2, 3, 4}) {
    check_against_oracle<one_bit_adam, bf16>(world, scale_sharing::fused);
    check_against_oracle<one_bit_lamb, fp16>(world, scale_sharing::per_tensor);
  }
  check_against_oracle<one_bit_adam, fp16>(3, scale_sharing::fused);
  check_against_oracle<one_bit_lamb, bf16>(2, scale_sharing::per_tensor);
}

TEST_CASE("dense compressor: 0/1 Adam agrees with the oracle that rounds each gradient and their mean") {
  for (const int world : {2, 3, 4}) check_against_oracle<zero_one_adam, bf16>(world, scale_sharing::fused);
  check_against_oracle<zero_one_adam, fp16>(3, scale_sharing::per_tensor);
}

TEST_CASE("dense compressor: a single rank has the bits of floats, unless it compresses") {
  const experiment e = test_support::make_structured_experiment(odd_tensors, 71, 1, 9);
  const auto check = [&]<class Floats, class Sixteen>(Floats floats, Sixteen sixteen) {
    using optimizer_in_floats = typename Floats::type;
    using optimizer = typename Sixteen::type;
    static_cast<void>(floats), static_cast<void>(sixteen);
    const trajectory expected = trained<optimizer_in_floats>(e, options_of<optimizer_in_floats>());
    CHECK(test_support::same_bits(trained<optimizer>(e, options_of<optimizer>()), expected));
  };
  check(std::type_identity<one_bit_adam<no_compressor>>(), std::type_identity<one_bit_adam<bf16>>());
  check(std::type_identity<zero_one_adam<no_compressor>>(), std::type_identity<zero_one_adam<fp16>>());

  using optimizer = one_bit_adam<bf16>;
  auto alone = options_of<optimizer>();
  alone.compress_single_rank = true;
  const auto [rounded, plain] = errors_of<optimizer, bf16>(e, alone);
  CHECK(rounded <= tolerance);
  CHECK(plain > 10 * tolerance);
}

TEST_CASE("dense compressor: gradients that have sixteen bits, and their mean too, give the bits of floats") {
  check_exact<bf16, one_bit_adam>(scale_sharing::fused);
  check_exact<fp16, one_bit_lamb>(scale_sharing::per_tensor);
  check_exact<bf16, zero_one_adam>(scale_sharing::per_tensor);
  check_exact<fp16, zero_one_adam>(scale_sharing::fused);
}

TEST_CASE("dense compressor: a warm-up has the bits of AdamW with the same compressor, also clipped") {
  using adamw = slamb::adamw<bf16, slamb::no_error_feedback, thread_communicator>;
  using warming = one_bit_adam<bf16>;
  const experiment e = test_support::make_experiment(odd_tensors, 72, 3, 5);
  for (const double c : {0.5, std::numeric_limits<double>::infinity()}) {
    const trajectory expected = trained<adamw>(e, {.epsilon = 1e-8, .bias_correction = false, .max_gradient_norm = c});
    const typename warming::options_type options{.epsilon = 1e-8, .max_gradient_norm = c, .warm_up = {100}};
    CHECK(test_support::same_bits(trained<warming>(e, options), expected));
  }
}

TEST_CASE("dense compressor: steps in parts have the bits of steps at once") {
  const experiment e = test_support::make_structured_experiment(odd_tensors, 73, 3, 9);
  const auto check = [&]<class Optimizer>(std::type_identity<Optimizer>) {
    const auto options = options_of<Optimizer>();
    CHECK(test_support::same_bits(trained_in_parts<Optimizer>(e, options), trained<Optimizer>(e, options)));
  };
  check(std::type_identity<one_bit_adam<bf16>>());
  check(std::type_identity<zero_one_adam<fp16>>());
}

TEST_CASE("dense compressor: emulated kernels have the host's bits") {
  using slamb::emulated_backend;
  model tensors = odd_tensors;
  tensors[4].options.compress = false;
  const experiment e = test_support::make_structured_experiment(tensors, 74, 3, 9);
  const auto check = [&]<class Host, class Emulated>(std::type_identity<Host>, std::type_identity<Emulated>) {
    CHECK(test_support::same_bits(trained<Emulated>(e, options_of<Emulated>()), trained<Host>(e, options_of<Host>())));
  };
  check(std::type_identity<one_bit_lamb<bf16>>(), std::type_identity<one_bit_lamb<bf16, emulated_backend>>());
  check(std::type_identity<zero_one_adam<fp16>>(), std::type_identity<zero_one_adam<fp16, emulated_backend>>());
}

TEST_CASE("dense compressor: a value that is not finite on one rank skips the step on all") {
  check_overflow<one_bit_adam>();
  check_overflow<zero_one_adam>();
}

TEST_CASE("dense compressor: sixteen bits halve the bytes of a dense step") {
  // One tensor of 10,000 elements on 4 ranks: chunks of ⌈10000/512⌉·128 = 2560 elements; a message has 16 bytes for scales, 2 for
  // each element, 8 for a fingerprint, and is a multiple of 128 bytes: 5248. Four go to ranks, and four come back.
  constexpr std::uint64_t message = 5248;
  const auto sent_by = [](auto optimizer_type) {
    using optimizer = typename decltype(optimizer_type)::type;
    slamb::traffic_counts all;
    const experiment e = test_support::make_experiment({{10'000}}, 92, 4, 1);
    slamb::run_ranks(4, [&](thread_communicator communicator) {
      const auto rank = static_cast<std::size_t>(communicator.rank());
      replica mine(e.tensors, e.start);
      optimizer its(mine.parameters(), options_of<optimizer>(), std::move(communicator));
      mine.set_gradient(e.gradients[0][rank]);
      its.step(0.01);
      if (rank == 0) all = its.statistics().traffic;
    });
    return all;
  };
  using slamb::collective;
  const auto check = [&](const slamb::traffic_counts& floats, const slamb::traffic_counts& sixteen) {
    CHECK(floats.total().rounds == 1);
    CHECK(floats[collective::all_reduce].payload_bytes == 40'000);
    CHECK(floats.total().sent_bytes == 60'000);  // 2 · 3/4 of them
    CHECK(sixteen.total().rounds == 2);
    CHECK(sixteen[collective::all_to_all].payload_bytes == 4 * message);
    CHECK(sixteen[collective::all_gather].payload_bytes == 4 * message);
    CHECK(sixteen.total().sent_bytes == 2 * 3 * message);  // 31,488
  };
  check(sent_by(std::type_identity<one_bit_adam<no_compressor>>()), sent_by(std::type_identity<one_bit_adam<bf16>>()));
  check(sent_by(std::type_identity<zero_one_adam<no_compressor>>()),
        sent_by(std::type_identity<zero_one_adam<fp16>>()));
}

TEST_CASE(
    "dense compressor: the buffer holds the messages of both kinds of step, and the mean in place of what was sent") {
  constexpr std::uint64_t elements = 1'000'000;
  const auto buffer_of = [](auto optimizer_type, int world) {
    using optimizer = typename decltype(optimizer_type)::type;
    std::uint64_t bytes = 0;
    slamb::run_ranks(world, [&](thread_communicator communicator) {
      const bool is_first = communicator.rank() == 0;
      std::vector<float> data(elements), gradient(elements);
      const std::vector<slamb::parameter> tensors{{data.data(), gradient.data(), data.size()}};
      const optimizer its(tensors, options_of<optimizer>(), std::move(communicator));
      if (!is_first) return;
      for (const auto& use : its.memory().uses)
        if (use.purpose == "exchange") bytes = use.bytes;
    });
    return static_cast<double>(bytes) / static_cast<double>(elements);
  };
  for (const int world : {2, 4}) {
    const double sixteen = 2.0 + std::max(4.0, 2.0 + 6.0 / world);
    CHECK(buffer_of(std::type_identity<one_bit_adam<no_compressor>>(), world) == doctest::Approx(4.0).epsilon(1e-3));
    CHECK(buffer_of(std::type_identity<one_bit_adam<bf16>>(), world) == doctest::Approx(sixteen).epsilon(1e-2));
    CHECK(buffer_of(std::type_identity<zero_one_adam<fp16>>(), world) == doctest::Approx(sixteen).epsilon(1e-2));
  }
  CHECK(buffer_of(std::type_identity<one_bit_adam<bf16>>(), 1) == 0.0);
}

TEST_CASE("dense compressor: a state of one dense compressor continues with another") {
  constexpr std::size_t steps = 12, saved_after = 7;  // no dense step is left then
  const experiment e = test_support::make_structured_experiment(odd_tensors, 75, 2, steps);
  const auto check = [&]<class First, class Second>(std::type_identity<First>, std::type_identity<Second>) {
    std::vector<std::byte> saved[2];
    std::vector<float> parameters[2], expected[2];
    slamb::run_ranks(2, [&](thread_communicator communicator) {
      const auto rank = static_cast<std::size_t>(communicator.rank());
      replica mine(e.tensors, e.start);
      First optimizer(mine.parameters(), options_of<First>(), std::move(communicator));
      for (std::size_t t = 0; t < steps; ++t) {
        if (t == saved_after) {
          saved[rank] = optimizer.save_state();
          parameters[rank] = mine.values();
        }
        mine.set_gradient(e.gradients[t][rank]);
        optimizer.step(0.01);
      }
      expected[rank] = mine.values();
    });
    slamb::run_ranks(2, [&](thread_communicator communicator) {
      const auto rank = static_cast<std::size_t>(communicator.rank());
      replica mine(e.tensors, parameters[rank]);
      Second optimizer(mine.parameters(), options_of<Second>(), std::move(communicator));
      optimizer.load_state(saved[rank]);
      for (std::size_t t = saved_after; t < steps; ++t) {
        mine.set_gradient(e.gradients[t][rank]);
        optimizer.step(0.01);
      }
      CHECK(same_bits(mine.values(), expected[rank]));
    });
  };
  check(std::type_identity<one_bit_adam<bf16>>(), std::type_identity<one_bit_adam<no_compressor>>());
  check(std::type_identity<one_bit_lamb<no_compressor>>(), std::type_identity<one_bit_lamb<fp16>>());
  check(std::type_identity<zero_one_adam<no_compressor>>(), std::type_identity<zero_one_adam<bf16>>());
}

TEST_CASE("dense compressor: ranks with different ones are told at construction") {
  std::atomic<int> told{0};
  slamb::run_ranks(2, [&](thread_communicator communicator) {
    const bool is_first = communicator.rank() == 0;
    replica mine(odd_tensors, std::vector<float>(test_support::total_size(odd_tensors), 1.0F));
    const std::string said = test_support::said_by<slamb::rank_mismatch_error>([&] {
      if (is_first)
        static_cast<void>(one_bit_adam<bf16>(mine.parameters(), {}, std::move(communicator)));
      else
        static_cast<void>(one_bit_adam<fp16>(mine.parameters(), {}, std::move(communicator)));
    });
    if (said.find("ranks differ in the optimizer or its policies") != std::string::npos) ++told;
  });
  CHECK(told == 2);
}

TEST_CASE("dense compressor: a stochastic quantizer without scales is one, and its seed is compared") {
  static_assert(slamb::detail::dense_compressor<slamb::natural> && !slamb::detail::dense_compressor<slamb::int8> &&
                !slamb::detail::dense_compressor<sign> && !slamb::detail::dense_compressor<slamb::random_k<>>);
  const experiment e = test_support::make_structured_experiment(odd_tensors, 76, 2, 6);
  using optimizer = one_bit_adam<slamb::natural>;
  const trajectory reached = trained<optimizer>(e, options_of<optimizer>());
  for (std::size_t t = 0; t < e.steps(); ++t) CHECK(test_support::ranks_agree(reached, t));
  std::atomic<int> told{0};
  slamb::run_ranks(2, [&](thread_communicator communicator) {
    replica mine(e.tensors, e.start);
    auto options = options_of<optimizer>();
    options.dense_compressor.seed = static_cast<std::uint64_t>(communicator.rank());
    const std::string said = test_support::said_by<slamb::rank_mismatch_error>(
        [&] { static_cast<void>(optimizer(mine.parameters(), options, std::move(communicator))); });
    if (said.find("natural's seed") != std::string::npos) ++told;
  });
  CHECK(told == 2);
}

}  // namespace properties_dense_compressor_tests
