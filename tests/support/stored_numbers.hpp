// What saved states have of arrays in sixteen and eight bits, against exact numbers: from the definitions in
// docs/algorithms/precision.md, without the library's code.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "slamb/core/detail/hash.hpp"
#include "slamb/core/parameter.hpp"
#include "slamb/detail/state/state_bytes.hpp"
#include "support/generate.hpp"

namespace test_support::stored_numbers {

inline constexpr std::size_t block = 256, tile = 8192;
inline const std::vector<std::size_t> sizes{1, 255, 256, 257, tile + 300, 2 * tile};

/// The places of a tensor in a state array.
inline std::size_t padded_size(std::size_t size) { return (size + 15) / 16 * 16; }

/// The bytes of a part of a saved state: docs of detail/state/state_bytes.hpp.
inline std::vector<std::byte> part_of(const std::vector<std::byte>& state, const std::string& name) {
  std::size_t at = slamb::detail::state_text_bytes + sizeof(slamb::detail::state_header);
  while (at + sizeof(slamb::detail::part_header) < state.size()) {
    slamb::detail::part_header its;
    std::memcpy(&its, state.data() + at, sizeof(its));
    at += sizeof(its);
    if (its.name == slamb::detail::hash_of(name)) {
      const auto first = state.begin() + static_cast<std::ptrdiff_t>(at);
      return {first, first + static_cast<std::ptrdiff_t>(its.bytes)};
    }
    at += static_cast<std::size_t>((its.bytes + 7) / 8 * 8);
  }
  return {};
}
template <class T>
std::vector<T> values_of(const std::vector<std::byte>& state, const std::string& name) {
  const std::vector<std::byte> bytes = part_of(state, name);
  std::vector<T> all(bytes.size() / sizeof(T));
  if (!all.empty()) std::memcpy(all.data(), bytes.data(), all.size() * sizeof(T));
  return all;
}

/// A model of float tensors, with gradients of very different sizes within a block.
struct model {
  std::vector<std::vector<float>> data, gradients;
  std::vector<slamb::parameter> tensors;

