// A step's calls of the device, grouped by name. Plain C++: needs no nvcc.
#pragma once

#include <algorithm>
#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "median.hpp"
#include "watched_device.hpp"

namespace bench {

/// All launches of one kernel in a step, or all its calls of another kind.
struct pass_result {
  std::string name;
  std::size_t calls = 0;
  double seconds = 0.0;           ///< of all calls together
  std::optional<double> bytes{};  ///< of all calls together, per element of the model; empty: not counted
};

/// Bytes of a call, per element of the model; empty: not counted.
///
/// @param tiles  of the model
/// @param payload  the fraction of the elements that SLAMB sends
inline std::optional<double> bytes_of(const device_call& call, std::size_t tiles, double payload, std::size_t ranks) {
  if (!call.bytes.is_known) return std::nullopt;
  const double covered =
      call.last_tile == 0 ? 1.0 : static_cast<double>(call.last_tile - call.first_tile) / static_cast<double>(tiles);
  return covered * (call.bytes.element + call.bytes.sent * payload) + call.bytes.own / static_cast<double>(ranks);
}

/// Groups calls by name, in the order of each name's first call.
///
/// @param samples  [steps] the calls of the same step, measured several times; times are medians over them
/// @param payload  the fraction of the elements that SLAMB sends
inline std::vector<pass_result> passes_of(const std::vector<std::vector<timed_call>>& samples, double payload,
                                          std::size_t ranks) {
  std::vector<pass_result> passes;
  if (samples.empty()) return passes;
  std::size_t tiles = 1;
  for (const auto& [call, seconds] : samples.front()) tiles = std::max(tiles, call.last_tile);
  for (const auto& [call, seconds] : samples.front()) {
    auto at = std::ranges::find(passes, *call.name, &pass_result::name);
    if (at == passes.end()) at = passes.insert(at, {.name = *call.name, .bytes = 0.0});
    const std::optional<double> bytes = bytes_of(call, tiles, payload, ranks);
    at->calls += 1;
    at->bytes = at->bytes && bytes ? std::optional(*at->bytes + *bytes) : std::nullopt;
  }
  std::map<std::string, std::vector<double>> seconds_of;  // [steps]
  for (const auto& calls : samples) {
    std::map<std::string, double> sum;
    for (const auto& [call, seconds] : calls) sum[*call.name] += seconds;
    for (const auto& [name, seconds] : sum) seconds_of[name].push_back(seconds);
  }
  for (pass_result& pass : passes) pass.seconds = median(seconds_of[pass.name]);
  return passes;
}

}  // namespace bench
