// expect: chooses by value needs a Communicator with broadcast
#include <span>

#include "slamb/slamb.hpp"

// Adds, but cannot tell the others what the leader has chosen.
struct summing_communicator {
  int rank() const { return 0; }
  int size() const { return 1; }
  void all_reduce_sum(std::span<float> values, slamb::host_stream stream);
};

slamb::slamb<summing_communicator, slamb::top_k> optimizer({});
