// The device of all ranks. Everything else in this folder is the same for the host and for a GPU.
#pragma once

#include <slamb/backend/host/host_backend.hpp>
#include <slamb/communicator/thread_communicator.hpp>

namespace many_ranks {

/// Buffers in host memory. @{
using rank_communicator = slamb::thread_communicator;
using rank_backend = slamb::host_backend;
/// @}

/// What a rank's thread makes on the device before it constructs its optimizer. Ranks run at the same time, so one needs no
/// further threads.
inline rank_backend make_backend() { return {.threads = 1}; }

}  // namespace many_ranks
