// The interface to the recipes: the compressors that each can be trained with, and a maker for each. Each recipe has its own
// source file, because each combination is a type, which takes the compiler about two seconds.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <slamb/backend/host/host_backend.hpp>
#include <slamb/backend/precision.hpp>
#include <slamb/checkpoint.hpp>
#include <slamb/optimizer/optimizer.hpp>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "../rank_optimizer.hpp"
#include "../settings.hpp"

namespace train {

/// A recipe with one compressor.
struct combination {
  std::string_view compressor;
  optimizer_maker (*maker)(const settings& chosen, std::uint64_t seed);
};

/// A recipe's combinations. The first is the recipe with its own compressor.
std::span<const combination> lamb_combinations();
std::span<const combination> adamw_combinations();
std::span<const combination> slamb_combinations();
/// SLAMB whose parameters are kept together by differences in every second step.
std::span<const combination> slamb_by_differences_combinations();
std::span<const combination> one_bit_adam_combinations();
std::span<const combination> one_bit_lamb_combinations();
std::span<const combination> zero_one_adam_combinations();
/// LAMB, or SLAMB with the compressor, whichever is faster.
std::span<const combination> auto_combinations();

namespace detail {

template <class Optimizer>
class driven final : public rank_optimizer {
 public:
  /// @param make  make() returns an Optimizer
  template <class Make>
  explicit driven(const Make& make) : optimizer_(make()) {}

  void step(double learning_rate) override { optimizer_.step(learning_rate); }
  void with_averaged_parameters(const std::function<void()>& evaluate) override {
    optimizer_.with_averaged_parameters(evaluate);
  }
  void set_loss_scale(const float* scale) override { optimizer_.set_gradient_scaling({.loss_scale = scale}); }
  slamb::statistics statistics() const override { return optimizer_.statistics(); }
  void save(const std::string& path) const override { slamb::save_checkpoint(optimizer_, path); }
  void load(const std::string& path) override { slamb::load_checkpoint(optimizer_, path); }
  void sum_over_ranks(std::span<float> values) override {
    sum_over_shards(values);  // changes nothing without shards
    optimizer_.communicator().all_reduce_sum(values, slamb::host_stream{});
  }
  void sum_over_shards(std::span<float> values) override {
    optimizer_.communicator().all_reduce_in_shards(values, slamb::host_stream{});
  }
  void gather_shards(std::span<const float> mine, std::span<float> all) override {
    optimizer_.communicator().all_gather_in_shards(std::as_bytes(mine), std::as_writable_bytes(all),
                                                   slamb::host_stream{});
  }

 private:
  Optimizer optimizer_;
};

}  // namespace detail

/// The Backend for every --precision and --rounding, so that each combination is compiled once. Parameters of 16 bits that have a
/// `parameter::master` keep that copy; others are rounded by chance. On floats it has the bits of host_backend.
using rank_backend = slamb::precision::mixed<slamb::host_backend, slamb::precision::stochastic_rounding>;

/// Each rank's optimizer runs on that rank's own thread. All ranks round by the same seed.
inline rank_backend one_thread(std::uint64_t seed) { return {{.threads = 1}, {.seed = seed}}; }

/// Makes optimizers of the type `Optimizer`.
template <class Optimizer>
optimizer_maker maker_of(const typename Optimizer::options_type& options, std::uint64_t seed) {
  return [options, seed](std::span<const slamb::parameter> parameters, rank_communicator communicator) {
    return std::make_unique<detail::driven<Optimizer>>(
        [&] { return Optimizer(parameters, options, std::move(communicator), one_thread(seed)); });
  };
}

}  // namespace train
