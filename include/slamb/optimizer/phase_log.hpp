// The phases that a training has gone through, and what each has sent.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "slamb/core/statistics.hpp"

namespace slamb {

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

  /// Adds them to `all`, whose traffic is known.
  void report(statistics& all) const {
    all.phase = phases_.back().name;
    all.phases = phases_;
    for (std::size_t i = 0; i < phases_.size(); ++i)
      all.phases[i].traffic = (i + 1 < phases_.size() ? phases_[i + 1].traffic : all.traffic) - phases_[i].traffic;
  }

 private:
  std::vector<phase_statistics> phases_;  // traffic: of all steps before the phase
};

}  // namespace slamb
