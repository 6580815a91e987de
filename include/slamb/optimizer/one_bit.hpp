// 1-bit Adam and 1-bit LAMB: dense gradients until the variance is stable, then the momentum in one bit an element.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <type_traits>
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
#include "slamb/optimizer/detail/one_bit_passes.hpp"
#include "slamb/optimizer/detail/optimizer_context.hpp"
#include "slamb/optimizer/detail/optimizer_over.hpp"
#include "slamb/optimizer/detail/quantized_gradient.hpp"
#include "slamb/optimizer/detail/recipe_base.hpp"
#include "slamb/optimizer/detail/roles.hpp"
#include "slamb/optimizer/detail/settings.hpp"
#include "slamb/optimizer/detail/state_arrays.hpp"
#include "slamb/optimizer/rank_options.hpp"
#include "slamb/schedule/warm_up.hpp"
#include "slamb/trust_ratio/frozen_trust_ratio.hpp"
#include "slamb/trust_ratio/unit_trust_ratio.hpp"

namespace slamb {

namespace detail {

/// The policies on which saved states depend.
template <class Compressor, class ErrorFeedback, class TrustRatio, class WarmUp>
struct one_bit_policies {};

}  // namespace detail

/// Options of `one_bit_adam` and `one_bit_lamb`.
template <class Compressor, class ErrorFeedback, class TrustRatio, class WarmUp, class DenseCompressor = no_compressor>
struct one_bit_options {
  using saved_policies = detail::one_bit_policies<Compressor, ErrorFeedback, TrustRatio, WarmUp>;

