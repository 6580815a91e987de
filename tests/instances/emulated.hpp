// The recipes on the CUDA backend's emulated kernels that several tests use: see instances.hpp.
#pragma once

#include "slamb/backend/cuda/emulated_backend.hpp"
#include "slamb/slamb.hpp"
#include "support/deferred_backend.hpp"
#include "support/recorded_backend.hpp"

#if defined(SLAMB_INSTANCES_ON_OTHER_BACKENDS)
namespace slamb::detail {

using test_support::deferred_backend;
using test_support::recorded_backend;

#define SLAMB_RECIPE(...) extern template struct recipe_maker<__VA_ARGS__>;
#include "instances/emulated.def"
#undef SLAMB_RECIPE

}  // namespace slamb::detail
#endif
