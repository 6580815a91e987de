// The settings of optimizers in tests on devices and in processes.
#pragma once

namespace device_tests {

/// Settings with short phases, common to all recipes.
template <class Options>
Options short_options(bool is_captured) {
  Options options{};
  options.beta1 = 0.8;
  options.beta2 = 0.95;
  options.epsilon = 1e-5;
  options.weight_decay = 0.03;
  if constexpr (requires { options.local_steps; }) options.local_steps = is_captured ? 0 : 3;
  if constexpr (requires { options.dense_below; }) options.dense_below = 100;
  if constexpr (requires { options.compress_single_rank; }) options.compress_single_rank = is_captured;
  if constexpr (requires { options.warm_up.steps; }) options.warm_up.steps = 3;
  if constexpr (requires { options.variance_schedule.freeze_step; }) {
    options.variance_schedule.freeze_step = 4;
    options.variance_schedule.update_scaler = 1;
    options.local_schedule.scaler = 2;
    options.local_schedule.clipper = 4;
  }
  return options;
}

}  // namespace device_tests
