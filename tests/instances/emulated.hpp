// The recipes on the CUDA backend's emulated kernels that several tests use: see instances.hpp.
#pragma once

#include "slamb/backend/cuda/emulated_backend.hpp"
#include "slamb/slamb.hpp"

#if defined(SLAMB_INSTANCES_EMULATED)
namespace slamb::detail {

#define SLAMB_RECIPE(...) extern template struct recipe_maker<__VA_ARGS__>;
#include "instances/emulated.def"
#undef SLAMB_RECIPE

}  // namespace slamb::detail
#endif
