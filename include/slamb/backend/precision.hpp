// Parameters and gradients of sixteen bits: a Backend over another, which says in which types arrays are stored.
#pragma once

#include <cstdint>

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

  std::uint64_t seed = 0;  ///< of the draws by which arrays of the state are rounded; equal on all ranks
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

/// How the arrays of an optimizer's state are stored: those of the list as it says, all others as floats.
///
///     // Of an optimizer of your own: `fast` takes 2 bytes a parameter, `slow` takes 1 and the scales of blocks.
///     using fewer_bits = slamb::precision::storage<slamb::precision::stored_as<fast, slamb::precision::as_bfloat16>,
///                                                  slamb::precision::stored_as<slow, slamb::precision::as_eight_bits>>;
///     using backend = slamb::precision::mixed<slamb::host_backend, slamb::precision::master_copies, fewer_bits>;
///
/// Such lists have names in slamb/optimizer/moments.hpp. Numbers are rounded by chance. Their draws depend on an array's place in the
/// list: a training that resumes with another order is rounded differently.
/// @tparam Stored  stored_as<Array, Storage>, each array once; Storage is as_floats, as_bfloat16 or as_eight_bits. Arrays that an
///                 optimizer does not have do nothing
template <class... Stored>
using storage = detail::storage_list<Stored...>;
using detail::as_bfloat16;
using detail::as_eight_bits;
using detail::as_floats;
using detail::stored_as;

/// A Backend whose optimizers take float32, bfloat16 and float16 for the parameters and for the gradients of each tensor, in any
/// mixture, and which may store arrays of the state in fewer bits. Arithmetic and all other state stay in float.
///
///     using backend = slamb::precision::mixed<slamb::host_backend>;
///     slamb::adamw<slamb::self_communicator, backend> optimizer(parameters);
///
/// @tparam Backend   the backend that does the work; its settings are the first member: `{{.threads = 4}}`
/// @tparam Rounding  master_copies or stochastic_rounding
/// @tparam Storage   of the state: a `storage`, or one of slamb/optimizer/moments.hpp
template <class Backend = host_backend, class Rounding = master_copies, class Storage = storage<>>
struct mixed : Backend {
  static_assert(
      requires { typename Storage::list; },
      "slamb: the third argument of precision::mixed must be a list precision::storage<stored_as<Array, "
      "Storage>…>, or one of slamb/optimizer/moments.hpp, such as eight_bit_moments");
  using precision = detail::mixed_precision<Rounding::rounds_by_chance, typename detail::list_of<Storage>::type>;

  Rounding rounding{};
};

static_assert(backend<mixed<>> && backend<mixed<host_backend, stochastic_rounding>>);

}  // namespace slamb::precision
