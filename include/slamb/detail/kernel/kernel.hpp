// Kernels: the work of passes and exchanges, written once for all backends. A backend launches them.
//
// A kernel is a trivially copyable struct with
//
//     std::size_t work() const;                                // the most teams that have something to do
//     template <class Team> void operator()(Team& team) const; // the work of one team
//
// A team is a few threads that share memory: a block of a GPU, or one thread of the host. Each of team.count() teams calls the
// operator once, and takes every count()-th piece of work from team.index() on. The operator consists of phases:
//
//     team.each([&](unsigned thread) { … });          // every thread, then a barrier
//     team.first([&] { … });                          // one thread, then a barrier
//     const double all = team.sum([&](unsigned thread) { return …; });   // the same in all threads; a barrier
//
// Code between phases (loops over tiles, tables, pointers) must be the same for all threads, because an emulated team runs it
// once. Only phases may write memory. A thread keeps values from phase to phase in `Team::registers<T>`. Threads share
// memory of the team in `team.shared<T>()`. Within a phase, no thread may read memory that another thread writes in the same
// phase: the emulator runs threads one after another, in an order that tests vary.
//
// A kernel whose struct has `static constexpr bool is_small = true` has little work: the host does it on the calling thread.
#pragma once

#include <cstdint>

#include "slamb/core/config.hpp"

namespace slamb::detail {

/// True if the step is skipped: kernels then do nothing.
///
/// @param skip  points to the flag in the backend's memory; may be null
SLAMB_HOST_DEVICE inline bool is_skipped(const std::uint32_t* skip) { return skip != nullptr && *skip != 0; }

/// True for kernels with little work.
template <class Kernel>
inline constexpr bool is_small = requires {
  requires Kernel::is_small;
};

}  // namespace slamb::detail
