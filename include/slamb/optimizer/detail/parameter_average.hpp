// Replaces the parameters of all ranks by their mean, or by those of one rank.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "slamb/core/config.hpp"
#include "slamb/core/detail/function_ref.hpp"
#include "slamb/detail/pass/layout.hpp"
#include "slamb/detail/pass/model_passes.hpp"

namespace slamb::detail {

class optimizer_core;

/// The least number of elements of a buffer for `average_parameters`.
inline std::uint64_t least_averaging_buffer(const layout& tensors) noexcept {
  return std::min<std::uint64_t>(layout::tile_size, tensors.elements());
}

/// Calls visit(pieces, tiles, values) for the parameters piece by piece: `values` is the part of `buffer` for the piece's
/// elements.
void for_each_piece_of_parameters(
    const optimizer_core& core, std::span<float> buffer,
    function_ref<void(any_view& pieces, const tile_range& tiles, std::span<float> values)> visit);

/// Averages the parameters over ranks, piece by piece through `buffer`. The number of collectives depends on sizes alone.
///
/// @param skip  if it points to a value other than 0, parameters stay as they are, on all ranks
void average_parameters(optimizer_core& core, std::span<float> buffer, const std::uint32_t* skip = nullptr);

/// Gives all ranks the parameters of rank `root` (of nodes: of its leader), piece by piece through `buffer`. Without a broadcast
/// of the Communicator it uses a sum in which the other ranks contribute 0.
void broadcast_parameters(optimizer_core& core, int root, std::span<float> buffer);

/// The ranks that make a call together: those of all groups, or those of this rank's shard group.
enum class calling_ranks : std::uint8_t { all, of_shard_group };

/// Calls allocate() on each of these ranks before the collectives of `call`. If it fails on one rank, it throws there, and
/// communicator_error on all others, which would otherwise wait for that rank. Nothing has been exchanged then, and all can
/// continue. Collective over these ranks.
void allocate_on_all_ranks(optimizer_core& core, const char* call, function_ref<void()> allocate,
                           calling_ranks called_by = calling_ranks::all);

/// Calls `average`, which replaces the parameters by their mean over ranks, then `evaluate`. Restores this rank's parameters,
/// also if one of these throws. Allocates 4 bytes a parameter.
void evaluate_on_average(optimizer_core& core, function_ref<void()> average, function_ref<void()> evaluate);

}  // namespace slamb::detail
