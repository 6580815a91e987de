// expect: all_reduce_sum needs a communicator
#include <span>

#include "slamb/slamb.hpp"

// Has a rank but no size: not a communicator, in spite of its collectives.
struct lone_rank {
  static int rank() { return 0; }
  void all_reduce_sum(std::span<float> values, slamb::host_stream stream);
};

static_assert(slamb::capability::has_all_reduce_sum<slamb::self_communicator, float>);
static_assert(slamb::capability::has_all_reduce_sum<lone_rank, float>, "all_reduce_sum needs a communicator");
