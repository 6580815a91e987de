// expect: needs a Communicator with all_to_all.*and so does sync::partition
#include <cstddef>
#include <span>

#include "slamb/slamb.hpp"

// Has all_reduce_sum and all_gather, but no all_to_all.
struct summing_communicator {
  int rank() const { return 0; }
  int size() const { return 1; }
  void all_reduce_sum(std::span<float> values, slamb::host_stream stream);
  void all_gather(std::span<const std::byte> mine, std::span<std::byte> all, slamb::host_stream stream);
};

slamb::adamw<slamb::sync::partition<>, summing_communicator> optimizer({}, {});
