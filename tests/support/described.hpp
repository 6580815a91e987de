// Helpers for tests of policies: the fields that `describe` adds, and the message of `validate`.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace test_support {

/// The fields that `describe` adds, in order: name and bits.
template <class Policy>
std::vector<std::pair<std::string, std::uint64_t>> described(const Policy& policy) {
  struct {
    std::vector<std::pair<std::string, std::uint64_t>> all;
    void add(std::string name, double value) { all.push_back({std::move(name), std::bit_cast<std::uint64_t>(value)}); }
    void add_word(std::string name, std::uint64_t word) { all.push_back({std::move(name), word}); }
  } fields;
  policy.describe(fields);
  return fields.all;
}

/// The name of the only field in which two settings of a policy differ. If not exactly one differs, a text that is no field's
/// name.
template <class Policy>
std::string told_apart_by(const Policy& a, const Policy& b) {
  const auto of_a = described(a), of_b = described(b);
  if (of_a.size() != of_b.size()) return "other numbers of fields";
  std::string name = "no field";
  for (std::size_t i = 0; i < of_a.size(); ++i) {
    if (of_a[i].first != of_b[i].first) return "other names";
    if (of_a[i].second == of_b[i].second) continue;
    if (name != "no field") return "several fields";
    name = of_a[i].first;
  }
  return name;
}

/// The message of the exception that `validate` throws. If it throws none, a text that no test expects.
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
