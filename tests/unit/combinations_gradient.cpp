// LAMB and AdamW with the gradient exchanged in every way there is: all find the minimum of a loss of which each rank
// sees another part.
#include <doctest/doctest.h>

#include <string>

#include "support/convergence.hpp"

namespace {

using test_support::left_after;
using test_support::missed;
using test_support::reached;

template <class Compressor, class ErrorFeedback, class TrustRatio>
using recipe =
    slamb::basic_lamb<Compressor, ErrorFeedback, TrustRatio, slamb::thread_communicator, slamb::host_backend>;

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

/// Trains with each, and what is lost kept as `ErrorFeedback` says.
template <class ErrorFeedback>
constexpr auto both_reach_the_minimum = [](const std::string& name, const auto& compressor) {
  CAPTURE(name);
  CHECK(left_of_lamb<ErrorFeedback>(compressor) < reached);
  CHECK(left_of_adamw<ErrorFeedback>(compressor) < reached);
};

}  // namespace

TEST_CASE("combinations: LAMB and AdamW reach the minimum without compression") {
  both_reach_the_minimum<slamb::no_error_feedback>("none", slamb::no_compressor{});
}

TEST_CASE("combinations: LAMB and AdamW reach the minimum with every quantizer") {
  test_support::for_each_quantizer(both_reach_the_minimum<slamb::two_sided<>>);
}

TEST_CASE("combinations: LAMB and AdamW reach the minimum with every sparsifier") {
  test_support::for_each_sparsifier(both_reach_the_minimum<slamb::residual<>>);
}

TEST_CASE("combinations: LAMB and AdamW reach the minimum with chains") {
  test_support::for_each_chain(both_reach_the_minimum<slamb::residual<>>);
}

TEST_CASE(
    "combinations: LAMB and AdamW reach the minimum with a quantizer that is right on average, whatever is kept") {
  both_reach_the_minimum<slamb::residual<>>("int8", slamb::int8{});
  both_reach_the_minimum<slamb::no_error_feedback>("int8", slamb::int8{});
  both_reach_the_minimum<slamb::two_sided<slamb::bfloat16>>("sign", slamb::sign{});
}

TEST_CASE("combinations: LAMB and AdamW miss the minimum with signs whose errors are forgotten") {
  CHECK(left_of_lamb<slamb::no_error_feedback>(slamb::sign{}) > missed);
  CHECK(left_of_adamw<slamb::no_error_feedback>(slamb::sign{}) > missed);
}
