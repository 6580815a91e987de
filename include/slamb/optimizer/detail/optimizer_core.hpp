// The core of every optimizer, which is no template: tensors, memory, ranks, learning rates and counters, on any machine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "slamb/communicator/detail/requirements.hpp"
#include "slamb/core/config.hpp"
#include "slamb/core/detail/collectives.hpp"
#include "slamb/core/detail/function_ref.hpp"
#include "slamb/core/parameter.hpp"
#include "slamb/core/statistics.hpp"
#include "slamb/detail/pass/arena.hpp"
#include "slamb/detail/pass/layout.hpp"
#include "slamb/detail/pass/machine.hpp"
#include "slamb/detail/pass/model_passes.hpp"
#include "slamb/detail/pass/step_calls.hpp"
#include "slamb/detail/pass/step_state.hpp"
#include "slamb/detail/ranks/agreement.hpp"
#include "slamb/detail/state/saved_state.hpp"
#include "slamb/optimizer/detail/adam_scalars.hpp"
#include "slamb/optimizer/detail/array_scales.hpp"
#include "slamb/optimizer/detail/learning_rates.hpp"
#include "slamb/optimizer/detail/masters_of_model.hpp"
#include "slamb/optimizer/detail/node_reduction.hpp"
#include "slamb/optimizer/detail/overlap.hpp"
#include "slamb/optimizer/detail/rank_agreement.hpp"
#include "slamb/optimizer/detail/shard_group.hpp"
#include "slamb/optimizer/detail/update_bound.hpp"

namespace slamb::detail {

/// The tensors, memory, ranks and counters of one optimizer. It stays at one address.
class optimizer_core {
 public:
  /// @param compare_every  steps between comparisons of parameters and masks; 0: never
  optimizer_core(std::unique_ptr<machine> on, layout&& model, std::shared_ptr<collectives> communicator,
                 std::uint64_t compare_every);
  optimizer_core(const optimizer_core&) = delete;
  optimizer_core& operator=(const optimizer_core&) = delete;
  SLAMB_DECL virtual ~optimizer_core();

  const machine& on() const noexcept { return *on_; }
  bool is_synchronous() const noexcept { return on_->properties().is_synchronous; }
  /// True if steps are only counted, and tables of tiles do not exist.
  bool is_plan() const noexcept { return on_->properties().is_plan; }

  /// Plans memory for `sums` double-precision sums of each tile, and at least for norms.
  void plan_sums(int sums);

  /// Plans a buffer that is free between steps: of all gradients with more than one rank, and of at least `bytes`.
  region<std::byte> plan_buffer(std::uint64_t bytes);

  /// The memory of such a buffer as floats of all gradients, with a `sum_header` in front.
  std::span<float> floats_of(region<std::byte> buffer) const noexcept;

  /// Tries the collectives that the optimizer calls, compares `fields` and the tensors with the other ranks, and allocates all
  /// planned memory.
  void allocate(consistency_check fields, byte_collectives called = {});

  /// Calls replace(buffer) with a temporary buffer, to give all ranks the same parameters. The next step compares them.
  void replace_parameters(function_ref<void(std::span<float>)> replace);

  /// Begins a step with the learning rates that have been set.
  void begin_step(double gradient_scale = 1.0) const;
  /// Ends the step, which is taken or skipped.
  /// @return false if it is known to be skipped
  bool end_step();
  /// Ends a step that is taken in any case.
  void end_taken_step();
  /// True if the last step was taken. Waits.
  bool has_taken_last_step() const { return read(&record()->was_skipped) == 0; }

  /// True if the step is skipped and the host knows it without waiting. On a device, passes read the flag themselves and do
  /// nothing.
  bool is_skipped_on_host() const noexcept { return is_synchronous() && record()->skip != 0; }

  /// The number of steps taken. Waits for all enqueued work.
  std::uint64_t steps() const { return read(&record()->taken); }

  /// Reads a value from the backend's memory. Waits.
  template <class T>
  T read(const T* from) const {
    return on_->read(from, ranks);
  }

  /// t of the next step. Waits, unless the host knows it.
  /// @param needed_for  names what a captured step cannot do, for the error
  /// @throws std::logic_error if the step is captured into a graph
  std::uint64_t next_step_number(const char* needed_for);
  /// holds(t) of the next step. Waits only if the answer depends on pending steps that may be skipped.
  /// @throws std::logic_error as `next_step_number`
  bool holds_at_next_step(function_ref<bool(std::uint64_t)> holds, const char* needed_for);

  /// The number of steps taken at construction or when a state was last restored.
  std::uint64_t first_taken() const noexcept { return first_taken_; }

  /// @param needed_for  names what a captured step, which is replayed, cannot do, for the error
  /// @throws std::logic_error if the step is captured into a graph
  void require_no_capture(const char* needed_for) const;

  /// True if there are other ranks: of other nodes, of this node, or of the shard group.
  bool has_peers() const { return ranks.size() > 1 || ranks.local_size() > 1 || shards.exists(); }

  /// True while work is captured into a graph.
  bool is_captured() const { return on_->is_capturing(); }

  step_record* record() const noexcept { return memory.view(record_).data(); }
  adam_scalars* scalars() const noexcept { return memory.view(scalars_).data(); }
  /// Multiplies the user's gradients as they are read. Gradients of a node have been multiplied by it.
  const float* input_scale() const noexcept { return &record()->input_scale; }
  std::uint32_t* not_finite() const noexcept { return &record()->not_finite; }
  const std::uint32_t* was_skipped() const noexcept { return &record()->was_skipped; }

