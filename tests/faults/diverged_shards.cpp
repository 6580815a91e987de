// Ranks of shard groups that differ in what must be equal: every rank throws and names the difference, and nothing changes.
#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <ostream>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "slamb/slamb.hpp"
#include "support/every_recipe.hpp"
#include "support/said.hpp"
#include "support/thread_shards.hpp"

namespace faults_diverged_shards_tests {
namespace {

using test_support::cut_at;
using test_support::cut_model;
using test_support::every_recipe_for_shards;
using test_support::experiment;
using test_support::made_optimizer;
using test_support::maker_of;
using test_support::model;
using test_support::optimizer_maker;
using test_support::replica;
using test_support::replicated;
using test_support::same_bits;
using test_support::shard_place;
using test_support::shard_rank;
using test_support::shards_of_threads;
using test_support::thread_shards;

/// The message of the exception of a call on this rank, with its type unless it is rank_mismatch_error; empty if it throws none.
std::string said_by(const std::function<void()>& call) {
  try {
    call();
  } catch (const slamb::rank_mismatch_error& error) {
    return error.what();
  } catch (const slamb::communicator_error& error) {
    return std::string("communicator_error: ") + error.what();
  } catch (const std::exception& error) {
    return std::string("exception: ") + error.what();
  }
  return {};
}

struct ranks_said {
  std::vector<std::string> of_rank;

