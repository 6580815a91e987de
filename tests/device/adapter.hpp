// Wraps an optimizer of the library as device_tests::optimizer, with the settings of these tests.
#pragma once

#include <memory>
#include <slamb/slamb.hpp>
#include <stdexcept>
#include <utility>

#include "optimizers.hpp"

namespace device_tests {

/// Settings with short phases, common to all recipes.
template <class Options>
Options short_options(bool is_captured) {
  Options options{};
  options.beta1 = 0.8;
  options.beta2 = 0.95;
  options.epsilon = 1e-5;
  options.weight_decay = 0.03;
  if constexpr (requires { options.local_steps; }) options.local_steps = is_captured ? 0 : 3;
  if constexpr (requires { options.dense_below; }) options.dense_below = 100;
  if constexpr (requires { options.compress_single_rank; }) options.compress_single_rank = is_captured;
  if constexpr (requires { options.warm_up.steps; }) options.warm_up.steps = 3;
  if constexpr (requires { options.variance_schedule.freeze_step; }) {
    options.variance_schedule.freeze_step = 4;
    options.variance_schedule.update_scaler = 1;
    options.local_schedule.scaler = 2;
    options.local_schedule.clipper = 4;
  }
  return options;
}

template <class Optimizer>
class adapter final : public optimizer {
 public:
  template <class... Ranks>
  explicit adapter(std::span<const slamb::parameter> tensors, bool is_captured, Ranks&&... ranks)
      : own_(tensors, short_options<typename Optimizer::options_type>(is_captured), std::forward<Ranks>(ranks)...) {}

  void step(double learning_rate) override { own_.step(learning_rate); }
  void step(const slamb::device_learning_rates& rates) override {
    if constexpr (requires { own_.step(rates); })
      own_.step(rates);
    else
      throw std::logic_error("this recipe takes no learning rates in memory");
  }
  void set_gradient_scaling(const slamb::detail::gradient_scaling& scaling) override {
    own_.set_gradient_scaling(scaling);
  }
  std::vector<std::byte> save_state() const override { return own_.save_state(); }
  void load_state(std::span<const std::byte> saved, const slamb::restore_options& options) override {
    own_.load_state(saved, options);
  }
  std::uint64_t steps() const override { return own_.statistics().step; }
  std::uint64_t skipped() const override { return own_.statistics().skipped_steps; }

 private:
  Optimizer own_;
};

/// LAMB with moments in eight bits, and 1-bit Adam that sends the gradients of its warm-up in sixteen.
template <class Ranks, class Backend>
using lamb_in_eight_bits =
    slamb::lamb<Ranks,
                slamb::precision::mixed<Backend, slamb::precision::master_copies, slamb::precision::eight_bit_moments>>;
template <class Ranks, class Backend>
using one_bit_adam_from_bf16 = slamb::one_bit_adam<slamb::dense_in<slamb::bf16>, Ranks, Backend>;

#if defined(__CUDACC__)
/// Constructs an optimizer on the current GPU.
template <class Optimizer>
std::unique_ptr<optimizer> on_device(ingredients from) {
  typename Optimizer::backend_type backend{};
  backend.stream = from.stream;
  backend.memory = from.memory;
  return std::make_unique<adapter<Optimizer>>(from.tensors, from.is_captured,
                                              slamb::cuda_thread_communicator(std::move(from.ranks)), backend);
}
#endif

}  // namespace device_tests
