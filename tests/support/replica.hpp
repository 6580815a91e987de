// A made-up model and one rank's copy of it, with guard bands between tensors at odd alignments.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "slamb/slamb.hpp"
#include "support/generate.hpp"
#include "support/oracle.hpp"

namespace test_support {

/// One tensor of a made-up model.
struct tensor_spec {
  std::size_t size = 0;
  int dimensions = 2;
  slamb::tensor_options options{};
  int shard = -1;  ///< the number of its part of the whole tensor, if ranks hold copies
};

using model = std::vector<tensor_spec>;

inline std::size_t total_size(const model& tensors) {
  std::size_t total = 0;
  for (const tensor_spec& l : tensors) total += l.size;
  return total;
}

/// Sizes at the edges of the implementation, and `more` tensors of random sizes, dimensions and options, in three groups.
inline model random_model(std::uint64_t seed, std::size_t more) {
  model tensors;
  for (const std::size_t size : {std::size_t{0}, std::size_t{1}, std::size_t{15}, std::size_t{17}, std::size_t{9000}})
    tensors.push_back({size});
  for (const tensor_shape& shape : random_shapes(seed, more)) tensors.push_back({shape.size, shape.dimensions});
  random_source source(seed, 0x0D);
  constexpr std::array decays{0.0, 0.001, 0.1};
  for (std::size_t l = 1; l < tensors.size(); ++l) {
    slamb::tensor_options& options = tensors[l].options;
    if (source.below(3) == 0) options.weight_decay = decays[source.below(decays.size())];
    if (source.below(3) == 0) options.learning_rate_factor = 0.5 + source.uniform();
    options.adapt = source.below(4) != 0;
    options.compress = source.below(4) != 0;
    options.group = static_cast<int>(source.below(3));
  }
  tensors[4].options.compress = true;  // of 9000 elements
  tensors.back().options.group = 2;
  return tensors;
}

inline std::vector<oracle::tensor> oracle_tensors(const model& tensors, double weight_decay) {
  std::vector<oracle::tensor> result;
  for (const tensor_spec& l : tensors)
    result.push_back({.size = l.size,
                      .dimensions = l.dimensions,
                      .weight_decay = l.options.weight_decay.value_or(weight_decay),
                      .learning_rate_factor = l.options.learning_rate_factor,
                      .adapt = l.options.adapt,
                      .compress = l.options.compress});
  return result;
}

/// [tensors] the learning rate of each tensor, from the rates by group.
inline oracle::vector rates_of(const model& tensors, std::span<const double> by_group) {
  oracle::vector rates;
  for (const tensor_spec& l : tensors)
    rates.push_back(by_group[by_group.size() == 1 ? 0 : static_cast<std::size_t>(l.options.group)]);
  return rates;
}

/// [n] the elements that `selection` selects, one by one. Tensors that are always dense are not treated specially.
template <class Selection>
std::vector<std::uint8_t> mask_of(const Selection& selection, const model& tensors) {
  std::vector<std::uint8_t> mask;
  std::uint64_t offset = 0;
  for (std::size_t l = 0; l < tensors.size(); ++l) {
    for (std::uint64_t i = 0; i < tensors[l].size; ++i)
      mask.push_back(selection.selects({static_cast<std::uint32_t>(l), i, tensors[l].size, offset}) ? 1 : 0);
    offset += tensors[l].size;
  }
  return mask;
}

/// One rank's parameters and gradients.
class replica {
 public:
  replica(const model& tensors, std::span<const float> start) {
    std::size_t at = 0;
    for (const tensor_spec& l : tensors) {
      at += 5 + (3 * places_.size()) % 7;
      places_.push_back(at);
      at += l.size;
    }
    tensors_ = tensors;
    data_.assign(at + 5, guard);
    gradient_ = data_;
    set_values(start);
    set_gradient(std::vector<float>(start.size(), 0.0F));
  }

  std::vector<slamb::parameter> parameters() {
    std::vector<slamb::parameter> all;
    for (std::size_t l = 0; l < tensors_.size(); ++l)
      all.push_back({.data = data_.data() + places_[l],
                     .gradient = gradient_.data() + places_[l],
                     .size = tensors_[l].size,
                     .dimensions = tensors_[l].dimensions,
                     .options = tensors_[l].options,
                     .shard = tensors_[l].shard});
    return all;
  }

  /// [n] all tensors, end to end.
  std::vector<float> values() const {
    std::vector<float> all;
    for (std::size_t l = 0; l < tensors_.size(); ++l) {
      const float* const first = data_.data() + places_[l];
      all.insert(all.end(), first, first + tensors_[l].size);
    }
    return all;
  }

  void set_values(std::span<const float> values) { scatter(values, data_); }
  void set_gradient(std::span<const float> values) {
    scatter(values, gradient_);
    given_ = gradient_;
  }

  /// True if everything but the parameters is unchanged: the guards, and all gradients.
  bool intact() const {
    if (!same_bits(gradient_, given_)) return false;
    std::vector<float> expected(data_.size(), guard);
    for (std::size_t l = 0; l < tensors_.size(); ++l)
      std::copy_n(data_.data() + places_[l], tensors_[l].size, expected.data() + places_[l]);
    return same_bits(data_, expected);
  }

  /// All memory of this rank with its guards. A test that corrupts it expects `intact` to be false.
  std::span<float> raw_data() { return data_; }
  std::span<float> raw_gradient() { return gradient_; }

 private:
  static constexpr float guard = std::bit_cast<float>(0x7FC0DEADU);  // a recognizable NaN

  void scatter(std::span<const float> values, std::vector<float>& to) {
    std::size_t from = 0;
    for (std::size_t l = 0; l < tensors_.size(); ++l) {
      std::copy_n(values.data() + from, tensors_[l].size, to.data() + places_[l]);
      from += tensors_[l].size;
    }
  }

  model tensors_;
  std::vector<std::size_t> places_;
  std::vector<float> data_, gradient_, given_;
};

}  // namespace test_support
