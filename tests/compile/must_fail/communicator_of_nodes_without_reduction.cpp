// expect: a Communicator with local_size.. must have local_rank.. too, and all_reduce_in_node
#include <span>

#include "slamb/slamb.hpp"

// Declares that ranks form nodes, but does not reduce gradients within a node.
struct node_communicator {
  int rank() const { return 0; }
  int size() const { return 1; }
  int local_rank() const { return 0; }
  int local_size() const { return 2; }
  void all_reduce_sum(std::span<float> values, slamb::host_stream stream);
};

slamb::lamb<node_communicator> optimizer({}, {});
