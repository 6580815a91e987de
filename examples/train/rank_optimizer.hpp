// The optimizer of one rank behind an interface, so that the network and the training loop are compiled once, and not for each
// combination of a recipe and a compressor.
#pragma once

#include <functional>
#include <memory>
#include <slamb/communicator/any_communicator.hpp>
#include <slamb/core/parameter.hpp>
#include <slamb/core/statistics.hpp>
#include <span>
#include <stdexcept>
#include <string>

namespace train {

/// Joins ranks that are threads or processes. With shards it holds a sharded_communicator.
using rank_communicator = slamb::any_communicator<>;

/// The functions that training needs of an optimizer of any type.
class rank_optimizer {
 public:
  rank_optimizer() = default;
  rank_optimizer(const rank_optimizer&) = delete;
  rank_optimizer& operator=(const rank_optimizer&) = delete;
  virtual ~rank_optimizer() = default;

  virtual void step(double learning_rate) = 0;
  /// Calls `evaluate` with the mean of the ranks' parameters, then restores this rank's own parameters.
  virtual void with_averaged_parameters(const std::function<void()>& evaluate) = 0;
  /// The gradients of all following steps are `*scale` times as large. *scale must outlive the optimizer.
  virtual void set_loss_scale(const float* scale) = 0;
  virtual slamb::statistics statistics() const = 0;

  /// For checkpoints, which not every optimizer of the examples supports: saves state and parameters to a file and loads them,
  /// and sums over all ranks, also those of shard groups. The sum is not counted as traffic.
  virtual void save(const std::string& /*path*/) const { refuse_checkpoints(); }
  virtual void load(const std::string& /*path*/) { refuse_checkpoints(); }
  virtual void sum_over_ranks(std::span<float> /*values*/) { refuse_checkpoints(); }

  /// Collectives of the shard group, for models that are cut into shards: `values` become their sum, and `all` the `mine` of
  /// each shard, in their order. They are not counted as traffic of the optimizer. @{
  virtual void sum_over_shards(std::span<float> /*values*/) { refuse_shards(); }
  virtual void gather_shards(std::span<const float> /*mine*/, std::span<float> /*all*/) { refuse_shards(); }
  /// @}

 private:
  [[noreturn]] static void refuse_checkpoints() { throw std::logic_error("this optimizer keeps no checkpoints"); }
  [[noreturn]] static void refuse_shards() { throw std::logic_error("this optimizer has no shard group"); }
};

/// Makes the optimizer of one rank, over that rank's tensors. Every rank calls it.
using optimizer_maker =
    std::function<std::unique_ptr<rank_optimizer>(std::span<const slamb::parameter>, rank_communicator)>;

}  // namespace train
