// The reports of an optimizer: steps, traffic, norms, memory.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace slamb {

/// The kinds of collective calls.
enum class collective { all_reduce, all_gather, all_to_all, broadcast };

/// Traffic of one rank: collective calls, elements and bytes of their payloads, and sent bytes.
struct traffic {
  std::uint64_t rounds = 0;         ///< collectives
  std::uint64_t elements = 0;       ///< elements of the payloads
  std::uint64_t payload_bytes = 0;  ///< bytes of the payloads
  std::uint64_t sent_bytes = 0;     ///< bytes put on the wire: `bytes_sent_by` of each call

  /// Bytes that one rank sends for a collective over `bytes` of payload among `world` ranks, by the bandwidth-optimal algorithm:
  /// all_reduce 2(N−1)/N of its vector, all_gather (N−1)/N of the gathered bytes, all_to_all (N−1)/N of the sent bytes, broadcast
  /// (N−1)/N of its vector on average over ranks. `bytes` is the vector, the gathered or the sent bytes.
  static constexpr std::uint64_t bytes_sent_by(collective kind, std::uint64_t bytes, int world) noexcept {
    const auto ranks = static_cast<std::uint64_t>(world);
    const std::uint64_t rounds_of_payload = kind == collective::all_reduce ? 2 : 1;
    return rounds_of_payload * (bytes / ranks * (ranks - 1) + bytes % ranks * (ranks - 1) / ranks);
  }

  friend constexpr traffic operator+(const traffic& a, const traffic& b) noexcept {
    return {a.rounds + b.rounds, a.elements + b.elements, a.payload_bytes + b.payload_bytes,
            a.sent_bytes + b.sent_bytes};
  }
  friend constexpr traffic operator-(const traffic& a, const traffic& b) noexcept {
    return {a.rounds - b.rounds, a.elements - b.elements, a.payload_bytes - b.payload_bytes,
            a.sent_bytes - b.sent_bytes};
  }
  friend constexpr bool operator==(const traffic&, const traffic&) = default;
};

/// Traffic by kind of collective.
class traffic_counts {
 public:
  constexpr traffic& operator[](collective kind) noexcept { return kinds_[static_cast<std::size_t>(kind)]; }
  constexpr const traffic& operator[](collective kind) const noexcept { return kinds_[static_cast<std::size_t>(kind)]; }
  constexpr traffic total() const noexcept { return kinds_[0] + kinds_[1] + kinds_[2] + kinds_[3]; }

  /// Counts a collective among `world` ranks over a payload of `elements` of `element_bytes` each.
  constexpr void record(collective kind, std::uint64_t elements, std::uint64_t element_bytes, int world) noexcept {
    const std::uint64_t bytes = elements * element_bytes;
    (*this)[kind] = (*this)[kind] + traffic{1, elements, bytes, traffic::bytes_sent_by(kind, bytes, world)};
  }

  friend constexpr traffic_counts operator-(traffic_counts a, const traffic_counts& b) noexcept {
    for (std::size_t i = 0; i < a.kinds_.size(); ++i) a.kinds_[i] = a.kinds_[i] - b.kinds_[i];
    return a;
  }
  friend constexpr bool operator==(const traffic_counts&, const traffic_counts&) = default;

 private:
  std::array<traffic, 4> kinds_{};
};

/// The result of `statistics()`.
struct statistics {
  /// L2 norms over all tensors, in double precision; with shards, of this rank's.
  struct norms_type {
    double parameters = 0.0;  ///< ‖p‖
    double momentum = 0.0;    ///< ‖m‖, of this rank's own momentum; with sync::partition, of its part
    double variance = 0.0;    ///< ‖v‖; likewise
  };

  /// A phase of the algorithm, and this rank's traffic in it.
  struct phase_type {
    std::string name;              ///< "dense", "sparse", "warm-up", "compressed", …
    std::uint64_t first_step = 1;  ///< t of its first step
    traffic_counts traffic;        ///< traffic of its steps
  };

  /// Compression error of one measured step, per parameter group. x is the signal after error feedback, x̂ the value of its
  /// codes. Both norms are L2, over the tensors of the group.
  struct compression_type {
    double signal = 0.0;  ///< ‖x‖
    double error = 0.0;   ///< ‖x − x̂‖

    double relative() const noexcept { return signal > 0.0 ? error / signal : 0.0; }
  };

  /// The end of a warm-up.
  struct warm_up_type {
    std::uint64_t ended_after = 0;  ///< its last step; 0: it has not ended
    double variance_ratio = 0.0;    ///< ‖v̂_t‖₁/‖v̂_{t−Δ}‖₁ at the last comparison; 0: none yet
  };

