// Compares options and state that must be equal on all ranks, and names the first difference.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "slamb/core/detail/hash.hpp"
#include "slamb/detail/ranks/rank_table.hpp"

namespace slamb::detail {

/// A list of named values that must be equal on all ranks.
class consistency_check {
 public:
  static constexpr const char* alike = "construct the optimizer with the same arguments on all ranks";

  /// @param kind  names the optimizer and its policies
  consistency_check(std::string_view kind, std::size_t tensors) : kind_(hash_of(kind)), tensors_(tensors) {}

  /// @param remedy  the end of the error: the remedy
  void add(std::string name, double value, const char* remedy = alike);
  void add_float(std::string name, float value, const char* remedy = alike);
  void add_word(std::string name, std::uint64_t word, const char* remedy = alike);
  /// Adds a hash, which the error does not print.
  void add_hash(std::string name, std::uint64_t word, const char* remedy = alike);

  /// Compares the list with the other ranks', by all_reduce_sum of floats.
  ///
  /// @throws rank_mismatch_error on every rank, with the first value that differs, on two ranks
  void require(const summing_ranks& ranks) const;

 private:
  struct fact {
    enum kind { number, real, word, secret };  // printed as a double, as a float, as an integer, not at all

    std::string name;
    std::uint64_t bits = 0;
    kind shown_as = word;
    const char* remedy = alike;
  };

  static rank_table table_of(const summing_ranks& ranks, std::span<const fact> facts);

  static void compare(const summing_ranks& ranks, std::span<const fact> facts);

  static bool agree(const summing_ranks& ranks, const fact& f);

  [[noreturn]] static void reject(const fact& f, std::uint64_t at_0, std::size_t r, std::uint64_t at_r);

  std::uint64_t kind_;
  std::uint64_t tensors_;
  std::vector<fact> facts_;
};

}  // namespace slamb::detail

#if !defined(SLAMB_SEPARATE_COMPILATION)
#include "slamb/impl/detail/ranks/consistency_check.ipp"
#endif
