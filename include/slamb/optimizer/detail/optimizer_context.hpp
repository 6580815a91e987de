// The context of every recipe: tensors, memory, executor, ranks, learning rates and counters.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "slamb/communicator/any_communicator.hpp"
#include "slamb/communicator/counting_communicator.hpp"
#include "slamb/communicator/detail/requirements.hpp"
#include "slamb/core/detail/consistency_check.hpp"
#include "slamb/core/detail/hash.hpp"
#include "slamb/core/detail/sentence.hpp"
#include "slamb/core/error.hpp"
#include "slamb/core/statistics.hpp"
#include "slamb/detail/exchange/consistency.hpp"
#include "slamb/detail/exchange/norms.hpp"
#include "slamb/detail/exchange/summable.hpp"
#include "slamb/detail/pass/arena.hpp"
#include "slamb/detail/pass/executor.hpp"
#include "slamb/detail/pass/layout.hpp"
#include "slamb/detail/pass/model_passes.hpp"
#include "slamb/detail/pass/pass.hpp"
#include "slamb/detail/pass/step_state.hpp"
#include "slamb/detail/runtime/late_read.hpp"
#include "slamb/detail/state/saved_state.hpp"
#include "slamb/optimizer/detail/adam_passes.hpp"
#include "slamb/optimizer/detail/comparison.hpp"
#include "slamb/optimizer/detail/learning_rates.hpp"
#include "slamb/optimizer/detail/masters_of_model.hpp"
#include "slamb/optimizer/detail/moment_scales.hpp"
#include "slamb/optimizer/detail/node_reduction.hpp"
#include "slamb/optimizer/detail/overlap.hpp"
#include "slamb/optimizer/detail/parameter_average.hpp"
#include "slamb/optimizer/detail/settings.hpp"
#include "slamb/optimizer/detail/state_arrays.hpp"

namespace slamb::detail {

/// The tensors, memory, ranks and counters of one optimizer, with any Communicator.
template <class Backend>
class optimizer_context {
 public:
  using executor_type = typename Backend::executor_type;
  using stream_type = typename Backend::stream_type;
  using ranks_type = counting_communicator<any_communicator<stream_type>>;
  using late_outcome = late_read<stream_type, step_outcome>;  ///< of the steps so far, read later
  using precision = typename precision_of<Backend>::type;
  using view_type = view_in<precision>;
  using variance_pointer = typename storage_of_t<array::variance, precision>::read_pointer;

  static_assert(backend_executor<executor_type>,
                "slamb: the executor of a Backend must have the members of detail::backend_executor "
                "(slamb/detail/pass/executor.hpp), as the executors of host_backend and cuda_backend have");
#if defined(__CUDACC__)
  static_assert(!executor_type::is_synchronous,
                "slamb: compile optimizers on the host backend in a .cpp file, because nvcc rejects vectors in "
                "functions that are also for the device");
#endif

  /// @param compare_every  steps between comparisons of parameters and masks; 0: never
  optimizer_context(std::span<const parameter> parameters, double weight_decay, std::uint64_t compare_every,
                    any_communicator<stream_type> communicator, Backend backend, std::span<const stored_array> state)
      : tensors((backend.validate(), parameters), weight_decay, precision::takes_types,
                [&](const layout& all) { require_room_for_state(all, backend, state); }),
        executor(backend.make_executor(tensors.elements())),
        ranks(std::move(communicator)),
        rates(tensors),
        compared(compare_every),
        backend_(std::move(backend)) {
    require_rank(ranks.rank(), ranks.size());
    rates.plan(memory);
    scalars_ = memory.plan<adam_scalars>("scalars", 1);
    record_ = memory.plan<step_record>("scalars", 1);
    compared.plan(*this);
    masters.plan(memory, tensors);
  }

  optimizer_context(optimizer_context&&) noexcept = default;
  optimizer_context& operator=(optimizer_context&&) noexcept = default;
  ~optimizer_context() { overlap.close(); }

  /// Plans memory for `sums` double-precision sums of each tile, and at least for norms.
  void plan_sums(int sums) {
    const auto most = static_cast<std::uint64_t>(std::max(sums, norms_of_model::sums));
    sums_ = memory.plan<double>("sums", std::max<std::uint64_t>(tensors.tiles().size() * most, 1));
  }

  /// Plans a buffer that is free between steps: of all gradients with more than one rank, and of at least `bytes`.
  region<std::byte> plan_buffer(std::uint64_t bytes) {
    const std::uint64_t whole = ranks.size() > 1 ? (sum_header::floats + tensors.elements()) * sizeof(float) : 0;
    return memory.plan<std::byte>("exchange", std::max(whole, bytes));
  }

