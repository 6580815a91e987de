#pragma once

#include <new>
#include <stdexcept>
#include <string>
#include <utility>

#include "slamb/core/error.hpp"
#include "slamb/plan/detail/dry_run.hpp"
#include "slamb/plan/detail/silent_ranks.hpp"

namespace slamb::detail {

SLAMB_DECL dry_run::dry_run(const plan_maker& make, std::span<const plan::tensor_shape> tensors,
                            const plan::world& world, bool takes_types) {
  work_.model.stored = world.stored;
  const auto type_of = [takes_types](double bytes) {
    return takes_types && bytes < sizeof(float) ? element_type::bfloat16 : element_type::float32;
  };
  const element_type of_data = type_of(world.stored.data), of_gradient = type_of(world.stored.gradient);
  std::vector<region<std::byte>> arrays;
  for (const plan::tensor_shape& t : tensors) {
    arrays.push_back(model_.plan("parameters", world.own_size(t), size_of(of_data)));
    arrays.push_back(model_.plan("gradients", world.own_size(t), size_of(of_gradient)));
  }
  model_.allocate(reserving_allocator());
  std::vector<parameter> all;
  for (std::size_t i = 0; i < tensors.size(); ++i)
    all.push_back({.data = {model_.view(arrays[2 * i]).data(), of_data},
                   .gradient = {model_.view(arrays[2 * i + 1]).data(), of_gradient},
                   .size = world.own_size(tensors[i]),
                   .dimensions = tensors[i].dimensions,
                   .options = {.compress = tensors[i].compress},
                   .whole_size = tensors[i].size});
  recipe_ = make(all, any_communicator<host_stream>(silent_ranks(world.ranks, world.value_bytes, world.shards)), work_);
  work_.bytes = 0.0;
  work_.launches = 0;
}

SLAMB_DECL void dry_run::walk_to(std::uint64_t taken) {
  static constexpr double rate = 1e-3;  // any: it changes no count
  for (; taken_ < taken; ++taken_) recipe_->step(std::span(&rate, 1));
}

SLAMB_DECL void dry_run::jump_to(std::uint64_t taken) {
  walk_to(1);  // makes the choices that later steps remember
  recipe_->set_steps(past_steps{.taken = taken});
  taken_ = taken;
}

SLAMB_DECL step_cost dry_run::cost() const {
  const statistics all = recipe_->report(false);
  if (all.skipped_steps != 0 || all.step != taken_)
    throw std::logic_error(
        "slamb: a recipe has skipped a planned step; in a plan all arrays are 0, so no value that a step reads may "
        "make it skip");
  return {all.traffic, work_.bytes, work_.launches, all.in_shards};
}

SLAMB_DECL planned_steps::planned_steps(plan_maker make, std::span<const plan::tensor_shape> tensors,
                                        const plan::world& world, bool takes_types)
    : make_(std::move(make)),
      tensors_(tensors.begin(), tensors.end()),
      arrays_(world.stored.arrays.begin(), world.stored.arrays.end()),
      world_(with_arrays(world, arrays_)),
      takes_types_(takes_types),
      whole_(begin()) {}

SLAMB_DECL plan::world planned_steps::with_arrays(plan::world world, std::span<const plan::array_bytes> arrays) {
  world.stored.arrays = arrays;
  return world;
}

SLAMB_DECL std::unique_ptr<dry_run> planned_steps::begin() const {
  try {
    return std::make_unique<dry_run>(make_, tensors_, world_, takes_types_);
  } catch (const out_of_memory&) {
    throw;
  } catch (const std::bad_alloc&) {
    throw out_of_memory("slamb: there is not enough memory for the tables of a plan with " +
                        std::to_string(world_.ranks) + " ranks and " + std::to_string(tensors_.size()) + " tensors");
  }
}

SLAMB_DECL memory_report planned_steps::memory() const {
  const std::lock_guard alone(one_at_a_time_);
  return (whole_ != nullptr ? *whole_ : *begin()).memory();
}

SLAMB_DECL step_cost planned_steps::total(std::uint64_t steps) {
  require_number(steps, 0);
  const std::lock_guard alone(one_at_a_time_);
  std::unique_ptr<dry_run> run = std::exchange(whole_, nullptr);  // one that fails is not used again
  if (run == nullptr || run->taken() > steps) run = begin();
  run->walk_to(steps);
  const step_cost cost = run->cost();
  whole_ = std::move(run);
  return cost;
}

SLAMB_DECL step_cost planned_steps::step(std::uint64_t t) {
  const std::lock_guard alone(one_at_a_time_);
  take(t);
  return of_single_;
}

SLAMB_DECL std::uint64_t planned_steps::selected(std::uint64_t t) {
  const std::lock_guard alone(one_at_a_time_);
  take(t);
  return single_->selected();
}

SLAMB_DECL void planned_steps::take(std::uint64_t t) {
  constexpr std::uint64_t most_walked = 20'000;
  require_number(t, 1);
  if (single_ != nullptr && single_->taken() == t) return;
  std::unique_ptr<dry_run> run = std::exchange(single_, nullptr);  // one that fails is not used again
  if (run == nullptr || run->taken() > t) run = begin();
  if (t - 1 - run->taken() <= most_walked) {
    run->walk_to(t - 1);
  } else {
    run = begin();  // phases that have begun would not be left
    run->jump_to(t - 1);
  }
  const step_cost before = run->cost();
  run->walk_to(t);
  const step_cost after = run->cost();
  of_single_ = {after.traffic - before.traffic, after.bytes - before.bytes, after.launches - before.launches,
                after.in_shards - before.in_shards};
  single_ = std::move(run);
}

SLAMB_DECL void planned_steps::require_number(std::uint64_t t, std::uint64_t least) {
  require_word_in(t >= least, "the number of a planned step", t, ">= 1");
  require_count("the number of a planned step", t);
}

}  // namespace slamb::detail
