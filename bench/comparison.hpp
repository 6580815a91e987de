// Registers the benchmarks of comparisons between ranks.
#pragma once

#include "shapes.hpp"

namespace bench {

/// Registers comparison/parameters/<shapes>, the pass by which ranks compare their parameters, and comparison/header/<shapes>:
/// the work of a step for the header of its sum, with negligible memory traffic.
///
/// @param threads  for the pass, the copy and the triad
void register_comparisons(const shape_set& shapes, unsigned threads);

}  // namespace bench
