// expect: hierarchical_communicator<Intra, Inter> needs an Intra with broadcast.std::span<std::byte>, root
#include <cstddef>
#include <span>

#include "slamb/slamb.hpp"

// Broadcasts sums, but no codes.
struct node_communicator {
  int rank() const { return 0; }
  int size() const { return 1; }
  void all_reduce_sum(std::span<float> values, slamb::host_stream stream);
  void broadcast(std::span<float> values, int root, slamb::host_stream stream);
};
using nodes = slamb::hierarchical_communicator<node_communicator, slamb::self_communicator>;

using enough = slamb::lamb<nodes>;
static_assert(sizeof(enough) > 0);

slamb::one_bit_adam<nodes> optimizer({}, {});
