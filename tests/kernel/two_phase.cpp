// Kernels of the compressed exchange with a shared scale, emulated and on the host.
#include <doctest/doctest.h>

#include <cstdint>

#include "slamb/compressor/sign.hpp"
#include "support/archetype_quantizers.hpp"
#include "support/cuda_quantized.hpp"
#include "support/cuda_quantized_compare.hpp"
#include "support/cuda_quantized_passes.hpp"
#include "support/cuda_quantized_sides.hpp"

namespace kernel_two_phase_tests {
namespace {

using namespace test_support;
using slamb::bfloat16;
using slamb::detail::no_storage;

archetype_blocks zero_aware_blocks(std::uint32_t block) {
  archetype_blocks made;
  made.block = block;
  made.zero_aware = true;
  return made;
}

}  // namespace

TEST_CASE("two_phase: signs with errors of floats") {
  compare_all<quantized<slamb::sign, refresh, float>>({});
  compare_all<quantized<slamb::sign, refresh, float>>({.scales = slamb::scale_sharing::per_tensor, .zero_aware = true});
}

TEST_CASE("two_phase: signs with a mean magnitude") {
  using l1 = slamb::basic_sign<slamb::segment_scale::l1>;
  compare_all<quantized<l1, exchange_updates, bfloat16>>({});
  compare_all<quantized<l1, exchange_updates, bfloat16>>({.scales = slamb::scale_sharing::per_tensor});
}

TEST_CASE("two_phase: user-defined quantizers") {
  compare_all<quantized<archetype_ternary, refresh, bfloat16>>({});
  compare_all<quantized<archetype_ternary, refresh, bfloat16>>(per_tensor<archetype_ternary>());
  compare_all<quantized<archetype_levels, sum_the_mean, no_storage, float>>({});
  compare_all<quantized<archetype_levels, sum_the_mean, no_storage, float>>(per_tensor<archetype_levels>());
  compare_all<quantized<archetype_blocks, sum_the_mean, float>>(zero_aware_blocks(32));
  compare_all<quantized<archetype_octal, sum_the_mean, float>>({});
}

}  // namespace kernel_two_phase_tests
