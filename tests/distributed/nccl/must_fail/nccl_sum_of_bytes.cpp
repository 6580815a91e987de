// expect: elements without arithmetic, such as std::byte, cannot be summed: use a number type, for example std::uint8_t
#include <cstddef>
#include <span>

#include "slamb/nccl.hpp"

void sum(slamb::nccl_communicator& communicator, std::span<std::byte> values) {
  communicator.all_reduce_sum(values, nullptr);
}
