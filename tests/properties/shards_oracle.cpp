// LAMB, SLAMB and 1-bit LAMB in shards with two replicas, compared with oracles in double precision over whole tensors. SLAMB's masks,
// and the codes of 1-bit LAMB, are of shards.
#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "slamb/slamb.hpp"
#include "support/cluster.hpp"
#include "support/difference_oracle.hpp"
#include "support/one_bit_cluster.hpp"
#include "support/thread_shards.hpp"

namespace properties_shards_oracle_tests {
namespace {

using slamb::rescaled_trust_ratio;
using slamb::rescaling;
using test_support::cut_anywhere;
using test_support::cut_model;
using test_support::experiment;
using test_support::maker_of;
using test_support::train_in_shards;
using test_support::train_shards_alone;
using test_support::trajectory;
using test_support::with_dense_copies;

constexpr double tolerance = 2e-6;
constexpr double wrong = 1e-4;

experiment some_experiment(std::uint64_t seed, std::size_t steps) {
  return test_support::make_experiment(test_support::random_model(seed, 4), seed, 2, steps);
}

/// Trains in shards, and returns the error against the oracle of LAMB or AdamW over whole tensors.
template <class Optimizer>
double error_of_dense(const experiment& e, const cut_model& cuts, const typename Optimizer::options_type& options) {
  const oracle::adam_family run(test_support::oracle_tensors(e.tensors, options.weight_decay),
                                test_support::widened(e.start), test_support::oracle_settings(options));
  return worst_error(e, train_in_shards(e, cuts, maker_of<Optimizer>(options)), run);
}

/// The same for SLAMB, with the masks of shards.
template <class Optimizer>
double error_of_slamb(experiment e, const cut_model& cuts, const typename Optimizer::options_type& options) {
  take_masks_in_shards(e, cuts, options.compressor);
  const trajectory reached = train_in_shards(e, cuts, maker_of<Optimizer>(options));
  return worst_error(e, reached, slamb_oracle(with_dense_copies(e, cuts), options));
}

template <class Check>
void for_all_cuts(const experiment& e, std::uint64_t seed, const Check& check) {
  for (const std::size_t shards : {2U, 3U, 4U}) {
    CAPTURE(shards);
    check(cut_anywhere(e.tensors, shards, seed));
  }
}

}  // namespace

TEST_CASE("shards: LAMB follows the oracle over whole tensors") {
  const experiment e = some_experiment(500, 8);
  for_all_cuts(e, 501, [&](const cut_model& cuts) {
    CHECK(error_of_dense<slamb::lamb<>>(e, cuts, {}) <= tolerance);
    CHECK(error_of_dense<slamb::lamb<>>(e, cuts, {.max_gradient_norm = 1.0, .trust_ratio = {.lower = 0.5}}) <=
          tolerance);
    CHECK(error_of_dense<slamb::adamw<>>(e, cuts, {.max_gradient_norm = 2.0}) <= tolerance);
  });
}

TEST_CASE("shards: SLAMB follows the oracle over whole tensors, with masks of shards") {
  const experiment e = some_experiment(510, 8);
  using slamb::random_k;
  for_all_cuts(e, 511, [&](const cut_model& cuts) {
    CHECK(error_of_slamb<slamb::slamb<random_k<>>>(
              e, cuts, {.local_steps = 3, .dense_below = 20, .compressor = {.k = 0.3, .seed = 4}}) <= tolerance);
    CHECK(error_of_slamb<slamb::slamb<random_k<>>>(
              e, cuts, {.local_steps = 3, .dense_below = 200, .compressor = {.k = 0.2, .block = 16}}) <= tolerance);
    CHECK(error_of_slamb<slamb::slamb<random_k<slamb::sampling::bernoulli>>>(
              e, cuts, {.local_steps = 3, .dense_below = 20, .compressor = {.k = 0.3}}) <= tolerance);
    CHECK(error_of_slamb<slamb::slamb<random_k<>, rescaled_trust_ratio<rescaling::blend>>>(
              e, cuts, {.local_steps = 3, .dense_below = 20, .compressor = {.k = 0.3}}) <= tolerance);
    CHECK(error_of_slamb<slamb::slamb<random_k<>, rescaled_trust_ratio<rescaling::product, true>>>(
              e, cuts, {.local_steps = 3, .dense_below = 20, .compressor = {.k = 0.3}}) <= tolerance);
    CHECK(error_of_slamb<slamb::slamb<random_k<>, rescaled_trust_ratio<rescaling::mean_step>>>(
              e, cuts, {.local_steps = 3, .dense_below = 20, .compressor = {.k = 0.3}}) <= tolerance);
  });
}

TEST_CASE("shards: SLAMB of the shards alone, or with the masks of whole tensors, does not follow the oracle") {
  experiment e = some_experiment(520, 8);
  const slamb::slamb<>::options_type options{.local_steps = 3, .dense_below = 20, .compressor = {.k = 0.3}};
  cut_model cuts;
  for (const test_support::tensor_spec& l : e.tensors) cuts.push_back(test_support::cut_at({l.size / 3, l.size}));
  take_masks_in_shards(e, cuts, options.compressor);
  CHECK(worst_error(e, train_shards_alone(e, cuts, maker_of<slamb::slamb<>>(options)), slamb_oracle(e, options)) >
        wrong);
  const trajectory reached = train_in_shards(e, cuts, maker_of<slamb::slamb<>>(options));
  take_masks(e, options.compressor);
  CHECK(worst_error(e, reached, slamb_oracle(e, options)) > wrong);
}

// ----------------------------------------------------------------------------------------------------------- 1-bit LAMB

namespace {

/// Each shard has an exchange of its own among the replicas.
std::vector<oracle::shard> oracle_shards(const experiment& e, const cut_model& cuts, double weight_decay) {
  std::vector<oracle::shard> all;
  const experiment dense = with_dense_copies(e, cuts);
  for (std::size_t s = 0; s < test_support::shards_of(cuts); ++s)
    all.push_back({test_support::oracle_tensors(test_support::shard_of(dense.tensors, cuts, s), weight_decay),
                   test_support::elements_of(e.tensors, cuts, s)});
  return all;
}

template <class Options>
oracle::one_bit one_bit_oracle(const experiment& e, const cut_model& cuts, const Options& options) {
  return oracle_at_start(with_dense_copies(e, cuts), options, {}, oracle_shards(e, cuts, options.weight_decay));
}

template <class Optimizer>
double error_of_one_bit(experiment e, const cut_model& cuts, const typename Optimizer::options_type& options) {
  const oracle::one_bit run = one_bit_oracle(e, cuts, options);
  settle(e, run);
  return worst_one_bit_error(e, train_in_shards(e, cuts, maker_of<Optimizer>(options)), run);
}

experiment structured(std::uint64_t seed, std::size_t steps) {
  return test_support::make_structured_experiment(test_support::mixed_model(seed), seed, 2, steps);
}

}  // namespace

TEST_CASE("shards: 1-bit LAMB follows the oracle over whole tensors, with codes of shards") {
  const experiment e = structured(530, 10);
  using lamb = slamb::one_bit_lamb<>;
  for_all_cuts(e, 531, [&](const cut_model& cuts) {
    CHECK(error_of_one_bit<lamb>(e, cuts, {.warm_up = {4}}) <= tolerance);
    CHECK(error_of_one_bit<lamb>(
              e, cuts, {.warm_up = {3}, .compressor = {.scales = slamb::scale_sharing::per_tensor}}) <= tolerance);
    CHECK(error_of_one_bit<lamb>(e, cuts, {.weight_decay = 0.1, .warm_up = {3}, .compressor = {.zero_aware = true}}) <=
          tolerance);
    CHECK(error_of_one_bit<slamb::one_bit_adam<>>(e, cuts, {.warm_up = {3}}) <= tolerance);
  });
}

TEST_CASE("shards: 1-bit LAMB of the shards alone does not follow the oracle") {
  experiment e = structured(540, 8);
  const slamb::one_bit_lamb<>::options_type options{.warm_up = {3}};
  cut_model cuts;
  for (const test_support::tensor_spec& l : e.tensors) cuts.push_back(test_support::cut_at({l.size / 3, l.size}));
  const oracle::one_bit run = one_bit_oracle(e, cuts, options);
  settle(e, run);
  const auto make = maker_of<slamb::one_bit_lamb<>>(options);
  CHECK(worst_one_bit_error(e, train_in_shards(e, cuts, make), run) <= tolerance);
  CHECK(worst_one_bit_error(e, train_shards_alone(e, cuts, make), run) > wrong);
  CHECK(worst_one_bit_error(e, train_in_shards(e, cuts, make), oracle_at_start(e, options)) > wrong);
}

// -------------------------------------------------------------------------------------------------- SLAMB by differences

namespace {

using signs = slamb::basic_sign<slamb::segment_scale::l1>;
using by_signs = slamb::slamb<slamb::sync::quantized_difference<signs, signs>>;

/// The largest error against the oracle. Differences are coded by shard, as if it were a model of its own.
/// @return negative if a value was so near to 0 that its sign may differ
double error_of_differences(experiment e, const cut_model& cuts, const by_signs::options_type& options) {
  take_masks_in_shards(e, cuts, options.compressor);
  const trajectory reached = train_in_shards(e, cuts, maker_of<by_signs>(options));
  by_signs::options_type never = options;
  never.local_steps = 0;
  const experiment dense = with_dense_copies(e, cuts);
  oracle::slamb run = slamb_oracle(dense, never);
  std::vector<std::vector<std::size_t>> elements;
  std::vector<oracle::difference_exchange> exchanges;
  for (std::size_t s = 0; s < test_support::shards_of(cuts); ++s) {
    elements.push_back(test_support::elements_of(e.tensors, cuts, s));
    exchanges.emplace_back(test_support::oracle_tensors(test_support::shard_of(e.tensors, cuts, s), 0.0),
                           test_support::widened(test_support::taken(e.start, elements[s])), oracle::signs_of,
                           oracle::signs_of);
  }
  double worst = 0.0;
  for (std::size_t t = 0; t < e.steps(); ++t) {
    run.step(test_support::rates_of(e.tensors, e.rates[t]), test_support::widened(e.gradients[t]), e.masks[t]);
    if (t % static_cast<std::size_t>(options.local_steps) == 0)
      for (std::size_t s = 0; s < elements.size(); ++s) {
        std::vector<oracle::vector> its;
        for (const oracle::vector& p : run.all_parameters()) its.push_back(test_support::taken(p, elements[s]));
        exchanges[s](its);
        for (std::size_t rank = 0; rank < its.size(); ++rank)
          for (std::size_t i = 0; i < elements[s].size(); ++i)
            run.all_parameters()[rank][elements[s][i]] = its[rank][i];
      }
    for (int rank = 0; rank < e.world; ++rank)
      worst = std::max(
          worst, test_support::max_relative_error(reached[t][static_cast<std::size_t>(rank)], run.parameters(rank)));
  }
  for (const oracle::difference_exchange& exchange : exchanges)
    if (exchange.closest() < 2e-4) return -1.0;
  return worst;
}

}  // namespace

TEST_CASE("shards: SLAMB by differences follows the oracle, with differences coded by shard") {
  int compared = 0;
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    const experiment e = test_support::make_experiment({{700}, {100}, {60, 1}}, seed, 2, 6);
    const cut_model cuts{test_support::cut_at({250, 700}), test_support::cut_at({100, 100}),
                         test_support::cut_at({20, 60})};
    const double error = error_of_differences(
        e, cuts,
        {.local_steps = 1 + static_cast<std::int64_t>(seed % 2), .dense_below = 10, .compressor = {.k = 0.25}});
    CAPTURE(seed);
    CHECK(error <= tolerance);
    if (error >= 0.0) ++compared;
  }
  CHECK(compared >= 3);
}

}  // namespace properties_shards_oracle_tests