  /// The memory of such a buffer as floats of all gradients, with a `sum_header` in front.
  std::span<float> floats_of(region<std::byte> buffer) const noexcept {
    if (ranks.size() == 1) return {};
    return {reinterpret_cast<float*>(memory.view(buffer).data()) + sum_header::floats, tensors.elements()};
  }

  /// Tries the collectives that the optimizer calls, compares `facts` and the tensors with the other ranks, and allocates all
  /// planned memory.
  void allocate(consistency_check facts, byte_collectives called = {}) {
    describe_tensors(tensors, facts);
    if constexpr (has_draws<precision>)
      facts.add_word(precision::rounds_by_chance ? "the seed of stochastic_rounding" : "the seed of master_copies",
                     backend_.rounding.seed);
    if (sums_.count == 0) plan_sums(0);
    segments_ = memory.plan<segment>("tables", tensors.segments().size());
    tiles_ = memory.plan<tile>("tables", tensors.tiles().size());
    first_tile_ = memory.plan<std::size_t>("tables", tensors.first_tiles().size());
    local.plan(*this);
    scales.plan_memory(memory, tensors);
    require_consistent_ranks(facts, ranks.wrapped(), executor, allocator_of(backend_), called);
    memory.allocate(allocator_of(backend_));
    executor.clear(memory.bytes());
    masters.place(memory, tensors);
    executor.upload(std::as_const(tensors).segments(), memory.view(segments_));
    local.start(*this, memory.view(segments_));
    executor.upload(tensors.tiles(), memory.view(tiles_));
    executor.upload(tensors.first_tiles(), memory.view(first_tile_));
    rates.start(memory, executor);
    constructed_with_ = hash_of_options();
    note_given();
    masters.reload(*this);
  }

  /// Calls replace(buffer) with a temporary buffer, to give all ranks the same parameters. The next step compares them.
  template <class Replace>
  void replace_parameters(const Replace& replace) {
    masters.reload(*this);
    if (!has_peers()) return;
    compared.forget_difference(*this);
    compared.compare_next();  // also if it fails on some ranks
    constexpr std::uint64_t largest = 1U << 20U;
    arena room;
    const region<float> buffer = room.plan<float>(
        "parameters", std::max(std::min(tensors.elements(), largest), least_averaging_buffer(tensors)));
    const allocator from = allocator_of(backend_);
    allocate_on_all_ranks(*this, from, "broadcast_parameters()", [&] { room.allocate(from); });
    executor.invoke(::slamb::detail::begin_step{record(), 1.0});  // a step that failed may have been skipped before
    replace(room.view(buffer));
    executor.wait(ranks.wrapped());
    compared.note_equal_parameters();
  }

  /// Begins a step of Adam's update with the learning rates that have been set: gradients are read at this scale, and the scalars
  /// of the update are set. Then invokes `more`.
  template <trust_ratio TrustRatio, class Options, class... More>
  void begin_step(const Options& options, double gradient_scale, const variance_facts& variance, const More&... more) {
    bound_.with(options, variance.stopped);
    begin_step(gradient_scale, scalars_of<TrustRatio>(options, variance), more...);
  }
  /// The function that sets the scalars of Adam's update.
  template <trust_ratio TrustRatio, class Options>
  set_adam_scalars scalars_of(const Options& options, const variance_facts& variance) const {
    own_bound bound = bound_;
    return adam_scalars_of<TrustRatio>(options, record(), scalars(), bound.with(options, variance.stopped),
                                       variance.has_late);
  }
  /// Begins a step with the learning rates that have been set. Then invokes `more`.
  template <class... More>
  void begin_step(double gradient_scale = 1.0, const More&... more) const {
    bool has_begun = false;
    rates.store(memory, executor, record(), [&](const write_learning_rates& some) {
      if (std::exchange(has_begun, true)) return executor.invoke(some);
      executor.invoke(::slamb::detail::begin_step{record(), gradient_scale, scaling}, some, more...);
    });
  }

  /// Ends the step, which is taken or skipped.
  /// @return false if it is known to be skipped
  bool end_step() {
    const bool taken = !is_skipped_on_host();
    executor.invoke(::slamb::detail::end_step{record(), scaling.found_inf});
    compared.end_step(is_captured());
    is_captured() ? count_.invalidate() : count_.add_pending();
    if constexpr (executor_type::is_synchronous) count_.set(steps());
    return taken;
  }
  /// Ends a step that is taken in any case.
  void end_taken_step() {
    executor.invoke(::slamb::detail::end_step{record(), scaling.found_inf});
    compared.end_step(is_captured());
    is_captured() ? count_.invalidate() : count_.add_taken();
  }
  /// True if the last step was taken. Waits.
  bool has_taken_last_step() const { return read(&record()->was_skipped) == 0; }

