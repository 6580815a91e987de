// The settings of a thread_group, and the failures that tests inject into one.
#pragma once

#include <chrono>
#include <cstdint>

namespace slamb {

/// Settings of a thread_group.
struct thread_options {
  std::chrono::milliseconds timeout{30000};  ///< of the wait for peers in one collective; > 0
};

namespace detail {

/// A failure planned for one call of one rank, for tests.
struct thread_fault {
  enum class kind_type {
    throws,    ///< the rank's call throws communicator_error before it takes part; its peers fail at once
    stalls,    ///< the rank does not take part: it sleeps until the group has failed (its peers time out)
    corrupts,  ///< all bits of the first element it sends are set (a quiet NaN): every rank gets the same wrong sum
    corrupts_result,  ///< all bits of the first element of its result are set: ranks disagree
  };

  int rank = 0;
  std::uint64_t round = 0;  ///< the rank's collective call, counted from 0 since the group was made
  kind_type kind = kind_type::throws;
};

}  // namespace detail

}  // namespace slamb
