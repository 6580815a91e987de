// Runs the oracles of 1-bit Adam, 1-bit LAMB and 0/1 Adam over traces, and writes new traces with them.
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

/// What the trace of a 1-bit Adam or 1-bit LAMB says, for the oracle.
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

/// What the trace of a 0/1 Adam says, for the oracle.
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

namespace detail {

template <class Oracle>
std::vector<double> run_over_trace(const trace& given, Oracle run) {
  const std::vector<double> rates(given.settings.shapes.size(), given.settings.number("lr"));
  std::vector<double> reached;
  for (std::size_t step = 0; step < given.settings.steps; ++step) {
    run.step(rates, gradients_of(given, step));
    for (int rank = 0; rank < given.settings.world; ++rank)
      reached.insert(reached.end(), run.parameters(rank).begin(), run.parameters(rank).end());
  }
  return reached;
}

template <class Oracle>
void make_gradients(trace& made, std::uint64_t seed, Oracle run) {
  const std::vector<double> rates(made.settings.shapes.size(), made.settings.number("lr"));
  std::vector<std::size_t> sizes;
  for (std::size_t i = 0; i < made.settings.shapes.size(); ++i) sizes.push_back(made.settings.size(i));
  settling settled(std::move(run));
  for (std::size_t step = 0; step < made.settings.steps; ++step) {
    auto gradients = structured_gradients(seed, step, made.settings.world, sizes);
    settled.step(rates, gradients);
    for (const auto& of_rank : gradients) made.gradients.insert(made.gradients.end(), of_rank.begin(), of_rank.end());
    for (int rank = 0; rank < made.settings.world; ++rank)
      for (const double x : settled.run().parameters(rank)) made.expected.push_back(static_cast<float>(x));
  }
}

template <class Oracle, class Settings>
Oracle oracle_at_start(const trace& given, const Settings& how) {
  return Oracle(oracle_tensors(given.settings), widened(given.start), given.settings.world, how);
}

}  // namespace detail

/// [steps][world][n] the parameters that the oracle reaches from the trace's start and gradients.
inline std::vector<double> run_oracle(const trace& given, const oracle::one_bit_settings& how) {
  return detail::run_over_trace(given, detail::oracle_at_start<oracle::one_bit>(given, how));
}

inline std::vector<double> run_oracle(const trace& given, const oracle::zero_one_settings& how) {
  return detail::run_over_trace(given, detail::oracle_at_start<oracle::zero_one_adam>(given, how));
}

/// Writes a trace of one of these algorithms into a folder that is there: the text as trace.txt, a made-up start and
/// gradients, and the parameters that the oracle reaches with them.
inline void record_one_bit_trace(const std::filesystem::path& folder, const std::string& text, std::uint64_t seed) {
  write_file(folder / "trace.txt", text);
  trace made;
  made.settings = read_trace_settings(folder / "trace.txt");
  made.start = random_parameters(seed, made.settings.elements);
  if (made.settings.algorithm == "zero_one_adam") {
    const auto how = oracle_zero_one_settings(made.settings);
    detail::make_gradients(made, seed, detail::oracle_at_start<oracle::zero_one_adam>(made, how));
  } else {
    const auto how = oracle_one_bit_settings(made.settings);
    detail::make_gradients(made, seed, detail::oracle_at_start<oracle::one_bit>(made, how));
  }
  write_floats(folder / "params0.f32", made.start);
  write_floats(folder / "grads.f32", made.gradients);
  write_floats(folder / "params.f32", made.expected);
}

}  // namespace test_support
