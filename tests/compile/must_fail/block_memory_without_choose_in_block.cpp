// expect: slamb: a sparsifier with a block_memory must have choose_in_block
#include <cstdint>
#include <span>

#include "slamb/backend/cuda/emulated_backend.hpp"
#include "slamb/slamb.hpp"

struct forgetful {
  struct block_memory {
    float largest;
  };
  std::uint32_t chosen_of(std::uint32_t count) const { return count; }
  void choose(const float*, std::uint32_t, std::uint16_t*) const {}
};

using trained =
    slamb::slamb<slamb::self_communicator, forgetful, slamb::rescaled_trust_ratio<>, slamb::emulated_backend>;

trained make(std::span<const slamb::parameter> tensors) { return trained(tensors); }
