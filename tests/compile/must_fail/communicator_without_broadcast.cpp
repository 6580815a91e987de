// expect: chooses by value needs a Communicator with broadcast
#include <span>

#include "slamb/slamb.hpp"

// Has all_reduce_sum, but no broadcast of the leader's choice.
struct summing_communicator {
  int rank() const { return 0; }
  int size() const { return 1; }
  void all_reduce_sum(std::span<float> values, slamb::host_stream stream);
};

slamb::slamb<summing_communicator, slamb::top_k> optimizer({}, {});
