// expect: NCCL has no element type for these elements: specialise slamb::nccl_type for them, or send them as std::byte
#include <cstdint>
#include <span>

#include "slamb/nccl.hpp"

void send(slamb::nccl_communicator& communicator, std::span<std::int16_t> values) {
  communicator.broadcast(values, 0, nullptr);
}
