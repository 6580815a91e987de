// SLAMB: ranks exchange a part of the momentum, and each element moves at a rate that knows how old its exchange is.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "slamb/backend/host/host_backend.hpp"
#include "slamb/communicator/self_communicator.hpp"
#include "slamb/compressor/random_k.hpp"
#include "slamb/core/concepts.hpp"
#include "slamb/error_feedback/local_momentum.hpp"
#include "slamb/exchange/summable.hpp"
#include "slamb/optimizer/foundation.hpp"
#include "slamb/optimizer/settings.hpp"
#include "slamb/optimizer/slamb_passes.hpp"
#include "slamb/trust_ratio/rescaled_trust_ratio.hpp"

namespace slamb {

/// Settings of `basic_slamb`.
template <class Compressor, class ErrorFeedback, class TrustRatio>
struct slamb_options {
  double beta1 = 0.9;                ///< in [0, 1)
  double beta2 = 0.999;              ///< in [0, 1)
  double beta3 = 0.93;               ///< in [0, 1]: an element that was exchanged a steps ago has freshness β3^a
  double epsilon = 1e-6;             ///< > 0
  double weight_decay = 0.01;        ///< λ ≥ 0
  bool bias_correction = true;       ///< false: m̂ = m, v̂ = v
  std::int64_t local_steps = 100;    ///< H ≥ 1: parameters are averaged at steps 1, 1 + H, 1 + 2H, …
  std::uint64_t dense_below = 9000;  ///< smaller tensors, and those of one dimension, are always exchanged whole
  Compressor compressor{};
  ErrorFeedback error_feedback{};
  TrustRatio trust_ratio{};
};

/// Exchanges the selected part M of the momentum. Gradients and variances stay local, and so does the momentum that is
/// not sent: there is no warm-up and no error buffer.
///
///     m_i ← β1 m_i + (1−β1) g_i        v_i ← β2 v_i + (1−β2) g_i²
///     m_i[M] ← mean over ranks of m_i[M]
///     u = m̂/(√v̂ + ε) + λ p            p_j ← p_j − γ scale(norms of M, norms of ¬M, β3^age_j) u_j
///     every H steps: p ← mean of p over ranks
///
/// *Memory*: 8 bytes of state a parameter (9 if the compressor knows no ages) and 12 k of payload.
/// *Cost*: 44 + 28 k bytes of memory traffic a parameter. On the wire: one all_reduce of the selected elements a step,
/// and of the parameters every H steps, in pieces that reuse the payload's memory: about 1/(3k) for large tensors.
/// *Determinism*: the same bits from run to run; on all ranks, the exchanged momentum after each step and the
/// parameters after each averaging.
/// *Reference*: SLAMB, ICML 2023, PMLR 202:38801, algorithm 1. Deviations: masks and ages are functions of (index, t);
/// overflowed steps are skipped by all ranks; no generator but the library's own is touched.
template <compressor Compressor, error_feedback ErrorFeedback, trust_ratio TrustRatio, communicator Communicator,
          class Backend>
class basic_slamb {
  static_assert(
      !requires(const Compressor& c) { c.at(std::uint64_t{1}); } ||
          requires(const Compressor& c) { requires std::is_trivially_copyable_v<decltype(c.at(std::uint64_t{1}))>; },
      "slamb: the selection that a sparsifier's at(step) returns must be trivially copyable, so that it can travel "
      "to a device");
  static_assert(sparsifier<Compressor> && Compressor::payload_is_summable,
                "slamb: basic_slamb exchanges the momentum by a sum over ranks; it needs a Compressor that is a "
                "sparsifier with a summable payload: selection at(step) with selects(coordinate)");
  static_assert(ErrorFeedback::keeps_unsent,
                "slamb: basic_slamb keeps what is not sent in the local momentum; its ErrorFeedback must say "
                "keeps_unsent, as local_momentum does");
  static_assert(!ErrorFeedback::worker_state && !ErrorFeedback::server_state,
                "slamb: basic_slamb has no error buffers; its ErrorFeedback must ask for none, as local_momentum does");

 public:
  using options_type = slamb_options<Compressor, ErrorFeedback, TrustRatio>;

