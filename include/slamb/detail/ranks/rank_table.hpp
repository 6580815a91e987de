// Words of all ranks, brought to each of them by one all_reduce_sum of floats, because every Communicator has that.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "slamb/core/config.hpp"

namespace slamb::detail {

/// Ranks that sum values in host memory.
struct summing_ranks {
  int rank = 0;
  int size = 1;
  std::function<void(std::span<float> values)> all_reduce_sum;  ///< `values` [n] become their sum over ranks
};

/// Synchronizes all ranks before they throw. A rank that throws may leave, while others still wait for its values.
void synchronize_before_throwing(const summing_ranks& ranks) noexcept;

/// The place of a rank among all ranks. With `in_nodes`, `rank` is the node and `local_rank` the place in the node.
struct rank_place {
  int rank = 0, size = 1;
  int local_rank = 0, local_size = 1;
  bool in_nodes = false;

  bool is_valid() const noexcept {
    return size >= 1 && rank >= 0 && rank < size && local_size >= 1 && local_rank >= 0 && local_rank < local_size;
  }
  /// The number of ranks of all nodes, and this rank's number among them.
  int everyone() const noexcept { return size * local_size; }
  int myself() const noexcept { return rank * local_size + local_rank; }
  /// "rank 1 of 4", "rank 0 of 2, local rank 3 of 4".
  std::string text() const { return text_of(rank, local_rank); }
  /// The place of rank `one_of_all`, counted over all nodes.
  std::string text(int one_of_all) const { return text_of(one_of_all / local_size, one_of_all % local_size); }

 private:
  std::string text_of(int at, int local) const;
};

/// A row of words of every rank. Each rank fills its own row of a table of zeros, with a few bits of a word in each float, and
/// the sum of all tables has all rows.
class rank_table {
 public:
  /// Collective, with rows of the same size on all ranks.
  ///
  /// @param own      [words] the row of this rank
  /// @param numbers  floats for each word
  /// @param bits     of a word in each float, at most 24, which a float holds exactly; higher bits of the word are not sent
  rank_table(const summing_ranks& ranks, std::span<const std::uint64_t> own, std::size_t numbers = 4,
             unsigned bits = 16);

  /// Word i of a rank; none if no ranks can have sent what came in its place.
  std::optional<std::uint64_t> word(std::size_t rank, std::size_t i) const;
  /// Word i of a rank. @throws communicator_error if there is none
  std::uint64_t sent_word(std::size_t rank, std::size_t i) const;

 private:
  std::size_t words_, numbers_;
  unsigned bits_;
  std::vector<float> sums_;  // [rank][word][number]
};

/// Compares numbers of all ranks, even if ranks disagree on the number of ranks: each rank counts itself at each hexadecimal digit
/// of each number, in a table whose size depends only on the count of numbers.
class counted_numbers {
 public:
  explicit counted_numbers(std::vector<std::uint64_t> numbers);

  std::span<float> table() noexcept { return table_; }  ///< to be summed over all ranks

  /// True if exactly `ranks` ranks have these numbers.
  bool are_of(int ranks) const;
  /// The index of the first number that differs between ranks; the count of numbers if none differs, or if the table cannot be
  /// a sum of such counts.
  std::size_t first_other() const;

 private:
  static constexpr std::size_t digits = 16, base = 16;

  std::span<const float> row(std::size_t i) const { return std::span(table_).subspan(i * base, base); }
  /// The ranks that have the same digit i, counted over all numbers.
  float same(std::size_t i) const { return row(i)[numbers_[i / digits] >> (4 * (i % digits)) & 15U]; }
  float total(std::size_t i) const { return std::accumulate(row(i).begin(), row(i).end(), 0.0F); }

  std::vector<std::uint64_t> numbers_;
  std::vector<float> table_;  // [number][digit][value]: ranks that have this digit
};

/// True if all ranks have the same number. Collective. @param ranks  may disagree on their number
bool all_equal(std::uint64_t number, const summing_ranks& ranks);

}  // namespace slamb::detail

#if !defined(SLAMB_SEPARATE_COMPILATION)
#include "slamb/impl/detail/ranks/rank_table.ipp"
#endif
