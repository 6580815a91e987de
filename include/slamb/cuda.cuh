// The CUDA backend alone, beside the narrow header of an optimizer; slamb.hpp brings it where nvcc compiles it.
#pragma once

#include "slamb/backend/cuda/cuda_backend.cuh"
