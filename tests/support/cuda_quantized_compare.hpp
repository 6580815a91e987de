// Compares the kernels of the compressed exchange with the host's executor. Memory must be equal byte for byte. Sums may differ
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
    const float its = slamb::detail::cuda::load_scale(device, i), expected = slamb::detail::cuda::load_scale(host, i);
    const bool is_same = std::memcmp(&its, &expected, sizeof(float)) == 0;
    if (!is_same && !(is_sum && std::abs(its - expected) <= 0x1p-23F * std::abs(expected)))
      return std::to_string(i) + ": " + std::to_string(its) + " for " + std::to_string(expected);
    slamb::detail::cuda::store_scale(device, i, expected);
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
    typename Case::rank r(setup, quantizer);
    host_side<Case> side;
    side.mark_active(r);
    send_all<Case>(
        side, r, [] {}, [] {});
    const auto message = r.message(r.wire.sent, static_cast<std::uint64_t>(says ? setup.rank : me));
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

/// Encodes one message on both sides. Where codes depend on the scale, the scales are compared first.
template <class Case, class Stage, class Settle>
void encode_both(typename Case::rank& host, typename Case::rank& device, const Stage& stage, const Settle& settle) {
  using quantizer = typename Case::quantizer;
  using slamb::detail::encode_mode;
  constexpr bool first = slamb::detail::shared_scales<quantizer>::are_known_first;
  for (quantized_memory* r : {static_cast<quantized_memory*>(&host), static_cast<quantized_memory*>(&device)})
    r->statistic.assign(r->statistic.size(), -1.0);
  stage(std::integral_constant < encode_mode, first ? encode_mode::statistics : encode_mode::statistics_and_codes > {});
  if constexpr (slamb::detail::cuda::scale_traits<quantizer>::is_shared)
    require_none(far_sum(device.statistic, host.statistic));
  require_same(device, host);
  settle();
  require_same(device, host);
  if constexpr (first) {
    stage(std::integral_constant<encode_mode, encode_mode::codes>{});
    require_same(device, host);
  }
}

/// Runs one exchange on both backends, and compares memory after each stage.
template <class Case>
void compare(const quantized_setup& setup, const typename Case::quantizer& quantizer) {
  constexpr slamb::segment_scale kind = Case::quantizer::scale;
  typename Case::rank host(setup, quantizer), device(setup, quantizer);
  host_side<Case> host_does;
  device_side<Case> device_does;
  const std::uint64_t scales = host.wire.codes_at / sizeof(float);
  require_same(device, host);
  host_does.mark_active(host), device_does.mark_active(device);
  require_same(device, host);
  require(device.counts == host.counts);

  mark(host, host.wire.sent, host.wire.ranks), mark(device, device.wire.sent, device.wire.ranks);
  encode_both<Case>(
      host, device,
      [&]<slamb::detail::encode_mode Work>(std::integral_constant<slamb::detail::encode_mode, Work>) {
        require(host_does.template send<Work>(host));
        require(device_does.template send<Work>(device));
      },
      [&] {
        host_does.finish_sent(host), device_does.finish_sent(device);
        for (std::uint64_t i = 0; i < host.wire.ranks; ++i)
          require_none(settle_scales(kind, device.message(device.wire.sent, i).data(),
                                     host.message(host.wire.sent, i).data(), scales));
      });

  const auto received = messages_of_others<Case>(setup, quantizer, false);
  arrive(host, received), arrive(device, received);
  mark(host, host.wire.averaged, 1), mark(device, device.wire.averaged, 1);
  encode_both<Case>(
      host, device,
      [&]<slamb::detail::encode_mode Work>(std::integral_constant<slamb::detail::encode_mode, Work>) {
        host_does.template average<Work>(host);
        device_does.template average<Work>(device);
      },
      [&] {
        host_does.finish_averaged(host), device_does.finish_averaged(device);
        require_none(settle_scales(kind, device.wire.averaged, host.wire.averaged, scales));
      });

  const auto said = messages_of_others<Case>(setup, quantizer, true);
  arrive(host, said), arrive(device, said);
  say(host, setup.rank), say(device, setup.rank);
  require_none(far_sum(device_does.measure(device), host_does.measure(host)));
  require_none(far_sum(device_does.receive(device), host_does.receive(host)));
  require_same(device, host);
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
