// The answers of an MPI that is built with CUDA support, or of one that is not.
#pragma once

#define MPIX_CUDA_AWARE_SUPPORT 1

inline int mpi_says = 0;  ///< the answer to the next question

inline int MPIX_Query_cuda_support() { return mpi_says; }
