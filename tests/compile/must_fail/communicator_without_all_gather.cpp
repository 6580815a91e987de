// expect: a quantized exchange needs a Communicator with all_gather
#include <cstddef>
#include <span>

#include "slamb/slamb.hpp"

// Has all_reduce_sum and all_to_all, but no all_gather.
struct summing_communicator {
  int rank() const { return 0; }
  int size() const { return 1; }
  void all_reduce_sum(std::span<float> values, slamb::host_stream stream);
  void all_to_all(std::span<const std::byte> send, std::span<std::byte> receive, slamb::host_stream stream);
};

slamb::one_bit_adam<summing_communicator> optimizer({}, {});
