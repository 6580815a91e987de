// The part of a model that one rank keeps if several hold it together, as by FSDP. The whole parameters are gathered for the
// computation, and each rank keeps its part of the mean gradient.
#pragma once

#include <algorithm>
#include <cstddef>
#include <slamb/core/statistics.hpp>
#include <span>
#include <vector>

#include "network.hpp"
#include "rank_optimizer.hpp"

namespace train {

/// All tensors of a network, one after another, cut into `shards` parts of equal size. So a part has some tensors whole or in
/// part, and no element of the others.
class model_shard {
 public:
  /// @param model  whose parameters are equal on all ranks; it must outlive this object
  model_shard(network& model, int shard, int shards) : shards_(static_cast<std::size_t>(shards)) {
    tensors_ = model.parameters();
    const std::size_t part = part_size(model.size(), shards_);
    own_.resize(part);
    own_gradient_.resize(part);
    whole_.resize(part * shards_);
    float* there = whole_.data();
    for (const slamb::parameter& tensor : tensors_)
      there = std::copy_n(tensor.data.as<const float>(), tensor.size, there);
    begin_ = static_cast<std::size_t>(shard) * part;
    std::copy_n(whole_.data() + begin_, part, own_.data());
  }

  /// The parts of all tensors, of floats, for an optimizer. They are valid as long as this object.
  std::vector<slamb::parameter> parameters() {
    std::vector<slamb::parameter> parts;
    std::size_t first = 0;
    for (const slamb::parameter& whole : tensors_) {
      const std::size_t last = first + whole.size;
      const std::size_t from = std::clamp(first, begin_, begin_ + own_.size()) - begin_;
      const std::size_t to = std::clamp(last, begin_, begin_ + own_.size()) - begin_;
      parts.push_back({.data = own_.data() + from,
                       .gradient = own_gradient_.data() + from,
                       .size = to - from,
                       .dimensions = whole.dimensions,
                       .whole_size = whole.size});
      first = last;
    }
    return parts;
  }

  /// Gives the network the parts of all ranks of the shard group. Collective.
  void gather_parameters(rank_optimizer& optimizer) {
    optimizer.gather_shards(own_, whole_);
    const float* from = whole_.data();
    for (const slamb::parameter& tensor : tensors_) {
      std::copy_n(from, tensor.size, tensor.data.as<float>());
      from += tensor.size;
    }
  }

  /// Averages the gradients of the ranks of the shard group, and keeps this rank's part. Collective.
  void average_gradients(rank_optimizer& optimizer) {
    float* there = whole_.data();
    for (const slamb::parameter& tensor : tensors_)
      there = std::copy_n(tensor.gradient.as<const float>(), tensor.size, there);
    std::fill(there, whole_.data() + whole_.size(), 0.0F);
    optimizer.sum_over_shards(whole_);
    for (std::size_t i = 0; i < own_gradient_.size(); ++i)
      own_gradient_[i] = whole_[begin_ + i] / static_cast<float>(shards_);
  }

  /// The traffic of one step, of one rank within its shard group: a gather of the parameters, and a sum of the gradients.
  static slamb::traffic traffic_of_step(std::size_t parameters, int shards) {
    const std::size_t all = part_size(parameters, static_cast<std::size_t>(shards)) * static_cast<std::size_t>(shards);
    slamb::traffic_counts counts;
    counts.record(slamb::collective::all_gather, all, sizeof(float), shards);
    counts.record(slamb::collective::all_reduce, all, sizeof(float), shards);
    return counts.total();
  }

  /// Elements of a part; the last part may have fewer of the model.
  static constexpr std::size_t part_size(std::size_t parameters, std::size_t shards) {
    return (parameters + shards - 1) / shards;
  }

 private:
  std::size_t shards_;
  std::size_t begin_ = 0;                  // this rank's first parameter
  std::vector<slamb::parameter> tensors_;  // of the network
  std::vector<float> own_;                 // this rank's parameters
  std::vector<float> own_gradient_;        // their mean gradient
  std::vector<float> whole_;               // the parameters of all ranks, or their gradients
};

}  // namespace train
