// Calls of an optimizer in shards other than steps: broadcasts, averages, options, rows, sizes of whole tensors, and choices.
#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "slamb/slamb.hpp"
#include "support/every_recipe.hpp"
#include "support/said.hpp"
#include "support/thread_shards.hpp"

namespace properties_shards_calls_tests {
namespace {

using test_support::contains;
using test_support::cut_anywhere;
using test_support::cut_at;
using test_support::cut_model;
using test_support::every_recipe_for_shards;
using test_support::experiment;
using test_support::largest_difference;
using test_support::maker_of;
using test_support::same_bits;
using test_support::shard_place;
using test_support::shard_rank;
using test_support::shards_of_threads;
using test_support::take_step;
using test_support::train_in_shards;
using test_support::trajectory;

experiment some_experiment(std::uint64_t seed, std::size_t steps) {
  experiment e = test_support::make_experiment(test_support::random_model(seed, 2), seed, 2, steps);
  test_support::use_one_rate(e, 0.01);
  return e;
}

}  // namespace

TEST_CASE("shards: a broadcast gives copies of a tensor the parameters of the first rank of the root's group") {
  for (const int world : {1, 2}) {
    CAPTURE(world);
    const experiment e = test_support::make_experiment({{40}, {30, 1}}, 905, world, 1);
    const test_support::cut_model cuts{test_support::cut_at({10, 40}), test_support::replicated(30, 2)};
    std::vector<std::vector<float>> before(2 * static_cast<std::size_t>(world)), after(before.size());
    const int root = world - 1;
    test_support::train_each_shard<slamb::host_backend>(
        e, cuts, test_support::maker_of<slamb::lamb<>>({}), test_support::one_thread(),
        [&](shard_rank& rank, std::size_t t) {
          const auto of_copy = [&] {
            const std::vector<float> all = rank.mine.values();
            return std::vector<float>(all.end() - 30, all.end());
          };
          const std::size_t number = 2 * rank.at.replica + rank.at.shard;
          std::vector<float> values = rank.mine.values();
          for (float& p : values) p += static_cast<float>(number);
          rank.mine.set_values(values);
          before[number] = of_copy();
          rank.run.broadcast_parameters(root);
          after[number] = of_copy();
          test_support::take_step(rank, t);  // compares them
        });
    for (const std::vector<float>& one : after)
      CHECK(test_support::same_bits(one, before[2 * static_cast<std::size_t>(root)]));
  }
}

TEST_CASE("shards: parameters are broadcast from the group of the root, each shard from the rank that has it") {
  const experiment e = some_experiment(1100, 3);
  const cut_model cuts = cut_anywhere(e.tensors, 3, 1101);
  for (const test_support::recipe& r : every_recipe_for_shards()) {
    CAPTURE(r.name);
    const trajectory reached = train_in_shards(e, cuts, r.make, [&](shard_rank& rank, std::size_t t) {
      if (t == 0) {
        std::vector<float> values = rank.mine.values();
        if (rank.at.replica == 0)
          for (float& x : values) x = 7.0F;
        rank.mine.set_values(values);
        rank.run.broadcast_parameters(1);
        CHECK(same_bits(rank.mine.values(), test_support::taken(e.start, rank.elements)));
      }
      take_step(rank, t);
    });
    CHECK(same_bits(reached, train_in_shards(e, cuts, r.make)));
  }
}

TEST_CASE("shards: SLAMB's averages are those of each shard") {
  const experiment e = some_experiment(1110, 4);
  const cut_model cuts = cut_anywhere(e.tensors, 2, 1111);
  const auto make = maker_of<slamb::slamb<slamb::random_k<>>>({.local_steps = 0, .dense_below = 20});
  trajectory before;
  const trajectory own = train_in_shards(e, cuts, make);
  CHECK_FALSE(test_support::ranks_agree(own, 3));
  const trajectory averaged = train_in_shards(e, cuts, make, [](shard_rank& rank, std::size_t t) {
    take_step(rank, t);
    if (t != 3) return;
    const std::vector<float> mine = rank.mine.values();
    std::vector<float> seen;
    rank.run.with_averaged_parameters([&] { seen = rank.mine.values(); });
    CHECK(same_bits(rank.mine.values(), mine));
    rank.run.synchronize_parameters();
    CHECK(same_bits(rank.mine.values(), seen));
  });
  CHECK(test_support::ranks_agree(averaged, 3));
  for (std::size_t j = 0; j < e.start.size(); ++j)
    CHECK(averaged[3][0][j] ==
          static_cast<float>((static_cast<double>(own[3][0][j]) + static_cast<double>(own[3][1][j])) / 2.0));
}

TEST_CASE("shards: changed options have the effect that they have with whole tensors") {
  const experiment e = some_experiment(1120, 6);
  const cut_model cuts = cut_anywhere(e.tensors, 3, 1121);
  std::vector<double> decays;
  for (std::size_t l = 0; l < e.tensors.size(); ++l) decays.push_back(0.01 * static_cast<double>(l % 4));
  const auto make = maker_of<slamb::lamb<>>({});
  const auto change = [&](test_support::made_optimizer& run, std::size_t t) {
    if (t == 2) run.set_options({.beta1 = 0.8, .beta2 = 0.98, .epsilon = 1e-5});
    if (t == 4) run.set_options({.weight_decay = decays});
  };
  trajectory whole = test_support::place_of(e);
  slamb::run_ranks(2, [&](slamb::thread_communicator ranks) {
    const auto rank = static_cast<std::size_t>(ranks.rank());
    test_support::replica mine(e.tensors, e.start);
    test_support::made_optimizer run =
        make(mine.parameters(), slamb::any_communicator<>(std::move(ranks)), test_support::one_thread());
    for (std::size_t t = 0; t < e.steps(); ++t) {
      change(run, t);
      mine.set_gradient(e.gradients[t][rank]);
      run.step(0.01);
      whole[t][rank] = mine.values();
    }
  });
  const trajectory in_shards = train_in_shards(e, cuts, make, [&](shard_rank& rank, std::size_t t) {
    change(rank.run, t);
    take_step(rank, t);
  });
  CHECK(largest_difference(in_shards, whole) <= 1e-6);
}

TEST_CASE("shards: rows are those of a rank's part") {
  experiment e = test_support::make_experiment({{60}, {40}}, 1130, 2, 8);
  static constexpr std::array<std::uint8_t, 6> rows{1, 0, 1, 1, 0, 1};
  e.tensors[0].options.rows = rows;  // of ten elements
  for (auto& ranks : e.gradients)
    for (auto& gradient : ranks)
      for (std::size_t j = 0; j < 60; ++j)
        if (rows[j / 10] == 0) gradient[j] = 0.0F;
  const cut_model cuts{cut_at({20, 60}), cut_at({30, 40})};
  const auto make = maker_of<slamb::one_bit_adam<>>({.warm_up = {2}});
  test_support::sharded_trajectory reached(e, cuts), alone(e, cuts);
  const auto its_rows = [&](std::size_t shard) {
    return std::span(rows).subspan(shard == 0 ? 0 : 2, shard == 0 ? 2 : 4);
  };
  test_support::thread_shards(2, 2).run([&](shards_of_threads ranks, shard_place at) {
    experiment its = test_support::alone(e, cuts, at.shard);
    its.tensors[0].options.rows = its_rows(at.shard);
    test_support::train_rank(
        its, at.replica,
        [&](std::span<const slamb::parameter> parameters) {
          return make(parameters, slamb::any_communicator<>(std::move(ranks)), test_support::one_thread());
        },
        reached.of_shard(at.shard));
  });
  for (const std::size_t shard : {0U, 1U}) {
    experiment its = test_support::alone(e, cuts, shard);
    its.tensors[0].options.rows = its_rows(shard);
    alone.of_shard(shard) = test_support::train(its, make);
  }
  CHECK(same_bits(reached.whole(), alone.whole()));
}

TEST_CASE("shards: a wrong size of a whole tensor is rejected on all ranks") {
  for (const std::size_t said_size : {30U, 31U}) {
    std::array<std::string, 4> said;
    test_support::thread_shards(2, 2).run([&](shards_of_threads ranks, shard_place at) {
      std::vector<float> data(20, 1.0F), gradient(20, 0.5F);
      const std::vector<slamb::parameter> tensors{{.data = data.data(), .gradient = gradient.data(), .size = 4},
                                                  {.data = data.data() + 4,
                                                   .gradient = gradient.data() + 4,
                                                   .size = 10 + 0 * at.shard,
                                                   .whole_size = at.replica == 1 && at.shard == 1 ? said_size : 0}};
      said[2 * at.replica + at.shard] = test_support::said_by<slamb::rank_mismatch_error>(
          [&] { const slamb::lamb<> run(tensors, {}, std::move(ranks), test_support::one_thread()); });
    });
    for (const std::string& text : said) {
      CAPTURE(text);
      CHECK(contains(text, "tensor 1"));
    }
  }
  test_support::thread_shards(2, 2).run([&](shards_of_threads ranks, shard_place at) {
    std::vector<float> data(20, 1.0F), gradient(20, 0.5F);
    const std::vector<slamb::parameter> tensors{
        {.data = data.data(), .gradient = gradient.data(), .size = 5 + at.shard, .whole_size = 11}};
    CHECK_NOTHROW(slamb::lamb<>(tensors, {}, std::move(ranks), test_support::one_thread()));
  });
}

TEST_CASE("shards: parameter::shard needs a shard group, except for 0") {
  std::vector<float> data(20, 1.0F), gradient(20, 0.5F);
  slamb::parameter tensor{.data = data.data(), .gradient = gradient.data(), .size = 20, .shard = 1};
  CHECK(contains(test_support::said_by<std::invalid_argument>([&] {
                   const slamb::lamb<> run({&tensor, 1});
                 }),
                 "tensor 0 has shard = 1, but the Communicator has no shard group"));
  tensor.shard = 0;
  CHECK_NOTHROW(slamb::lamb<>({&tensor, 1}));
}

TEST_CASE("shards: numbers of parts may be in any order, and be given to some ranks only") {
  const experiment e = test_support::make_experiment({{40}, {900}, {30}}, 1140, 2, 6);
  const cut_model cuts{{{25, 40, 2}, {0, 10, 0}, {10, 25, 1}},
                       {{0, 400, 0}, {0, 400, 0}, {400, 900, -1}},
                       {{10, 30, 1}, {0, 10, 0}, {10, 30, 1}}};
  for (const auto& make : {maker_of<slamb::lamb<>>({}), maker_of<slamb::lamb<>>({.max_gradient_norm = 1.0}),
                           maker_of<slamb::one_bit_lamb<>>({.warm_up = {100}})})
    CHECK(largest_difference(train_in_shards(e, cuts, make), test_support::train(e, make)) <= 1e-6);
  const auto adamw = maker_of<slamb::adamw<>>({});
  CHECK(same_bits(train_in_shards(e, cuts, adamw), test_support::train(e, adamw)));
}

TEST_CASE("shards: sixteen shards, most of them empty") {
  const experiment e = test_support::make_experiment({{20}, {900}, {1}}, 1150, 1, 4);
  std::vector<std::size_t> first(16, 20), second, third(16, 0);
  for (std::size_t s = 0; s < 16; ++s) second.push_back(s < 3 ? 0 : s < 8 ? 100 * s : 900);
  third[15] = 1;
  const cut_model cuts{cut_at(first), cut_at(second), cut_at(third)};
  const auto make = maker_of<slamb::lamb<>>({.max_gradient_norm = 1.0});
  CHECK(largest_difference(train_in_shards(e, cuts, make), test_support::train(e, make)) <= 1e-6);
}

TEST_CASE("shards: ranks of all groups choose the same optimizer") {
  const experiment e = some_experiment(1160, 3);
  const cut_model cuts = cut_anywhere(e.tensors, 2, 1161);
  std::array<bool, 4> is_compressed{};
  std::array<double, 4> seconds{};
  test_support::thread_shards(2, 2).run([&](shards_of_threads ranks, shard_place at) {
    const std::vector<std::size_t> elements = test_support::elements_of(e.tensors, cuts, at.shard);
    test_support::replica mine(test_support::shard_of(e.tensors, cuts, at.shard),
                               test_support::taken(e.start, elements));
    auto run = slamb::choose<slamb::lamb<>, slamb::one_bit_lamb<>>(mine.parameters(), {}, {}, std::move(ranks));
    for (std::size_t t = 0; t < e.steps(); ++t) {
      mine.set_gradient(test_support::taken(e.gradients[t][at.replica], elements));
      run.step(0.01);
    }
    const slamb::statistics said = run.statistics();
    is_compressed[2 * at.replica + at.shard] = said.chosen.is_compressed;
    seconds[2 * at.replica + at.shard] = said.chosen.dense_seconds;
    CHECK(said.step == 3);
  });
  for (const bool its : is_compressed) CHECK(its == is_compressed[0]);
}

// ------------------------------------------------------------------------------------------------ decorated communicators

TEST_CASE("shards: a communicator around a sharded_communicator keeps its shards") {
  using sharded = slamb::sharded_communicator<slamb::self_communicator, slamb::self_communicator>;
  constexpr bool keeps = slamb::capability::has_shards<slamb::counting_communicator<sharded>>;
  CHECK(keeps);
}

}  // namespace properties_shards_calls_tests
