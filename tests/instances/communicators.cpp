// The communicators of most tests, behind any_communicator: see instances.hpp.
#include "instances/instances.hpp"

namespace slamb::detail {

template class collectives_of<thread_communicator, host_stream>;
template class collectives_of<self_communicator, host_stream>;

}  // namespace slamb::detail
