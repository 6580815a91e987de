// Compares options and state that must be equal on all ranks, and names the first difference.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "slamb/core/detail/hash.hpp"
#include "slamb/core/error.hpp"

namespace slamb::detail {

/// Ranks that sum values in host memory.
struct summing_ranks {
  int rank = 0;
  int size = 1;
  std::function<void(std::span<float> values)> all_reduce_sum;  ///< `values` [n] become their sum over ranks
};

/// Synchronizes all ranks before they throw. A rank that throws may leave, while others still wait for its values.
inline void synchronize_before_throwing(const summing_ranks& ranks) noexcept {
  float nothing = 0.0F;
  try {
    ranks.all_reduce_sum({&nothing, 1});
  } catch (...) {
    // A rank has left without it. The caller throws its own error.
  }
}

/// A list of named values that must be equal on all ranks.
class consistency_check {
 public:
  static constexpr const char* alike = "construct the optimizer with the same arguments on all ranks";

  /// @param kind  names the optimizer and its policies
  consistency_check(std::string_view kind, std::size_t tensors) : kind_(hash_of(kind)), tensors_(tensors) {}

  /// @param remedy  the end of the error: the remedy
  void add(std::string name, double value, const char* remedy = alike) {
    facts_.push_back({std::move(name), std::bit_cast<std::uint64_t>(value), fact::number, remedy});
  }
  void add_float(std::string name, float value, const char* remedy = alike) {
    facts_.push_back({std::move(name), std::bit_cast<std::uint64_t>(static_cast<double>(value)), fact::real, remedy});
  }
  void add_word(std::string name, std::uint64_t word, const char* remedy = alike) {
    facts_.push_back({std::move(name), word, fact::word, remedy});
  }
  /// Adds a hash, which the error does not print.
  void add_hash(std::string name, std::uint64_t word, const char* remedy = alike) {
    facts_.push_back({std::move(name), word, fact::secret, remedy});
  }

  /// Compares the list with the other ranks', by all_reduce_sum of floats: each rank fills its own place, 16 bits in each float.
  ///
  /// @throws rank_mismatch_error on every rank, with the first value that differs, on two ranks
  void require(const summing_ranks& ranks) const {
    if (ranks.size == 1) return;
    std::string names;
    for (const fact& f : facts_) names += f.name + '\n';
    const std::array<fact, 3> head{
        {{"the optimizer or its policies", kind_, fact::secret},
         {"the number of tensors", tensors_, fact::word},
         {"the settings that the optimizer's policies describe", hash_of(names), fact::secret}}};
    compare(ranks, head);
    std::uint64_t all = 0;
    for (const fact& f : facts_) all = (all ^ f.bits) * 0x9E3779B97F4A7C15U + (all >> 29U);
    const fact together{"the hash of all facts", all, fact::secret};
    if (!agree(ranks, {&together, 1})) compare(ranks, facts_);  // throws the error that names the difference
  }

 private:
  struct fact {
    enum kind { number, real, word, secret };  // printed as a double, as a float, as an integer, not at all

    std::string name;
    std::uint64_t bits = 0;
    kind shown_as = word;
    const char* remedy = alike;
  };

  static constexpr std::size_t pieces = 4;  // of 16 bits, which a float holds exactly

  // The values of all ranks.
  class table {
   public:
    table(const summing_ranks& ranks, std::span<const fact> facts)
        : facts_(facts.size()), pieces_(static_cast<std::size_t>(ranks.size) * facts_ * pieces, 0.0F) {
      const auto rank = static_cast<std::size_t>(ranks.rank);
      for (std::size_t i = 0; i < facts_; ++i)
        for (std::size_t piece = 0; piece < pieces; ++piece)
          pieces_[(rank * facts_ + i) * pieces + piece] = static_cast<float>((facts[i].bits >> (16 * piece)) & 0xFFFFU);
      ranks.all_reduce_sum(pieces_);
    }

    std::uint64_t bits(std::size_t rank, std::size_t i) const {
      std::uint64_t all = 0;
      for (std::size_t piece = 0; piece < pieces; ++piece) {
        const float value = pieces_[(rank * facts_ + i) * pieces + piece];
        if (!(value >= 0.0F && value <= 65535.0F))
          throw communicator_error("slamb: the communicator's all_reduce_sum returned sums that no rank can have sent");
        all |= static_cast<std::uint64_t>(value) << (16 * piece);
      }
      return all;
    }

   private:
    std::size_t facts_;
    std::vector<float> pieces_;
  };

  static void compare(const summing_ranks& ranks, std::span<const fact> facts) {
    const table said(ranks, facts);
    for (std::size_t i = 0; i < facts.size(); ++i)
      for (std::size_t r = 1; r < static_cast<std::size_t>(ranks.size); ++r)
        if (said.bits(r, i) != said.bits(0, i)) {
          synchronize_before_throwing(ranks);
          reject(facts[i], said.bits(0, i), r, said.bits(r, i));
        }
  }

  static bool agree(const summing_ranks& ranks, std::span<const fact> facts) {
    const table said(ranks, facts);
    for (std::size_t r = 1; r < static_cast<std::size_t>(ranks.size); ++r)
      if (said.bits(r, 0) != said.bits(0, 0)) return false;
    return true;
  }

  [[noreturn]] static void reject(const fact& f, std::uint64_t at_0, std::size_t r, std::uint64_t at_r) {
    const auto text = [&f](std::uint64_t bits) {
      if (f.shown_as == fact::number) return to_text(std::bit_cast<double>(bits));
      if (f.shown_as == fact::real) return to_text(static_cast<float>(std::bit_cast<double>(bits)));
      return std::to_string(bits);
    };
    const std::string where = f.shown_as == fact::secret
                                  ? " (rank 0 and rank " + std::to_string(r) + ")"
                                  : ": " + text(at_0) + " on rank 0, " + text(at_r) + " on rank " + std::to_string(r);
    throw rank_mismatch_error("slamb: ranks differ in " + f.name + where + "; " + f.remedy);
  }

  std::uint64_t kind_;
  std::uint64_t tensors_;
  std::vector<fact> facts_;
};

}  // namespace slamb::detail
