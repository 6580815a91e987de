// LAMB with every compressor.
#include "gradient.hpp"

namespace binding {

std::span<const combination> lamb_combinations() {
  static constexpr auto all = gradient_combinations<slamb::layerwise_trust_ratio>();
  return all;
}

}  // namespace binding
