// The fingerprint of a step: the values it depends on, and the steps in which it does.
#include "slamb/detail/ranks/agreement.hpp"

#include <doctest/doctest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <type_traits>

#include "slamb/core/detail/hash.hpp"

namespace ranks_agreement_tests {
namespace {

using slamb::detail::agreement_record;
using slamb::detail::hash_with;
using slamb::detail::hashed_values;
using slamb::detail::sum_header;
using slamb::detail::sum_header_findings;

static_assert(std::is_trivially_copyable_v<agreement_record>);

constexpr std::uint64_t rate = 0x3F000000U;

/// A rank after some steps with equal rates, in which it has received the given words, at the beginning of the next.
agreement_record after(std::initializer_list<std::uint64_t> received) {
  agreement_record rank;
  std::uint64_t taken = 0;
  for (const std::uint64_t word : received) {
    rank.begin(taken++);
    rank.add(rate);
    rank.receive(word);
    rank.end();
  }
  rank.begin(taken);
  return rank;
}

/// The sum of headers that have nothing but the fingerprints.
std::array<float, sum_header::floats> header_of(std::initializer_list<std::uint64_t> fingerprints) {
  std::array<float, sum_header::floats> sum{};
  for (const std::uint64_t fingerprint : fingerprints)
    for (std::size_t i = 0; i < sum_header::bytes; ++i)
      sum[sum_header::first_byte + i] += sum_header::byte_of(fingerprint, i);
  return sum;
}

bool differ(const std::array<float, sum_header::floats>& sum, std::uint64_t own, int ranks) {
  return sum_header_findings(own, sum.data(), ranks).differs;
}

}  // namespace

TEST_CASE("agreement: the fingerprint is a hash of the run, the step and what it begins with") {
  agreement_record rank;
  rank.run_hash = 5;
  rank.begin(7);
  CHECK(rank.fingerprint(7) == hash_with(hash_with(5, 7), 0));  // 0: no hash of parameters
  rank.add(rate);
  CHECK(rank.fingerprint(7) == hash_with(hash_with(hash_with(5, 7), rate), 0));
  rank.receive(11);
  CHECK(rank.fingerprint(7) == hash_with(hash_with(hash_with(5, 7), rate), 0));
  rank.end();
  CHECK(rank.run_hash == hash_with(hash_with(hash_with(5, 7), rate), hash_with(0, 11)));

  rank.runtime_options_hash = 13;
  rank.run_hash = 5;
  rank.begin(7);
  CHECK(rank.fingerprint(7) == hash_with(hash_with(hash_with(5, 7), 13), 0));
  rank.begin_following_exchange(7);
  CHECK(rank.fingerprint(7) == hash_with(hash_with(5, 7), 0));
  rank.receive(11);
  rank.end_following_exchange();
  CHECK(rank.run_hash == hash_with(5, hash_with(0, 11)));
}

TEST_CASE("agreement: ranks that have received other values have other fingerprints in all later steps") {
  CHECK(after({1, 2, 3}).fingerprint(3) == after({1, 2, 3}).fingerprint(3));
  CHECK(after({1, 2, 3}).fingerprint(3) != after({1, 2, 4}).fingerprint(3));
  CHECK(after({1, 2, 3}).fingerprint(3) != after({4, 2, 3}).fingerprint(3));
  CHECK(after({1, 2}).fingerprint(2) != after({1, 2, 3}).fingerprint(3));
}

TEST_CASE("agreement: a hash counts in its step only, that of a payload in the next") {
  constexpr std::uint64_t taken = 2;
  for (const hashed_values values : {hashed_values::parameters, hashed_values::parameters_in_node,
                                     hashed_values::selection, hashed_values::payload}) {
    CAPTURE(static_cast<int>(values));
    agreement_record rank = after({1, 2});
    const bool in_node = values == hashed_values::parameters_in_node;
    const auto changes = [&](std::uint64_t at) {
      return rank.fingerprint(at, true) != after({1, 2}).fingerprint(at, true);
    };
    CHECK(!changes(taken));
    rank.keep(values, 9, taken);
    const bool is_late = values == hashed_values::payload;
    CHECK(changes(taken) == !is_late);
    CHECK(changes(taken + 1) == is_late);
    CHECK(!changes(taken + 2));
    // Between nodes all count but the parameters of a node.
    const std::uint64_t at = is_late ? taken + 1 : taken;
    CHECK((rank.fingerprint(at) != after({1, 2}).fingerprint(at)) == !in_node);
  }
}

TEST_CASE("agreement: a rank remembers the fingerprint and the selection of the step in which ranks diverged") {
  agreement_record rank = after({1, 2});
  rank.keep(hashed_values::selection, 9, 2);
  const std::uint64_t then = rank.fingerprint(2);
  CHECK(!rank.has_diverged());
  rank.mark_diverged(2);
  CHECK(rank.has_diverged());
  rank.begin(2);
  rank.add(rate);
  rank.keep(hashed_values::selection, 10, 2);
  rank.mark_diverged(2);
  CHECK(rank.diverged_fingerprint == then);
  CHECK(rank.of(hashed_values::selection).word == 9);

  rank.keep(hashed_values::payload, 11, 1);
  rank.forget_difference(false);
  CHECK(!rank.has_diverged());
  CHECK(!rank.of(hashed_values::selection).is_of(3));
  CHECK(rank.of(hashed_values::payload).is_of(2));
  rank.forget_difference(true);
  CHECK(!rank.of(hashed_values::payload).is_of(2));
}

TEST_CASE("agreement: a node whose ranks have diverged has another fingerprint than other nodes") {
  agreement_record first = after({1}), second = after({1});
  first.node_diverged = 1;
  CHECK(first.has_diverged());
  CHECK(first.fingerprint(1) != after({1}).fingerprint(1));
  second.node_diverged = 2;
  CHECK(first.fingerprint(1) != second.fingerprint(1));
}

TEST_CASE("agreement: a sum of headers shows if all ranks have the same fingerprint") {
  const std::uint64_t own = after({1}).fingerprint(1), other = after({2}).fingerprint(1);
  CHECK(!differ(header_of({own, own, own}), own, 3));
  CHECK(differ(header_of({own, other, own}), own, 3));
  CHECK(differ(header_of({own, other, own}), other, 3));
  CHECK(!differ(header_of({own, other, own}), own, sum_header::most_ranks + 1));  // sums may be rounded

  auto sum = header_of({own, own});
  sum[sum_header::found_inf] = std::numeric_limits<float>::quiet_NaN();
  CHECK(sum_header_findings(own, sum.data(), 2).found_inf);
  CHECK(sum_header_findings(own, sum.data(), 2).overflowed);
  CHECK(!sum_header_findings(own, sum.data(), 2).node_diverged);
  sum[sum_header::first_byte] = std::numeric_limits<float>::quiet_NaN();
  CHECK(sum_header_findings(own, sum.data(), 2).node_diverged);
}

}  // namespace ranks_agreement_tests
