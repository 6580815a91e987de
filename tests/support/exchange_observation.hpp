// A record of past compressed exchanges, element by element. Messages are decoded by the test's own code, not by the library's.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "support/code_models.hpp"
#include "support/exchange_rig.hpp"
#include "support/wire_map.hpp"

namespace test_support {

/// Properties of a quantizer and an error feedback, stated by the test and not read from them.
struct exchange_scheme {
  std::string name;
  const code_model* model = nullptr;
  slamb::segment_scale scale = slamb::segment_scale::none;
  shared_scales sharing = shared_scales::none;
  std::size_t block = 0;
  std::size_t scale_bytes = 4;  // 1: the scale is the least power of two that is not below the statistic
  bool zero_aware = false;
  bool keeps_worker_error = false;
  bool keeps_server_error = false;
  bool errors_are_narrow = false;   // bfloat16
  bool is_finished_always = false;  // the host of a device does not know of an overflow before the exchange has ended
};

/// Reads a scale or a code from the bytes of a message, by its index.
inline float scale_in(std::span<const std::byte> message, std::size_t index) {
  float scale = 0.0F;
  std::memcpy(&scale, message.subspan(wire_map::first_scale_byte + 4 * index, 4).data(), 4);
  return scale;
}
inline std::uint32_t code_in(std::span<const std::byte> codes, std::size_t index, int bits) {
  const std::size_t first = index * static_cast<std::size_t>(bits);
  std::uint32_t code = 0;
  for (std::size_t byte = (first + static_cast<std::size_t>(bits) - 1) / 8 + 1; byte-- > first / 8;)
    code = code << 8U | std::to_integer<std::uint32_t>(codes[byte]);
  return bits == 32 ? code : (code >> (first % 8)) & ((1U << bits) - 1U);
}

/// Past exchanges, and quantities derived from them.
struct observation {
  const exchange_setup& setup;
  exchange_scheme scheme;
  exchange_history history;
  wire_map map;
  std::vector<char> left_out;  // [n] elements that take no part in the exchange

  observation(const exchange_setup& exchanged, exchange_scheme how, exchange_history happened)
      : setup(exchanged), scheme(std::move(how)), history(std::move(happened)), map(map_of(exchanged, scheme)) {
    for (const tensor_spec& l : setup.tensors)
      for (std::size_t i = 0; i < l.size; ++i) {
        const bool counts = l.options.rows.empty() || l.options.rows[i / (l.size / l.options.rows.size())] != 0;
        const bool moves = !scheme.zero_aware || setup.variance.empty() || setup.variance[left_out.size()] != 0.0F;
        left_out.push_back(l.options.compress && !(counts && moves) ? 1 : 0);
      }
  }

  bool is_active() const { return setup.world > 1 || setup.on_single_rank; }
  std::size_t ranks() const { return map.ranks(); }
  std::size_t elements() const { return map.places.size(); }
  bool is_compressed(std::size_t j) const { return map.places[j].owner != wire_place::whole; }
  bool takes_part(std::size_t j) const { return is_compressed(j) && left_out[j] == 0; }
  bool is_done(std::size_t t) const { return history[t][0].done; }

  double signal(std::size_t t, std::size_t rank, std::size_t j) const {
    return static_cast<double>(setup.gradients[t][rank][j]);
  }
  double result(std::size_t t, std::size_t j) const { return static_cast<double>(history[t][0].result[j]); }

  /// e and s after `exchanges` exchanges. An error that is not kept is 0, as are all errors on a single rank that does not
  /// encode.
  double worker_error(std::size_t exchanges, std::size_t rank, std::size_t j) const {
    if (!scheme.keeps_worker_error || !is_active() || exchanges == 0) return 0.0;
    return static_cast<double>(history[exchanges - 1][rank].worker_error[j]);
  }
  double server_error(std::size_t exchanges, std::size_t j) const {
    if (!scheme.keeps_server_error || !is_active() || exchanges == 0) return 0.0;
    return static_cast<double>(history[exchanges - 1][map.places[j].owner].server_error[map.places[j].code]);
  }

  /// The values that a rank encoded, in single precision: the sum of two numbers, rounded once.
  std::vector<double> values_sent(std::size_t t, std::size_t rank) const {
    std::vector<double> values(elements());
    for (std::size_t j = 0; j < values.size(); ++j)
      values[j] = static_cast<double>(setup.gradients[t][rank][j] + static_cast<float>(worker_error(t, rank, j)));
    return values;
  }

  std::span<const std::byte> message(const std::vector<std::byte>& messages, std::size_t owner) const {
    const std::size_t bytes = map.message_bytes(scheme.model->bits);
    return std::span<const std::byte>(messages).subspan(owner * bytes, bytes);
  }
  double scale_of(const std::vector<std::byte>& messages, std::size_t j) const {
    if (scheme.sharing == shared_scales::none) return 1.0;
    const std::span<const std::byte> from = message(messages, map.places[j].owner);
    if (scheme.scale_bytes == 4) return static_cast<double>(scale_in(from, map.places[j].scale));
    const auto exponent = std::to_integer<int>(from[wire_map::first_scale_byte + map.places[j].scale]);
    return exponent == 0 ? 0.0 : std::ldexp(1.0, exponent - 127);
  }
  double decoded(const std::vector<std::byte>& messages, std::size_t j) const {
    const auto codes = message(messages, map.places[j].owner).subspan(map.first_code_byte());
    return scheme.model->decoded(code_in(codes, map.places[j].code, scheme.model->bits), scale_of(messages, j));
  }

 private:
  static wire_map map_of(const exchange_setup& setup, const exchange_scheme& scheme) {
    std::vector<mapped_tensor> tensors;
    for (const tensor_spec& l : setup.tensors) tensors.push_back({l.size, l.options.compress});
    return {tensors, static_cast<std::size_t>(setup.world), scheme.sharing, scheme.block, scheme.scale_bytes};
  }
};

}  // namespace test_support
