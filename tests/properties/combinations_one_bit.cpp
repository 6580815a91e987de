// 1-bit Adam, 1-bit LAMB and 0/1 Adam with every quantizer: all find the minimum of a loss of which each rank sees another part.
#include <doctest/doctest.h>

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "support/convergence.hpp"

namespace properties_combinations_one_bit_tests {
namespace {

using slamb::host_backend;
using slamb::thread_communicator;
using test_support::left_after;
using test_support::missed;
using test_support::reached;

// The warm-up of slamb_train. It looks at the variance only after 1000 steps.
template <class ErrorFeedback, class TrustRatio, class Compressor>
double left_of_one_bit(const Compressor& c) {
  return left_after<
      slamb::one_bit_adam<Compressor, ErrorFeedback, TrustRatio, slamb::automatic_warm_up, thread_communicator>>(
      {.weight_decay = 0.0, .warm_up = {.least_steps = 100, .most_steps = 100}, .compressor = c}, 0.01);
}

template <class ErrorFeedback, class Compressor>
double left_of_zero_one(const Compressor& c) {
  return left_after<slamb::zero_one_adam<Compressor, ErrorFeedback, thread_communicator>>(
      {.weight_decay = 0.0, .variance_schedule = {100, 4}, .local_schedule = {100, 4}, .compressor = c}, 0.01);
}

}  // namespace

TEST_CASE("combinations: 1-bit Adam, 1-bit LAMB and 0/1 Adam reach the minimum with every quantizer") {
  using slamb::two_sided;
  test_support::for_each_quantizer([](const std::string& name, const auto& compressor) {
    CAPTURE(name);
    CHECK(left_of_one_bit<two_sided<>, slamb::unit_trust_ratio>(compressor) < reached);
    CHECK(left_of_one_bit<two_sided<>, slamb::frozen_trust_ratio>(compressor) < reached);
    CHECK(left_of_zero_one<two_sided<>>(compressor) < reached);
  });
  // One of the three with the other quantizers, because the exchange does not depend on the use of the mean.
  test_support::for_both_scales("sign, l1", test_support::l1_sign{}, [](const std::string& name, const auto& l1) {
    CAPTURE(name);
    CHECK(left_of_zero_one<two_sided<>>(l1) < reached);
  });
  test_support::for_both_scales("a user's", test_support::archetype_ternary{},
                                [](const std::string& name, const auto& archetype) {
                                  CAPTURE(name);
                                  CHECK(left_of_one_bit<two_sided<>, slamb::frozen_trust_ratio>(archetype) < reached);
                                });
}

TEST_CASE("combinations: 1-bit Adam, 1-bit LAMB and 0/1 Adam miss the minimum with signs without error feedback") {
  CHECK(left_of_one_bit<slamb::no_error_feedback, slamb::unit_trust_ratio>(slamb::sign{}) > missed);
  CHECK(left_of_one_bit<slamb::no_error_feedback, slamb::frozen_trust_ratio>(slamb::sign{}) > missed);
  CHECK(left_of_zero_one<slamb::no_error_feedback>(slamb::sign{}) > missed);
}

TEST_CASE("combinations: a user-defined block size that does not divide tiles is rejected") {
  std::vector<float> p(9000, 1.0F), g(9000, 0.5F);
  const std::vector<slamb::parameter> tensors{{.data = p.data(), .gradient = g.data(), .size = p.size()}};
  const auto made_with = [&](std::uint32_t block) {
    test_support::archetype_blocks blocks;
    blocks.block = block;
    slamb::one_bit_adam<slamb::self_communicator, test_support::archetype_blocks>(tensors, {.compressor = blocks});
  };
  for (const std::uint32_t block : {16U, 32U, 1024U}) CHECK_NOTHROW(made_with(block));
  for (const std::uint32_t block : {0U, 1U, 8U, 24U, 48U, 2048U})
    CHECK_THROWS_WITH_AS(made_with(block), doctest::Contains("a quantizer's block"), std::invalid_argument);
}

}  // namespace properties_combinations_one_bit_tests
