// The bytes of memory traffic of a step, as the benchmarks count them by the types of parameters and gradients.
#include <doctest/doctest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "../../bench/planned_bytes.hpp"
#include "slamb/slamb.hpp"

namespace properties_bytes_by_type_tests {
namespace {

using slamb::detail::bytes_per_element;
using slamb::plan::storage_bytes;
namespace passes = slamb::detail;
using adamw = passes::adam_passes<slamb::unit_trust_ratio>;
using lamb = passes::adam_passes<slamb::layerwise_trust_ratio>;
using check = passes::dense_gradient_passes::check;
using gather = passes::dense_gradient_passes::gather;

constexpr storage_bytes floats;
constexpr storage_bytes with_masters{.parameter = 4.0, .rounded = 2.0, .data = 2.0, .gradient = 2.0};
constexpr storage_bytes by_chance{.parameter = 2.0, .rounded = 0.0, .data = 2.0, .gradient = 2.0};

static_assert(bytes_per_element<check>(floats) == 4.0 && bytes_per_element<check>(with_masters) == 2.0);
static_assert(bytes_per_element<gather>(floats) == 8.0 && bytes_per_element<gather>(with_masters) == 6.0);
static_assert(bytes_per_element<adamw::update>(floats) == 28.0);
static_assert(bytes_per_element<adamw::update>(with_masters) == 28.0);
static_assert(bytes_per_element<adamw::update>(by_chance) == 22.0);
static_assert(bytes_per_element<lamb::update>(floats) + bytes_per_element<lamb::apply>(floats) == 40.0);
static_assert(bytes_per_element<lamb::update>(with_masters) + bytes_per_element<lamb::apply>(with_masters) == 40.0);
static_assert(bytes_per_element<lamb::update>(by_chance) + bytes_per_element<lamb::apply>(by_chance) == 32.0);

// Gradients of ranks' mean are floats in the exchange buffer.
static_assert(bytes_per_element<adamw::update>(with_masters.with_exchanged_gradient()) == 30.0);
static_assert(bytes_per_element<adamw::update>(by_chance.with_exchanged_gradient()) == 24.0);

// m in bfloat16, v in 8 bits with a scale of 1/64 byte.
constexpr slamb::plan::array_bytes small_arrays[] = {{"momentum", 2.0}, {"variance", 1.0 + 1.0 / 64.0}};
constexpr storage_bytes small_moments{
    .parameter = 4.0, .rounded = 2.0, .data = 2.0, .gradient = 2.0, .arrays = small_arrays};
static_assert(bytes_per_element<adamw::update>(small_moments) == 28.0 - 2 * 2.0 - 2 * (3.0 - 1.0 / 64.0));

// bfloat16 without a master copy, and moments in fewer bits.
constexpr slamb::plan::array_bytes arrays_of_eight_bits[] = {{"momentum", 1.0 + 1.0 / 64.0},
                                                             {"variance", 1.0 + 1.0 / 64.0}};
constexpr storage_bytes with_eight_bits{
    .parameter = 2.0, .rounded = 0.0, .data = 2.0, .gradient = 2.0, .arrays = arrays_of_eight_bits};
static_assert(bytes_per_element<adamw::update>(with_eight_bits) == 10.0625);

/// The bytes that are counted for steps after the first two, on a tensor of floats and one of bfloat16.
template <template <class, class> class Optimizer, class Rounding>
double counted(bool is_typed, const auto& options) {
  using backend = slamb::precision::mixed<slamb::host_backend, Rounding>;
  std::vector<float> numbers(3000, 0.5F), gradients(3000, 0.25F);
  std::vector<slamb::bfloat16> halves(1000, {0x3F00}), half_gradients(1000, {0x3E80});
  std::vector<slamb::parameter> tensors{{.data = numbers.data(), .gradient = gradients.data(), .size = 3000},
                                        {.data = halves.data(), .gradient = half_gradients.data(), .size = 1000}};
  if (!is_typed) tensors.pop_back();
  Optimizer<slamb::self_communicator, backend> optimizer(tensors, options, {}, {{.threads = 1}});
  for (int i = 0; i < 2; ++i) optimizer.step(1e-3);
  const slamb::statistics before = optimizer.statistics();
  optimizer.step(1e-3);
  return bench::planned_bytes(optimizer, before, optimizer.statistics(true), tensors, 1);
}

template <class Communicator, class Backend>
using blocks = slamb::slamb<Communicator, slamb::no_compressor, slamb::rescaled_trust_ratio<>, Backend>;
template <class Communicator, class Backend>
using one_bit_lamb = slamb::one_bit_lamb<Communicator, slamb::sign, Backend>;

using slamb::precision::master_copies;
using slamb::precision::stochastic_rounding;

}  // namespace

TEST_CASE(
    "bytes by type: floats have the library's count, and a quarter of bfloat16 adds a quarter of its difference") {
  const auto check_count = [](double of_floats, double mixed, double all_floats, double all_bfloat16) {
    CHECK(of_floats == doctest::Approx(all_floats));
    CHECK(mixed == doctest::Approx(all_floats + 0.25 * (all_bfloat16 - all_floats)));
  };
  const slamb::adamw<>::options_type adam{}, unchecked{.skip_non_finite = false};
  check_count(counted<slamb::adamw, master_copies>(false, adam), counted<slamb::adamw, master_copies>(true, adam), 32,
              30);
  check_count(counted<slamb::adamw, master_copies>(false, unchecked),
              counted<slamb::adamw, master_copies>(true, unchecked), 28, 28);
  check_count(counted<slamb::adamw, stochastic_rounding>(false, adam),
              counted<slamb::adamw, stochastic_rounding>(true, adam), 32, 24);
  const slamb::lamb<>::options_type lamb_options{};
  check_count(counted<slamb::lamb, master_copies>(false, lamb_options),
              counted<slamb::lamb, master_copies>(true, lamb_options), 44, 42);
  // Everything is sent: A reads p, g, m, v, and C writes p, m, v too; the payload is floats.
  const typename blocks<slamb::self_communicator, slamb::host_backend>::options_type all{};
  check_count(counted<blocks, master_copies>(false, all), counted<blocks, master_copies>(true, all), 72, 70);
  const slamb::one_bit_lamb<>::options_type codes{.compress_single_rank = true, .warm_up = {.steps = 1}};
  check_count(counted<one_bit_lamb, master_copies>(false, codes), counted<one_bit_lamb, master_copies>(true, codes),
              80.75, 78.75);
  check_count(counted<one_bit_lamb, stochastic_rounding>(false, codes),
              counted<one_bit_lamb, stochastic_rounding>(true, codes), 80.75, 70.75);
}

}  // namespace properties_bytes_by_type_tests
