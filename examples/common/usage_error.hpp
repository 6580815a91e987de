// The exception for a wrong command line, and lists of names for its message and the help.
#pragma once

#include <algorithm>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace programs {

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

/// The member `name` of each element.
template <class Named>
std::vector<std::string_view> names_of(const Named& all) {
  std::vector<std::string_view> names;
  for (const auto& each : all) names.push_back(each.name);
  return names;
}

/// @throws usage_error if an option has a name twice; `reason` is the end of its message
inline void refuse_repetition(const std::string& option, const std::vector<std::string>& names,
                              const std::string& reason = "") {
  for (const std::string& name : names)
    if (std::ranges::count(names, name) > 1) throw usage_error(option + ": '" + name + "' is listed twice" + reason);
}

}  // namespace programs
