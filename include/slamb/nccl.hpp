// The Communicator over NCCL, for buffers on GPUs. Opt-in: needs the headers of CUDA and NCCL, and the target slamb::nccl.
#pragma once

#include "slamb/core/config.hpp"  // first: checks the compiler's settings

#include "slamb/communicator/nccl_communicator.hpp"
#include "slamb/communicator/nccl_error.hpp"
#include "slamb/communicator/nccl_types.hpp"
#include "slamb/detail/runtime/cuda_stream.hpp"  // also for self_communicator on the streams of CUDA
