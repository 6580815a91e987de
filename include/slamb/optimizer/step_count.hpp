// How many steps have been taken, as far as that is known without waiting for a device.
#pragma once

#include <cstdint>

namespace slamb {

/// Between the steps that are known to have been taken and those that have been enqueued: some may have been skipped.
class step_count {
 public:
  void know(std::uint64_t taken) noexcept { least_ = most_ = taken; }
  /// One more has been enqueued, of which nothing is known.
  void add_unknown() noexcept { ++most_; }
  /// One more has been enqueued, and is taken.
  void add_taken() noexcept {
    ++least_;
    ++most_;
  }
  /// From now on steps may be taken, any number of times, of which nobody tells.
  void lose() noexcept { is_lost_ = true; }

  /// t of the step that is to be taken.
  /// @param look  says how many have been taken, and waits; called only where it is not known
  template <class Look>
  std::uint64_t next(const Look& look) {
    if (is_lost_ || least_ != most_) know(look());
    return least_ + 1;
  }

  /// Whether holds(t). Looks only where that depends on steps of which nothing is known.
  template <class Predicate, class Look>
  bool holds_at_next(const Predicate& holds, const Look& look) {
    constexpr std::uint64_t most_unknown = 4096;  // predicates are asked of each
    if (is_lost_ || most_ - least_ >= most_unknown) know(look());
    const bool first = holds(least_ + 1);
    for (std::uint64_t t = least_ + 2; t <= most_ + 1; ++t)
      if (holds(t) != first) return holds(next(look));
    return first;
  }

 private:
  std::uint64_t least_ = 0;
  std::uint64_t most_ = 0;
  bool is_lost_ = false;
};

}  // namespace slamb
