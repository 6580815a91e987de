// Recipes that several programs of this project use, each compiled once, in a source of this folder. A recipe does not depend on
// the type of its Communicator, so one instance serves tests with any communicator, tools, and ranks over MPI.
//
// A recipe that is not in the lists is compiled where it is used. The communicators of most recipes are here too.
#pragma once

#include "slamb/slamb.hpp"

namespace slamb::detail {

extern template class collectives_of<thread_communicator, host_stream>;
extern template class collectives_of<self_communicator, host_stream>;

#define SLAMB_RECIPE(...) extern template struct recipe_maker<__VA_ARGS__>;
#include "instances/lamb.def"
#include "instances/one_bit.def"
#include "instances/slamb.def"
#if defined(SLAMB_INSTANCES_ON_OTHER_BACKENDS)
#include "instances/mixed.def"
#endif
#undef SLAMB_RECIPE

}  // namespace slamb::detail
