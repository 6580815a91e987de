// Wraps an optimizer of the library as device_tests::optimizer, with the settings of these tests.
#pragma once

#include <memory>
#include <slamb/slamb.hpp>
#include <stdexcept>
#include <utility>

#include "optimizers.hpp"
#include "short_options.hpp"

namespace device_tests {

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
  slamb::optimizer& get() override { return own_; }

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
/// Constructs an optimizer on the current GPU. Its type names no Communicator, so that one serves ranks of every kind.
template <class Optimizer>
std::unique_ptr<optimizer> on_device(ingredients from) {
  typename Optimizer::backend_type backend{};
  backend.stream = from.stream;
  backend.memory = from.memory;
  if (auto* const threads = std::get_if<slamb::thread_communicator>(&from.ranks))
    from.ranks = device_ranks(slamb::cuda_thread_communicator(std::move(*threads)));
  else if (auto* const parts = std::get_if<thread_shards>(&from.ranks))
    from.ranks = device_ranks(slamb::sharded_communicator(slamb::cuda_thread_communicator(std::move(parts->exchange)),
                                                          slamb::cuda_thread_communicator(std::move(parts->shards))));
  return std::make_unique<adapter<Optimizer>>(from.tensors, from.is_captured,
                                              std::get<device_ranks>(std::move(from.ranks)), backend);
}
#endif

}  // namespace device_tests
