// Storage of m and v in fewer bits, for `precision::mixed`.
#pragma once

#include "slamb/backend/precision.hpp"
#include "slamb/detail/pass/pass.hpp"

namespace slamb::precision {

/// m and v are floats.
///
/// *Memory*: 8 bytes a parameter.
using float_moments = storage<>;

/// m is stored as bfloat16, rounded by chance, so that it is right on average; v as float.
///
/// *Memory*: 6 bytes a parameter. *Cost*: 4 bytes of memory traffic a parameter less in passes that read and write m.
struct bfloat16_momentum : storage<stored_as<detail::array::momentum, as_bfloat16>> {};

/// m and v are stored in eight bits, rounded by chance. Blocks of 256 elements share a scale. A value that is not finite makes
/// all values of its block not finite.
///
/// *Memory*: 2 bytes a parameter, and 256 for the scales of each tile, which has up to 8192 elements of a tensor: 1/32 a parameter
/// of large tensors.
/// *Cost*: 12 bytes of memory traffic a parameter less in passes that read and write m and v.
/// *Reference*: arXiv 2110.02861; docs/algorithms/precision.md, "Moments in fewer bits".
struct eight_bit_moments
    : storage<stored_as<detail::array::momentum, as_eight_bits>, stored_as<detail::array::variance, as_eight_bits>> {};

}  // namespace slamb::precision
