// Saved states: which optimizers may load them, which states are rejected and why, and loading with another number of ranks or
// another length of the warm-up. And every optimizer resumes from its own state, bit for bit.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "slamb/slamb.hpp"
#include "support/quadratic.hpp"
#include "support/said.hpp"
#include "support/saved_training.hpp"

namespace state_saved_state_tests {
namespace {

using slamb::restore_options;
using slamb::scale_sharing;
using slamb::thread_communicator;
using slamb::detail::part_header;
using slamb::detail::state_header;
using test_support::checkpoint;
using test_support::checkpoints;
using test_support::contains;
using test_support::course;
using test_support::experiment;
using test_support::lonely_rank;
using test_support::made_optimizer;
using test_support::make_one;
using test_support::maker_of;
using test_support::model;
using test_support::optimizer_maker;
using test_support::said_by;
using test_support::train_saving;

using lamb = slamb::lamb<thread_communicator>;
using sparse = slamb::slamb<thread_communicator, slamb::random_k<slamb::sampling::bernoulli>>;
using signed_adamw = slamb::adamw<slamb::sign, thread_communicator>;
using one_bit_adam = slamb::one_bit_adam<thread_communicator>;
using one_bit_lamb = slamb::one_bit_lamb<thread_communicator>;
using zero_one = slamb::zero_one_adam<thread_communicator>;

using thrifty_adamw = slamb::adamw<slamb::sign, slamb::two_sided<slamb::bfloat16>, thread_communicator>;
using sparse_adamw = slamb::adamw<slamb::random_k<>, thread_communicator>;
using round_robin = slamb::slamb<thread_communicator>;
using largest = slamb::slamb<thread_communicator, slamb::top_k>;
using bytewise = slamb::slamb<thread_communicator, slamb::chain<slamb::random_k<>, slamb::int8>>;
using self_timed_lamb =
    slamb::one_bit_lamb<slamb::residual<slamb::bfloat16>, slamb::automatic_warm_up, thread_communicator>;

using bytes = std::vector<std::byte>;

// Refreshes at steps 1 and 3; local steps from step 5, exchanges at 5, 6, 7, 11 and 15.
const zero_one::options_type short_phases{.variance_schedule = {.freeze_step = 4, .update_scaler = 1},
                                          .local_schedule = {.scaler = 2, .clipper = 4}};

/// A model with tensors in three groups. The rate of the last group is 0 in every second step; one tensor is not compressed.
experiment odd_experiment(int world, std::size_t steps) {
  model tensors{{17}, {9000}, {0}, {33, 1}, {300}, {129}};
  tensors[3].options.compress = false;
  tensors[4].options.group = 1;
  tensors[5].options.group = 2;
  return test_support::make_experiment(tensors, static_cast<std::uint64_t>(150 + world), world, steps);
}

/// A state without its hash.
bytes unsealed(bytes state) {
  state.resize(state.size() - slamb::detail::state_hash_bytes);
  return state;
}

/// `state`, which has no hash, with its hash.
bytes resealed(bytes state) {
  const std::size_t size = state.size();
  state.resize(size + slamb::detail::state_hash_bytes);
  if (size >= slamb::detail::state_text_bytes + sizeof(state_header)) {
    const std::uint64_t all = state.size();
    std::memcpy(state.data() + slamb::detail::state_text_bytes + offsetof(state_header, bytes), &all, sizeof(all));
  }
  const std::uint64_t hash =
      slamb::detail::hash_with_words(slamb::detail::hash_of_nothing, std::span(state).first(size));
  std::memcpy(state.data() + size, &hash, sizeof(hash));
  return state;
}

/// The offsets of the parts of a state without its hash.
std::vector<std::size_t> parts_of(const bytes& state) {
  std::vector<std::size_t> all;
  for (std::size_t at = slamb::detail::state_text_bytes + sizeof(state_header); at < state.size();) {
    all.push_back(at);
    part_header its;
    std::memcpy(&its, state.data() + at, sizeof(its));
    at += sizeof(its) + slamb::detail::padded(its.bytes);
  }
  return all;
}

void write_word(bytes& state, std::size_t at, std::uint64_t word) {
  std::memcpy(state.data() + at, &word, sizeof(word));
}
std::uint64_t word_of(const bytes& state, std::size_t at) {
  std::uint64_t word = 0;
  std::memcpy(&word, state.data() + at, sizeof(word));
  return word;
}

/// The offset of the bytes of a part, in a state without its hash.
std::size_t place_of(const bytes& state, std::string_view name) {
  for (const std::size_t part : parts_of(state))
    if (word_of(state, part) == slamb::detail::hash_of(name)) return part + sizeof(part_header);
  FAIL("there is no " << name);
  return 0;
}

/// A rank after some steps, with errors if the options set compress_single_rank.
lonely_rank trained(const model& tensors, const optimizer_maker& make, std::uint64_t steps = 7) {
  lonely_rank run(tensors, make);
  for (std::uint64_t t = 0; t < steps; ++t) run.step(t);
  return run;
}

/// Checks every accidental change of bytes.
void check_accidents(const optimizer_maker& make) {
  const model small{{5}, {33}};
  const bytes state = trained(small, make).now().state;
  lonely_rank other(small, make);
  other.step(3);
  const checkpoint before = other.now();
  for (const bool from_other_ranks : {false, true}) {
    const restore_options options{from_other_ranks};
    for (std::size_t at = 0; at < state.size(); ++at) {
      bytes flipped = state;
      for (unsigned bit = 0; bit < 8; ++bit) {
        flipped[at] = state[at] ^ std::byte(1U << bit);
        if (!contains(other.load(flipped, options), "slamb: load_state() was given "))
          FAIL_CHECK("byte " << at << ", bit " << bit);
      }
      if (other.load(std::span(state).first(at), options).empty()) FAIL_CHECK("size " << at);
      if (other.now() != before) FAIL_CHECK("something has changed with byte " << at);
    }
    bytes longer = state;
    for (int i = 0; i < 24; ++i) {
      longer.push_back(std::byte{0});
      CHECK(contains(other.refusal(longer, options), "bytes of a state that has "));
    }
  }
  CHECK(contains(other.refusal({}), "0 bytes, which are too few for a saved state"));
  CHECK(contains(other.refusal(bytes(500)), "500 bytes, which are too few for a saved state"));
  CHECK(contains(other.refusal(bytes(1000)), "not a state saved by this version"));
  CHECK(other.refusal(state).empty());
  CHECK(other.now().state == state);

  const model large{{9000}, {300}};
  const bytes large_state = trained(large, make, 4).now().state;
  lonely_rank another(large, make);
  const checkpoint untouched = another.now();
  for (std::size_t size = 0; size < large_state.size(); size += 97)
    if (another.load(std::span(large_state).first(size)).empty()) FAIL_CHECK("size " << size);
  CHECK(another.now() == untouched);
}

/// Checks changes by somebody who recomputes the hash.
void check_forgeries(const optimizer_maker& make) {
  const model tensors{{5}, {33}};
  const bytes whole = trained(tensors, make).now().state, state = unsealed(whole);
  lonely_rank other(tensors, make);
  other.step(3);
  const auto is_rejected = [&](const bytes& forged) {
    return !other.refusal(resealed(forged)).empty() && !other.refusal(resealed(forged), {true}).empty();
  };
  REQUIRE(resealed(state) == whole);
  const std::vector<std::size_t> parts = parts_of(state);
  REQUIRE(parts.size() > 5);
  for (const std::size_t part : parts) {
    CAPTURE(part);
    const std::uint64_t size = word_of(state, part + 8);
    const std::uint64_t left = state.size() - part - sizeof(part_header);
    constexpr std::uint64_t most = std::numeric_limits<std::uint64_t>::max();
    for (const std::uint64_t wrong : {most, most - 6, most - 7, most - 8, most / 2, most / 2 + 1, most - part,
                                      most - part - sizeof(part_header) + 1, left + 1, left + 8, size + 8, size + 16}) {
      bytes forged = state;
      write_word(forged, part + 8, wrong);
      CHECK(is_rejected(forged));
    }
    for (std::uint64_t end = part + sizeof(part_header) + size; end % 8 != 0; ++end)  // in its padding
      CHECK(is_rejected(bytes(state.begin(), state.begin() + static_cast<std::ptrdiff_t>(end))));
    bytes renamed = state;
    write_word(renamed, part, word_of(state, part) + 1);
    CHECK(is_rejected(renamed));
    CHECK(is_rejected(bytes(state.begin(), state.begin() + static_cast<std::ptrdiff_t>(part))));
    CHECK(is_rejected(bytes(state.begin(), state.begin() + static_cast<std::ptrdiff_t>(part + 8))));
    bytes without = state;
    without.erase(without.begin() + static_cast<std::ptrdiff_t>(part),
                  without.begin() + static_cast<std::ptrdiff_t>(part + 16 + slamb::detail::padded(size)));
    CHECK(is_rejected(without));
  }
  // The padding of the last part, partly or completely removed.
  for (std::size_t less = 1; less < 16; ++less)
    CHECK(is_rejected(bytes(state.begin(), state.end() - static_cast<std::ptrdiff_t>(less))));
  bytes more = state;
  more.insert(more.end(), state.begin() + static_cast<std::ptrdiff_t>(parts.back()), state.end());
  CHECK(is_rejected(more));
  CHECK(other.refusal(whole).empty());
}

/// A value that no optimizer can have saved.
struct wrong_value {
  std::string part;
  std::size_t at;  // offset in the part
  std::uint64_t value;
  std::size_t bytes;  // size of the value
  std::string why;    // the expected error
};

/// Writes the values one by one into a state, each time with a correct hash.
void check_wrong_values(const optimizer_maker& make, const std::vector<wrong_value>& values) {
  const model tensors{{5}, {33}};
  const bytes whole = trained(tensors, make).now().state;
  for (const wrong_value& wrong : values) {
    CAPTURE(wrong.part);
    CAPTURE(wrong.value);
    bytes state = unsealed(whole);
    std::memcpy(state.data() + place_of(state, wrong.part) + wrong.at, &wrong.value, wrong.bytes);
    lonely_rank other(tensors, make);
    other.step(3);
    const checkpoint before = other.now();
    CHECK(other.load(resealed(state)) ==
          "slamb: load_state() was given a state whose " + wrong.part + " cannot be right: " + wrong.why);
    CHECK(other.now() == before);
    CHECK_NOTHROW(other.step(4));
    CHECK(other.load(whole).empty());
    CHECK_NOTHROW(other.step(7));
  }
}

/// A warm-up of 3 steps that throws while `is_lost`.
struct lost_warm_up {
  const bool* is_lost;

