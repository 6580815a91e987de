// Reads trace.txt, the settings of a trace: `key value` lines, and a line `tensor D0 D1 …` for each tensor. A tensor without
// dimensions is a scalar with 1 element; one with a dimension of 0 has no elements.
//
// Words are separated by spaces or tabs. Blank lines, lines that start with `#`, and a carriage return at the end of a line are
// accepted. Any other line that is not of this form, and any value out of its range, is an error that names the file and the
// line. A documented key that the algorithm does not use is checked and ignored.
#pragma once

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <map>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

namespace test_support {

/// A trace that cannot be read; `what()` names the file, the place in it and what was expected there.
class trace_error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// The content of trace.txt. Values without a member of their own are looked up by their key.
struct trace_settings {
  std::string algorithm;
  int world = 1;
  std::size_t steps = 0;
  std::size_t elements = 0;                      ///< n, of all tensors
  std::vector<std::vector<std::size_t>> shapes;  ///< [tensor][dimension]
  std::map<std::string, double, std::less<>> numbers;
  std::map<std::string, std::string, std::less<>> words;

  /// Elements of a tensor.
  std::size_t size(std::size_t tensor) const {
    std::size_t product = 1;
    for (const std::size_t d : shapes.at(tensor)) product *= d;
    return product;
  }

  bool has(std::string_view key) const { return numbers.find(key) != numbers.end(); }
  double number(std::string_view key) const { return value_of(numbers, key); }
  double number(std::string_view key, double otherwise) const { return has(key) ? number(key) : otherwise; }
  const std::string& word(std::string_view key) const { return value_of(words, key); }
  std::string word(std::string_view key, const char* otherwise) const {
    return words.find(key) == words.end() ? otherwise : word(key);
  }

 private:
  template <class Map>
  static const typename Map::mapped_type& value_of(const Map& values, std::string_view key) {
    const auto found = values.find(key);
    if (found == values.end()) throw trace_error("the trace has no `" + std::string(key) + "`");
    return found->second;
  }
};

namespace detail {

enum class kind { word, flag, count, number };

// The range of a count or a number.
struct value_range {
  std::string_view text;
  double least = 0.0;
  double most = 0.0;
  bool most_is_out = false;

