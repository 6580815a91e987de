// What an MPI that is built for CUDA says, or one that is not.
#pragma once

#define MPIX_CUDA_AWARE_SUPPORT 1

inline int mpi_says = 0;  ///< what the next question is answered

inline int MPIX_Query_cuda_support() { return mpi_says; }
