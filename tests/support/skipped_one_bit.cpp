// 1-bit Adam, 1-bit LAMB and 0/1 Adam, for the tests of skipped steps.
#include "support/skipped_training.hpp"

namespace test_support {

namespace {

template <class Backend>
using one_bit_adam_on = slamb::one_bit_adam<failing_communicator, slamb::sign, Backend>;
template <class Backend>
using one_bit_lamb_on = slamb::one_bit_lamb<failing_communicator, slamb::sign, Backend>;
template <class Backend>
using automatic_on = slamb::one_bit_lamb<slamb::automatic_warm_up, failing_communicator, Backend>;
template <class Backend>
using zero_one_on = slamb::zero_one_adam<failing_communicator, slamb::sign, Backend>;

}  // namespace

std::vector<skipping_recipe> skipping_one_bit() {
  constexpr auto per_tensor = slamb::scale_sharing::per_tensor;
  std::vector<skipping_recipe> all{
      on_both<one_bit_adam_on>(
          "one_bit_adam",
          {.ranks = {.bucket_bytes = small_bucket}, .warm_up = {3}, .compressor = {.zero_aware = true}}),
      on_both<one_bit_lamb_on>("one_bit_lamb", {.warm_up = {3}}),
      on_both<one_bit_lamb_on>("one_bit_lamb, by tensor", {.warm_up = {3}, .compressor = {.scales = per_tensor}}),
      on_both<one_bit_adam_on>("one_bit_adam, alone", {.compress_single_rank = true, .warm_up = {1}}),
      on_both<one_bit_lamb_on>("one_bit_lamb, alone", {.compress_single_rank = true, .warm_up = {1}}),
      on_both<zero_one_on>("zero_one_adam, by tensor",
                           {.variance_schedule = {.freeze_step = 0}, .compressor = {.scales = per_tensor}}),
      on_both<automatic_on>("one_bit_lamb, automatic", {.warm_up = {.interval = 32, .most_steps = 5}}),
      // Steps 1 and 3 refresh the variance, steps 2 and 4 send gradients as signs; from then on τ = 6, 7, … with L = 1, 1, 2, 2,
      // 4, ….
      on_both<zero_one_on>("zero_one_adam", {.variance_schedule = {.freeze_step = 4, .update_scaler = 1},
                                             .local_schedule = {.scaler = 2, .clipper = 4}})};
  all.back().silent_steps = {7, 8, 9, 11, 12, 13};  // τ = 9 of L = 2, then all but 12 and 16 of L = 4
  return all;
}

}  // namespace test_support