  bool has(double x) const { return x >= least && (most_is_out ? x < most : x <= most); }
};

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr double largest_float = std::numeric_limits<float>::max();
constexpr double largest_count = 0x1p53;  // a double represents all integers up to here

inline constexpr value_range ranks{"[1, 64], for slamb_replay runs at most 64 ranks", 1.0, 64.0};
inline constexpr value_range from_0{"[0, 2^53]", 0.0, largest_count};
inline constexpr value_range from_1{"[1, 2^53]", 1.0, largest_count};
inline constexpr value_range decay_rate{"[0, 1)", 0.0, 1.0, true};
inline constexpr value_range part{"[0, 1]", 0.0, 1.0};
inline constexpr value_range not_negative{"[0, 3.4e38]", 0.0, largest_float};
inline constexpr value_range positive{"[1.2e-38, 3.4e38]", std::numeric_limits<float>::min(), largest_float};
inline constexpr value_range upper_limit{"[0, inf]", 0.0, infinity};

// A documented key: its range, and the algorithms that require it.
struct key_rule {
  std::string_view key;
  kind value;
  std::string_view required_by;   // " name name ", or "*": all
  std::string_view choices = "";  // of a word
  value_range range = {};         // of a count or a number
};

inline constexpr std::array key_rules{
    key_rule{"algorithm", kind::word, "*", " adamw lamb slamb one_bit_adam one_bit_lamb zero_one_adam "},
    key_rule{"world", kind::count, "*", "", ranks},
    key_rule{"steps", kind::count, "*", "", from_1},
    key_rule{"lr", kind::number, "*", "", not_negative},
    key_rule{"beta1", kind::number, "*", "", decay_rate},
    key_rule{"beta2", kind::number, "*", "", decay_rate},
    key_rule{"eps", kind::number, "*", "", positive},
    key_rule{"weight_decay", kind::number, "*", "", not_negative},
    key_rule{"bias_correction", kind::flag, " adamw lamb "},
    key_rule{"rescaling", kind::word, " slamb ", " product blend "},
    key_rule{"beta3", kind::number, " slamb ", "", part},
    key_rule{"local_steps", kind::count, " slamb ", "", from_1},
    key_rule{"dense_below", kind::count, " slamb ", "", from_0},
    key_rule{"trust_min", kind::number, " slamb one_bit_lamb ", "", not_negative},
    key_rule{"trust_max", kind::number, " slamb one_bit_lamb ", "", upper_limit},
    key_rule{"warmup_steps", kind::count, " one_bit_adam one_bit_lamb ", "", from_0},
    key_rule{"scales", kind::word, " one_bit_adam one_bit_lamb zero_one_adam ", " per_tensor fused "},
    key_rule{"trust_beta", kind::number, " one_bit_lamb ", "", decay_rate},
    key_rule{"factor_max", kind::number, " one_bit_lamb ", "", upper_limit},
    key_rule{"factor_min", kind::number, " one_bit_lamb ", "", not_negative},
    key_rule{"factor_threshold", kind::number, " one_bit_lamb ", "", not_negative},
    key_rule{"variance_freeze_step", kind::count, " zero_one_adam ", "", from_0},
    key_rule{"variance_update_scaler", kind::count, " zero_one_adam ", "", from_1},
    key_rule{"local_step_scaler", kind::count, " zero_one_adam ", "", from_1},
    key_rule{"local_step_clipper", kind::count, " zero_one_adam ", "", from_1},
    key_rule{"parameter_type", kind::word, "", " f32 float32 bf16 bfloat16 f16 float16 half "},
    key_rule{"gradient_type", kind::word, "", " f32 float32 bf16 bfloat16 f16 float16 half "},
    key_rule{"master", kind::flag, ""},
};

inline bool lists(std::string_view names, std::string_view name) {
  return names == "*" || names.find(" " + std::string(name) + " ") != std::string_view::npos;
}

inline std::vector<std::string_view> split(std::string_view line) {
  std::vector<std::string_view> words;
  while (true) {
    const std::size_t begin = line.find_first_not_of(" \t");
    if (begin == std::string_view::npos) return words;
    const std::size_t end = std::min(line.find_first_of(" \t", begin), line.size());
    words.push_back(line.substr(begin, end - begin));
    line.remove_prefix(end);
  }
}

inline bool multiply(std::size_t& product, std::size_t factor) {
  if (factor != 0 && product > std::numeric_limits<std::size_t>::max() / factor) return false;
  product *= factor;
  return true;
}

/// Parses trace.txt; each error names the file and the line.
class trace_text {
 public:
  trace_text(const std::filesystem::path& path, trace_settings& into) : path_(path), into_(into) {}

  void read() {
    std::error_code ignored;
    std::ifstream file(path_, std::ios::binary);
    if (!std::filesystem::is_regular_file(path_, ignored) || !file)
      throw trace_error(path_.string() + ": cannot be read; a trace is a folder with this file in it");
    std::string line;
    while (std::getline(file, line)) {
      ++line_number_;
      if (!line.empty() && line.back() == '\r') line.pop_back();
      const auto words = split(line);
      if (!words.empty() && words[0].front() != '#') take(words);
    }
    if (file.bad()) throw trace_error(path_.string() + ": could not be read to its end");
    require_complete();
  }

 private:
  [[noreturn]] void refuse(const std::string& what) const {
    throw trace_error(path_.string() + ":" + std::to_string(std::max<std::size_t>(line_number_, 1)) + ": " + what);
  }

  static std::string quoted(std::string_view text) { return "`" + std::string(text) + "`"; }

  void take(const std::vector<std::string_view>& words) {
    if (words[0] == "tensor") return take_tensor(words);
    const key_rule* rule = nullptr;
    for (const key_rule& r : key_rules) {
      if (r.key == words[0]) rule = &r;
    }
    if (rule == nullptr) refuse("unknown key " + quoted(words[0]));
    const auto [first, is_new] = line_of_.emplace(std::string(rule->key), line_number_);
    if (!is_new) refuse("a second " + quoted(rule->key) + "; the first is in line " + std::to_string(first->second));
    if (words.size() < 2) refuse(quoted(rule->key) + " has no value");
    if (words.size() > 2) refuse("text after the value of " + quoted(rule->key) + ": " + quoted(words[2]));
    if (rule->value == kind::word) {
      if (!lists(rule->choices, words[1]))
        refuse(quoted(rule->key) + " is " + quoted(words[1]) + ", but it must be one of" + std::string(rule->choices));
      into_.words.emplace(rule->key, words[1]);
    } else {
      into_.numbers.emplace(rule->key, value(*rule, words[1]));
    }
  }

