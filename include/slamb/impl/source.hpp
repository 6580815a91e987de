// The functions of the library that are no templates. A program that defines SLAMB_SEPARATE_COMPILATION includes this header in one
// of its sources; the CMake target slamb::compiled does.
#pragma once

#if !defined(SLAMB_SEPARATE_COMPILATION)
#error "slamb: slamb/impl/source.hpp is for programs that define SLAMB_SEPARATE_COMPILATION in all their sources"
#endif

#include "slamb/impl/backend/host/detail/thread_pool.ipp"
#include "slamb/impl/communicator/detail/collective_call.ipp"
#include "slamb/impl/communicator/detail/thread_rendezvous.ipp"
#include "slamb/impl/communicator/run_ranks.ipp"
#include "slamb/impl/core/detail/collectives.ipp"
#include "slamb/impl/detail/exchange/quantized.ipp"
#include "slamb/impl/detail/exchange/two_phase.ipp"
#include "slamb/impl/detail/pass/arena.ipp"
#include "slamb/impl/detail/pass/layout.ipp"
#include "slamb/impl/detail/pass/messages.ipp"
#include "slamb/impl/detail/pass/wire_layout.ipp"
#include "slamb/impl/detail/ranks/agreement.ipp"
#include "slamb/impl/detail/state/saved_state.ipp"
#include "slamb/impl/detail/state/state_bytes.ipp"
#include "slamb/impl/optimizer/detail/learning_rates.ipp"
#include "slamb/impl/optimizer/detail/local_steps.ipp"
#include "slamb/impl/optimizer/detail/optimizer_core.ipp"
#include "slamb/impl/optimizer/detail/recipe_base.ipp"
#include "slamb/impl/optimizer/detail/trial.ipp"
#include "slamb/impl/plan/detail/dry_run.ipp"
