// AdamW with every compressor.
#include "gradient.hpp"

namespace binding {

std::span<const combination> adamw_combinations() {
  static constexpr auto all = gradient_combinations<slamb::unit_trust_ratio>();
  return all;
}

}  // namespace binding
