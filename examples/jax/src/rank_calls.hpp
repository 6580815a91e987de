// The calls of one rank in a step, as they are between the collectives of the compiled program:
//
//     encode    codes of gradient + worker error                                 then all_to_all of the messages
//     average   the mean of the ranks' codes over this rank's chunk, as codes    then all_gather of the messages
//     update    m, v, p and both errors, unless any rank has to skip the step
//
// They run the kernels of the library, in the order of its own optimizers, so results have the bits of slamb::lamb and slamb::adamw.
// Arrays belong to the caller. A rank keeps tables, and memory for sums of tiles.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <span>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include <slamb/compressed_lamb.hpp>

#include "rank_tables.hpp"
#include "settings.hpp"

namespace slamb_jax {

/// The arrays of a step in host memory, null where a call does not use them, with the numbers of `array_sizes`.
struct step_arrays {
  std::uint32_t taken = 0;              ///< steps so far: t = taken + 1
  std::uint32_t frozen_at = 0;          ///< the steps after which the variance was frozen; 0: it is not
  double rate = 0.0;                    ///< γ
  float* momentum = nullptr;            ///< [state]
  float* variance = nullptr;            ///< [state]
  float* fresh_variance = nullptr;      ///< [state]
  float* ratios = nullptr;              ///< [2][tensors][2] c̄ and f of 1-bit LAMB, then z and 1/z
  float* worker_error = nullptr;        ///< [state]
  float* server_error = nullptr;        ///< [codes]
  std::byte* sent = nullptr;            ///< [ranks][message] this rank's codes for each rank
  std::byte* received = nullptr;        ///< [ranks][message] of each rank, of the phase that has ended
  std::byte* averaged = nullptr;        ///< [message] the codes of the mean over this rank's chunk
  float* dense = nullptr;               ///< [dense] of this rank; after the exchange their sum over ranks
  float* mean = nullptr;                ///< [codes] the mean over this rank's chunk before it was encoded
  float* exchanged = nullptr;           ///< [mean] for the mean gradient
  std::vector<float*> parameters;       ///< [tensors]
  std::vector<const float*> gradients;  ///< [tensors]
};

/// The calls of one rank. Calls of one object run one after another, also if several threads make them.
class rank_calls {
 public:
  virtual ~rank_calls() = default;
  rank_calls() = default;
  rank_calls(const rank_calls&) = delete;
  rank_calls& operator=(const rank_calls&) = delete;

  virtual array_sizes sizes() const = 0;
  /// Writes `sent` and `dense`.
  virtual void encode(const step_arrays& at) = 0;
  /// Reads `received`, of the first phase; writes `averaged` and `mean`.
  virtual void average(const step_arrays& at) = 0;
  /// Reads `received`, of the second phase, and updates what lasts. In a warm-up it is `update_dense`.
  /// @return false if the step is skipped: then nothing that lasts has changed
  virtual bool update(const step_arrays& at) = 0;
  /// Updates with gradients whose sum over ranks is in `gradients`.
  /// @return false as `update`
  virtual bool update_dense(const step_arrays& at) = 0;
  /// True if the variance is frozen after step t.
  virtual bool freezes_after(std::uint64_t /*t*/) const noexcept { return false; }
  /// Begins what follows a frozen variance.
  virtual void freeze(const step_arrays& /*at*/) {}

  std::mutex& busy() noexcept { return busy_; }

 private:
  std::mutex busy_;
};

/// A model with m and v.
using adam_view = core::state_view<core::view_in<>, core::arrays<core::array::momentum, core::array::variance>>;

inline adam_view view_of(const rank_tables& tables, const step_arrays& at) {
  adam_view view{core::view_in<>(tables.model()), {}, {}};
  view.momentum = at.momentum;
  view.variance = at.variance;
  return view;
}

/// Runs kernels over all tiles, with memory for their sums. It is what `slamb::detail::take_adam_step` needs of a context.
class kernels {
 public:
  kernels(const settings& s, const rank_tables& tables, int results)
      : launcher_(s.threads, tables.tensors().elements()),
        first_tile_(tables.tensors().first_tiles()),
        results_(tables.all_tiles().last * static_cast<std::size_t>(results)) {}

  template <class Kernel>
  void launch(const Kernel& kernel) const {
    launcher_.launch(kernel);
  }
  template <class Pass, class View>
  void run(const Pass& pass, const View& view, core::tile_range tiles, double* of_tiles = nullptr,
           std::uint32_t* not_finite = nullptr) const {
    launch(core::run_pass{pass, view, tiles, of_tiles, not_finite});
  }
  double* sums() noexcept { return results_.data(); }
  template <int Sums, int Maxima = 0, class Finish>
  void finish_sums(std::size_t first, std::size_t last, const Finish& finish, bool /*changed*/ = false) {
    launch(core::finish_segments<Sums, Maxima, Finish>{finish, sums(), first_tile_.data(), first, last, nullptr});
  }
  /// The sum of one value of each tile, in their order.
  double sum_of_tiles(core::tile_range all) {
    double total = 0.0;
    launch(core::add_up{sums(), all.last, &total});
    return total;
  }

