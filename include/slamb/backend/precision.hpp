// Parameters and gradients of sixteen bits: a Backend over another, which says in which types arrays are stored.
#pragma once

#include <cstdint>
#include <type_traits>

#include "slamb/backend/host/host_backend.hpp"
#include "slamb/core/concepts.hpp"
#include "slamb/detail/pass/precision.hpp"

namespace slamb::precision {

/// Parameters of sixteen bits have a master copy in float, which steps read and update. After each update the parameters are the
/// copy, rounded to nearest, ties to even. The copy is the optimizer's, or the caller's: `parameter::master`.
///
/// *Memory*: 4 bytes a parameter of sixteen bits.
/// *Cost*: 2 bytes of memory traffic a parameter for each pass that writes parameters.
struct master_copies {
  using precision_type = detail::mixed_precision<detail::no_draws>;
};

/// Parameters of sixteen bits have no copy. Each update is rounded up or down by chance, so that the mean is right: steps that
/// are much smaller than a unit in the last place still move the parameters. A parameter with `parameter::master` has that copy.
///
/// *Determinism*: the draws depend on seed, step, tensor and element alone. They are equal on all ranks and backends, and for
/// every number of threads.
struct stochastic_rounding {
  using precision_type = detail::mixed_precision<detail::rounding_draws>;

  std::uint64_t seed = 0;  ///< equal on all ranks
};

/// A Backend whose optimizers take float32, bfloat16 and float16 for the parameters and for the gradients of each tensor, in any
/// mixture. Arithmetic and state stay in float.
///
///     using backend = slamb::precision::mixed<slamb::host_backend>;
///     slamb::adamw<slamb::self_communicator, backend> optimizer(parameters);
///
/// @tparam Backend   the backend that does the work; its settings are the first member: `{{.threads = 4}}`
/// @tparam Rounding  master_copies or stochastic_rounding
template <class Backend = host_backend, class Rounding = master_copies>
struct mixed : Backend {
  using precision = typename Rounding::precision_type;

  Rounding rounding{};
};

static_assert(backend<mixed<>> && backend<mixed<host_backend, stochastic_rounding>>);

}  // namespace slamb::precision
