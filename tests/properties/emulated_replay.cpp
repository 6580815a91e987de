// The kernels of the CUDA backend, run on the CPU by whole optimizers: recorded runs, and runs made up with the oracle.
#include <doctest/doctest.h>

#include <filesystem>
#include <string>

#include "instances/emulated.hpp"
#include "support/one_bit_record.hpp"
#include "support/record.hpp"
#include "support/replay.hpp"

namespace properties_emulated_replay_tests {
namespace {

using test_support::read_trace;
using test_support::temporary_folder;

double error_of(const test_support::trace& given) { return test_support::replay<slamb::emulated_backend>(given); }

std::string text_of(const std::string& algorithm, int world, const std::string& settings) {
  return "algorithm " + algorithm + "\nworld " + std::to_string(world) +
         "\nsteps 9\nlr 0.02\nbeta1 0.8\nbeta2 0.95\neps 1e-5\nweight_decay 0.03\n" + settings +
         "tensor 17 3\ntensor 1\ntensor 0\ntensor 33\ntensor 2 3 4 5\ntensor 130 71\ntensor 15 1\n";
}

double error_of_recorded(const std::string& text) {
  const temporary_folder folder;
  test_support::record_trace(folder.path(), text, 5, 0.3);
  return error_of(read_trace(folder.path()));
}

double error_of_recorded_one_bit(const std::string& text) {
  const temporary_folder folder;
  test_support::record_one_bit_trace(folder.path(), text, 6);
  return error_of(read_trace(folder.path()));
}

}  // namespace

TEST_CASE("emulated replay: reaches the recorded parameters") {
  for (const std::string name : {"adamw", "lamb", "slamb-product", "slamb-blend", "one-bit-adam-fused",
                                 "one-bit-adam-per-tensor", "one-bit-lamb", "zero-one-adam"}) {
    CAPTURE(name);
    CHECK(error_of(read_trace(std::filesystem::path(SLAMB_TEST_DATA) / name)) <= 1e-5);
  }
}

TEST_CASE("emulated replay: AdamW, LAMB and SLAMB reach the oracle's parameters") {
  for (const int world : {1, 3}) {
    CAPTURE(world);
    CHECK(error_of_recorded(text_of("adamw", world, "bias_correction 1\n")) <= 1e-5);
    CHECK(error_of_recorded(text_of("lamb", world, "bias_correction 0\ntrust_min 0.05\ntrust_max 0.1\n")) <= 1e-5);
    for (const std::string form : {"product", "blend"}) {
      CAPTURE(form);
      CHECK(error_of_recorded(text_of("slamb", world,
                                      "rescaling " + form +
                                          "\nbeta3 0.9\nlocal_steps 4\ndense_below 20\ntrust_min 0.02\n"
                                          "trust_max 3\n")) <= 1e-5);
    }
  }
}

TEST_CASE("emulated replay: 1-bit Adam, 1-bit LAMB and 0/1 Adam reach the oracle's parameters") {
  const std::string ratio =
      "trust_min 0.02\ntrust_max 3\ntrust_beta 0.8\nfactor_max 2\nfactor_min 0.7\nfactor_threshold 0.2\n";
  const std::string intervals =
      "variance_freeze_step 4\nvariance_update_scaler 1\nlocal_step_scaler 2\nlocal_step_clipper 4\n";
  for (const int world : {1, 3}) {
    for (const std::string scales : {"scales fused\n", "scales per_tensor\n"}) {
      CAPTURE(world);
      CAPTURE(scales);
      CHECK(error_of_recorded_one_bit(text_of("one_bit_adam", world, "warmup_steps 4\n" + scales)) <= 1e-5);
      CHECK(error_of_recorded_one_bit(text_of("one_bit_lamb", world, "warmup_steps 3\n" + ratio + scales)) <= 1e-5);
      CHECK(error_of_recorded_one_bit(text_of("zero_one_adam", world, intervals + scales)) <= 1e-5);
    }
  }
}

}  // namespace properties_emulated_replay_tests
