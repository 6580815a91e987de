// expect: a sparsifier's block_memory must fit in the other 12 KiB
#include <cstdint>
#include <span>

#include "slamb/backend/cuda/emulated_backend.hpp"
#include "slamb/slamb.hpp"

struct greedy {
  struct block_memory {
    float value[5000];
  };
  std::uint32_t chosen_of(std::uint32_t count) const { return count; }
  void choose(const float*, std::uint32_t, std::uint16_t*) const {}
  template <class Block>
  void choose_in_block(Block&, block_memory&, const float*, std::uint32_t, std::uint16_t*) const {}
};

using trained = slamb::slamb<slamb::self_communicator, greedy, slamb::rescaled_trust_ratio<>, slamb::emulated_backend>;

trained make(std::span<const slamb::parameter> tensors) { return trained(tensors); }
