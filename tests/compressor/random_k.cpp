// random_k: slots have exactly the right size, every element is sent once in C steps, and masks look random.
#include "slamb/compressor/random_k.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <vector>

#include "support/selection_history.hpp"

namespace compressor_random_k_tests {
namespace {

using slamb::random_k;
using slamb::sampling;
using test_support::fault;
using test_support::mask_of;
using test_support::of_slots;
using test_support::place;
using test_support::text;

std::size_t both(const std::vector<char>& a, const std::vector<char>& b) {
  std::size_t count = 0;
  for (std::size_t i = 0; i < a.size(); ++i) count += a[i] != 0 && b[i] != 0 ? 1 : 0;
  return count;
}

/// Σ (observed − expected)²/expected, for counts with equal expectations.
double chi_square(const std::vector<int>& counts) {
  double total = 0.0, sum = 0.0;
  for (const int c : counts) total += c;
  const double expected = total / static_cast<double>(counts.size());
  for (const int c : counts) sum += (c - expected) * (c - expected) / expected;
  return sum;
}

/// True if the counts' deviation is typical of chance, neither smaller nor larger: within five standard deviations.
bool evenly_spread(const std::vector<int>& counts) {
  const double freedom = static_cast<double>(counts.size()) - 1.0;
  const double away = 5.0 * std::sqrt(2.0 * freedom);
  const double found = chi_square(counts);
  return found < freedom + away + 10.0 && found > freedom - away;
}

bool within_5_sigma(std::size_t count, std::size_t draws, double probability) {
  const double mean = static_cast<double>(draws) * probability;
  return std::abs(static_cast<double>(count) - mean) <= 5.0 * std::sqrt(mean * (1.0 - probability)) + 1.0;
}

// ------------------------------------------------------------------------------------------- round robin's slots

std::uint64_t slot_size(std::uint64_t slot, std::uint64_t blocks, std::uint64_t slots) {
  return (slot + 1) * blocks / slots - slot * blocks / slots;
}

/// Checks by brute force that every element is sent exactly once in C steps, and that every slot has exactly its size.
template <class C>
fault rounds_fault(const C& compressor, std::uint64_t n, std::uint64_t slots, std::uint64_t block,
                   std::uint64_t first) {
  const place where{2, n, 77};
  std::vector<int> times(n, 0);
  const std::uint64_t blocks = (n + block - 1) / block;
  for (std::uint64_t step = first; step < first + slots; ++step) {
    const std::vector<char> sent = mask_of(compressor, step, where);
    std::uint64_t sent_blocks = 0;
    for (std::uint64_t i = 0; i < n; ++i) {
      times[i] += sent[i];
      if (i % block == 0) sent_blocks += sent[i] != 0 ? 1 : 0;
      if (sent[i] != sent[i / block * block]) return text("a block is cut", where, step, i);
    }
    if (sent_blocks != slot_size(step % slots, blocks, slots)) return text("a slot of another size", where, step, 0);
  }
  for (std::uint64_t i = 0; i < n; ++i)
    if (times[i] != 1) return text("not exactly once in C steps", where, first, i);
  return {};
}

}  // namespace

TEST_CASE("random_k: the check of round robin finds a wrong number of slots, a wrong size and a cut block") {
  CHECK_FALSE(rounds_fault(of_slots<sampling::round_robin>(10), 105, 10, 1, 1));
  CHECK(rounds_fault(of_slots<sampling::round_robin>(10), 105, 9, 1, 1));
  CHECK(rounds_fault(of_slots<sampling::round_robin>(10, 4), 105, 10, 8, 1));
  CHECK(rounds_fault(of_slots<sampling::bernoulli>(10), 105, 10, 1, 1));
}

TEST_CASE("random_k: the statistics distinguish even from uneven") {
  CHECK(evenly_spread({101, 95, 108, 92, 104, 97, 88, 115}));
  CHECK_FALSE(evenly_spread({101, 95, 208, 92, 104, 97, 88, 115}));
  CHECK_FALSE(evenly_spread(std::vector<int>(1000, 50)));  // too even for chance
  CHECK(within_5_sigma(500, 1000, 0.5));
  CHECK_FALSE(within_5_sigma(600, 1000, 0.5));
}

TEST_CASE("random_k: round robin sends every element exactly once in C steps, in slots of the exact size") {
  for (const std::uint64_t block : {1U, 7U, 16U})
    for (const std::uint32_t slots : {1U, 2U, 3U, 7U, 10U, 16U, 97U, 100U})
      for (const std::uint64_t n : {0U, 1U, 2U, 9U, 10U, 11U, 96U, 160U, 161U, 997U}) {
        const auto compressor = of_slots<sampling::round_robin>(slots, block, n);
        const fault f = rounds_fault(compressor, n, slots, block, 1);
        REQUIRE_MESSAGE(!f, f.value_or("") << " slots " << slots << " block " << block);
        const fault later = rounds_fault(compressor, n, slots, block, 3 * slots + 5);
        REQUIRE_MESSAGE(!later, later.value_or("") << " slots " << slots << " block " << block);
      }
}

TEST_CASE("random_k: round robin is exact for 1000 and for 65535 slots") {
  for (const std::uint32_t slots : {1000U, 65535U})
    for (const std::uint64_t block : {1U, 3U})
      for (const std::uint64_t n : {1U, 999U, 1000U, 2501U, 70001U}) {
        const auto compressor = of_slots<sampling::round_robin>(slots, block);
        REQUIRE(compressor.slots() == slots);
        const std::uint64_t blocks = (n + block - 1) / block;
        const place where{0, n, 0};
        // After all elements have been sent, the age of an element determines its slot.
        const std::uint64_t step = 2 * std::uint64_t{slots};
        const auto s = compressor.at(step);
        std::vector<std::uint64_t> size(slots, 0), slot_of(n);
        for (std::uint64_t i = 0; i < n; ++i) {
          const std::uint32_t age = s.age(where.at(i));
          REQUIRE(age < slots);
          slot_of[i] = (step - age) % slots;
          if (i % block == 0) ++size[slot_of[i]];
          REQUIRE(slot_of[i] == slot_of[i / block * block]);
        }
        std::uint64_t wrong_sizes = 0;
        for (std::uint64_t slot = 0; slot < slots; ++slot)
          wrong_sizes += size[slot] == slot_size(slot, blocks, slots) ? 0 : 1;
        CHECK(wrong_sizes == 0);
        // And the slot determines the steps in which it is sent.
        for (const std::uint64_t later : {1U, 2U, 998U, 999U, 1000U, 1001U, 65534U, 65535U, 65536U, 200000U}) {
          const auto at = compressor.at(later);
          std::uint64_t wrong = 0;
          for (std::uint64_t i = 0; i < n; i += 1 + n / 1000)
            wrong += at.selects(where.at(i)) == (slot_of[i] == later % slots) ? 0 : 1;
          CHECK(wrong == 0);
          CHECK(at.selected_before(where.at(n)) <= compressor.largest_payload(n));
        }
      }
}

TEST_CASE("random_k: round robin's payload varies by at most one block per tensor") {
  for (const std::uint64_t block : {1U, 5U, 16U}) {
    const auto compressor = of_slots<sampling::round_robin>(10, block);
    std::uint64_t least = std::numeric_limits<std::uint64_t>::max(), most = 0;
    for (std::uint64_t step = 1; step <= 40; ++step) {
      const std::uint64_t size = compressor.at(step).selected_before({0, 12345, 12345, 0});
      least = std::min(least, size);
      most = std::max(most, size);
    }
    CHECK(most - least <= block);
    CHECK(most <= compressor.largest_payload(12345));
  }
}

TEST_CASE("random_k: ages and selections of steps beyond 2^32 are unchanged") {
  constexpr std::uint64_t far = (std::uint64_t{1} << 33U) * 10;
  const auto compressor = of_slots<sampling::round_robin>(10);
  const place where{0, 300, 0};
  CHECK(mask_of(compressor, far + 3, where) == mask_of(compressor, 3, where));
  for (std::uint64_t i = 0; i < where.size; ++i) {
    const std::uint64_t age = compressor.at(far + 3).age(where.at(i));
    CHECK(compressor.at(far + 3 - age).selects(where.at(i)));
  }
}

TEST_CASE("random_k: masks of different seeds and tensors are independent") {
  constexpr std::uint64_t n = 40000;
  const auto different = [](const auto& make) {
    std::vector<std::vector<char>> masks;
    for (const std::uint64_t seed : {0U, 1U, 2U})
      for (const std::uint32_t tensor : {0U, 1U, 2U}) masks.push_back(mask_of(make(seed), 4, {tensor, n, 0}));
    for (const std::uint64_t seed : {std::uint64_t{1} << 32U, std::uint64_t{1} << 63U})
      masks.push_back(mask_of(make(seed), 4, {0, n, 0}));
    for (std::size_t a = 0; a < masks.size(); ++a)
      for (std::size_t b = 0; b < a; ++b) CHECK(within_5_sigma(both(masks[a], masks[b]), n, 0.01));
  };
  different([](std::uint64_t seed) { return of_slots<sampling::round_robin>(10, 1, seed); });
  different([](std::uint64_t seed) { return of_slots<sampling::bernoulli>(10, 1, seed); });
}

TEST_CASE("random_k: round robin's positions are spread evenly, and independent in neighbouring groups") {
  for (const std::uint32_t slots : {2U, 7U, 10U, 16U}) {
    constexpr std::uint64_t groups = 30000;
    const std::uint64_t n = groups * slots;
    const auto s = of_slots<sampling::round_robin>(slots, 1, 123).at(5);
    std::vector<std::size_t> position;
    for (std::uint64_t i = 0; i < n; ++i)
      if (s.selects({3, i, n, 0})) position.push_back(i % slots);
    REQUIRE(position.size() == groups);
    std::vector<int> alone(slots, 0);
    for (const std::size_t p : position) ++alone[p];
    CHECK(evenly_spread(alone));
    for (const std::size_t apart : {1U, 2U, 3U, 4U, 8U}) {
      std::vector<int> pairs(std::size_t{slots} * slots, 0);
      for (std::size_t g = 0; g + apart < groups; ++g) ++pairs[position[g] * slots + position[g + apart]];
      CAPTURE(slots);
      CAPTURE(apart);
      CAPTURE(chi_square(pairs));
      CHECK(evenly_spread(pairs));
    }
  }
}

TEST_CASE("random_k: bernoulli sends the part k, with a new choice in each step and block") {
  constexpr std::uint64_t blocks = 50000;
  for (const std::uint64_t block : {1U, 4U})
    for (const double k : {0.01, 0.1, 0.5}) {
      const random_k<sampling::bernoulli> compressor{.k = k, .block = block, .seed = 77};
      const auto blocks_at = [&](std::uint64_t step) {
        std::vector<char> of_block;
        const auto s = compressor.at(step);
        for (std::uint64_t b = 0; b < blocks; ++b)
          of_block.push_back(s.selects({0, b * block, blocks * block, 0}) ? 1 : 0);
        return of_block;
      };
      std::vector<char> before = blocks_at(1);
      for (std::uint64_t step = 2; step <= 6; ++step) {
        const std::vector<char> now = blocks_at(step);
        CHECK(within_5_sigma(both(now, now), blocks, k));
        CHECK(within_5_sigma(both(now, before), blocks, k * k));
        const std::vector<char> shifted(now.begin() + 1, now.end());
        CHECK(within_5_sigma(both(shifted, now), blocks - 1, k * k));
        before = now;
      }
    }
}

TEST_CASE("random_k: settings out of range are rejected by name") {
  using robin = random_k<sampling::round_robin>;
  using coin = random_k<sampling::bernoulli>;
  constexpr double nan = std::numeric_limits<double>::quiet_NaN();
  for (const double k : {0.0, -0.1, 1.5, 1e-6, nan}) CHECK_THROWS_AS((robin{.k = k}.validate()), std::invalid_argument);
  for (const double k : {0.0, -0.1, 1.5, nan}) CHECK_THROWS_AS((coin{.k = k}.validate()), std::invalid_argument);
  for (const std::size_t block : {std::size_t{0}, (std::size_t{1} << 20U) + 1}) {
    CHECK_THROWS_AS((robin{.block = block}.validate()), std::invalid_argument);
    CHECK_THROWS_AS((coin{.block = block}.validate()), std::invalid_argument);
  }
  CHECK_NOTHROW((robin{.k = 1.0 / 65535.0, .block = std::size_t{1} << 20U}.validate()));
  CHECK_NOTHROW((coin{.k = 1e-9}.validate()));
}

}  // namespace compressor_random_k_tests
