// 1-bit Adam with every quantizer.
#include "one_bit.hpp"

namespace binding {

std::span<const combination> one_bit_adam_combinations() {
  static constexpr auto all = one_bit_combinations<slamb::unit_trust_ratio>();
  return all;
}

}  // namespace binding
