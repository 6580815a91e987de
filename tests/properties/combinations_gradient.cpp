// LAMB and AdamW with every way of exchanging the gradient: all find the minimum of a loss of which each rank sees another part.
#include <doctest/doctest.h>

#include <string>

#include "support/convergence.hpp"

namespace properties_combinations_gradient_tests {
namespace {

using test_support::left_after;
using test_support::missed;
using test_support::reached;

template <class Compressor, class ErrorFeedback, class TrustRatio>
using recipe = slamb::lamb<Compressor, ErrorFeedback, TrustRatio, slamb::thread_communicator>;

template <class ErrorFeedback, class Compressor>
double left_of_lamb(const Compressor& c) {
  return left_after<recipe<Compressor, ErrorFeedback, slamb::layerwise_trust_ratio>>(
      {.weight_decay = 0.0, .compressor = c}, 0.01);
}

template <class ErrorFeedback, class Compressor>
double left_of_adamw(const Compressor& c) {
  return left_after<recipe<Compressor, ErrorFeedback, slamb::unit_trust_ratio>>({.weight_decay = 0.0, .compressor = c},
                                                                                0.06);
}

constexpr auto reaches = [](const std::string& name, double left) {
  CAPTURE(name);
  CHECK(left < reached);
};

/// Trains both with the compressor and `ErrorFeedback`.
template <class ErrorFeedback>
constexpr auto both_reach_the_minimum = [](const std::string& name, const auto& compressor) {
  reaches(name, left_of_lamb<ErrorFeedback>(compressor));
  reaches(name, left_of_adamw<ErrorFeedback>(compressor));
};

using slamb::chain;
using slamb::random_k;
using slamb::residual;
using slamb::two_sided;

}  // namespace

TEST_CASE("combinations: LAMB and AdamW reach the minimum without compression") {
  both_reach_the_minimum<slamb::no_error_feedback>("none", slamb::no_compressor{});
}

TEST_CASE("combinations: LAMB and AdamW reach the minimum with every quantizer") {
  test_support::for_each_quantizer(both_reach_the_minimum<two_sided<>>);
  // One of the two with the other compressors, because the exchange does not depend on the use of the mean.
  test_support::for_both_scales("sign, l1", test_support::l1_sign{}, [](const std::string& name, const auto& l1) {
    reaches(name, left_of_lamb<two_sided<>>(l1));
  });
  test_support::for_both_scales(
      "a user's", test_support::archetype_ternary{},
      [](const std::string& name, const auto& archetype) { reaches(name, left_of_adamw<two_sided<>>(archetype)); });
}

TEST_CASE("combinations: LAMB and AdamW reach the minimum with every sparsifier") {
  both_reach_the_minimum<residual<>>("random_k", random_k<>{.k = 0.25});
  both_reach_the_minimum<residual<>>("top_k", slamb::top_k{.k = 0.25});
  reaches("bernoulli", left_of_lamb<residual<>>(random_k<slamb::sampling::bernoulli>{.k = 0.25}));
  reaches("a user's", left_of_adamw<residual<>>(test_support::every_nth{.n = 4}));
}

// Their quantizers are unbiased: the compression error of the mean is not kept.
TEST_CASE("combinations: LAMB and AdamW reach the minimum with chains") {
  both_reach_the_minimum<residual<>>("random_k, int8", chain<random_k<>, slamb::int8>{.sparsifier = {.k = 0.25}});
  both_reach_the_minimum<residual<>>("random_k, int4", chain<random_k<>, slamb::int4>{.sparsifier = {.k = 0.25}});
  reaches("random_k, natural", left_of_lamb<residual<>>(chain<random_k<>, slamb::natural>{.sparsifier = {.k = 0.25}}));
  reaches("top_k, int8", left_of_adamw<residual<>>(chain<slamb::top_k, slamb::int8>{.sparsifier = {.k = 0.25}}));
  reaches(
      "a user's, a user's",
      left_of_lamb<residual<>>(chain<test_support::every_nth, test_support::archetype_levels>{.sparsifier = {.n = 4}}));
}

TEST_CASE("combinations: LAMB and AdamW reach the minimum with an unbiased quantizer, for any error feedback") {
  reaches("int8, residual", left_of_lamb<residual<>>(slamb::int8{}));
  reaches("int8, no errors", left_of_adamw<slamb::no_error_feedback>(slamb::int8{}));
  reaches("sign, errors as bfloat16", left_of_lamb<two_sided<slamb::bfloat16>>(slamb::sign{}));
}

TEST_CASE("combinations: LAMB and AdamW miss the minimum with signs without error feedback") {
  CHECK(left_of_lamb<slamb::no_error_feedback>(slamb::sign{}) > missed);
  CHECK(left_of_adamw<slamb::no_error_feedback>(slamb::sign{}) > missed);
}

}  // namespace properties_combinations_gradient_tests
