// One suite for every sparsifier: each optional function of a selection must agree with `selects`, at every step and from every
// index. The expected values come from a history of `selects` only.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "slamb/communicator/run_ranks.hpp"
#include "slamb/core/real.hpp"
#include "slamb/slamb.hpp"
#include "support/archetype_policies.hpp"
#include "support/generate.hpp"
#include "support/quadratic.hpp"
#include "support/selection_history.hpp"

namespace compressor_compressor_tests {
namespace {

using slamb::coordinate;
using slamb::random_k;
using slamb::sampling;
using test_support::fault;
using test_support::history;
using test_support::mask_of;
using test_support::of_slots;
using test_support::place;
using test_support::random_source;
using test_support::remember;
using test_support::text;

// ----------------------------------------------------------------------------------------------- the history

std::vector<place> layout_of(const std::vector<std::uint64_t>& sizes) {
  std::vector<place> places;
  std::uint64_t offset = 0;
  for (const std::uint64_t size : sizes) {
    places.push_back({static_cast<std::uint32_t>(places.size()), size, offset});
    offset += size;
  }
  return places;
}

std::vector<std::uint64_t> random_sizes(std::uint64_t seed) {
  random_source source(seed, 0xC0);
  std::vector<std::uint64_t> sizes{0, 1, 15, 16, 17};
  for (int i = 0; i < 3; ++i) sizes.push_back(1 + source.below(700));
  return sizes;
}

// ------------------------------------------------------------------------------------------------ properties

template <class Selection>
fault age_fault(const Selection& s, const place& where, std::uint64_t step, const history& h) {
  if constexpr (slamb::capability::has_age<Selection>) {
    for (std::uint64_t i = 0; i < where.size; ++i) {
      const auto age = static_cast<std::uint32_t>(s.age(where.at(i)));
      if ((age == 0) != (h.selected[i] != 0)) return text("age is 0 where it is not selected", where, step, i);
      if (age != h.age[i]) return text("age is not that of the history", where, step, i);
    }
  }
  return {};
}

template <class Selection>
fault count_fault(const Selection& s, const place& where, std::uint64_t step, const history& h) {
  if constexpr (slamb::capability::has_selected_before<Selection>) {
    for (std::uint64_t i = 0; i <= where.size; ++i)
      if (static_cast<std::uint64_t>(s.selected_before(where.at(i))) != h.before[i])
        return text("selected_before is not the count", where, step, i);
  }
  return {};
}

/// Checks the runs of [first, first + count).
template <class Selection>
fault runs_fault(const Selection& s, const place& where, std::uint64_t step, const history& h, std::uint64_t first,
                 std::uint64_t count) {
  fault found;
  if constexpr (slamb::capability::has_runs<Selection>) {
    std::uint64_t next = first;
    s.runs(where.at(first), count, [&](std::uint64_t begin, std::uint64_t length, std::uint32_t age) {
      if (found) return;
      if (begin != next) found = text("a run does not begin where the last one ended", where, step, begin);
      if (begin + length > first + count) found = text("a run goes beyond the end", where, step, begin);
      for (std::uint64_t i = begin; i < begin + length && !found; ++i) {
        const std::uint32_t expected =
            slamb::capability::has_age<Selection> ? h.age[i] : (h.selected[i] != 0 ? 0U : 1U);
        if (age != expected) found = text("a run has another age than its elements", where, step, i);
      }
      next = begin + length;
    });
    if (!found && next != first + count) found = text("runs end before the end", where, step, next);
  }
  return found;
}

/// Checks the bits of [first, first + count), and the staleness discounts of the ages by a table of `table.size()` entries.
template <class Selection>
fault fill_fault(const Selection& s, const place& where, std::uint64_t step, const history& h, std::uint64_t first,
                 std::uint32_t count, const std::vector<float>& table) {
  if constexpr (slamb::capability::has_fill<Selection>) {
    constexpr float untouched = -1.0F;
    std::vector<std::uint16_t> expected_bits(count / 16 + 2, 0);
    std::vector<float> expected(count + 16, untouched);
    for (std::uint32_t i = 0; i < count; ++i) {
      const std::uint64_t at = first + i;
      if (h.selected[at] != 0) slamb::set_bit(expected_bits.data(), i);
      expected[i] = table[std::min<std::size_t>(h.age[at], table.size() - 1)];
    }
    const slamb::capability::staleness_discounts discounts_by_age{table.data(),
                                                                  static_cast<std::uint32_t>(table.size())};
    std::vector<std::uint16_t> bits(expected_bits.size(), 0), bits_alone = bits;
    std::vector<float> discount(expected.size(), untouched);
    const bool filled = s.fill(where.at(first), count, discounts_by_age, bits.data(), discount.data());
    if (s.fill(where.at(first), count, discounts_by_age, bits_alone.data(), nullptr) != filled)
      return text("fill answers otherwise without freshness", where, step, first);
    if (!filled) {
      expected_bits.assign(expected_bits.size(), 0);
      expected.assign(expected.size(), untouched);
    }
    if (bits != expected_bits || bits_alone != expected_bits) return text("fill sets other bits", where, step, first);
    const bool knows_discounts = slamb::capability::has_age<Selection> || !filled;
    if (knows_discounts && !test_support::same_bits(discount, expected))
      return text("fill has other freshness", where, step, first);
  }
  return {};
}

/// Checks all of the above for one tensor, from all important indices and from random ones.
template <class Selection>
fault selection_fault(const Selection& s, const place& where, std::uint64_t step, const history& h,
                      const std::vector<float>& table, random_source& source) {
  if (const fault f = age_fault(s, where, step, h)) return f;
  if (const fault f = count_fault(s, where, step, h)) return f;
  if (const fault f = runs_fault(s, where, step, h, 0, where.size)) return f;
  for (int i = 0; i < 12; ++i) {
    const std::uint64_t first = source.below(where.size + 1);
    const std::uint64_t count = source.below(where.size - first + 1);
    if (const fault f = runs_fault(s, where, step, h, first, count)) return f;
    const auto chunk = static_cast<std::uint32_t>(std::min<std::uint64_t>(i == 0 ? where.size : count, 1024));
    if (const fault f = fill_fault(s, where, step, h, i == 0 ? 0 : first, chunk, table)) return f;
  }
  return {};
}

template <class C>
void prepare(C& /*compressor*/, std::uint64_t /*step*/, std::uint64_t /*elements*/) {}

/// Sets a mask for each step. The mask lives as long as the program.
void prepare(slamb::explicit_mask& compressor, std::uint64_t step, std::uint64_t elements) {
  static std::vector<std::uint8_t> mask;
  mask = test_support::random_mask(5, step, elements, 0.3);
  for (std::uint8_t& byte : mask) byte = static_cast<std::uint8_t>(byte * (1 + step % 255));  // any byte but 0 selects
  compressor.set(mask);
}

/// The suite: some steps of one layout.
template <class C>
fault compressor_fault(C compressor, const std::vector<std::uint64_t>& sizes, std::uint64_t steps) {
  static_assert(slamb::compressor<C> && slamb::sparsifier<C> && !slamb::quantizer<C> && !slamb::capability::chained<C>);
  if constexpr (requires { compressor.validate(); }) compressor.validate();

  const std::vector<place> places = layout_of(sizes);
  const std::uint64_t elements = places.empty() ? 0 : places.back().offset + places.back().size;
  std::vector<history> histories(places.size());
  std::vector<float> table;
  for (int age = 0; age < 23; ++age) table.push_back(static_cast<float>(std::pow(0.93, age)));
  random_source source(3, steps, elements);
  for (std::uint64_t step = 1; step <= steps; ++step) {
    prepare(compressor, step, elements);
    const auto s = compressor.at(step);
    const auto again = C(compressor).at(step);
    for (std::size_t l = 0; l < places.size(); ++l) {
      const place& where = places[l];
      remember(histories[l], s, where);
      history repeated;
      remember(repeated, again, where);
      if (repeated.selected != histories[l].selected) return text("another selection when asked again", where, step, 0);
      if constexpr (requires { compressor.largest_payload(where.size); })
        if (histories[l].before.back() > compressor.largest_payload(where.size))
          return text("more than the largest payload", where, step, 0);
      if (const fault f = selection_fault(s, where, step, histories[l], table, source)) return f;
    }
  }
  return {};
}

template <class C>
void check(const C& compressor, const std::vector<std::uint64_t>& sizes, std::uint64_t steps) {
  const fault f = compressor_fault(compressor, sizes, steps);
  CHECK_MESSAGE(!f, f.value_or(""));
}

/// The suite on several layouts.
template <class C>
void check(const C& compressor, std::uint64_t steps = 24) {
  check(compressor, {}, 2);
  check(compressor, {0, 0, 1}, steps);
  for (const std::uint64_t seed : {1U, 2U, 3U}) check(compressor, random_sizes(seed), steps);
  check(compressor, {2500}, 5);
}

}  // namespace

// ------------------------------------------------------------------------------------- checks of the suite itself

namespace {

/// `alternating` with one fault.
template <int Fault>
struct wrong : test_support::sparsifier_facts {
  struct chosen {
    std::uint64_t step;
    test_support::alternating::chosen right() const { return {step}; }