  /// The result of `choose` on these ranks and this network. Seconds are equal on all ranks.
  struct choice_type {
    bool is_compressed = false;        ///< the compressed optimizer was kept
    double dense_seconds = 0.0;        ///< time of a mean step of a training with all tensors; 0: nothing was tried
    double compressed_seconds = 0.0;   ///< likewise
    std::uint64_t trial_steps = 0;     ///< timed steps of each optimizer
    std::uint64_t trial_elements = 0;  ///< elements of the synthetic tensors
  };

  std::uint64_t step = 0;           ///< t: steps taken, without skipped steps
  std::uint64_t skipped_steps = 0;  ///< steps that all ranks skipped because a gradient was not finite
  /// Exchanges of the parameters that no rank made, though the step was taken, because a difference of some rank, or the scale of its
  /// block, was not finite.
  std::uint64_t skipped_exchanges = 0;
  std::uint64_t local_skips = 0;  ///< local steps without this rank's gradient, which was not finite
  /// Ranks have diverged: all steps are skipped until `step` throws the error that names the difference. On the host the same
  /// step throws it.
  bool has_diverged = false;
  /// The norm by which the last step taken has clipped, over all tensors, before clipping: ‖ḡ‖ or √(mean ‖g_i‖²), equal on all
  /// ranks, or ‖g_i‖ with clip_locally. Empty without max_gradient_norm, and
  /// before the first step after construction or load_state.
  std::optional<double> gradient_norm{};
  std::string phase{};       ///< phase of the algorithm: "dense", "sparse", …
  traffic_counts traffic{};  ///< traffic of this rank's steps
  /// Additional traffic by which ranks compare themselves, not counted in `traffic`: a header of 64 bytes in front of each sum of
  /// a step; within a shard group, what the first comparison and those of equal parts send. `rounds` counts collectives for
  /// comparisons alone.
  slamb::traffic comparisons{};
  /// Traffic of this rank within its shard group, not counted in `traffic`.
  slamb::traffic in_shards{};
  std::vector<phase_type> phases{};  ///< traffic by phase, in order of time
  warm_up_type warm_up{};            ///< end of the warm-up, for optimizers with one
  choice_type chosen{};              ///< the choice, for optimizers made by `choose`
  norms_type norm{};                 ///< zero unless `with_norms`
  /// Elements of this rank whose direction is at the bound of updates after the last step. Many of them say that m and v are not of
  /// the same gradients. 0 without `with_norms`, and for optimizers that have no option `update_bound`.
  std::uint64_t bounded_elements = 0;
  /// Elements whose variance began with a gradient after it was frozen for the others, or between two refreshes. 0 without
  /// `with_norms`, for optimizers that do not freeze it, and with a variance in eight bits.
  std::uint64_t late_elements = 0;
  std::vector<double>
      worker_error{};  ///< [groups] ‖e‖ of this rank's worker error; empty without `with_norms`, or if no error is kept
  /// [groups] ‖p_i − ref‖: how far this rank's parameters are from the common point, with a ParameterSync that has one. With
  /// sync::partition ‖P − p‖: how far the exact parameters of this rank's part are from those of all ranks. Empty without
  /// `with_norms`, with one rank, and where the next step sets that point, or P.
  std::vector<double> parameter_drift{};
  std::vector<compression_type> compression{};  ///< [groups] errors of the last measured step; empty if none
};

/// The result of `memory()`: the optimizer's one allocation, by purpose.
struct memory_report {
  /// Memory for one purpose.
  struct use {
    std::string purpose;
    std::size_t bytes = 0;
    double bytes_per_parameter = 0.0;
  };

  std::vector<use> uses;
  std::size_t total_bytes = 0;
  double bytes_per_parameter = 0.0;
};

namespace detail {

/// The phases so far; the last is the current one.
class phase_log {
 public:
  /// Reserves memory for later phases, because they begin in steps, which allocate nothing.
  phase_log() { phases_.reserve(4); }

  /// Starts a phase with step `step`. `sent` is the traffic before it.
  void enter(std::string_view name, std::uint64_t step, const traffic_counts& sent) {
    phases_.push_back({std::string(name), step, sent});
  }
  /// Replaces all phases so far.
  void restart(std::string_view name, std::uint64_t step, const traffic_counts& sent) {
    phases_.clear();
    enter(name, step, sent);
  }

  /// The name of the current phase.
  const std::string& name() const noexcept { return phases_.back().name; }

  /// Writes the phases to `all`, which has the total traffic.
  void report(statistics& all) const {
    all.phase = phases_.back().name;
    all.phases = phases_;
    for (std::size_t i = 0; i < phases_.size(); ++i)
      all.phases[i].traffic = (i + 1 < phases_.size() ? phases_[i + 1].traffic : all.traffic) - phases_[i].traffic;
  }

 private:
  std::vector<statistics::phase_type> phases_;  // traffic: of all steps before the phase
};

}  // namespace detail

}  // namespace slamb