  double value(const key_rule& rule, std::string_view text) const {
    switch (rule.value) {
      case kind::flag:
        if (text != "0" && text != "1") refuse(quoted(rule.key) + " is " + quoted(text) + ", but it must be 0 or 1");
        return text == "1" ? 1.0 : 0.0;
      case kind::count: {
        std::size_t n = 0;
        if (!read_number(text, n) || !rule.range.has(static_cast<double>(n))) refuse_value(rule, text, "an integer");
        return static_cast<double>(n);
      }
      default: {
        double x = 0.0;
        if (!read_number(text, x) || !rule.range.has(x)) refuse_value(rule, text, "a number");
        return x;
      }
    }
  }

  [[noreturn]] void refuse_value(const key_rule& rule, std::string_view text, const std::string& what) const {
    refuse(quoted(rule.key) + " is " + quoted(text) + ", but it must be " + what + " in " +
           std::string(rule.range.text));
  }

  template <class Number>
  static bool read_number(std::string_view text, Number& value) {
    const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), value);
    return status == std::errc{} && end == text.data() + text.size();
  }

  void take_tensor(const std::vector<std::string_view>& words) {
    std::size_t size = 1;
    std::vector<std::size_t> shape;
    for (std::size_t i = 1; i < words.size(); ++i) {
      std::size_t extent = 0;
      if (!read_number(words[i], extent))
        refuse("`tensor` has " + quoted(words[i]) + ", but a dimension must be an integer in [0, 2^64)");
      shape.push_back(extent);
      if (!multiply(size, shape.back())) refuse("the product of the tensor's dimensions overflows");
    }
    if (size > std::numeric_limits<std::size_t>::max() - into_.elements)
      refuse("the sum of the tensors' sizes overflows");
    into_.elements += size;
    into_.shapes.push_back(std::move(shape));
  }

  void require_complete() {
    const auto found = into_.words.find("algorithm");
    for (const key_rule& rule : key_rules) {
      const bool needed = found == into_.words.end() ? rule.key == "algorithm" : lists(rule.required_by, found->second);
      if (needed && line_of_.find(rule.key) == line_of_.end())
        refuse("ends without a line " + quoted(rule.key) +
               (rule.required_by == "*" ? "" : ", which " + found->second + " needs"));
    }
    if (into_.shapes.empty()) refuse("ends without a line `tensor`");
    require_order("trust_min", "trust_max");
    require_order("factor_min", "factor_max");
    into_.algorithm = found->second;
    into_.world = static_cast<int>(into_.number("world"));
    into_.steps = static_cast<std::size_t>(into_.number("steps"));
  }

  // Clamps: if both limits are given, the upper one must not be below the lower one.
  void require_order(std::string_view lower, std::string_view upper) {
    if (!into_.has(lower) || !into_.has(upper) || into_.number(lower) <= into_.number(upper)) return;
    const auto text = [&](std::string_view key) {
      std::ostringstream digits;
      digits << into_.number(key);
      return digits.str();
    };
    line_number_ = line_of_.find(upper)->second;
    refuse(quoted(upper) + " is " + quoted(text(upper)) + ", but it must be a number in [" + text(lower) +
           ", inf], for " + quoted(lower) + " is " + text(lower));
  }

  std::filesystem::path path_;
  trace_settings& into_;
  std::map<std::string, std::size_t, std::less<>> line_of_;
  std::size_t line_number_ = 0;
};

}  // namespace detail

/// Reads a trace.txt.
///
/// @throws trace_error naming the file and the line, if it is missing or malformed.
inline trace_settings read_trace_settings(const std::filesystem::path& file) {
  trace_settings result;
  detail::trace_text(file, result).read();
  return result;
}

}  // namespace test_support
