// expect: hierarchical_communicator<Intra, Inter> needs an Intra with broadcast.std::span<float>, root
#include <cstddef>
#include <span>

#include "slamb/slamb.hpp"

// Broadcasts bytes, but no sums.
struct node_communicator {
  int rank() const { return 0; }
  int size() const { return 1; }
  void all_reduce_sum(std::span<float> values, slamb::host_stream stream);
  void broadcast(std::span<std::byte> values, int root, slamb::host_stream stream);
};

slamb::lamb<slamb::hierarchical_communicator<node_communicator, slamb::self_communicator>> optimizer({}, {});
