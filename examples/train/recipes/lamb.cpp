// LAMB with every compressor.
#include <slamb/compressed_lamb.hpp>

#include "compressed_gradient.hpp"

namespace train {

std::span<const combination> lamb_combinations() {
  static constexpr auto all =
      gradient_combinations<slamb::lamb<rank_communicator, rank_backend>, slamb::layerwise_trust_ratio>();
  return all;
}

}  // namespace train
