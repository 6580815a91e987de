// The optimizer of one rank behind an interface, so that the network and the training loop are compiled once, and not for
// each combination of a recipe and a compressor.
#pragma once

#include <functional>
#include <memory>
#include <slamb/communicator/any_communicator.hpp>
#include <slamb/core/parameter.hpp>
#include <slamb/core/statistics.hpp>
#include <span>

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
  virtual void synchronize_parameters() = 0;
  virtual slamb::statistics statistics() const = 0;
};

/// Makes the optimizer of one rank, over that rank's tensors. Every rank calls it.
using optimizer_maker =
    std::function<std::unique_ptr<rank_optimizer>(std::span<const slamb::parameter>, rank_communicator)>;

}  // namespace train
