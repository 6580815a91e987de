// 0/1 Adam: one bit an element, of gradients while the variance is learned, and then of the sum of local steps.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "slamb/backend/host/host_backend.hpp"
#include "slamb/communicator/detail/requirements.hpp"
#include "slamb/compressor/dense_in.hpp"
#include "slamb/compressor/no_compressor.hpp"
#include "slamb/compressor/sign.hpp"
#include "slamb/core/concepts.hpp"
#include "slamb/detail/exchange/norms.hpp"
#include "slamb/detail/exchange/quantized.hpp"
#include "slamb/error_feedback/no_error_feedback.hpp"
#include "slamb/error_feedback/two_sided.hpp"
#include "slamb/optimizer/detail/dense_gradient.hpp"
#include "slamb/optimizer/detail/direction_counts.hpp"
#include "slamb/optimizer/detail/late_variance.hpp"
#include "slamb/optimizer/detail/local_steps.hpp"
#include "slamb/optimizer/detail/optimizer_context.hpp"
#include "slamb/optimizer/detail/optimizer_over.hpp"
#include "slamb/optimizer/detail/parameter_average.hpp"
#include "slamb/optimizer/detail/quantized_gradient.hpp"
#include "slamb/optimizer/detail/recipe_base.hpp"
#include "slamb/optimizer/detail/roles.hpp"
#include "slamb/optimizer/detail/settings.hpp"
#include "slamb/optimizer/detail/state_arrays.hpp"
#include "slamb/optimizer/detail/zero_one_passes.hpp"
#include "slamb/optimizer/detail/zero_one_phase.hpp"
#include "slamb/optimizer/rank_options.hpp"
#include "slamb/schedule/intervals.hpp"

namespace slamb {

namespace detail {

/// The policies on which saved states depend.
template <class Compressor, class ErrorFeedback, class VarianceSchedule, class LocalSchedule>
struct zero_one_adam_policies {};

}  // namespace detail

/// Options of `zero_one_adam`.
template <class Compressor, class ErrorFeedback, class VarianceSchedule, class LocalSchedule,
          class DenseCompressor = no_compressor>
struct zero_one_adam_options {
  using saved_policies = detail::zero_one_adam_policies<Compressor, ErrorFeedback, VarianceSchedule, LocalSchedule>;