  /// True if the step is skipped and the host knows it without waiting. On a device, passes read the flag themselves and do
  /// nothing.
  bool is_skipped_on_host() const noexcept {
    if constexpr (executor_type::is_synchronous)
      return record()->skip != 0;
    else
      return false;
  }

  /// The number of steps taken. Waits for all enqueued work.
  std::uint64_t steps() const { return read(&record()->taken); }

  /// Reads a value from the backend's memory. Waits.
  template <class T>
  T read(const T* from) const {
    return executor.read(from, ranks.wrapped());
  }

  /// t of the next step. Waits, unless the host knows it.
  /// @param needed_for  names what a captured step cannot do, for the error
  /// @throws std::logic_error if the step is captured into a graph
  std::uint64_t this_step(const char* needed_for) {
    require_no_capture(needed_for);
    return count_.next([this] { return steps(); });
  }
  /// holds(t) of the next step. Waits only if the answer depends on pending steps that may be skipped.
  /// @throws std::logic_error as `this_step`
  template <class Predicate>
  bool holds_at_this_step(const Predicate& holds, const char* needed_for) {
    require_no_capture(needed_for);
    return count_.holds_at_next(holds, [this] { return steps(); });
  }

  /// The number of steps taken at construction or when a state was last restored.
  std::uint64_t first_taken() const noexcept { return first_taken_; }

  /// Starts to read the outcome of the steps so far, without waiting.
  void read_outcome_later(late_outcome& late) const {
    executor.read_later(static_cast<const step_outcome*>(record()), late);
  }
  /// Finishes that read, so that `this_step` does not wait. Waits only for the steps before the read.
  step_outcome find_outcome(const late_outcome& late) {
    ranks.wrapped().wait(late.stream());
    const step_outcome outcome = late.finish();
    count_.set(outcome.taken);
    return outcome;
  }

  /// @param needed_for  names what a captured step, which is replayed, cannot do, for the error
  /// @throws std::logic_error if the step is captured into a graph
  void require_no_capture(const char* needed_for) const {
    if (is_captured())
      throw_sentence<std::logic_error>({"this call cannot be captured into a graph, because ", needed_for});
  }

  /// True if there are other ranks, in this node or in others.
  bool has_peers() const { return ranks.size() > 1 || ranks.local_size() > 1; }

  /// True while work is captured into a graph.
  bool is_captured() const {
    if constexpr (executor_type::is_synchronous)
      return false;
    else
      return executor.is_capturing();
  }

  step_record* record() const noexcept { return memory.view(record_).data(); }
  adam_scalars* scalars() const noexcept { return memory.view(scalars_).data(); }
  /// Multiplies the user's gradients as they are read. Gradients of a node have been multiplied by it.
  const float* input_scale() const noexcept { return &record()->input_scale; }
  std::uint32_t* not_finite() const noexcept { return &record()->not_finite; }
  const std::uint32_t* was_skipped() const noexcept { return &record()->was_skipped; }

  /// The function that computes trust ratios from sums.
  template <trust_ratio TrustRatio>
  compute_trust_ratios<TrustRatio> trust_ratios_from_sums(const TrustRatio& trust,
                                                          region<factors_of<TrustRatio>> factors) const {
    return {trust, view().segments, memory.view(factors).data(), ranks.size()};
  }

  /// Computes trust ratios that need no sums.
  template <trust_ratio TrustRatio>
  void compute_constant_trust_ratios(const TrustRatio& trust, region<factors_of<TrustRatio>> factors) {
    if constexpr (TrustRatio::sums_per_segment == 0)
      finish_sums<0>(0, tensors.segments().size(), trust_ratios_from_sums(trust, factors));
  }

  /// Calls finish(tensor, sums) for tensors first … last − 1: see `finish_segments` of the executor.
  template <int Sums, int Maxima = 0, class Finish>
  void finish_sums(std::size_t first, std::size_t last, const Finish& finish) {
    executor.template finish_segments<Sums, Maxima>(view(), first, last, sums(), finish);
  }

  /// The tables that passes of Adam's update read: scalars, tensors, learning rates and trust ratios.
  template <class Factors>
  update_tables<Factors> tables(region<Factors> factors) const noexcept {
    return {scalars(), view().segments, rates.stored(memory), memory.view(factors).data()};
  }

