// What an optimizer can say of itself: steps, traffic, norms, memory.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace slamb {

/// The kinds of collectives, as traffic is counted by.
enum class collective { all_reduce, all_gather, all_to_all, broadcast };

/// Traffic of one rank: collectives called, elements and bytes handed to them, bytes put on the wire.
struct traffic {
  std::uint64_t rounds = 0;         ///< collectives
  std::uint64_t elements = 0;       ///< of the payloads
  std::uint64_t payload_bytes = 0;  ///< of the payloads
  std::uint64_t sent_bytes = 0;     ///< `bytes_sent_by` summed over the rounds

  /// Bytes that one rank sends for a collective over `bytes` of payload among `world` ranks, by the bandwidth-optimal
  /// algorithm: all_reduce 2(N−1)/N of its vector, all_gather and all_to_all (N−1)/N of the whole, broadcast (N−1)/N on
  /// average over ranks. `bytes` is the vector (all_reduce, broadcast), the gathered whole or the sent whole.
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

/// What `statistics()` returns.
struct statistics {
  /// L2 norms over all tensors, in double precision.
  struct norms_type {
    double parameters = 0.0;  ///< ‖p‖
    double momentum = 0.0;    ///< ‖m‖, of this rank's own momentum
    double variance = 0.0;    ///< ‖v‖
  };

  /// One phase of an algorithm, and what this rank has sent in it.
  struct phase_type {
    std::string name;              ///< "dense", "sparse", "warm-up", "compressed", …
    std::uint64_t first_step = 1;  ///< t of its first step
    traffic_counts traffic;        ///< of its steps
  };

  /// What compression did to this rank's signal with its error, x, of which x̂ was sent, in the step that was measured: L2 norms over the
  /// tensors of a group.
  struct compression_type {
    double signal = 0.0;  ///< ‖x‖
    double error = 0.0;   ///< ‖x − x̂‖

    double relative() const noexcept { return signal > 0.0 ? error / signal : 0.0; }
  };

  /// How a warm-up ended.
  struct warm_up_type {
    std::uint64_t ended_after = 0;  ///< its last step; 0: it goes on
    double variance_ratio = 0.0;    ///< ‖v̂_t‖₁/‖v̂_{t−Δ}‖₁ when it was last looked at; 0: it was not
  };

  /// What `choose` has found on these ranks and this network, and what it has kept. Seconds are the same on all ranks.
  struct choice_type {
    bool is_compressed = false;        ///< the compressed optimizer was kept
    double dense_seconds = 0.0;        ///< of a mean step of a training, all tensors in it; 0: nothing was tried
    double compressed_seconds = 0.0;   ///< likewise
    std::uint64_t trial_steps = 0;     ///< of each optimizer that were timed
    std::uint64_t trial_elements = 0;  ///< of the scratch tensors that they were taken on
  };

  std::uint64_t step = 0;           ///< t: steps taken, without those skipped
  std::uint64_t skipped_steps = 0;  ///< steps that all ranks skipped because a gradient was not finite
  std::uint64_t local_skips = 0;    ///< gradients that this rank alone left out, in steps without an exchange
  /// Ranks have been seen to differ: no step is taken until `step` has said in what. On the host it says so in the same step.
  bool has_diverged = false;
  /// ‖g‖ over all tensors of the mean gradient of the last step that was taken, before it was clipped: the same on all ranks.
  /// Where gradients are clipped, by max_gradient_norm of `basic_lamb`, which needs it; else, and before a first step since
  /// construction or load_state, there is none.
  std::optional<double> gradient_norm{};
  std::string phase{};       ///< of the algorithm: "dense", "sparse", …
  traffic_counts traffic{};  ///< what this rank's steps have sent
  /// What has been added to these payloads for ranks to compare, not counted in `traffic`: a header of 64 bytes in front of each sum
  /// of a step. `rounds` are the sums of headers alone, in first steps.
  slamb::traffic comparisons{};
  std::vector<phase_type> phases{};    ///< the same by phase, in the order of time
  warm_up_type warm_up{};              ///< of algorithms that have one
  choice_type chosen{};                ///< of optimizers that `choose` has made
  norms_type norm{};                   ///< zero unless asked for
  std::vector<double> worker_error{};  ///< [groups] ‖e‖ of this rank; empty unless asked for, or if no error is kept
  std::vector<compression_type> compression{};  ///< [groups] of the step that was last measured; empty if none was
};

/// What `memory()` returns: the optimizer's one allocation, by purpose.
struct memory_report {
  /// One purpose that memory is held for.
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

/// The phases so far; the last is under way.
class phase_log {
 public:
  /// Room for the few that come later: they begin in a step, which should allocate nothing.
  phase_log() { phases_.reserve(4); }

  /// Says that the steps from `step` on belong to another phase, before which this had been sent.
  void enter(std::string_view name, std::uint64_t step, const traffic_counts& sent) {
    phases_.push_back({std::string(name), step, sent});
  }
  /// The same, in place of all phases so far.
  void restart(std::string_view name, std::uint64_t step, const traffic_counts& sent) {
    phases_.clear();
    enter(name, step, sent);
  }

  /// Of the phase under way.
  const std::string& name() const noexcept { return phases_.back().name; }

  /// Adds them to `all`, whose traffic is known.
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
