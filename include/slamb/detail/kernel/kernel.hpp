// Kernels: the work of passes and exchanges, written once for all backends. A backend launches them.
//
// A kernel is a trivially copyable struct with
//
//     std::size_t work() const;                                 // the most teams that have something to do
//     template <class Team> void operator()(Team& team) const;  // the work of one team
//
// A team is a few threads that share memory: a block of a GPU (backend/cuda/detail/team.hpp), or one thread of the host
// (backend/host/detail/worker.hpp). Each of team.count() teams calls the operator once, and takes every count()-th piece of
// work from team.index() on. The operator consists of phases:
//
//     team.each([&](unsigned thread) { … });                            // every thread, then a barrier
//     team.first([&] { … });                                            // one thread, then a barrier
//     const double all = team.sum([&](unsigned thread) { return …; });  // the same in all threads; a barrier
//
// Code between phases (loops over tiles, tables, pointers) must be the same for all threads, because an emulated team runs it
// once. Only phases may write memory. A thread keeps values from phase to phase in `Team::registers<T>`. Threads share memory
// of the team in `team.shared<T>()`. Within a phase, no thread may read memory that another thread writes in the same phase:
// the emulator runs threads one after another, in an order that tests vary.
//
// Elements are worked on at *positions*: a few consecutive elements of a tile that one thread has. `At` is the type of a
// position, At::real, At::word and At::mask are those of its numbers: sixteen lanes on the host, four or one on a GPU. These
// are phases over all positions; `mine` are the results of each thread, sums and maxima of type Team::results<…>:
//
//     each_position(team, first, count, mine, restarts, [&](auto at, auto& own) { … });
//     each_position_of<Writes>(team, arrays, first, count, mine, restarts,
//                              [&](const auto& arrays, auto at, auto& own) { … });   // for bodies that write arrays
//     each_group_of_codes(team, count, [&](auto at) { … });                          // whole groups of codes
//
// At a position: load and store of floats, load_bfloat16, load_half, store_bfloat16, store_typed, load_words, store_words,
// load_codes<Bits>, store_codes<Bits>, load_together and store_together (memory of the team), bits_at, mask_of, existing,
// numbers_at, compress and expand (selected elements), looked_up. The element functions of passes are called by apply and
// signal_of, those of quantizers by encoded: a machine decides whether on all lanes at once. All are found by argument-
// dependent lookup.
//
// Four things are each machine's own, in one header each: codes, random draws, selected elements, and results.
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

// Functions of machines that kernels call with template arguments. clang sees these arguments only if it knows a template of that name;
// argument-dependent lookup finds the functions themselves.
template <auto...>
void write_results() = delete;
template <auto...>
void add_results() = delete;
template <auto...>
void each_block() = delete;

}  // namespace slamb::detail
