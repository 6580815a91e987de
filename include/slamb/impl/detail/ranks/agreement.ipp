#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <numeric>
#include <utility>

#include "slamb/core/detail/hash.hpp"
#include "slamb/core/error.hpp"
#include "slamb/detail/ranks/agreement.hpp"

namespace slamb::detail {

SLAMB_DECL std::string rank_id::text_of(int at, int local) const {
  std::string all = (are_shards ? "shard rank " : "rank ") + std::to_string(at) + " of " + std::to_string(size);
  if (in_nodes) all += ", local rank " + std::to_string(local) + " of " + std::to_string(local_size);
  return all;
}

SLAMB_DECL rank_table::rank_table(const summing_ranks& ranks, std::span<const std::uint64_t> own, std::size_t numbers,
                                  unsigned bits)
    : words_(own.size()),
      numbers_(numbers),
      bits_(bits),
      sums_(static_cast<std::size_t>(ranks.size) * words_ * numbers_, 0.0F) {
  const std::size_t first = static_cast<std::size_t>(ranks.rank) * words_ * numbers_;
  for (std::size_t i = 0; i < words_ * numbers_; ++i)
    sums_[first + i] =
        static_cast<float>(own[i / numbers_] >> (bits_ * (i % numbers_)) & ((std::uint64_t{1} << bits_) - 1));
  ranks.all_reduce_sum(sums_);
}

SLAMB_DECL std::optional<std::uint64_t> rank_table::word(std::size_t rank, std::size_t i) const {
  std::uint64_t all = 0;
  for (std::size_t k = 0; k < numbers_; ++k) {
    const float number = sums_[(rank * words_ + i) * numbers_ + k];
    if (!(number >= 0.0F && number < std::ldexp(1.0F, static_cast<int>(bits_)) && number == std::floor(number)))
      return std::nullopt;
    all |= static_cast<std::uint64_t>(number) << (bits_ * k);
  }
  return all;
}

SLAMB_DECL std::uint64_t rank_table::sent_word(std::size_t rank, std::size_t i) const {
  const std::optional<std::uint64_t> sent = word(rank, i);
  if (!sent)
    throw communicator_error("slamb: the communicator's all_reduce_sum returned sums that no rank can have sent");
  return *sent;
}

SLAMB_DECL counted_numbers::counted_numbers(std::vector<std::uint64_t> numbers)
    : numbers_(std::move(numbers)), table_(numbers_.size() * digits * base, 0.0F) {
  for (std::size_t i = 0; i < numbers_.size() * digits; ++i)
    table_[i * base + (numbers_[i / digits] >> (4 * (i % digits)) & 15U)] = 1.0F;
}

SLAMB_DECL bool counted_numbers::are_of(int ranks) const {
  for (std::size_t i = 0; i < numbers_.size() * digits; ++i)
    if (same(i) != static_cast<float>(ranks)) return false;
  return true;
}

SLAMB_DECL std::size_t counted_numbers::first_other() const {
  const bool are_counts = std::ranges::all_of(table_, [](float x) { return x >= 0.0F && x == std::floor(x); });
  std::size_t first = numbers_.size();
  for (std::size_t i = numbers_.size() * digits; i-- > 0;) {
    if (!are_counts || total(i) != total(0) || same(i) < 1.0F) return numbers_.size();
    if (same(i) != total(i)) first = i / digits;
  }
  return first;
}

SLAMB_DECL bool all_equal(std::uint64_t number, const summing_ranks& ranks) {
  counted_numbers counted({number});
  ranks.all_reduce_sum(counted.table());
  return counted.are_of(ranks.size);
}

SLAMB_DECL void synchronize_before_throwing(const summing_ranks& ranks) noexcept {
  float nothing = 0.0F;
  try {
    ranks.all_reduce_sum({&nothing, 1});
  } catch (...) {
    // A rank has left without it. The caller throws its own error.
  }
}

SLAMB_DECL void consistency_check::add(std::string name, double value, const char* remedy) {
  fields_.push_back({std::move(name), std::bit_cast<std::uint64_t>(value), field::number, remedy});
}

SLAMB_DECL void consistency_check::add_float(std::string name, float value, const char* remedy) {
  fields_.push_back({std::move(name), std::bit_cast<std::uint64_t>(static_cast<double>(value)), field::real, remedy});
}

SLAMB_DECL void consistency_check::add_word(std::string name, std::uint64_t word, const char* remedy, among whom) {
  fields_.push_back({std::move(name), word, field::word, remedy, whom});
}

SLAMB_DECL void consistency_check::add_hash(std::string name, std::uint64_t word, const char* remedy, among whom) {
  fields_.push_back({std::move(name), word, field::secret, remedy, whom});
}

SLAMB_DECL void consistency_check::require(const summing_ranks& ranks) const {
  if (ranks.size == 1) return;
  std::string names;
  for (const field& f : fields_) names += f.name + '\n';
  const std::array<field, 3> head{
      {{"the optimizer or its policies", kind_, field::secret},
       {"the number of tensors", tensors_, field::word},
       {"the settings that the optimizer's policies describe", hash_of(names), field::secret}}};
  compare(ranks, head);
  if (!agree(ranks)) compare(ranks, fields_);  // throws the error that names the difference
}

SLAMB_DECL rank_table consistency_check::table_of(const summing_ranks& ranks, std::span<const field> fields) {
  std::vector<std::uint64_t> own;
  for (const field& f : fields) own.push_back(f.bits);
  return {ranks, own};
}

SLAMB_DECL void consistency_check::compare(const summing_ranks& ranks, std::span<const field> fields) {
  const rank_table table = table_of(ranks, fields);
  for (std::size_t i = 0; i < fields.size(); ++i)
    for (std::size_t r = 1; r < static_cast<std::size_t>(ranks.size); ++r)
      if (table.sent_word(r, i) != table.sent_word(fields[i].first(r, ranks), i)) {
        synchronize_before_throwing(ranks);
        reject(fields[i], table, i, r, ranks);
      }
}

// Compares a hash of the fields that all ranks must have in common, and one of the others.
SLAMB_DECL bool consistency_check::agree(const summing_ranks& ranks) const {
  std::array<field, 2> hashes{{{"the hash of all fields", hash_of_nothing, field::secret, alike, among::all_ranks},
                               {"the hash of all fields", hash_of_nothing, field::secret, alike, among::same_shard}}};
  for (const field& f : fields_) {
    field& hash = hashes[f.whom == among::all_ranks ? 0 : 1];
    hash.bits = hash_with(hash.bits, f.bits);
  }
  const rank_table table = table_of(ranks, hashes);
  for (std::size_t i = 0; i < hashes.size(); ++i)
    for (std::size_t r = 1; r < static_cast<std::size_t>(ranks.size); ++r)
      if (table.sent_word(r, i) != table.sent_word(hashes[i].first(r, ranks), i)) return false;
  return true;
}

SLAMB_DECL void consistency_check::reject(const field& f, const rank_table& table, std::size_t i, std::size_t r,
                                          const summing_ranks& ranks) {
  const std::size_t first = f.first(r, ranks);
  const std::string of_first = ranks.name_of(first), of_other = ranks.name_of(r);
  const auto text = [&f](std::uint64_t bits) {
    if (f.shown_as == field::number) return to_text(std::bit_cast<double>(bits));
    if (f.shown_as == field::real) return to_text(static_cast<float>(std::bit_cast<double>(bits)));
    return std::to_string(bits);
  };
  const std::string where = f.shown_as == field::secret ? " (" + of_first + " and " + of_other + ")"
                                                        : ": " + text(table.sent_word(first, i)) + " on " + of_first +
                                                              ", " + text(table.sent_word(r, i)) + " on " + of_other;
  throw rank_mismatch_error("slamb: ranks differ in " + f.name + where + "; " + f.remedy);
}

}  // namespace slamb::detail
