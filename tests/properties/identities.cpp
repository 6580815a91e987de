// Properties that hold for all values: conservation of the momentum, settings with which one algorithm equals another, equal
// bits on all ranks, counted traffic, and ages.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "slamb/slamb.hpp"
#include "support/cluster.hpp"
#include "support/watching_communicators.hpp"

namespace properties_identities_tests {
namespace {

using slamb::collective;
using slamb::explicit_mask;
using slamb::no_compressor;
using slamb::random_k;
using slamb::rescaling;
using slamb::sampling;
using slamb::thread_communicator;
using test_support::experiment;
using test_support::imagined_peers;
using test_support::make_experiment;
using test_support::model;
using test_support::ranks_agree;
using test_support::replica;
using test_support::same_bits;
using test_support::train;
using test_support::trajectory;

template <class Compressor, rescaling Form = rescaling::product, class Communicator = thread_communicator>
using optimizer = slamb::slamb<Communicator, Compressor, slamb::rescaled_trust_ratio<Form>>;

using lamb = slamb::lamb<thread_communicator>;
using adamw = slamb::adamw<thread_communicator>;

// ----------------------------------------------------------------------------------------- a. the mean of the momenta

constexpr double beta1 = 0.5;  // a power of two: β1 m has the digits of m

/// [rank][n] the momenta after the first `steps` steps, bit for bit. In a step without gradient and with everything selected,
/// ranks send β1 m; a listening communicator divides it by β1.
std::vector<std::vector<float>> momenta_after(const experiment& e, std::size_t steps) {
  using recording = test_support::recording_communicator<thread_communicator>;
  std::vector<std::vector<float>> momenta(static_cast<std::size_t>(e.world));
  slamb::run_ranks(e.world, [&](thread_communicator communicator) {
    const auto rank = static_cast<std::size_t>(communicator.rank());
    const auto log = std::make_shared<test_support::exchange_log>();
    replica mine(e.tensors, e.start);
    optimizer<explicit_mask, rescaling::product, recording> run(
        mine.parameters(), {.beta1 = beta1, .local_steps = 3, .dense_below = 16},
        recording(std::move(communicator), log), test_support::one_thread());
    for (std::size_t t = 0; t < steps; ++t) {
      mine.set_gradient(e.gradients[t][rank]);
      run.compressor().set(e.masks[t]);
      run.step(0.01);
    }
    log->clear();
    const std::vector<std::uint8_t> all(e.start.size(), 1);
    mine.set_gradient(std::vector<float>(e.start.size(), 0.0F));
    run.compressor().set(all);
    run.step(0.01);
    const std::vector<float>& sent = log->sent.at(0);
    for (std::size_t i = 16; i < sent.size(); ++i) momenta[rank].push_back(static_cast<float>(sent[i] / beta1));
  });
  return momenta;
}

model mixed_model() { return {{300}, {17, 1}, {0}, {1}, {9000}, {8200, 3}, {12}}; }

/// The mask of step t, with the dense tensors.
std::vector<std::uint8_t> exchanged_at(const experiment& e, std::size_t t, std::size_t dense_below) {
  std::vector<std::uint8_t> mask = e.masks[t];
  std::size_t j = 0;
  for (const auto& l : e.tensors)
    for (std::size_t i = 0; i < l.size; ++i, ++j)
      if (l.dimensions <= 1 || l.size < dense_below || !l.options.compress) mask[j] = 1;
  return mask;
}

// ------------------------------------------------------------------------------------- b. one algorithm equals another

/// All ranks get the gradients of rank 0.
experiment with_equal_ranks(experiment e, int world) {
  e.world = world;
  for (auto& ranks : e.gradients) ranks.assign(static_cast<std::size_t>(world), std::vector<float>(ranks[0]));
  return e;
}

template <class Optimizer>
trajectory train_with_equal_peers(const experiment& e, int size, const typename Optimizer::options_type& options) {
  trajectory reached;
  replica mine(e.tensors, e.start);
  Optimizer run(mine.parameters(), options, imagined_peers(size, imagined_peers::habit::send_the_same),
                test_support::one_thread());
  for (std::size_t t = 0; t < e.steps(); ++t) {
    mine.set_gradient(e.gradients[t][0]);
    run.step(e.rates[t]);
    reached.push_back({mine.values()});
  }
  return reached;
}

double distance(const trajectory& a, const trajectory& b) {
  double worst = 0.0;
  for (std::size_t t = 0; t < a.size(); ++t)
    worst = std::max(worst, test_support::max_relative_error(a[t][0], b[t][0]));
  return worst;
}

// ------------------------------------------------------------------------------------------------- g. counted traffic

/// ⌊(c+1) n/C⌋ − ⌊c n/C⌋, the size of slot c of n elements.
std::uint64_t slot_size(std::uint64_t n, std::uint64_t slots, std::uint64_t c) {
  return (c + 1) * n / slots - c * n / slots;
}

/// Elements exchanged in H steps over H times all elements, by the library's own counts.
struct share_of_dense {
  std::uint64_t dense;  // elements of dense tensors
  std::uint64_t all;
  std::uint64_t local_steps;

