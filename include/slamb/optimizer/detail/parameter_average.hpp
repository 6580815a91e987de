// Parameters that differ from rank to rank → their mean, or those of one rank.
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

#include "slamb/core/agreement.hpp"
#include "slamb/core/error.hpp"
#include "slamb/core/statistics.hpp"
#include "slamb/detail/exchange/agreement.hpp"
#include "slamb/detail/pass/arena.hpp"
#include "slamb/detail/pass/common_passes.hpp"
#include "slamb/detail/pass/layout.hpp"
#include "slamb/detail/pass/pass.hpp"

namespace slamb::detail {

/// What a buffer for `average_parameters` must hold at least: elements.
inline std::uint64_t least_averaging_buffer(const layout& tensors) noexcept {
  return std::min<std::uint64_t>(layout::tile_size, tensors.elements());
}

/// Calls visit(pieces, tiles, values) for the parameters piece by piece: `values` are those of the piece's elements in `buffer`.
template <class Base, class Visit>
void for_each_piece_of_parameters(Base& base, std::span<float> buffer, const Visit& visit) {
  model_view pieces = base.view();
  pieces.refused = nullptr;
  pieces.exchanged = buffer.data();
  for_each_piece(
      base.tensors.tiles().size(), buffer.size(), [&](std::size_t i) { return base.tensors.tiles()[i].count; },
      [&](const tile_range& tiles, std::uint64_t elements) {
        pieces.exchanged_first = base.tensors.first_element(base.tensors.tiles()[tiles.first]);
        visit(pieces, tiles, buffer.first(elements));
      });
}

/// The mean of the parameters over ranks, piece by piece through `buffer`, in a number of collectives that depends on sizes
/// alone.
///
/// @param refused  where it points to is not 0: parameters stay as they are, on all ranks
template <class Base>
void average_parameters(Base& base, std::span<float> buffer, const std::uint32_t* refused = nullptr) {
  if (base.ranks.size() == 1) return;
  const scatter_parameters scatter_mean{{}, 1.0F / static_cast<float>(base.ranks.size())};
  for_each_piece_of_parameters(base, buffer, [&](model_view pieces, const tile_range& tiles, std::span<float> values) {
    pieces.refused = refused;
    base.executor.run(gather_parameters{}, pieces, tiles);
    base.ranks.all_reduce_sum(values, base.executor.stream());
    base.executor.run(scatter_mean, pieces, tiles);
  });
}

/// The parameters of rank `root` (of nodes: of its leader) on all ranks, piece by piece through `buffer`: by broadcast, or, where
/// the Communicator has none, as a sum in which all others are 0.
template <class Base>
void broadcast_parameters(Base& base, int root, std::span<float> buffer) {
  const bool is_root = base.ranks.rank() == root && base.ranks.local_rank() == 0;
  const bool has_broadcast = base.ranks.base().has(collective::broadcast);
  for_each_piece_of_parameters(base, buffer,
                               [&](const model_view& pieces, const tile_range& tiles, std::span<float> values) {
                                 if (is_root)
                                   base.executor.run(gather_parameters{}, pieces, tiles);
                                 else
                                   base.executor.clear(std::as_writable_bytes(values));
                                 if (has_broadcast && base.ranks.size() > 1) {
                                   base.ranks.broadcast(std::as_writable_bytes(values), root, base.executor.stream());
                                 } else {
                                   base.ranks.reduce_locally(values, base.executor.stream());
                                   if (base.ranks.size() > 1) base.ranks.all_reduce_sum(values, base.executor.stream());
                                 }
                                 base.executor.run(scatter_parameters{}, pieces, tiles);
                               });
}

/// Calls allocate() on every rank before they meet in `call`. Where that fails on one rank, it throws there, and communicator_error
/// on all others, which would wait for it in vain. Nothing has been exchanged then, and all can go on. Collective.
///
/// @param from  of the backend; on a device, a few bytes for what ranks tell each other
template <class Base, class Allocate>
void allocate_on_all_ranks(Base& base, const allocator& from, const char* call, const Allocate& allocate) {
  auto& communicator = base.ranks.base();
  const host_ranks ranks(communicator, base.executor, from);
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
  } catch (const std::bad_alloc&) {  // not even for these few bytes
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
                             " could not allocate the memory that it takes; nothing has changed on any rank");
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

/// This rank's parameters as they are now, in memory of their own; they are so again at the end.
template <class Base>
class kept_parameters {
 public:
  /// @param from  where 4 bytes a parameter come from
  kept_parameters(Base& base, const allocator& from) : base_(&base) {
    const region<float> all = memory_.plan<float>("own parameters", base.tensors.elements());
    memory_.allocate(from);
    view_ = base.view();
    view_.refused = nullptr;
    view_.exchanged = memory_.view(all).data();
    base.executor.run(gather_parameters{}, view_, base.all_tiles());
  }
  kept_parameters(const kept_parameters&) = delete;
  kept_parameters& operator=(const kept_parameters&) = delete;
  ~kept_parameters() = default;

  /// @throws where it is the first error, what the communicator's wait throws: the memory is freed when nothing reads it
  void restore() {
    base_->executor.run(restore_parameters{}, view_, base_->all_tiles());
    base_->executor.wait(base_->ranks.base());
  }

 private:
  Base* base_;
  arena memory_;
  model_view view_;
};

/// Calls `average`, which makes the parameters their mean over ranks, then `evaluate`; this rank's own are restored, also if one
/// of these throws.
template <class Base, class Average, class Evaluate>
void evaluate_on_average(Base& base, const allocator& from, const Average& average, const Evaluate& evaluate) {
  std::optional<kept_parameters<Base>> own;
  allocate_on_all_ranks(base, from, "with_averaged_parameters()", [&] { own.emplace(base, from); });
  try {
    average();
    evaluate();
  } catch (...) {
    try {
      own->restore();
    } catch (...) {
      // It has been enqueued. The first error says more than that of waiting for it.
    }
    throw;
  }
  own->restore();
}

}  // namespace slamb::detail
