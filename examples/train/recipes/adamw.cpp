// AdamW with every compressor.
#include <slamb/compressed_lamb.hpp>

#include "compressed_gradient.hpp"

namespace train {

std::span<const combination> adamw_combinations() {
  static constexpr auto all =
      gradient_combinations<slamb::adamw<rank_communicator, rank_backend>, slamb::unit_trust_ratio>();
  return all;
}

}  // namespace train
