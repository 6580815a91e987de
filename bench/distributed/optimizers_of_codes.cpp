// 1-bit Adam, 1-bit LAMB and 0/1 Adam, after one step with the whole gradient.
#include <array>
#include <bit>

#include "optimizers.hpp"

namespace bench::distributed {

namespace {

template <class Optimizer>
measurement measure_one_bit(const scene& at, const std::string& name) {
  typename Optimizer::options_type options;
  options.warm_up.steps = 1;
  return measure<Optimizer>(at, name, options, {.phase = "compressed"});
}

// The variance is frozen after the first step. Then the interval of exchanges doubles at every step, up to the chosen interval.
measurement measure_zero_one_adam(const scene& at, const std::string& name) {
  using optimizer = slamb::zero_one_adam<ranks>;
  optimizer::options_type options;
  options.variance_schedule.freeze_step = 1;
  options.local_schedule.scaler = 1;
  options.local_schedule.clipper = at.chosen.local_interval;
  const auto doublings = static_cast<std::uint64_t>(std::bit_width(at.chosen.local_interval));
  return measure<optimizer>(at, name, options,
                            {.phase = "local steps", .period = at.chosen.local_interval, .untimed = 2 + doublings});
}

}  // namespace

std::span<const measured_optimizer> optimizers_of_codes() {
  static constexpr std::array<measured_optimizer, 3> all{{
      {"one_bit_adam", measure_one_bit<slamb::one_bit_adam<ranks>>},
      {"one_bit_lamb", measure_one_bit<slamb::one_bit_lamb<ranks>>},
      {"zero_one_adam", measure_zero_one_adam},
  }};
  return all;
}

}  // namespace bench::distributed
