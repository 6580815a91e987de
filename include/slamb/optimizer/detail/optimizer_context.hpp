// The context of a recipe: the core of its optimizer, and the launcher by which it runs its own passes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "slamb/communicator/any_communicator.hpp"
#include "slamb/core/allocator.hpp"
#include "slamb/detail/kernel/launcher.hpp"
#include "slamb/detail/kernel/machine_on.hpp"
#include "slamb/detail/kernel/run_pass.hpp"
#include "slamb/detail/kernel/segments.hpp"
#include "slamb/detail/pass/arena.hpp"
#include "slamb/detail/pass/layout.hpp"
#include "slamb/detail/pass/pass.hpp"
#include "slamb/detail/pass/step_state.hpp"
#include "slamb/detail/runtime/late_read.hpp"
#include "slamb/optimizer/detail/adam_passes.hpp"
#include "slamb/optimizer/detail/optimizer_core.hpp"
#include "slamb/optimizer/detail/state_arrays.hpp"

namespace slamb::detail {

/// The core of an optimizer on a Backend, with what knows the types of its launcher and of its arrays.
template <class Backend>
class optimizer_context final : public optimizer_core {
 public:
  using launcher_type = typename Backend::launcher_type;
  using stream_type = typename Backend::stream_type;
  using late_outcome = late_read<stream_type, step_outcome>;  ///< of the steps so far, read later
  using precision = typename precision_of<Backend>::type;
  using view_type = view_in<precision>;

  /// @param compare_every  steps between comparisons of parameters and masks; 0: never
  optimizer_context(std::span<const parameter> parameters, double weight_decay, std::uint64_t compare_every,
                    any_communicator<stream_type> its, Backend backend, std::span<const stored_array> state)
      : optimizer_context(layout_of(parameters, weight_decay, backend, state), compare_every, std::move(its),
                          std::move(backend)) {}

  // Begins a step, with `begin_step` of the core.
  using optimizer_core::begin_step;
  /// Begins a step of Adam's update with the learning rates that have been set: gradients are read at this scale, and the scalars
  /// of the update are set. Then invokes `more`.
  template <trust_ratio TrustRatio, class Options, class... More>
  void begin_step(const Options& options, double gradient_scale, const variance_properties& variance,
                  const More&... more) {
    bound_.with(options, variance.stopped);
    begin_step(gradient_scale, scalars_of<TrustRatio>(options, variance), more...);
  }
  /// The function that sets the scalars of Adam's update.
  template <trust_ratio TrustRatio, class Options>
  set_adam_scalars scalars_of(const Options& options, const variance_properties& variance) const {
    own_bound bound = bound_;
    return adam_scalars_of<TrustRatio>(options, record(), scalars(), bound.with(options, variance.stopped),
                                       variance.has_late);
  }
  /// Begins a step with the learning rates that have been set. Then invokes `first` and `more`.
  template <class First, class... More>
  void begin_step(double gradient_scale, const First& first, const More&... more) const {
    bool has_begun = false;
    rates.store(memory, on(), record(), [&](const write_learning_rates& some) {
      if (std::exchange(has_begun, true)) return invoke(step_calls{some});
      invoke(begin_with(gradient_scale, some), first, more...);
    });
  }

  /// Starts to read the outcome of the steps so far, without waiting.
  void read_outcome_later(late_outcome& late) const {
    launcher.read_later(static_cast<const step_outcome*>(record()), late);
  }
  /// Finishes that read, so that `next_step_number` does not wait. Waits only for the steps before the read.
  step_outcome find_outcome(const late_outcome& late) {
    ranks.wait(late.stream());
    const step_outcome outcome = late.finish();
    count_.set(outcome.taken);
    return outcome;
  }

  /// The function that computes trust ratios from sums.
  template <trust_ratio TrustRatio>
  compute_trust_ratios<TrustRatio> trust_ratios_from_sums(const TrustRatio& trust,
                                                          region<factors_of<TrustRatio>> factors) const {
    return {trust, segments(), memory.view(factors).data(), ranks.size()};
  }

  /// Computes trust ratios that need no sums.
  template <trust_ratio TrustRatio>
  void compute_constant_trust_ratios(const TrustRatio& trust, region<factors_of<TrustRatio>> factors) {
    if constexpr (TrustRatio::sums_per_segment == 0)
      finish_sums<0>(0, tensors.segments().size(), trust_ratios_from_sums(trust, factors));
  }

