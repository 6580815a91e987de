// The CUDA backend alone, beside the narrow header of an optimizer; slamb.hpp brings it where nvcc compiles it.
#pragma once

#include "slamb/core/config.hpp"  // first: it says what the compiler must be told

#include "slamb/backend/cuda/cuda_backend.cuh"
