#pragma once

#include <stdexcept>
#include <string>

#include "slamb/core/detail/sentence.hpp"
#include "slamb/core/error.hpp"
#include "slamb/optimizer/detail/parameter_average.hpp"
#include "slamb/optimizer/detail/recipe_base.hpp"

namespace slamb::detail {

SLAMB_DECL void recipe_base::step(std::span<const double> rates_by_group) {
  require_ready("step()");
  core_->rates.set(rates_by_group);
  take_step();
}
SLAMB_DECL void recipe_base::step(const device_learning_rates& rates) {
  require_ready("step()");
  core_->rates.set(rates);
  take_step();
}
SLAMB_DECL void recipe_base::begin_step(std::span<const double> rates_by_group) {
  require_ready("begin_step()");
  core_->rates.set(rates_by_group);
  open_step();
}
SLAMB_DECL void recipe_base::begin_step(const device_learning_rates& rates) {
  require_ready("begin_step()");
  core_->rates.set(rates);
  open_step();
}

SLAMB_DECL void recipe_base::gradient_ready(std::size_t first, std::size_t count) {
  core_->overlap.require_open("gradient_ready()");
  core_->overlap.set_ready(first, count);
  close_if_it_throws([this] { exchange_ready(); });
}

SLAMB_DECL void recipe_base::finish_step() {
  core_->overlap.require_open("finish_step()");
  core_->overlap.set_all_ready();  // ranks exchange the same buckets, in any order of their calls
  close_if_it_throws([this] {
    exchange_ready();
    exchange_rest_and_finish();
  });
  core_->overlap.close();
}

SLAMB_DECL void recipe_base::synchronize_parameters() {
  require_usable("synchronize_parameters()");
  if (!replicas_may_differ()) return;
  core_->overlap.require_closed("synchronize_parameters()");
  core_->agreement.compare_in_call(*core_, comparing_call::synchronize_parameters, replicas_are_equal());
  average();
  core_->shards.align_copies(*core_);
  on_averaged();
  if (!core_->is_captured()) core_->agreement.set_equal_parameters();
}

SLAMB_DECL void recipe_base::broadcast_parameters(int root) {
  require_ready("broadcast_parameters()");
  core_->require_no_capture("broadcast_parameters() allocates memory");
  if (root < 0 || root >= core_->ranks.size())
    throw std::invalid_argument("slamb: broadcast_parameters() was given rank " + std::to_string(root) +
                                ", but the ranks are 0 … " + std::to_string(core_->ranks.size() - 1));
  core_->agreement.require_same_root(*core_, root);
  core_->replace_parameters([this, root](std::span<float> buffer) {
    ::slamb::detail::broadcast_parameters(*core_, root, buffer);
    core_->shards.align_copies(*core_);
  });
  on_broadcast();
}

SLAMB_DECL void recipe_base::compare_ranks() {
  require_ready("compare_ranks()");
  core_->require_no_capture("compare_ranks() waits for the device's work");
  core_->agreement.compare_in_call(*core_, comparing_call::compare_ranks, replicas_are_equal());
}

SLAMB_DECL void recipe_base::with_averaged_parameters(const std::function<void()>& evaluate) {
  require_ready("with_averaged_parameters()");
  if (core_->is_captured())
    throw std::logic_error(
        "slamb: with_averaged_parameters() was called while steps are captured into a graph; call it when the capture "
        "has ended");
  if (!replicas_may_differ()) return evaluate();
  core_->agreement.compare_in_call(*core_, comparing_call::with_averaged_parameters, replicas_are_equal());
  if (!replicas_differ()) return evaluate();
  const auto average_all = [this] {
    average();
    core_->shards.align_copies(*core_);
  };
  evaluate_on_average(*core_, average_all, evaluate);
}

SLAMB_DECL void recipe_base::save_state(const byte_sink& to, const save_options& options) {
  require_ready("save_state()");
  std::optional<state_of_shards> whole;
  const whole_state* const all = whole_tensors(options.whole_tensors, "save_state()", whole);
  if (whole) whole->allocate();
  state_summary summary{core_->steps(), std::as_const(core_->tensors).segments().size(), 0};
  for (const segment& s : std::as_const(core_->tensors).segments()) summary.elements += whole ? s.whole_size : s.size;
  save_parts(
      core_->on(), kind(), owner(), [&](const state_visitor& part) { visit_all(part, all); }, to, options, summary,
      all);
}

SLAMB_DECL void recipe_base::load_state(const byte_source& from, const restore_options& options) {
  core_->overlap.require_closed("load_state()");
  core_->agreement.compare_next();  // also if it fails on some ranks
  std::optional<state_of_shards> whole;
  const whole_state* const all = whole_tensors(options.whole_tensors, "load_state()", whole);
  restore_parts(
      core_->on(), kind(), owner(), from, options, [&](const state_visitor& part) { visit_all(part, all); },
      is_half_restored_,
      [this, &from, &options, all] {
        if (options.parameters && !has_no_parameters(from))
          core_->masters.round(*core_);
        else
          core_->masters.reload_later();  // the caller may load parameters before this or after it
        core_->start_from_saved();
        core_->has_half_step = false;
        core_->shards.end_update();
        restore_options as_loaded = options;
        if (all != nullptr) as_loaded.from_other_ranks = true;  // compression errors start at zero
        on_state_loaded(as_loaded);
      },
      all);
}

SLAMB_DECL tensor_moments recipe_base::moments(std::size_t tensor) const {
  const std::span<const segment> tensors = std::as_const(core_->tensors).segments();
  if (tensor >= tensors.size())
    throw_sentence({"moments() was given tensor ", tensor, ", but there are ", tensors.size()});
  const segment& its = tensors[tensor];
  const auto of_it = [&its](std::span<float> all) { return all.empty() ? all : all.subspan(its.state, its.size); };
  const tensor_moments all = all_moments();
  return {of_it(all.momentum), of_it(all.variance), of_it(all.fresh_variance)};
}

SLAMB_DECL void recipe_base::require_past(const past_steps& past) const {
  require_count("the number of steps given to set_steps()", past.taken);
  const parts_of_past takes = takes_of_past();
  const auto require_taken = [](bool is_given, bool is_taken, const char* name) {
    if (is_given && !is_taken)
      throw std::invalid_argument("slamb: set_steps() was given " + std::string(name) +
                                  ", which this optimizer does not have");
  };
  require_taken(past.warm_up.has_value(), takes.warm_up, "the length of a warm-up");
  require_taken(!past.ratios.empty(), takes.ratios, "trust ratios of 1-bit LAMB");
  require_taken(past.intervals.has_value(), takes.intervals, "intervals of 0/1 Adam's own schedules");
  if (past.warm_up && (*past.warm_up == 0 || *past.warm_up > past.taken))
    throw_sentence({"set_steps() was given a warm-up of ", *past.warm_up, " steps, but it must be in [1, ", past.taken,
                    "], the number of steps taken"});
  const std::size_t tensors = core_->tensors.segments().size();
  if (!past.ratios.empty() && past.ratios.size() != tensors)
    throw_sentence(
        {"set_steps() was given ", past.ratios.size(), " trust ratios, but there are ", tensors, " tensors"});
  for (const frozen_ratio& its : past.ratios) {
    require_non_negative("mean_ratio given to set_steps()", its.mean_ratio);
    require_positive("factor given to set_steps()", its.factor);
    require_positive("signal_scale given to set_steps()", its.signal_scale);
  }
}

SLAMB_DECL void recipe_base::set_steps(const past_steps& past) {
  require_ready("set_steps()");
  core_->require_no_capture("set_steps() is not a part of a step");
  require_past(past);
  begin_after(past);
  core_->set_steps(past.taken);
  core_->masters.reload(*core_);
  core_->masters.reload_later();  // the caller may set parameters before this or after it
  core_->start_from_saved();
  on_state_loaded({});
}

SLAMB_DECL void recipe_base::set_options(const option_changes& changes) {
  const auto reject = [](const char* name, const std::optional<double>& change) {
    if (change)
      throw std::invalid_argument("slamb: set_options() was given " + std::string(name) +
                                  ", which this optimizer does not have");
  };
  core_->overlap.require_closed("set_options()");
  core_->require_no_capture("set_options() is not a part of a step");
  reject("beta1", changes.beta1);
  reject("beta2", changes.beta2);
  reject("epsilon", changes.epsilon);
  if (!changes.weight_decay.empty()) core_->set_weight_decay(changes.weight_decay);
}

SLAMB_DECL void recipe_base::reload_parameters() {
  require_ready("reload_parameters()");
  core_->require_no_capture("reload_parameters() is not a part of a step");
  if (has_anchor())
    throw std::logic_error(
        "slamb: reload_parameters() was called in the local steps of 0/1 Adam, which begin at the parameters of the "
        "last exchange; call broadcast_parameters(), which takes over the root's parameters");
  core_->masters.reload(*core_);
  on_parameters_reloaded();
}

SLAMB_DECL void recipe_base::set_parameters(std::span<const parameter::data_pointer> data,
                                            std::optional<std::span<const parameter::gradient_pointer>> gradients) {
  core_->set_parameters(data, gradients);
}
SLAMB_DECL void recipe_base::set_gradient(std::size_t tensor, const parameter::gradient_pointer& gradient) {
  core_->set_gradient(tensor, gradient);
}
SLAMB_DECL void recipe_base::set_gradients(std::span<const parameter::gradient_pointer> gradients) {
  core_->set_gradients(gradients);
}

// `!replicas_differ()`, as a function that is called only if it is needed.
SLAMB_DECL rank_agreement::equality recipe_base::replicas_are_equal() {
  return [this] { return !replicas_differ(); };
}

SLAMB_DECL state_owner recipe_base::owner() const {
  return {core_->ranks.rank(),       core_->ranks.size(),       core_->ranks,
          core_->ranks.shard_rank(), core_->ranks.shard_size(), keeps_part()};
}

// The state of whole tensors, if it is asked for and this rank has shards of them.
SLAMB_DECL const whole_state* recipe_base::whole_tensors(bool asked, const char* call,
                                                         std::optional<state_of_shards>& whole) const {
  if (asked && keeps_part() && core_->ranks.size() > 1)
    throw_sentence(
        {call,
         " was asked for whole tensors, but with sync::partition each rank has the state of a part; save and "
         "load the state of each rank"});
  if (!asked || !core_->shards.exists()) return nullptr;
  if (core_->scales.exist())
    throw_sentence(
        {call,
         " was asked for whole tensors, but blocks of moments in eight bits lie across the borders of shards; "
         "save and load the state of each shard"});
  return &whole.emplace(*core_);
}

// The state, then the parameters: as they are read, so the master copies of those of sixteen bits.
SLAMB_DECL void recipe_base::visit_all(const state_visitor& part, const whole_state* whole) {
  core_->visit_whole_tensors(whole != nullptr);
  visit_state(part);
  core_->visit_whole_tensors(false);
  const std::span<const segment> tensors = std::as_const(core_->tensors).segments();
  for (std::size_t i = 0; i < tensors.size(); ++i)
    if (const segment& s = tensors[i]; s.keeps_master)
      part("master copies", std::as_writable_bytes(std::span(s.master, s.size)), state_part::masters,
           of_elements{sizeof(float), i});
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const segment& s = tensors[i];
    const std::size_t bytes = size_of(s.type_of_parameters());
    auto* const first = static_cast<std::byte*>(s.master == nullptr ? s.data : s.master);
    part("parameters", std::span(first, s.size * bytes), state_part::parameters, of_elements{bytes, i});
  }
}

