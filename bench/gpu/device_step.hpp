// The time of a step on the current GPU, of one rank or of several that share it.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "../shapes.hpp"
#include "copy.hpp"
#include "step_result.hpp"
#include "stepper.hpp"

namespace bench {

/// A benchmark: its optimizer, ranks and shapes.
struct step_benchmark {
  std::string name;
  std::unique_ptr<stepper> (*make)(rank_parts);
  std::size_t ranks = 1;
  step_settings settings{};
  shape_set (*shapes)() = bert_large;
  bool is_aligned = true;  ///< each tensor to 64 bytes; otherwise packed, from an odd multiple of 4 bytes on
};

/// The number of measurements; each at least 1.
struct effort {
  std::size_t batches = 7;
  std::size_t steps_of_batch = 20;
  std::size_t samples_of_passes = 5;
};

/// Times a step. With one rank, also times its passes.
///
/// @throws std::runtime_error if steps were skipped or a parameter is no longer finite; slamb::cuda_error;
///         slamb::communicator_error
step_result time_step(const step_benchmark& benchmark, const shape_set& shapes, const effort& how_long,
                      copy_meter& copy);

/// Upper bound of the GPU memory that it needs, in bytes, without the copy's arrays.
std::size_t bytes_needed(const step_benchmark& benchmark, const shape_set& shapes);

}  // namespace bench
