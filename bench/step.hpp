// Registers the benchmarks of whole steps.
#pragma once

#include "shapes.hpp"

namespace bench {

/// Registers step/<optimizer>[/block:B]/<shapes> and raw_loop/adamw/<shapes>.
///
/// @param threads  for the optimizer, the raw loop, the copy and the triad
void register_steps(const shape_set& shapes, unsigned threads);

/// Registers step/<optimizer>/<type>[/stochastic][/moments:8]/<shapes>: a single rank whose parameters and gradients are bf16 or
/// fp16, with master copies or rounded by chance, and m and v floats or in eight bits.
void register_typed_steps(const shape_set& shapes, unsigned threads);

/// Registers step/<optimizer>[/block:B]/ranks:2/<shapes>: two ranks in one process, a thread each, and a model each.
void register_steps_of_two_ranks(const shape_set& shapes);

/// Registers step/<optimizer>[/…]/single_rank/<shapes> for the optimizers that exchange codes: one rank that encodes and decodes
/// as if there were others.
void register_one_bit_steps(const shape_set& shapes, unsigned threads);

/// Registers step/<optimizer>[/…]/ranks:2/<shapes> for the optimizers that exchange codes.
void register_one_bit_steps_of_two_ranks(const shape_set& shapes);

}  // namespace bench