// Throws std::logic_error after a step or a load_state() that failed halfway.
SLAMB_DECL void recipe_base::require_usable(const char* call) const {
  if (core_->has_half_step)
    throw_sentence<std::logic_error>({call,
                                      " was called after a step that failed halfway, when a part of the state had "
                                      "changed; load a state first"});
  if (is_half_restored_)
    throw_sentence<std::logic_error>({call,
                                      " was called after a load_state() that failed halfway, so a part of the state "
                                      "belongs to another step; load a state first"});
}
SLAMB_DECL void recipe_base::require_ready(const char* call) const {
  core_->overlap.require_closed(call);
  require_usable(call);
}

SLAMB_DECL void recipe_base::take_step() {
  core_->restore_gradients();
  core_->masters.reload_before_step(*core_);
  core_->agreement.compare_before_step(*core_, replicas_are_equal());
  begin();
  exchange_rest_and_finish();
}

SLAMB_DECL void recipe_base::open_step() {
  core_->overlap.open(core_->tensors, bucket_bytes_, core_->on(), core_->ranks);
  close_if_it_throws([this] {
    core_->restore_gradients();
    core_->masters.reload_before_step(*core_);
    core_->agreement.compare_before_step(*core_, replicas_are_equal());
    begin();
  });
}

SLAMB_DECL void recipe_base::exchange_rest_and_finish() {
  core_->read_overflow();
  core_->local.reduce(*core_);
  core_->agreement.require_not_diverged(*core_, replicas_are_equal());  // known already if there is one node
  exchange(core_->overlap.rest(core_->tensors));
  core_->shards.agree(*core_, is_local_step() ? shard_call::local_step : shard_call::step);
  core_->shards.begin_update();
  finish();
  core_->shards.align_after_step(*core_);
  core_->agreement.compare_gradients_of_copies(*core_);
  core_->agreement.require_not_diverged(*core_, replicas_are_equal());
}

SLAMB_DECL void recipe_base::exchange_ready() {
  if (core_->local.is_active()) return;  // nodes sum their gradients when all are ready
  core_->overlap.exchange_ready([this](const gradient_bucket& bucket) { return exchange(bucket); });
}

SLAMB_DECL void recipe_base::close_if_it_throws(function_ref<void()> body) {
  try {
    body();
  } catch (...) {
    core_->overlap.close();
    throw;
  }
}

}  // namespace slamb::detail
