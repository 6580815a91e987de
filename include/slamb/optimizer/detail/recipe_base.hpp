// The base of every recipe: it takes steps, at once or in parts, saves states and reports.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "slamb/communicator/any_communicator.hpp"
#include "slamb/core/detail/sentence.hpp"
#include "slamb/core/error.hpp"
#include "slamb/core/parameter.hpp"
#include "slamb/detail/pass/layout.hpp"
#include "slamb/detail/pass/pass.hpp"
#include "slamb/detail/pass/precision.hpp"
#include "slamb/detail/state/saved_state.hpp"
#include "slamb/optimizer/detail/optimizer_context.hpp"
#include "slamb/optimizer/detail/parameter_average.hpp"
#include "slamb/optimizer/detail/settings.hpp"
#include "slamb/optimizer/detail/state_arrays.hpp"
#include "slamb/optimizer/optimizer.hpp"

namespace slamb::detail {

/// The base of recipes: a context, and the order of a step. A recipe defines:
///
///     begin()             begins a step with the learning rates that have been set
///     exchange(bucket)    forms the signal of a bucket of tensors and exchanges it. The base calls it for one bucket after
///                         another as gradients become ready, or once for all tensors. It may return false for a bucket that is
///                         not the last: then the rest of the step is exchanged with the last bucket
///     finish()            updates the model with the received values, unless the step is skipped, and ends the step
///
/// A step is these three calls, in this order. A step in parts has more buckets.
template <class Backend>
class recipe_base : public recipe {
 public:
  using backend_type = Backend;
  using ranks_type = any_communicator<typename Backend::stream_type>;

  /// @param state  the recipe's state arrays
  template <class Options>
  recipe_base(std::span<const parameter> parameters, const Options& options, ranks_type ranks, Backend backend,
              std::span<const stored_array> state)
      : context_(parameters, options.weight_decay, options.compare_every, std::move(ranks), std::move(backend), state),
        bucket_bytes_(options.bucket_bytes) {}

  call_scope enter() const noexcept final {
    if constexpr (requires { context_.executor.enter(); })
      return context_.executor.enter();
    else
      return {};
  }

  void step(std::span<const double> rates_by_group) final { step_with(rates_by_group); }
  void step(const device_learning_rates& rates) override { step_with(rates); }
  void begin_step(std::span<const double> rates_by_group) final { begin_with(rates_by_group); }
  void begin_step(const device_learning_rates& rates) override { begin_with(rates); }

  void gradient_ready(std::size_t first, std::size_t count) final {
    context_.overlap.require_open("gradient_ready()");
    context_.overlap.set_ready(first, count);
    close_if_it_throws([this] { exchange_ready(); });
  }

  void finish_step() final {
    context_.overlap.require_open("finish_step()");
    context_.overlap.set_all_ready();  // ranks exchange the same buckets, in any order of their calls
    close_if_it_throws([this] {
      exchange_ready();
      exchange_rest_and_finish();
    });
    context_.overlap.close();
  }

  void synchronize_parameters() final {
    require_usable("synchronize_parameters()");
    if (!keeps_own_parameters()) return;
    context_.overlap.require_closed("synchronize_parameters()");
    context_.compared.compare_in_call(context_, comparing_call::synchronize_parameters, are_equal());
    average();
    go_on_from_average();
    if (!context_.is_captured()) context_.compared.note_equal_parameters();
  }

  void broadcast_parameters(int root) final {
    context_.overlap.require_closed("broadcast_parameters()");
    require_usable("broadcast_parameters()");
    context_.require_no_capture("broadcast_parameters() allocates memory");
    if (root < 0 || root >= context_.ranks.size())
      throw std::invalid_argument("slamb: broadcast_parameters() was given rank " + std::to_string(root) +
                                  ", but the ranks are 0 … " + std::to_string(context_.ranks.size() - 1));
    context_.compared.require_same_root(context_, root);
    context_.replace_parameters(
        [this, root](std::span<float> buffer) { ::slamb::detail::broadcast_parameters(context_, root, buffer); });
    go_on_from_replaced();
  }

  void compare_ranks() final {
    context_.overlap.require_closed("compare_ranks()");
    require_usable("compare_ranks()");
    context_.require_no_capture("compare_ranks() waits for the device's work");
    context_.compared.compare_in_call(context_, comparing_call::compare_ranks, are_equal());
  }

  void with_averaged_parameters(const std::function<void()>& evaluate) final {
    context_.overlap.require_closed("with_averaged_parameters()");
    require_usable("with_averaged_parameters()");
    if (context_.is_captured())
      throw std::logic_error(
          "slamb: with_averaged_parameters() was called while steps are captured into a graph; call it when the "
          "capture has ended");
    if (!keeps_own_parameters()) return evaluate();
    context_.compared.compare_in_call(context_, comparing_call::with_averaged_parameters, are_equal());
    if (!parameters_differ()) return evaluate();
    evaluate_on_average(
        context_, context_.memory_source(), [this] { average(); }, evaluate);
  }

