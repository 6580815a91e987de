// The values that benchmarks work on: fixed, and the same on the host and on a device.
#pragma once

#include <cstdint>

#include "slamb/core/config.hpp"

namespace bench {

/// A number in [−scale, scale) that depends only on (seed, i).
SLAMB_HOST_DEVICE inline float made_up(std::uint32_t i, std::uint32_t seed, float scale) {
  std::uint32_t bits = i * 0x9E3779B1U + seed;
  bits = (bits ^ (bits >> 16U)) * 0x7FEB352DU;
  bits = (bits ^ (bits >> 15U)) * 0x846CA68BU;
  bits ^= bits >> 16U;
  return static_cast<float>(static_cast<std::int32_t>(bits)) * (scale / 2147483648.0F);
}

/// The initial values of parameters and gradients.
struct made_up_values {
  float scale;
  std::uint32_t seed;
};
inline constexpr made_up_values made_up_parameters{0.05F, 3};
inline constexpr made_up_values made_up_gradients{0.001F, 4};

}  // namespace bench
