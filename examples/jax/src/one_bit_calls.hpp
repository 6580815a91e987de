// The calls of 1-bit Adam and 1-bit LAMB: dense gradients in the warm-up, then the momentum in signs.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <vector>

#include <slamb/one_bit.hpp>

#include "rank_calls.hpp"
#include "rank_tables.hpp"
#include "settings.hpp"

namespace slamb_jax {

/// A model with the state of 1-bit LAMB; 1-bit Adam has no fresh variance.
using one_bit_view =
    core::state_view<core::view_in<>,
                     core::arrays<core::array::momentum, core::array::variance, core::array::fresh_variance>>;

/// 1-bit Adam (unit_trust_ratio) or 1-bit LAMB (frozen_trust_ratio). Comments name the equations of docs/algorithms/one_bit_adam.md
/// (a) and one_bit_lamb.md (l).
template <class TrustRatio>
class one_bit_calls final : public rank_calls {
  using quantizer = slamb::sign;
  using factors_type = slamb::factors_of<TrustRatio>;
  using kept_type = typename core::kept_by<TrustRatio>::type;
  using passes = core::one_bit_passes<TrustRatio>;
  static constexpr bool is_frozen = passes::is_frozen;
  static constexpr int compressed_sums = core::compressed_sums<TrustRatio>();
  static constexpr int compressed_maxima = core::compressed_maxima<TrustRatio>();
  static constexpr int results = std::max(
      {compressed_sums + compressed_maxima, int{TrustRatio::sums_per_segment}, int{core::norms_of_model::sums}});

 public:
  using options_type = slamb::one_bit_options<quantizer, slamb::two_sided<>, TrustRatio, slamb::fixed_warm_up>;

  one_bit_calls(const settings& s, const options_type& options, int rank)
      : options_(options),
        tables_(s, options.compressor, rank),
        on_(s, tables_, results),
        phases_(options.compressor, tables_),
        factors_(tables_.tensors().segments().size()) {
    constexpr std::size_t cache_bytes = 16U << 20U, touched = 5 * sizeof(float);
    batches_ = TrustRatio::sums_per_segment == 0 ? core::one_batch_of(tables_.tensors())
                                                 : core::batches_of(tables_.tensors(), cache_bytes, touched);
  }

  array_sizes sizes() const override {
    array_sizes all = sizes_of(tables_);
    all.mean = 0;  // the momentum is received in its place
    if constexpr (is_frozen) {
      all.fresh = all.state;
      all.ratios = static_cast<std::int64_t>(4 * tables_.tensors().segments().size());
    }
    return all;
  }

  // x = z (β1 m + (1 − β1) g): a (6), l (11)
  void encode(const step_arrays& at) override {
    tables_.point_at({}, at.gradients);
    begin(at, 1.0, at.frozen_at);
    phases_.encode(on_, momentum(at), view_of_model(at), at);
  }
  void average(const step_arrays& at) override { phases_.average(on_, at); }

  // m, v_f, p ← …: a (7) … (9), l (12) … (20)
  bool update(const step_arrays& at) override {
    if (at.frozen_at == 0) return update_dense(at);
    if (phases_.has_overflow(at)) return false;
    tables_.point_at(at.parameters, at.gradients);
    begin(at, 1.0, at.frozen_at);
    receive(at, [&](const auto& pass, const one_bit_view& view, core::tile_range tiles) {
      phases_.receive(on_, pass, view, at, tiles, on_.sums());
    });
    return true;
  }

  // In the warm-up m, v, p ← …: a (1) … (5), l (1) … (7). A single rank takes its compressed steps here too: onebit(x) = x.
  bool update_dense(const step_arrays& at) override {
    tables_.point_at(at.parameters, at.gradients);
    const one_bit_view view = view_of_model(at);
    std::uint32_t not_finite = 0;
    on_.run(core::check_gradient{}, view, tables_.all_tiles(), nullptr, &not_finite);
    if (not_finite != 0) return false;
    begin(at, 1.0 / tables_.ranks(), at.frozen_at);
    if (at.frozen_at != 0) {
      receive(at, [&](const auto& pass, const one_bit_view& of, core::tile_range tiles) {
        on_.run(core::pass_with_own_signal<std::remove_cvref_t<decltype(pass)>>{pass}, of, tiles, on_.sums());
      });
      return true;
    }
    const core::adam_update<TrustRatio> update{tables_of_step(at), options_.trust_ratio};
    core::take_adam_step(on_, view, update, batches_, core::keep_average<TrustRatio>{ratios(), kept(at)}, true);
    return true;
  }

  /// The warm-up ends with step t, unless it has ended.
  bool freezes_after(std::uint64_t t) const noexcept override { return t >= options_.warm_up.steps; }

