// The recorded traces, replayed on the GPU by as many ranks as each has, on a stream each.
#include <doctest/doctest.h>

#include <filesystem>
#include <set>
#include <string>

#include "optimizers.hpp"

namespace {

struct recorded {
  const char* folder;
  double (*replay)(const test_support::trace&);
};

constexpr recorded all_recorded[] = {
    {"adamw", device_tests::replay_adamw},
    {"lamb", device_tests::replay_lamb},
    {"slamb-product", device_tests::replay_slamb_product},
    {"slamb-blend", device_tests::replay_slamb_blend},
    {"one-bit-adam-fused", device_tests::replay_one_bit_adam},
    {"one-bit-adam-per-tensor", device_tests::replay_one_bit_adam},
    {"one-bit-lamb", device_tests::replay_one_bit_lamb},
    {"zero-one-adam", device_tests::replay_zero_one_adam},
    {"bf16-adamw", device_tests::replay_bf16_adamw},
    {"bf16-lamb", device_tests::replay_bf16_lamb},
    {"bf16-slamb", device_tests::replay_bf16_slamb},
    {"bf16-one-bit-lamb", device_tests::replay_bf16_one_bit_lamb},
};

}  // namespace

TEST_CASE("device replay: reaches the recorded parameters") {
  for (const recorded& one : all_recorded) {
    CAPTURE(one.folder);
    const auto folder = std::filesystem::path(SLAMB_TEST_DATA) / one.folder;
    CHECK(one.replay(test_support::read_trace(folder)) <= 1e-5);
  }
}

TEST_CASE("device replay: replays every recorded trace") {
  std::set<std::string> named;
  for (const recorded& one : all_recorded) named.insert(one.folder);
  std::set<std::string> found;
  for (const auto& entry : std::filesystem::directory_iterator(SLAMB_TEST_DATA))
    if (entry.is_directory()) found.insert(entry.path().filename().string());
  CHECK(named == found);
}
