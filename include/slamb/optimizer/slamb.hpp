// SLAMB: ranks exchange a part of the momentum, and the rate of each element depends on the age of its last exchange.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>

#include "slamb/backend/host/host_backend.hpp"
#include "slamb/communicator/detail/requirements.hpp"
#include "slamb/compressor/chain.hpp"
#include "slamb/compressor/random_k.hpp"
#include "slamb/core/concepts.hpp"
#include "slamb/detail/exchange/norms.hpp"
#include "slamb/detail/exchange/sparse.hpp"
#include "slamb/error_feedback/local_momentum.hpp"
#include "slamb/optimizer/detail/dense_gradient.hpp"
#include "slamb/optimizer/detail/direction_counts.hpp"
#include "slamb/optimizer/detail/optimizer_context.hpp"
#include "slamb/optimizer/detail/optimizer_over.hpp"
#include "slamb/optimizer/detail/outer_step.hpp"
#include "slamb/optimizer/detail/parameter_average.hpp"
#include "slamb/optimizer/detail/recipe_base.hpp"
#include "slamb/optimizer/detail/roles.hpp"
#include "slamb/optimizer/detail/settings.hpp"
#include "slamb/optimizer/detail/slamb_passes.hpp"
#include "slamb/optimizer/detail/state_arrays.hpp"
#include "slamb/optimizer/rank_options.hpp"
#include "slamb/parameter_sync/whole_average.hpp"
#include "slamb/schedule/intervals.hpp"
#include "slamb/trust_ratio/rescaled_trust_ratio.hpp"