  bool all_equal(const std::string& expected) const {
    return std::all_of(of_rank.begin(), of_rank.end(), [&](const std::string& said) { return said == expected; });
  }
  bool all_contain(const std::string& text) const {
    return std::all_of(of_rank.begin(), of_rank.end(),
                       [&](const std::string& said) { return test_support::contains(said, text); });
  }
};
std::ostream& operator<<(std::ostream& to, const ranks_said& all) {
  for (const std::string& said : all.of_rank) to << "\n  " << said;
  return to;
}

// ---------------------------------------------------------------------------------------------------------- construction

/// What each rank throws when it constructs an optimizer of its tensors.
ranks_said said_at_construction(const std::vector<int>& sizes,
                                const std::function<std::vector<slamb::parameter>(shard_place)>& tensors,
                                const slamb::lamb<>::options_type& options = {},
                                const std::function<slamb::lamb<>::options_type(shard_place)>& own_options = {}) {
  thread_shards groups(sizes, {.timeout = std::chrono::seconds(20)}, {.timeout = std::chrono::seconds(20)});
  ranks_said all{std::vector<std::string>(groups.ranks())};
  const auto widest = static_cast<std::size_t>(*std::max_element(sizes.begin(), sizes.end()));
  std::vector<std::string> of_place(sizes.size() * widest, "no rank");
  groups.run([&](shards_of_threads ranks, shard_place at) {
    std::vector<slamb::parameter> its = tensors(at);
    std::size_t elements = 0;
    for (const slamb::parameter& p : its) elements += p.size;
    std::vector<float> data(elements, 1.0F), gradients(elements, 0.5F);
    elements = 0;
    for (slamb::parameter& p : its) {
      p.data = data.data() + elements;
      p.gradient = gradients.data() + elements;
      elements += p.size;
    }
    of_place[at.replica * widest + at.shard] = said_by([&] {
      const slamb::lamb<> run(its, own_options ? own_options(at) : options, std::move(ranks), {.threads = 1});
    });
  });
  all.of_rank.clear();
  for (const std::string& said : of_place)
    if (said != "no rank") all.of_rank.push_back(said);
  return all;
}

slamb::parameter tensor(std::size_t size, int dimensions = 2, int shard = -1) {
  return {.size = size, .dimensions = dimensions, .shard = shard};
}

bool is_at(shard_place at, std::size_t group, std::size_t shard) { return at.replica == group && at.shard == shard; }

}  // namespace

TEST_CASE("shards: groups that cross each other are rejected on all ranks, also if no group is right") {
  // Groups in the order of their threads' numbers, so that every group joins two numbers of the other kind of group.
  const std::vector<std::vector<int>> of_models{{1, 3}, {0, 2}}, of_shards{{0, 3}, {1, 2}};
  std::deque<slamb::thread_group> models, exchanges;
  for (std::deque<slamb::thread_group>* const groups : {&models, &exchanges})
    for (int i = 0; i < 2; ++i) groups->emplace_back(2, slamb::thread_options{.timeout = std::chrono::seconds(20)});
  const auto place_in = [](const std::vector<std::vector<int>>& groups, int thread) {
    for (std::size_t group = 0; group < groups.size(); ++group)
      for (int i = 0; i < 2; ++i)
        if (groups[group][static_cast<std::size_t>(i)] == thread) return std::pair(group, i);
    return std::pair(groups.size(), -1);
  };
  ranks_said all{std::vector<std::string>(4)};
  slamb::run_ranks(4, [&](const slamb::thread_communicator& thread) {
    const auto [model, shard] = place_in(of_models, thread.rank());
    const auto [exchange, replica] = place_in(of_shards, thread.rank());
    shards_of_threads ranks(exchanges[exchange].communicator(replica), models[model].communicator(shard));
    std::vector<float> data(10, 1.0F), gradient(10, 1.0F);
    const slamb::parameter its{.data = data.data(), .gradient = gradient.data(), .size = 10};
    all.of_rank[static_cast<std::size_t>(thread.rank())] = said_by([&] {
      const slamb::lamb<> run({&its, 1}, {}, std::move(ranks), {.threads = 1});
    });
  });
  CAPTURE(all);
  CHECK(
      all.all_contain("slamb: shard groups must have equal numbers of ranks, and the ranks that exchange must hold the "
                      "same shard; this rank is rank "));
}

TEST_CASE("shards: any sizes of parts may be constructed, also none") {
  const auto sizes = [](shard_place at) {
    return std::vector<slamb::parameter>{tensor(10 * at.shard), tensor(7, 1, 0), tensor(at.shard == 0 ? 5 : 0)};
  };
  for (const std::vector<int>& groups : {std::vector<int>{2, 2}, {3}, {1, 1}}) {
    const ranks_said all = said_at_construction(groups, sizes);
    CAPTURE(all);
    CHECK(all.all_equal(""));
  }
  const ranks_said none = said_at_construction({2, 2}, [](shard_place) { return std::vector<slamb::parameter>{}; });
  CAPTURE(none);
  CHECK(none.all_equal(""));
}

TEST_CASE("shards: a shard group of another size is rejected on all ranks") {
  for (const std::vector<int>& groups : {std::vector<int>{2, 3}, {3, 2}, {2, 2, 3}}) {
    const ranks_said all = said_at_construction(groups, [](shard_place) { return std::vector{tensor(10)}; });
    CAPTURE(all);
    CHECK(all.all_contain("slamb: shard groups must have equal numbers of ranks"));
  }
}

TEST_CASE("shards: a group of one rank beside a group of two ends all ranks with an error") {
  for (const std::vector<int>& groups : {std::vector<int>{2, 1}, {1, 2}}) {
    const ranks_said all = said_at_construction(groups, [](shard_place) { return std::vector{tensor(10)}; });
    CAPTURE(all);
    for (const std::string& said : all.of_rank) CHECK_FALSE(said.empty());
  }
}

TEST_CASE("shards: another number of tensors on one rank is rejected on all ranks") {
  for (const std::size_t group : {0U, 1U}) {
    const ranks_said all = said_at_construction({2, 2}, [&](shard_place at) {
      std::vector<slamb::parameter> its{tensor(10), tensor(20)};
      if (is_at(at, group, 1)) its.push_back(tensor(0));
      return its;
    });
    CAPTURE(all);
    CHECK(all.all_contain("slamb: ranks differ in the number of tensors: "));
    CHECK(all.all_contain("3 on rank " + std::to_string(group) + ", shard 1"));
  }
}

TEST_CASE("shards: of parts of equal size all must have numbers, or none") {
  for (const std::size_t one : {0U, 1U}) {
    const ranks_said all = said_at_construction({3, 3}, [&](shard_place at) {
      return std::vector{tensor(10), tensor(at.shard == 2 ? 0 : 20, 1, at.shard == one ? 0 : -1)};
    });
    CAPTURE(all);
    CHECK(all.all_contain("slamb: tensor 1 "));
    CHECK(test_support::contains(all.of_rank[1 - one],
                                 "tensor 1 has no parameter::shard, but shard rank " + std::to_string(one) +
                                     " has as many elements of it, and shard = 0; give a number"));
  }
  // Those that are swapped have the same sizes here.
  const ranks_said swapped = said_at_construction({2}, [](shard_place at) {
    std::vector<slamb::parameter> its{tensor(10), tensor(10, 2, 0)};
    if (at.shard == 1) std::swap(its[0], its[1]);
    return its;
  });
  CAPTURE(swapped);
  CHECK(swapped.all_contain("has no parameter::shard, but shard rank "));
}

TEST_CASE("shards: ranks that exchange must have parts of equal sizes") {
  const ranks_said all = said_at_construction({2, 2, 2}, [](shard_place at) {
    return std::vector{tensor(3), tensor(is_at(at, 2, 1) ? 11 : 10 + 2 * at.shard)};
  });
  CAPTURE(all);
  CHECK(all.all_contain("slamb: ranks differ in the size of tensor 1: 12 on rank 0, shard 1, 11 on rank 2, shard 1"));
}

TEST_CASE("shards: tensors in another order on one shard, or on one rank, are rejected on all ranks") {
  for (const bool one_rank : {false, true}) {
    const ranks_said all = said_at_construction({2, 2}, [&](shard_place at) {
      std::vector<slamb::parameter> its{tensor(10), tensor(10, 1)};
      if (at.shard == 1 && (!one_rank || at.replica == 1)) std::swap(its[0], its[1]);
      return its;
    });
    CAPTURE(all);
    CHECK(all.all_contain("slamb: ranks differ in "));
    CHECK(all.all_contain(" tensor 0 "));
    CHECK(all.all_contain(one_rank ? "rank 1, shard 1" : "rank 0, shard 1"));
  }
}

TEST_CASE("shards: another option of one shard is rejected on all ranks") {
  struct difference {
    std::string named;
    std::function<void(slamb::tensor_options&)> change;
  };
  const std::vector<difference> differences{
      {"weight", [](slamb::tensor_options& o) { o.weight_decay = 0.5; }},
      {"learning", [](slamb::tensor_options& o) { o.learning_rate_factor = 0.5; }},
      {"adapt", [](slamb::tensor_options& o) { o.adapt = false; }},
      {"compress", [](slamb::tensor_options& o) { o.compress = false; }},
      {"group", [](slamb::tensor_options& o) { o.group = 1; }},
  };
  for (const difference& d : differences) {
    const ranks_said all = said_at_construction({2, 2}, [&](shard_place at) {
      std::vector<slamb::parameter> its{tensor(10), tensor(10)};
      its[0].options.group = 0;
      if (at.shard == 1) d.change(its[1].options);
      return its;
    });
    CAPTURE(d.named);
    CAPTURE(all);
    CHECK(all.all_contain("slamb: ranks differ in "));
    CHECK(all.all_contain(d.named));
    CHECK(all.all_contain("rank 0, shard 1"));
  }
  const ranks_said all = said_at_construction(
      {2, 2}, [](shard_place) { return std::vector{tensor(10)}; }, {},
      [](shard_place at) { return slamb::lamb<>::options_type{.beta1 = is_at(at, 1, 0) ? 0.8 : 0.9}; });
  CAPTURE(all);
  CHECK(all.all_contain("slamb: ranks differ in beta1: 0.9 on rank 0, shard 0, 0.8 on rank 1, shard 0"));
}

TEST_CASE("shards: numbers of shards that are out of range, or copies of another size, are rejected on all ranks") {
  const ranks_said out_of_range = said_at_construction({2, 2}, [](shard_place at) {
    return std::vector{tensor(4), tensor(10, 2, at.shard == 1 ? 2 : 0)};
  });
  {
    CAPTURE(out_of_range);
    CHECK(out_of_range.all_contain("slamb: tensor 1 "));
  }
  const ranks_said sizes =
      said_at_construction({3, 3}, [](shard_place at) { return std::vector{tensor(10 + at.shard / 2, 2, 0)}; });
  {
    CAPTURE(sizes);
    CHECK(sizes.all_contain("slamb: tensor 0 "));
  }
  const ranks_said replicas_differ =
      said_at_construction({2, 2}, [](shard_place at) { return std::vector{tensor(10, 2, at.replica == 0 ? 0 : -1)}; });
  CAPTURE(replicas_differ);
  CHECK(replicas_differ.all_contain("slamb: ranks differ in "));
}

TEST_CASE("shards: a partition of the state is rejected on all ranks") {
  for (const test_support::recipe& r : test_support::every_recipe()) {
    if (!r.keeps_part) continue;
    CAPTURE(r.name);
    ranks_said all{std::vector<std::string>(4)};
    thread_shards(2, 2).run([&](shards_of_threads ranks, shard_place at) {
      replica mine({{10}}, std::vector<float>(10, 1.0F));
      all.of_rank[2 * at.replica + at.shard] = said_by(
          [&] { r.make(mine.parameters(), slamb::any_communicator<>(std::move(ranks)), test_support::one_thread()); });
    });
    CAPTURE(all);
    CHECK(all.all_contain(
        "slamb: sync::partition cuts the model into parts itself, and its Communicator has a shard group of 2 ranks"));
  }
}

// ----------------------------------------------------------------------------------------------------------------- steps

namespace {

constexpr std::size_t shards = 2;
constexpr int replicas = 2;

experiment some_experiment(std::uint64_t seed) {
  experiment e = test_support::make_experiment({{17}, {9100}, {0}, {33, 1}, {300}}, seed, replicas,
                                               test_support::steps_of_recipes);
  test_support::use_one_rate(e, 0.01);
  return e;
}
const cut_model some_cuts{cut_at({10, 17}), cut_at({4000, 9100}), cut_at({0, 0}), replicated(33, shards),
                          cut_at({300, 300})};

/// The message of a step's exception. Fails if a step that throws changes the rank.
std::string said_by_step(shard_rank& r, double rate) {
  const std::vector<std::byte> state = r.run.save_state();
  const std::vector<float> values = r.mine.values();
  const std::string said = said_by([&] { r.run.step(rate); });
  if (!said.empty() && (r.run.save_state() != state || !same_bits(r.mine.values(), values))) return said + " AND MOVED";
  return said;
}

/// On each rank: an optimizer after `steps` steps, and the message that `then` returns for it.
ranks_said said_after(const experiment& e, const optimizer_maker& make, std::size_t steps,
                      const std::function<std::string(shard_rank&)>& then, const cut_model& cuts = some_cuts) {
  const std::size_t each = test_support::shards_of(cuts);
  ranks_said all{std::vector<std::string>(each * static_cast<std::size_t>(e.world))};
  experiment shorter = e;
  shorter.gradients.resize(steps + 1);
  test_support::train_each_shard<slamb::host_backend>(shorter, cuts, make, test_support::one_thread(),
                                                      [&](shard_rank& r, std::size_t t) {
                                                        if (t < steps) return test_support::take_step(r, t);
                                                        r.prepare(t);
                                                        all.of_rank[r.at.replica * each + r.at.shard] = then(r);
                                                      });
  return all;
}

}  // namespace

TEST_CASE("shards: other learning rates on one rank or on one shard are rejected in the same step") {
  const experiment e = some_experiment(700);
  for (const test_support::recipe& r : every_recipe_for_shards())
    for (const bool one_rank : {false, true})
      for (const std::size_t t : {std::size_t{0}, std::size_t{3}, std::size_t{7}}) {
        CAPTURE(r.name);
        CAPTURE(one_rank);
        CAPTURE(t);
        const ranks_said all = said_after(e, r.make, t, [&](shard_rank& rank) {
          const bool differs = rank.at.shard == 1 && (!one_rank || rank.at.replica == 1);
          return said_by_step(rank, differs ? 0.02 : 0.01);
        });
        CAPTURE(all);
        CHECK(all.all_equal(std::string("slamb: ranks differ in the learning rate of group 0: 0.01 on rank 0, shard 0, "
                                        "0.02 on rank ") +
                            (one_rank ? "1" : "0") +
                            ", shard 1; step() must be given the same learning rates on all ranks"));
      }
}

TEST_CASE("shards: changed options on one shard are rejected in the same step") {
  const experiment e = some_experiment(710);
  for (const test_support::recipe& r : every_recipe_for_shards()) {
    CAPTURE(r.name);
    const ranks_said all = said_after(e, r.make, 3, [&](shard_rank& rank) {
      if (rank.at.shard == 1) rank.run.set_options({.beta1 = 0.75});
      return said_by_step(rank, 0.01);
    });
    CAPTURE(all);
    CHECK(all.all_contain("slamb: ranks differ in beta1: 0.9 on rank 0, shard 0, 0.75 on rank 0, shard 1"));
  }
}

TEST_CASE("shards: copies that differ are found in the first step, and then every compare_every steps") {
  const experiment e = some_experiment(720);
  // Element 20 of tensor 3, of which shard 0 has 10, 4000, and 0 elements before, and shard 1 has 7 and 5100.
  const auto alter = [](shard_rank& rank, std::size_t shard) {
    if (rank.at.replica != 1 || rank.at.shard != shard) return;
    std::vector<float> values = rank.mine.values();
    float& value = values[(shard == 0 ? 4010 : 5107) + 20];
    value = std::nextafter(value, 10.0F);
    rank.mine.set_values(values);
  };
  const std::string both = "slamb: ranks differ in the parameters of tensor 3 (";
  for (const test_support::recipe& r : every_recipe_for_shards()) {
    CAPTURE(r.name);
    const ranks_said all = said_after(e, r.make, 0, [&](shard_rank& rank) {
      alter(rank, 0);
      alter(rank, 1);
      return said_by_step(rank, 0.01);
    });
    CAPTURE(all);
    CHECK(all.all_contain(both));  // replicas differ, as always
  }
  // Without replicas only the copies differ.
  experiment alone = e;
  alone.world = 1;
  const auto alter_alone = [](shard_rank& rank) {
    if (rank.at.shard != 1) return;
    std::vector<float> values = rank.mine.values();
    values[5127] = std::nextafter(values[5127], 10.0F);
    rank.mine.set_values(values);
  };
  for (const test_support::recipe& r : every_recipe_for_shards()) {
    CAPTURE(r.name);
    const ranks_said all = said_after(alone, r.make, 0, [&](shard_rank& rank) {
      alter_alone(rank);
      return said_by_step(rank, 0.01);
    });
    CAPTURE(all);
    CHECK(all.all_contain(both + "rank 0, shard 0 and rank 0, shard 1)"));
  }
  for (const std::pair<unsigned, unsigned>& its : {std::pair{3U, 6U}, {7U, 7U}, {0U, 0U}}) {
    const unsigned every = its.first, told = its.second;
    CAPTURE(every);
    std::vector<std::size_t> step(shards, 0);
    const ranks_said all =
        said_after(alone, maker_of<slamb::lamb<>>({.ranks = {.compare_every = every}}), 4, [&](shard_rank& rank) {
          for (std::size_t t = 4; t < e.steps(); ++t) {
            alter_alone(rank);  // a step makes copies equal
            if (std::string said = said_by_step(rank, 0.01); !said.empty()) {
              step[rank.at.shard] = t + 1;
              return said;
            }
          }
          return std::string();
        });
    CAPTURE(all);
    CHECK(step == std::vector<std::size_t>(shards, told));
    CHECK(all.all_contain(told == 0 ? "" : both + "rank 0, shard 0 and rank 0, shard 1)"));
  }
}

TEST_CASE("shards: parameters of one replica that differ are named with their shard") {
  const experiment e = some_experiment(730);
  for (const test_support::recipe& r : every_recipe_for_shards()) {
    CAPTURE(r.name);
    const ranks_said all = said_after(e, r.make, 0, [&](shard_rank& rank) {
      if (rank.at.replica == 1 && rank.at.shard == 1) {
        std::vector<float> values = rank.mine.values();
        values[7 + 123] = std::nextafter(values[7 + 123], 10.0F);
        rank.mine.set_values(values);
      }
      return said_by_step(rank, 0.01);
    });
    CAPTURE(all);
    CHECK(all.all_contain(
        "slamb: ranks differ in the parameters of tensor 1 (rank 0, shard 1 and rank 1, shard 1); start all ranks"));
  }
}

TEST_CASE("shards: a gradient that is null on one rank or on one shard is rejected on all ranks") {
  const experiment e = some_experiment(740);
  for (const test_support::recipe& r : every_recipe_for_shards())
    for (const bool one_rank : {true, false}) {
      CAPTURE(r.name);
      CAPTURE(one_rank);
      const ranks_said all = said_after(e, r.make, 2, [&](shard_rank& rank) {
        if (rank.at.shard == 1 && (!one_rank || rank.at.replica == 1))
          rank.run.set_gradient(1, static_cast<const float*>(nullptr));
        return said_by_step(rank, 0.01);
      });
      CAPTURE(all);
      CHECK(all.all_contain(
          "slamb: ranks differ in the number of gradients of tensor 1: 1 on rank 0, shard 0, 0 on rank " +
          std::string(one_rank ? "1" : "0") +
          ", shard 1; a gradient must be null on all ranks or on "
          "none"));
    }
}

TEST_CASE("shards: a gradient that is null on one of two shards is rejected, also if a third shard has no elements") {
  const experiment e = test_support::make_experiment({{40}, {30}}, 750, 2, 3);
  const cut_model cuts{cut_at({10, 20, 40}), cut_at({15, 30, 30})};
  const ranks_said all = said_after(
      e, maker_of<slamb::lamb<>>({}), 1,
      [&](shard_rank& rank) {
        if (rank.at.shard == 1) rank.run.set_gradient(1, static_cast<const float*>(nullptr));
        return said_by_step(rank, 0.01);
      },
      cuts);
  CAPTURE(all);
  CHECK(all.all_contain("slamb: ranks differ in the number of gradients of tensor 1"));
}

TEST_CASE("shards: a gradient that is null on all ranks leaves the tensor as it is") {
  const experiment e = test_support::make_experiment({{40}, {30}}, 760, 2, 4);
  const cut_model cuts{cut_at({10, 40}), cut_at({15, 30})};
  for (const test_support::recipe& r : every_recipe_for_shards()) {
    CAPTURE(r.name);
    const ranks_said all = said_after(
        e, r.make, 2,
        [&](shard_rank& rank) {
          const std::vector<float> before = rank.mine.values();
          rank.run.set_gradient(1, static_cast<const float*>(nullptr));
          std::string said = said_by([&] { rank.run.step(0.01); });
          const std::vector<float> now = rank.mine.values();
          const std::size_t first = rank.at.shard == 0 ? 10 : 30;
          if (!same_bits(std::span(now).subspan(first), std::span(before).subspan(first))) said += "moved";
          if (same_bits(std::span(now).first(first), std::span(before).first(first))) said += "nothing has moved";
          return said;
        },
        cuts);
    CAPTURE(all);
    CHECK(all.all_equal(""));
  }
}

TEST_CASE("shards: copies whose gradients differ by rounding stay equal, with and without replicas") {
  for (const int world : {1, 2})
    for (const optimizer_maker& make : {maker_of<slamb::adamw<>>({.ranks = {.compare_every = 2}}),
                                        maker_of<slamb::lamb<>>({.ranks = {.compare_every = 2}})}) {
      CAPTURE(world);
      const experiment e = test_support::make_experiment({{40}, {300, 1}}, 785, world, 8);
      const cut_model cuts{cut_at({10, 40}), replicated(300, shards)};
      const auto reached = train_in_shards(e, cuts, make, [&](shard_rank& rank, std::size_t t) {
        std::vector<float> gradient = rank.gradient(t);
        if (rank.at.shard == 1)
          for (float& g : gradient) g = std::nextafter(g, 10.0F);
        rank.mine.set_gradient(gradient);
        rank.run.step(0.01);
        rank.run.compare_ranks();
      });  // checks that copies are equal after each step
      CHECK(reached.size() == 8);
    }
}

TEST_CASE(
    "shards: gradients of copies that differ by more than rounding are told to all ranks, with and without replicas") {
  const auto said = [](const test_support::optimizer_maker& make, int world, double factor, bool is_copy) {
    const experiment e = test_support::make_experiment({{40}, {300}}, 790, world, 8);
    const cut_model cuts{cut_at({10, 40}), is_copy ? replicated(300, shards) : cut_at({150, 300})};
    return said_after(
        e, make, 2,
        [&](shard_rank& rank) {
          return said_by([&] {
            for (std::size_t t = 2; t < e.steps(); ++t) {
              const std::vector<std::size_t> elements = test_support::elements_of(e.tensors, cuts, rank.at.shard);
              std::vector<float> gradient = test_support::taken(e.gradients[t][rank.at.replica], elements);
              if (rank.at.shard == 1)
                for (float& g : std::span(gradient).subspan(30))
                  g = static_cast<float>(factor * static_cast<double>(g));
              rank.mine.set_gradient(gradient);
              rank.run.step(0.001);
            }
          });
        },
        cuts);
  };
  const auto every = [](std::uint64_t steps) { return maker_of<slamb::adamw<>>({.ranks = {.compare_every = steps}}); };
  for (const int world : {1, 2}) {
    CAPTURE(world);
    for (const double factor : {-1.0, 0.5, 1.1}) {
      CAPTURE(factor);
      const ranks_said all = said(every(4), world, factor, true);
      CAPTURE(all);
      CHECK(all.all_contain("slamb: ranks differ in the gradient of tensor 1 (rank 0, shard 0 and rank 0, shard 1)"));
    }
    const ranks_said parts = said(every(4), world, -1.0, false);
    CAPTURE(parts);
    CHECK(parts.all_equal(""));
  }
  for (const int world : {1, 2}) {  // copies follow the first of them, so gradients may differ by rounding
    const ranks_said rounded = said(every(4), world, 1.001, true);
    CAPTURE(rounded);
    CHECK(rounded.all_equal(""));
  }
  const ranks_said unasked = said(every(0), 2, -1.0, true);
  CAPTURE(unasked);
  CHECK(unasked.all_equal(""));
}

TEST_CASE("shards: gradients of copies that are only the rounding of larger numbers may differ") {
  const experiment e = test_support::make_experiment({{400}, {30, 1}}, 795, 1, 6);
  const cut_model cuts{cut_at({100, 400}), replicated(30, shards)};
  const auto said_with = [&](float noise) {
    return said_after(
        e, maker_of<slamb::adamw<>>({.ranks = {.compare_every = 1}}), 2,
        [&](shard_rank& rank) {
          return said_by([&] {
            for (std::size_t t = 2; t < e.steps(); ++t) {
              std::vector<float> gradient = test_support::taken(e.gradients[t][rank.at.replica], rank.elements);
              const std::size_t cut = gradient.size() - 30;
              for (std::size_t i = cut; i < gradient.size(); ++i)  // each rank has its own
                gradient[i] = noise * static_cast<float>((i * (3 + rank.at.shard) + t) % 7) - 3.0F * noise;
              rank.mine.set_gradient(gradient);
              rank.run.step(0.001);
            }
          });
        },
        cuts);
  };
  const ranks_said noise = said_with(1e-8F), numbers = said_with(1e-3F);
  CAPTURE(noise);
  CHECK(noise.all_equal(""));
  CAPTURE(numbers);
  CHECK(numbers.all_contain("slamb: ranks differ in the gradient of tensor 1"));
}

TEST_CASE(
    "shards: what differs in a local step of 0/1 Adam is told to all ranks in the next exchange, and asks for a "
    "state") {
  using optimizer = slamb::zero_one_adam<>;
  optimizer::options_type options;
  options.variance_schedule.freeze_step = 2;
  options.local_schedule = {.scaler = 2, .clipper = 8};
  constexpr std::size_t first = 14, last = 26;  // steps 14 and 15 have no exchange, that of 16 follows them
  const experiment e = test_support::make_experiment({{40}, {30}}, 780, static_cast<int>(replicas), last);
  const cut_model cuts{cut_at({10, 40}), cut_at({15, 30})};
  enum class mistake { none, rate_of_rank, rate_of_shard, gradient_of_rank };

  const auto trained = [&](mistake what, std::vector<std::string>& said, std::vector<std::string>& refused) {
    test_support::sharded_trajectory reached(e, cuts);
    thread_shards groups(shards, static_cast<int>(replicas));
    groups.run([&](shards_of_threads ranks, shard_place at) {
      const std::size_t number = at.replica * shards + at.shard;
      const std::vector<std::size_t> elements = test_support::elements_of(e.tensors, cuts, at.shard);
      replica mine(test_support::shard_of(e.tensors, cuts, at.shard), test_support::taken(e.start, elements));
      optimizer run(mine.parameters(), options, std::move(ranks), test_support::one_thread());
      const auto step = [&](std::size_t t, double rate) {
        mine.set_gradient(test_support::taken(e.gradients[t][at.replica], elements));
        run.step(rate);
      };
      for (std::size_t t = 0; t < last; ++t) {
        if (t + 1 == first) {
          const std::vector<std::byte> state = run.save_state();
          const std::vector<float> values = mine.values();
          if (what != mistake::none) {
            const bool is_wrong =
                at.shard == 1 && (what == mistake::rate_of_shard || at.replica == 0);  // of the first local step alone
            const slamb::parameter::gradient_pointer own = mine.parameters()[1].gradient;
            if (is_wrong && what == mistake::gradient_of_rank) run.set_gradient(1, static_cast<const float*>(nullptr));
            const auto before = run.statistics().traffic.total().rounds;
            step(t, is_wrong && what != mistake::gradient_of_rank ? 0.02 : 0.01);
            CHECK(run.statistics().traffic.total().rounds == before);  // it is local
            run.set_gradient(1, own);
            said[number] = said_by([&] {
              for (std::size_t later = t + 1; later < last; ++later) step(later, 0.01);
            });
            refused[number] = said_by([&] { static_cast<void>(run.save_state()); });
            mine.set_values(values);
            run.load_state(state);
          }
        }
        step(t, 0.01);
        reached.at(t, at) = mine.values();
      }
    });
    return reached.whole();
  };
  std::vector<std::string> said(4), refused(4);
  const test_support::trajectory twin = trained(mistake::none, said, refused);
  for (const mistake what : {mistake::rate_of_rank, mistake::rate_of_shard, mistake::gradient_of_rank}) {
    const bool is_rate = what != mistake::gradient_of_rank;
    CAPTURE(is_rate);
    CHECK(same_bits(trained(what, said, refused), twin));
    const ranks_said all{said}, later{refused};
    CAPTURE(all);
    CHECK(all.all_contain(is_rate
                              ? "slamb: ranks differ in the learning rates or the options of step 14 (rank 0, shard 0 "
                                "and rank 0, shard 1), a local step, which has been taken"
                              : "step 14"));
    CAPTURE(later);
    CHECK(later.all_contain("load a state first"));
  }
}

TEST_CASE("shards: a failing collective within a shard group ends all ranks, and leaves them as they were") {
  const experiment e = some_experiment(770);
  for (const bool in_group : {true, false}) {
    thread_shards groups(shards, replicas);
    std::vector<std::string> said(4);
    std::vector<std::uint64_t> steps(4);
    groups.run([&](shards_of_threads ranks, shard_place at) {
      const std::vector<std::size_t> elements = test_support::elements_of(e.tensors, some_cuts, at.shard);
      replica mine(test_support::shard_of(e.tensors, some_cuts, at.shard), test_support::taken(e.start, elements));
      slamb::lamb<> run(mine.parameters(), {}, std::move(ranks), test_support::one_thread());
      const std::size_t number = at.replica * shards + at.shard;
      said[number] = said_by([&] {
        for (std::size_t t = 0; t < 5; ++t) {
          if (t == 3 && number == 3) {
            if (in_group)
              groups.shard_group(1).abort("on purpose");
            else
              groups.exchange(1).abort("on purpose");
          }
          mine.set_gradient(test_support::taken(e.gradients[t][at.replica], elements));
          run.step(0.01);
        }
      });
      steps[number] = run.statistics().step;
    });
    for (std::size_t rank = 0; rank < 4; ++rank) {
      CAPTURE(rank);
      CHECK(test_support::contains(said[rank], "on purpose"));
      CHECK(steps[rank] <= 4);
    }
  }
}

}  // namespace faults_diverged_shards_tests
