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
  static constexpr bool rounds_by_chance = false;

  std::uint64_t seed = 0;  ///< of the draws by which moments are rounded; equal on all ranks
};

/// Parameters of sixteen bits have no copy. Each update is rounded up or down by chance, so that the mean is right: steps that
/// are much smaller than a unit in the last place still move the parameters. A parameter with `parameter::master` has that copy.
///
/// *Determinism*: the draws depend on seed, step, tensor and element alone. They are equal on all ranks and backends, and for
/// every number of threads.
struct stochastic_rounding {
  static constexpr bool rounds_by_chance = true;

  std::uint64_t seed = 0;  ///< of all draws; equal on all ranks
};

/// m and v are floats.
///
/// *Memory*: 8 bytes a parameter.
struct float_moments {
  using momentum_storage = detail::as_floats;
  using variance_storage = detail::as_floats;
};

/// m is stored as bfloat16, rounded by chance, so that it is right on average; v as float.
///
/// *Memory*: 6 bytes a parameter. *Cost*: 4 bytes of memory traffic a parameter less in passes that read and write m.
struct bfloat16_momentum {
  using momentum_storage = detail::as_bfloat16;
  using variance_storage = detail::as_floats;
};

/// m and v are stored in eight bits, rounded by chance. Blocks of 256 elements share a scale. A value that is not finite makes
/// all values of its block not finite.
///
/// *Memory*: 2 bytes a parameter, and 256 for the scales of each tile, which has up to 8192 elements of a tensor: 1/32 a parameter
/// of large tensors.
/// *Cost*: 12 bytes of memory traffic a parameter less in passes that read and write m and v.
/// *Reference*: arXiv 2110.02861; docs/algorithms/precision.md, "Moments in fewer bits".
struct eight_bit_moments {
  using momentum_storage = detail::as_eight_bits<true>;
  using variance_storage = detail::as_eight_bits<false>;
};

/// A Backend whose optimizers take float32, bfloat16 and float16 for the parameters and for the gradients of each tensor, in any
/// mixture, and which may store m and v in fewer bits. Arithmetic and all other state stay in float.
///
///     using backend = slamb::precision::mixed<slamb::host_backend>;
///     slamb::adamw<slamb::self_communicator, backend> optimizer(parameters);
///
/// @tparam Backend   the backend that does the work; its settings are the first member: `{{.threads = 4}}`
/// @tparam Rounding  master_copies or stochastic_rounding
/// @tparam Moments   float_moments, bfloat16_momentum or eight_bit_moments
template <class Backend = host_backend, class Rounding = master_copies, class Moments = float_moments>
struct mixed : Backend {
  using precision = detail::mixed_precision<Rounding::rounds_by_chance, typename Moments::momentum_storage,
                                            typename Moments::variance_storage>;

  Rounding rounding{};
};

static_assert(backend<mixed<>> && backend<mixed<host_backend, stochastic_rounding, eight_bit_moments>>);

}  // namespace slamb::precision
