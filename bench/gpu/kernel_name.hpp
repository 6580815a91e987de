// Short names of kernels for tables, as in the sources.
#pragma once

#include <cxxabi.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <typeinfo>

namespace bench {

/// The name of a type without its namespaces, and without the arguments of its arguments:
/// "slamb::detail::run_pass<slamb::detail::apply_update<slamb::unit_trust_ratio> >" becomes "run_pass<apply_update>".
inline std::string shortened(std::string_view name) {
  std::string text;
  int depth = 0;
  std::size_t word = 0;  // start of the current identifier
  for (std::size_t i = 0; i < name.size(); ++i) {
    const char c = name[i];
    if (c == '>') {
      if (depth-- <= 1) text += c;
    } else if (c == '<') {
      if (++depth <= 1) text += c;
    } else if (depth <= 1 && c == ':' && i + 1 < name.size() && name[i + 1] == ':') {
      text.resize(word);
      ++i;
    } else if (depth <= 1 && !(c == ' ' && i + 1 < name.size() && name[i + 1] == '>')) {
      text += c;
    }
    if (depth <= 1 && (c == '<' || c == ' ' || c == '(' || c == ')' || c == ',')) word = text.size();
  }
  return text;
}

/// The short name of a type.
template <class Type>
const std::string& name_of() {
  static const std::string name = [] {
    int status = 0;
    const std::unique_ptr<char, void (*)(void*)> readable(
        abi::__cxa_demangle(typeid(Type).name(), nullptr, nullptr, &status), std::free);
    std::string text = shortened(status == 0 ? readable.get() : typeid(Type).name());
    constexpr std::string_view usual = ", single_precision";  // left out, because most kernels have it
    if (const std::size_t at = text.find(usual); at != std::string::npos) text.erase(at, usual.size());
    return text;
  }();
  return name;
}

}  // namespace bench
