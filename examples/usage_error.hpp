// What a wrong command line throws, and how its message lists names.
#pragma once

#include <stdexcept>
#include <string>

namespace option_checks {

/// A wrong command line.
class usage_error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// "a, b, c"
template <class Names>
std::string joined(const Names& names) {
  std::string all;
  for (const auto& name : names) all += (all.empty() ? "" : ", ") + std::string(name);
  return all;
}

}  // namespace option_checks
