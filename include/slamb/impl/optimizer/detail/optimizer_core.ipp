#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <stdexcept>

#include "slamb/core/detail/hash.hpp"
#include "slamb/core/detail/sentence.hpp"
#include "slamb/core/error.hpp"
#include "slamb/optimizer/detail/optimizer_core.hpp"
#include "slamb/optimizer/detail/parameter_average.hpp"
#include "slamb/optimizer/detail/rank_agreement.hpp"
#include "slamb/optimizer/detail/settings.hpp"
#include "slamb/optimizer/detail/state_arrays.hpp"

#include "slamb/impl/detail/exchange/norms.ipp"
#include "slamb/impl/detail/exchange/summable.ipp"
#include "slamb/impl/optimizer/detail/array_scales.ipp"
#include "slamb/impl/optimizer/detail/dense_gradient.ipp"
#include "slamb/impl/optimizer/detail/masters_of_model.ipp"
#include "slamb/impl/optimizer/detail/node_reduction.ipp"
#include "slamb/impl/optimizer/detail/overlap.ipp"
#include "slamb/impl/optimizer/detail/parameter_average.ipp"
#include "slamb/impl/optimizer/detail/rank_agreement.ipp"
#include "slamb/impl/optimizer/detail/shard_group.ipp"
#include "slamb/impl/optimizer/detail/state_of_shards.ipp"

