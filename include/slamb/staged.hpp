// A Communicator for host memory, on buffers on GPUs. Opt-in: needs the header of CUDA, and the target slamb::cuda.
#pragma once

#include "slamb/core/config.hpp"  // first: checks the compiler's settings

#include "slamb/communicator/cuda/staged_communicator.hpp"
