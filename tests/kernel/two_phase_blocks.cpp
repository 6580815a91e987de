// Kernels of the compressed exchange with a scale for each block or none, emulated and on the host.
#include <doctest/doctest.h>

#include "slamb/compressor/floating.hpp"
#include "slamb/compressor/four_levels.hpp"
#include "slamb/compressor/integer.hpp"
#include "slamb/compressor/natural.hpp"
#include "support/archetype_quantizers.hpp"
#include "support/cuda_quantized.hpp"
#include "support/cuda_quantized_compare.hpp"
#include "support/cuda_quantized_passes.hpp"
#include "support/cuda_quantized_sides.hpp"

namespace kernel_two_phase_blocks_tests {
namespace {

using namespace test_support;
using slamb::bfloat16;
using slamb::detail::no_storage;

}  // namespace

TEST_CASE("two_phase: integers with a scale for each block, rounded at random") {
  compare_all<quantized<slamb::int8, use_the_loss, no_storage>>({.block = 128, .seed = 11});
  compare_all<quantized<slamb::int8, use_the_loss, no_storage>>({.block = 1024, .seed = 0x123456789ABCDEFU});
  compare_all<quantized<slamb::int4, refresh, bfloat16>>({.block = 16, .seed = 12});
  compare_all<quantized<slamb::integer<2>, sum_the_mean, bfloat16, no_storage>>({.block = 512, .seed = 13});
}

TEST_CASE("two_phase: four levels") {
  compare_all<quantized<slamb::four_levels, exchange_updates, bfloat16>>({});
  compare_all<quantized<slamb::four_levels, exchange_updates, bfloat16>>({.block = 16, .zero_aware = true});
}

TEST_CASE("two_phase: numbers without a scale") {
  compare_all<quantized<slamb::natural, sum_the_mean, float>>({.seed = 14});
  compare_all<quantized<slamb::natural, sum_the_mean, float>>({.seed = 15});
  compare_all<quantized<slamb::bf16, exchange_updates, float>>({});
  compare_all<quantized<slamb::fp16, use_the_loss, no_storage>>({});
  compare_all<quantized<archetype_floats, sum_the_mean, float>>({});
}

}  // namespace kernel_two_phase_blocks_tests
