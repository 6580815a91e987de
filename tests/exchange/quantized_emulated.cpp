// Properties of the compressed exchange by CUDA kernels, emulated: for every quantizer, by the tests' own decoder.
#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "slamb/compressor/floating.hpp"
#include "slamb/compressor/four_levels.hpp"
#include "slamb/compressor/integer.hpp"
#include "slamb/compressor/natural.hpp"
#include "slamb/compressor/sign.hpp"
#include "slamb/error_feedback/no_error_feedback.hpp"
#include "slamb/error_feedback/residual.hpp"
#include "slamb/error_feedback/two_sided.hpp"
#include "support/archetype_quantizers.hpp"
#include "support/exchange_combinations.hpp"
#include "support/exchange_properties.hpp"

namespace exchange_quantized_emulated_tests {
namespace {

using namespace test_support;
using slamb::bfloat16;
using slamb::no_error_feedback;
using slamb::residual;
using slamb::two_sided;

/// Each quantizer with one of the feedbacks; each feedback with several kinds of quantizers.
const std::vector<combination>& combinations() {
  static const std::vector<combination> all = [] {
    std::vector<combination> made;
    append<emulated_grids, slamb::sign, two_sided<>, two_sided<bfloat16>>(made);
    append<emulated_grids, l1_sign, residual<bfloat16>>(made);
    append<emulated_grids, slamb::four_levels, two_sided<bfloat16>>(made);
    append<emulated_grids, slamb::int8, no_error_feedback>(made);
    append<emulated_grids, slamb::int4, two_sided<>>(made);
    append<emulated_grids, slamb::natural, residual<bfloat16>>(made);
    append<emulated_grids, slamb::bf16, two_sided<>>(made);
    append<emulated_grids, slamb::fp16, no_error_feedback>(made);
    append<emulated_grids, archetype_ternary, two_sided<bfloat16>>(made);
    append<emulated_grids, archetype_levels, residual<>>(made);
    append<emulated_grids, archetype_blocks, two_sided<>>(made);
    append<emulated_grids, archetype_octal, residual<bfloat16>>(made);
    append<emulated_grids, archetype_floats, no_error_feedback>(made);
    return made;
  }();
  return all;
}

}  // namespace

TEST_CASE("quantized_exchange, emulated: random combinations of quantizers, ranks and tensors, by other grids too") {
  check_random_combinations(combinations(), 4);
}
TEST_CASE("quantized_exchange, emulated: random combinations of quantizers, ranks and tensors, once more") {
  check_random_combinations(combinations(), 5);
}

TEST_CASE("quantized_exchange, emulated: what is rounded at random has the bits of the host") {
  small_setup made(3);
  made.exchanged.tensors.push_back({9000});
  for (std::size_t t = 0; t < made.exchanged.gradients.size(); ++t)
    made.exchanged.gradients[t] = random_gradients(9, t, 3, total_size(made.exchanged.tensors));
  const auto difference = [&]<class Quantizer>(Quantizer /*quantizer*/, const quantizer_settings& of_host,
                                               const quantizer_settings& of_device) {
    return difference_of(run_of<Quantizer, no_error_feedback, eager_backend>(made.exchanged, of_host),
                         run_of<Quantizer, no_error_feedback, emulated_grids>(made.exchanged, of_device));
  };
  CHECK(difference(slamb::int4{}, {.seed = 3}, {.seed = 3}) == "");
  CHECK(difference(slamb::natural{}, {.seed = 3}, {.seed = 3}) == "");
  CHECK(difference(slamb::natural{}, {.seed = 3}, {.seed = 4}) != "");
}

TEST_CASE("quantized_exchange, emulated: a value that is not finite stops all ranks and keeps all errors") {
  check_values_that_are_not_finite<emulated_grids>();
}

TEST_CASE("quantized_exchange, emulated: any of sixty-four ranks stops all of them") {
  check_flags_of_many_ranks<emulated_grids>();
}

TEST_CASE("quantized_exchange, emulated: an error that would overflow in bfloat16 stops the exchange") {
  check_errors_that_overflow<emulated_grids>();
}

TEST_CASE("quantized_exchange, emulated: no tensors, empty chunks, and ten thousand tensors of one element") {
  const auto check = [](const exchange_setup& setup, const quantizer_settings& s) {
    const auto faults = [](const observation& o) {
      return fault_of_equations(o) + fault_of_traffic(o) + fault_of_writes(o) + fault_of_measurement(o);
    };
    CHECK(faults(observed<slamb::sign, two_sided<>, emulated_grids>(setup, s)) == "");
    CHECK(faults(observed<slamb::int8, no_error_feedback, emulated_grids>(setup, s)) == "");
  };
  const auto setup_of = [](const model& tensors, int world) {
    exchange_setup setup{.tensors = tensors, .world = world};
    for (std::uint64_t t = 0; t < 2; ++t)
      setup.gradients.push_back(random_gradients(7, t, world, total_size(setup.tensors)));
    return setup;
  };
  check(setup_of({}, 2), {});
  check(setup_of({{5}, {300, 1, {.compress = false}}}, 8), {});
  const exchange_setup many = setup_of(model(10'000, {1}), 2);
  check(many, {});
  check(many, {.per_tensor = true});
}

}  // namespace exchange_quantized_emulated_tests
