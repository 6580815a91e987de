// Parameters and gradients of sixteen bits in shards: compared with whole tensors, bit for bit.
#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "slamb/optimizer/moments.hpp"
#include "slamb/slamb.hpp"
#include "support/sixteen_bits.hpp"
#include "support/thread_shards.hpp"

namespace properties_shards_mixed_tests {
namespace {

using slamb::parameter;
using test_support::cut_model;
using test_support::experiment;
using test_support::typed_memory;

using bytes = std::vector<std::byte>;

/// One tensor of a rank: parameters, gradient, and a master copy if the caller has one.
struct typed_tensor {
  typed_memory data, gradient;
  std::vector<float> master;
};

/// Types of the tensors' parameters, in turn; gradients are bfloat16. Every other tensor of 16 bits has a master copy of the caller.
parameter::element_type type_of(std::size_t tensor) {
  return tensor % 3 == 1 ? parameter::float32 : tensor % 3 == 0 ? parameter::bfloat16 : parameter::float16;
}

/// Trains one rank with the elements of `its`, an experiment of its own, and calls after(t, data, masters) after each step.
template <class Optimizer, class Communicator, class After>
void train_rank(const experiment& its, std::size_t replica, const typename Optimizer::options_type& options,
                Communicator ranks, const After& after) {
  std::vector<typed_tensor> tensors;
  std::vector<parameter> parameters;
  std::size_t first = 0;
  const auto part = [&first](const std::vector<float>& all, std::size_t size) {
    return std::span(all).subspan(first, size);
  };
  for (std::size_t l = 0; l < its.tensors.size(); ++l) {
    const test_support::tensor_spec& spec = its.tensors[l];
    const std::span<const float> start = part(its.start, spec.size);
    tensors.push_back({typed_memory(start, type_of(l), l % 5),
                       typed_memory(start, parameter::bfloat16, l % 3),
                       {start.begin(), start.end()}});
    first += spec.size;
  }
  for (std::size_t l = 0; l < tensors.size(); ++l) {
    const bool has_master = type_of(l) != parameter::float32 && l % 2 == 0;
    parameters.push_back({.data = tensors[l].data.pointer(),
                          .gradient = tensors[l].gradient.pointer(),
                          .size = its.tensors[l].size,
                          .dimensions = its.tensors[l].dimensions,
                          .options = its.tensors[l].options,
                          .master = has_master ? tensors[l].master.data() : nullptr,
                          .shard = its.tensors[l].shard});
  }
  Optimizer run(parameters, options, std::move(ranks));
  for (std::size_t t = 0; t < its.steps(); ++t) {
    first = 0;
    for (typed_tensor& l : tensors) {
      l.gradient.write(part(its.gradients[t][replica], l.data.size()));
      first += l.data.size();
    }
    run.step(its.rates[t]);
    std::vector<float> data, masters;
    for (const typed_tensor& l : tensors) {
      const std::vector<float> values = l.data.values();
      data.insert(data.end(), values.begin(), values.end());
      masters.insert(masters.end(), l.master.begin(), l.master.end());
      CHECK(l.data.is_intact());
    }
    after(t, data, masters);
  }
}

/// [step][replica][n] the parameters and the callers' master copies.
struct outcome {
  test_support::trajectory data, masters;
};

template <class Optimizer>
outcome whole(const experiment& e, const typename Optimizer::options_type& options) {
  outcome all{test_support::place_of(e), test_support::place_of(e)};
  slamb::run_ranks(e.world, [&](slamb::thread_communicator ranks) {
    const auto rank = static_cast<std::size_t>(ranks.rank());
    train_rank<Optimizer>(e, rank, options, std::move(ranks),
                          [&](std::size_t t, std::vector<float>& data, std::vector<float>& masters) {
                            all.data[t][rank] = std::move(data);
                            all.masters[t][rank] = std::move(masters);
                          });
  });
  return all;
}

template <class Optimizer>
outcome in_shards(const experiment& e, const cut_model& cuts, const typename Optimizer::options_type& options) {
  test_support::sharded_trajectory all_data(e, cuts), all_masters(e, cuts);
  test_support::thread_shards(test_support::shards_of(cuts), e.world)
      .run([&](test_support::shards_of_threads ranks, test_support::shard_place at) {
        experiment its = test_support::alone(e, cuts, at.shard);
        its.tensors = test_support::shard_of(e.tensors, cuts, at.shard);
        train_rank<Optimizer>(its, at.replica, options, std::move(ranks),
                              [&](std::size_t t, std::vector<float>& data, std::vector<float>& masters) {
                                all_data.at(t, at) = std::move(data);
                                all_masters.at(t, at) = std::move(masters);
                              });
      });
  return {all_data.whole(), all_masters.whole()};
}

using mixed = slamb::precision::mixed<>;

experiment some_experiment(std::uint64_t seed) {
  return test_support::make_experiment(test_support::random_model(seed, 4), seed, 2, 5);
}

/// The elements of a shard, as a model of their own.
experiment model_of_shard(const experiment& e, const cut_model& cuts, std::size_t shard) {
  experiment its = test_support::alone(e, cuts, shard);
  its.tensors = test_support::shard_of(e.tensors, cuts, shard);
  for (test_support::tensor_spec& spec : its.tensors) spec.shard = -1;
  return its;
}

}  // namespace

TEST_CASE("shards: AdamW with parameters and gradients of 16 bits has the bits of whole tensors") {
  const experiment e = some_experiment(450);
  const outcome expected = whole<slamb::adamw<mixed>>(e, {});
  CHECK_FALSE(test_support::same_bits(expected.data, expected.masters));
  for (const std::size_t shards : {2U, 3U, 4U})
    for (const bool copies : {false, true}) {
      const outcome reached =
          in_shards<slamb::adamw<mixed>>(e, test_support::cut_anywhere(e.tensors, shards, 451, copies), {});
      CHECK(test_support::same_bits(reached.data, expected.data));
      CHECK(test_support::same_bits(reached.masters, expected.masters));
    }
}

TEST_CASE("shards: master copies of LAMB are those of whole tensors") {
  const experiment e = some_experiment(460);
  const outcome expected = whole<slamb::lamb<mixed>>(e, {});
  for (const std::size_t shards : {2U, 4U}) {
    const outcome reached = in_shards<slamb::lamb<mixed>>(e, test_support::cut_anywhere(e.tensors, shards, 461), {});
    CHECK(test_support::largest_difference(reached.masters, expected.masters) <= 1e-6);
    CHECK(test_support::largest_difference(reached.data, expected.data) <= 0x1p-8);
  }
}

TEST_CASE("shards: copies stay equal if parameters are rounded by chance, and have the bits of whole tensors") {
  using by_chance = slamb::precision::mixed<slamb::host_backend, slamb::precision::stochastic_rounding>;
  const experiment e = some_experiment(470);
  const outcome expected = whole<slamb::adamw<by_chance>>(e, {});
  const outcome reached =
      in_shards<slamb::adamw<by_chance>>(e, test_support::cut_anywhere(e.tensors, 3, 471), {});  // checks copies
  std::size_t first = 0;
  for (std::size_t l = 0; l < e.tensors.size(); first += e.tensors[l++].size) {
    if (l % 3 != 2) continue;  // replicated: see cut_anywhere
    const auto part = [&](const test_support::trajectory& all) {
      return std::span<const float>(all.back()[1]).subspan(first, e.tensors[l].size);
    };
    CHECK(test_support::same_bits(part(reached.data), part(expected.data)));
  }
}

TEST_CASE("shards: AdamW with moments in fewer bits trains a shard as a model that has its elements alone") {
  const auto check = []<class Moments>(const Moments& /*moments*/) {
    using adamw = slamb::adamw<slamb::precision::mixed<slamb::host_backend, slamb::precision::master_copies, Moments>>;
    const experiment e = some_experiment(480);
    for (const std::size_t shards : {2U, 3U}) {
      const cut_model cuts = test_support::cut_anywhere(e.tensors, shards, 481);
      test_support::sharded_trajectory expected(e, cuts);
      for (std::size_t shard = 0; shard < shards; ++shard) {
        const outcome its = whole<adamw>(model_of_shard(e, cuts, shard), {});
        for (std::size_t t = 0; t < e.steps(); ++t)
          for (std::size_t replica = 0; replica < its.data[t].size(); ++replica)
            expected.at(t, {replica, shard}) = its.data[t][replica];
      }
      const outcome reached = in_shards<adamw>(e, cuts, {});
      CHECK(test_support::same_bits(reached.data, expected.whole()));
      CHECK_FALSE(test_support::same_bits(reached.data, whole<slamb::adamw<mixed>>(e, {}).data));
    }
  };
  check(slamb::precision::eight_bit_moments{});
  check(slamb::precision::bfloat16_momentum{});
}

TEST_CASE("shards: LAMB with moments in eight bits follows that of whole tensors, and copies stay equal") {
  using lamb = slamb::lamb<slamb::precision::mixed<slamb::host_backend, slamb::precision::master_copies,
                                                   slamb::precision::eight_bit_moments>>;
  const experiment e = some_experiment(490);
  const outcome exact = whole<slamb::lamb<mixed>>(e, {}), expected = whole<lamb>(e, {});
  const double stored =
      test_support::largest_difference(expected.data, exact.data);  // what eight bits do to whole tensors
  CHECK(stored > 0.0);
  for (const std::size_t shards : {2U, 4U}) {
    const outcome reached =
        in_shards<lamb>(e, test_support::cut_anywhere(e.tensors, shards, 491), {});  // checks copies
    CHECK(test_support::largest_difference(reached.data, exact.data) <= 2.0 * stored);
  }
}

}  // namespace properties_shards_mixed_tests