  double beta1 = 0.9;          ///< in [0, 1)
  double beta2 = 0.999;        ///< in [0, 1)
  double epsilon = 1e-8;       ///< > 0
  double weight_decay = 0.01;  ///< λ ≥ 0
  /// B: an element's m/(√v + ε) is kept within ±B, before weight decay and norms. 0: Adam's own bound; ∞: off, as in the paper
  double update_bound = 0.0;
  /// c > 0: g ← g min(1, c/(n + 1e-6)), with n = ‖g‖ of an exchanged dense mean, else √(mean ‖g_i‖²) over ranks; ∞: off
  double max_gradient_norm = std::numeric_limits<double>::infinity();
  bool clip_locally = false;  ///< n = ‖g_i‖ of each rank, or model in shards, not √(mean ‖g_i‖²)
  bool compress_single_rank =
      false;  ///< encodes and decodes with one rank too, to see the effect of compression without a network
  rank_options ranks{};
  WarmUp warm_up{};  ///< decides when the variance is frozen and compression begins
  Compressor compressor{};
  ErrorFeedback error_feedback{};
  TrustRatio trust_ratio{};
  DenseCompressor dense_compressor{};  ///< of the gradients of the warm-up
};

namespace detail {

/// `one_bit_adam` on ranks of any Communicator.
template <compressor Compressor, error_feedback ErrorFeedback, trust_ratio TrustRatio, class Backend,
          warm_up_schedule WarmUp, dense_compressor DenseCompressor = no_compressor>
class one_bit_recipe final
    : public recipe_with_state<Backend, one_bit_options<Compressor, ErrorFeedback, TrustRatio, WarmUp, DenseCompressor>,
                               array::momentum, array::variance> {
  using base =
      recipe_with_state<Backend, one_bit_options<Compressor, ErrorFeedback, TrustRatio, WarmUp, DenseCompressor>,
                        array::momentum, array::variance>;
  using base::context_, base::options_, base::state_;

  static_assert(quantizer<Compressor>,
                "slamb: one_bit_adam sends every element in few bits; its Compressor must be a quantizer, such as "
                "sign or int8. Use sparsifiers and chains with slamb or lamb");
  static_assert(!capability::frozen_ratio<TrustRatio> || TrustRatio::sums_per_segment > 0,
                "slamb: a frozen trust ratio needs sums_per_segment > 0, because it is computed from sums");

 public:
  using typename base::options_type;
  static constexpr const char* recipe_name = "basic_one_bit";  ///< the name in saved states
  static constexpr bool has_several_kinds_of_step = true;      ///< kit::trial_of is specialised for it

  static void validate(const options_type& o) {
    base::validate(o);
    validate_policy(o.warm_up);
  }

  one_bit_recipe(std::span<const parameter> parameters, const options_type& options, typename base::ranks_type ranks,
                 Backend backend)
      : base(parameters, options, std::move(ranks), std::move(backend)),
        exchange_(options.compressor, options.compress_single_rank, late_type::can_be_announced(options)),
        dense_(options.dense_compressor, {true, options.max_gradient_norm, options.compress_single_rank}) {
    exchange_.plan(context_);
    dense_.plan_beside(exchange_.wire(), context_);
    context_.plan_sums(std::max({sums_per_segment + maxima_per_segment, int{TrustRatio::sums_per_segment}, 2}));
    factors_ = context_.memory.template plan<factors_type>("trust ratios", context_.tensors.segments().size());
    if constexpr (is_frozen) {
      kept_ = context_.memory.template plan<kept_type>("trust ratios", context_.tensors.segments().size());
      signal_scales_ = context_.memory.template plan<float>("signal scales", 2 * context_.tensors.segments().size());
    }
    fresh_.plan(context_);
    clip_.plan(context_, options_);
    late_.plan(context_);
    buffer_ = context_.plan_buffer(std::max(exchange_.buffer_bytes(), dense_.buffer_bytes(context_)));
    dense_.use_buffer(buffer_, context_);
    context_.allocate(consistency(), byte_collectives_of<Compressor>);
    exchange_.start(context_, view(), array::variance());
    dense_.start(context_);
    context_.compute_constant_trust_ratios(options_.trust_ratio, factors_);
    batches_ = batches_for<TrustRatio>(context_, 5 * sizeof(float));
    if constexpr (is_frozen) start_kept();
    context_.enter_phase("warm-up");
  }

  statistics report(bool with_norms) override {
    statistics all = context_.report();
    if (with_norms) {
      all.norm = norms_of(context_, any_view_of(view()));
      report_directions<TrustRatio, stopped_variance>(context_, view(), options_, variance(), all);
    }
    all.warm_up = {warm_up_end_, warm_up_.variance_ratio};
    all.compression = exchange_.measured();
    if (with_norms) all.worker_error = exchange_.worker_error(context_);
    return all;
  }

  void measure_next_step() override { exchange_.measure_next(); }

 private:
  using passes = one_bit_passes<TrustRatio>;
  static constexpr bool is_frozen = passes::is_frozen;
  static constexpr int sums_per_segment = compressed_sums<TrustRatio>();
  static constexpr int maxima_per_segment = compressed_maxima<TrustRatio>();
  using factors_type = factors_of<TrustRatio>;
  using late_type = late_elements<optimizer_context<Backend>>;
  using fresh_type = std::conditional_t<is_frozen, state_arrays<array::fresh_variance>, state_arrays<>>;
  using kept_type = typename kept_by<TrustRatio>::type;

  consistency_check consistency() const {
    consistency_check all = consistency_of(recipe_name, options_, context_.tensors.segments().size());
    all.add("compress_single_rank", options_.compress_single_rank ? 1.0 : 0.0);
    describe_policy(options_.warm_up, all);
    return all;
  }

  // A step: docs/algorithms/one_bit_adam.md (a), one_bit_lamb.md (l).
  void begin() override {
    if (is_past_warm_up_) {
      context_.require_no_capture("the first step after load_state() ends the warm-up; take it before the capture");
      begin_compression();
      is_past_warm_up_ = false;
    }
    may_end_ = !is_compressed_ &&
               context_.holds_at_next_step([this](std::uint64_t t) { return may_end_after(t); },
                                           "the warm-up may end in this step; capture steps of the compressed phase");
    if (is_compressed_)
      context_.template begin_step<TrustRatio>(options_, 1.0, variance(),
                                               exchange_.message_initializer(context_, context_.memory.view(buffer_)));
    else
      context_.template begin_step<TrustRatio>(options_, dense_.scale(context_), {});
  }

  // In the warm-up g ← the mean of the ranks' gradients: a (1), l (1). Then m ← exchange(β1 m + (1−β1) g_i): a (6), l (11)
  bool exchange(const gradient_bucket& bucket) override {
    if (!is_compressed_) return dense_.exchange(bucket, context_);
    if (!bucket.is_last) return false;
    clip_.clip(context_);
    exchange_.send(momentum(), context_, view(), context_.memory.view(buffer_));
    return true;
  }

  // m, v, p ← …: a (2) … (5), l (2) … (7). Then m, v_f, p ← …: a (7) … (9), l (12) … (20)
  void finish() override {
    if (!context_.is_skipped_on_host()) {
      if (is_compressed_) {
        update_compressed();
        late_.continue_variances(context_, view(), exchange_);
      } else {
        take_adam_step(context_, state_.over(dense_.receive(context_), context_.memory), update(), batches_,
                       keep_average<TrustRatio>{factors(), kept().data()});
      }
    }
    if (context_.end_step() && may_end_ && warm_up_ends()) begin_compression();
  }

  void update_compressed() {
    for (const tensor_batch& tensors : batches_) {
      const auto receive = [&](const auto& pass) {
        exchange_.receive(pass, context_, view(), context_.memory.view(buffer_), tensors.tiles, context_.sums());
      };
      if constexpr (is_frozen) {
        receive(typename passes::receive{momentum(), static_cast<float>(1.0 / (1.0 - options_.beta1))});
        context_.template finish_sums<sums_per_segment, maxima_per_segment>(
            tensors.first, tensors.last,
            compute_frozen_trust_ratios<TrustRatio>{factors(), kept().data(), lets_elements_begin(options_)}, true);
      } else {
        receive(typename passes::receive{momentum()});
        if constexpr (passes::needs_norms)
          context_.template finish_sums<sums_per_segment>(tensors.first, tensors.last, factors(), true);
      }
      if constexpr (passes::needs_norms) context_.run(typename passes::apply{frozen_update()}, view(), tensors.tiles);
    }
  }

  exchanged_momentum<TrustRatio> momentum() const { return {frozen_update(), signal_scales()}; }
  adam_update<TrustRatio> update() const { return {context_.tables(factors_), options_.trust_ratio}; }
  adam_update<TrustRatio, stopped_variance> frozen_update() const {
    return {context_.tables(factors_), options_.trust_ratio};
  }
  compute_trust_ratios<TrustRatio> factors() const {
    return context_.trust_ratios_from_sums(options_.trust_ratio, factors_);
  }

  // True if the schedule must be called after step t.
  bool may_end_after(std::uint64_t t) const {
    typename WarmUp::state_type state = warm_up_;
    return options_.warm_up.wants_variance_norm(t, options_.beta2) ||
           options_.warm_up.ends_after(state, t, 0.0, options_.beta2);
  }

  bool warm_up_ends() {
    if (!context_.has_taken_last_step()) return false;
    const std::uint64_t t = context_.steps();
    const double norm =
        options_.warm_up.wants_variance_norm(t, options_.beta2) ? variance_norm(context_, any_view_of(view())) : 0.0;
    return options_.warm_up.ends_after(warm_up_, t, norm, options_.beta2);
  }

  // True if a restored state is past the end of the new warm-up, as far as the schedule decides without a norm.
  bool has_ended_before() {
    const std::uint64_t t = context_.steps();
    return past_warm_up_ || (t > 0 && !options_.warm_up.wants_variance_norm(t, options_.beta2) &&
                             options_.warm_up.ends_after(warm_up_, t, 0.0, options_.beta2));
  }

  // The variance is frozen: docs/algorithms/one_bit_lamb.md (8) … (10)
  // @param has_ratios  v_f and z are those of another program
  void begin_compression([[maybe_unused]] bool has_ratios = false) {
    if constexpr (is_frozen) {
      if (!has_ratios) {
        context_.run(start_fresh_variance{}, view(), context_.all_tiles());
        if (exchange_.is_active(context_))
          equalize_signals(context_, any_view_of(view()), [this](std::size_t i, double z) { set_signal_scale(i, z); });
      }
    }
    exchange_.find_active(context_, view(), array::variance());
    is_compressed_ = true;
    warm_up_end_ = std::exchange(past_warm_up_, std::nullopt).value_or(context_.steps());
    find_late_elements();
    context_.enter_phase("compressed");
  }

  void start_kept() {
    for (std::size_t i = 0; i < context_.tensors.segments().size(); ++i) {
      context_.write(&kept()[i], kept_type{});
      set_signal_scale(i, 1.0);
    }
  }

  void set_signal_scale(std::size_t tensor, double z) {
    float* const scales = context_.memory.view(signal_scales_).data() + 2 * tensor;
    context_.write(scales, static_cast<float>(z));
    context_.write(scales + 1, static_cast<float>(1.0 / z));
  }

  const float* signal_scales() const noexcept {
    return is_frozen ? context_.memory.view(signal_scales_).data() : nullptr;
  }
  std::span<kept_type> kept() const noexcept { return context_.memory.view(kept_); }

  auto view() const noexcept { return fresh_.over(base::view(), context_.memory); }

  state_kind kind() const noexcept override { return kind_of<one_bit_recipe>(); }
  void visit_state(const state_visitor& part) override {
    base::visit_state(part);
    exchange_.visit_state(context_, part);
    part("trust ratio state", std::as_writable_bytes(context_.memory.view(kept_)), state_part::common);
    part("signal scales", std::as_writable_bytes(context_.memory.view(signal_scales_)), state_part::common);
    fresh_.visit(part, context_.memory);
    visit_schedule(part, "warm-up", options_.warm_up, warm_up_, state_part::common);
    visit_flag(part, "phase", is_compressed_, state_part::common);
    visit_count(part, "end of the warm-up", warm_up_end_, state_part::common);
  }
  void on_state_loaded(const restore_options& /*options*/) override {
    context_.start_in_phase(is_compressed_ ? "compressed" : "warm-up");
    late_type::end_unless_allowed(options_, context_, view());
    exchange_.find_active(context_, view(), array::variance());
    find_late_elements();
    const given_past given = std::exchange(given_, {});
    past_warm_up_ = is_compressed_ ? std::nullopt : given.warm_up;
    const bool is_past = !is_compressed_ && has_ended_before();
    is_past_warm_up_ = is_past && !given.has_ratios && context_.shards.exists();
    if (is_past && !is_past_warm_up_) begin_compression(given.has_ratios);
  }

  typename base::parts_of_past takes_of_past() const noexcept override {
    return {.warm_up = true, .ratios = std::is_same_v<kept_type, frozen_trust_ratio::segment_state>};
  }
  void begin_after(const past_steps& past) override {
    given_ = {past.warm_up, past.warm_up && !past.ratios.empty()};
    if (is_compressed_) warm_up_end_ = past.warm_up.value_or(warm_up_end_);
    if constexpr (std::is_same_v<kept_type, frozen_trust_ratio::segment_state>) {
      for (std::size_t i = 0; i < past.ratios.size(); ++i) {
        const frozen_ratio& its = past.ratios[i];
        context_.write(&kept()[i], kept_type{static_cast<float>(its.mean_ratio), static_cast<float>(its.factor)});
        if (exchange_.is_active(context_)) set_signal_scale(i, its.signal_scale);
      }
    }
  }
  tensor_moments all_moments() const noexcept override {
    tensor_moments all = base::all_moments();
    if (!all.momentum.empty())
      all.fresh_variance =
          fresh_.template floats_of<array::fresh_variance, typename base::context_type::precision>(context_.memory);
    return all;
  }

  variance_properties variance() const noexcept { return {warm_up_end_, late_.exist()}; }
  void find_late_elements() {
    late_.found({});
    if (is_compressed_ && lets_elements_begin(options_)) late_.find(context_, view());
  }

  fresh_type fresh_;
  quantized_exchange<Compressor, ErrorFeedback, optimizer_context<Backend>> exchange_;
  gradient_exchange<DenseCompressor, no_error_feedback, optimizer_context<Backend>> dense_;
  own_gradient_clip clip_;
  late_type late_;
  region<factors_type> factors_;
  region<kept_type> kept_;
  region<float> signal_scales_;
  region<std::byte> buffer_;
  std::vector<tensor_batch> batches_;
  typename WarmUp::state_type warm_up_{};
  bool is_compressed_ = false;
  bool may_end_ = false;          // the warm-up may end with the current step
  bool is_past_warm_up_ = false;  // a state was loaded behind its end, and the next step, in which shards meet, ends it
  std::optional<std::uint64_t> past_warm_up_{};  // the end of another program's warm-up, until begin_compression()
  struct given_past {
    std::optional<std::uint64_t> warm_up{};
    bool has_ratios = false;
  };
  given_past given_{};  // to set_steps(), until on_state_loaded()
  std::uint64_t warm_up_end_ = 0;
};

/// The recipe of these options on a Backend: declared for plans, which must know when the warm-up ends.
template <class Compressor, class ErrorFeedback, class TrustRatio, class WarmUp, class DenseCompressor, class Backend>
requires requires(const WarmUp& w) { w.steps; }
one_bit_recipe<Compressor, ErrorFeedback, TrustRatio, Backend, WarmUp, DenseCompressor> recipe_of(
    const one_bit_options<Compressor, ErrorFeedback, TrustRatio, WarmUp, DenseCompressor>& options, const Backend& on);

struct warm_up_role {
  template <class P>
  static constexpr bool fits = warm_up_schedule<P>;
};

inline namespace SLAMB_SIMD_NAMESPACE {

/// The policies of `one_bit_adam` and `one_bit_lamb`.
template <class DefaultTrustRatio, class... Policies>
struct one_bit_policies_of {
  using own_roles = roles<compressor_role, error_feedback_role, trust_ratio_role, warm_up_role, dense_compressor_role,
                          communicator_role, backend_role>;
  static_assert((is_policy<Policies, own_roles>::value && ...));

  using recipe_type = one_bit_recipe<
      policy_of<compressor_role, sign, Policies...>, policy_of<error_feedback_role, two_sided<>, Policies...>,
      policy_of<trust_ratio_role, DefaultTrustRatio, Policies...>, policy_of<backend_role, host_backend, Policies...>,
      policy_of<warm_up_role, fixed_warm_up, Policies...>,
      typename policy_of<dense_compressor_role, dense_in<no_compressor>, Policies...>::type>;
  using communicator_type = policy_of<communicator_role, typename recipe_type::ranks_type, Policies...>;
};

}  // namespace SLAMB_SIMD_NAMESPACE
}  // namespace detail

inline namespace SLAMB_SIMD_NAMESPACE {

/// 1-bit Adam: signs and a scale, with worker and server errors. Exchanges the dense gradient during a warm-up, and then, with a
/// frozen variance, the quantized momentum.
///
///     m ← exchange(β1 m + (1−β1) g_i)       p_l ← p_l − γ φ_l (m/(√v + ε) + λ p)
///
/// In the warm-up the DenseCompressor decides how the mean of the gradients is exchanged: in floats (no_compressor), or in
/// sixteen bits (bf16, fp16): each rank sends its gradients rounded, and the mean in floats is rounded once more. Tensors with
/// `compress = false` are exchanged as floats.
///
/// *Memory*: 8 bytes of state a parameter (12 with a frozen trust ratio), the errors of the ErrorFeedback, and a buffer of
/// 4 bytes with more than one rank. With a DenseCompressor of sixteen bits and N ranks, the buffer has 2 + max(4, 2 + 6/N) bytes.
/// *Cost*: compressed, with two_sided<float>: 12 bytes of memory traffic a parameter to encode and 32 to update, or 36 with v_f
/// and norms and 16 to apply; (12 + 4)/N for the mean; and the codes. On the wire: two collectives a step, for any number of
/// tensors; see `quantized_exchange`.
/// *Determinism*: the same bits from run to run and on all ranks after each step.
/// *Reference*: 1-bit Adam, arXiv 2102.02888, algorithm 1; 1-bit LAMB, arXiv 2104.06069, algorithm 1.
///
/// @tparam Policies  in any order, each if it differs from its default: a Compressor (sign), which is a quantizer; an ErrorFeedback
///                   (two_sided<>); a TrustRatio (unit_trust_ratio); a WarmUp (fixed_warm_up); dense_in<DenseCompressor>
///                   (no_compressor); a Communicator (the one that the constructor is given); and a Backend (host_backend)
template <class... Policies>
class one_bit_adam : public detail::optimizer_of<detail::one_bit_policies_of<unit_trust_ratio, Policies...>> {
 public:
  using one_bit_adam::optimizer_over::optimizer_over;
};

/// 1-bit LAMB: 1-bit Adam with LAMB's rate for each tensor.
///
/// @tparam Policies  as those of `one_bit_adam`, with the TrustRatio frozen_trust_ratio
template <class... Policies>
class one_bit_lamb : public detail::optimizer_of<detail::one_bit_policies_of<frozen_trust_ratio, Policies...>> {
 public:
  using one_bit_lamb::optimizer_over::optimizer_over;
};

}  // namespace SLAMB_SIMD_NAMESPACE
}  // namespace slamb
