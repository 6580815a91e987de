#pragma once

#include <exception>
#include <new>
#include <optional>
#include <string>
#include <vector>

#include "slamb/core/error.hpp"
#include "slamb/core/statistics.hpp"
#include "slamb/detail/pass/arena.hpp"
#include "slamb/detail/ranks/agreement.hpp"
#include "slamb/optimizer/detail/optimizer_core.hpp"
#include "slamb/optimizer/detail/parameter_average.hpp"
#include "slamb/optimizer/detail/rank_agreement.hpp"

namespace slamb::detail {

SLAMB_DECL void for_each_piece_of_parameters(
    const optimizer_core& core, std::span<float> buffer,
    function_ref<void(any_view& pieces, const tile_range& tiles, std::span<float> values)> visit) {
  any_view pieces = core.unskipped_view();
  if (core.on().properties().rounds_by_chance) pieces.draws.use = rounding_draws::of_average;
  pieces.exchanged = buffer.data();
  core.tensors.for_each_piece(buffer.size(), [&](const tile_range& tiles, std::uint64_t first, std::uint64_t elements) {
    pieces.exchanged_first = first;
    visit(pieces, tiles, buffer.first(elements));
  });
}

SLAMB_DECL void average_parameters(optimizer_core& core, std::span<float> buffer, const std::uint32_t* skip) {
  if (core.ranks.size() == 1) return;
  const scatter_parameters scatter_mean{{}, 1.0F / static_cast<float>(core.ranks.size())};
  for_each_piece_of_parameters(core, buffer, [&](any_view& pieces, const tile_range& tiles, std::span<float> values) {
    pieces.skip = skip;
    core.on().run(gather_parameters{}, pieces, tiles);
    core.ranks.all_reduce_sum(values, core.on().stream());
    core.on().run(scatter_mean, pieces, tiles);
  });
}

SLAMB_DECL void broadcast_parameters(optimizer_core& core, int root, std::span<float> buffer) {
  const bool is_root = core.ranks.rank() == root && core.ranks.local_rank() == 0;
  const bool has_broadcast = core.ranks.wrapped().has(collective::broadcast);
  const any_stream stream = core.on().stream();
  for_each_piece_of_parameters(core, buffer, [&](any_view& pieces, const tile_range& tiles, std::span<float> values) {
    if (is_root)
      core.on().run(gather_parameters{}, pieces, tiles);
    else
      core.on().clear(std::as_writable_bytes(values));
    if (has_broadcast && core.ranks.size() > 1) {
      core.ranks.broadcast(std::as_writable_bytes(values), root, stream);
    } else {
      core.ranks.all_reduce_in_node(values, stream);
      if (core.ranks.size() > 1) core.ranks.all_reduce_sum(values, stream);
    }
    core.on().run(scatter_parameters{}, pieces, tiles);
  });
}

SLAMB_DECL void allocate_on_all_ranks(optimizer_core& core, const char* call, function_ref<void()> allocate,
                                      calling_ranks called_by) {
  collectives& communicator = core.ranks.wrapped();
  const host_ranks everyone(communicator, core.on());
  const bool in_group = called_by == calling_ranks::of_shard_group;
  const summing_ranks all = in_group ? everyone.in_shards() : everyone.all();
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
  if (failing == fails.end()) return;
  const int first = in_group ? communicator.rank() * communicator.shard_size() : 0;  // of the group, among all ranks
  throw communicator_error("slamb: " + std::string(call) + " did not begin: " +
                           everyone.all().name_of(static_cast<std::size_t>(first + (failing - fails.begin()))) +
                           " could not allocate memory for it; nothing has changed on any rank");
}

// A copy of this rank's parameters, which restores them at the end.
class kept_parameters {
 public:
  explicit kept_parameters(const optimizer_core& core) : core_(&core), view_(core.unskipped_view()) {
    const region<float> all = memory_.plan<float>("own parameters", core.tensors.elements());
    memory_.allocate(core.memory_source());
    view_.exchanged = memory_.view(all).data();
    core.on().run(gather_parameters{}, view_, core.all_tiles());
  }
  kept_parameters(const kept_parameters&) = delete;
  kept_parameters& operator=(const kept_parameters&) = delete;
  ~kept_parameters() = default;

  // Throws the exception of the communicator's wait, if it is the first error. The memory is freed once nothing reads it.
  void restore() {
    core_->on().run(restore_parameters{}, view_, core_->all_tiles());
    core_->on().wait(core_->ranks);
  }

 private:
  const optimizer_core* core_;
  arena memory_;
  any_view view_;
};

SLAMB_DECL void evaluate_on_average(optimizer_core& core, function_ref<void()> average, function_ref<void()> evaluate) {
  std::optional<kept_parameters> own;
  allocate_on_all_ranks(core, "with_averaged_parameters()", [&] { own.emplace(core); });
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
