// What a policy says of itself: the facts it describes, and how it refuses a value.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace test_support {

/// The facts that `describe` adds, in order: name and bits.
template <class Policy>
std::vector<std::pair<std::string, std::uint64_t>> described(const Policy& policy) {
  struct {
    std::vector<std::pair<std::string, std::uint64_t>> all;
    void add(std::string name, double value) { all.push_back({std::move(name), std::bit_cast<std::uint64_t>(value)}); }
    void add_word(std::string name, std::uint64_t word) { all.push_back({std::move(name), word}); }
  } facts;
  policy.describe(facts);
  return facts.all;
}

/// Which fact tells two settings of a policy apart; a text that no fact has as its name unless exactly one does.
template <class Policy>
std::string told_apart_by(const Policy& a, const Policy& b) {
  const auto of_a = described(a), of_b = described(b);
  if (of_a.size() != of_b.size()) return "other numbers of facts";
  std::string name = "no fact";
  for (std::size_t i = 0; i < of_a.size(); ++i) {
    if (of_a[i].first != of_b[i].first) return "other names";
    if (of_a[i].second == of_b[i].second) continue;
    if (name != "no fact") return "several facts";
    name = of_a[i].first;
  }
  return name;
}

/// The message with which `validate` refuses; a text that no test looks for if it does not.
template <class Policy>
std::string refusal(const Policy& policy) {
  try {
    policy.validate();
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "nothing was thrown";
}

}  // namespace test_support