  double beta1 = 0.9;          ///< in [0, 1)
  double beta2 = 0.999;        ///< in [0, 1)
  double epsilon = 1e-8;       ///< > 0
  double weight_decay = 0.01;  ///< λ ≥ 0
  /// B: an element's m/(√v + ε) is kept within ±B, before weight decay. 0: Adam's own bound; ∞: off, as in the paper
  double update_bound = 0.0;
  /// c > 0: g ← g min(1, c/(n + 1e-6)), with n = ‖g‖ of an exchanged dense mean, else √(mean ‖g_i‖²) over ranks; ∞: off
  double max_gradient_norm = std::numeric_limits<double>::infinity();
  bool clip_locally = false;          ///< n = ‖g_i‖ of each rank, or model in shards, not √(mean ‖g_i‖²)
  bool compress_single_rank = false;  ///< encodes and decodes with one rank too
  rank_options ranks{};
  VarianceSchedule variance_schedule{};  ///< decides when the variance is refreshed, and when it is frozen
  LocalSchedule local_schedule{};        ///< decides when local updates are exchanged
  Compressor compressor{};
  ErrorFeedback error_feedback{};
  DenseCompressor dense_compressor{};  ///< of the gradients that refresh the variance
};

namespace detail {

/// `zero_one_adam` on ranks of any Communicator.
template <compressor Compressor, error_feedback ErrorFeedback, class Backend, variance_schedule VarianceSchedule,
          local_schedule LocalSchedule, dense_compressor DenseCompressor = no_compressor>
class zero_one_adam_recipe final
    : public recipe_with_state<
          Backend, zero_one_adam_options<Compressor, ErrorFeedback, VarianceSchedule, LocalSchedule, DenseCompressor>,
          array::momentum, array::variance> {
  using base = recipe_with_state<
      Backend, zero_one_adam_options<Compressor, ErrorFeedback, VarianceSchedule, LocalSchedule, DenseCompressor>,
      array::momentum, array::variance>;
  using base::context_, base::options_, base::state_;

  static_assert(quantizer<Compressor>,
                "slamb: zero_one_adam sends every element in few bits; its Compressor must be a quantizer, such "
                "as sign or int8. Use sparsifiers and chains with slamb or lamb");

 public:
  using typename base::options_type;
  static constexpr const char* recipe_name = "basic_zero_one_adam";  ///< the name in saved states
  static constexpr bool has_several_kinds_of_step = true;            ///< kit::trial_of is specialised for it

  static void validate(const options_type& o) {
    base::validate(o);
    validate_policy(o.variance_schedule);
    validate_policy(o.local_schedule);
  }

  zero_one_adam_recipe(std::span<const parameter> parameters, const options_type& options,
                       typename base::ranks_type ranks, Backend backend)
      : base(parameters, options, std::move(ranks), std::move(backend)),
        exchange_(options.compressor, options.compress_single_rank, late_type::can_be_announced(options)),
        dense_(options.dense_compressor, {true, options.max_gradient_norm, options.compress_single_rank}),
        late_outcome_(context_.stream()),
        steps_(parameters.size()),
        phase_(options.variance_schedule, options.local_schedule) {
    exchange_.plan(context_);
    dense_.plan_beside(exchange_.wire(), context_);
    context_.plan_sums(2);
    factors_ = context_.memory.template plan<factors_type>("trust ratios", context_.tensors.segments().size());
    if (exchange_.is_active(context_)) steps_.plan(context_);
    local_.plan(context_, exchange_.is_active(context_));
    clip_.plan(context_, options_);
    late_.plan(context_);
    buffer_ = context_.plan_buffer(std::max<std::uint64_t>(
        {exchange_.buffer_bytes(), dense_.buffer_bytes(context_), least_averaging_buffer(context_.tensors) * 4}));
    dense_.use_buffer(buffer_, context_);
    context_.allocate(consistency(), byte_collectives_of<Compressor>);
    exchange_.start(context_, view(), array::variance());
    dense_.start(context_);
    context_.compute_constant_trust_ratios(unit_trust_ratio{}, factors_);
    batches_ = one_batch_of(context_.tensors);
    context_.enter_phase("variance");
  }

  using base::begin_step;
  using base::step;
  void step(const device_learning_rates& /*rates*/) override { reject_rates("step()"); }
  void begin_step(const device_learning_rates& /*rates*/) override { reject_rates("begin_step()"); }

  bool replicas_may_differ() const noexcept override { return true; }
  bool has_anchor() const noexcept override { return phase_.is_local() && exchange_.is_active(context_); }
  void average() override {
    if (replicas_differ()) average_parameters(context_, context_.floats_of(buffer_));
  }
  bool replicas_differ() override {
    resolve_last_step();
    return steps_.differ();
  }
  bool is_local_step() const noexcept override { return payload_ == payload::nothing && exchange_.is_active(context_); }

  statistics report(bool with_norms) override {
    resolve_last_step();
    statistics all = context_.report();
    if (with_norms) {
      all.norm = norms_of(context_, any_view_of(view()));
      report_directions<unit_trust_ratio, stopped_variance>(context_, view(), options_, variance(), all);
    }
    all.compression = exchange_.measured();
    if (with_norms) all.worker_error = exchange_.worker_error(context_);
    return all;
  }

  void measure_next_step() override { exchange_.measure_next(); }

 private:
  using passes = zero_one_passes;
  using phase_type = zero_one_phase<VarianceSchedule, LocalSchedule>;
  using payload = zero_one_payload;
  using factors_type = factors_of<unit_trust_ratio>;
  using late_type = late_elements<optimizer_context<Backend>>;
  using launcher_type = typename Backend::launcher_type;
  static constexpr const char* needs_its_number =
      "the schedules of 0/1 Adam follow the step number, which a capture does not know";

  [[noreturn]] static void reject_rates(const char* call) {
    throw std::logic_error(std::string("slamb: ") + call +
                           " of zero_one_adam was given device_learning_rates, but its schedules need the rates "
                           "on the host; pass a rate, or a rate for each group");
  }

  consistency_check consistency() const {
    consistency_check all = consistency_of(recipe_name, options_, context_.tensors.segments().size());
    all.add("compress_single_rank", options_.compress_single_rank ? 1.0 : 0.0);
    describe_policy(options_.variance_schedule, all);
    describe_policy(options_.local_schedule, all);
    return all;
  }

  // A single rank exchanges no updates, unless it is to encode them.
  payload payload_at(std::uint64_t tau) const {
    if (phase_.is_local() && !exchange_.is_active(context_)) return payload::nothing;
    return phase_.payload_at(tau);
  }

  // A step: docs/algorithms/zero_one_adam.md.
  void begin() override {
    resolve_last_step();
    tau_ = context_.next_step_number(needs_its_number) + 1;  // (1)
    payload_ = payload_at(tau_);
    if (late_found_at_ == 0 && payload_ != payload::dense_gradient) find_late_elements();
    tell_anchor();
    if (payload_ == payload::quantized_update) context_.agreement.compare_anchor(context_);
    const double scale = payload_ == payload::dense_gradient ? dense_.scale(context_) : 1.0;
    context_.template begin_step<unit_trust_ratio>(options_, scale, variance(payload_ == payload::dense_gradient),
                                                   exchange_.message_initializer(context_, buffer()));
  }

  bool exchange(const gradient_bucket& bucket) override {
    if (payload_ == payload::dense_gradient) return dense_.exchange(bucket, context_);  // (2)
    if (!bucket.is_last) return false;
    clip_.clip(context_);
    if (payload_ == payload::quantized_gradient) {  // (4)
      exchange_.send(passes::receive{frozen_update()}, context_, view(), buffer());
    } else if (payload_ == payload::quantized_update) {  // (9), (10), (12), (13)
      steps_.upload_rate_sums(context_);
      exchange_.set_participants(steps_.upload_participants(context_));
      exchange_.send(local_signal(), context_, view(), buffer());
    } else {
      check_own_gradient();
    }
    return true;
  }

  void finish() override {
    if (is_local_step()) return finish_locally();
    if (!context_.is_skipped_on_host()) {
      if (payload_ == payload::dense_gradient) {  // (3), (5), (6)
        take_adam_step(context_, state_.over(dense_.receive(context_), context_.memory), update(), batches_,
                       context_.trust_ratios_from_sums(unit_trust_ratio{}, factors_));
        exchange_.find_active(context_, view(), array::variance());
      } else if (payload_ == payload::quantized_gradient) {  // (5), (6)
        exchange_.receive(passes::receive{frozen_update()}, context_, view(), buffer(), context_.all_tiles());
      } else if (payload_ == payload::quantized_update) {  // (9), (10), (14) … (16)
        exchange_.receive(local_signal(), context_, view(), buffer(), context_.all_tiles());
      } else {  // one rank: (9), (6)
        context_.run(passes::single{frozen_update()}, view(), context_.all_tiles());
      }
      continue_late_elements();
    }
    end_step();
  }

  // Refreshes give v themselves. After an exchange of updates a tensor's momentum is common unless its Γ is 0.
  void continue_late_elements() {
    if (payload_ == payload::quantized_update)
      late_.continue_variances(context_, view(), exchange_, steps_.inverse_rate_sums(context_));
    else if (payload_ != payload::dense_gradient)
      late_.continue_variances(context_, view(), exchange_);
  }

  // The first search, of a new training or of one that goes on from a saved state. Waits.
  void find_late_elements() {
    late_.found({});
    if (!lets_elements_begin(options_)) return;
    late_.find(context_, view());
    late_found_at_ = phase_.refreshes();
  }
  // Elements get variances by refreshes. A search reads v, so there is one whenever refreshes have doubled, while any are late.
  bool must_find_late_again() const {
    return payload_ == payload::dense_gradient && (late_found_at_ == 0 || late_.exist()) &&
           phase_.refreshes(true) >= 2 * late_found_at_ && lets_elements_begin(options_);
  }

  variance_properties variance(bool is_refreshed_in_this_step = false) const {
    return {phase_.refreshes(is_refreshed_in_this_step), late_.exist()};
  }

  void check_own_gradient() {
    if (!clip_.is_active()) context_.run(passes::check{}, view(), context_.all_tiles(), nullptr, context_.not_finite());
    context_.invoke(skip_if_not_finite{context_.record()});
  }

  // (9) … (12)
  void finish_locally() {
    context_.run(passes::local{frozen_update()}, view(), context_.all_tiles());
    // No collective carries the overflow flag, so the step counts as taken, as on the other ranks.
    context_.invoke(drop_local_gradient{context_.record(), context_.scaling.found_inf});
    context_.end_taken_step();
    steps_.count(context_);
    phase_.advance(tau_);
  }

  passes::receive_update local_signal() const { return {{frozen_update()}, steps_.inverse_rate_sums(context_)}; }

  // Ends a step that may be skipped. On a device its outcome is read later, when it is needed.
  void end_step() {
    if (phase_.ends_after(tau_)) start_from_anchor();
    context_.end_step();
    step_pending_ = true;
    readback_pending_ = is_searched_ = false;
    if (must_find_late_again()) {
      late_.search(context_, view());
      is_searched_ = true;
    }
    if constexpr (launcher_type::is_synchronous) {
      resolve_last_step();
    } else {
      context_.read_outcome_later(late_outcome_);
      readback_pending_ = true;
    }
  }

  // Finds out if the last step was taken, which decides the kind of the next step. Waits only for that step.
  void resolve_last_step() {
    if (!step_pending_) return;
    context_.require_no_capture(needs_its_number);
    if (readback_pending_ || is_searched_) {
      const step_outcome outcome = outcome_of_last_step();
      if (is_searched_) late_.found(outcome.late);
    }
    if (context_.next_step_number(needs_its_number) == tau_) advance_schedules();
    if (std::exchange(is_searched_, false)) late_found_at_ = phase_.refreshes();
    step_pending_ = false;
  }

  step_outcome outcome_of_last_step() {
    if constexpr (!launcher_type::is_synchronous)
      if (readback_pending_) return context_.find_outcome(late_outcome_);
    return context_.read(static_cast<const step_outcome*>(context_.record()));
  }

  // Continues after a step that was taken. Actions that can fail come first, and can be repeated.
  void advance_schedules() {
    if (phase_.is_local()) steps_.forget();
    if (phase_.ends_after(tau_)) {
      if (exchange_.is_active(context_)) exchange_.clear_errors(context_);
      context_.enter_phase("local steps");
    }
    phase_.advance(tau_);
  }

  // a, b_i: docs/algorithms/zero_one_adam.md (8). In a skipped step it does nothing.
  void start_from_anchor() {
    if (exchange_.is_active(context_)) context_.run(start_anchor{}, view(), context_.all_tiles());
  }

  std::span<std::byte> buffer() const noexcept { return context_.memory.view(buffer_); }
  adam_update<unit_trust_ratio> update() const { return {context_.tables(factors_), {}}; }
  adam_update<unit_trust_ratio, stopped_variance> frozen_update() const { return {context_.tables(factors_), {}}; }

  auto view() const noexcept { return local_.over(base::view(), context_.memory); }

  // Gives the anchor to the comparison of ranks.
  void tell_anchor() { context_.agreement.set_anchor(has_anchor() ? view().anchor : nullptr); }

  // Continues from parameters that are equal on all ranks.
  void on_broadcast() override {
    resolve_last_step();
    tell_anchor();
    if (!phase_.is_local()) return;
    start_from_anchor();
    steps_.forget();
  }

  state_kind kind() const noexcept override { return kind_of<zero_one_adam_recipe>(); }
  void visit_state(const state_visitor& part) override {
    resolve_last_step();
    base::visit_state(part);
    exchange_.visit_state(context_, part);
    local_.visit(part, context_.memory, state_part::errors);
    steps_.visit_tensors(part);
    phase_.visit_state(part);
    steps_.visit_difference(part);
  }
  typename base::parts_of_past takes_of_past() const noexcept override {
    return {.intervals = phase_type::has_intervals};
  }
  // The schedules as after these steps. If they end the first phase, local steps begin in on_state_loaded().
  void begin_after(const past_steps& past) override {
    resolve_last_step();
    const bool was_local = phase_.is_local();
    phase_.restart_after(past);
    begins_locally_ = !was_local && phase_.is_local();
    if (begins_locally_ && exchange_.is_active(context_)) exchange_.clear_errors(context_);
  }
  void on_state_loaded(const restore_options& options) override {
    if (std::exchange(begins_locally_, false) || (options.from_other_ranks && phase_.is_local()))
      start_from_anchor();  // from the parameters as they are
    late_type::end_unless_allowed(options_, context_, view());
    late_found_at_ = 0;
    find_late_elements();
    context_.start_in_phase(phase_.is_local() ? "local steps" : "variance");
    exchange_.find_active(context_, view(), array::variance());
    tell_anchor();
  }

  state_arrays<array::accumulated_update, array::anchor> local_;
  quantized_exchange<Compressor, ErrorFeedback, optimizer_context<Backend>> exchange_;
  gradient_exchange<DenseCompressor, no_error_feedback, optimizer_context<Backend>> dense_;
  own_gradient_clip clip_;
  late_type late_;
  region<factors_type> factors_;
  region<std::byte> buffer_;
  std::vector<tensor_batch> batches_;
  typename optimizer_context<Backend>::late_outcome late_outcome_;
  local_steps steps_;
  phase_type phase_;
  std::uint64_t tau_ = 0;               // of the current step
  std::uint64_t late_found_at_ = 0;     // the refreshes when late_ was found; 0: it is not known
  payload payload_ = payload::nothing;  // of the current step
  bool begins_locally_ = false;         // set_steps() has ended the first phase
  bool step_pending_ = false;           // the outcome of the last step is not known yet
  bool readback_pending_ = false;       // late_outcome_ will have the answer
  bool is_searched_ = false;            // the answer will have late elements
};

/// The recipe of these options on a Backend: declared for plans.
template <class Compressor, class ErrorFeedback, class VarianceSchedule, class LocalSchedule, class DenseCompressor,
          class Backend>
zero_one_adam_recipe<Compressor, ErrorFeedback, Backend, VarianceSchedule, LocalSchedule, DenseCompressor> recipe_of(
    const zero_one_adam_options<Compressor, ErrorFeedback, VarianceSchedule, LocalSchedule, DenseCompressor>& options,
    const Backend& on);

struct variance_schedule_role {
  template <class P>
  static constexpr bool fits = variance_schedule<P>;
};
struct local_schedule_role {
  template <class P>
  static constexpr bool fits = local_schedule<P>;
};

inline namespace SLAMB_SIMD_NAMESPACE {

/// The policies of `zero_one_adam`.
template <class... Policies>
struct zero_one_adam_policies_of {
  using own_roles = roles<compressor_role, error_feedback_role, variance_schedule_role, local_schedule_role,
                          dense_compressor_role, communicator_role, backend_role>;
  static_assert((is_policy<Policies, own_roles>::value && ...));

  using recipe_type =
      zero_one_adam_recipe<policy_of<compressor_role, sign, Policies...>,
                           policy_of<error_feedback_role, two_sided<>, Policies...>,
                           policy_of<backend_role, host_backend, Policies...>,
                           policy_of<variance_schedule_role, exponential_variance_interval, Policies...>,
                           policy_of<local_schedule_role, doubling_local_interval, Policies...>,
                           typename policy_of<dense_compressor_role, dense_in<no_compressor>, Policies...>::type>;
  using communicator_type = policy_of<communicator_role, typename recipe_type::ranks_type, Policies...>;
};

}  // namespace SLAMB_SIMD_NAMESPACE
}  // namespace detail

inline namespace SLAMB_SIMD_NAMESPACE {

/// 0/1 Adam, with signs and a scale, and worker and server errors.
///
/// Phase A exchanges the gradient: dense at steps that become rarer, otherwise quantized. Phase B takes local steps with a frozen
/// variance, and exchanges the quantized local update at steps that become rarer.
///
///     A:  m ← β1 m + (1−β1) exchange(g_i)              p ← p − γ (m/(√v + ε) + λ p)
///     B:  m_i ← β1 m_i + (1−β1) g_i                    b_i ← b_i − γ (m_i/D + λ p_i);   p_i = a + b_i
///         every L steps:  y ← exchange(b_i D);  m ← −y/Γ;   p = a ← a + y/D;   b ← 0
///
/// The DenseCompressor decides how the mean of the dense gradients is exchanged: in floats (no_compressor), or in sixteen bits
/// (bf16, fp16), as in `one_bit_adam`.
///
/// *Memory*: 16 bytes of state a parameter and a buffer of 4 (8 and none with one rank), and the errors of the ErrorFeedback.
/// With a DenseCompressor of sixteen bits and N ranks, the buffer has 2 + max(4, 2 + 6/N) bytes.
/// *Cost*: 36 bytes of memory traffic a parameter in a local step; see docs/algorithms/zero_one_adam.md. On the wire: an
/// all_reduce, or two collectives of codes, or nothing, for any number of tensors.
/// *Stream*: on a device a step is enqueued. First it waits for the end of the step before, but not for later work; it does not
/// wait after a local step without an exchange. It cannot be captured into a graph.
/// *Determinism*: the same bits from run to run. Parameters are equal on all ranks in phase A and after each exchange of phase B.
/// *Reference*: 0/1 Adam, arXiv 2202.06009, algorithm 1.
///
/// @tparam Policies  in any order, each if it differs from its default: a Compressor (sign), which is a quantizer; an ErrorFeedback
///                   (two_sided<>); a VarianceSchedule (exponential_variance_interval); a LocalSchedule
///                   (doubling_local_interval); dense_in<DenseCompressor> (no_compressor); a Communicator (the one that the
///                   constructor is given); and a Backend (host_backend)
template <class... Policies>
class zero_one_adam : public detail::optimizer_of<detail::zero_one_adam_policies_of<Policies...>> {
 public:
  using zero_one_adam::optimizer_over::optimizer_over;

  using optimizer::begin_step;
  using optimizer::step;
  void step(const device_learning_rates& rates) = delete;  // its schedules need the rates on the host
  void begin_step(const device_learning_rates& rates) = delete;
};

}  // namespace SLAMB_SIMD_NAMESPACE
}  // namespace slamb
