// 1-bit LAMB with every quantizer.
#include "one_bit.hpp"

namespace binding {

std::span<const combination> one_bit_lamb_combinations() {
  static constexpr auto all = one_bit_combinations<slamb::frozen_trust_ratio>();
  return all;
}

}  // namespace binding
