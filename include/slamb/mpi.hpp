// The Communicator over MPI, for host buffers. Opt-in: needs an MPI of version 3 or newer, and the target slamb::mpi.
#pragma once

#include "slamb/core/config.hpp"  // first: checks the compiler's settings

#include "slamb/communicator/mpi_communicator.hpp"
#include "slamb/communicator/mpi_environment.hpp"
#include "slamb/communicator/mpi_error.hpp"
#include "slamb/communicator/mpi_hierarchy.hpp"
