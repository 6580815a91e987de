// Replaces the parameters of all ranks by their mean, or by those of one rank.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "slamb/core/detail/consistency_check.hpp"
#include "slamb/core/error.hpp"
#include "slamb/core/statistics.hpp"
#include "slamb/detail/exchange/consistency.hpp"
#include "slamb/detail/pass/arena.hpp"
#include "slamb/detail/pass/layout.hpp"
#include "slamb/detail/pass/model_passes.hpp"
#include "slamb/detail/pass/pass.hpp"

namespace slamb::detail {

/// The least number of elements of a buffer for `average_parameters`.
inline std::uint64_t least_averaging_buffer(const layout& tensors) noexcept {
  return std::min<std::uint64_t>(layout::tile_size, tensors.elements());
}

/// Calls visit(pieces, tiles, values) for the parameters piece by piece: `values` is the part of `buffer` for the piece's
/// elements.
template <class Context, class Visit>
void for_each_piece_of_parameters(Context& context, std::span<float> buffer, const Visit& visit) {
  auto pieces = context.view();
  pieces.skip = nullptr;
  if constexpr (Context::precision::rounds_by_chance) pieces.draws.use = rounding_draws::of_average;
  pieces.exchanged = buffer.data();
  for_each_piece(
      context.tensors.tiles().size(), buffer.size(), [&](std::size_t i) { return context.tensors.tiles()[i].count; },
      [&](const tile_range& tiles, std::uint64_t elements) {
        pieces.exchanged_first = context.tensors.first_element(context.tensors.tiles()[tiles.first]);
        visit(pieces, tiles, buffer.first(elements));
      });
}

/// Averages the parameters over ranks, piece by piece through `buffer`. The number of collectives depends on sizes alone.
///
/// @param skip  if it points to a value other than 0, parameters stay as they are, on all ranks
template <class Context>
void average_parameters(Context& context, std::span<float> buffer, const std::uint32_t* skip = nullptr) {
  if (context.ranks.size() == 1) return;
  const scatter_parameters scatter_mean{{}, 1.0F / static_cast<float>(context.ranks.size())};
  for_each_piece_of_parameters(context, buffer, [&](auto pieces, const tile_range& tiles, std::span<float> values) {
    pieces.skip = skip;
    context.executor.run(gather_parameters{}, pieces, tiles);
    context.ranks.all_reduce_sum(values, context.executor.stream());
    context.executor.run(scatter_mean, pieces, tiles);
  });
}

/// Gives all ranks the parameters of rank `root` (of nodes: of its leader), piece by piece through `buffer`. Without a broadcast
/// of the Communicator it uses a sum in which the other ranks contribute 0.
template <class Context>
void broadcast_parameters(Context& context, int root, std::span<float> buffer) {
  const bool is_root = context.ranks.rank() == root && context.ranks.local_rank() == 0;
  const bool has_broadcast = context.ranks.wrapped().has(collective::broadcast);
  for_each_piece_of_parameters(
      context, buffer, [&](const auto& pieces, const tile_range& tiles, std::span<float> values) {
        if (is_root)
          context.executor.run(gather_parameters{}, pieces, tiles);
        else
          context.executor.clear(std::as_writable_bytes(values));
        if (has_broadcast && context.ranks.size() > 1) {
          context.ranks.broadcast(std::as_writable_bytes(values), root, context.executor.stream());
        } else {
          context.ranks.all_reduce_in_node(values, context.executor.stream());
          if (context.ranks.size() > 1) context.ranks.all_reduce_sum(values, context.executor.stream());
        }
        context.executor.run(scatter_parameters{}, pieces, tiles);
      });
}

/// Calls allocate() on every rank before the collectives of `call`. If it fails on one rank, it throws there, and
/// communicator_error on all others, which would otherwise wait for that rank. Nothing has been exchanged then, and all can
/// continue. Collective.
///
/// @param from  the backend's allocator; on a device, for a few bytes that ranks exchange
template <class Context, class Allocate>
void allocate_on_all_ranks(Context& context, const allocator& from, const char* call, const Allocate& allocate) {
  auto& communicator = context.ranks.wrapped();
  const host_ranks ranks(communicator, context.executor, from);
  const summing_ranks all = ranks.all();
  if (all.size == 1) return allocate();
  std::vector<float> fails(static_cast<std::size_t>(all.size), 0.0F);  // [ranks]
  std::exception_ptr own;
  try {
    allocate();
  } catch (...) {
    own = std::current_exception();
    fails[static_cast<std::size_t>(all.rank)] = 1.0F;
  }
  try {
    all.all_reduce_sum(fails);
  } catch (const std::bad_alloc&) {  // no memory even for these few bytes
    communicator.abort(std::string("there is no memory for ") + call);
    if (own == nullptr) throw;
  } catch (...) {
    if (own == nullptr) throw;  // else the first error says more
  }
  if (own != nullptr) std::rethrow_exception(own);
  const auto failing = std::ranges::find_if(fails, [](float f) { return f != 0.0F; });
  if (failing != fails.end())
    throw communicator_error("slamb: " + std::string(call) + " did not begin: rank " +
                             std::to_string(failing - fails.begin()) +
                             " could not allocate memory for it; nothing has changed on any rank");
}

/// Exchange buffer → parameters, to the bit.
struct restore_parameters : pass_without_constants {
  using reads = arrays<array::exchanged>;
  using writes = arrays<array::parameter>;
  static constexpr int sums = 0;

  template <class Element, class Sums>
  SLAMB_ELEMENT void operator()(Element& e, no_constants /*constants*/, Sums& /*sums*/) const {
    e.parameter = e.exchanged;
  }
};

/// A copy of this rank's parameters, which restores them at the end.
template <class Context>
class kept_parameters {
 public:
  /// @param from  allocates 4 bytes a parameter
  kept_parameters(Context& context, const allocator& from) : context_(&context) {
    const region<float> all = memory_.plan<float>("own parameters", context.tensors.elements());
    memory_.allocate(from);
    view_ = context.view();
    view_.skip = nullptr;
    view_.exchanged = memory_.view(all).data();
    context.executor.run(gather_parameters{}, view_, context.all_tiles());
  }
  kept_parameters(const kept_parameters&) = delete;
  kept_parameters& operator=(const kept_parameters&) = delete;
  ~kept_parameters() = default;

  /// @throws the exception of the communicator's wait, if it is the first error. The memory is freed once nothing reads it
  void restore() {
    context_->executor.run(restore_parameters{}, view_, context_->all_tiles());
    context_->executor.wait(context_->ranks.wrapped());
  }

 private:
  Context* context_;
  arena memory_;
  typename Context::view_type view_;
};

/// Calls `average`, which replaces the parameters by their mean over ranks, then `evaluate`. Restores this rank's parameters,
/// also if one of these throws.
template <class Context, class Average, class Evaluate>
void evaluate_on_average(Context& context, const allocator& from, const Average& average, const Evaluate& evaluate) {
  std::optional<kept_parameters<Context>> own;
  allocate_on_all_ranks(context, from, "with_averaged_parameters()", [&] { own.emplace(context, from); });
  try {
    average();
    evaluate();
  } catch (...) {
    try {
      own->restore();
    } catch (...) {
      // The restore is enqueued. The first error is more useful than an error of waiting for it.
    }
    throw;
  }
  own->restore();
}

}  // namespace slamb::detail
