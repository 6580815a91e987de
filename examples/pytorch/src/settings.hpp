// The settings of an optimizer, by name, as Python gives them.
#pragma once

#include <algorithm>
#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace binding {

/// Values by name. An optimizer takes those that it has. A value that is not taken is an error of the caller.
class settings {
 public:
  using value = std::variant<bool, std::int64_t, double, std::string>;

  /// @param whose  names the optimizer in messages
  settings(std::map<std::string, value> given, std::string whose)
      : given_(std::move(given)), whose_(std::move(whose)) {}

  /// Sets `into` to the value of this name, if there is one.
  /// @throws std::invalid_argument if it is of another type
  template <class T>
  void take(const std::string& name, T& into) {
    note(name);
    const auto found = given_.find(name);
    if (found == given_.end()) return;
    read(name, found->second, into);
  }

  /// Sets `into` to the value that the text of this name stands for, if there is one.
  template <class T>
  void take_one_of(const std::string& name, T& into, std::initializer_list<std::pair<std::string_view, T>> choices) {
    note(name);
    const auto found = given_.find(name);
    if (found == given_.end()) return;
    std::string names;
    const auto* const text = std::get_if<std::string>(&found->second);
    for (const auto& [choice, meaning] : choices) {
      if (text != nullptr && *text == choice) {
        into = meaning;
        return;
      }
      names += (names.empty() ? "'" : " or '") + std::string(choice) + "'";
    }
    throw std::invalid_argument("slamb: " + name + " must be " + names +
                                (text == nullptr ? ", a text" : ", not '" + *text + "'"));
  }

  /// @throws std::invalid_argument that names a value which was not taken, and all names that would be
  void require_all_taken() const {
    for (const auto& [name, unused] : given_) {
      if (std::ranges::find(known_, name) != known_.end()) continue;
      std::string all;
      for (const std::string& one : known_) all += (all.empty() ? "" : ", ") + one;
      throw std::invalid_argument("slamb: " + whose_ + " has no setting '" + name + "'; it has " + all);
    }
  }

 private:
  void note(const std::string& name) {  // a sparsifier and a quantizer may have a setting of the same name
    if (std::ranges::find(known_, name) == known_.end()) known_.push_back(name);
  }

  static void read(const std::string& name, const value& from, bool& into) {
    if (const auto* const given = std::get_if<bool>(&from))
      into = *given;
    else
      reject(name, "True or False");
  }
  static void read(const std::string& name, const value& from, double& into) {
    if (const auto* const given = std::get_if<double>(&from))
      into = *given;
    else if (const auto* const integer = std::get_if<std::int64_t>(&from))
      into = static_cast<double>(*integer);
    else
      reject(name, "a number");
  }
  template <std::integral T>
  requires(!std::same_as<T, bool>) static void read(const std::string& name, const value& from, T& into) {
    const auto* const given = std::get_if<std::int64_t>(&from);
    if (given == nullptr) reject(name, "an integer");
    if (!std::in_range<T>(*given))
      throw std::invalid_argument("slamb: " + name + " = " + std::to_string(*given) +
                                  ", but it must be an integer >= 0");
    into = static_cast<T>(*given);
  }
  [[noreturn]] static void reject(const std::string& name, const std::string& wanted) {
    throw std::invalid_argument("slamb: " + name + " must be " + wanted);
  }

  std::map<std::string, value> given_;
  std::string whose_;
  std::vector<std::string> known_;  // in the order in which the optimizer reads them
};

}  // namespace binding