namespace slamb::detail {

SLAMB_DECL optimizer_core::optimizer_core(std::unique_ptr<machine> on, layout&& model,
                                          std::shared_ptr<collectives> communicator, std::uint64_t compare_every)
    : on_(std::move(on)),
      tensors(std::move(model)),
      ranks(std::move(communicator)),
      rates(tensors),
      agreement(compare_every) {
  require_rank(ranks.rank(), ranks.size());
  shards.find(*this);
  rates.plan(memory);
  scalars_ = memory.plan<adam_scalars>("scalars", 1);
  record_ = memory.plan<step_record>("scalars", 1);
  agreement.plan(*this);
}

SLAMB_DECL optimizer_core::~optimizer_core() { overlap.close(); }

SLAMB_DECL void optimizer_core::plan_sums(int sums) {
  const auto most = static_cast<std::uint64_t>(std::max(sums, norms_of_model::sums));
  sums_ = memory.plan<double>("sums", std::max<std::uint64_t>(tensors.tile_count() * most, 1));
  shards.plan(*this, static_cast<int>(most));
}

SLAMB_DECL region<std::byte> optimizer_core::plan_buffer(std::uint64_t bytes) {
  const std::uint64_t whole = ranks.size() > 1 ? (sum_header::floats + tensors.elements()) * sizeof(float) : 0;
  return memory.plan<std::byte>("exchange", std::max(whole, bytes));
}

SLAMB_DECL std::span<float> optimizer_core::floats_of(region<std::byte> buffer) const noexcept {
  if (ranks.size() == 1) return {};
  return {reinterpret_cast<float*>(memory.view(buffer).data()) + sum_header::floats, tensors.elements()};
}

SLAMB_DECL void optimizer_core::allocate(consistency_check fields, byte_collectives called) {
  if (sums_.count == 0) plan_sums(0);
  masters.plan(*this);
  segments_ = memory.plan<segment>("tables", tensors.segments().size());
  tiles_ = memory.plan<tile>("tables", tensors.tile_count());
  first_tile_ = memory.plan<std::size_t>("tables", tensors.first_tiles().size());
  local.plan(*this);
  scales.plan_memory(memory, tensors);
  if (!is_plan()) {
    describe_tensors(tensors, fields, shards.exists());
    if (on_->properties().has_draws)
      fields.add_word(
          on_->properties().rounds_by_chance ? "the seed of stochastic_rounding" : "the seed of master_copies",
          on_->properties().seed);
    require_consistent_ranks(fields, ranks.wrapped(), *on_, called);
  }
  memory.allocate(memory_source());
  on_->clear(memory.bytes());
  masters.assign_memory(memory, tensors);
  on_->upload(std::as_const(tensors).segments(), memory.view(segments_));
  local.start(*this, memory.view(segments_));
  shards.start(*this);
  on_->upload_tiles(tensors, memory.view(tiles_));
  on_->upload(tensors.first_tiles(), memory.view(first_tile_));
  rates.start(memory, *on_);
  constructed_with_ = hash_of_options();
  hash_runtime_options();
  masters.reload(*this);
}

SLAMB_DECL void optimizer_core::replace_parameters(function_ref<void(std::span<float>)> replace) {
  masters.reload(*this);
  if (!has_peers()) return;
  agreement.forget_difference(*this);
  agreement.compare_next();  // also if it fails on some ranks
  constexpr std::uint64_t largest = 1U << 20U;
  arena room;
  const region<float> buffer =
      room.plan<float>("parameters", std::max(std::min(tensors.elements(), largest), least_averaging_buffer(tensors)));
  allocate_on_all_ranks(*this, "broadcast_parameters()", [&] { room.allocate(memory_source()); });
  on_->invoke({::slamb::detail::begin_step{record(), 1.0}});  // a step that failed may have been skipped before
  replace(room.view(buffer));
  on_->wait(ranks);
  agreement.set_equal_parameters();
}

SLAMB_DECL void optimizer_core::begin_step(double gradient_scale) const {
  bool has_begun = false;
  rates.store(memory, *on_, record(), [&](const write_learning_rates& some) {
    if (std::exchange(has_begun, true)) return on_->invoke({some});
    on_->invoke(begin_with(gradient_scale, some));
  });
}

SLAMB_DECL bool optimizer_core::end_step() {
  const bool taken = !is_skipped_on_host();
  on_->invoke({::slamb::detail::end_step{record(), scaling.found_inf}});
  agreement.end_step(is_captured());
  is_captured() ? count_.invalidate() : count_.add_pending();
  if (is_synchronous()) count_.set(steps());
  return taken;
}

SLAMB_DECL void optimizer_core::end_taken_step() {
  on_->invoke({::slamb::detail::end_step{record(), scaling.found_inf}});
  agreement.end_step(is_captured());
  is_captured() ? count_.invalidate() : count_.add_taken();
}

SLAMB_DECL std::uint64_t optimizer_core::next_step_number(const char* needed_for) {
  require_no_capture(needed_for);
  return count_.next([this] { return steps(); });
}

SLAMB_DECL bool optimizer_core::holds_at_next_step(function_ref<bool(std::uint64_t)> holds, const char* needed_for) {
  require_no_capture(needed_for);
  return count_.holds_at_next(holds, [this] { return steps(); });
}

SLAMB_DECL void optimizer_core::require_no_capture(const char* needed_for) const {
  if (is_captured())
    throw_sentence<std::logic_error>({"this call cannot be captured into a graph, because ", needed_for});
}

// The results of a pass for each tile, in host memory: where they are, or in `copy`.
SLAMB_DECL std::span<const double> optimizer_core::results_of_tiles(std::size_t results,
                                                                    std::vector<double>& copy) const {
  const std::span<const double> there(sums(), tensors.tile_count() * results);
  if (is_synchronous()) return there;
  copy.resize(there.size());
  on_->download(std::as_bytes(there), std::as_writable_bytes(std::span(copy)), ranks);
  return copy;
}

SLAMB_DECL void optimizer_core::visit_sums(int sums, function_ref<void(std::size_t, const double*)> visit) const {
  std::array<double, 4> total{};
  if (is_plan()) {
    for (std::size_t tensor = 0; tensor < std::as_const(tensors).segments().size(); ++tensor)
      visit(tensor, total.data());
    return;
  }
  const auto count = std::min(static_cast<std::size_t>(sums), total.size());
  std::vector<double> copy;
  const std::span<const double> of_tiles = results_of_tiles(count, copy);
  for (std::size_t tensor = 0; tensor < std::as_const(tensors).segments().size(); ++tensor) {
    total.fill(0.0);
    const tile_range its = tensors.tiles_of(tensor);
    for (std::size_t i = its.first; i < its.last; ++i)
      for (std::size_t k = 0; k < count; ++k) total[k] += of_tiles[i * count + k];
    visit(tensor, total.data());
  }
}

SLAMB_DECL double optimizer_core::sum_of_tiles(std::size_t tiles, std::size_t sums, std::size_t which,
                                               std::size_t first) const {
  double total = 0.0;
  if (is_plan()) return total;
  std::vector<double> copy(tiles * sums);
  on_->download(std::as_bytes(std::span(this->sums() + first * sums, copy.size())),
                std::as_writable_bytes(std::span(copy)), ranks);
  for (std::size_t i = 0; i < tiles; ++i) total += copy[i * sums + which];
  return total;
}

SLAMB_DECL void optimizer_core::visit_whole_sums(int sums, function_ref<void(std::size_t, const double*)> first,
                                                 function_ref<void(std::size_t, const double*)> second) {
  if (!shards.exists()) {
    visit_sums(sums, first);
    return visit_sums(sums, second);
  }
  const auto count = static_cast<std::size_t>(sums);
  std::vector<double> of_tensors(std::as_const(tensors).segments().size() * count, 0.0);
  visit_sums(sums, [&](std::size_t tensor, const double* own) {
    if (std::as_const(tensors).segments()[tensor].is_counted) std::copy_n(own, count, &of_tensors[tensor * count]);
  });
  has_half_step = true;  // the step has been taken, and what follows from these sums has not
  shards.add_on_host(*this, of_tensors);
  has_half_step = false;
  for (const auto& visit : {first, second})
    for (std::size_t tensor = 0; tensor * count < of_tensors.size(); ++tensor)
      visit(tensor, &of_tensors[tensor * count]);
}

SLAMB_DECL double optimizer_core::total_of_tiles() {
  std::vector<double> copy;
  double total = 0.0;
  if (is_plan()) return total;
  if (!shards.exists()) {
    for (const double own : results_of_tiles(1, copy)) total += own;
    return total;
  }
  visit_sums(1, [&](std::size_t tensor, const double* own) {
    if (std::as_const(tensors).segments()[tensor].is_counted) total += *own;
  });
  has_half_step = true;
  shards.add_on_host(*this, {&total, 1});
  has_half_step = false;
  return total;
}

SLAMB_DECL void optimizer_core::add_up_tiles() {
  if (!shards.exists()) return on_->add_up(sum_of_each_tile(), sums());
  on_->add_up_counted(whole_view(), sum_of_each_tile(), sums());
  shards.add(*this, sums());
}

SLAMB_DECL void optimizer_core::set_gradient_scaling(const gradient_scaling& given) {
  overlap.require_closed("set_gradient_scaling()");
  require_positive("gradient_scaling's factor", given.factor);
  on_->require_memory(given.loss_scale, "gradient_scaling's loss_scale");
  on_->require_memory(given.found_inf, "gradient_scaling's found_inf");
  scaling = given;
}

SLAMB_DECL void optimizer_core::set_parameters(std::span<const parameter::data_pointer> data,
                                               std::optional<std::span<const parameter::gradient_pointer>> gradients) {
  overlap.require_closed("set_parameters()");
  require_no_capture("set_parameters() copies tables to the device");
  tensors.set_pointers(data, gradients);
  upload_tensors();
  hash_runtime_options();
}

SLAMB_DECL void optimizer_core::set_weight_decay(std::span<const double> decays) {
  tensors.set_weight_decay(decays);
  upload_tensors();
  hash_runtime_options();
}

SLAMB_DECL void optimizer_core::set_coefficients(std::vector<std::pair<const char*, double>> now) {
  coefficients_ = std::move(now);
  if (memory.bytes().data() != nullptr) hash_runtime_options();  // else the construction will
}

SLAMB_DECL void optimizer_core::read_overflow() const {
  if (scaling.found_inf != nullptr) on_->invoke({read_found_inf{record(), scaling.found_inf}});
}

SLAMB_DECL void optimizer_core::set_gradient(std::size_t tensor, const parameter::gradient_pointer& gradient) {
  tensors.require_gradient(tensor, gradient);
  const segment& its = std::as_const(tensors).segments()[tensor];
  if (its.size > 0 && its.has_gradient != (gradient.address() != nullptr))
    overlap.require_closed("set_gradient() between a null gradient and another");
  if (overlap.is_ready(tensor)) overlap.require_closed("set_gradient() of a tensor that is ready");
  point_at(tensor, std::span(&gradient, 1));
}

SLAMB_DECL void optimizer_core::set_gradients(std::span<const parameter::gradient_pointer> gradients) {
  tensors.require_gradients(gradients);
  if (is_captured()) return capture_gradients(gradients);
  const std::span<const segment> now = std::as_const(tensors).segments();
  for (std::size_t i = 0; i < gradients.size(); ++i)
    if (overlap.is_ready(i) || (now[i].size > 0 && now[i].has_gradient != (gradients[i].address() != nullptr)))
      overlap.require_closed_for("set_gradients() with tensor ", i,
                                 overlap.is_ready(i) ? " ready" : " from a null gradient to another, or back,");
  std::size_t first = 0, last = gradients.size();
  while (first < last && now[first].is_at(gradients[first])) ++first;
  while (first < last && now[last - 1].is_at(gradients[last - 1])) --last;
  point_at(first, gradients.subspan(first, last - first));
}

// The graph cannot read them from host memory. Ranks compare which tensors have a gradient, as it was before the capture.
SLAMB_DECL void optimizer_core::capture_gradients(std::span<const parameter::gradient_pointer> gradients) {
  overlap.require_closed("set_gradients()");
  if (local.is_active()) require_no_capture("pointers to gradients of a node are copied to the device");
  const std::span<segment> own = tensors.segments();
  for (std::size_t i = 0; i < own.size(); ++i)
    if (own[i].size > 0 && own[i].has_gradient != (gradients[i].address() != nullptr))
      throw_sentence<std::logic_error>(
          {"set_gradients() was given ", own[i].has_gradient ? "null" : "a gradient", " for tensor ", i,
           " while steps are captured into a graph, but the tensor had ", own[i].has_gradient ? "one" : "none",
           " before; take a step with the same gradients before the capture"});
  for (std::size_t i = 0; i < own.size(); ++i) own[i].point_at(gradients[i]);
  gradients_vary_ = true;
}

SLAMB_DECL void optimizer_core::restore_gradients() {
  if (!gradients_vary_) return;
  if (!is_captured()) return upload_tensors();
  const std::span<const segment> all = std::as_const(tensors).segments();
  const std::span<segment> table = memory.view(segments_);
  constexpr std::size_t most = write_gradients::most_tensors;
  step_calls calls;
  for (std::size_t first = 0; first < all.size(); first += most) {
    calls.add(write_gradients(&table[first], all.subspan(first, std::min(most, all.size() - first))));
    if (!calls.is_full() && first + most < all.size()) continue;
    on_->invoke(calls);
    calls = {};
  }
}

SLAMB_DECL any_view optimizer_core::whole_view() const noexcept {
  any_view all{{.segments = segments(),
                .tiles = memory.view(tiles_).data(),
                .first_tile = memory.view(first_tile_).data(),
                .gradient_scale = local.is_active() ? nullptr : input_scale(),
                .skip = &record()->skip}};
  all.draws = {.seed = on_->properties().seed, .steps = &record()->taken};
  return all;
}

SLAMB_DECL any_view optimizer_core::unskipped_view() const noexcept {
  any_view all = whole_view();
  all.skip = nullptr;
  return all;
}

SLAMB_DECL void optimizer_core::visit_state(const state_visitor& part) const {
  std::uint64_t sizes = hash_of_nothing;
  for (const segment& s : tensors.segments()) sizes = hash_with(sizes, visits_whole_ ? s.whole_size : s.size);
  part("sizes of tensors", bytes_of(sizes), state_part::fact);
  visit_count(part, "step", record()->taken, state_part::common);
  visit_count(part, "skipped steps", record()->skipped, state_part::common);
  visit_count(part, "local skips", record()->local_skips, state_part::common);
  part("lineage", bytes_of(record()->agreement.run_hash), state_part::common);
  scales.visit(part, memory, tensors);
}

SLAMB_DECL void optimizer_core::set_steps(std::uint64_t taken) {
  on_->wait(ranks);
  on_->write(&record()->taken, taken);
  on_->write(&record()->agreement.run_hash, std::uint64_t{0});
}

SLAMB_DECL void optimizer_core::start_from_saved() {
  agreement.forget_difference(*this, true);
  on_->invoke({::slamb::detail::begin_step{record(), 1.0}});
  on_->write(&record()->has_norm, std::uint32_t{0});
  first_taken_ = steps();
  bound_ = {};
  count_.set(first_taken_);
  agreement.compare_next();
}

SLAMB_DECL void optimizer_core::enter_phase(std::string_view name) {
  phases_.enter(name, count_.next([this] { return steps(); }), ranks.counts());
}

SLAMB_DECL statistics optimizer_core::report() const {
  overlap.require_closed("statistics()");
  const step_record now = read(record());
  statistics all{.step = now.taken,
                 .skipped_steps = now.skipped,
                 .skipped_exchanges = now.skipped_exchanges,
                 .local_skips = now.local_skips,
                 .has_diverged = now.agreement.diverged != 0,
                 .gradient_norm = now.has_norm != 0 ? std::optional(now.last_norm) : std::nullopt,
                 .traffic = ranks.counts(),
                 .comparisons = ranks.comparisons(),
                 .in_shards = ranks.in_shards()};
  phases_.report(all);
  return all;
}

SLAMB_DECL void optimizer_core::upload_tensors() {
  if (local.is_active())
    local.start(*this, memory.view(segments_));
  else
    on_->upload(std::as_const(tensors).segments(), memory.view(segments_));
  shards.point_at_tensors(*this);
}

// Uploads only the entries of these tensors, first …. Passes of a node read other gradients, but the same `has_gradient`.
SLAMB_DECL void optimizer_core::point_at(std::size_t first, std::span<const parameter::gradient_pointer> gradients) {
  require_no_capture("pointers to gradients are copied to the device");
  if (gradients.empty()) return;
  const std::span<segment> own = tensors.segments().subspan(first, gradients.size());
  changed_.assign(own.begin(), own.end());
  for (std::size_t i = 0; i < gradients.size(); ++i) changed_[i].point_at(gradients[i]);
  on_->upload(std::span<const segment>(changed_),
              local.given(memory, memory.view(segments_)).subspan(first, gradients.size()));
  std::ranges::copy(changed_, own.begin());
  if (local.is_active()) local.start(*this, memory.view(segments_));
  hash_runtime_options();
}

// Ranks compare the tensors without a gradient, and options that have changed since the construction, when all were equal.
SLAMB_DECL void optimizer_core::hash_runtime_options() {
  std::uint64_t hash = 0;
  const auto add = [&hash](std::uint64_t word) { hash = hash_with(hash == 0 ? hash_of_nothing : hash, word); };
  for (std::size_t i = 0; i < tensors.segments().size(); ++i)
    if (!std::as_const(tensors).segments()[i].has_gradient) add(i);
  if (const std::uint64_t options = hash_of_options(); options != constructed_with_) add(options);
  if (hash == runtime_options_hash_) return;
  runtime_options_hash_ = hash;
  on_->write(&record()->agreement.runtime_options_hash, runtime_options_hash_);
  if (!shards.exists()) return;
  shards.tell_gradients(*this);
  hash = 0;  // a rank without elements of a tensor does not know if others have a gradient
  for (std::size_t i = 0; i < tensors.segments().size(); ++i)
    if (const segment& s = std::as_const(tensors).segments()[i]; s.is_everywhere && !s.has_gradient) add(i);
  if (const std::uint64_t options = hash_of_options(); options != constructed_with_) add(options);
  on_->write(&record()->agreement.shard_options_hash, hash);
}

SLAMB_DECL std::uint64_t optimizer_core::hash_of_options() const {
  std::uint64_t hash = hash_of_nothing;
  for (const auto& [name, value] : coefficients_) hash = hash_with(hash, std::bit_cast<std::uint64_t>(value));
  for (const segment& s : std::as_const(tensors).segments())
    hash = hash_with(hash, std::bit_cast<std::uint32_t>(s.weight_decay));
  return hash;
}

SLAMB_DECL void require_room_for_state(const layout& tensors, const allocator& memory,
                                       std::span<const stored_array> arrays) {
  constexpr std::uint64_t of_small_tables = std::uint64_t{1} << 35U;  // elements: 64 MiB of tiles, 256 GiB of state
  if (tensors.state_elements() <= of_small_tables) return;
  arena state;
  for (const stored_array& a : arrays) static_cast<void>(state.plan(a.name, tensors.state_elements(), a.element_bytes));
  state.allocate(memory);
}

SLAMB_DECL void describe_tensors(const layout& tensors, consistency_check& fields, bool in_shards) {
  constexpr const char* alike = consistency_check::alike;
  constexpr auto of_shard = consistency_check::among::same_shard;
  for (std::size_t i = 0; i < tensors.segments().size(); ++i) {
    const segment& s = tensors.segments()[i];
    const std::string tensor = "tensor " + std::to_string(i);
    fields.add_word("the size of " + tensor, s.size, alike, of_shard);
    fields.add_word("the bytes of a parameter of " + tensor, s.whole_size == 0 ? 0 : size_of(s.data_type));
    if (in_shards)  // they gather the parts of a state that they all have
      fields.add_word("whether " + tensor + " has a parameter::master", s.whole_size != 0 && s.has_given_master ? 1 : 0,
                      "give a master copy on all ranks that have elements of the tensor, or on none");
    fields.add_float("the weight decay of " + tensor, s.weight_decay);
    fields.add_float("the learning-rate factor of " + tensor, s.learning_rate_factor);
    fields.add_word("the group of " + tensor, s.group);
    fields.add_word("the option adapt of " + tensor, s.adapt ? 1 : 0);
    fields.add_word("whether " + tensor + " has at most one dimension", s.one_dimensional ? 1 : 0);
    fields.add_word("the option compress of " + tensor, s.dense ? 0 : 1);  // SLAMB derives it from the fields above
    fields.add_word("the number of rows of " + tensor, s.rows.size(), alike, of_shard);  // 0: the option is not set
    fields.add_hash("the rows of " + tensor + " that take part",
                    hash_of({reinterpret_cast<const char*>(s.rows.data()), s.rows.size()}), alike, of_shard);
    fields.add_word("the number of the shard of " + tensor, static_cast<std::uint64_t>(std::int64_t{s.shard} + 1),
                    alike, of_shard);
  }
}

}  // namespace slamb::detail
