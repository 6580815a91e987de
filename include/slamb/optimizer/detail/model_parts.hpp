// The parts of a model that one rank updates: their tables, and the context of passes over them.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "slamb/core/detail/hash.hpp"
#include "slamb/core/parameter.hpp"
#include "slamb/detail/exchange/partitioned.hpp"
#include "slamb/detail/kernel/parts.hpp"
#include "slamb/detail/kernel/segments.hpp"
#include "slamb/detail/pass/arena.hpp"
#include "slamb/detail/pass/layout.hpp"
#include "slamb/detail/pass/pass.hpp"
#include "slamb/detail/pass/step_calls.hpp"
#include "slamb/detail/pass/step_state.hpp"
#include "slamb/detail/state/state_part.hpp"
#include "slamb/optimizer/detail/array_scales.hpp"
#include "slamb/optimizer/detail/dense_gradient.hpp"
#include "slamb/optimizer/detail/partition_passes.hpp"
#include "slamb/optimizer/detail/shard_group.hpp"
#include "slamb/optimizer/detail/state_arrays.hpp"

namespace slamb::detail {

/// This rank's parts of the tensors, one of each tensor, which may be empty. Functions that take the context of a whole model, such as
/// `take_adam_step` and `state_arrays::plan`, take this as well.
template <class Context>
class model_parts {
 public:
  using precision = typename Context::precision;
  using view_type = typename Context::view_type;

  explicit model_parts(Context& context) : memory(context.memory), context_(context) {}
  model_parts(const model_parts&) = delete;
  model_parts& operator=(const model_parts&) = delete;
  ~model_parts() = default;

  /// Plans the tables of these parts.
  /// @param parts        [tensors]
  /// @param keeps_exact  the parts that are updated are copies, which the user's parameters follow
  void plan(std::vector<tensor_part> parts, bool keeps_exact) {
    parts_ = std::move(parts);
    tensors = layout(context_.tensors, parts_, context_.ranks.rank() == 0);
    const std::size_t count = parts_.size();
    part_table_ = memory.template plan<tensor_part>("tables", count);
    stored_ = memory.template plan<segment>("tables", count);
    updated_ = memory.template plan<segment>("tables", count);
    tiles_ = memory.template plan<tile>("tables", tensors.tile_count());
    first_tile_ = memory.template plan<std::size_t>("tables", count + 1);
    numbers_ = memory.template plan<std::size_t>("tables", tensors.tile_count());
    exact_.plan(*this, keeps_exact);
    keeps_exact_ = keeps_exact;
  }
  /// Plans memory for sums, once the arrays of the state have been planned.
  void plan_sums(int sums) {
    sums_.plan(context_, sums_of_parts::among::ranks, context_.ranks.size(), parts_.size(), sums);
    scales.plan_memory(memory, tensors);
  }

  /// Copies the tables, once memory is allocated.
  /// @param numbers  [tiles] of the parts' tiles among all; a plan has none
  void start(std::span<const std::size_t> numbers) {
    const machine& on = context_.on();
    on.upload(std::span<const tensor_part>(parts_), memory.view(part_table_));
    on.upload(std::as_const(tensors).segments(), memory.view(stored_));
    on.upload_tiles(tensors, memory.view(tiles_));
    on.upload(tensors.first_tiles(), memory.view(first_tile_));
    on.upload(numbers, memory.view(numbers_));
    follow();
  }

  /// Begins a step. The first one, and the first after `reload_exact_later`, reload the exact parameters.
  void begin() {
    follow();
    if (!keeps_exact_ || is_exact_set_) return;
    context_.require_no_capture(
        "the first step copies the parameters that this rank updates; take it before the capture");
    set_exact_from_stored(true, true);
    is_exact_set_ = true;
  }
  /// The exact parameters become the user's where these are not the exact ones rounded.
  void reload_exact() {
    if (!keeps_exact_) return;
    follow();
    set_exact_from_stored(true, true);
  }
  void reload_exact_later() noexcept { is_exact_set_ = false; }
  /// The same after all ranks have received one rank's parameters. Exact ones that all ranks have become the user's everywhere, because
  /// they may have differed.
  /// @param keeps_cut  as `reload_exact` for the exact parameters that this rank alone has; false: they become the user's too
  void follow_broadcast(bool keeps_cut) {
    if (!keeps_exact_) return;
    follow();
    set_exact_from_stored(keeps_cut, false);
  }

  /// The tables for the exchange.
  parts_view of_exchange() const noexcept {
    return {view(stored_), memory.view(numbers_).data(), tensors.tile_count(),
            exact_.over(view(stored_), memory).exact};
  }
  /// The parts that a step updates, with their gradients.
  view_type with_gradients(float* gradients) const noexcept {
    view_type model = view(updated_);
    model.exchanged = gradients;
    model.gradient_is_exchanged = true;
    return model;
  }