 private:
  slamb::host_backend::launcher_type launcher_;
  std::span<const std::size_t> first_tile_;
  std::vector<double> results_;
};

/// The sizes of an exchange of gradients.
inline array_sizes sizes_of(const rank_tables& tables) {
  return {.state = static_cast<std::int64_t>(tables.tensors().state_elements()),
          .mean = static_cast<std::int64_t>(tables.tensors().elements()),
          .message = static_cast<std::int64_t>(tables.wire().message_bytes()),
          .codes = static_cast<std::int64_t>(tables.wire().codes()),
          .dense = static_cast<std::int64_t>(tables.wire().dense_elements())};
}

/// Adam's update by a gradient that all ranks have: docs/algorithms/lamb.md (2) … (7).
template <class Options>
class adam_step {
  using trust_type = std::remove_cvref_t<decltype(Options::trust_ratio)>;
  using factors_type = slamb::factors_of<trust_type>;

 public:
  static constexpr int results = trust_type::sums_per_segment > 1 ? trust_type::sums_per_segment : 1;

  adam_step(const Options& options, const rank_tables& tables)
      : options_(options), tables_(tables), factors_(tables.tensors().segments().size()) {
    constexpr std::size_t cache_bytes = 16U << 20U, touched = 4 * sizeof(float);
    batches_ = trust_type::sums_per_segment == 0 ? core::one_batch_of(tables.tensors())
                                                 : core::batches_of(tables.tensors(), cache_bytes, touched);
  }

  /// @param view        with the gradient, times `scale` the mean over ranks
  /// @param is_checked  the gradient and its square are known to be finite
  void operator()(kernels& on, const adam_view& view, const step_arrays& at, double scale, bool is_checked) {
    core::step_record record;
    record.taken = at.taken;
    record.gradient_scale = scale;
    core::adam_scalars_of<trust_type>(options_, &record, &scalars_, {})();
    if (core::bounds_norm(options_.max_gradient_norm)) {
      on.run(core::sum_gradient{}, view, tables_.all_tiles(), on.sums());
      const double square = on.sum_of_tiles(tables_.all_tiles());
      core::clip_gradient_scale{&record, &scalars_.gradient_scale, &square, options_.max_gradient_norm}();
    }
    const core::segment* const segments = tables_.tensors().segments().data();
    const core::adam_update<trust_type, core::unbounded_variance> update{
        {&scalars_, segments, &at.rate, factors_.data()}, options_.trust_ratio};
    const core::compute_trust_ratios<trust_type> ratios{options_.trust_ratio, segments, factors_.data(),
                                                        tables_.ranks()};
    core::take_adam_step(on, view, update, batches_, ratios, is_checked);
  }

 private:
  Options options_;
  const rank_tables& tables_;
  core::adam_scalars scalars_;
  std::vector<factors_type> factors_;
  std::vector<core::tensor_batch> batches_;
};

/// The two phases of an exchange by a quantizer, with both errors: docs/algorithms/one_bit_exchange.md.
template <class Quantizer>
class two_phases {
  static constexpr bool has_scales = Quantizer::scale != slamb::segment_scale::none;
  static constexpr auto mode = core::encode_mode::statistics_and_codes;
  static_assert(!core::shared_scales<Quantizer>::are_known_first,
                "slamb: the codes of this quantizer depend on a scale that tiles share, which takes a further pass");

 public:
  two_phases(const Quantizer& quantizer, const rank_tables& tables) : quantizer_(quantizer), tables_(tables) {}

  /// (1) … (3): the codes of the signal that `pass` forms, and the overflow flag.
  template <class Pass, class View>
  void encode(kernels& on, const Pass& pass, const View& view, const step_arrays& at) const {
    const std::uint64_t taken = at.taken, bytes = tables_.wire().message_bytes(), ranks = tables_.wire().ranks();
    core::step_record record;
    core::wire_view wire = tables_.messages(&taken);
    wire.sent = at.sent;
    wire.dense = at.dense;
    wire.worker_error = at.worker_error;
    std::memset(at.sent, 0, bytes * ranks);  // padding too
    core::start_messages{nullptr, at.sent, bytes, ranks}();
    on.launch(core::send_signal<mode, float, Pass, Quantizer>{pass, quantizer_, view, wire, tables_.all_tiles(),
                                                              on.sums(), &record.not_finite});
    on.launch(core::finish_scales<Quantizer>{
        tables_.sent_scales(), on.sums(), tables_.counts(), at.sent, nullptr, {&record, at.sent, bytes, ranks}});
  }