  model() {
    test_support::random_source source(5);
    for (const std::size_t size : sizes) {
      data.emplace_back(size);
      gradients.emplace_back(size);
      for (float& p : data.back()) p = static_cast<float>(source.below(2000)) * 1e-3F - 1.0F;
    }
    for (std::size_t l = 0; l < sizes.size(); ++l)
      tensors.push_back({.data = data[l].data(), .gradient = gradients[l].data(), .size = sizes[l]});
  }
  void set_gradients(std::size_t t) {
    test_support::random_source source(100 + t);
    for (std::vector<float>& gradient : gradients)
      for (std::size_t i = 0; i < gradient.size(); ++i) {
        const double size = std::pow(10.0, -static_cast<double>(i % 6));
        gradient[i] = static_cast<float>(size * (static_cast<double>(source.below(20001)) / 1e4 - 1.0));
        if (i % 19 == 3) gradient[i] = 0.0F;
      }
  }
};

/// The number in [0, 1) by which array number `number` of a list of storage is rounded, from the draw r = 256 a + b of the parameter:
/// precision.md (8).
inline double uniform_of_array(std::size_t number, std::uint32_t r) {
  const std::uint32_t a = r >> 8, b = r & 0xFFU;
  if (number == 0) return (b * 256 + a) / 65536.0;
  std::uint32_t product = b << (number - 1);  // of polynomials; then its remainder by x^8 + x^4 + x^3 + x^2 + 1
  for (int power = 31; power >= 8; --power)
    if ((product >> power & 1U) != 0) product ^= std::uint32_t{0x11D} << (power - 8);
  return ((a ^ product) * 256 + b) / 65536.0;
}

/// A training that is resumed from a saved state must go on with the same bits. Returns the state.
template <class Optimizer>
std::vector<std::byte> check_resumed_training() {
  constexpr double rate = 0.01;
  model whole, resumed;
  Optimizer of_whole(whole.tensors), of_resumed(resumed.tensors);
  const auto step = [](model& m, Optimizer& its, std::size_t t) {
    m.set_gradients(t);
    its.step(rate);
  };
  for (std::size_t t = 0; t < 3; ++t) step(whole, of_whole, t);
  std::vector<std::byte> state;
  of_whole.save_state(slamb::detail::appending_to(state), {.with_parameters = true});
  of_resumed.load_state(state);
  CHECK(resumed.data == whole.data);
  for (std::size_t t = 3; t < 6; ++t) {
    step(whole, of_whole, t);
    step(resumed, of_resumed, t);
  }
  CHECK(resumed.data == whole.data);
  CHECK(of_whole.save_state() == of_resumed.save_state());
  return state;
}

/// The numbers of codes 0, 1, …: as tests/core/eight_bits.cpp.
inline std::vector<double> map_of(bool is_signed) {
  std::vector<double> all{0.0};
  const int powers = is_signed ? 7 : 8;
  for (int power = 0; power < powers; ++power)
    for (int k = 0; k < 1 << power; ++k)
      all.push_back(std::pow(10.0, power - (powers - 1)) * (0.1 + 0.9 * (k + 0.5) / (1 << power)));
  return all;
}

/// True if `got` is the lower of two neighbours of `place`, or the upper one, as the draw says. Any of them where the library, which
/// computes in floats, may decide otherwise.
/// @param error  of the library's place
inline bool is_drawn(double place, double uniform, double got, double error) {
  const double doubt = 1e-3 + error;
  return got <= std::floor(place + uniform + doubt) && got >= std::floor(place + uniform - doubt);
}

/// The largest error of a sum of floats of these sizes.
inline double float_error(double a, double b) { return 3e-7 * (std::abs(a) + std::abs(b)); }

/// The numbers that a saved state has in eight bits, of one tensor.
struct stored_blocks {
  std::vector<std::uint8_t> codes;
  std::vector<float> scales;
};

/// Checks codes against exact numbers. Returns the numbers of the codes.
/// @param errors   of the library's numbers
/// @param uniform  uniform(i): the number in [0, 1) by which element i is rounded
template <class Uniform>
std::vector<double> checked_blocks(const stored_blocks& stored, const std::vector<double>& exact,
                                   const std::vector<double>& errors, bool is_signed, const Uniform& uniform) {
  static const std::vector<double> maps[2] = {map_of(false), map_of(true)};
  const std::vector<double>& map = maps[is_signed ? 1 : 0];
  std::vector<double> numbers(exact.size());
  for (std::size_t first = 0; first < exact.size(); first += block) {
    const std::size_t past = std::min(exact.size(), first + block);
    double largest = 0.0;
    for (std::size_t i = first; i < past; ++i) largest = std::max(largest, std::abs(exact[i]));
    const double scale = largest / map.back();
    REQUIRE(std::abs(static_cast<double>(stored.scales[first / block]) - scale) <= 1e-5 * scale);
    for (std::size_t i = first; i < past; ++i) {
      const std::uint32_t code = stored.codes[i], magnitude = code & (is_signed ? 0x7FU : 0xFFU);
      const double sign = is_signed && (code & 0x80U) != 0 ? -1.0 : 1.0;
      const double y = scale == 0.0 ? 0.0 : std::min(std::abs(exact[i]) / scale, map.back());
      const auto above = static_cast<std::size_t>(std::upper_bound(map.begin(), map.end() - 1, y) - map.begin());
      const double place = static_cast<double>(above - 1) + (y - map[above - 1]) / (map[above] - map[above - 1]);
      if (!is_signed && y > 0.0 && place < 1.0)
        REQUIRE(magnitude == 1);
      else
        REQUIRE(is_drawn(place, uniform(i), magnitude,
                         scale == 0.0 ? 0.0 : errors[i] / scale / (map[above] - map[above - 1])));
      if (magnitude != 0) REQUIRE(sign * exact[i] > -errors[i]);
      numbers[i] = sign * map[magnitude] * static_cast<double>(stored.scales[first / block]);
    }
  }
  return numbers;
}

/// The codes of tensor l of `sizes` in a state.
inline stored_blocks blocks_of(const std::vector<std::byte>& state, const std::string& array, std::size_t l) {
  const std::vector<std::uint8_t> all = values_of<std::uint8_t>(state, array);
  const std::vector<float> all_scales = values_of<float>(state, "scales of the " + array);
  std::size_t first = 0, first_tile = 0;
  for (std::size_t k = 0; k < l; ++k) {
    first += padded_size(sizes[k]);
    first_tile += (sizes[k] + tile - 1) / tile;
  }
  const auto of_tensor = std::span(all).subspan(first, sizes[l]);
  const auto of_tiles = std::span(all_scales).subspan(first_tile * (tile / block));
  return {{of_tensor.begin(), of_tensor.end()}, {of_tiles.begin(), of_tiles.end()}};
}

/// Checks a bfloat16 against an exact number. Returns its number.
inline double checked_bfloat16(std::uint16_t bits, double exact, double error, double uniform) {
  int exponent = 0;
  std::frexp(exact, &exponent);
  const double unit = std::ldexp(1.0, std::max(exponent - 1, -126) - 7);
  const auto number = static_cast<double>(std::bit_cast<float>(std::uint32_t{bits} << 16));
  REQUIRE(is_drawn(std::abs(exact) / unit, uniform, std::abs(number) / unit, error / unit));
  return number;
}

}  // namespace test_support::stored_numbers