  /// Clips gradients of parts by the norm of all ranks' parts: docs/algorithms/lamb.md (2)
  void clip(const view_type& gradients, double c) {
    if (!bounds_norm(c)) return;
    run(dense_gradient_passes::norm{}, gradients, all_tiles(), sums());
    context_.launch(add_up{sums(), tensors.tile_count(), sums(), nullptr, gradients.tiles, gradients.segments});
    sums_.add(context_, sums());
    context_.invoke(clip_gradient_scale{context_.record(), &context_.scalars()->gradient_scale, sums(), c});
  }

  // As those of a context.
  double* sums() const noexcept { return context_.sums(); }
  tile_range all_tiles() const noexcept { return {0, tensors.tile_count()}; }
  template <class Pass, class View>
  void run(const Pass& pass, const View& on, tile_range tiles, double* sums = nullptr) const {
    context_.run(pass, on, tiles, sums);
  }
  template <int Sums, class Finish>
  void finish_sums(std::size_t first, std::size_t last, const Finish& finish, bool /*changed*/) {
    context_.template finish_parts<Sums>(sums_, view(updated_), first, last, finish);
  }

  /// The norms of these parts' arrays of a state, and ‖p‖ of the whole model.
  /// @param state  adds the arrays to a view
  template <class State>
  statistics::norms_type norms(const State& state) const {
    follow();  // parameters may have been moved since the last step
    auto whole = context_.view();
    auto own = state.over(view(stored_), memory);
    whole.skip = own.skip = nullptr;
    context_.run(sum_parameters{}, whole, context_.all_tiles(), sums());
    const double parameters = context_.sum_of_tiles(context_.tensors.tile_count(), 1, 0);
    context_.run(norms_of_model{}, own, all_tiles(), sums());
    constexpr std::size_t all = norms_of_model::sums;
    return {std::sqrt(parameters), std::sqrt(context_.sum_of_tiles(tensors.tile_count(), all, 1)),
            std::sqrt(context_.sum_of_tiles(tensors.tile_count(), all, 2))};
  }

  /// [groups] ‖P − p‖ of these parts; empty if all is sent, or there are no exact parameters yet.
  std::vector<double> unsent() const {
    if (!keeps_exact_ || !is_exact_set_) return {};
    follow();
    auto model = exact_.over(view(stored_), memory);
    model.skip = nullptr;
    context_.run(sum_unsent{}, model, all_tiles(), sums());
    std::vector<double> all(tensors.groups(), 0.0);
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      const segment& s = std::as_const(tensors).segments()[i];
      if (!parts_[i].is_cut && s.data_type == element_type::float32) continue;  // has no exact parameters
      const tile_range its = tensors.tiles_of(i);
      all[s.group] += context_.sum_of_tiles(its.last - its.first, 1, 0, its.first);
    }
    for (double& norm : all) norm = std::sqrt(norm);
    return all;
  }

  /// Calls part(name, bytes, state_part) for the exact parameters, and for the elements that this rank updates.
  void visit_state(const state_visitor& part) {
    std::uint64_t places = hash_of_nothing;
    for (const tensor_part& its : parts_)
      for (const std::uint64_t word : {its.first, its.count, std::uint64_t{its.is_cut ? 1U : 0U}})
        places = hash_with(places, word);
    part("parts of tensors, which depend on the rank", bytes_of(places), state_part::fact);
    scales.visit(part, memory, tensors);
    exact_.visit(part, memory);
    if (keeps_exact_) visit_flag(part, "exact parameters are set", is_exact_set_, state_part::common);
  }

  arena& memory;
  layout tensors;
  array_scales scales;

 private:
  view_type view(region<segment> table) const noexcept {
    view_type model = context_.view();
    model.segments = memory.view(table).data();
    model.tiles = memory.view(tiles_).data();
    model.first_tile = memory.view(first_tile_).data();
    return model;
  }

  void set_exact_from_stored(bool keeps_cut, bool keeps_uncut) {
    auto model = exact_.over(view(stored_), memory);
    model.skip = nullptr;
    context_.run(set_exact{model.segments, memory.view(part_table_).data(), keeps_cut, keeps_uncut}, model,
                 all_tiles());
  }

  void follow() const {
    context_.launch(follow_tensors{context_.segments(), memory.view(part_table_).data(), memory.view(stored_).data(),
                                   memory.view(updated_).data(), exact_.over(view(stored_), memory).exact,
                                   parts_.size()});
  }

  Context& context_;
  std::vector<tensor_part> parts_;  // [tensors]
  sums_of_parts sums_;
  region<tensor_part> part_table_;
  region<segment> stored_;
  region<segment> updated_;
  region<tile> tiles_;
  region<std::size_t> first_tile_;
  region<std::size_t> numbers_;
  state_arrays<array::exact> exact_;
  bool keeps_exact_ = false;
  bool is_exact_set_ = false;
};

}  // namespace slamb::detail
