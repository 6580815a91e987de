// Runs the oracle over traces, and writes new traces with it: of any world, shapes and settings.
#pragma once

#include <stdlib.h>

#include <bit>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "generate.hpp"
#include "oracle.hpp"
#include "trace.hpp"

namespace test_support {

/// A folder of its own under the system's temporary one; gone with the object.
class temporary_folder {
 public:
  temporary_folder() {
    std::string name = (std::filesystem::temp_directory_path() / "slamb-test-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("cannot make a temporary folder " + name);
    path_ = name;
  }
  temporary_folder(const temporary_folder&) = delete;
  temporary_folder& operator=(const temporary_folder&) = delete;
  ~temporary_folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }

  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

inline void write_file(const std::filesystem::path& path, std::span<const char> bytes) {
  std::ofstream file(path, std::ios::binary);
  if (!file.write(bytes.data(), static_cast<std::streamsize>(bytes.size())).flush())
    throw std::runtime_error("cannot write " + path.string());
}

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

/// What the trace of an AdamW or LAMB says, for the oracle.
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

/// What the trace of a SLAMB says, for the oracle.
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

namespace detail {

inline std::vector<oracle::vector> gradients_of(const trace& given, std::size_t step) {
  std::vector<oracle::vector> gradients;
  for (int rank = 0; rank < given.settings.world; ++rank) gradients.push_back(widened(given.gradient(step, rank)));
  return gradients;
}

}  // namespace detail

/// [steps][world][n] the parameters that the oracle reaches from the trace's start and gradients.
inline std::vector<double> run_oracle(const trace& given, const oracle::settings& how) {
  oracle::adam_family run(oracle_tensors(given.settings), widened(given.start), how);
  std::vector<double> reached;
  for (std::size_t step = 0; step < given.settings.steps; ++step) {
    run.step(given.settings.number("lr"), detail::gradients_of(given, step));
    for (int rank = 0; rank < given.settings.world; ++rank)
      reached.insert(reached.end(), run.parameters().begin(), run.parameters().end());
  }
  return reached;
}

inline std::vector<double> run_oracle(const trace& given, const oracle::slamb_settings& how) {
  oracle::slamb run(oracle_tensors(given.settings), widened(given.start), given.settings.world, how);
  std::vector<double> reached;
  for (std::size_t step = 0; step < given.settings.steps; ++step) {
    const auto mask = given.mask(step);
    run.step(given.settings.number("lr"), detail::gradients_of(given, step), {mask.begin(), mask.end()});
    for (int rank = 0; rank < given.settings.world; ++rank)
      reached.insert(reached.end(), run.parameters(rank).begin(), run.parameters(rank).end());
  }
  return reached;
}

/// Writes a trace into a folder that is there: the text as trace.txt, made-up start, gradients and masks, and the
/// parameters that the oracle reaches with them.
///
/// @param k  probability that an element is selected
inline void record_trace(const std::filesystem::path& folder, const std::string& text, std::uint64_t seed,
                         double k = 0.3) {
  write_file(folder / "trace.txt", text);
  trace made;
  made.settings = read_trace_settings(folder / "trace.txt");
  const std::size_t n = made.settings.elements;
  made.start = random_parameters(seed, n);
  for (std::size_t step = 0; step < made.settings.steps; ++step) {
    for (int rank = 0; rank < made.settings.world; ++rank) {
      const auto gradient = random_gradient(seed, step, rank, n);
      made.gradients.insert(made.gradients.end(), gradient.begin(), gradient.end());
    }
    const auto mask = random_mask(seed, step, n, k);
    made.masks.insert(made.masks.end(), mask.begin(), mask.end());
  }
  const std::vector<double> reached = made.settings.algorithm == "slamb"
                                          ? run_oracle(made, oracle_slamb_settings(made.settings))
                                          : run_oracle(made, oracle_settings(made.settings));
  made.expected.assign(reached.size(), 0.0F);
  for (std::size_t i = 0; i < reached.size(); ++i) made.expected[i] = static_cast<float>(reached[i]);

  write_floats(folder / "params0.f32", made.start);
  write_floats(folder / "grads.f32", made.gradients);
  write_floats(folder / "params.f32", made.expected);
  if (made.settings.algorithm == "slamb") {
    const std::vector<char> bytes(made.masks.begin(), made.masks.end());
    write_file(folder / "masks.u8", bytes);
  }
}

}  // namespace test_support