  /// The tables that passes of other updates read: learning rate and weight decay of each tensor.
  rate_tables tables() const noexcept { return {view().segments, rates.stored(memory)}; }

  /// Sets how the next steps scale gradients.
  void set_gradient_scaling(const gradient_scaling& given) {
    overlap.require_closed("set_gradient_scaling()");
    require_positive("gradient_scaling's factor", given.factor);
    executor.require_memory(given.loss_scale, "gradient_scaling's loss_scale");
    executor.require_memory(given.found_inf, "gradient_scaling's found_inf");
    scaling = given;
  }

  /// Points all tensors at other parameters and gradients. Without gradients these stay where they are.
  void set_parameters(std::span<const parameter::data_pointer> data,
                      std::optional<std::span<const parameter::gradient_pointer>> gradients) {
    overlap.require_closed("set_parameters()");
    require_no_capture("set_parameters() copies tables to the device");
    tensors.set_pointers(data, gradients);
    upload_tensors();
    note_given();
  }

  /// Sets the weight decays of all tensors.
  void set_weight_decay(std::span<const double> decays) {
    tensors.set_weight_decay(decays);
    upload_tensors();
    note_given();
  }
  /// Tells which β and ε the recipe has, with their names, so that ranks compare them. Weight decays are known.
  void set_coefficients(std::vector<std::pair<const char*, double>> now) {
    coefficients_ = std::move(now);
    if (memory.bytes().data() != nullptr) note_given();  // else the construction will
  }
  std::span<const std::pair<const char*, double>> coefficients() const noexcept { return coefficients_; }

  /// Looks for overflows that a framework has found, once all gradients of a step are ready.
  void read_overflow() const {
    if (scaling.found_inf != nullptr) executor.invoke(read_found_inf{record(), scaling.found_inf});
  }

  /// Points a tensor at another gradient, for frameworks that allocate gradients anew.
  void set_gradient(std::size_t tensor, const parameter::gradient_pointer& gradient) {
    tensors.require_gradient(tensor, gradient);
    if (std::as_const(tensors).segments()[tensor].size > 0 &&
        std::as_const(tensors).segments()[tensor].has_gradient != (gradient.address() != nullptr))
      overlap.require_closed("set_gradient() between a null gradient and another");
    if (overlap.is_ready(tensor)) overlap.require_closed("set_gradient() of a tensor that is ready");
    std::vector<segment> changed(tensors.segments().begin(), tensors.segments().end());
    changed[tensor].point_at(gradient);
    upload_gradients(std::move(changed), tensor, 1);
  }
  /// Points all tensors at other gradients, by one upload.
  void set_gradients(std::span<const parameter::gradient_pointer> gradients) {
    tensors.require_gradients(gradients);
    std::vector<segment> changed(tensors.segments().begin(), tensors.segments().end());
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      const bool had_gradient = changed[i].has_gradient;
      changed[i].point_at(gradients[i]);
      if (overlap.is_ready(i) || changed[i].has_gradient != had_gradient)
        overlap.require_closed_for("set_gradients() with tensor ", i,
                                   overlap.is_ready(i) ? " ready" : " from a null gradient to another, or back,");
    }
    upload_gradients(std::move(changed), 0, gradients.size());
  }

  view_type view() const noexcept {
    const model_view tables{.segments = memory.view(segments_).data(),
                            .tiles = memory.view(tiles_).data(),
                            .first_tile = memory.view(first_tile_).data(),
                            .gradient_scale = local.is_active() ? nullptr : input_scale(),
                            .skip = &record()->skip};
    view_type all(tables);
    if constexpr (has_blocks<precision>) all.scales = scales.at(memory);
    if constexpr (has_draws<precision>) all.draws = {.seed = backend_.rounding.seed, .steps = &record()->taken};
    return all;
  }
  tile_range all_tiles() const noexcept { return {0, tensors.tiles().size()}; }
  double* sums() const noexcept { return memory.view(sums_).data(); }
  std::size_t cache_bytes() const noexcept { return backend_.cache_bytes; }
  /// The allocator for memory that a call needs temporarily.
  allocator memory_source() const { return allocator_of(backend_); }

  /// Calls part(name, bytes, state_part) for each part of the lasting state.
  void visit_state(const state_visitor& part) const {
    std::uint64_t sizes = hash_of_nothing;
    for (const segment& s : tensors.segments()) sizes = hash_with(sizes, s.size);
    part("sizes of tensors", bytes_of(sizes), state_part::fact);
    visit_count(part, "step", record()->taken, state_part::common);
    visit_count(part, "skipped steps", record()->skipped, state_part::common);
    visit_count(part, "local skips", record()->local_skips, state_part::common);
    part("lineage", bytes_of(record()->lineage), state_part::common);
    scales.visit(part, memory, tensors);
  }

