// Tensors with the shapes of the caller's, or smaller ones, in memory of their own: what a trial of an optimizer may change.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "slamb/core/arena.hpp"
#include "slamb/core/layout.hpp"
#include "slamb/core/parameter.hpp"
#include "slamb/core/random.hpp"

namespace slamb {

/// Elements that a tensor of `size` has in a model of `part` of its size: one at least, unless it has none.
constexpr std::uint64_t scaled_size(std::uint64_t size, double part) noexcept {
  if (part >= 1.0 || size == 0) return size;
  return std::max<std::uint64_t>(1, static_cast<std::uint64_t>(static_cast<double>(size) * part));
}

/// Finite parameters and gradients, none of them 0, in memory of the backend's allocator that is freed with this.
class scratch_model {
 public:
  /// @param part  in (0, 1]: of the elements of each tensor; tensors with rows keep whole rows, one at least
  template <class Executor>
  scratch_model(std::span<const parameter> like, double part, const Executor& executor, const allocator& from) {
    tensors_.assign(like.begin(), like.end());
    std::vector<region<float>> data, gradients;
    for (parameter& p : tensors_) {
      const std::size_t rows = p.options.rows.size();
      const std::size_t kept_rows = static_cast<std::size_t>(scaled_size(rows, part));
      p.size = rows > 0 ? p.size / rows * kept_rows : static_cast<std::size_t>(scaled_size(p.size, part));
      p.options.rows = p.options.rows.first(kept_rows);
      elements_ += p.size;
      data.push_back(memory_.plan<float>("scratch", p.size));
      gradients.push_back(memory_.plan<float>("scratch", p.size));
    }
    memory_.allocate(from);
    const std::vector<float> values = made_up_values();
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      tensors_[i].data = filled(executor, memory_.view(data[i]), values);
      tensors_[i].gradient = filled(executor, memory_.view(gradients[i]), values);
    }
  }

  std::span<const parameter> tensors() const noexcept { return tensors_; }
  std::uint64_t elements() const noexcept { return elements_; }

 private:
  // In ±[0.01, 0.02).
  static std::vector<float> made_up_values() {
    std::vector<float> values(std::size_t{1} << 16U);
    for (std::size_t i = 0; i < values.size(); ++i) {
      const std::uint32_t word = philox(0x510A3B, i / 4, 0).at(i);
      const float size = 0.01F + 0.01F * static_cast<float>(word >> 8U) / 16777216.0F;
      values[i] = (word & 1U) != 0 ? size : -size;
    }
    return values;
  }

  template <class Executor>
  static float* filled(const Executor& executor, std::span<float> tensor, std::span<const float> values) {
    for (std::size_t first = 0; first < tensor.size(); first += values.size()) {
      const std::size_t count = std::min(values.size(), tensor.size() - first);
      executor.upload(values.first(count), tensor.subspan(first, count));
    }
    return tensor.data();
  }

  std::vector<parameter> tensors_;
  arena memory_;
  std::uint64_t elements_ = 0;
};

}  // namespace slamb
