// The plan of a training, from tensor shapes and options alone. A plan is a dry run: the optimizer takes its steps over a Backend
// that counts kernels and runs none, on ranks that send nothing. So a plan equals `statistics().traffic` byte for byte
// (tests/plan/traffic.cpp compares them), and there is one for every optimizer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <type_traits>
#include <utility>

#include "slamb/backend/plan/detail/planner.hpp"
#include "slamb/core/statistics.hpp"
#include "slamb/detail/pass/memory_traffic.hpp"
#include "slamb/detail/pass/precision.hpp"
#include "slamb/plan/detail/dry_run.hpp"
#include "slamb/plan/shapes.hpp"

namespace slamb::plan {

/// The plan of an optimizer, made by `plan_traffic`. All counts are of one rank, rank 0. Comparisons of ranks, which
/// `statistics().comparisons` counts, are not planned.
///
/// The counts are those of an optimizer on the host. A device sends as many elements at each step if a sparsifier selects a constant
/// number, such as `random_k` and `top_k`: the most of all steps, a few more than the plan says.
///
/// *Cost*: each function takes the steps that it is asked about, 1 to 3 µs each, unless a call before has taken them. A selection
/// that cannot count its elements (`selected_before`) is asked about each element. The tensors take no memory. Several threads
/// may call it; copies of a plan share its steps.
class traffic_plan {
 public:
  /// For `plan_traffic`.
  explicit traffic_plan(std::shared_ptr<detail::planned_steps> steps) noexcept : steps_(std::move(steps)) {}

  /// Traffic of step t = 1, 2, ….
  /// A step more than 20,000 beyond the last one asked about is reached by `set_steps`. So it is exact if all that a recipe changes
  /// from step to step follows from the number of steps, as in the library's.
  /// @throws std::invalid_argument if t is 0 or above 2^53
  traffic_counts step(std::uint64_t t) const { return steps_->step(t).traffic; }
  /// Traffic of steps 1 … steps.
  traffic_counts total(std::uint64_t steps) const { return steps_->total(steps).traffic; }

  /// Traffic of step t within the shard group; nothing without shards.
  traffic in_shards(std::uint64_t t) const { return steps_->in_shards(t); }
  /// The same of steps 1 … steps.
  traffic total_in_shards(std::uint64_t steps) const { return steps_->total(steps).in_shards; }

  /// Bytes of memory traffic a parameter of this rank and step, the mean of steps 1 … steps; docs/performance.md.
  double memory_bytes(std::uint64_t steps) const {
    const double all = static_cast<double>(steps_->elements()) * static_cast<double>(steps);
    return all == 0.0 ? 0.0 : steps_->total(steps).bytes / all;
  }
  /// Kernels that step t launches on a device, without those of the communicator.
  std::uint64_t launches(std::uint64_t t) const { return steps_->step(t).launches; }
  /// The same of steps 1 … steps.
  std::uint64_t total_launches(std::uint64_t steps) const { return steps_->total(steps).launches; }
  /// |M_t|, the elements that a sparsifier selects at step t, with those of tensors that are sent whole; 0 without one.
  std::uint64_t selected(std::uint64_t t) const { return steps_->selected(t); }
  /// The memory of the optimizer, by purpose: as `memory()` of the optimizer itself on the host.
  memory_report memory() const { return steps_->memory(); }

 private:
  std::shared_ptr<detail::planned_steps> steps_;
};

}  // namespace slamb::plan

namespace slamb::detail {

/// The plan of a recipe on the planner.
template <class Recipe>
plan::traffic_plan plan_of(std::span<const plan::tensor_shape> tensors, const typename Recipe::options_type& options,
                           const plan::world& world) {
  world.validate();
  Recipe::validate(options);
  const auto make = [options](std::span<const parameter> parameters, any_communicator<host_stream> ranks,
                              counted_work& to) -> std::unique_ptr<recipe> {
    return std::make_unique<Recipe>(parameters, options, std::move(ranks), typename Recipe::backend_type{.to = &to});
  };
  using precision = typename precision_of<typename Recipe::backend_type>::type;
  return plan::traffic_plan(std::make_shared<planned_steps>(make, tensors, world, precision::takes_types));
}

/// An optimizer's type, and not that of its options.
template <class T>
concept has_recipe = requires {
  typename T::recipe_type;
  typename T::options_type;
};

template <class T>
concept is_no_optimizer = !has_recipe<T>;

template <class Options, class Backend>
concept has_recipe_for = requires(const Options& options, const Backend& backend) {
  recipe_of(options, backend);
};

}  // namespace slamb::detail

namespace slamb::plan {

/// The plan of any optimizer, also of your own, on tensors of these shapes.
///
///     auto plan = slamb::plan::plan_traffic<slamb::lamb<slamb::int8>>(shapes, {}, {.ranks = 64});
///
/// With `precision::mixed`, tensors have sixteen bits where `world.stored` says so: give it `stored_by<Backend>(…)`. Arrays of the
/// state are stored as the optimizer's Backend says, whatever `world.stored.arrays` has.
/// @tparam Optimizer  its recipe is a class template over types, one of which is the Backend
/// @throws std::invalid_argument that names the value out of range; out_of_memory if the system refuses the addresses of the arrays
template <detail::has_recipe Optimizer>
traffic_plan plan_traffic(std::span<const tensor_shape> tensors, const typename Optimizer::options_type& options,
                          const world& world) {
  using precision = typename detail::precision_of<typename Optimizer::backend_type>::type;
  plan::world its = world;
  its.stored.arrays = detail::bytes_of_arrays<typename precision::arrays>;
  return detail::plan_of<
      typename detail::recipe_rebound<typename Optimizer::recipe_type, detail::planning_backend<precision>>::type>(
      tensors, options, its);
}

/// The plan of the library's optimizer with these options, for parameters of float32.
template <detail::is_no_optimizer Options>
traffic_plan plan_traffic(std::span<const tensor_shape> tensors, const Options& options, const world& world) {
  constexpr bool is_known = detail::has_recipe_for<Options, detail::planning_backend<>>;
  static_assert(is_known,
                "slamb: these options do not tell their optimizer; call plan_traffic<Optimizer>(shapes, options, "
                "world). Options of one_bit_adam and one_bit_lamb need a warm-up with a member `steps`, because the "
                "end of an automatic warm-up depends on the gradients; plan with the fixed_warm_up that you expect");
  if constexpr (is_known)
    return detail::plan_of<decltype(recipe_of(options, detail::planning_backend<>{}))>(tensors, options, world);
}

}  // namespace slamb::plan
