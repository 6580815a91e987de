// The Communicator over MPI, for buffers on GPUs. Opt-in: needs the headers of CUDA and MPI, and the targets slamb::cuda and
// slamb::mpi.
#pragma once

#include "slamb/core/config.hpp"  // first: checks the compiler's settings

#include "slamb/communicator/cuda/mpi_communicator.hpp"
#include "slamb/communicator/mpi_device_options.hpp"
#include "slamb/mpi.hpp"
