// The CUDA backend alone, for use with the narrow header of an optimizer. slamb.hpp includes it when nvcc compiles it.
#pragma once

#include "slamb/core/config.hpp"  // first: checks the compiler's settings

#include "slamb/backend/cuda/cuda_backend.cuh"