  /// @param parameters  the tensors; the spans must outlive the optimizer
  /// @throws std::invalid_argument naming what is wrong; disagreement_error, on every rank, if ranks are given
  ///         different tensors or settings; communicator_error
  explicit basic_slamb(std::span<const parameter> parameters, const options_type& options = {},
                       Communicator communicator = {}, Backend backend = {})
      : options_((validate(options), options)),
        base_(parameters, options.weight_decay, std::move(communicator), std::move(backend)) {
    const std::uint64_t payload = mark_dense_tensors();
    const std::vector<float> freshness = freshness_by_age();
    base_.plan_sums(TrustRatio::sums_per_segment);
    factors_ = base_.memory.template plan<factors_type>("trust ratios", base_.tensors.segments().size());
    tile_first_ = base_.memory.template plan<std::uint64_t>("payload", base_.tensors.tiles().size() + 1);
    freshness_ = base_.memory.template plan<float>("freshness by age", freshness.size());
    if constexpr (!has_age<selection_type>)
      age_ = base_.memory.template plan<age_type>("age", base_.tensors.state_elements());
    payload_ =
        base_.memory.template plan<float>("payload", std::max({payload * planes, base_.least_averaging_buffer()}));
    plane_ = payload;
    base_.allocate(facts());
    base_.executor.upload(std::span<const float>(freshness), base_.memory.view(freshness_));
  }

  /// One step with one learning rate.
  /// @throws std::invalid_argument for a rate that is negative or not finite; communicator_error: with all state as it
  ///         was, or, if the averaging of parameters failed, with the step taken and the parameters averaged in part
  ///         or not at all
  void step(double learning_rate) { step(std::span<const double>(&learning_rate, 1)); }

  /// One step with a learning rate for each group. *Stream*: synchronous on the host.
  void step(std::span<const double> rates_by_group) {
    base_.set_rates(rates_by_group);
    const std::uint64_t t = base_.step + 1;
    const selection_type selection = select_at(t);
    const std::span<float> sent = place_payload(selection);
    base_.set_scalars(scalars_at<TrustRatio>(t, options_, 1.0));
    const adam_update<TrustRatio> update{base_.tables(factors_), options_.trust_ratio};

    // m_i ← β1 m_i + (1−β1) g_i;  m_i[M] ← mean over ranks: docs/algorithms/slamb.md (1) … (3)
    const bool finite = base_.executor.run(form_payload<TrustRatio>{update}, base_.view(), payload(), selection,
                                           base_.all_tiles(), base_.sums());
    if (!all_reduce_unless(!finite, sent, base_.ranks, base_.executor)) return void(++base_.skipped_steps);

    // R(M), R(¬M): docs/algorithms/slamb.md (11) … (15)
    if constexpr (TrustRatio::sums_per_segment > 0)
      base_.executor.run_packed(sum_received<TrustRatio>{update, per_rank()}, base_.view(), payload(),
                                base_.all_tiles(), base_.sums());
    base_.find_factors(options_.trust_ratio, base_.memory.view(factors_), 0, base_.tensors.segments().size());

    // p ← p − γ scale u: docs/algorithms/slamb.md (8), (9)
    base_.executor.run(apply_received<TrustRatio>{update, per_rank()}, base_.view(), payload(), selection,
                       base_.all_tiles());
    base_.step = t;
    if ((t - 1) % static_cast<std::uint64_t>(options_.local_steps) == 0) synchronize_parameters();
  }

  /// p ← mean of p over ranks: before an evaluation or a save, for between averagings the ranks' parameters differ.
  /// Collective: every rank must call it.
  /// @throws communicator_error
  void synchronize_parameters() { base_.average_parameters(base_.memory.view(payload_)); }

  /// @param with_norms  also computes the norms, at the cost of one pass over the model; like `step`, by one thread at a
  ///                    time
  slamb::statistics statistics(bool with_norms = false) const { return base_.report("sparse", with_norms); }
  memory_report memory() const { return base_.memory.report(base_.tensors.elements()); }
  Communicator& communicator() noexcept { return base_.ranks.base(); }
  const Compressor& compressor() const noexcept { return options_.compressor; }
  /// For a compressor that takes something new at each step.
  Compressor& compressor() noexcept requires(requires(const Compressor& c) { c.require_ready(std::uint64_t{}); }) {
    return options_.compressor;
  }
  const options_type& options() const noexcept { return options_; }