  double of(std::uint64_t exchanged) const {
    return static_cast<double>(exchanged) / (static_cast<double>(all) * static_cast<double>(local_steps));
  }

  /// Sums the counts of `random_k` over H steps, and the averaging of all parameters.
  double counted() const {
    const random_k<> compressor{};
    std::uint64_t exchanged = all;
    for (std::uint64_t t = 1; t <= local_steps; ++t)
      exchanged += dense + compressor.at(t).selected_before({1, all - dense, all - dense, dense});
    return of(exchanged);
  }
};

double rounded_to_percent(double share, double digits) { return std::round(share * 100.0 * digits) / digits; }

// ------------------------------------------------------------------------------------------------------------ h. ages

/// Makes ages visible: an element of unit direction moves by exactly γ β3^age.
struct freshness_as_rate {
  static constexpr int sums_per_segment = 0;
  struct segment_factors {};

  template <class Real, class Sums>
  void accumulate(const slamb::update_terms<Real>& /*x*/, bool /*received*/, Sums& /*sums*/) const {}
  segment_factors factors(const double* /*sums*/, slamb::tensor_properties /*facts*/) const { return {}; }
  template <class Real>
  Real scale(segment_factors /*factors*/, const Real& discount) const {
    return discount;
  }
};

/// Trains and compares the staleness discount of every element at every step with float(β3^age). Ages are counted here, up to
/// `oldest`. Returns the largest age seen.
template <class Compressor, class SetMask>
std::uint64_t check_ages(const Compressor& compressor, std::size_t n, std::uint64_t steps, std::uint64_t oldest,
                         SetMask set_mask) {
  using probe = slamb::slamb<slamb::self_communicator, Compressor, freshness_as_rate>;
  constexpr double beta3 = 0.9998;
  const model tensors{{n}};
  const std::vector<float> zeros(n, 0.0F);
  replica mine(tensors, zeros);
  mine.set_gradient(std::vector<float>(n, 1.0F));
  probe run(mine.parameters(),
            {.beta1 = 0.0,
             .beta2 = 0.0,
             .beta3 = beta3,
             .epsilon = 1e-30,
             .weight_decay = 0.0,
             .bias_correction = false,
             .dense_below = 0,
             .compressor = compressor},
            {}, test_support::one_thread());
  std::vector<std::uint64_t> age(n, 0);
  std::uint64_t largest = 0;
  std::uint64_t wrong = 0;
  for (std::uint64_t t = 1; t <= steps; ++t) {
    if constexpr (requires { run.compressor(); }) set_mask(run.compressor(), t);
    const auto mask = test_support::mask_of(run.options().compressor.at(t), tensors);
    mine.set_values(zeros);
    run.step(1.0);  // p ← 0 − 1 · β3^age · 1
    const std::vector<float> reached = mine.values();
    for (std::size_t i = 0; i < n; ++i) {
      age[i] = mask[i] != 0 ? 0 : age[i] + 1;
      largest = std::max(largest, age[i]);
      const auto expected = static_cast<float>(std::pow(beta3, static_cast<double>(std::min(age[i], oldest))));
      if (reached[i] != -expected) ++wrong;
    }
  }
  CHECK(wrong == 0);
  return largest;
}

void leave_mask(auto& /*compressor*/, std::uint64_t /*step*/) {}

constexpr std::uint64_t any_age = std::numeric_limits<std::uint64_t>::max();

}  // namespace

TEST_CASE("identities: the mean of the ranks' momenta is the dense moving average, for every selection") {
  for (const int world : {2, 3, 4}) {
    const experiment e = make_experiment(mixed_model(), static_cast<std::uint64_t>(60 + world), world, 6);
    std::vector<double> dense(e.start.size(), 0.0);
    for (std::size_t t = 0; t < e.steps(); ++t) {
      for (std::size_t j = 0; j < dense.size(); ++j) {
        double g = 0.0;
        for (const auto& of_rank : e.gradients[t]) g += of_rank[j];
        dense[j] = beta1 * dense[j] + (1.0 - beta1) * g / world;
      }
      const auto momenta = momenta_after(e, t + 1);
      const auto mask = exchanged_at(e, t, 16);
      double worst = 0.0;
      double worst_exchanged = 0.0;
      std::size_t unequal = 0;
      std::size_t apart = 0;
      for (std::size_t j = 0; j < dense.size(); ++j) {
        double mean = 0.0;
        for (const auto& of_rank : momenta) mean += double{of_rank[j]} / world;
        worst = std::max(worst, std::abs(mean - dense[j]));
        for (const auto& of_rank : momenta) {
          if (mask[j] != 0) worst_exchanged = std::max(worst_exchanged, std::abs(of_rank[j] - dense[j]));
          if (mask[j] != 0 && of_rank[j] != momenta[0][j]) ++unequal;
          if (mask[j] == 0 && std::abs(of_rank[j] - dense[j]) > 0.01) ++apart;
        }
      }
      CAPTURE(world);
      CAPTURE(t);
      const double scale = test_support::max_magnitude(std::span<const double>(dense));
      CHECK(worst <= 3e-7 * scale);
      CHECK(worst_exchanged <= 3e-7 * scale);
      CHECK(unequal == 0);
      CHECK(apart > 1000);  // unsent momenta differ between ranks, so the equal mean is no accident
    }
  }
}

TEST_CASE("identities: SLAMB on a single rank, with everything sent, is LAMB with its clamp, bit for bit") {
  model tensors = test_support::random_model(61, 8);
  experiment e = make_experiment(tensors, 61, 1, 6);
  // Ratios beyond both ends of the clamp, which does not apply to one-dimensional tensors.
  e.tensors.push_back({40});
  e.tensors.push_back({40});
  for (int i = 0; i < 40; ++i) e.start.push_back(3e4F);
  for (int i = 0; i < 40; ++i) e.start.push_back(1e-5F);
  for (auto& ranks : e.gradients) ranks[0].resize(e.start.size(), 0.5F);
  for (const bool bias_correction : {true, false}) {
    const trajectory expected =
        train<lamb>(e, {.weight_decay = 0.0, .bias_correction = bias_correction, .trust_ratio = {0.01, 1000.0}});
    CHECK(same_bits(train<optimizer<no_compressor>>(e, {.weight_decay = 0.0, .bias_correction = bias_correction}),
                    expected));
    for (const std::size_t block : {1U, 7U, 16U})
      CHECK(same_bits(train<optimizer<random_k<>>>(e, {.weight_decay = 0.0,
                                                       .bias_correction = bias_correction,
                                                       .dense_below = 0,
                                                       .compressor = {.k = 1.0, .block = block}}),
                      expected));
    CHECK(same_bits(train<optimizer<random_k<sampling::bernoulli>>>(
                        e, {.weight_decay = 0.0, .bias_correction = bias_correction, .compressor = {.k = 1.0}}),
                    expected));
    const trajectory unclamped = train<lamb>(e, {.weight_decay = 0.0, .bias_correction = bias_correction});
    CHECK_FALSE(same_bits(unclamped, expected));
  }
}

TEST_CASE("identities: equal ranks with equal gradients, and everything sent, equal a single rank") {
  const experiment one = make_experiment(test_support::random_model(62, 6), 62, 1, 5);
  const auto check = [&one]<rescaling Form>() {
    using full = optimizer<random_k<>, Form>;
    const typename full::options_type options{.local_steps = 2, .dense_below = 0, .compressor = {.k = 1.0}};
    const trajectory expected = train<full>(one, options);
    for (const int world : {2, 3, 4, 7, 8}) {
      CAPTURE(world);
      const trajectory reached = train<full>(with_equal_ranks(one, world), options);
      for (std::size_t t = 0; t < reached.size(); ++t) CHECK(ranks_agree(reached, t));
      // The sum is rounded once, so it is exact for powers of two.
      if (world == 2 || world == 4 || world == 8) {
        for (std::size_t t = 0; t < reached.size(); ++t) CHECK(test_support::same_bits(reached[t][0], expected[t][0]));
      } else {
        CHECK(distance(reached, expected) <= 2e-6);
      }
    }
    // With an exact sum, eight equal ranks give the result of one.
    using among_peers = optimizer<random_k<>, Form, imagined_peers>;
    CHECK(same_bits(train_with_equal_peers<among_peers>(one, 8, options), expected));
  };
  check.template operator()<rescaling::product>();
  check.template operator()<rescaling::blend>();
}

TEST_CASE("identities: equal ranks of LAMB and AdamW equal a single rank") {
  const experiment one = make_experiment(test_support::random_model(63, 6), 63, 1, 5);
  const trajectory expected = train<lamb>(one, {});
  for (const int world : {2, 4, 8}) {
    const trajectory reached = train<lamb>(with_equal_ranks(one, world), {});
    for (std::size_t t = 0; t < reached.size(); ++t) CHECK(test_support::same_bits(reached[t][0], expected[t][0]));
  }
  CHECK(same_bits(train_with_equal_peers<slamb::lamb<imagined_peers>>(one, 8, {}), expected));
  CHECK(same_bits(train_with_equal_peers<slamb::adamw<imagined_peers>>(one, 8, {}), train<adamw>(one, {})));
}

TEST_CASE("identities: AdamW and LAMB have the same bits on all ranks after every step") {
  for (const int world : {2, 3, 4, 7, 8}) {
    const experiment e =
        make_experiment(test_support::random_model(64, 6), static_cast<std::uint64_t>(64 + world), world, 5);
    const trajectory of_lamb = train<lamb>(e, {.max_gradient_norm = 1.0});
    const trajectory of_adamw = train<adamw>(e, {});
    for (std::size_t t = 0; t < e.steps(); ++t) {
      CAPTURE(world);
      CAPTURE(t);
      CHECK(ranks_agree(of_lamb, t));
      CHECK(ranks_agree(of_adamw, t));
    }
  }
}

TEST_CASE("identities: SLAMB has the same bits on all ranks after every averaging, and not before it") {
  for (const int world : {2, 3, 4, 7, 8}) {
    const experiment e = make_experiment({{20'000}, {9000}, {33, 1}}, static_cast<std::uint64_t>(70 + world), world, 7);
    const trajectory reached =
        train<optimizer<random_k<>>>(e, {.local_steps = 3, .compressor = {.k = 0.05}});  // averages in pieces
    for (std::size_t t = 0; t < e.steps(); ++t) {
      CAPTURE(world);
      CAPTURE(t);
      CHECK(ranks_agree(reached, t) == (t % 3 == 0));
    }
  }
}

TEST_CASE("identities: every step sends exactly the elements of its mask, and the parameters every H steps") {
  const experiment e = make_experiment({{9001}, {17, 1}, {20'003}, {8999}, {0}}, 65, 2, 12);
  const std::uint64_t all = e.start.size();
  constexpr std::uint64_t always = 17 + 8999;
  slamb::run_ranks(2, [&](thread_communicator communicator) {
    const auto rank = static_cast<std::size_t>(communicator.rank());
    replica mine(e.tensors, e.start);
    optimizer<random_k<>> run(mine.parameters(), {.local_steps = 4}, std::move(communicator),
                              test_support::one_thread());
    CHECK(run.statistics().traffic.total() == slamb::traffic{});
    std::uint64_t before = 0;
    for (std::uint64_t t = 1; t <= e.steps(); ++t) {
      mine.set_gradient(e.gradients[t - 1][rank]);
      run.step(0.01);
      const slamb::traffic total = run.statistics().traffic.total();
      const std::uint64_t payload = always + slot_size(9001, 10, t % 10) + slot_size(20'003, 10, t % 10);
      CHECK(total.elements - before == payload + ((t - 1) % 4 == 0 ? all : 0));
      CHECK(total.payload_bytes == 4 * total.elements);
      CHECK(total == run.statistics().traffic[collective::all_reduce]);
      before = total.elements;
    }
  });
}

TEST_CASE("identities: the payload equals the mask for every compressor and block size") {
  const experiment e = make_experiment(test_support::random_model(66, 6), 66, 2, 5);
  const auto check = [&e](const auto& compressor) {
    using compressor_type = std::remove_cvref_t<decltype(compressor)>;
    experiment told = e;
    test_support::take_masks(told, compressor);
    slamb::run_ranks(2, [&](thread_communicator communicator) {
      replica mine(e.tensors, e.start);
      optimizer<compressor_type> run(mine.parameters(),
                                     {.local_steps = 1000, .dense_below = 16, .compressor = compressor},
                                     std::move(communicator), test_support::one_thread());
      std::uint64_t before = 0;
      for (std::size_t t = 0; t < e.steps(); ++t) {
        if constexpr (requires { run.compressor().set(told.masks[t]); }) run.compressor().set(told.masks[t]);
        run.step(0.01);
        const auto mask = exchanged_at(told, t, 16);
        const auto selected = static_cast<std::uint64_t>(
            std::count_if(mask.begin(), mask.end(), [](std::uint8_t byte) { return byte != 0; }));
        const std::uint64_t elements = run.statistics().traffic.total().elements;
        CHECK(elements - before == selected + (t == 0 ? e.start.size() : 0));
        before = elements;
      }
    });
  };
  check(no_compressor{});
  check(explicit_mask{});
  for (const std::size_t block : {1U, 5U, 16U, 64U}) {
    check(random_k<>{.k = 0.1, .block = block, .seed = 4});
    check(random_k<sampling::bernoulli>{.k = 0.1, .block = block, .seed = 4});
  }
}

TEST_CASE("identities: AdamW and LAMB send every element at every step, in one round") {
  const experiment e = make_experiment(mixed_model(), 67, 4, 3);
  slamb::run_ranks(4, [&](thread_communicator communicator) {
    replica mine(e.tensors, e.start);
    lamb run(mine.parameters(), {}, std::move(communicator), test_support::one_thread());
    for (std::uint64_t t = 1; t <= e.steps(); ++t) {
      run.step(0.01);
      const std::uint64_t elements = t * e.start.size();
      CHECK(run.statistics().traffic.total() == slamb::traffic{t, elements, 4 * elements, 6 * elements});
    }
  });
}

TEST_CASE("identities: the paper's models exchange the published shares") {
  CHECK(rounded_to_percent(share_of_dense{360'258, 336'232'258, 100}.counted(), 100) == 11.10);  // BERT-Large
  CHECK(rounded_to_percent(share_of_dense{236'704, 87'768'224, 100}.counted(), 100) == 11.24);   // Swin-B
  CHECK(rounded_to_percent(share_of_dense{96'730, 1'727'962, 50}.counted(), 10) == 17.0);        // ResNet-110
  CHECK(rounded_to_percent(share_of_dense{96'730, 1'727'962, 100}.counted(), 10) != 17.0);
}

TEST_CASE("identities: an optimizer of ResNet-110's size exchanges 17.0 % of the dense elements") {
  constexpr share_of_dense resnet{96'730, 1'727'962, 50};
  const model tensors{{resnet.dense, 1}, {resnet.all - resnet.dense}};
  std::vector<float> data(resnet.all, 0.1F);
  const std::vector<float> gradient(resnet.all, 0.01F);
  const std::array<slamb::parameter, 2> parameters{{
      {data.data(), gradient.data(), resnet.dense, 1},
      {data.data() + resnet.dense, gradient.data() + resnet.dense, resnet.all - resnet.dense},
  }};
  slamb::slamb<imagined_peers> run(parameters, {.local_steps = 50},
                                   imagined_peers(2, imagined_peers::habit::send_zeros));
  for (int t = 0; t < 50; ++t) run.step(0.001);
  CHECK(rounded_to_percent(resnet.of(run.statistics().traffic.total().elements), 10) == 17.0);
}

TEST_CASE("identities: ages are exact for a slow decay over hundreds of steps") {
  const auto keep = [](auto& compressor, std::uint64_t step) { leave_mask(compressor, step); };
  // Round robin with 400 slots: ages have no upper bound but the period.
  CHECK(check_ages(random_k<>{.k = 1.0 / 400.0}, 1000, 900, any_age, keep) == 399);
  CHECK(check_ages(random_k<>{.k = 1.0 / 400.0, .block = 16}, 10'000, 420, any_age, keep) == 399);
  CHECK(check_ages(random_k<>{.k = 0.1}, 1003, 300, any_age, keep) == 9);
  CHECK(check_ages(random_k<>{.k = 0.1, .block = 5}, 1003, 300, any_age, keep) == 9);
  // One byte for each element: ages stop at 255.
  CHECK(check_ages(random_k<sampling::bernoulli>{.k = 0.05}, 1003, 300, 255, keep) > 60);
  CHECK(check_ages(random_k<sampling::bernoulli>{.k = 0.002}, 1003, 600, 255, keep) > 300);
}

TEST_CASE("identities: ages of an explicit mask exceed a byte") {
  constexpr std::size_t n = 50;
  std::vector<std::uint8_t> mask(n);
  const auto set = [&mask](explicit_mask& compressor, std::uint64_t step) {
    for (std::size_t i = 0; i < n; ++i)
      mask[i] = i != 0 && step % (8 * i) == 0 ? 1 : 0;  // the first element is never sent
    compressor.set(mask);
  };
  CHECK(check_ages(explicit_mask{}, n, 420, any_age, set) == 420);
}

TEST_CASE("identities: a slow decay follows the oracle over 300 steps, and β3 = 1 does not") {
  using probe = optimizer<random_k<>>;
  experiment e = make_experiment({{600}, {40, 1}}, 68, 2, 300);
  test_support::use_one_rate(e, 0.02);
  const probe::options_type options{.beta3 = 0.9998, .dense_below = 0, .compressor = {.k = 1.0 / 250.0}};
  test_support::take_masks(e, options.compressor);
  const trajectory reached = train<probe>(e, options);
  CHECK(test_support::worst_error(e, reached, test_support::slamb_oracle(e, options)) <= 1e-5);
  probe::options_type fresh = options;
  fresh.beta3 = 1.0;
  CHECK(test_support::worst_error(e, reached, test_support::slamb_oracle(e, fresh)) > 1e-3);
}

}  // namespace properties_identities_tests