  void give_up_step() noexcept final { context_.overlap.close(); }

  statistics report(bool /*with_norms*/) const override { return context_.report(); }
  memory_report memory() const final { return context_.memory.report(context_.tensors.elements()); }

  void save_state(const byte_sink& to, const save_options& options) const final {
    context_.overlap.require_closed("save_state()");
    require_usable("save_state()");
    const state_summary facts{context_.steps(), context_.tensors.segments().size(), context_.tensors.elements()};
    save_parts(
        context_.executor, kind(), context_.ranks.wrapped(),
        [this](const state_visitor& part) { const_cast<recipe_base*>(this)->visit_all(part); },  // only reads
        to, options, facts);
  }

  void load_state(const byte_source& from, const restore_options& options) final {
    context_.overlap.require_closed("load_state()");
    context_.compared.compare_next();  // also if it fails on some ranks
    restore_parts(
        context_.executor, kind(), context_.ranks.wrapped(), from, options,
        [this](const state_visitor& part) { visit_all(part); }, is_half_restored_,
        [this, &from, &options] {
          if (options.parameters && !has_no_parameters(from))
            context_.masters.round(context_);
          else
            context_.masters.reload_later();  // the caller may load parameters before this or after it
          context_.start_from_saved();
          go_on_from_saved(options);
        });
  }

  tensor_moments moments(std::size_t tensor) const final {
    const std::span<const segment> tensors = context_.tensors.segments();
    if (tensor >= tensors.size())
      throw_sentence({"moments() was given tensor ", tensor, ", but there are ", tensors.size()});
    const segment& its = tensors[tensor];
    const auto of_it = [&its](std::span<float> all) { return all.empty() ? all : all.subspan(its.state, its.size); };
    const tensor_moments all = all_moments();
    return {of_it(all.momentum), of_it(all.variance)};
  }

  void set_steps(std::uint64_t taken) final {
    context_.overlap.require_closed("set_steps()");
    require_usable("set_steps()");
    context_.require_no_capture("set_steps() is not a part of a step");
    require_count("the number of steps given to set_steps()", taken);
    begin_after(taken);
    context_.set_steps(taken);
    context_.masters.reload(context_);
    context_.masters.reload_later();  // the caller may set parameters before this or after it
    context_.start_from_saved();
    go_on_from_saved({});
  }

  void set_gradient_scaling(const gradient_scaling& scaling) final { context_.set_gradient_scaling(scaling); }
  void set_options(const option_changes& changes) override {
    context_.overlap.require_closed("set_options()");
    context_.require_no_capture("set_options() is not a part of a step");
    reject("beta1", changes.beta1);
    reject("beta2", changes.beta2);
    reject("epsilon", changes.epsilon);
    if (!changes.weight_decay.empty()) context_.set_weight_decay(changes.weight_decay);
  }
  void reload_parameters() final {
    context_.overlap.require_closed("reload_parameters()");
    require_usable("reload_parameters()");
    context_.require_no_capture("reload_parameters() is not a part of a step");
    if (has_anchor())
      throw std::logic_error(
          "slamb: reload_parameters() was called in the local steps of 0/1 Adam, which begin at the parameters of the "
          "last exchange; call broadcast_parameters(), which takes over the root's parameters");
    context_.masters.reload(context_);
  }
  void set_parameters(std::span<const parameter::data_pointer> data,
                      std::optional<std::span<const parameter::gradient_pointer>> gradients) final {
    context_.set_parameters(data, gradients);
  }
  void set_gradient(std::size_t tensor, const parameter::gradient_pointer& gradient) final {
    context_.set_gradient(tensor, gradient);
  }
  void set_gradients(std::span<const parameter::gradient_pointer> gradients) final {
    context_.set_gradients(gradients);
  }

  ranks_type& ranks() noexcept { return context_.ranks.wrapped(); }

 protected:
  virtual void begin() = 0;
  virtual bool exchange(const gradient_bucket& bucket) = 0;
  virtual void finish() = 0;
  /// True if parameters may differ between ranks now. Must be equal on all ranks.
  virtual bool parameters_differ() { return false; }
  /// `!parameters_differ()`, as a function that is called only if it is needed.
  auto are_equal() {
    return [this] { return !parameters_differ(); };
  }
  /// True if steps begin at other parameters than those of the last step.
  virtual bool has_anchor() const noexcept { return false; }
  /// True if parameters may ever differ between ranks.
  virtual bool keeps_own_parameters() const noexcept { return false; }
  /// Replaces the parameters by their mean over ranks, if they may differ.
  virtual void average() {}
  /// Called when the parameters have been replaced by their mean, to stay so.
  virtual void go_on_from_average() {}
  /// The kind of the states that it saves and loads.
  virtual state_kind kind() const noexcept = 0;
  /// Calls part(name, bytes, state_part) for each part of the lasting state, the context's first.
  virtual void visit_state(const state_visitor& part) = 0;
  /// Called when the parameters have been replaced by equal ones on all ranks.
  virtual void go_on_from_replaced() {}
  /// m and v of all tensors, [state elements], if both are stored as floats.
  virtual tensor_moments all_moments() const noexcept { return {}; }
  /// Called before the number of steps is set: schedules that keep a state go on as after `taken` steps.
  virtual void begin_after(std::uint64_t /*taken*/) {}
  /// Called when a state has been restored, or when the number of steps has been set.
  virtual void go_on_from_saved(const restore_options& options) = 0;