  struct state_type {
    double variance_ratio = 0.0;
  };
  static bool wants_variance_norm(std::uint64_t /*t*/, double /*beta2*/) { return false; }
  bool ends_after(state_type& /*state*/, std::uint64_t t, double /*norm*/, double /*beta2*/) const {
    if (*is_lost) throw std::runtime_error("it is lost");
    return t >= 3;
  }
};

/// An optimizer of this file with one rank, with errors if it can keep any.
template <class Optimizer>
optimizer_maker lonely_maker_of() {
  typename Optimizer::options_type options{};
  if constexpr (std::is_same_v<Optimizer, zero_one>) options = short_phases;
  if constexpr (requires { options.dense_below; }) options.dense_below = 10;
  if constexpr (requires { options.compress_single_rank; }) options.compress_single_rank = true;
  if constexpr (requires { options.warm_up.steps; }) options.warm_up.steps = 3;
  return maker_of<Optimizer>(options);
}
std::vector<std::pair<std::string, optimizer_maker>> lonely_makers() {
  return {{"basic_lamb", lonely_maker_of<lamb>()},
          {"basic_slamb", lonely_maker_of<sparse>()},
          {"basic_lamb", lonely_maker_of<signed_adamw>()},
          {"basic_one_bit", lonely_maker_of<one_bit_adam>()},
          {"basic_one_bit", lonely_maker_of<one_bit_lamb>()},
          {"basic_zero_one_adam", lonely_maker_of<zero_one>()}};
}

/// Ranks that descend a quadratic from a state: rank r loads the state of rank `whose(r)`. Keeps the parameters of rank 0.
struct descent {
  checkpoints end;
  std::vector<slamb::statistics> said_first;  // [rank]
};
template <class Whose>
descent descend(const test_support::quadratic& problem, const optimizer_maker& make, int steps, double rate,
                const checkpoints* from, Whose whose) {
  const auto ranks = static_cast<std::size_t>(problem.ranks());
  descent all{checkpoints(ranks), std::vector<slamb::statistics>(ranks)};
  model tensors;
  for (const test_support::tensor_shape& s : problem.shapes) tensors.push_back({s.size, s.dimensions});
  slamb::run_ranks(problem.ranks(), [&](thread_communicator communicator) {
    const auto rank = static_cast<std::size_t>(communicator.rank());
    test_support::replica mine(tensors, from == nullptr ? problem.start() : (*from)[0].values);
    made_optimizer run = make_one(make, mine.parameters(), std::move(communicator));
    if (from != nullptr) run.load_state((*from)[whose(rank)].state, {.from_other_ranks = true});
    all.said_first[rank] = run.statistics(true);
    std::vector<float> gradient(problem.size());
    for (int step = 0; step < steps; ++step) {
      const std::vector<float> values = mine.values();
      problem.gradient(static_cast<int>(rank), std::span(values), std::span(gradient));
      mine.set_gradient(gradient);
      run.step(std::span(&rate, 1));
    }
    all.end[rank] = {run.save_state(), mine.values()};
  });
  return all;
}

}  // namespace

TEST_CASE("saved_state: training resumes from it bit for bit, at any step") {
  const experiment e = odd_experiment(3, 9);
  test_support::check_resumes(e, maker_of<lamb>({.max_gradient_norm = 1.0}));
  test_support::check_resumes(e, maker_of<sparse>({.local_steps = 3, .dense_below = 100}));
  test_support::check_resumes(e, maker_of<signed_adamw>({}));
  // In the warm-up, at its end, and in the compressed phase.
  test_support::check_resumes(e, maker_of<one_bit_adam>({.warm_up = {4}}));
  test_support::check_resumes(e, maker_of<one_bit_lamb>({.warm_up = {4}}));
  test_support::check_resumes(
      e, maker_of<one_bit_lamb>({.warm_up = {2}, .compressor = {scale_sharing::per_tensor, true}}));
}

TEST_CASE("saved_state: training resumes bit for bit with every policy that has state") {
  const experiment e = odd_experiment(3, 9);
  test_support::check_resumes(e, maker_of<thrifty_adamw>({.compressor = {.scales = scale_sharing::per_tensor}}));
  test_support::check_resumes(e, maker_of<sparse_adamw>({}));
  test_support::check_resumes(e, maker_of<round_robin>({.local_steps = 4, .dense_below = 100}));
  test_support::check_resumes(e, maker_of<largest>({.dense_below = 100, .compressor = {.k = 0.1}}));
  test_support::check_resumes(e, maker_of<bytewise>({.dense_below = 100}));
}

TEST_CASE("saved_state: an automatic warm-up resumes, and ends after the same step") {
  const experiment e = odd_experiment(2, 30);
  // A sample in every step: the first comparison is in step 17.
  const self_timed_lamb::options_type options{.beta2 = 0.9, .warm_up = {.threshold = 0.8}};
  const optimizer_maker make = maker_of<self_timed_lamb>(options);
  const course whole = train_saving(e, make);
  const slamb::statistics::warm_up_type decision = whole.said.back()[0].warm_up;
  CHECK(decision.ended_after >= 17);
  CHECK(decision.ended_after < 25);
  CHECK(decision.variance_ratio >= 0.8);
  test_support::check_resumes(e, make);

  self_timed_lamb::options_type sooner = options;
  sooner.warm_up.most_steps = 5;
  const course rest = train_saving(e, maker_of<self_timed_lamb>(sooner), {.from = &whole.at[9], .first_step = 9});
  CHECK(rest.said.back()[0].phase == "compressed");
  CHECK(rest.said.back()[0].warm_up.ended_after <= 10);
  CHECK(rest.at.back()[0].values == rest.at.back()[1].values);
}

TEST_CASE("saved_state: 0/1 Adam resumes from it in either phase, between two exchanges and right after one") {
  const experiment e = odd_experiment(3, 16);
  const course whole = train_saving(e, maker_of<zero_one>(short_phases));
  for (const std::size_t exchange : {5U, 6U, 7U, 11U, 15U}) {
    CAPTURE(exchange);
    CHECK(whole.at[exchange][0].values == whole.at[exchange][1].values);
  }
  for (const std::size_t between : {8U, 9U, 10U, 14U})
    CHECK(whole.at[between][0].values != whole.at[between][1].values);
  test_support::check_resumes(e, maker_of<zero_one>(short_phases));
  zero_one::options_type zero_aware = short_phases;
  zero_aware.compressor = {scale_sharing::per_tensor, true};
  test_support::check_resumes(odd_experiment(2, 9), maker_of<zero_one>(zero_aware));
}

TEST_CASE("saved_state: a single rank resumes, with and without compress_single_rank") {
  const experiment e = odd_experiment(1, 8);
  for (const auto& named : lonely_makers()) {
    const auto& name = named.first;
    const auto& make = named.second;
    CAPTURE(name);
    test_support::check_resumes(e, make);
  }
  test_support::check_resumes(e, maker_of<one_bit_lamb>({.warm_up = {3}}));
  test_support::check_resumes(e, maker_of<zero_one>(short_phases));
}

TEST_CASE("saved_state: the same state has the same bytes, and saving changes nothing") {
  for (const auto& named : lonely_makers()) {
    const auto& name = named.first;
    const auto& make = named.second;
    CAPTURE(name);
    const model tensors{{5}, {9000}};
    lonely_rank a = trained(tensors, make), b = trained(tensors, make);
    CHECK(a.now().state == a.now().state);
    CHECK(a.now() == b.now());
    CHECK(a.now().state != trained(tensors, make, 6).now().state);
    lonely_rank c(tensors, make);
    CHECK(c.refusal(a.now().state).empty());
    CHECK(c.now().state == a.now().state);
  }
}

TEST_CASE("saved_state: statistics resume from it, and count the traffic of this run") {
  const experiment e = odd_experiment(2, 16);
  const auto check = [&e](const optimizer_maker& make, std::size_t when) {
    CAPTURE(when);
    const course whole = train_saving(e, make);
    const course rest = train_saving(e, make, {.from = &whole.at[when], .first_step = when, .steps_before = 3});
    for (std::size_t rank = 0; rank < 2; ++rank) {
      const slamb::statistics &before = whole.said[when][rank], &after = rest.said[0][rank];
      const slamb::statistics &end = whole.said.back()[rank], &rest_end = rest.said.back()[rank];
      CHECK(after.step == when);
      CHECK(after.skipped_steps == before.skipped_steps);
      CHECK(after.local_skips == before.local_skips);
      CHECK(after.phase == before.phase);
      CHECK(after.norm.momentum == before.norm.momentum);
      CHECK(after.norm.variance == before.norm.variance);
      CHECK(after.norm.parameters == before.norm.parameters);
      CHECK(after.worker_error == before.worker_error);
      CHECK(after.warm_up.ended_after == before.warm_up.ended_after);
      CHECK(after.warm_up.variance_ratio == before.warm_up.variance_ratio);
      REQUIRE(after.phases.size() == 1);
      CHECK(after.phases[0].name == before.phase);
      CHECK(after.phases[0].first_step == when + 1);
      CHECK(after.phases[0].traffic.total().rounds == 0);
      CHECK(rest_end.traffic - after.traffic == end.traffic - before.traffic);
      CHECK(rest_end.phase == end.phase);
      CHECK(rest_end.warm_up.ended_after == end.warm_up.ended_after);
      slamb::traffic total;
      for (const slamb::statistics::phase_type& phase : rest_end.phases) total = total + phase.traffic.total();
      CHECK(total == (rest_end.traffic - after.traffic).total());
    }
  };
  for (const std::size_t when : {0U, 3U, 4U, 6U, 16U}) {
    check(maker_of<lamb>({}), when);
    check(maker_of<sparse>({.dense_below = 100}), when);
    check(maker_of<signed_adamw>({}), when);
    check(maker_of<one_bit_lamb>({.warm_up = {4}}), when);
    check(maker_of<zero_one>(short_phases), when);
  }
}

TEST_CASE("saved_state: the counts of skipped steps and of local skips resume") {
  const model tensors{{40}};
  for (const auto& named : lonely_makers()) {
    const auto& name = named.first;
    const auto& make = named.second;
    CAPTURE(name);
    lonely_rank run = trained(tensors, make, 2);
    run.step_with(std::numeric_limits<float>::quiet_NaN());
    for (std::uint64_t t = 2; t < 8; ++t) run.step(t);
    run.step_with(std::numeric_limits<float>::infinity());
    const slamb::statistics said = run.optimizer().statistics(false);
    CHECK(said.skipped_steps + said.local_skips == 2);
    lonely_rank next(tensors, make);
    CHECK(next.refusal(run.now().state).empty());
    CHECK(next.optimizer().statistics(false).skipped_steps == said.skipped_steps);
    CHECK(next.optimizer().statistics(false).local_skips == said.local_skips);
  }
}

TEST_CASE("saved_state: with a shorter warm-up compression begins at once, and its state is made then") {
  const experiment e = odd_experiment(3, 9);
  const auto check = [&e]<class Optimizer>(std::type_identity<Optimizer> /*type*/, std::uint64_t shorter) {
    CAPTURE(shorter);
    const course longer = train_saving(e, maker_of<Optimizer>({.warm_up = {6}}));
    const course expected = train_saving(e, maker_of<Optimizer>({.warm_up = {4}}));
    const course rest =
        train_saving(e, maker_of<Optimizer>({.warm_up = {shorter}}), {.from = &longer.at[4], .first_step = 4});
    CHECK(test_support::goes_on_as(expected, rest, 4));
    CHECK_FALSE(test_support::goes_on_as(longer, rest, 4));
    CHECK(rest.said[0][0].phase == "compressed");
    CHECK(rest.said[0][0].warm_up.ended_after == 4);
    CHECK(rest.said.back()[0].phases.back().first_step == 5);
  };
  for (const std::uint64_t shorter : {1U, 3U, 4U}) {
    check(std::type_identity<one_bit_adam>{}, shorter);
    check(std::type_identity<one_bit_lamb>{}, shorter);
  }
}

TEST_CASE("saved_state: with an unfinished warm-up training resumes, and the warm-up ends at its new end") {
  const experiment e = odd_experiment(2, 9);
  const course longer = train_saving(e, maker_of<one_bit_lamb>({.warm_up = {6}}));
  const optimizer_maker five = maker_of<one_bit_lamb>({.warm_up = {5}});
  const course rest = train_saving(e, five, {.from = &longer.at[4], .first_step = 4});
  CHECK(test_support::goes_on_as(train_saving(e, five), rest, 4));
}

TEST_CASE("saved_state: a warm-up that has ended does not restart") {
  const experiment e = odd_experiment(2, 9);
  const auto check = [&e]<class Optimizer>(std::type_identity<Optimizer> /*type*/) {
    const course whole = train_saving(e, maker_of<Optimizer>({.warm_up = {3}}));
    for (const std::size_t when : {3U, 5U}) {
      CAPTURE(when);
      const course rest =
          train_saving(e, maker_of<Optimizer>({.warm_up = {100}}), {.from = &whole.at[when], .first_step = when});
      CHECK(test_support::goes_on_as(whole, rest, when));
      CHECK(rest.said.back()[1].phase == "compressed");
      CHECK(rest.said.back()[1].warm_up.ended_after == 3);
    }
  };
  check(std::type_identity<one_bit_adam>{});
  check(std::type_identity<one_bit_lamb>{});
}

TEST_CASE("saved_state: 0/1 Adam with an earlier end of its first phase ends it after the next step") {
  const experiment e = odd_experiment(2, 12);
  const auto ending_after = [](std::uint64_t freeze_step) {
    zero_one::options_type phases = short_phases;
    phases.variance_schedule.freeze_step = freeze_step;
    return maker_of<zero_one>(phases);
  };
  const course longer = train_saving(e, ending_after(100));
  const course rest = train_saving(e, ending_after(2), {.from = &longer.at[5], .first_step = 5});
  CHECK(test_support::goes_on_as(train_saving(e, ending_after(6)), rest, 5));  // τ = 7 is step 6
  CHECK(rest.said[0][0].phase == "variance");
  CHECK(rest.said[1][0].phase == "local steps");
}

TEST_CASE("saved_state: a state of another rank or world size is rejected unless requested") {
  const experiment three = odd_experiment(3, 9), two = odd_experiment(2, 9);
  const std::vector<std::pair<std::string, optimizer_maker>> makers = {
      {"lamb", maker_of<lamb>({})},
      {"slamb", maker_of<sparse>({.dense_below = 100})},
      {"adamw", maker_of<signed_adamw>({})},
      {"1-bit adam", maker_of<one_bit_adam>({.warm_up = {4}})},
      {"1-bit lamb", maker_of<one_bit_lamb>({.warm_up = {4}})},
      {"0/1 adam", maker_of<zero_one>(short_phases)}};
  for (const auto& named : makers) {
    const auto& name = named.first;
    const auto& make = named.second;
    CAPTURE(name);
    const course whole = train_saving(three, make);
    for (const std::size_t when : {2U, 9U}) {
      CAPTURE(when);
      slamb::run_ranks(2, [&, when = when, &make = make](thread_communicator communicator) {
        const int rank = communicator.rank();
        test_support::replica mine(two.tensors, two.start);
        made_optimizer run = make_one(make, mine.parameters(), std::move(communicator));
        const checkpoint before{run.save_state(), mine.values()};
        std::string refusal;
        try {
          run.load_state(whole.at[when][static_cast<std::size_t>(rank)].state, {});
        } catch (const std::invalid_argument& error) {
          refusal = error.what();
        }
        const std::string mine_is = "rank " + std::to_string(rank) + " of ";
        CHECK(contains(refusal, "the state of " + mine_is + "3, but this is " + mine_is +
                                    "2; to load it without its compression errors, pass "));
        CHECK(contains(refusal,
                       "; to load it without its compression errors, pass restore_options{.from_other_ranks = true}"));
        CHECK(checkpoint{run.save_state(), mine.values()} == before);
        run.load_state(whole.at[when][static_cast<std::size_t>(rank)].state, {.from_other_ranks = true});
        const slamb::statistics said = run.statistics(true);
        CHECK(said.step == when);
        for (const double error : said.worker_error) CHECK(error == 0.0);
      });
      slamb::run_ranks(3, [&, when = when, &make = make](thread_communicator communicator) {
        const auto other = static_cast<std::size_t>((communicator.rank() + 1) % 3);
        test_support::replica mine(three.tensors, three.start);
        made_optimizer run = make_one(make, mine.parameters(), std::move(communicator));
        CHECK_THROWS_AS(run.load_state(whole.at[when][other].state, {}), std::invalid_argument);
        CHECK_NOTHROW(run.load_state(whole.at[when][other].state, {.from_other_ranks = true}));
      });
    }
  }
}

TEST_CASE("saved_state: other world sizes resume from the state of three ranks") {
  const test_support::tensor_shapes shapes{{300}, {17, 1}, {0}, {1000, 3}};
  const test_support::quadratic before(shapes, 3);
  struct recipe {
    std::string name;
    optimizer_maker make;
    bool own_states;  // true: rank r loads the state of rank r; false: all load the state of rank 0
  };
  // A large ε. Otherwise elements whose variance is frozen near 0 move so far that errors cannot correct it.
  const std::vector<recipe> recipes = {
      {"lamb", maker_of<lamb>({}), true},
      {"slamb", maker_of<sparse>({.local_steps = 1, .dense_below = 100}), false},
      {"adamw", maker_of<signed_adamw>({}), true},
      {"1-bit adam", maker_of<one_bit_adam>({.epsilon = 0.1, .warm_up = {15}}), true},
      {"1-bit lamb", maker_of<one_bit_lamb>({.epsilon = 0.1, .warm_up = {15}}), true},
      {"0/1 adam",
       maker_of<zero_one>(
           {.epsilon = 0.1, .variance_schedule = {15, 100}, .local_schedule = {.scaler = 100, .clipper = 1}}),
       false}};
  for (const recipe& r : recipes) {
    CAPTURE(r.name);
    const double rate = 0.01;
    const checkpoints saved = descend(before, r.make, 30, rate, nullptr, [](std::size_t rank) { return rank; }).end;
    for (const int ranks : {1, 2, 3, 5}) {
      CAPTURE(ranks);
      const test_support::quadratic after(shapes, ranks);
      const auto whose = [&r](std::size_t rank) { return r.own_states ? rank % 3 : 0; };
      const descent rest = descend(after, r.make, 30, rate, &saved, whose);
      const auto loss = [&after](const std::vector<float>& values) { return after.loss(std::span(values)); };
      CHECK(loss(saved[0].values) < loss(after.start()));
      CHECK(loss(rest.end[0].values) < loss(saved[0].values));
      for (const checkpoint& of_rank : rest.end) CHECK(of_rank.values == rest.end[0].values);
      for (const slamb::statistics& said : rest.said_first) {
        CHECK(said.step == 30);
        for (const double error : said.worker_error) CHECK(error == 0.0);
      }
    }
  }
}

TEST_CASE("saved_state: a rank with its own state among ranks with others begins without errors, as they do") {
  const experiment e = odd_experiment(2, 16);
  const course whole = train_saving(e, maker_of<zero_one>(short_phases));
  for (const std::size_t when : {9U, 11U, 13U}) {  // exchanges follow at 11 and 15
    CAPTURE(when);
    const checkpoints of_rank_0(2, whole.at[when][0]);
    const course rest =
        train_saving(e, maker_of<zero_one>(short_phases), {.from = &of_rank_0, .first_step = when, .options = {true}});
    for (const std::vector<slamb::statistics>& said : {rest.said[0]})
      for (const slamb::statistics& of_rank : said)
        for (const double error : of_rank.worker_error) CHECK(error == 0.0);
    for (const std::size_t exchange : {11U, 15U})
      if (exchange > when) {
        CHECK(rest.at[exchange - when][0].values == rest.at[exchange - when][1].values);
        CHECK(rest.said[exchange - when][0].norm.momentum == rest.said[exchange - when][1].norm.momentum);
      }
  }
}

// A case for each optimizer, because these are the longest here: together they take minutes under AddressSanitizer.
TEST_CASE("saved_state: corrupted bytes are rejected, and nothing changes: LAMB") {
  check_accidents(lonely_maker_of<lamb>());
}
TEST_CASE("saved_state: corrupted bytes are rejected, and nothing changes: SLAMB") {
  check_accidents(lonely_maker_of<sparse>());
}
TEST_CASE("saved_state: corrupted bytes are rejected, and nothing changes: AdamW with signs") {
  check_accidents(lonely_maker_of<signed_adamw>());
}
TEST_CASE("saved_state: corrupted bytes are rejected, and nothing changes: 1-bit Adam") {
  check_accidents(lonely_maker_of<one_bit_adam>());
}
TEST_CASE("saved_state: corrupted bytes are rejected, and nothing changes: 1-bit LAMB") {
  check_accidents(lonely_maker_of<one_bit_lamb>());
}
TEST_CASE("saved_state: corrupted bytes are rejected, and nothing changes: 0/1 Adam") {
  check_accidents(lonely_maker_of<zero_one>());
}

TEST_CASE("saved_state: parts of wrong sizes and names are rejected even if the hash matches") {
  for (const auto& named : lonely_makers()) {
    const auto& name = named.first;
    const auto& make = named.second;
    CAPTURE(name);
    check_forgeries(make);
  }
}

TEST_CASE("saved_state: counts that no training reaches are rejected even if the hash matches") {
  constexpr std::uint64_t most = std::numeric_limits<std::uint64_t>::max(), first = (std::uint64_t{1} << 53U) + 1;
  for (const auto& named : lonely_makers()) {
    CAPTURE(named.first);
    std::vector<wrong_value> wrong;
    for (const char* part : {"step", "skipped steps", "local skips"})
      for (const std::uint64_t value : {most, first})
        wrong.push_back(
            {part, 0, value, 8, "the count = " + std::to_string(value) + ", but it must be at most 9007199254740992"});
    check_wrong_values(named.second, wrong);
  }
}

TEST_CASE("saved_state: impossible schedules and flags are rejected even if the hash matches") {
  constexpr std::uint64_t most = std::numeric_limits<std::uint64_t>::max();
  const std::string too_many = " = 18446744073709551615, but it must be at most 9007199254740992";
  const auto flag = [](const std::string& part, std::uint64_t byte) {
    return wrong_value{part, 0, byte, 1, "the flag = " + std::to_string(byte) + ", but it must be 0 or 1"};
  };
  const std::string variance = "exponential_variance_interval's ", local = "doubling_local_interval's ";
  check_wrong_values(lonely_maker_of<zero_one>(),
                     {{"variance schedule", 0, 0, 8, variance + "interval = 0, but it must be a power of two"},
                      {"variance schedule", 0, 3, 8, variance + "interval = 3, but it must be a power of two"},
                      {"variance schedule", 0, std::uint64_t{1} << 63U, 8,
                       variance + "interval = 9223372036854775808, but it must be at most 9007199254740992"},
                      {"variance schedule", 8, most, 8, variance + "updates" + too_many},
                      {"local schedule", 0, 0, 8, local + "interval = 0, but it must be >= 1"},
                      {"local schedule", 8, most, 8, local + "steps" + too_many},
                      flag("phase", 2),
                      flag("phase", 255),
                      flag("parameters differ", 7)});
  for (const optimizer_maker& make : {lonely_maker_of<one_bit_adam>(), lonely_maker_of<one_bit_lamb>()})
    check_wrong_values(make, {flag("phase", 128), {"end of the warm-up", 0, most, 8, "the count" + too_many}});
  check_wrong_values(lonely_maker_of<self_timed_lamb>(),
                     {{"warm-up", 16 * 8, most, 8, "automatic_warm_up's spacing" + too_many},
                      {"warm-up", 17 * 8, most, 8, "automatic_warm_up's taken" + too_many}});
}

TEST_CASE("saved_state: errors that are not restored are not validated") {
  const model tensors{{5}, {33}};
  const optimizer_maker make = lonely_maker_of<zero_one>();
  bytes state = unsealed(trained(tensors, make).now().state);
  state[place_of(state, "parameters differ")] = std::byte{7};
  lonely_rank other(tensors, make);
  CHECK(contains(other.refusal(resealed(state)), "whose parameters differ cannot be right"));
  CHECK(other.load(resealed(state), {.from_other_ranks = true}).empty());
  CHECK_NOTHROW(other.step(7));
}

TEST_CASE("saved_state: after a load that fails halfway, the optimizer takes no step") {
  using optimizer = slamb::one_bit_adam<lost_warm_up, thread_communicator>;
  const model tensors{{5}, {33}};
  bool is_lost = false;
  const optimizer_maker make = maker_of<optimizer>({.compress_single_rank = true, .warm_up = {&is_lost}});
  const bytes state = trained(tensors, make, 2).now().state;
  lonely_rank other(tensors, make);
  is_lost = true;
  CHECK(said_by<std::runtime_error>([&] { other.optimizer().load_state(state); }) == "it is lost");
  is_lost = false;
  const std::string halfway =
      " was called after a load_state() that failed halfway, so a part of the state belongs to another step; load a "
      "state first";
  CHECK(said_by<std::logic_error>([&] { other.step(2); }) == "slamb: step()" + halfway);
  CHECK(said_by<std::logic_error>([&] { other.optimizer().synchronize_parameters(); }) ==
        "slamb: synchronize_parameters()" + halfway);
  CHECK(other.load(state).empty());
  CHECK_NOTHROW(other.step(2));
  CHECK(other.optimizer().statistics().step == 3);
}

TEST_CASE(
    "saved_state: a state of another recipe or with other policies is rejected, and the message names the right "
    "optimizer") {
  const model tensors{{5}, {33}};
  const auto makers = lonely_makers();
  for (std::size_t i = 0; i < makers.size(); ++i) {
    const bytes state = trained(tensors, makers[i].second).now().state;
    for (std::size_t j = 0; j < makers.size(); ++j) {
      if (i == j) continue;
      CAPTURE(makers[i].first);
      CAPTURE(makers[j].first);
      lonely_rank other(tensors, makers[j].second);
      for (const bool from_other_ranks : {false, true})
        CHECK(contains(other.refusal(state, {from_other_ranks}),
                       "the state of another optimizer; it must be a state of " + makers[j].first));
    }
  }
}

TEST_CASE("saved_state: a state of other tensors is rejected, even if they take as much memory") {
  const model tensors{{17}, {33}, {0}};
  const std::vector<model> others = {{{33}, {17}, {0}},
                                     {{18}, {33}, {0}},
                                     {{17}, {0}, {33}},
                                     {{17}, {33}},
                                     {{80}},
                                     {{17}, {33}, {16}},
                                     {{17}, {33}, {0}, {0}},
                                     {}};
  for (const auto& named : lonely_makers()) {
    const auto& name = named.first;
    const auto& make = named.second;
    CAPTURE(name);
    const bytes state = trained(tensors, make).now().state;
    for (const model& other : others) {
      lonely_rank run(other, make);
      for (const bool from_other_ranks : {false, true})
        CHECK(contains(run.refusal(state, {from_other_ranks}),
                       "other sizes of tensors; load it into an optimizer with the same tensors and policies"));
    }
  }
}

TEST_CASE("saved_state: errors of other chunks are rejected, and dropped if requested") {
  // The same number of codes, but of other elements.
  const experiment e = test_support::make_experiment({{512}, {512}}, 160, 2, 3);
  const course fused = train_saving(e, maker_of<signed_adamw>({}));
  slamb::run_ranks(2, [&](thread_communicator communicator) {
    const auto rank = static_cast<std::size_t>(communicator.rank());
    test_support::replica mine(e.tensors, e.start);
    made_optimizer run = make_one(maker_of<signed_adamw>({.compressor = {.scales = scale_sharing::per_tensor}}),
                                  mine.parameters(), std::move(communicator));
    const bytes& state = fused.at[3][rank].state;
    REQUIRE(run.save_state().size() == state.size());
    std::string refusal;
    try {
      run.load_state(state, {});
    } catch (const std::invalid_argument& error) {
      refusal = error.what();
    }
    CHECK(contains(refusal, "a state with other chunks of messages"));
    CHECK(contains(refusal,
                   "; to load it without its compression errors, pass restore_options{.from_other_ranks = true}"));
    CHECK(run.statistics(false).step == 0);
    run.load_state(state, {.from_other_ranks = true});
    CHECK(run.statistics(true).step == 3);
    CHECK(run.statistics(true).norm.momentum == doctest::Approx(fused.said[3][rank].norm.momentum));
    CHECK(run.statistics(true).worker_error == std::vector<double>{0.0});
    CHECK(fused.said[3][rank].worker_error[0] > 0.0);
  });
}

TEST_CASE("saved_state: errors of other ranks are cleared by copies, also in the host's memory") {
  struct waits_for_nothing final : slamb::detail::stream_waiter {
    void wait(slamb::detail::any_stream /*stream*/) const override {}
  };
  struct only_copies final : slamb::detail::backend_memory {
    void wait(const slamb::detail::stream_waiter& /*ranks*/) const override {}
    void upload_bytes(std::span<const std::byte> from, std::span<std::byte> to) const override {
      REQUIRE(from.size() <= to.size());
      std::copy(from.begin(), from.end(), to.begin());
    }
    void download(std::span<const std::byte> from, std::span<std::byte> to,
                  const slamb::detail::stream_waiter& /*ranks*/) const override {
      upload_bytes(from, to);
    }
  };
  std::vector<std::byte> errors((std::size_t{2} << 20U) + 3, std::byte{7});
  std::vector<std::byte> common(40, std::byte{1});
  const auto visit = [&](const slamb::detail::state_visitor& part) {
    part("errors", errors, slamb::detail::state_part::errors);
    part("nothing", {}, slamb::detail::state_part::errors);
    part("common", common, slamb::detail::state_part::common);
  };
  const only_copies memory;
  const waits_for_nothing waiter;
  const slamb::detail::state_kind kind{};
  const bytes saved = slamb::detail::save_parts(memory, kind, {0, 2, waiter}, visit);
  common.assign(common.size(), std::byte{2});
  bool is_restoring = true;
  slamb::detail::restore_parts(memory, kind, {1, 2, waiter}, slamb::detail::source_in(saved),
                               {.from_other_ranks = true}, visit, is_restoring);
  CHECK_FALSE(is_restoring);
  CHECK(std::count(errors.begin(), errors.end(), std::byte{0}) == std::ssize(errors));
  CHECK(std::count(common.begin(), common.end(), std::byte{1}) == std::ssize(common));
}

TEST_CASE("saved_state: settings may differ, and an optimizer without tensors has a state") {
  const model tensors{{5}, {33}};
  const bytes state = trained(tensors, maker_of<lamb>({})).now().state;
  lonely_rank other(tensors, maker_of<lamb>({.beta1 = 0.5, .epsilon = 1e-3, .max_gradient_norm = 2.0}));
  CHECK(other.refusal(state).empty());
  CHECK(other.now().state == state);
  for (const auto& named : lonely_makers()) {
    const auto& name = named.first;
    const auto& make = named.second;
    CAPTURE(name);
    for (const model& nothing : {model{}, model{{0}, {0}}}) {
      lonely_rank run = trained(nothing, make), next(nothing, make);
      CHECK(next.refusal(run.now().state).empty());
      CHECK(next.optimizer().statistics(true).step == 7);
      CHECK(next.now() == run.now());
    }
  }
}

}  // namespace state_saved_state_tests
