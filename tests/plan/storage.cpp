// The bytes in which a Backend stores a model, and the memory traffic that plans count with them.
#include "slamb/plan/storage.hpp"

#include <doctest/doctest.h>

#include <cstdint>
#include <stdexcept>
#include <vector>

#include "slamb/core/storage_bytes.hpp"
#include "slamb/slamb.hpp"

namespace plan_storage_tests {
namespace {

using slamb::plan::storage_bytes;
using slamb::plan::stored_by;
using slamb::precision::master_copies;
using slamb::precision::stochastic_rounding;

template <class Communicator, class Backend>
using blocks = slamb::slamb<Communicator, slamb::no_compressor, slamb::rescaled_trust_ratio<>, Backend>;

}  // namespace

TEST_CASE("plan: memory traffic is that of the types in which a Backend stores a model") {
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
  // With one step of warm-up, step 3 is a compressed one.
  const slamb::one_bit_lamb<>::options_type codes{.compress_single_rank = true, .warm_up = {.steps = 1}};
  const auto one_bit = [&](const storage_bytes& stored) {
    const auto plan = slamb::plan::plan_traffic(shapes, codes, {.ranks = 1, .stored = stored});
    return 3.0 * plan.memory_bytes(3) - 2.0 * plan.memory_bytes(2);
  };
  CHECK(one_bit({}) == 80.75);
  CHECK(one_bit(stored_by<masters>(bf16, bf16)) == 78.75);
  CHECK(one_bit(stored_by<chance>(bf16, bf16)) == 70.75);
  // A local step of 0/1 Adam: the check reads g; then g, m, v, b and the anchor are read, and p, m and b are written.
  const slamb::zero_one_adam<>::options_type local{.variance_schedule = {.freeze_step = 0},
                                                   .local_schedule = {.scaler = 1, .clipper = 64}};
  const auto local_step = [&](const storage_bytes& stored) {
    const auto plan = slamb::plan::plan_traffic(shapes, local, {.ranks = 2, .stored = stored});
    std::uint64_t t = 2;
    while (plan.step(t).total().rounds > 0) ++t;
    return static_cast<double>(t) * plan.memory_bytes(t) - static_cast<double>(t - 1) * plan.memory_bytes(t - 1);
  };
  CHECK(local_step({}) == doctest::Approx(4.0 + 20.0 + 12.0).epsilon(1e-12));
  CHECK(local_step(stored_by<masters>(bf16, bf16)) == doctest::Approx(2.0 + 18.0 + 14.0).epsilon(1e-12));
  CHECK(local_step(stored_by<chance>(bf16, bf16)) == doctest::Approx(2.0 + 18.0 + 10.0).epsilon(1e-12));
  // It begins with a refresh: AdamW's bytes, and a search for elements without a variance.
  CHECK(planned(slamb::zero_one_adam<>::options_type{}, 1, stored_by<masters>(bf16, bf16)) == 30.0 + 4.0);
}

TEST_CASE("plan: the tensors of a quantized exchange that are sent as floats are counted as floats") {
  using lamb = slamb::lamb<slamb::int8, slamb::no_error_feedback>;
  const auto planned = [](bool compress) {
    const std::vector<slamb::plan::tensor_shape> shapes{{.size = 64'000, .compress = compress}};
    return slamb::plan::plan_traffic(shapes, lamb::options_type{}, {.ranks = 2}).memory_bytes(1);
  };
  constexpr double update = 40.0,
                   code = 1.0 + 4.0 / 128.0;  // LAMB by a gradient in floats; a byte, and a block's scale
  // Each rank reads g and writes it to be summed, and then copies the sum.
  CHECK(planned(false) == 4.0 + 4.0 + 4.0 + 4.0 + update);
  // It reads g and writes codes; averages half of the elements of both ranks; reads the codes of the mean and writes it.
  CHECK(planned(true) == 4.0 + code + (code + 0.5 * (4.0 + code)) + code + 4.0 + update);
}

TEST_CASE("plan: moments in fewer bits take the memory traffic of their storage") {
  const auto stored = []<class Moments>(Moments /*moments*/) {
    const slamb::bfloat16 number{};
    const std::vector<slamb::parameter> tensors{{.data = nullptr, .gradient = &number, .size = 1}};
    return stored_by<slamb::precision::mixed<slamb::host_backend, master_copies, Moments>>(tensors);
  };
  CHECK(stored(slamb::precision::float_moments{}).of("momentum") == 4.0);
  CHECK(stored(slamb::precision::bfloat16_momentum{}).of("momentum") == 2.0);
  CHECK(stored(slamb::precision::bfloat16_momentum{}).of("variance") == 4.0);
  const storage_bytes eight = stored(slamb::precision::eight_bit_moments{});
  CHECK(eight.of("momentum") == 1.0 + 1.0 / 64.0);
  CHECK(eight.of("variance") == 1.0 + 1.0 / 64.0);
  CHECK(eight.of("anchor") == 4.0);
}

TEST_CASE("plan: moments are stored as the Backend of an optimizer says, or as `stored_by` says for its options") {
  using in_bits = slamb::precision::mixed<slamb::host_backend, master_copies, slamb::precision::eight_bit_moments>;
  using in_floats = slamb::precision::mixed<>;
  const std::vector<slamb::plan::tensor_shape> shapes{{.size = 64'000}};
  // Elements without a variance are looked for when it is frozen: with zero_aware, v is read to mark the others.
  const slamb::one_bit_lamb<>::options_type options{.warm_up = {.steps = 1}, .compressor = {.zero_aware = true}};
  const auto of_type = [&]<class Backend>(Backend /*backend*/, const storage_bytes& stored) {
    using optimizer = slamb::one_bit_lamb<slamb::self_communicator, slamb::sign, Backend>;
    return slamb::plan::plan_traffic<optimizer>(shapes, options, {.ranks = 4, .stored = stored}).memory_bytes(3);
  };
  const storage_bytes bits = stored_by<in_bits>(slamb::parameter::float32, slamb::parameter::float32);
  const double by_options = slamb::plan::plan_traffic(shapes, options, {.ranks = 4, .stored = bits}).memory_bytes(3);
  CHECK(of_type(in_bits{}, {}) == doctest::Approx(by_options).epsilon(1e-12));
  CHECK(of_type(in_bits{}, bits) == of_type(in_bits{}, {}));
  CHECK(of_type(in_floats{}, bits) == of_type(in_floats{}, {}));
  CHECK(of_type(in_floats{}, {}) > of_type(in_bits{}, {}) + 5.0);
}

TEST_CASE("plan: a plan keeps the bytes of arrays that it was given") {
  const auto plan = [] {
    const slamb::plan::array_bytes in_bits[] = {{"momentum", 2.0}, {"variance", 1.0}};
    const std::vector<slamb::plan::tensor_shape> shapes{{.size = 1000}};
    return slamb::plan::plan_traffic(shapes, slamb::adamw<>::options_type{}, {.stored = {.arrays = in_bits}});
  }();
  CHECK(plan.memory_bytes(1) == 32.0 - 2 * 2.0 - 2 * 3.0);
}

TEST_CASE("plan: a master copy of the caller's takes the memory traffic of the optimizer's") {
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

TEST_CASE("plan: without tensors the storage is that of floats in parameters and gradients") {
  using eight_bits = slamb::precision::mixed<slamb::host_backend, master_copies, slamb::precision::eight_bit_moments>;
  const storage_bytes stored = stored_by<eight_bits>({});
  CHECK(stored.parameter == 4.0);
  CHECK(stored.gradient == 4.0);
  CHECK(stored.of("momentum") == 1.0 + 1.0 / 64.0);
}

TEST_CASE("plan: types that a Backend does not store are rejected") {
  CHECK_THROWS_WITH_AS(
      stored_by<slamb::host_backend>(slamb::parameter::bfloat16, slamb::parameter::float16),
      "slamb: plan::stored_by: the Backend stores float32 alone, but the tensors have parameters of bfloat16 and "
      "gradients of float16; plan for precision::mixed<Backend>",
      std::invalid_argument);
}

}  // namespace plan_storage_tests
