// An optimizer on a GPU behind an interface, so that the code that times it is plain C++.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "launch_timer.hpp"
#include "slamb/communicator/thread_communicator.hpp"
#include "slamb/core/parameter.hpp"
#include "slamb/core/statistics.hpp"
#include "slamb/optimizer/detail/learning_rates.hpp"

namespace bench {

/// One rank of an optimizer, on the GPU that is current at construction.
class stepper {
 public:
  virtual ~stepper() = default;

  /// Enqueues a step.
  virtual void step(double learning_rate) = 0;
  /// Enqueues a step with the rate in GPU memory, for a graph. @throws std::logic_error if the step cannot be captured
  virtual void step(const slamb::device_learning_rates& rates) = 0;
  /// @param with_norms  also computes the norms; waits
  virtual slamb::statistics statistics(bool with_norms) const = 0;
  /// Bytes of memory traffic per element of the steps between two reports, the second with norms.
  /// @throws std::runtime_error as planned_bytes
  virtual double bytes_of_steps(const slamb::statistics& before, const slamb::statistics& after) const = 0;
  /// The fraction of the elements in the payload of step t; 0 for optimizers without a payload.
  virtual double payload_at(std::uint64_t t) const = 0;
};

/// The kinds of steps of 0/1 Adam.
enum class zero_one_step {
  refresh,   ///< every step refreshes the variance by the whole gradient
  variance,  ///< every step compresses the gradient, except a few that refresh the variance
  local,     ///< the variance is frozen, and hardly any step exchanges
  exchange   ///< the variance is frozen, and every step exchanges its local update
};

/// Settings that differ from the recipe's defaults.
struct step_settings {
  std::size_t block = 1;     ///< elements that SLAMB's round robin (k = 0.1) takes together
  bool is_captured = false;  ///< for a graph: SLAMB averages parameters only when the caller asks for it
  zero_one_step zero_one = zero_one_step::exchange;
  bool exchanges_parameters = false;  ///< SLAMB does so in every step
  bool skip_non_finite = true;        ///< one rank checks the gradient in a pass of its own
};

/// The constructor arguments of a stepper.
struct rank_parts {
  std::span<const slamb::parameter> tensors;  ///< in the GPU's memory
  slamb::thread_communicator ranks;
  cudaStream_t stream = nullptr;
  launch_timer* timer = nullptr;  ///< sees every launch
  step_settings settings{};
};

/// 1-bit Adam and 1-bit LAMB are past their warm-up after one step. They and 0/1 Adam encode and decode with one rank too. All
/// are defined beside the optimizers of the device tests, whose kernels they share. @{
std::unique_ptr<stepper> adamw_stepper(rank_parts from);
std::unique_ptr<stepper> lamb_stepper(rank_parts from);
std::unique_ptr<stepper> slamb_stepper(rank_parts from);
std::unique_ptr<stepper> slamb_int8_stepper(rank_parts from);
std::unique_ptr<stepper> slamb_by_differences_stepper(rank_parts from);  // random k = 0.1, in int8
std::unique_ptr<stepper> slamb_top_k_stepper(rank_parts from);           // k = 0.01
std::unique_ptr<stepper> one_bit_adam_stepper(rank_parts from);
std::unique_ptr<stepper> one_bit_lamb_stepper(rank_parts from);
std::unique_ptr<stepper> zero_one_adam_stepper(rank_parts from);
/// @}

}  // namespace bench
