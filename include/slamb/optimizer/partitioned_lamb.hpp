// AdamW and LAMB whose state is partitioned over the ranks: docs/algorithms/partition.md.
#pragma once

#include <algorithm>
#include <cstddef>
#include <limits>
#include <span>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "slamb/core/concepts.hpp"
#include "slamb/core/detail/sentence.hpp"
#include "slamb/detail/exchange/partitioned.hpp"
#include "slamb/detail/pass/arena.hpp"
#include "slamb/detail/pass/layout.hpp"
#include "slamb/optimizer/detail/dense_gradient.hpp"
#include "slamb/optimizer/detail/model_parts.hpp"
#include "slamb/optimizer/detail/partition_passes.hpp"
#include "slamb/optimizer/detail/recipe_base.hpp"
#include "slamb/optimizer/detail/settings.hpp"
#include "slamb/optimizer/detail/state_arrays.hpp"
#include "slamb/optimizer/lamb.hpp"

namespace slamb {

namespace sync {

/// Options of `lamb` and `adamw` with a sync::partition: those of `lamb_options`, and the partition. A single rank never compresses.
template <class Compressor, class ErrorFeedback, class TrustRatio, class Partition>
struct partitioned_lamb_options {
  double beta1 = 0.9;                                                ///< in [0, 1)
  double beta2 = 0.999;                                              ///< in [0, 1)
  double epsilon = TrustRatio::sums_per_segment == 0 ? 1e-8 : 1e-6;  ///< > 0; Adam's customary value, and LAMB's
  double weight_decay = 0.01;                                        ///< λ ≥ 0
  bool bias_correction = true;                                       ///< false: m̂ = m, v̂ = v
  /// c > 0: g ← g min(1, c/(‖g‖ + 1e-6)), with the norm of the mean over all tensors; ∞: off
  double max_gradient_norm = std::numeric_limits<double>::infinity();
  bool skip_non_finite =
      true;  ///< all ranks skip a step if a gradient of any rank is not finite; codes are always checked
  rank_options ranks{};
  Compressor compressor{};  ///< of gradients
  ErrorFeedback error_feedback{};
  TrustRatio trust_ratio{};
  Partition parameter_sync{};
};

}  // namespace sync

namespace detail {

/// The quantizer of a phase: that of a policy, or floats as they are.
template <class Compressor>
struct quantizer_of_phase {
  using type = Compressor;
};
template <class Compressor>
requires requires { requires Compressor::selects_all; }
struct quantizer_of_phase<Compressor> {
  using type = whole_floats;
};
template <class Compressor>
using quantizer_of_phase_t = typename quantizer_of_phase<Compressor>::type;

/// `lamb` with a partition, on ranks of any Communicator. A single rank has the whole model, and takes the steps of `lamb`.
template <compressor Compressor, error_feedback ErrorFeedback, trust_ratio TrustRatio, class Partition, class Backend>
class partitioned_lamb_recipe final
    : public recipe_with_state<Backend,
                               sync::partitioned_lamb_options<Compressor, ErrorFeedback, TrustRatio, Partition>> {
  using base =
      recipe_with_state<Backend, sync::partitioned_lamb_options<Compressor, ErrorFeedback, TrustRatio, Partition>>;
  using base::context_, base::options_;

  static constexpr bool sends_gradients_whole = requires { requires Compressor::selects_all; };
  static_assert(sends_gradients_whole || quantizer<Compressor>,
                "slamb: with sync::partition every rank needs its part of every gradient; the Compressor must be "
                "no_compressor or a quantizer, such as int8");
  static_assert(
      !sends_gradients_whole || (!ErrorFeedback::worker_state && !ErrorFeedback::server_state),
      "slamb: LAMB or AdamW without compression has no compression error; its ErrorFeedback must have no error "
      "buffers, such as no_error_feedback");

 public:
  using typename base::options_type, typename base::context_type;
  static constexpr const char* recipe_name = "partitioned_lamb";  ///< the name in saved states
  /// What ranks send, for the collectives that a Communicator must have: codes, or floats as if they were codes.
  using sent_type = quantizer_of_phase_t<Compressor>;

  partitioned_lamb_recipe(std::span<const parameter> parameters, const options_type& options,
                          typename base::ranks_type ranks, Backend backend)
      : base(parameters, options, std::move(ranks), std::move(backend)),
        exchange_(phase_of(options.compressor), phase_of(options.parameter_sync.quantizer)),
        whole_({}, {options.skip_non_finite, options.max_gradient_norm, false}),
        parts_(context_) {
    require_no_shards();
    if (is_partitioned()) {
      context_.masters.leave_to_parts();
      exchange_.plan(context_);
      parts_.plan(exchange_.parts_of(context_), keeps_exact());
    } else {
      parts_.tensors = layout(context_.tensors, whole_parts(), true);
    }
    state_.plan(parts_);
    constexpr int sums = std::max<int>(TrustRatio::sums_per_segment, norms_of_model::sums);
    context_.plan_sums(sums);
    if (is_partitioned())
      parts_.plan_sums(sums);
    else
      parts_.scales.plan_memory(context_.memory, context_.tensors);
    factors_ = context_.memory.template plan<factors_type>("trust ratios", context_.tensors.segments().size());
    context_.allocate(consistency(), {.of_codes = is_partitioned()});
    if (is_partitioned()) {
      exchange_.start(context_);
      parts_.start(context_.is_plan() ? std::vector<std::size_t>{} : exchange_.tiles_of(context_));
    }
    context_.compute_constant_trust_ratios(options_.trust_ratio, factors_);
    batches_ = is_partitioned() ? one_batch_of(parts_.tensors) : batches_for<TrustRatio>(context_, 4 * sizeof(float));
    context_.enter_phase("dense");
  }

  static void validate(const options_type& o) {
    base::validate(o);
    validate_policy(o.parameter_sync);
    require_all_elements("compressor", o.compressor);
    require_all_elements("parameter_sync.quantizer", o.parameter_sync.quantizer);
  }

  statistics report(bool with_norms) override {
    statistics all = context_.report();
    if (!is_partitioned()) {
      if (with_norms) all.norm = norms_of(context_, any_view_of(state_.over(context_.view(), context_.memory)));
      return all;
    }
    all.compression = exchange_.measured();
    if (!with_norms) return all;
    all.norm = parts_.norms(state_);
    all.worker_error = exchange_.worker_error(context_);
    all.parameter_drift = parts_.unsent();
    return all;
  }

  void measure_next_step() override {
    if (is_partitioned()) exchange_.measure_next();
  }

 private:
  using factors_type = factors_of<TrustRatio>;

  bool is_partitioned() const noexcept { return context_.ranks.size() > 1; }

  // A step: docs/algorithms/partition.md.
  void begin() override {
    if (is_partitioned()) parts_.begin();
    const bool receives_sums = is_partitioned() && exchange_type::receives_sums;
    context_.template begin_step<TrustRatio>(options_, receives_sums ? 1.0 / context_.ranks.size() : 1.0, {});
  }

  // g ← the mean of the ranks' gradients, over this rank's parts: (1), (2)
  bool exchange(const gradient_bucket& bucket) override {
    if (!is_partitioned()) return whole_.exchange(bucket, context_);
    if (bucket.is_last) exchange_.send(send_gradient{}, context_, context_.view(), options_.skip_non_finite);
    return bucket.is_last;
  }

  // m, v, P ← … over the parts: (3);  p ← p + Q(P − p): (4) … (6)
  void finish() override {
    if (!context_.is_skipped_on_host()) {
      context_.has_half_step = is_partitioned();  // errors of gradients have changed, and the parts follow
      is_partitioned() ? update_parts() : update_all();
      context_.has_half_step = false;
    }
    context_.end_step();
  }

  void update_parts() {
    const auto g = parts_.with_gradients(exchange_.average(context_, parts_.of_exchange()));
    parts_.clip(g, options_.max_gradient_norm);
    take_adam_step(parts_, state_.over(g, context_.memory), update(), batches_, finish_of_sums(),
                   options_.skip_non_finite);
    exchange_.send_parts(context_, parts_.of_exchange());
  }

  void update_all() {
    const auto g = whole_.receive(context_);
    take_adam_step(context_, state_.over(g, context_.memory), update(), batches_, finish_of_sums(),
                   options_.skip_non_finite);
  }

  adam_update<TrustRatio, unbounded_variance> update() const {
    return {context_.tables(factors_), options_.trust_ratio};
  }
  auto finish_of_sums() const { return context_.trust_ratios_from_sums(options_.trust_ratio, factors_); }

  // True if this rank keeps exact parameters, which the user's follow.
  bool keeps_exact() const {
    if (exchange_type::sends_differences) return true;
    if (!context_.on().properties().takes_types || context_.on().properties().rounds_by_chance) return false;
    return std::ranges::any_of(std::as_const(context_.tensors).segments(),
                               [](const segment& s) { return s.data_type != element_type::float32; });
  }

  void require_no_shards() const {
    if (context_.shards.exists())
      throw std::invalid_argument(
          "slamb: sync::partition cuts the model into parts itself, and its Communicator has a shard group of " +
          std::to_string(context_.shards.size()) +
          " ranks; give the optimizer a Communicator without shards, or no sync::partition");
    const std::span<const segment> tensors = std::as_const(context_.tensors).segments();
    for (std::size_t i = 0; i < tensors.size() && is_partitioned(); ++i)
      if (tensors[i].master != nullptr)
        throw_sentence({"tensor ", i,
                        " has a master copy, but with sync::partition each rank keeps those of its own part; master "
                        "must be null"});
  }

  // The parts of a single rank.
  std::vector<tensor_part> whole_parts() const {
    std::vector<tensor_part> all;
    for (const segment& s : std::as_const(context_.tensors).segments()) all.push_back({0, s.size, s.first, true});
    return all;
  }

  template <class Quantizer>
  static quantizer_of_phase_t<Quantizer> phase_of(const Quantizer& its) {
    if constexpr (std::is_same_v<quantizer_of_phase_t<Quantizer>, Quantizer>)
      return its;
    else
      return {};
  }

  template <class Quantizer>
  static void require_all_elements(const char* name, const Quantizer& quantizer) {
    if constexpr (requires { quantizer.zero_aware; })
      if (quantizer.zero_aware)
        throw std::invalid_argument(std::string("slamb: ") + name +
                                    " has zero_aware = true, but with sync::partition all elements are exchanged; it "
                                    "must be false");
  }

  consistency_check consistency() const {
    consistency_check all = consistency_of(recipe_name, options_, context_.tensors.segments().size());
    all.add("skip_non_finite", options_.skip_non_finite ? 1.0 : 0.0);
    describe_policy(options_.parameter_sync, all);
    return all;
  }

  state_kind kind() const noexcept override { return kind_of<partitioned_lamb_recipe>(); }
  bool keeps_part() const noexcept override { return true; }
  void visit_state(const state_visitor& part) override {
    base::visit_state(part);
    state_.visit(part, context_.memory);
    if (!is_partitioned()) return parts_.scales.visit(part, context_.memory, context_.tensors);
    parts_.visit_state(part);
    exchange_.visit_state(context_, part);
  }
  tensor_moments all_moments() const noexcept override {
    return is_partitioned() ? tensor_moments{} : base::moments_of(state_);
  }
  void on_broadcast() override { parts_.follow_broadcast(!exchange_type::sends_differences); }
  void on_parameters_reloaded() override { parts_.reload_exact(); }
  void begin_after(const past_steps& /*past*/) override { parts_.reload_exact_later(); }

  using exchange_type =
      partitioned_exchange<quantizer_of_phase_t<Compressor>, quantizer_of_phase_t<decltype(Partition::quantizer)>,
                           ErrorFeedback, context_type>;

  exchange_type exchange_;
  gradient_exchange<no_compressor, no_error_feedback, context_type>
      whole_;  // of a single rank, which only checks and clips
  model_parts<context_type> parts_;
  state_arrays<array::momentum, array::variance> state_;
  region<factors_type> factors_;
  std::vector<tensor_batch> batches_;
};

/// The recipe of these options on a Backend: declared for plans.
template <class Compressor, class ErrorFeedback, class TrustRatio, class Partition, class Backend>
partitioned_lamb_recipe<Compressor, ErrorFeedback, TrustRatio, Partition, Backend> recipe_of(
    const sync::partitioned_lamb_options<Compressor, ErrorFeedback, TrustRatio, Partition>& options, const Backend& on);

template <capability::partitions_state Partition, class Compressor, class ErrorFeedback, class TrustRatio,
          class Backend>
struct lamb_recipe_with<Partition, Compressor, ErrorFeedback, TrustRatio, Backend> {
  using type = partitioned_lamb_recipe<Compressor, ErrorFeedback, TrustRatio, Partition, Backend>;
};

}  // namespace detail
}  // namespace slamb
