// expect: the Exchange of a sharded_communicator joins single ranks, not nodes
#include <utility>

#include "slamb/slamb.hpp"

using nodes = slamb::hierarchical_communicator<slamb::thread_communicator, slamb::thread_communicator>;

using shards = slamb::sharded_communicator<nodes, slamb::thread_communicator>;

void call(nodes exchange, slamb::thread_communicator group) { shards all(std::move(exchange), std::move(group)); }
