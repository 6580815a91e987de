#pragma once

#include <array>
#include <bit>

#include "slamb/core/detail/hash.hpp"
#include "slamb/core/error.hpp"
#include "slamb/detail/ranks/consistency_check.hpp"

namespace slamb::detail {

SLAMB_DECL void consistency_check::add(std::string name, double value, const char* remedy) {
  facts_.push_back({std::move(name), std::bit_cast<std::uint64_t>(value), fact::number, remedy});
}

SLAMB_DECL void consistency_check::add_float(std::string name, float value, const char* remedy) {
  facts_.push_back({std::move(name), std::bit_cast<std::uint64_t>(static_cast<double>(value)), fact::real, remedy});
}

SLAMB_DECL void consistency_check::add_word(std::string name, std::uint64_t word, const char* remedy) {
  facts_.push_back({std::move(name), word, fact::word, remedy});
}

SLAMB_DECL void consistency_check::add_hash(std::string name, std::uint64_t word, const char* remedy) {
  facts_.push_back({std::move(name), word, fact::secret, remedy});
}

SLAMB_DECL void consistency_check::require(const summing_ranks& ranks) const {
  if (ranks.size == 1) return;
  std::string names;
  for (const fact& f : facts_) names += f.name + '\n';
  const std::array<fact, 3> head{
      {{"the optimizer or its policies", kind_, fact::secret},
       {"the number of tensors", tensors_, fact::word},
       {"the settings that the optimizer's policies describe", hash_of(names), fact::secret}}};
  compare(ranks, head);
  std::uint64_t all = hash_of_nothing;
  for (const fact& f : facts_) all = hash_with(all, f.bits);
  if (!agree(ranks, {"the hash of all facts", all, fact::secret}))
    compare(ranks, facts_);  // throws the error that names the difference
}

SLAMB_DECL rank_table consistency_check::table_of(const summing_ranks& ranks, std::span<const fact> facts) {
  std::vector<std::uint64_t> own;
  for (const fact& f : facts) own.push_back(f.bits);
  return {ranks, own};
}

SLAMB_DECL void consistency_check::compare(const summing_ranks& ranks, std::span<const fact> facts) {
  const rank_table said = table_of(ranks, facts);
  for (std::size_t i = 0; i < facts.size(); ++i)
    for (std::size_t r = 1; r < static_cast<std::size_t>(ranks.size); ++r)
      if (said.sent_word(r, i) != said.sent_word(0, i)) {
        synchronize_before_throwing(ranks);
        reject(facts[i], said.sent_word(0, i), r, said.sent_word(r, i));
      }
}

SLAMB_DECL bool consistency_check::agree(const summing_ranks& ranks, const fact& f) {
  const rank_table said = table_of(ranks, {&f, 1});
  for (std::size_t r = 1; r < static_cast<std::size_t>(ranks.size); ++r)
    if (said.sent_word(r, 0) != said.sent_word(0, 0)) return false;
  return true;
}

SLAMB_DECL void consistency_check::reject(const fact& f, std::uint64_t at_0, std::size_t r, std::uint64_t at_r) {
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

}  // namespace slamb::detail
