// Ranks that are threads of one process: the communicator, and run_ranks.
#pragma once

#include "slamb/core/config.hpp"  // first: checks the compiler's settings

#include "slamb/communicator/run_ranks.hpp"
#include "slamb/communicator/thread_communicator.hpp"
