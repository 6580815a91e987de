// Runs the oracle on traces, and writes new traces with it, of any world, shapes and settings.
#pragma once

#include <bit>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "files.hpp"
#include "generate.hpp"
#include "oracle.hpp"
#include "trace.hpp"

namespace test_support {

/// Writes little-endian float32.
inline void write_floats(const std::filesystem::path& path, std::span<const float> values) {
  std::vector<char> bytes;
  for (const float x : values) {
    const auto word = std::bit_cast<std::uint32_t>(x);
    for (int shift = 0; shift < 32; shift += 8) bytes.push_back(static_cast<char>(word >> shift & 0xFFU));
  }
  write_file(path, bytes);
}

inline std::vector<oracle::tensor> oracle_tensors(const trace_settings& settings) {
  std::vector<oracle::tensor> tensors;
  for (std::size_t i = 0; i < settings.shapes.size(); ++i) {
    tensors.push_back({.size = settings.size(i),
                       .dimensions = static_cast<int>(settings.shapes[i].size()),
                       .weight_decay = settings.number("weight_decay")});
  }
  return tensors;
}

/// The oracle's settings, from the trace of an AdamW or LAMB.
inline oracle::settings oracle_settings(const trace_settings& settings) {
  oracle::settings how{.algorithm = settings.algorithm == "lamb" ? oracle::method::lamb : oracle::method::adamw,
                       .beta1 = settings.number("beta1"),
                       .beta2 = settings.number("beta2"),
                       .epsilon = settings.number("eps"),
                       .bias_correction = settings.number("bias_correction") != 0.0};
  how.trust_lower = settings.number("trust_min", how.trust_lower);
  how.trust_upper = settings.number("trust_max", how.trust_upper);
  return how;
}

/// The oracle's settings, from the trace of a SLAMB.
inline oracle::slamb_settings oracle_slamb_settings(const trace_settings& settings) {
  return {.form = settings.word("rescaling") == "blend" ? oracle::rescaling::blend : oracle::rescaling::product,
          .beta1 = settings.number("beta1"),
          .beta2 = settings.number("beta2"),
          .beta3 = settings.number("beta3"),
          .epsilon = settings.number("eps"),
          .bias_correction = settings.number("bias_correction", 1.0) != 0.0,
          .local_steps = static_cast<std::uint64_t>(settings.number("local_steps")),
          .dense_below = static_cast<std::size_t>(settings.number("dense_below")),
          .trust_lower = settings.number("trust_min"),
          .trust_upper = settings.number("trust_max")};
}

/// [steps][world][n] the oracle's parameters, from the trace's start and gradients.
std::vector<double> run_oracle(const trace& given, const oracle::settings& how);
std::vector<double> run_oracle(const trace& given, const oracle::slamb_settings& how);

/// Writes a trace into an existing folder: the text as trace.txt; made-up start, gradients and masks; and the parameters that
/// the oracle reaches with them.
///
/// @param k  probability that an element is selected
void record_trace(const std::filesystem::path& folder, const std::string& text, std::uint64_t seed, double k = 0.3);

}  // namespace test_support