  /// (5) … (7): the codes of the mean of this rank's chunk. If a message has the overflow flag, so has the mean's.
  void average(kernels& on, const step_arrays& at) const {
    const std::uint64_t taken = at.taken, bytes = tables_.wire().message_bytes();
    core::wire_view wire = tables_.messages(&taken);
    wire.received = at.received;
    wire.averaged = at.averaged;
    wire.server_error = at.server_error;
    wire.mean = at.mean;
    std::memset(at.averaged, 0, bytes);
    std::memset(at.mean, 0, tables_.wire().codes() * sizeof(float));
    core::step_record record;
    core::read_overflow_flags{&record, at.received, bytes, tables_.wire().ranks()}();
    record.not_finite = record.skip;
    core::start_messages{nullptr, at.averaged, bytes, 1}();
    core::write_overflow_flags{&record, at.averaged, bytes, 1}();
    if (record.skip != 0) return;
    const std::span<const std::size_t> own = tables_.own_tiles();
    on.launch(core::average_signals<mode, float, Quantizer>{quantizer_, tables_.model(), wire, own.data(), own.size(),
                                                            on.sums()});
    on.launch(core::finish_scales<Quantizer>{tables_.mean_scales(), on.sums(), tables_.counts(), at.averaged});
  }

  /// True if all ranks must skip the step.
  bool has_overflow(const step_arrays& at) const {
    constexpr bool looks_at_scale = has_scales && !slamb::capability::sends_scales_in_bytes<Quantizer>;
    return core::read_overflow_flags{nullptr, at.received, tables_.wire().message_bytes(), tables_.wire().ranks(),
                                     looks_at_scale}
        .has_overflow();
  }

  /// (4), (8), (9): runs `pass` with the mean of the signals, and stores both errors.
  template <class Pass, class View>
  void receive(kernels& on, const Pass& pass, const View& view, const step_arrays& at, core::tile_range tiles,
               double* results = nullptr) const {
    const std::uint64_t taken = at.taken;
    core::wire_view wire = tables_.messages(&taken);
    wire.sent = at.sent;
    wire.received = at.received;
    wire.averaged = at.averaged;
    wire.dense = at.dense;
    wire.mean = at.mean;
    wire.worker_error = at.worker_error;
    wire.server_error = at.server_error;
    on.launch(core::receive_mean<float, float, Pass, Quantizer>{pass, quantizer_, view, wire, tiles, results});
  }

 private:
  Quantizer quantizer_;
  const rank_tables& tables_;
};

/// AdamW or LAMB with dense gradients.
template <class TrustRatio>
class dense_calls final : public rank_calls {
 public:
  using options_type = slamb::lamb_options<slamb::no_compressor, slamb::no_error_feedback, TrustRatio>;

  dense_calls(const settings& s, const options_type& options)
      : tables_(s), ranks_(s.ranks), on_(s, tables_, adam_step<options_type>::results), step_(options, tables_) {}

  array_sizes sizes() const override {
    return {.state = static_cast<std::int64_t>(tables_.tensors().state_elements())};
  }
  void encode(const step_arrays& /*at*/) override { reject(); }
  void average(const step_arrays& /*at*/) override { reject(); }
  bool update(const step_arrays& /*at*/) override { reject(); }
  bool update_dense(const step_arrays& at) override {
    tables_.point_at(at.parameters, at.gradients);
    const adam_view view = view_of(tables_, at);
    std::uint32_t not_finite = 0;
    on_.run(core::check_gradient{}, view, tables_.all_tiles(), nullptr, &not_finite);
    if (not_finite != 0) return false;
    step_(on_, view, at, 1.0 / ranks_, true);
    return true;
  }

 private:
  [[noreturn]] static void reject() { throw std::logic_error("slamb: this optimizer exchanges no codes"); }

  rank_tables tables_;
  int ranks_;
  kernels on_;
  adam_step<options_type> step_;
};

/// AdamW or LAMB with quantized gradients.
template <class Quantizer, class TrustRatio>
class gradient_calls final : public rank_calls {
 public:
  using options_type = slamb::lamb_options<Quantizer, slamb::two_sided<>, TrustRatio>;

  gradient_calls(const settings& s, const options_type& options, int rank)
      : tables_(s, options.compressor, rank),
        on_(s, tables_, adam_step<options_type>::results),
        phases_(options.compressor, tables_),
        step_(options, tables_) {}

  array_sizes sizes() const override { return sizes_of(tables_); }
  void encode(const step_arrays& at) override {
    tables_.point_at({}, at.gradients);
    phases_.encode(on_, core::decode_gradient{}, core::view_in<>(tables_.model()), at);
  }
  void average(const step_arrays& at) override { phases_.average(on_, at); }
  bool update(const step_arrays& at) override {
    if (phases_.has_overflow(at)) return false;
    tables_.point_at(at.parameters, at.gradients);
    adam_view view = view_of(tables_, at);
    view.exchanged = at.exchanged;
    phases_.receive(on_, core::decode_gradient{}, core::view_in<>(view), at, tables_.all_tiles());
    view.gradient_is_exchanged = true;
    step_(on_, view, at, 1.0, true);
    return true;
  }
  bool update_dense(const step_arrays& /*at*/) override {
    throw std::logic_error("slamb: this optimizer exchanges codes");
  }

 private:
  rank_tables tables_;
  kernels on_;
  two_phases<Quantizer> phases_;
  adam_step<options_type> step_;
};

}  // namespace slamb_jax
