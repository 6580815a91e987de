// A dry run: a recipe takes its steps over the planner, on ranks that send nothing.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <type_traits>
#include <vector>

#include "slamb/backend/plan/detail/planner.hpp"
#include "slamb/communicator/any_communicator.hpp"
#include "slamb/core/config.hpp"
#include "slamb/core/parameter.hpp"
#include "slamb/core/statistics.hpp"
#include "slamb/detail/pass/arena.hpp"
#include "slamb/optimizer/optimizer.hpp"
#include "slamb/plan/shapes.hpp"

namespace slamb::detail {

/// Makes the recipe of a plan.
using plan_maker =
    std::function<std::unique_ptr<recipe>(std::span<const parameter>, any_communicator<host_stream>, counted_work&)>;

/// The cost of one step or of several, on one rank.
struct step_cost {
  traffic_counts traffic{};
  double bytes = 0.0;            ///< of memory traffic
  std::uint64_t launches = 0;    ///< kernels
  ::slamb::traffic in_shards{};  ///< within the shard group
};

/// Takes planned steps, and counts them.
class dry_run {
 public:
  /// @param takes_types  tensors have sixteen bits where `world.stored` says so
  dry_run(const plan_maker& make, std::span<const plan::tensor_shape> tensors, const plan::world& world,
          bool takes_types);

  std::uint64_t taken() const noexcept { return taken_; }  ///< steps so far
  /// Takes steps until there are `taken`. Exact for every recipe.
  void walk_to(std::uint64_t taken);
  /// Takes the first step, and then continues as after `taken` ≥ 1 steps. Only for a new run.
  void jump_to(std::uint64_t taken);

  /// Of all steps taken since construction.
  /// @throws std::logic_error if the recipe has skipped a step
  step_cost cost() const;
  /// Elements of the last payload of selected elements.
  std::uint64_t selected() const noexcept { return work_.selected; }
  memory_report memory() const { return recipe_->memory(); }

 private:
  counted_work work_;
  arena model_;  // addresses of parameters and gradients
  std::unique_ptr<recipe> recipe_;
  std::uint64_t taken_ = 0;
};

/// The steps of a plan, which are taken as they are asked for. Its functions may be called by several threads at once.
class planned_steps {
 public:
  planned_steps(plan_maker make, std::span<const plan::tensor_shape> tensors, const plan::world& world,
                bool takes_types);

  /// Of steps 1 … steps.
  step_cost total(std::uint64_t steps);
  step_cost step(std::uint64_t t);
  std::uint64_t selected(std::uint64_t t);
  ::slamb::traffic in_shards(std::uint64_t t) { return step(t).in_shards; }
  memory_report memory() const;
  /// Of this rank.
  std::uint64_t elements() const noexcept {
    std::uint64_t sum = 0;
    for (const plan::tensor_shape& t : tensors_) sum += world_.own_size(t);
    return sum;
  }

 private:
  static plan::world with_arrays(plan::world world, std::span<const plan::array_bytes> arrays);
  std::unique_ptr<dry_run> begin() const;
  void take(std::uint64_t t);
  static void require_number(std::uint64_t t, std::uint64_t least);

  plan_maker make_;
  std::vector<plan::tensor_shape> tensors_;
  std::vector<plan::array_bytes> arrays_;
  plan::world world_;
  bool takes_types_;
  std::unique_ptr<dry_run> whole_;   // steps 1, 2, …
  std::unique_ptr<dry_run> single_;  // the last step that was asked for
  step_cost of_single_;
  mutable std::mutex one_at_a_time_;
};

/// A recipe on another Backend.
template <class Recipe, class Backend>
struct recipe_rebound {
  static_assert(sizeof(Recipe) == 0,
                "slamb: a plan runs the recipe on a Backend of its own; the recipe must be a class template whose "
                "parameters are types, one of which is the Backend");
};
template <template <class...> class Recipe, class... Policies, class Backend>
struct recipe_rebound<Recipe<Policies...>, Backend> {
  using type = Recipe<
      std::conditional_t<std::is_same_v<Policies, typename Recipe<Policies...>::backend_type>, Backend, Policies>...>;
};

}  // namespace slamb::detail

#if !defined(SLAMB_SEPARATE_COMPILATION)
#include "slamb/impl/plan/detail/dry_run.ipp"
#endif