  /// Replaces the number of steps taken, and with it their history, which other ranks may not have had. Waits.
  void set_steps(std::uint64_t taken) {
    executor.wait(ranks.wrapped());
    executor.write(&record()->taken, taken);
    executor.write(&record()->lineage, std::uint64_t{0});
  }

  /// Continues after the state has been restored: sets the counters, and clears the flags of a step that failed.
  void start_from_saved() {
    compared.forget_difference(*this);
    executor.invoke(::slamb::detail::begin_step{record(), 1.0});
    executor.write(&record()->has_norm, std::uint32_t{0});
    executor.write(&record()->payload_of, std::uint64_t{0});
    first_taken_ = steps();
    bound_ = {};
    count_.set(first_taken_);
    compared.compare_next();
  }

  /// Replaces all phases so far, after a state has been restored.
  void start_in_phase(std::string_view name) { phases_.restart(name, steps() + 1, ranks.counts()); }

  /// The name of the current phase.
  std::string phase() const { return phases_.name(); }

  /// Starts another phase with the next step. Waits, unless the host knows its number.
  void enter_phase(std::string_view name) {
    phases_.enter(name, count_.next([this] { return steps(); }), ranks.counts());
  }

  statistics report() const {
    overlap.require_closed("statistics()");
    const step_record now = read(record());
    statistics all{.step = now.taken,
                   .skipped_steps = now.skipped,
                   .skipped_exchanges = now.skipped_exchanges,
                   .local_skips = now.local_skips,
                   .has_diverged = now.diverged != 0,
                   .gradient_norm = now.has_norm != 0 ? std::optional(now.last_norm) : std::nullopt,
                   .traffic = ranks.counts(),
                   .comparisons = ranks.comparisons()};
    phases_.report(all);
    return all;
  }

  // First, so that its sums have ended before the ranks and the memory are moved.
  overlapped_step<stream_type, ranks_type> overlap;  ///< the open step, if one is taken in parts
  layout tensors;
  executor_type executor;
  ranks_type ranks;
  learning_rates rates;
  gradient_scaling scaling;
  arena memory;
  node_reduction local;
  masters_of_model<precision> masters;
  moment_scales<precision> scales;
  comparison<stream_type> compared;  ///< with the other ranks

 private:
  void upload_tensors() {
    if (local.is_active())
      local.start(*this, memory.view(segments_));
    else
      executor.upload(std::as_const(tensors).segments(), memory.view(segments_));
  }
  // Uploads the changed entries first … first + count − 1. Passes of a node read other gradients, but the same `has_gradient`.
  void upload_gradients(std::vector<segment> changed, std::size_t first, std::size_t count) {
    const auto some = std::span<const segment>(changed).subspan(first, count);
    executor.upload(some, local.given(memory, memory.view(segments_)).subspan(first, count));
    std::ranges::copy(changed, tensors.segments().begin());
    if (local.is_active()) local.start(*this, memory.view(segments_));
    note_given();
  }
  // Ranks compare the tensors without a gradient, and options that have changed since the construction, when all were equal.
  void note_given() {
    std::uint64_t hash = 0;
    const auto add = [&hash](std::uint64_t word) { hash = hash_with(hash == 0 ? hash_of_nothing : hash, word); };
    for (std::size_t i = 0; i < tensors.segments().size(); ++i)
      if (!std::as_const(tensors).segments()[i].has_gradient) add(i);
    if (const std::uint64_t options = hash_of_options(); options != constructed_with_) add(options);
    if (hash == given_) return;
    given_ = hash;
    executor.write(&record()->given, given_);
  }
  std::uint64_t hash_of_options() const {
    std::uint64_t hash = hash_of_nothing;
    for (const auto& [name, value] : coefficients_) hash = hash_with(hash, std::bit_cast<std::uint64_t>(value));
    for (const segment& s : std::as_const(tensors).segments())
      hash = hash_with(hash, std::bit_cast<std::uint32_t>(s.weight_decay));
    return hash;
  }

  Backend backend_;
  std::vector<std::pair<const char*, double>> coefficients_;
  std::uint64_t constructed_with_ = 0;
  std::uint64_t given_ = 0;
  region<segment> segments_;
  region<tile> tiles_;
  region<std::size_t> first_tile_;
  region<adam_scalars> scalars_;
  region<step_record> record_;
  region<double> sums_;
  phase_log phases_;
  step_estimate count_;
  own_bound bound_;
  std::uint64_t first_taken_ = 0;
};

}  // namespace slamb::detail