  /// Points tensor number `tensor` at another gradient of the same size.
  void set_gradient(std::size_t tensor, const float* gradient) { base_.set_gradient(tensor, gradient); }

 private:
  using selection_type = decltype(std::declval<const Compressor&>().at(std::uint64_t{1}));
  using age_type = stored_age_t<selection_type>;
  using factors_type = factors_of<TrustRatio>;

  static constexpr std::uint64_t planes = TrustRatio::sums_per_segment > 0 ? 3 : 1;  // m, and v and p for the sums

  static void validate(const options_type& o) {
    validate_settings(o);
    detail::require_in(o.beta3 >= 0.0 && o.beta3 <= 1.0, "beta3", o.beta3, "in [0, 1]");
    detail::require_in(o.local_steps >= 1, "local_steps", static_cast<double>(o.local_steps), ">= 1");
  }

  agreement facts() const {
    agreement all = agreement_of("basic_slamb ", options_, base_.tensors.segments().size());
    all.add("beta3", options_.beta3);
    all.add("local_steps", static_cast<double>(options_.local_steps));
    all.add("dense_below", static_cast<double>(options_.dense_below));
    return all;
  }

  // Says which tensors are always exchanged whole; returns the largest payload.
  std::uint64_t mark_dense_tensors() {
    std::uint64_t payload = 1;
    for (segment& s : base_.tensors.segments()) {
      s.dense = s.dense || s.one_dimensional || s.size < options_.dense_below;
      if constexpr (requires(const Compressor& c) { c.largest_payload(s.size); })
        payload += s.dense ? s.size : options_.compressor.largest_payload(s.size);
      else
        payload += s.size;
    }
    return payload;
  }

  // β3^a for a = 0, 1, … until it no longer changes, at most 65536 of them.
  std::vector<float> freshness_by_age() const {
    std::vector<float> all{1.0F};
    while (all.size() < 65536 && all.back() > 0.0F && options_.beta3 < 1.0)
      all.push_back(static_cast<float>(std::pow(options_.beta3, static_cast<double>(all.size()))));
    return all;
  }

  selection_type select_at(std::uint64_t t) const {
    if constexpr (requires { options_.compressor.require_ready(std::uint64_t{}); })
      options_.compressor.require_ready(base_.tensors.elements());
    return options_.compressor.at(t);
  }

  payload_view payload() const noexcept {
    float* const first = base_.memory.view(payload_).data();
    return {.tile_first = base_.memory.view(tile_first_).data(),
            .momentum = first,
            .variance = planes > 1 ? first + plane_ : nullptr,
            .parameter = planes > 1 ? first + 2 * plane_ : nullptr,
            .freshness = {base_.memory.view(freshness_).data(), static_cast<std::uint32_t>(freshness_.count)},
            .age = base_.memory.view(age_).data()};
  }

  // Lays out the payload of this step. At least one element is sent, to carry the news of an overflow.
  std::span<float> place_payload(const selection_type& selection) {
    const std::uint64_t size = base_.executor.place_payload(base_.view(), selection, base_.memory.view(tile_first_));
    if (size > plane_)
      throw error("slamb: the compressor selected " + std::to_string(size) + " elements, but said that at most " +
                  std::to_string(plane_) + " are selected at any step");
    const std::span<float> sent = base_.memory.view(payload_).first(std::max<std::uint64_t>(size, 1));
    if (size == 0) base_.executor.write(sent.data(), 0.0F);
    return sent;
  }

  float per_rank() const noexcept { return 1.0F / static_cast<float>(base_.ranks.size()); }

  options_type options_;
  foundation<Communicator, Backend> base_;
  region<factors_type> factors_;
  region<std::uint64_t> tile_first_;
  region<float> freshness_;
  region<age_type> age_;
  region<float> payload_;
  std::uint64_t plane_ = 0;  // elements of one payload plane
};

/// SLAMB with the paper's policies and defaults. For small data sets the paper uses H = 50. Fix k and tune β3.
template <class Communicator = self_communicator, class Compressor = random_k<>,
          class TrustRatio = rescaled_trust_ratio<>, class Backend = host_backend>
using slamb = basic_slamb<Compressor, local_momentum, TrustRatio, Communicator, Backend>;

}  // namespace slamb
