// Runs the oracles of 1-bit Adam, 1-bit LAMB and 0/1 Adam on traces, and writes new traces with them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "generate.hpp"
#include "one_bit_inputs.hpp"
#include "one_bit_oracle.hpp"
#include "record.hpp"
#include "trace.hpp"
#include "zero_one_oracle.hpp"

namespace test_support {

namespace detail {

inline oracle::exchange_settings exchange_settings_of(const trace_settings& settings) {
  return {.scales = settings.word("scales") == "fused" ? oracle::sharing::fused : oracle::sharing::per_tensor};
}

}  // namespace detail

/// The oracle's settings, from the trace of a 1-bit Adam or 1-bit LAMB.
inline oracle::one_bit_settings oracle_one_bit_settings(const trace_settings& settings) {
  oracle::one_bit_settings how{.beta1 = settings.number("beta1"),
                               .beta2 = settings.number("beta2"),
                               .epsilon = settings.number("eps"),
                               .warm_up = static_cast<std::uint64_t>(settings.number("warmup_steps")),
                               .exchange = detail::exchange_settings_of(settings)};
  if (settings.algorithm == "one_bit_lamb") {
    how.algorithm = oracle::method::lamb;
    how.trust_lower = settings.number("trust_min");
    how.trust_upper = settings.number("trust_max");
    how.average = settings.number("trust_beta");
    how.factor_lower = settings.number("factor_min");
    how.factor_upper = settings.number("factor_max");
    how.factor_change = settings.number("factor_threshold");
  }
  return how;
}

/// The oracle's settings, from the trace of a 0/1 Adam.
inline oracle::zero_one_settings oracle_zero_one_settings(const trace_settings& settings) {
  const auto count = [&](const char* key) { return static_cast<std::uint64_t>(settings.number(key)); };
  return {.beta1 = settings.number("beta1"),
          .beta2 = settings.number("beta2"),
          .epsilon = settings.number("eps"),
          .freeze_step = count("variance_freeze_step"),
          .update_scaler = count("variance_update_scaler"),
          .local_scaler = count("local_step_scaler"),
          .local_clipper = count("local_step_clipper"),
          .exchange = detail::exchange_settings_of(settings)};
}

/// [steps][world][n] the oracle's parameters, from the trace's start and gradients.
std::vector<double> run_oracle(const trace& given, const oracle::one_bit_settings& how);
std::vector<double> run_oracle(const trace& given, const oracle::zero_one_settings& how);

/// Writes a trace of one of these algorithms into an existing folder: the text as trace.txt, a made-up start and gradients, and
/// the parameters that the oracle reaches with them.
void record_one_bit_trace(const std::filesystem::path& folder, const std::string& text, std::uint64_t seed);

}  // namespace test_support
