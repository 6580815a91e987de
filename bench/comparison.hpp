// Registers the benchmarks of what ranks compare.
#pragma once

#include "shapes.hpp"

namespace bench {

/// Registers comparison/parameters/<shapes>, the pass by which ranks compare their parameters, and comparison/header/<shapes>: what
/// a step does for the header of its sum, without memory traffic that is worth counting.
///
/// @param threads  of the pass, the copy and the triad
void register_comparisons(const shape_set& shapes, unsigned threads);

}  // namespace bench
