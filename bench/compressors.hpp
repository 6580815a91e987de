// Registers the benchmarks of compressors alone.
#pragma once

#include "shapes.hpp"

namespace bench {

/// Registers compressor/<quantizer>/encode/<shapes>, compressor/<quantizer>/decode/<shapes> and
/// compressor/top_k/choose/<shapes>.
///
/// @param threads  for the passes, the copy and the triad
void register_compressors(const shape_set& shapes, unsigned threads);

}  // namespace bench