  /// Calls visit(tensor, sums) for all tensors with the sums that a pass has left, [sums ≤ 4]. Tiles are added in order. Waits.
  void visit_sums(int sums, function_ref<void(std::size_t, const double*)> visit) const;
  /// The sum number `which` that a pass has left for `tiles` tiles, with `sums` of each, added in order. Waits.
  double sum_of_tiles(std::size_t tiles, std::size_t sums, std::size_t which, std::size_t first = 0) const;
  /// `visit_sums` with the sums of whole tensors, first for all of them by `first`, and then by `second`. Takes a collective of the shard
  /// group, if there is one.
  void visit_whole_sums(int sums, function_ref<void(std::size_t, const double*)> first,
                        function_ref<void(std::size_t, const double*)> second);
  /// The sum of the one sum that a pass has left for each tile, over all shards. Waits, and takes a collective as the one before.
  double total_of_tiles();
  /// Adds it up without waiting, to the first of `sums`.
  void add_up_tiles();

  /// Learning rate and weight decay of each tensor, which passes read.
  rate_tables tables() const noexcept { return {segments(), rates.stored(memory)}; }

  /// Sets how the next steps scale gradients.
  void set_gradient_scaling(const gradient_scaling& given);

  /// Points all tensors at other parameters and gradients. Without gradients these stay where they are.
  void set_parameters(std::span<const parameter::data_pointer> data,
                      std::optional<std::span<const parameter::gradient_pointer>> gradients);

  /// Sets the weight decays of all tensors.
  void set_weight_decay(std::span<const double> decays);
  /// Tells which β and ε the recipe has, with their names, so that ranks compare them. Weight decays are known.
  void set_coefficients(std::vector<std::pair<const char*, double>> now);
  std::span<const std::pair<const char*, double>> coefficients() const noexcept { return coefficients_; }

  /// Looks for overflows that a framework has found, once all gradients of a step are ready.
  void read_overflow() const;

  /// Points a tensor at another gradient, for frameworks that allocate gradients anew.
  void set_gradient(std::size_t tensor, const parameter::gradient_pointer& gradient);
  /// Points all tensors at other gradients, by one upload. While steps are captured, by the step that is captured next.
  void set_gradients(std::span<const parameter::gradient_pointer> gradients);

  /// Begins a step: if captured steps write their own pointers to gradients, this one writes its own too.
  void restore_gradients();

  /// The model, without state arrays.
  any_view whole_view() const noexcept;
  /// The same, on which passes run even if the step is skipped.
  any_view unskipped_view() const noexcept;
  segment* segments() const noexcept { return memory.view(segments_).data(); }
  tile_range all_tiles() const noexcept { return {0, tensors.tile_count()}; }
  double* sums() const noexcept { return memory.view(sums_).data(); }
  /// One sum of each tile.
  std::span<double> sum_of_each_tile() const noexcept { return {sums(), tensors.tile_count()}; }
  std::size_t cache_bytes() const noexcept { return on_->properties().cache_bytes; }
  /// The allocator for memory that a call needs temporarily.
  allocator memory_source() const { return on_->memory_source(); }

  /// Calls part(name, bytes, state_part) for each part of the lasting state.
  void visit_state(const state_visitor& part) const;
  /// The state that is visited next is one of whole tensors, or of shards again.
  void visit_whole_tensors(bool on) noexcept { visits_whole_ = on; }

  /// Replaces the number of steps taken, and with it their history, which other ranks may not have had. Waits.
  void set_steps(std::uint64_t taken);

  /// Continues after the state has been restored: sets the counters, and clears the flags of a step that failed.
  void start_from_saved();

  /// Replaces all phases so far, after a state has been restored.
  void start_in_phase(std::string_view name) { phases_.restart(name, steps() + 1, ranks.counts()); }

  /// The name of the current phase.
  std::string phase() const { return phases_.name(); }

  /// Starts another phase with the next step. Waits, unless the host knows its number.
  void enter_phase(std::string_view name);

  statistics report() const;

 private:
  std::unique_ptr<machine> on_;  // first, because the others use it until they end

 public:
  overlapped_step overlap;  ///< the open step, if one is taken in parts
  layout tensors;
  counted_collectives ranks;
  learning_rates rates;
  gradient_scaling scaling;
  arena memory;
  shard_group shards;
  node_reduction local;
  masters_of_model masters;
  array_scales scales;
  rank_agreement agreement;    ///< with the other ranks
  bool has_half_step = false;  ///< a step has changed its state, and has failed

 protected:
  step_calls begin_with(double gradient_scale, const write_learning_rates& rates_of_step) const {
    return {::slamb::detail::begin_step{record(), gradient_scale, scaling}, rates_of_step};
  }

  own_bound bound_;
  step_estimate count_;

 private:
  std::span<const double> results_of_tiles(std::size_t results, std::vector<double>& copy) const;
  void upload_tensors();
  void point_at(std::size_t first, std::span<const parameter::gradient_pointer> gradients);
  void capture_gradients(std::span<const parameter::gradient_pointer> gradients);
  void hash_runtime_options();
  std::uint64_t hash_of_options() const;

  std::vector<std::pair<const char*, double>> coefficients_;
  std::vector<segment> changed_;  // only in point_at(), which need not allocate again
  std::uint64_t constructed_with_ = 0;
  std::uint64_t runtime_options_hash_ = 0;
  bool visits_whole_ = false;    // the state is one of whole tensors
  bool gradients_vary_ = false;  // launches of captured steps write pointers to gradients
  region<segment> segments_;
  region<tile> tiles_;
  region<std::size_t> first_tile_;
  region<adam_scalars> scalars_;
  region<step_record> record_;
  region<double> sums_;
  phase_log phases_;
  std::uint64_t first_taken_ = 0;
};

}  // namespace slamb::detail

#if !defined(SLAMB_SEPARATE_COMPILATION)
#include "slamb/impl/optimizer/detail/optimizer_core.ipp"
#endif
