// Words of all ranks by sums of floats: what is sent, and what sums that no ranks can have sent become.
#include "slamb/detail/ranks/agreement.hpp"

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <vector>

#include "slamb/core/error.hpp"

namespace ranks_agreement_rank_table_tests {
namespace {

using slamb::detail::counted_numbers;
using slamb::detail::rank_table;
using slamb::detail::summing_ranks;

constexpr std::uint64_t all_bits = std::numeric_limits<std::uint64_t>::max();

/// Rank `rank` of two; `of_other` is the table of the other one.
summing_ranks one_of_two(int rank, std::vector<float>& of_other) {
  return {rank, 2, [&of_other](std::span<float> values) {
            of_other.resize(values.size());
            for (std::size_t i = 0; i < values.size(); ++i) values[i] += of_other[i];
          }};
}

/// The table of rank 1 of two with these words, as rank 0 reads it.
rank_table read_by_other(const std::vector<std::uint64_t>& words, std::size_t numbers, unsigned bits) {
  std::vector<float> sent;
  const rank_table own({1, 2, [&sent](std::span<float> values) { sent.assign(values.begin(), values.end()); }}, words,
                       numbers, bits);
  return {one_of_two(0, sent), std::vector<std::uint64_t>(words.size(), 0), numbers, bits};
}

}  // namespace

TEST_CASE("rank_table: words arrive whole, in numbers of 16 bits and of 24") {
  const std::vector<std::uint64_t> words{0, 1, 65535, 65536, std::uint64_t{1} << 63U, all_bits};
  const rank_table read = read_by_other(words, 4, 16);
  const rank_table in_24 = read_by_other(words, 3, 24);
  const rank_table low = read_by_other(words, 2, 16);
  for (std::size_t i = 0; i < words.size(); ++i) {
    CHECK(read.word(1, i) == words[i]);
    CHECK(read.sent_word(0, i) == 0);
    CHECK(in_24.word(1, i) == words[i]);
    CHECK(low.word(1, i) == (words[i] & 0xFFFFFFFFU));
  }
}

TEST_CASE("rank_table: sums that no ranks can have sent are no words") {
  constexpr float nan = std::numeric_limits<float>::quiet_NaN();
  for (const float wrong : {nan, -1.0F, 0.5F, 65536.0F, std::numeric_limits<float>::infinity()}) {
    std::vector<float> table{0.0F, 0.0F, 0.0F, 0.0F, 7.0F, wrong, 0.0F, 0.0F};
    const rank_table read(one_of_two(0, table), std::vector<std::uint64_t>{42});
    CHECK(read.word(0, 0) == 42);
    CHECK(read.word(1, 0) == std::nullopt);
    CHECK_THROWS_AS(read.sent_word(1, 0), slamb::communicator_error);
  }
}

TEST_CASE("rank_table: numbers are compared although ranks disagree on their count") {
  // The index of the first difference that a rank with `own` sees among ranks with `others`.
  const auto first_other = [](const std::vector<std::uint64_t>& own,
                              const std::vector<std::vector<std::uint64_t>>& others, float scale = 1.0F) {
    counted_numbers counted(own);
    for (const auto& numbers : others) {
      counted_numbers other(numbers);
      for (std::size_t i = 0; i < counted.table().size(); ++i) counted.table()[i] += other.table()[i];
    }
    for (float& x : counted.table()) x *= scale;
    return counted.first_other();
  };
  CHECK(first_other({3, all_bits}, {{3, all_bits}, {3, all_bits}}) == 2);
  CHECK(first_other({3, all_bits}, {{3, all_bits}, {3, all_bits - 1}}) == 1);
  CHECK(first_other({3, all_bits}, {{300, all_bits}, {3, 7}}) == 0);
  CHECK(first_other({3, 1}, {{4, 2}}, 0.5F) == 2);  // means count nobody

  std::vector<float> same(256, 0.0F);
  for (std::size_t digit = 0; digit < 16; ++digit) same[16 * digit + (digit == 0 ? 5 : 0)] = 1.0F;
  CHECK(slamb::detail::all_equal(5, one_of_two(0, same)));
  CHECK(!slamb::detail::all_equal(6, one_of_two(0, same)));
  std::vector<float> nothing;
  CHECK(!slamb::detail::all_equal(5, one_of_two(0, nothing)));
}

}  // namespace ranks_agreement_rank_table_tests
