// Replays of traces through the library: recorded runs, runs made up with the oracle, and all cases that must fail.
#include "support/replay_all.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <filesystem>
#include <limits>
#include <sstream>
#include <string>
#include <vector>

#include "support/files.hpp"
#include "support/one_bit_record.hpp"
#include "support/record.hpp"
#include "support/said.hpp"

#ifndef SLAMB_TEST_DATA
#error "define SLAMB_TEST_DATA as the path of tests/data"
#endif

namespace properties_replay_tests {
namespace {

using test_support::contains;
using test_support::read_trace;
using test_support::record_trace;
using test_support::replay;
using test_support::temporary_folder;
using test_support::trace;

trace recorded(const std::string& name) { return read_trace(std::filesystem::path(SLAMB_TEST_DATA) / name); }

std::string path_of(const std::string& name) { return (std::filesystem::path(SLAMB_TEST_DATA) / name).string(); }

/// The text of a trace with shapes that cross the ends of vectors.
std::string text_of(const std::string& algorithm, int world, const std::string& settings) {
  return "algorithm " + algorithm + "\nworld " + std::to_string(world) +
         "\nsteps 12\nlr 0.02\nbeta1 0.8\nbeta2 0.95\neps 1e-5\nweight_decay 0.03\n" + settings +
         "tensor 17 3\ntensor 1\ntensor 33\ntensor 2 3 4 5\ntensor 1 1\ntensor 15 1\n";
}

std::string slamb_settings(const std::string& rescaling, int local_steps) {
  return "rescaling " + rescaling + "\nbeta3 0.9\nlocal_steps " + std::to_string(local_steps) +
         "\ndense_below 20\ntrust_min 0.02\ntrust_max 3\n";
}

double error_of_recorded(const std::string& text, double k = 0.3) {
  const temporary_folder folder;
  record_trace(folder.path(), text, 5, k);
  return replay(read_trace(folder.path()));
}

double error_of_recorded_one_bit(const std::string& text) {
  const temporary_folder folder;
  test_support::record_one_bit_trace(folder.path(), text, 6);
  return replay(read_trace(folder.path()));
}

struct outcome {
  int code;
  std::string out, err;
};

outcome replayed(const std::vector<std::string>& folders, double tolerance) {
  std::ostringstream out;
  std::ostringstream err;
  const int code = test_support::replay_all(folders, tolerance, out, err);
  return {code, out.str(), err.str()};
}

}  // namespace

TEST_CASE("replay: the library reaches the recorded parameters") {
  int count = 0;
  for (const auto& folder : std::filesystem::directory_iterator(SLAMB_TEST_DATA)) {
    const std::string name = folder.path().filename().string();
    CAPTURE(name);
    CHECK(replay(recorded(name)) <= 1e-5);
    ++count;
  }
  CHECK(count >= 12);
}

TEST_CASE("replay: AdamW and LAMB reach the oracle's parameters, for every world size") {
  for (const int world : {1, 2, 3, 7}) {
    CAPTURE(world);
    CHECK(error_of_recorded(text_of("adamw", world, "bias_correction 1\n")) <= 1e-5);
    CHECK(error_of_recorded(text_of("lamb", world, "bias_correction 1\n")) <= 1e-5);
    CHECK(error_of_recorded(text_of("lamb", world, "bias_correction 0\n")) <= 1e-5);
    CHECK(error_of_recorded(text_of("lamb", world, "bias_correction 1\ntrust_min 0.05\ntrust_max 0.1\n")) <= 1e-5);
  }
}

TEST_CASE("replay: SLAMB reaches the oracle's parameters, for every world size") {
  for (const int world : {1, 2, 3, 8}) {
    for (const std::string form : {"product", "blend"}) {
      CAPTURE(world);
      CAPTURE(form);
      CHECK(error_of_recorded(text_of("slamb", world, slamb_settings(form, 1))) <= 1e-5);
      CHECK(error_of_recorded(text_of("slamb", world, slamb_settings(form, 5))) <= 1e-5);
      CHECK(error_of_recorded(text_of("slamb", world, slamb_settings(form, 100))) <= 1e-5);
      CHECK(error_of_recorded(text_of("slamb", world, slamb_settings(form, 5) + "bias_correction 0\n")) <= 1e-5);
      CHECK(error_of_recorded(text_of("slamb", world, slamb_settings(form, 5)), 0.0) <= 1e-5);
      CHECK(error_of_recorded(text_of("slamb", world, slamb_settings(form, 5)), 1.0) <= 1e-5);
    }
  }
}

TEST_CASE("replay: 1-bit Adam, 1-bit LAMB and 0/1 Adam reach the oracle's parameters, for every world size") {
  const std::string ratio =
      "trust_min 0.02\ntrust_max 3\ntrust_beta 0.8\nfactor_max 2\nfactor_min 0.7\nfactor_threshold 0.2\n";
  const std::string intervals =
      "variance_freeze_step 5\nvariance_update_scaler 1\nlocal_step_scaler 2\nlocal_step_clipper 4\n";
  for (const int world : {1, 2, 3, 8}) {
    for (const std::string scales : {"scales fused\n", "scales per_tensor\n"}) {
      CAPTURE(world);
      CAPTURE(scales);
      CHECK(error_of_recorded_one_bit(text_of("one_bit_adam", world, "warmup_steps 4\n" + scales)) <= 1e-5);
      CHECK(error_of_recorded_one_bit(text_of("one_bit_adam", world, "warmup_steps 100\n" + scales)) <= 1e-5);
      CHECK(error_of_recorded_one_bit(text_of("one_bit_lamb", world, "warmup_steps 1\n" + ratio + scales)) <= 1e-5);
      CHECK(error_of_recorded_one_bit(text_of("one_bit_lamb", world, "warmup_steps 6\n" + ratio + scales)) <= 1e-5);
      CHECK(error_of_recorded_one_bit(text_of("zero_one_adam", world, intervals + scales)) <= 1e-5);
    }
  }
}

TEST_CASE("replay: scalars and tensors of 0 elements, also without other tensors") {
  for (const std::string tensors : {"tensor\ntensor 7 0\n", "tensor 0\n"}) {
    for (const int world : {1, 3}) {
      CAPTURE(tensors);
      CAPTURE(world);
      const auto text = [&](const std::string& algorithm, const std::string& settings) {
        const std::string all = text_of(algorithm, world, settings);
        return tensors == "tensor 0\n" ? all.substr(0, all.find("tensor")) + tensors : all + tensors;
      };
      CHECK(error_of_recorded(text("adamw", "bias_correction 1\n")) <= 1e-5);
      CHECK(error_of_recorded(text("lamb", "bias_correction 1\n")) <= 1e-5);
      CHECK(error_of_recorded(text("slamb", slamb_settings("product", 5))) <= 1e-5);
      CHECK(error_of_recorded(text("slamb", slamb_settings("blend", 5))) <= 1e-5);
      CHECK(error_of_recorded_one_bit(text("one_bit_adam", "warmup_steps 4\nscales fused\n")) <= 1e-5);
    }
  }
}

TEST_CASE("replay: finds a setting that differs from the recorded one") {
  trace given = recorded("slamb-product");
  given.settings.numbers["beta3"] = 0.95;
  CHECK(replay(given) > 1e-4);
  given = recorded("lamb");
  given.settings.numbers["bias_correction"] = 0.0;
  CHECK(replay(given) > 1e-4);
  const auto error_with = [](const std::string& name, const char* key, double value) {
    trace changed = recorded(name);
    changed.settings.numbers.at(key) = value;
    return replay(changed);
  };
  CHECK(error_with("one-bit-adam-fused", "warmup_steps", 6.0) > 1e-4);
  CHECK(error_with("one-bit-lamb", "trust_beta", 0.8) > 1e-4);
  CHECK(error_with("one-bit-lamb", "trust_max", 0.015) > 1e-4);
  CHECK(error_with("one-bit-lamb", "factor_threshold", 0.02) > 1e-4);
  CHECK(error_with("zero-one-adam", "variance_freeze_step", 13.0) > 1e-4);
  CHECK(error_with("zero-one-adam", "variance_update_scaler", 4.0) > 1e-4);
  CHECK(error_with("zero-one-adam", "local_step_scaler", 5.0) > 1e-4);
  CHECK(error_with("zero-one-adam", "local_step_clipper", 2.0) > 1e-4);
  for (const std::string name : {"one-bit-adam-fused", "one-bit-lamb", "zero-one-adam"}) {
    given = recorded(name);
    given.settings.words.at("scales") = given.settings.word("scales") == "fused" ? "per_tensor" : "fused";
    CHECK(replay(given) > 1e-4);
  }
}

TEST_CASE("replay: an algorithm without an optimizer is rejected by name") {
  trace given = recorded("lamb");
  given.settings.algorithm = "lion";
  CHECK_THROWS_WITH(replay(given), "this version has no optimizer for the algorithm lion");
}

TEST_CASE("replay: finds one wrong parameter at the last step and rank") {
  trace given = recorded("adamw");
  given.expected.back() += 1.0F;
  CHECK(replay(given) > 1e-4);
}

TEST_CASE("replay: NaN never passes") {
  trace given = recorded("adamw");
  given.expected[5] = std::numeric_limits<float>::quiet_NaN();
  CHECK_FALSE(replay(given) <= 1e-4);
  given = recorded("adamw");
  given.gradients[given.start.size() + 3] = std::numeric_limits<float>::quiet_NaN();
  CHECK_THROWS(replay(given));  // the library skips the step, which a trace cannot express
}

TEST_CASE("replay: prints a line for each trace, and counts") {
  const outcome good = replayed({path_of("adamw"), path_of("lamb") + "/"}, 1e-4);
  CHECK(good.code == 0);
  CHECK(good.err == "");
  CHECK(good.out.rfind("adamw max_rel_err=", 0) == 0);
  CHECK(contains(good.out, "\nlamb max_rel_err="));
  CHECK(contains(good.out, "\n2 passed, 0 failed\n"));

  const temporary_folder folder;
  const auto off = folder.path() / "off";
  std::filesystem::create_directory(off);
  record_trace(off, text_of("adamw", 2, "bias_correction 1\n"), 1);
  auto expected = read_trace(off).expected;
  for (float& x : expected) x *= 1.001F;
  test_support::write_floats(off / "params.f32", expected);
  const outcome bad = replayed({off.string()}, 1e-4);
  CHECK(bad.code == 1);
  CHECK(contains(bad.out, "off max_rel_err=0.00"));
  CHECK(contains(bad.out, "\n0 passed, 1 failed\n"));
  CHECK(contains(bad.err, "off error: differs by more than the tolerance of 0.0001\n"));
  CHECK(replayed({off.string()}, 1e-2).code == 0);
}

TEST_CASE("replay: a trace that cannot be replayed fails, and the others still run") {
  const temporary_folder folder;
  for (const std::string name : {"refused", "wrong"}) std::filesystem::create_directory(folder.path() / name);
  record_trace(folder.path() / "refused", text_of("lamb", 1, "bias_correction 1\n"), 1);
  test_support::write_file(folder.path() / "refused" / "trace.txt",
                           text_of("one_bit_adam", 1, "warmup_steps 0\nscales fused\n"));
  record_trace(folder.path() / "wrong", text_of("lamb", 1, "bias_correction 1\n"), 1);
  test_support::write_file(folder.path() / "wrong" / "trace.txt", std::string("algorithm lamb\nworld one\n"));

  const outcome mixed = replayed({(folder.path() / "refused").string(), (folder.path() / "wrong").string(),
                                  (folder.path() / "absent").string(), "", path_of("lamb")},
                                 1e-4);
  CHECK(mixed.code == 1);
  CHECK(contains(mixed.err, "refused error: slamb: fixed_warm_up's steps = 0"));
  CHECK(contains(mixed.err, "wrong/trace.txt:2: `world` is `one`"));
  CHECK(contains(mixed.err, "absent error: "));
  CHECK(contains(mixed.err, "\n error: the name of a trace's folder is empty\n"));
  CHECK(contains(mixed.out, "lamb max_rel_err="));
  CHECK(contains(mixed.out, "\n1 passed, 4 failed\n"));
}

TEST_CASE("replay: a setting out of the optimizer's range fails with the optimizer's message") {
  trace given = recorded("lamb");
  given.settings.numbers["beta1"] = 1.5;
  CHECK_THROWS_WITH(replay(given), doctest::Contains("beta1 = 1.5"));
}

}  // namespace properties_replay_tests
