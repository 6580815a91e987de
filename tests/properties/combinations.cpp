// Every way of exchanging gradients, momenta and updates: all find the minimum of a loss of which each rank sees another part.
//
// Each compressor trains with one optimizer, and each optimizer with two of its compressors, because the exchange does not
// depend on the use of the mean. exchange/quantized.cpp and conservation.cpp check the sums of more combinations.
#include <doctest/doctest.h>

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "support/convergence.hpp"

namespace properties_combinations_tests {
namespace {

using slamb::chain;
using slamb::no_error_feedback;
using slamb::random_k;
using slamb::residual;
using slamb::thread_communicator;
using slamb::top_k;
using slamb::two_sided;
using test_support::left_after;
using test_support::missed;
using test_support::reached;

template <class ErrorFeedback, class Compressor>
double left_of_lamb(const Compressor& c) {
  return left_after<slamb::lamb<Compressor, ErrorFeedback, thread_communicator>>({.weight_decay = 0.0, .compressor = c},
                                                                                 0.01);
}

template <class ErrorFeedback, class Compressor>
double left_of_adamw(const Compressor& c) {
  using adamw = slamb::lamb<Compressor, ErrorFeedback, slamb::unit_trust_ratio, thread_communicator>;
  return left_after<adamw>({.weight_decay = 0.0, .compressor = c}, 0.06);
}

// Averagings are frequent, because ranks with their own variances drift apart between them.
template <class Compressor>
double left_of_slamb(const Compressor& c) {
  return left_after<slamb::slamb<thread_communicator, Compressor>>(
      {.beta2 = 0.99, .weight_decay = 0.0, .local_steps = 20, .dense_below = 20, .compressor = c}, 0.03);
}

// The warm-up of slamb_train. It looks at the variance only after 1000 steps.
template <class ErrorFeedback, class TrustRatio, class Compressor>
double left_of_one_bit(const Compressor& c) {
  return left_after<
      slamb::one_bit_adam<Compressor, ErrorFeedback, TrustRatio, slamb::automatic_warm_up, thread_communicator>>(
      {.weight_decay = 0.0, .warm_up = {.least_steps = 100, .most_steps = 100}, .compressor = c}, 0.01);
}

template <class Compressor>
double left_of_one_bit_adam(const Compressor& c) {
  return left_of_one_bit<two_sided<>, slamb::unit_trust_ratio>(c);
}

template <class Compressor>
double left_of_one_bit_lamb(const Compressor& c) {
  return left_of_one_bit<two_sided<>, slamb::frozen_trust_ratio>(c);
}

template <class ErrorFeedback, class Compressor>
double left_of_zero_one(const Compressor& c) {
  return left_after<slamb::zero_one_adam<Compressor, ErrorFeedback, thread_communicator>>(
      {.weight_decay = 0.0, .variance_schedule = {100, 4}, .local_schedule = {100, 4}, .compressor = c}, 0.01);
}

void reaches(const std::string& name, double left) {
  CAPTURE(name);
  CHECK(left < reached);
}

}  // namespace

TEST_CASE("combinations: dense LAMB, AdamW and SLAMB reach the minimum") {
  reaches("LAMB", left_of_lamb<no_error_feedback>(slamb::no_compressor{}));
  reaches("AdamW", left_of_adamw<no_error_feedback>(slamb::no_compressor{}));
  reaches("SLAMB", left_of_slamb(slamb::no_compressor{}));
}

TEST_CASE("combinations: every quantizer reaches the minimum, and every optimizer by two of them") {
  using test_support::for_both_scales;
  for_both_scales("LAMB, sign", slamb::sign{},
                  [](const std::string& name, const auto& sign) { reaches(name, left_of_lamb<two_sided<>>(sign)); });
  reaches("LAMB, natural", left_of_lamb<two_sided<>>(slamb::natural{}));
  reaches("AdamW, int4", left_of_adamw<two_sided<>>(slamb::int4{.block = 64}));
  for_both_scales(
      "AdamW, a user's", test_support::archetype_ternary{},
      [](const std::string& name, const auto& archetype) { reaches(name, left_of_adamw<two_sided<>>(archetype)); });
  for_both_scales("1-bit Adam, sign", slamb::sign{},
                  [](const std::string& name, const auto& sign) { reaches(name, left_of_one_bit_adam(sign)); });
  reaches("1-bit Adam, fp16", left_of_one_bit_adam(slamb::fp16{}));
  reaches("1-bit LAMB, sign", left_of_one_bit_lamb(slamb::sign{}));
  reaches("1-bit LAMB, int8", left_of_one_bit_lamb(slamb::int8{}));
  reaches("0/1 Adam, bf16", left_of_zero_one<two_sided<>>(slamb::bf16{}));
  for_both_scales("0/1 Adam, sign, l1", test_support::l1_sign{},
                  [](const std::string& name, const auto& l1) { reaches(name, left_of_zero_one<two_sided<>>(l1)); });
}

TEST_CASE("combinations: every sparsifier reaches the minimum, of gradients and of momenta") {
  reaches("LAMB, random_k", left_of_lamb<residual<>>(random_k<>{.k = 0.25}));
  reaches("LAMB, top_k", left_of_lamb<residual<>>(top_k{.k = 0.25}));
  reaches("AdamW, a user's", left_of_adamw<residual<>>(test_support::every_nth{.n = 4}));
  reaches("SLAMB, random_k", left_of_slamb(random_k<>{.k = 0.25}));
  reaches("SLAMB, bernoulli", left_of_slamb(random_k<slamb::sampling::bernoulli>{.k = 0.25}));
  reaches("SLAMB, top_k", left_of_slamb(top_k{.k = 0.25}));
  reaches("SLAMB, a user's", left_of_slamb(test_support::every_nth{.n = 4}));
}

// Their quantizers are unbiased: the compression error of the mean is not kept.
TEST_CASE("combinations: chains reach the minimum, of gradients and of momenta") {
  using users = chain<test_support::every_nth, test_support::archetype_levels>;
  reaches("LAMB, random_k, int8", left_of_lamb<residual<>>(chain<random_k<>, slamb::int8>{.sparsifier = {.k = 0.25}}));
  reaches("LAMB, top_k, int4", left_of_lamb<residual<>>(chain<top_k, slamb::int4>{.sparsifier = {.k = 0.25}}));
  reaches("LAMB, a user's, a user's", left_of_lamb<residual<>>(users{.sparsifier = {.n = 4}}));
  reaches("SLAMB, random_k, int8", left_of_slamb(chain<random_k<>, slamb::int8>{.sparsifier = {.k = 0.25}}));
  reaches("SLAMB, top_k, int4", left_of_slamb(chain<top_k, slamb::int4>{.sparsifier = {.k = 0.25}}));
  reaches("SLAMB, bernoulli, natural",
          left_of_slamb(chain<random_k<slamb::sampling::bernoulli>, slamb::natural>{.sparsifier = {.k = 0.25}}));
  reaches("SLAMB, a user's, a user's", left_of_slamb(users{.sparsifier = {.n = 4}}));
}

TEST_CASE("combinations: an unbiased quantizer reaches the minimum with any error feedback") {
  reaches("LAMB, int8, residual", left_of_lamb<residual<>>(slamb::int8{}));
  reaches("AdamW, int8, no errors", left_of_adamw<no_error_feedback>(slamb::int8{}));
}

TEST_CASE("combinations: signs without error feedback, and SLAMB that never sends, miss the minimum") {
  CHECK(left_of_lamb<no_error_feedback>(slamb::sign{}) > missed);
  CHECK(left_of_one_bit<no_error_feedback, slamb::unit_trust_ratio>(slamb::sign{}) > missed);
  CHECK(left_of_zero_one<no_error_feedback>(slamb::sign{}) > missed);
  CHECK(left_of_slamb(test_support::nothing_ever{}) > missed);
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

}  // namespace properties_combinations_tests
