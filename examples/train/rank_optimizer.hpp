// The optimizer of one rank behind an interface, so that the network and the training loop are compiled once, and not for
// each combination of a recipe and a compressor.
#pragma once

#include <functional>
#include <memory>
#include <slamb/slamb.hpp>
#include <span>
#include <stdexcept>
#include <string>

namespace train {

/// Ranks are threads or processes.
using rank_communicator = slamb::any_communicator<>;

/// What training asks of an optimizer, of whatever type.
class rank_optimizer {
 public:
  rank_optimizer() = default;
  rank_optimizer(const rank_optimizer&) = delete;
  rank_optimizer& operator=(const rank_optimizer&) = delete;
  virtual ~rank_optimizer() = default;

  virtual void step(double learning_rate) = 0;
  /// Calls `evaluate` with the mean of the ranks' parameters; this rank's own are restored afterwards.
  virtual void with_averaged_parameters(const std::function<void()>& evaluate) = 0;
  virtual slamb::statistics statistics() const = 0;

  /// What checkpoints need, which not every optimizer of the examples has: the state and the parameters, to a file and from it,
  /// and a sum over ranks that is not counted.
  virtual void save(const std::string& /*path*/) const { refuse_checkpoints(); }
  virtual void load(const std::string& /*path*/) { refuse_checkpoints(); }
  virtual void sum_over_ranks(std::span<float> /*values*/) { refuse_checkpoints(); }

 private:
  [[noreturn]] static void refuse_checkpoints() { throw std::logic_error("this optimizer keeps no checkpoints"); }
};

/// Makes the optimizer of one rank, over that rank's tensors. Every rank calls it.
using optimizer_maker =
    std::function<std::unique_ptr<rank_optimizer>(std::span<const slamb::parameter>, rank_communicator)>;

}  // namespace train