namespace slamb {

/// Options of `slamb` and `slamb_by_differences`.
template <class Compressor, class ErrorFeedback, class TrustRatio, class ParameterSync = sync::whole_average>
struct slamb_options {
  double beta1 = 0.9;           ///< in [0, 1)
  double beta2 = 0.999;         ///< in [0, 1)
  double beta3 = 0.93;          ///< in [0, 1]: an element exchanged a steps ago has staleness discount β3^a
  double epsilon = 1e-6;        ///< > 0
  double weight_decay = 0.01;   ///< λ ≥ 0
  bool bias_correction = true;  ///< false: m̂ = m, v̂ = v
  /// B: an element's m̂/(√v̂ + ε) is kept within ±B, before weight decay and norms. 0: Adam's own bound; ∞: off, as in the paper
  double update_bound = 0.0;
  /// c > 0: g_i ← g_i min(1, c/(n + 1e-6)), with n = √(mean ‖g_i‖²) over ranks; ∞: off
  double max_gradient_norm = std::numeric_limits<double>::infinity();
  bool clip_locally = false;  ///< n = ‖g_i‖ of each rank, or model in shards, and no exchange
  /// H: parameters are exchanged at steps 1, 1 + H, 1 + 2H, …; 0: only by synchronize_parameters()
  std::int64_t local_steps = ParameterSync::default_local_steps;
  std::uint64_t dense_below = 9000;  ///< smaller tensors, and tensors of one dimension, are always exchanged dense
  rank_options ranks{};
  Compressor compressor{};
  ErrorFeedback error_feedback{};
  TrustRatio trust_ratio{};
  ParameterSync parameter_sync{};
};

namespace detail {

/// `slamb` on ranks of any Communicator.
template <compressor Compressor, error_feedback ErrorFeedback, trust_ratio TrustRatio, class Backend,
          sync::parameter_sync ParameterSync = sync::whole_average>
class slamb_recipe final
    : public recipe_with_state<Backend, slamb_options<Compressor, ErrorFeedback, TrustRatio, ParameterSync>,
                               array::momentum, array::variance> {
  using base = recipe_with_state<Backend, slamb_options<Compressor, ErrorFeedback, TrustRatio, ParameterSync>,
                                 array::momentum, array::variance>;
  using base::context_, base::options_, base::view;

  using sparsifier_type = std::remove_cvref_t<decltype(sparsifier_of(std::declval<Compressor&>()))>;
  static_assert(
      !requires(const sparsifier_type& c) { c.at(std::uint64_t{1}); } ||
          requires(const sparsifier_type& c) {
            requires std::is_trivially_copyable_v<decltype(c.at(std::uint64_t{1}))>;
          },
      "slamb: the selection that a sparsifier's at(step) returns must be trivially copyable, so that it can be copied "
      "to a device");
  static_assert(
      sparsifier<sparsifier_type> || data_dependent_sparsifier<sparsifier_type>,
      "slamb: slamb exchanges a part of the momentum; its Compressor must be a sparsifier (at(step) returns a "
      "selection with selects(coordinate)), a data-dependent sparsifier, or a chain of one of these and a quantizer");
  static_assert(ErrorFeedback::keeps_unsent,
                "slamb: slamb keeps unsent elements in the local momentum; its ErrorFeedback must have "
                "keeps_unsent = true, as local_momentum has");
  static_assert(!ErrorFeedback::worker_state && !ErrorFeedback::server_state,
                "slamb: slamb has no error buffers; its ErrorFeedback must have none either, such as local_momentum");

 public:
  using typename base::options_type;
  static constexpr const char* recipe_name = "basic_slamb";  ///< the name in saved states
  static constexpr bool has_several_kinds_of_step = true;    ///< kit::trial_of is specialised for it

  static void validate(const options_type& o) {
    base::validate(o);
    require_in(o.beta3 >= 0.0 && o.beta3 <= 1.0, "beta3", o.beta3, "in [0, 1]");
    validate_policy(o.parameter_sync);
    require_in(o.local_steps >= 0, "local_steps", static_cast<double>(o.local_steps),
               ">= 0 (0: parameters are averaged only by synchronize_parameters())");
  }

  slamb_recipe(std::span<const parameter> parameters, const options_type& options, typename base::ranks_type ranks,
               Backend backend)
      : base(parameters, options, std::move(ranks), std::move(backend)),
        exchange_(options.compressor),
        outer_(options.parameter_sync) {
    outer_.plan(context_);
    mark_dense_tensors();
    context_.plan_sums(TrustRatio::sums_per_segment);
    factors_ = context_.memory.template plan<factors_type>("trust ratios", context_.tensors.segments().size());
    exchange_.plan(context_, sparsifier_of(options_.compressor),
                   {.columns = passes::form::packs::count,
                    .least_floats = least_averaging_buffer(context_.tensors),
                    .beta3 = options_.beta3});
    clip_.plan(context_, options_);
    byte_collectives called = byte_collectives_of<Compressor>;
    called.of_codes = called.of_codes || outer_step_type::sends_codes;
    context_.allocate(consistency(), called);
    outer_.start(context_);
    context_.compute_constant_trust_ratios(options_.trust_ratio, factors_);
    context_.enter_phase("sparse");
    exchange_.start(context_);
  }

  bool replicas_may_differ() const noexcept override { return true; }
  void average() override {
    is_averaging_ = true;
    average_parameters(context_, exchange_.buffer(context_));
    is_averaging_ = false;
  }

  // Replicas are equal before step 1, and in the step after a successful average of this run: a loaded state may come from
  // another interval. With differences they are equal until these are first exchanged.
  bool replicas_differ() override {
    const auto after_averaging = [this, first = context_.first_taken()](std::uint64_t t) {
      return !outer_step_type::sends_codes && t - 1 > first && !is_averaging_ && options_.local_steps > 0 &&
             interval()(t - 1);
    };
    if (outer_.needs_anchor(context_)) return false;
    return context_.ranks.size() > 1 &&
           context_.holds_at_next_step([&](std::uint64_t t) { return t > 1 && !after_averaging(t); }, "");
  }

  statistics report(bool with_norms) override {
    statistics all = context_.report();
    if (with_norms) {
      all.norm = norms_of(context_, any_view_of(view()));
      all.parameter_drift = outer_.drift(context_);
      report_directions<TrustRatio, living_variance>(context_, view(), options_, {}, all);
    }
    return all;
  }

  Compressor& compressor() noexcept { return options_.compressor; }

 private:
  using context_type = optimizer_context<Backend>;
  using passes = slamb_passes<TrustRatio>;
  using exchange_type = sparse_exchange<Compressor, ErrorFeedback, context_type>;
  using outer_step_type = outer_step_of<ParameterSync, context_type>;
  using factors_type = factors_of<TrustRatio>;

  // A step: docs/algorithms/slamb.md.
  void begin() override {
    takes_outer_step_ = takes_outer_step_now();
    outer_.begin(context_);
    context_.agreement.set_anchor(outer_.anchor(context_));
    context_.agreement.compare_anchor(context_);
    context_.template begin_step<TrustRatio>(options_, 1.0, {},
                                             exchange_.selection_kernel(context_, sparsifier_of(options_.compressor)));
    if constexpr (!exchange_type::selects_by_value) select();
  }

  // g_i clipped;  m_i ← β1 m_i + (1−β1) g_i;  m_i[M] ← mean over ranks: (1), (3)
  bool exchange(const gradient_bucket& bucket) override {
    if (!bucket.is_last && !can_exchange_early(bucket)) return false;
    clip_.clip(context_);
    if constexpr (exchange_type::selects_by_value) select();
    exchange_.send(typename passes::form{update(), unsent_rate()}, context_, view(), bucket.tiles, bucket.is_last,
                   context_.sums());
    return true;
  }

  // R(M), R(¬M): (11) … (15);  v, p ← …: (2), (4) … (8). Every H steps parameters are exchanged: (9), or (19) … (21)
  void finish() override {
    if (!context_.is_skipped_on_host()) {
      const float received_scale = exchange_.scale(context_);  // makes the sum a mean
      if constexpr (passes::needs_norms) {
        exchange_.sum(typename passes::sum{update(), received_scale}, context_);
        context_.template finish_sums<TrustRatio::sums_per_segment>(
            0, context_.tensors.segments().size(), context_.trust_ratios_from_sums(options_.trust_ratio, factors_));
      }
      exchange_.receive(typename passes::apply{update(), received_scale}, context_, view());
    }
    exchange_.compare_received(context_);
    if (context_.end_step() && takes_outer_step_) take_outer_step();
  }

  void select() {
    exchange_.select(typename passes::choose{update()}, context_, sparsifier_of(options_.compressor), view());
  }

  // Clipping needs all gradients.
  bool can_exchange_early(const gradient_bucket& bucket) const {
    return !clip_.is_active() && exchange_.can_send_early(context_, bucket.tiles);
  }

  // Not after a step that was skipped.
  void take_outer_step() {
    is_averaging_ = true;
    outer_.take(context_, exchange_.buffer(context_), context_.was_skipped());
    is_averaging_ = false;
  }

  // True for the steps after which parameters are exchanged; for H > 0.
  every interval() const noexcept { return {static_cast<std::uint64_t>(options_.local_steps)}; }

  bool takes_outer_step_now() {
    if (options_.local_steps <= 1) return options_.local_steps == 1;
    return context_.holds_at_next_step(interval(),
                                       "only some steps exchange the parameters; set local_steps = 0, and call "
                                       "synchronize_parameters() yourself");
  }

  float unsent_rate() const noexcept { return 1.0F / std::sqrt(static_cast<float>(context_.ranks.size())); }
  adam_update<TrustRatio> update() const { return {context_.tables(factors_), options_.trust_ratio}; }

  consistency_check consistency() const {
    consistency_check all = consistency_of(recipe_name, options_, context_.tensors.segments().size());
    all.add("beta3", options_.beta3);
    all.add("local_steps", static_cast<double>(options_.local_steps));
    describe_parameter_sync(all);
    all.add("dense_below", static_cast<double>(options_.dense_below));
    return all;
  }

  // A ParameterSync need not describe its quantizers.
  void describe_parameter_sync(consistency_check& all) const {
    const ParameterSync& its = options_.parameter_sync;
    if constexpr (!requires { its.describe(all); } && capability::sends_differences<ParameterSync>) {
      describe_policy(its.quantizer, all);
      describe_policy(its.mean_quantizer, all);
    } else {
      describe_policy(its, all);
    }
  }

  // Marks the tensors that are always exchanged dense.
  void mark_dense_tensors() {
    for (segment& s : context_.tensors.segments())
      s.dense = is_sent_dense(s.whole_size, s.one_dimensional, !s.dense, options_.dense_below);
  }

  state_kind kind() const noexcept override { return kind_of<slamb_recipe>(); }
  void visit_state(const state_visitor& part) override {
    base::visit_state(part);
    exchange_.visit_state(context_, part);
    outer_.visit_state(context_, part);
  }
  void on_averaged() override { outer_.on_averaged(context_); }
  void on_broadcast() override {
    is_averaging_ = false;
    outer_.on_broadcast(context_);
  }
  void on_state_loaded(const restore_options& options) override {
    is_averaging_ = false;
    outer_.on_state_loaded(options.from_other_ranks);
    context_.start_in_phase("sparse");
  }

  exchange_type exchange_;
  outer_step_type outer_;
  own_gradient_clip clip_;
  region<factors_type> factors_;
  bool takes_outer_step_ = false;  // after the current step
  bool is_averaging_ = false;      // also after an exchange of parameters that has failed
};

/// The recipe of these options on a Backend: declared for plans.
template <class Compressor, class ErrorFeedback, class TrustRatio, class ParameterSync, class Backend>
slamb_recipe<Compressor, ErrorFeedback, TrustRatio, Backend, ParameterSync> recipe_of(
    const slamb_options<Compressor, ErrorFeedback, TrustRatio, ParameterSync>& options, const Backend& on);

template <class ParameterSync>
concept names_a_quantizer = requires(const ParameterSync& s) {
  s.quantizer;
}
|| requires(const ParameterSync& s) { s.mean_quantizer; };

/// The TrustRatio that goes with a ParameterSync.
template <class ParameterSync>
using trust_ratio_for =
    rescaled_trust_ratio<capability::sends_differences<ParameterSync> ? rescaling::mean_step : rescaling::product>;

inline namespace SLAMB_SIMD_NAMESPACE {

/// The policies of `slamb` and `slamb_by_differences`.
template <class DefaultCompressor, class DefaultSync, class... Policies>
struct slamb_policies {
  using own_roles = roles<compressor_role, error_feedback_role, trust_ratio_role, parameter_sync_role,
                          communicator_role, backend_role>;
  static_assert((is_policy<Policies, own_roles>::value && ...));

  using sync_type = policy_of<parameter_sync_role, DefaultSync, Policies...>;
  static_assert(capability::sends_differences<sync_type> || !names_a_quantizer<sync_type>,
                "slamb: a ParameterSync with a quantizer must have two: the members quantizer, of the differences, and "
                "mean_quantizer, of their mean. Without both, slamb would average the parameters in floats");
  using recipe_type = slamb_recipe<policy_of<compressor_role, DefaultCompressor, Policies...>,
                                   policy_of<error_feedback_role, local_momentum, Policies...>,
                                   policy_of<trust_ratio_role, trust_ratio_for<sync_type>, Policies...>,
                                   policy_of<backend_role, host_backend, Policies...>, sync_type>;
  using communicator_type = policy_of<communicator_role, typename recipe_type::ranks_type, Policies...>;
};

}  // namespace SLAMB_SIMD_NAMESPACE
}  // namespace detail

inline namespace SLAMB_SIMD_NAMESPACE {

/// Exchanges the selected part M of the momentum. Gradients, variances and the unsent momentum stay local. There is no warm-up
/// and no error buffer.
///
///     m_i ← β1 m_i + (1−β1) g_i        v_i ← β2 v_i + (1−β2) g_i²
///     m_i[M] ← mean over ranks of m_i[M]
///     u = m̂/(√v̂ + ε) + λ p            p_j ← p_j − γ scale(norms of M, norms of ¬M, β3^age_j) u_j
///     every H steps: p ← mean of p over ranks, or as the ParameterSync says
///
/// *Memory*: 8 bytes of state a parameter (9 or 10 if the compressor does not compute ages) and 12 k of payload.
/// *Cost*: 44 + 28 k bytes of memory traffic a parameter. On the wire: one all_reduce of the selected elements a step,
/// and of the parameters every H steps, in pieces that reuse the payload's memory: about 1/(3k) for large tensors.
/// *Determinism*: the same bits from run to run. Equal on all ranks: the exchanged momentum after each step (with a chain, except
/// for each rank's own compression error), and the parameters after each averaging.
/// *Reference*: SLAMB, ICML 2023, PMLR 202:38801, algorithm 1. Deviations: masks and ages are functions of (index, t); overflowed
/// steps are skipped by all ranks; random numbers come from the library's generator only.
///
/// The defaults are the paper's policies and options. For small data sets the paper uses H = 50. Fix k and tune β3.
///
/// @tparam Policies  in any order, each if it differs from its default: a Compressor (random_k<>), which is a sparsifier or a chain;
///                   an ErrorFeedback (local_momentum); a ParameterSync, which decides how the ranks' parameters are kept together
///                   (sync::whole_average); a TrustRatio (rescaled_trust_ratio<>, and of the mean step if the ParameterSync
///                   exchanges differences); a Communicator (the one that the constructor is given); and a Backend (host_backend)
template <class... Policies>
class slamb : public detail::optimizer_of<detail::slamb_policies<random_k<>, sync::whole_average, Policies...>> {
 public:
  using slamb::optimizer_over::optimizer_over;
};

}  // namespace SLAMB_SIMD_NAMESPACE
}  // namespace slamb
