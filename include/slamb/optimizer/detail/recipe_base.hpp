// The base of every recipe: it takes steps, at once or in parts, saves states and reports.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "slamb/communicator/any_communicator.hpp"
#include "slamb/core/config.hpp"
#include "slamb/core/detail/function_ref.hpp"
#include "slamb/core/parameter.hpp"
#include "slamb/detail/pass/layout.hpp"
#include "slamb/detail/pass/pass.hpp"
#include "slamb/detail/pass/precision.hpp"
#include "slamb/detail/state/saved_state.hpp"
#include "slamb/optimizer/detail/optimizer_context.hpp"
#include "slamb/optimizer/detail/optimizer_core.hpp"
#include "slamb/optimizer/detail/settings.hpp"
#include "slamb/optimizer/detail/state_arrays.hpp"
#include "slamb/optimizer/detail/state_of_shards.hpp"
#include "slamb/optimizer/optimizer.hpp"

namespace slamb::detail {

/// The base of recipes: the core of an optimizer, and the order of a step. A recipe defines:
///
///     begin()             begins a step with the learning rates that have been set
///     exchange(bucket)    forms the signal of a bucket of tensors and exchanges it. The base calls it for one bucket after
///                         another as gradients become ready, or once for all tensors. It may return false for a bucket that is
///                         not the last: then the rest of the step is exchanged with the last bucket
///     finish()            updates the model with the received values, unless the step is skipped, and ends the step
///
/// A step is these three calls, in this order. A step in parts has more buckets.
class recipe_base : public recipe {
 public:
  recipe_base(std::unique_ptr<optimizer_core> core, std::uint64_t bucket_bytes) noexcept
      : core_(std::move(core)), bucket_bytes_(bucket_bytes) {}

  call_scope enter() const noexcept final { return core_->on().enter(); }

  SLAMB_DECL void step(std::span<const double> rates_by_group) final;
  SLAMB_DECL void step(const device_learning_rates& rates) override;
  SLAMB_DECL void begin_step(std::span<const double> rates_by_group) final;
  SLAMB_DECL void begin_step(const device_learning_rates& rates) override;
  SLAMB_DECL void gradient_ready(std::size_t first, std::size_t count) final;
  SLAMB_DECL void finish_step() final;
  void abandon_step() noexcept final { core_->overlap.close(); }

  SLAMB_DECL void synchronize_parameters() final;
  SLAMB_DECL void broadcast_parameters(int root) final;
  SLAMB_DECL void compare_ranks() final;
  SLAMB_DECL void with_averaged_parameters(const std::function<void()>& evaluate) final;

  statistics report(bool /*with_norms*/) override { return core_->report(); }
  memory_report memory() const final { return core_->memory.report(core_->tensors.elements()); }

  SLAMB_DECL void save_state(const byte_sink& to, const save_options& options) final;
  SLAMB_DECL void load_state(const byte_source& from, const restore_options& options) final;

  SLAMB_DECL tensor_moments moments(std::size_t tensor) const final;
  SLAMB_DECL void set_steps(const past_steps& past) final;
  void set_gradient_scaling(const gradient_scaling& scaling) final { core_->set_gradient_scaling(scaling); }
  SLAMB_DECL void set_options(const option_changes& changes) override;
  SLAMB_DECL void reload_parameters() final;
  SLAMB_DECL void set_parameters(std::span<const parameter::data_pointer> data,
                                 std::optional<std::span<const parameter::gradient_pointer>> gradients) final;
  SLAMB_DECL void set_gradient(std::size_t tensor, const parameter::gradient_pointer& gradient) final;
  SLAMB_DECL void set_gradients(std::span<const parameter::gradient_pointer> gradients) final;

 protected:
  virtual void begin() = 0;
  virtual bool exchange(const gradient_bucket& bucket) = 0;
  virtual void finish() = 0;
  /// True if the ranks' replicas of the parameters may differ now. Must be equal on all ranks.
  virtual bool replicas_differ() { return false; }
  /// True if the step that has begun has no exchange.
  virtual bool is_local_step() const noexcept { return false; }
  /// True if steps begin at other parameters than those of the last step.
  virtual bool has_anchor() const noexcept { return false; }
  /// True if replicas may ever differ.
  virtual bool replicas_may_differ() const noexcept { return false; }
  /// True if the state is that of a part of the model, which depends on the rank and on the number of ranks.
  virtual bool keeps_part() const noexcept { return false; }
  /// Replaces the parameters by their mean over ranks, if they may differ.
  virtual void average() {}
  /// Called when the parameters have been replaced by their mean, to stay so.
  virtual void on_averaged() {}
  /// The kind of the states that it saves and loads.
  virtual state_kind kind() const noexcept = 0;
  /// Calls part(name, bytes, state_part) for each part of the lasting state, the core's first.
  virtual void visit_state(const state_visitor& part) = 0;
  /// Called when the parameters have been replaced by equal ones on all ranks.
  virtual void on_broadcast() {}
  /// Called when something else has written the parameters.
  virtual void on_parameters_reloaded() {}
  /// m and v of all tensors, [state elements], if both are stored as floats.
  virtual tensor_moments all_moments() const noexcept { return {}; }
  /// The parts of `past_steps` that it takes, besides `taken`.
  struct parts_of_past {
    bool warm_up = false, ratios = false, intervals = false;
  };
  virtual parts_of_past takes_of_past() const noexcept { return {}; }
  /// Called before the number of steps is set: schedules that keep a state go on as after these steps.
  /// @throws std::invalid_argument before anything changes
  virtual void begin_after(const past_steps& /*past*/) {}
  /// Called when a state has been restored, or when the number of steps has been set.
  virtual void on_state_loaded(const restore_options& options) = 0;