  optimizer_context<Backend> context_;

 private:
  // The state, then the parameters: as they are read, so the master copies of those of sixteen bits.
  void visit_all(const state_visitor& part) {
    visit_state(part);
    for (const segment& s : std::as_const(context_.tensors).segments())
      if (s.keeps_master)
        part("master copies", std::as_writable_bytes(std::span(s.master, s.size)), state_part::masters);
    for (const segment& s : std::as_const(context_.tensors).segments()) {
      auto* const first = static_cast<std::byte*>(s.master == nullptr ? s.data : s.master);
      part("parameters", std::span(first, s.size * size_of(s.type_of_parameters())), state_part::parameters);
    }
  }

  /// @throws std::logic_error after a load_state() that failed halfway
  void require_usable(const char* call) const {
    if (is_half_restored_)
      throw_sentence<std::logic_error>({call,
                                        " was called after a load_state() that failed halfway, so a part of the state "
                                        "belongs to another step; load a state first"});
  }

  static void reject(const char* name, const std::optional<double>& change) {
    if (change)
      throw std::invalid_argument("slamb: set_options() was given " + std::string(name) +
                                  ", which this optimizer does not have");
  }

  void exchange_rest_and_finish() {
    context_.read_overflow();
    context_.local.reduce(context_);
    context_.compared.require_not_diverged(context_, are_equal());  // known already if there is one node
    exchange(context_.overlap.rest(context_.tensors));
    finish();
    context_.compared.require_not_diverged(context_, are_equal());
  }

  void exchange_ready() {
    if (context_.local.is_active()) return;  // nodes sum their gradients when all are ready
    context_.overlap.exchange_ready([this](const gradient_bucket& bucket) { return exchange(bucket); });
  }

  template <class Body>
  void close_if_it_throws(const Body& body) {
    try {
      body();
    } catch (...) {
      context_.overlap.close();
      throw;
    }
  }

  template <class Rates>
  void step_with(const Rates& rates) {
    context_.overlap.require_closed("step()");
    require_usable("step()");
    context_.rates.set(rates);
    context_.masters.reload_before_step(context_);
    context_.compared.compare_before_step(context_, are_equal());
    begin();
    exchange_rest_and_finish();
  }

  template <class Rates>
  void begin_with(const Rates& rates) {
    context_.overlap.require_closed("begin_step()");
    require_usable("begin_step()");
    context_.rates.set(rates);
    context_.overlap.open(context_.tensors, bucket_bytes_, context_.executor.stream());
    close_if_it_throws([this] {
      context_.masters.reload_before_step(context_);
      context_.compared.compare_before_step(context_, are_equal());
      begin();
    });
  }

  std::uint64_t bucket_bytes_;
  bool is_half_restored_ = false;
};

/// A recipe with options and state arrays of its own.
template <class Backend, class Options, class... Arrays>
class recipe_with_state : public recipe_base<Backend> {
 public:
  using options_type = Options;
  using state_type = state_arrays<Arrays...>;

  recipe_with_state(std::span<const parameter> parameters, const Options& options,
                    typename recipe_base<Backend>::ranks_type ranks, Backend backend)
      : recipe_base<Backend>(parameters, options, std::move(ranks), std::move(backend),
                             state_type::template stored<typename precision_of<Backend>::type>),
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
    recipe_base<Backend>::set_options(rest);
    options_ = std::move(changed);
    context_.set_coefficients(coefficients());
  }

 protected:
  using recipe_base<Backend>::context_;

  /// The model and its state.
  auto view() const noexcept { return state_.over(context_.view(), context_.memory); }

  void visit_state(const state_visitor& part) override {
    context_.visit_state(part);
    state_.visit(part, context_.memory);
  }
  void go_on_from_saved(const restore_options& /*options*/) override { context_.start_in_phase(context_.phase()); }
  tensor_moments all_moments() const noexcept final {
    using precision = typename precision_of<Backend>::type;
    if constexpr (std::is_same_v<storage_of_t<array::momentum, precision>, as_floats> &&
                  std::is_same_v<storage_of_t<array::variance, precision>, as_floats>)
      return {state_.template floats_of<array::momentum>(context_.memory),
              state_.template floats_of<array::variance>(context_.memory)};
    else
      return {};
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
