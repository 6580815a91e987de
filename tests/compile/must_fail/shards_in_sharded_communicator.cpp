// expect: a sharded_communicator cannot be a part of another one
#include <utility>

#include "slamb/slamb.hpp"

using shards = slamb::sharded_communicator<slamb::self_communicator, slamb::thread_communicator>;

using nested = slamb::sharded_communicator<shards, slamb::thread_communicator>;

void call(shards exchange, slamb::thread_communicator group) { nested all(std::move(exchange), std::move(group)); }
