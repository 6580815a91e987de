// The recipes on the CUDA backend's interpreted kernels that several tests use: see instances.hpp.
#pragma once

#include "slamb/backend/cuda/interpreted_backend.hpp"
#include "slamb/slamb.hpp"

#if defined(SLAMB_INSTANCES_INTERPRETED)
namespace slamb::detail {

#define SLAMB_RECIPE(...) extern template struct recipe_maker<__VA_ARGS__>;
#include "instances/interpreted.def"
#undef SLAMB_RECIPE

}  // namespace slamb::detail
#endif
