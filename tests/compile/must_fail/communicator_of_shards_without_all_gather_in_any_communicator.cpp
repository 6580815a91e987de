// expect: a Communicator with shard_size.. must have shard_rank.. too, all_reduce_in_shards
#include <span>

#include "slamb/slamb.hpp"

// Cannot gather what the ranks of a shard group say.
struct summing_communicator {
  int rank() const { return 0; }
  int size() const { return 1; }
  void all_reduce_sum(std::span<float> values, slamb::host_stream stream);
};

slamb::any_communicator<> ranks(slamb::sharded_communicator(slamb::self_communicator{}, summing_communicator{}));
