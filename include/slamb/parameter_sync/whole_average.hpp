// SLAMB's ParameterSync of the paper: the ranks' parameters are replaced by their mean.
#pragma once

#include <cstdint>

#include "slamb/core/concepts.hpp"

namespace slamb::sync {

/// Replaces the parameters by their mean over ranks, in floats. Between exchanges each rank's parameters move by its own momentum.
///
/// *Cost*: 4 bytes a parameter on the wire, by all_reduce, in each exchange. No state.
/// *Determinism*: equal bits on all ranks after each exchange.
/// *Reference*: SLAMB, ICML 2023, PMLR 202:38801, algorithm 1.
struct whole_average {
  static constexpr std::int64_t default_local_steps = 100;
};

static_assert(parameter_sync<whole_average>);

}  // namespace slamb::sync
