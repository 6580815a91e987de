// The bytes of memory traffic of a step, as the benchmarks count them by the types of parameters and gradients.
#include <doctest/doctest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "../../bench/bytes_of_steps.hpp"
#include "slamb/slamb.hpp"

namespace properties_bytes_by_type_tests {
namespace {

using slamb::detail::bytes_per_element;
using slamb::plan::storage_bytes;
using slamb::plan::stored_by;
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
constexpr storage_bytes small_moments{
    .parameter = 4.0, .rounded = 2.0, .data = 2.0, .gradient = 2.0, .momentum = 2.0, .variance = 1.0 + 1.0 / 64.0};
static_assert(bytes_per_element<adamw::update>(small_moments) == 28.0 - 2 * 2.0 - 2 * (3.0 - 1.0 / 64.0));

// bfloat16 without a master copy, and moments in fewer bits.
constexpr storage_bytes with_eight_bits{.parameter = 2.0,
                                        .rounded = 0.0,
                                        .data = 2.0,
                                        .gradient = 2.0,
                                        .momentum = 1.0 + 1.0 / 64.0,
                                        .variance = 1.0 + 1.0 / 64.0};
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
  return bench::bytes_of_steps(optimizer, before, optimizer.statistics(true), tensors, 1);
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

TEST_CASE("bytes by type: plans count the bytes of the types in which a Backend stores a model") {
  constexpr auto f32 = slamb::parameter::float32, bf16 = slamb::parameter::bfloat16, fp16 = slamb::parameter::float16;
  using masters = slamb::precision::mixed<>;
  using chance = slamb::precision::mixed<slamb::host_backend, stochastic_rounding>;
  using eight_bits =
      slamb::precision::mixed<slamb::host_backend, stochastic_rounding, slamb::precision::eight_bit_moments>;
  const std::vector<slamb::plan::tensor_shape> shapes{{.size = 3000}};
  const auto planned = [&](const auto& options, int ranks, const storage_bytes& stored) {
    return slamb::plan::plan_traffic(shapes, options, {.ranks = ranks, .stored = stored}).memory_bytes(1);
  };
  const slamb::adamw<>::options_type adam{}, unchecked{.skip_non_finite = false}, clipped{.max_gradient_norm = 1.0};
  CHECK(planned(adam, 1, {}) == 32.0);
  CHECK(planned(adam, 1, stored_by<slamb::host_backend>(f32, f32)) == 32.0);
  CHECK(planned(adam, 1, stored_by<masters>(bf16, bf16)) == 30.0);
  CHECK(planned(adam, 1, stored_by<masters>(f32, fp16)) == 28.0);
  CHECK(planned(adam, 1, stored_by<chance>(bf16, bf16)) == 24.0);
  CHECK(planned(adam, 1, stored_by<chance>(bf16, bf16, true)) == 30.0);
  CHECK(planned(unchecked, 1, stored_by<eight_bits>(bf16, bf16)) == 10.0625);
  // On ranks: gathered, 2 + 4, and read as floats from the exchange buffer, also to clip.
  CHECK(planned(adam, 8, stored_by<masters>(bf16, bf16)) == 6.0 + 30.0);
  CHECK(planned(clipped, 8, stored_by<masters>(bf16, bf16)) == 6.0 + 4.0 + 30.0);
  CHECK(planned(clipped, 1, stored_by<masters>(bf16, bf16)) == 2.0 + 28.0);
  CHECK(planned(slamb::lamb<>::options_type{}, 1, stored_by<chance>(bf16, bf16)) == 34.0);
  // Everything is sent: A reads p, g, m, v, and C reads and writes p, m, v too; the payload, 7 floats, is as it was.
  using all_sent = blocks<slamb::self_communicator, slamb::host_backend>::options_type;
  CHECK(planned(all_sent{}, 1, {}) == 72.0);
  CHECK(planned(all_sent{}, 1, stored_by<masters>(bf16, bf16)) == 70.0);
  CHECK(planned(all_sent{}, 1, stored_by<chance>(bf16, bf16)) == 72.0 - 5 * 2.0);
  CHECK(planned(all_sent{.max_gradient_norm = 1.0}, 1, stored_by<masters>(bf16, bf16)) == 72.0);
  // With one step of warm-up, step 1 is dense; the mean of many steps is that of compressed ones.
  const slamb::one_bit_lamb<>::options_type codes{.compress_single_rank = true, .warm_up = {.steps = 1}};
  const auto one_bit = [&](const storage_bytes& stored) {
    const auto plan = slamb::plan::plan_traffic(shapes, codes, {.ranks = 1, .stored = stored});
    return 2.0 * plan.memory_bytes(2) - plan.memory_bytes(1);
  };
  CHECK(one_bit({}) == 80.75);
  CHECK(one_bit(stored_by<masters>(bf16, bf16)) == 78.75);
  CHECK(one_bit(stored_by<chance>(bf16, bf16)) == 70.75);
  // A local step of 0/1 Adam: the check reads g; then g, m, v, b and the anchor are read, and p, m and b are written.
  using zero_one = passes::zero_one_passes;
  CHECK(zero_one::local_memory_bytes(true, {}) == 4.0 + 20.0 + 12.0);
  CHECK(zero_one::local_memory_bytes(true, stored_by<masters>(bf16, bf16)) == 2.0 + 18.0 + 14.0);
  CHECK(zero_one::local_memory_bytes(true, stored_by<chance>(bf16, bf16)) == 2.0 + 18.0 + 10.0);
  // It begins with a refresh: AdamW's bytes.
  CHECK(planned(slamb::zero_one_adam<>::options_type{}, 1, stored_by<masters>(bf16, bf16)) == 30.0);
}

TEST_CASE("bytes by type: moments in fewer bits count as they are stored") {
  const auto stored = []<class Moments>(Moments /*moments*/) {
    const slamb::bfloat16 number{};
    const std::vector<slamb::parameter> tensors{{.data = nullptr, .gradient = &number, .size = 1}};
    return stored_by<slamb::precision::mixed<slamb::host_backend, master_copies, Moments>>(tensors);
  };
  CHECK(stored(slamb::precision::float_moments{}).momentum == 4.0);
  CHECK(stored(slamb::precision::bfloat16_momentum{}).momentum == 2.0);
  CHECK(stored(slamb::precision::bfloat16_momentum{}).variance == 4.0);
  const storage_bytes eight = stored(slamb::precision::eight_bit_moments{});
  CHECK(eight.momentum == 1.0 + 1.0 / 64.0);
  CHECK(eight.variance == 1.0 + 1.0 / 64.0);
}

TEST_CASE("bytes by type: a master copy of the caller's counts as one of the optimizer's") {
  std::vector<slamb::bfloat16> data(10), gradients(10);
  std::vector<float> master(10);
  std::vector<slamb::parameter> tensors{{.data = data.data(), .gradient = gradients.data(), .size = 10}};
  const auto parameter_bytes = [&]<class Rounding>(Rounding /*rounding*/) {
    const storage_bytes stored = stored_by<slamb::precision::mixed<slamb::host_backend, Rounding>>(tensors);
    CHECK(stored.data == 2.0);
    CHECK(stored.gradient == 2.0);
    return stored.parameter + stored.rounded;
  };
  CHECK(parameter_bytes(master_copies{}) == 6.0);
  CHECK(parameter_bytes(stochastic_rounding{}) == 2.0);
  tensors.front().master = master.data();
  CHECK(parameter_bytes(stochastic_rounding{}) == 6.0);
}

}  // namespace properties_bytes_by_type_tests
