// The settings of an optimizer, as the Python module writes them: a text with a setting on each line. It is an attribute of each call
// in the compiled program, so it holds all that the call needs, and is the same in each process.
#pragma once

#include <charconv>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

namespace slamb_jax {

struct tensor_settings {
  std::uint64_t size = 0;  ///< elements
  double weight_decay = 0.0;
  bool adapt = true;     ///< false: the trust ratio is 1
  bool compress = true;  ///< false: always exchanged as floats
};

struct settings {
  std::string recipe;      ///< adamw, lamb, one_bit_adam or one_bit_lamb
  std::string compressor;  ///< none, sign, int8 or int4
  int ranks = 1;
  unsigned threads = 1;  ///< of each rank
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double max_gradient_norm = std::numeric_limits<double>::infinity();  ///< ∞: no clipping
  std::uint64_t seed = 0;                                              ///< of stochastic rounding
  std::uint64_t warm_up_steps = 0;                                     ///< of the 1-bit optimizers
  double update_bound = 0.0;                                           ///< of the 1-bit optimizers; 0: Adam's own
  std::vector<tensor_settings> tensors;
};

namespace detail {

/// Takes the next word of a line.
inline std::string_view word_of(std::string_view& line) {
  const std::size_t end = line.find(' ');
  const std::string_view word = line.substr(0, end);
  line.remove_prefix(end == std::string_view::npos ? line.size() : end + 1);
  return word;
}

/// Takes a number.
/// @throws std::invalid_argument
template <class T>
T number_of(std::string_view& line, std::string_view name) {
  const std::string_view word = word_of(line);
  T value{};
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  if (error != std::errc() || end != word.data() + word.size())
    throw std::invalid_argument("slamb: the setting " + std::string(name) + " is '" + std::string(word) +
                                "', which is no number of its type");
  return value;
}

}  // namespace detail

/// @throws std::invalid_argument if a line has no known setting, or no number where one must be
inline settings parse(std::string_view text) {
  settings all;
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    std::string_view line = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    const std::string_view name = detail::word_of(line);
    const auto read = [&](auto& value) { value = detail::number_of<std::remove_cvref_t<decltype(value)>>(line, name); };
    if (name == "recipe") {
      all.recipe = detail::word_of(line);
    } else if (name == "compressor") {
      all.compressor = detail::word_of(line);
    } else if (name == "ranks") {
      read(all.ranks);
    } else if (name == "threads") {
      read(all.threads);
    } else if (name == "b1") {
      read(all.beta1);
    } else if (name == "b2") {
      read(all.beta2);
    } else if (name == "eps") {
      read(all.epsilon);
    } else if (name == "max_gradient_norm") {
      read(all.max_gradient_norm);
    } else if (name == "seed") {
      read(all.seed);
    } else if (name == "warm_up_steps") {
      read(all.warm_up_steps);
    } else if (name == "update_bound") {
      read(all.update_bound);
    } else if (name == "tensor") {
      tensor_settings tensor;
      int adapt = 1, compress = 1;
      read(tensor.size);
      read(tensor.weight_decay);
      read(adapt);
      read(compress);
      tensor.adapt = adapt != 0;
      tensor.compress = compress != 0;
      all.tensors.push_back(tensor);
    } else {
      throw std::invalid_argument("slamb: the library of slamb.jax knows no setting '" + std::string(name) +
                                  "'; it and the Python module are of different versions: install slamb-jax again");
    }
  }
  if (all.ranks < 1) throw std::invalid_argument("slamb: there are " + std::to_string(all.ranks) + " ranks");
  return all;
}

}  // namespace slamb_jax