  /// Calls finish(tensor, sums) for tensors first … last − 1: see `finish_segments`.
  /// With a shard group the sums are of whole tensors, and `first` … are all tensors.
  /// @param changed  the pass has changed the state, so a step cannot be taken again if sums over shards fail
  template <int Sums, int Maxima = 0, class Finish>
  void finish_sums(std::size_t first, std::size_t last, const Finish& finish, bool changed = false) {
    if constexpr (Sums + Maxima > 0)
      if (shards.exists()) {
        has_half_step = changed;
        finish_parts<Sums, Maxima>(shards.sums(), view(), first, last, finish);
        has_half_step = false;
        return;
      }
    launch(finish_segments<Sums, Maxima, Finish>{finish, sums(), view().first_tile, first, last, view().skip});
  }
  /// The same with the sums of tensors whose parts the ranks of a group have. Takes a collective.
  /// @param parts  the tables of this rank's parts; @param last  the number of tensors
  template <int Sums, int Maxima = 0, class Finish>
  void finish_parts(const sums_of_parts& group, const model_view& parts, std::size_t first, std::size_t last,
                    const Finish& finish) {
    using keep = keep_results<Sums + Maxima>;
    launch(finish_segments<Sums, Maxima, keep>{
        {parts.segments, group.own(*this)}, sums(), parts.first_tile, first, last, parts.skip});
    group.gather(*this, Sums + Maxima);
    launch(finish_shards<Sums, Maxima, Finish>{finish, group.all(*this), static_cast<std::size_t>(group.size()), last,
                                               parts.skip});
  }

  /// Launches a kernel.
  template <class Kernel>
  void launch(const Kernel& kernel) const {
    launcher.launch(kernel);
  }
  /// Runs a pass over a range of tiles.
  /// @param sums        [all tiles][results of the pass]; may be null if there are none
  /// @param not_finite  becomes 1 if a checked value is not finite; may be null
  template <class Pass, class View>
  void run(const Pass& pass, const View& on, tile_range tiles, double* sums = nullptr,
           std::uint32_t* not_finite = nullptr) const {
    launch(run_pass{pass, on, tiles, sums, not_finite});
  }
  /// Invokes functions, in order, after all earlier work.
  template <class... Functions>
  void invoke(const Functions&... functions) const {
    launcher.invoke(functions...);
  }
  /// Copies a table to the backend's memory.
  template <class T>
  void upload(std::span<const T> from, std::span<T> to) const {
    ::slamb::detail::upload(launcher, from, to);
  }
  /// Writes one value to the backend's memory.
  template <class T>
  void write(T* to, T value) const {
    ::slamb::detail::write(launcher, to, value);
  }
  stream_type stream() const noexcept { return launcher.stream(); }

  using optimizer_core::tables;
  /// The tables that passes of Adam's update read: scalars, tensors, learning rates and trust ratios.
  template <class Factors>
  update_tables<Factors> tables(region<Factors> factors) const noexcept {
    return {scalars(), segments(), rates.stored(memory), memory.view(factors).data()};
  }

  view_type view() const noexcept {
    const any_view model = whole_view();
    view_type all(model);
    if constexpr (has_draws<precision>) all.draws = model.draws;
    return all;
  }

 private:
  // Checks that the backend's memory can hold the state of a very large model, before tables are made on the host that could
  // fill the machine. Smaller models are checked when all their memory is allocated.
  static layout layout_of(std::span<const parameter> parameters, double weight_decay, const Backend& backend,
                          std::span<const stored_array> state) {
    backend.validate();
    return {parameters, weight_decay, precision::takes_types,
            [&](const layout& all) { require_room_for_state(all, allocator_of(backend), state); }};
  }
  // References, because the arguments may be evaluated in any order.
  optimizer_context(layout&& model, std::uint64_t compare_every, any_communicator<stream_type>&& its, Backend&& backend)
      : optimizer_core(std::make_unique<machine_on<Backend>>(std::move(backend), model.elements()), std::move(model),
                       its.share(), compare_every),
        communicator(std::move(its)),
        launcher(static_cast<const machine_on<Backend>&>(on()).launcher()) {}

 public:
  any_communicator<stream_type> communicator;  ///< the user's; calls on it are not counted
  const launcher_type& launcher;
};

}  // namespace slamb::detail