  // l (8) … (10)
  void freeze(const step_arrays& at) override {
    if constexpr (is_frozen) {
      const one_bit_view view = view_of_model(at);
      on_.run(core::start_fresh_variance{}, view, tables_.all_tiles());
      if (tables_.ranks() > 1) equalize_signals(at, view);
    }
  }

 private:
  one_bit_view view_of_model(const step_arrays& at) const {
    one_bit_view view{core::view_in<>(tables_.model()), {}, {}, {}};
    view.momentum = at.momentum;
    view.variance = at.variance;
    view.fresh_variance = at.fresh_variance;
    return view;
  }

  // Sets the scalars of a step.
  // @param stopped  the steps after which v was frozen; 0: it is not
  void begin(const step_arrays& at, double scale, std::uint32_t stopped) {
    core::step_record record;
    record.taken = at.taken;
    record.gradient_scale = scale;
    core::own_bound bound;
    has_late_ = stopped != 0 && core::lets_elements_begin(options_);
    core::adam_scalars_of<TrustRatio>(options_, &record, &scalars_, bound.with(options_, stopped), has_late_)();
  }

  core::update_tables<factors_type> tables_of_step(const step_arrays& at) const noexcept {
    return {&scalars_, tables_.tensors().segments().data(), &at.rate, factors_.data()};
  }
  core::exchanged_momentum<TrustRatio> momentum(const step_arrays& at) const noexcept {
    return {{tables_of_step(at), options_.trust_ratio}, signal_scales(at)};
  }
  core::compute_trust_ratios<TrustRatio> ratios() noexcept {
    return {options_.trust_ratio, tables_.tensors().segments().data(), factors_.data(), tables_.ranks()};
  }

  // The array `ratios` is [2][tensors][2]: c̄ and f of each tensor, then z and 1/z.
  static_assert(!is_frozen || sizeof(kept_type) == 2 * sizeof(float));
  kept_type* kept(const step_arrays& at) const noexcept { return reinterpret_cast<kept_type*>(at.ratios); }
  float* signal_scales(const step_arrays& at) const noexcept {
    return is_frozen ? at.ratios + 2 * tables_.tensors().segments().size() : nullptr;
  }

  // Calls receive_with(pass, view, tiles) for the pass that takes the mean of the signals, and applies it.
  template <class Receive>
  void receive(const step_arrays& at, const Receive& receive_with) {
    const one_bit_view view = view_of_model(at);
    for (const core::tensor_batch& tensors : batches_) {
      if constexpr (is_frozen) {
        receive_with(typename passes::receive{momentum(at), static_cast<float>(1.0 / (1.0 - options_.beta1))}, view,
                     tensors.tiles);
        on_.template finish_sums<compressed_sums, compressed_maxima>(
            tensors.first, tensors.last,
            core::compute_frozen_trust_ratios<TrustRatio>{ratios(), kept(at), core::lets_elements_begin(options_)});
        on_.run(typename passes::apply{{tables_of_step(at), options_.trust_ratio}}, view, tensors.tiles);
      } else {
        receive_with(typename passes::receive{momentum(at)}, view, tensors.tiles);
      }
    }
    // Elements whose variance begins late: docs/algorithms/update_bound.md (7), (8). Others stay as they are.
    if (has_late_) on_.run(core::continue_late_variances<true, true>{&scalars_}, view, tables_.all_tiles());
  }

  // z: l (9)
  void equalize_signals(const step_arrays& at, const one_bit_view& view) {
    const std::span<const core::segment> segments = tables_.tensors().segments();
    std::vector<double> squares(segments.size());  // ‖m‖²
    core::equal_signals all;
    on_.run(core::norms_of_model{}, view, tables_.all_tiles(), on_.sums());
    const std::span<const std::size_t> first = tables_.tensors().first_tiles();
    const auto is_compressed = [&](std::size_t i) { return segments[i].size != 0 && !segments[i].dense; };
    for (std::size_t i = 0; i < segments.size(); ++i) {
      if (!is_compressed(i)) continue;
      for (std::size_t tile = first[i]; tile < first[i + 1]; ++tile)
        squares[i] += on_.sums()[tile * static_cast<std::size_t>(core::norms_of_model::sums) + 1];
      all.add(squares[i], segments[i].size);
    }
    float* const scales = signal_scales(at);
    for (std::size_t i = 0; i < segments.size(); ++i) {
      if (!is_compressed(i)) continue;
      const double z = all.scale_of(squares[i], segments[i].size);
      scales[2 * i] = static_cast<float>(z);
      scales[2 * i + 1] = static_cast<float>(1.0 / z);
    }
  }

  options_type options_;
  rank_tables tables_;
  kernels on_;
  two_phases<quantizer> phases_;
  std::vector<factors_type> factors_;
  std::vector<core::tensor_batch> batches_;
  core::adam_scalars scalars_;
  bool has_late_ = false;
};

}  // namespace slamb_jax