    bool selects(coordinate c) const { return right().selects(c); }
    std::uint32_t age(coordinate c) const {
      if (Fault == 1) return right().age(c) * 2;                   // is exchanged every second step, but reports age 2
      if (Fault == 2 && c.index == 40) return 1 - right().age(c);  // reports 0 for an unsent element
      return right().age(c);
    }
    std::uint64_t selected_before(coordinate c) const {
      const bool at_end = Fault == 3 && c.index == c.tensor_size && c.index > 20;  // wrong only at the end
      return right().selected_before(c) + (at_end ? 1 : 0);
    }
    template <class Visit>
    void runs(coordinate c, std::uint64_t count, Visit&& visit) const {
      const std::uint64_t end = c.index + count;
      for (std::uint64_t i = c.index; i < end; ++i) {
        coordinate at = c;
        at.index = i;
        if (Fault == 4 && i + 1 == end) return;                // omits the last run
        if (Fault == 5 && i == 30) continue;                   // leaves a gap
        visit(i, Fault == 6 && i + 1 == end ? 2 : 1,           // ends beyond the range
              Fault == 7 && i == 30 ? 1 - age(at) : age(at));  // another age
      }
    }
    bool fill(coordinate c, std::uint32_t count, slamb::capability::staleness_discounts table, std::uint16_t* bits,
              float* discount) const {
      if (Fault == 8) table.count = 1;                        // another staleness discount
      if (Fault == 9 && c.index % 2 != 0) bits[0] = 1;        // writes, but reports that it did not
      if (Fault == 10 && discount == nullptr) bits[1] ^= 1U;  // other bits if there is no staleness discount
      return right().fill(c, count, table, bits, discount);
    }
  };
  static chosen at(std::uint64_t step) { return {step}; }
  static std::uint64_t largest_payload(std::uint64_t size) { return Fault == 11 ? size / 2 : (size + 1) / 2; }
};

/// Selects by a counter that changes with each call.
struct fickle : test_support::sparsifier_facts {
  struct chosen {
    std::uint64_t salt;
    bool selects(coordinate c) const { return (c.index + salt) % 2 == 0; }
  };
  static chosen at(std::uint64_t) {
    static std::uint64_t calls = 0;
    return {++calls};
  }
};

template <int... Fault>
std::vector<int> faults_not_found(std::integer_sequence<int, Fault...>) {
  std::vector<int> missed;
  ((compressor_fault(wrong<Fault + 1>{}, {17, 101}, 4) ? void() : missed.push_back(Fault + 1)), ...);
  return missed;
}

}  // namespace

TEST_CASE("compressor suite: finds every planted fault, and reports no other") {
  check(wrong<0>{});
  CHECK(faults_not_found(std::make_integer_sequence<int, 11>{}) == std::vector<int>{});
  CHECK(compressor_fault(fickle{}, {16}, 1));
}

// ----------------------------------------------------------------------------------------------- shipped policies

TEST_CASE("no_compressor: conforms, and selects everything") {
  check(slamb::no_compressor{});
  CHECK(mask_of(slamb::no_compressor{}, 3, {0, 20, 0}) == std::vector<char>(20, 1));
}

TEST_CASE("explicit_mask: conforms, and selects by its mask") {
  check(slamb::explicit_mask{});
  slamb::explicit_mask compressor;
  const std::vector<std::uint8_t> mask{1, 0, 255, 0, 2, 0};
  compressor.set(mask);
  compressor.require_ready(6);
  CHECK(mask_of(compressor, 1, {1, 4, 2}) == std::vector<char>{1, 0, 1, 0});
}

TEST_CASE("explicit_mask: names the mistake in a mask") {
  slamb::explicit_mask compressor;
  CHECK_THROWS_AS(compressor.require_ready(2), std::invalid_argument);
  const std::vector<std::uint8_t> mask{1, 0, 1};
  compressor.set(mask);
  CHECK_THROWS_AS(compressor.require_ready(2), std::invalid_argument);
  CHECK_NOTHROW(compressor.require_ready(3));
}

TEST_CASE("random_k: round robin conforms, for 1 to 40 slots of one element") {
  for (std::uint32_t slots = 1; slots <= 40; ++slots) check(of_slots<sampling::round_robin>(slots), slots + 4);
}

TEST_CASE("random_k: round robin conforms, for other blocks and more slots than blocks") {
  for (const std::size_t block : {2U, 3U, 16U, 100U, 4096U})
    for (const std::uint32_t slots : {1U, 2U, 10U, 33U, 1000U})
      check(of_slots<sampling::round_robin>(slots, block), 13);
  check(of_slots<sampling::round_robin>(65535), 3);
}

TEST_CASE("random_k: bernoulli conforms") {
  for (const std::size_t block : {1U, 3U, 16U, 100U})
    for (const double k : {0.01, 0.1, 0.5, 1.0})
      check(random_k<sampling::bernoulli>{.k = k, .block = block, .seed = 9});
}

// --------------------------------------------------------------------------------------------------- archetypes

TEST_CASE("archetype compressors: conform") {
  check(test_support::every_nth{.n = 3});
  check(test_support::every_nth{.n = 1000});
  check(test_support::marching_quarters{});
  check(test_support::now_and_then{});
  check(test_support::nothing_ever{});
  check(test_support::tensor_by_tensor{});
  check(test_support::alternating{});
  check(test_support::plain_copy{});
}

namespace {

using test_support::plain_loop;
using test_support::quadratic;
using test_support::tensor_at_step;

double ratio(double a, double b) { return a > 0.0 && b > 0.0 ? a / b : 1.0; }

/// The scales of SLAMB's product form, computed from whole tensors.
std::vector<double> product_scales(const tensor_at_step& t) {
  const double sent = ratio(t.norm(t.p, true), t.norm(t.u, true));
  const double unsent = ratio(t.norm(t.p, false), t.norm(t.u, false));
  std::vector<double> scale;
  for (const double s : t.discount) {
    const double mixed = t.one_dimensional ? sent : std::clamp(s * sent + (1.0 - s) * unsent, 0.01, 1000.0);
    scale.push_back(mixed * (s + (1.0 - s) / std::sqrt(static_cast<double>(t.world))));
  }
  return scale;
}

/// The worst relative error of SLAMB with a compressor, compared with the plain loop that uses the compressor's `selects`.
template <class Compressor, class Reference = Compressor>
double training_error(const Compressor& compressor, int ranks, int steps, const Reference& of_loop, double beta3 = 0.93,
                      double rate = 0.02) {
  const quadratic problem(test_support::odd_tensors(), ranks);
  const auto got = test_support::train_ranks(problem, steps, rate, [&](auto parameters, auto communicator) {
    using optimizer = slamb::slamb<slamb::thread_communicator, Compressor>;
    return optimizer(parameters,
                     {.beta3 = beta3,
                      .update_bound = std::numeric_limits<double>::infinity(),
                      .local_steps = 20,
                      .dense_below = 16,
                      .compressor = compressor},
                     std::move(communicator), {.threads = 1});
  });
  plain_loop loop;
  loop.selects = [&of_loop](coordinate c, std::uint64_t step) { return of_loop.at(step).selects(c); };
  loop.scales = product_scales;
  loop.beta3 = beta3;
  loop.local_steps = 20;
  loop.dense_below = 16;
  using selection = decltype(compressor.at(1));
  if (!slamb::capability::has_age<selection>) loop.oldest = 255;
  const auto expected = loop.run(problem, steps, rate);
  CHECK(problem.loss(std::span<const float>(got[0])) < problem.loss(std::span<const float>(problem.start())));
  return test_support::worst_error(got, expected);
}

template <class Compressor>
void check_training(const Compressor& compressor, int steps = 45) {
  for (const int ranks : {1, 2, 3}) CHECK(training_error(compressor, ranks, steps, compressor) < 1e-4);
}

}  // namespace

TEST_CASE("compressor: SLAMB with any of them equals a plain loop with its selection") {
  check_training(of_slots<sampling::round_robin>(10));
  check_training(of_slots<sampling::round_robin>(5, 16));
  check_training(random_k<sampling::bernoulli>{.k = 0.2, .seed = 3});
  check_training(slamb::no_compressor{});
  check_training(test_support::every_nth{.n = 4});
  check_training(test_support::marching_quarters{});
  check_training(test_support::now_and_then{});
  check_training(test_support::nothing_ever{});
  check_training(test_support::tensor_by_tensor{});
  check_training(test_support::alternating{});
  check_training(test_support::plain_copy{});
}

TEST_CASE("compressor: the comparison of trainings finds another selection, and another freshness") {
  using test_support::every_nth;
  CHECK(training_error(every_nth{.n = 4}, 2, 45, every_nth{.n = 5}) > 1e-3);
  CHECK(training_error(of_slots<sampling::round_robin>(10), 2, 45, of_slots<sampling::round_robin>(10, 1, 2)) > 1e-3);
}

TEST_CASE("compressor: ages that the optimizer keeps saturate at 255") {
  const test_support::now_and_then rarely{{}, 280};
  CHECK(training_error(rarely, 2, 300, rarely, 0.998, 0.0005) < 1e-4);
}

TEST_CASE("compressor: a payload larger than declared is rejected before anything is sent or changed") {
  const quadratic problem({{101, 2}}, 1);
  std::vector<float> p = problem.start();
  const std::vector<float> before = p;
  std::vector<float> g(p.size(), 1.0F);
  const slamb::parameter one{p.data(), g.data(), p.size(), 2, {}};
  struct liar : test_support::every_nth {
    static std::uint64_t largest_payload(std::uint64_t) { return 3; }
  };
  slamb::slamb<slamb::self_communicator, liar> optimizer(std::span(&one, 1), {.dense_below = 0});
  CHECK_THROWS_AS(optimizer.step(0.1), slamb::error);
  CHECK(p == before);
  CHECK(optimizer.statistics().step == 0);
  CHECK(optimizer.statistics().traffic.total().rounds == 0);
}

TEST_CASE("compressor: lamb takes any compressor that selects all") {
  const quadratic problem(test_support::odd_tensors(), 3);
  using slamb::thread_communicator;
  const auto with = [&](auto compressor) {
    using optimizer = slamb::lamb<decltype(compressor), slamb::no_error_feedback, thread_communicator>;
    return test_support::train_ranks(problem, 20, 0.02, [&](auto parameters, auto communicator) {
      return optimizer(parameters, {.compressor = compressor}, std::move(communicator), {.threads = 1});
    });
  };
  CHECK(with(test_support::plain_copy{}) == with(slamb::no_compressor{}));
}

TEST_CASE("compressor: settings are validated, and compared among ranks") {
  const quadratic problem({{20, 2}}, 2);
  using optimizer = slamb::slamb<slamb::thread_communicator, test_support::every_nth>;
  const auto with = [&](auto n_of_rank) {
    return test_support::train_ranks(problem, 1, 0.1, [&](auto parameters, auto communicator) {
      const int rank = communicator.rank();
      return optimizer(parameters, {.compressor = {.n = n_of_rank(rank)}}, std::move(communicator), {.threads = 1});
    });
  };
  CHECK_THROWS_AS(with([](int) -> std::uint64_t { return 0; }), std::invalid_argument);
  CHECK_THROWS_AS(with([](int rank) -> std::uint64_t { return 2 + static_cast<std::uint64_t>(rank); }),
                  slamb::rank_mismatch_error);
  CHECK_NOTHROW(with([](int) -> std::uint64_t { return 2; }));
}

TEST_CASE("compressor: a skipped step does not change kept ages") {
  const quadratic problem({{100, 2}}, 2);
  const auto train = [&](bool with_bad_step) {
    std::vector<std::vector<float>> result(2);
    slamb::run_ranks(2, [&](slamb::thread_communicator communicator) {
      const int rank = communicator.rank();
      std::vector<float> p = problem.start();
      std::vector<float> g(p.size());
      const slamb::parameter one{p.data(), g.data(), p.size(), 2, {}};
      slamb::slamb<slamb::thread_communicator, test_support::now_and_then> optimizer(
          std::span(&one, 1), {.dense_below = 0, .compressor = {{}, 4}}, std::move(communicator), {.threads = 1});
      for (int step = 0; step < 12; ++step) {
        if (with_bad_step && step == 6) {
          g.assign(g.size(), 1.0F);
          if (rank == 1) g[50] = std::numeric_limits<float>::infinity();
          optimizer.step(0.02);
        }
        problem.gradient(rank, std::span<const float>(p), std::span<float>(g));
        optimizer.step(0.02);
      }
      CHECK(optimizer.statistics().skipped_steps == (with_bad_step ? 1 : 0));
      result[static_cast<std::size_t>(rank)] = p;
    });
    return result;
  };
  CHECK(train(true) == train(false));
}

}  // namespace compressor_compressor_tests
