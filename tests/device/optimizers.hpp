// Every recipe behind one interface. So nvcc compiles only few sources, and the tests are plain C++ that run on the host or on
// the device.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <slamb/communicator/any_communicator.hpp>
#include <slamb/communicator/thread_communicator.hpp>
#include <slamb/core/parameter.hpp>
#include <slamb/detail/pass/arena.hpp>
#include <slamb/detail/pass/step_state.hpp>
#include <slamb/detail/state/saved_state.hpp>
#include <slamb/optimizer/detail/learning_rates.hpp>
#include <slamb/optimizer/optimizer.hpp>
#include <span>
#include <variant>
#include <vector>

#include "../support/trace.hpp"

namespace device_tests {

/// An optimizer of any recipe on either backend.
class optimizer {
 public:
  virtual ~optimizer() = default;
  virtual void step(double learning_rate) = 0;
  /// @throws std::logic_error if the recipe cannot be captured
  virtual void step(const slamb::device_learning_rates& rates) = 0;
  virtual void set_gradient_scaling(const slamb::detail::gradient_scaling& scaling) = 0;
  virtual std::vector<std::byte> save_state() const = 0;
  virtual void load_state(std::span<const std::byte> saved, const slamb::restore_options& options) = 0;
  virtual std::uint64_t steps() const = 0;    ///< waits
  virtual std::uint64_t skipped() const = 0;  ///< waits
  virtual slamb::optimizer& get() = 0;        ///< the library's
};

/// Ranks whose buffers are in device memory.
using device_ranks = slamb::any_communicator<cudaStream_t>;

/// The two communicators of a rank with shards.
struct thread_shards {
  slamb::thread_communicator exchange, shards;
};

/// The arguments of an optimizer's constructor. The host ignores `stream` and `memory`, and takes only threads as ranks.
struct ingredients {
  std::span<const slamb::parameter> tensors;
  std::variant<slamb::thread_communicator, device_ranks, thread_shards> ranks;
  cudaStream_t stream = nullptr;
  slamb::allocator memory{};  ///< empty: the backend's own
  bool is_captured = false;   ///< true: the caller averages parameters, and a single rank encodes
};

/// A recipe with the settings of these tests. All of its phases occur within six steps.
struct recipe {
  const char* name;
  std::unique_ptr<optimizer> (*on_host)(ingredients);
  std::unique_ptr<optimizer> (*on_device)(ingredients);
  bool is_smooth =
      true;  ///< a difference in the last bit stays small over one step: no codes of eight bits, no choice by value
  bool can_be_captured = true;  ///< all of its steps are alike
};

std::unique_ptr<optimizer> adamw_on_host(ingredients from);
std::unique_ptr<optimizer> lamb_on_host(ingredients from);
std::unique_ptr<optimizer> slamb_on_host(ingredients from);
std::unique_ptr<optimizer> slamb_int8_on_host(ingredients from);
std::unique_ptr<optimizer> slamb_top_k_on_host(ingredients from);
std::unique_ptr<optimizer> slamb_by_differences_on_host(ingredients from);
std::unique_ptr<optimizer> one_bit_adam_on_host(ingredients from);
std::unique_ptr<optimizer> one_bit_lamb_on_host(ingredients from);
std::unique_ptr<optimizer> zero_one_adam_on_host(ingredients from);
std::unique_ptr<optimizer> lamb_in_eight_bits_on_host(ingredients from);
std::unique_ptr<optimizer> one_bit_adam_from_bf16_on_host(ingredients from);

std::unique_ptr<optimizer> adamw_on_device(ingredients from);
std::unique_ptr<optimizer> lamb_on_device(ingredients from);
std::unique_ptr<optimizer> slamb_on_device(ingredients from);
std::unique_ptr<optimizer> slamb_int8_on_device(ingredients from);
std::unique_ptr<optimizer> slamb_top_k_on_device(ingredients from);
std::unique_ptr<optimizer> slamb_by_differences_on_device(ingredients from);
std::unique_ptr<optimizer> one_bit_adam_on_device(ingredients from);
std::unique_ptr<optimizer> one_bit_lamb_on_device(ingredients from);
std::unique_ptr<optimizer> zero_one_adam_on_device(ingredients from);
std::unique_ptr<optimizer> lamb_in_eight_bits_on_device(ingredients from);
std::unique_ptr<optimizer> one_bit_adam_from_bf16_on_device(ingredients from);

inline constexpr std::array<recipe, 11> recipes{{
    {"adamw", adamw_on_host, adamw_on_device},
    {"lamb", lamb_on_host, lamb_on_device},
    {"slamb", slamb_on_host, slamb_on_device},
    {"slamb_int8", slamb_int8_on_host, slamb_int8_on_device, false},
    {"slamb_top_k", slamb_top_k_on_host, slamb_top_k_on_device, false, false},
    {"slamb_by_differences", slamb_by_differences_on_host, slamb_by_differences_on_device, false, false},
    {"one_bit_adam", one_bit_adam_on_host, one_bit_adam_on_device},
    {"one_bit_lamb", one_bit_lamb_on_host, one_bit_lamb_on_device},
    {"zero_one_adam", zero_one_adam_on_host, zero_one_adam_on_device, true, false},
    {"lamb_in_eight_bits", lamb_in_eight_bits_on_host, lamb_in_eight_bits_on_device, false},
    {"one_bit_adam_from_bf16", one_bit_adam_from_bf16_on_host, one_bit_adam_from_bf16_on_device, false},
}};

// Replays on the device, with the results of test_support::replay.
double replay_adamw(const test_support::trace& given);
double replay_lamb(const test_support::trace& given);
double replay_slamb_product(const test_support::trace& given);
double replay_slamb_blend(const test_support::trace& given);
double replay_one_bit_adam(const test_support::trace& given);
double replay_one_bit_lamb(const test_support::trace& given);
double replay_zero_one_adam(const test_support::trace& given);
double replay_bf16_adamw(const test_support::trace& given);
double replay_bf16_lamb(const test_support::trace& given);
double replay_bf16_slamb(const test_support::trace& given);
double replay_bf16_one_bit_lamb(const test_support::trace& given);

}  // namespace device_tests
