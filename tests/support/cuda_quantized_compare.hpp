// Compares the kernels of the compressed exchange with the host's launcher. Memory must be equal byte for byte. Sums may differ
// by rounding, because their order differs.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <type_traits>
#include <vector>

#include "support/cuda_quantized.hpp"
#include "support/cuda_quantized_sides.hpp"

namespace test_support {

inline bool is_near(double a, double b) { return a == b || std::abs(a - b) <= 1e-13 * std::abs(b); }

/// A description of the first sum that is not near, or "".
inline std::string far_sum(const std::vector<double>& device, const std::vector<double>& host) {
  for (std::size_t i = 0; i < host.size(); ++i)
    if (!is_near(device[i], host[i]))
      return std::to_string(i) + ": " + std::to_string(device[i]) + " for " + std::to_string(host[i]);
  return "";
}

/// Checks used by templates. They are not templates themselves, so that each is compiled once.
inline void require_none(const std::string& fault) { REQUIRE(fault == ""); }
inline void require(bool holds) { REQUIRE(holds); }

/// Compares scales, which may differ in the last bit if they come from sums; then gives the device the host's scales, so that
/// later stages are comparable.
/// @param floats  of a message in front of its codes: a header, and scales
inline std::string settle_scales(slamb::segment_scale kind, std::byte* device, const std::byte* host,
                                 std::uint64_t floats) {
  const bool is_sum = kind == slamb::segment_scale::l2 || kind == slamb::segment_scale::l1;
  for (std::uint64_t i = slamb::detail::wire_layout::header_bytes / sizeof(float); i < floats; ++i) {
    float& its = reinterpret_cast<float*>(device)[i];
    const float expected = reinterpret_cast<const float*>(host)[i];
    const bool is_same = std::memcmp(&its, &expected, sizeof(float)) == 0;
    if (!is_same && !(is_sum && std::abs(its - expected) <= 0x1p-23F * std::abs(expected)))
      return std::to_string(i) + ": " + std::to_string(its) + " for " + std::to_string(expected);
    its = expected;
  }
  return "";
}

/// The messages that other ranks send to this one, [ranks].
/// @param says  true: their averaged chunks; false: their signals
template <class Case>
std::vector<std::vector<std::byte>> messages_of_others(quantized_setup setup, const typename Case::quantizer& quantizer,
                                                       bool says) {
  std::vector<std::vector<std::byte>> messages;
  const int me = setup.rank;
  for (setup.rank = 0; setup.rank < setup.ranks; ++setup.rank) {
    host_side<Case> side(setup, quantizer);
    side.mark_active();
    side.send_all();
    const auto message = side.r.message(side.r.wire.sent, static_cast<std::uint64_t>(says ? setup.rank : me));
    messages.emplace_back(message.begin(), message.end());
  }
  return messages;
}

inline void arrive(quantized_memory& r, const std::vector<std::vector<std::byte>>& messages) {
  for (std::uint64_t i = 0; i < messages.size(); ++i)
    std::copy(messages[i].begin(), messages[i].end(), r.message(r.wire.received, i).begin());
}
inline void say(quantized_memory& r, int rank) {
  const auto own = r.message(r.wire.averaged, 0);
  std::copy(own.begin(), own.end(), r.message(r.wire.received, static_cast<std::uint64_t>(rank)).begin());
}

/// Compares all memory, byte for byte.
inline void require_same(const quantized_memory& device, const quantized_memory& host) {
  require_none(device.difference(host));
}

/// Runs one exchange on both backends, and compares memory after each stage. Where codes depend on the scale, the scales are
/// compared first.
template <class Case>
void compare(const quantized_setup& setup, const typename Case::quantizer& quantizer) {
  using slamb::detail::encode_mode;
  constexpr slamb::segment_scale kind = Case::quantizer::scale;
  host_side<Case> host(setup, quantizer);
  device_side<Case> device(setup, quantizer);
  const std::uint64_t scales = host.r.wire.codes_at / sizeof(float);
  const auto both = [&](const auto& stage) {
    stage(host), stage(device);
    require_same(device.r, host.r);
  };
  // Encodes one message: encode(side, mode), then finish(side) and settle().
  const auto encode_both = [&](const auto& encode, const auto& finish, const auto& settle) {
    both([&](auto& side) {
      side.r.statistic.assign(side.r.statistic.size(), -1.0);
      encode(side, std::integral_constant<encode_mode, host_side<Case>::first>());
    });
    if constexpr (slamb::detail::shared_scales<typename Case::quantizer>::exist)
      require_none(far_sum(device.r.statistic, host.r.statistic));
    finish(host), finish(device);
    settle();
    require_same(device.r, host.r);
    if constexpr (host_side<Case>::needs_scale_first)
      both([&](auto& side) { encode(side, std::integral_constant<encode_mode, encode_mode::codes>()); });
  };
  both([](auto& side) { side.mark_active(); });
  require(device.r.counts == host.r.counts);

  both([](auto& side) { side.start_sent(); });
  encode_both([](auto& side, auto mode) { require(side.template send<mode()>()); },
              [](auto& side) { side.finish_sent(); },
              [&] {
                for (std::uint64_t i = 0; i < host.r.wire.ranks; ++i)
                  require_none(settle_scales(kind, device.r.message(device.r.wire.sent, i).data(),
                                             host.r.message(host.r.wire.sent, i).data(), scales));
              });

  const auto received = messages_of_others<Case>(setup, quantizer, false);
  both([&](auto& side) {
    arrive(side.r, received);
    side.start_averaged();
  });
  encode_both([](auto& side, auto mode) { side.template average<mode()>(); },
              [](auto& side) { side.finish_averaged(); },
              [&] { require_none(settle_scales(kind, device.r.wire.averaged, host.r.wire.averaged, scales)); });

  const auto said = messages_of_others<Case>(setup, quantizer, true);
  both([&](auto& side) {
    arrive(side.r, said);
    say(side.r, setup.rank);
  });
  require_none(far_sum(device.measure(), host.measure()));
  require_none(far_sum(device.receive(), host.receive()));
  require_same(device.r, host.r);
}

/// Tensors of all lengths around groups and pieces, of which rank 0 or the last rank has some.
inline std::vector<quantized_tensor> tensors_of_all_lengths() {
  std::vector<quantized_tensor> tensors;
  for (std::size_t n = 0; n < 36; ++n) tensors.push_back({n, n % 7 != 3});
  for (const std::size_t n : {8192U, 4096U, 8191U, 4099U, 9001U, 16401U}) tensors.push_back({n, n != 4099});
  return tensors;
}
inline std::vector<std::uint8_t> some_rows(std::size_t count) {
  std::vector<std::uint8_t> rows;
  for (std::size_t i = 0; i < count; ++i) rows.push_back(i % 5 == 2 || i % 7 == 3 ? 0 : 1);
  return rows;
}
inline std::vector<quantized_tensor> tensors_with_rows() {
  return {{1000, true, some_rows(100)}, {37, true, {}},           {9100, true, some_rows(91)}, {64, true, {0, 0}},
          {17, true, some_rows(17)},    {30, false, some_rows(3)}};
}

/// Calls compare_one(setup) for chunks, alignments and masks of all kinds.
inline void for_every_setup(const std::function<void(const quantized_setup&)>& compare_one) {
  for (const int ranks : {1, 2, 8})
    for (const int rank : {0, ranks - 1}) {
      if (rank == 0 && ranks == 8) continue;
      CAPTURE(ranks);
      CAPTURE(rank);
      for (unsigned shift = 0; shift < 4; ++shift) {
        CAPTURE(shift);
        compare_one({.tensors = tensors_of_all_lengths(), .ranks = ranks, .rank = rank, .shift = shift});
      }
      compare_one(
          {.tensors = tensors_of_all_lengths(), .ranks = ranks, .rank = rank, .shift = 1, .mixed = true, .t = 3});
      compare_one({.tensors = tensors_with_rows(), .ranks = ranks, .rank = rank, .zero_aware = true, .t = 5});
      compare_one({.tensors = tensors_with_rows(), .ranks = ranks, .rank = rank, .shift = 3});
    }
}

template <class Case>
void compare_all(const typename Case::quantizer& quantizer) {
  for_every_setup([&](const quantized_setup& setup) { compare<Case>(setup, quantizer); });
}

template <class Quantizer>
Quantizer per_tensor() {
  Quantizer made;
  made.scales = slamb::scale_sharing::per_tensor;
  return made;
}
template <class Quantizer, class Pass, class Worker, class Server = Worker>
using quantized = quantized_case<Quantizer, Pass, Worker, Server>;

}  // namespace test_support