  optimizer_core& core() const noexcept { return *core_; }

 private:
  rank_agreement::equality replicas_are_equal();
  state_owner owner() const;
  const whole_state* whole_tensors(bool asked, const char* call, std::optional<state_of_shards>& whole) const;
  void visit_all(const state_visitor& part, const whole_state* whole);
  void require_usable(const char* call) const;
  void require_ready(const char* call) const;
  void require_past(const past_steps& past) const;
  void take_step();
  void open_step();
  void exchange_rest_and_finish();
  void exchange_ready();
  void close_if_it_throws(function_ref<void()> body);

  std::unique_ptr<optimizer_core> core_;
  std::uint64_t bucket_bytes_;
  bool is_half_restored_ = false;
};

/// The base of recipes on a Backend.
template <class Backend>
class recipe_on : public recipe_base {
 public:
  using backend_type = Backend;
  using ranks_type = any_communicator<typename Backend::stream_type>;
  using context_type = optimizer_context<Backend>;

  /// @param state  the recipe's state arrays
  template <class Options>
  recipe_on(std::span<const parameter> parameters, const Options& options, ranks_type ranks, Backend backend,
            std::span<const stored_array> state)
      : recipe_base(std::make_unique<context_type>(parameters, options.weight_decay, options.ranks.compare_every,
                                                   std::move(ranks), std::move(backend), state),
                    options.ranks.bucket_bytes),
        context_(static_cast<context_type&>(core())) {}

  ranks_type& ranks() noexcept { return context_.communicator; }

 protected:
  context_type& context_;
};

/// A recipe with options and state arrays of its own.
template <class Backend, class Options, class... Arrays>
class recipe_with_state : public recipe_on<Backend> {
 public:
  using typename recipe_on<Backend>::ranks_type, typename recipe_on<Backend>::context_type;
  using options_type = Options;
  using state_type = state_arrays<Arrays...>;

  recipe_with_state(std::span<const parameter> parameters, const Options& options, ranks_type ranks, Backend backend)
      : recipe_on<Backend>(parameters, options, std::move(ranks), std::move(backend),
                           state_type::template stored<typename context_type::precision>),
        options_(options) {
    state_.plan(context_);
    context_.set_coefficients(coefficients());
  }

  /// @throws std::invalid_argument that names the value out of range
  static void validate(const Options& o) { validate_settings(o); }

  const Options& options() const noexcept { return options_; }

  void set_options(const option_changes& changes) final {
    Options changed = options_;
    option_changes rest = changes;
    if constexpr (requires { changed.beta1; }) take(rest.beta1, changed.beta1);
    if constexpr (requires { changed.beta2; }) take(rest.beta2, changed.beta2);
    if constexpr (requires { changed.epsilon; }) take(rest.epsilon, changed.epsilon);
    validate_settings(changed);
    recipe_base::set_options(rest);
    options_ = std::move(changed);
    context_.set_coefficients(coefficients());
  }

 protected:
  using recipe_on<Backend>::context_;

  /// The model and its state.
  auto view() const noexcept { return state_.over(context_.view(), context_.memory); }

  void visit_state(const state_visitor& part) override {
    context_.visit_state(part);
    state_.visit(part, context_.memory);
  }
  void on_state_loaded(const restore_options& /*options*/) override { context_.start_in_phase(context_.phase()); }
  tensor_moments all_moments() const noexcept override { return moments_of(state_); }
  /// m and v of these arrays, if both are stored as floats.
  template <class State>
  tensor_moments moments_of(const State& state) const noexcept {
    using precision = typename context_type::precision;
    const auto m = state.template floats_of<array::momentum, precision>(context_.memory);
    const auto v = state.template floats_of<array::variance, precision>(context_.memory);
    if (m.empty() || v.empty()) return {};
    return {m, v};
  }

  Options options_;
  state_type state_;

 private:
  std::vector<std::pair<const char*, double>> coefficients() const {
    std::vector<std::pair<const char*, double>> all;
    if constexpr (requires(Options o) { o.beta1; }) all.emplace_back("beta1", options_.beta1);
    if constexpr (requires(Options o) { o.beta2; }) all.emplace_back("beta2", options_.beta2);
    if constexpr (requires(Options o) { o.epsilon; }) all.emplace_back("epsilon", options_.epsilon);
    return all;
  }
  static void take(std::optional<double>& from, double& into) {
    if (from) into = *from;
    from.reset();
  }
};

}  // namespace slamb::detail

#if !defined(SLAMB_SEPARATE_COMPILATION)
#include "slamb/impl/optimizer/detail/recipe_base.ipp"
#endif
