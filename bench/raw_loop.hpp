// AdamW as a hand-written loop without the library: the library's passes must not be slower.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "huge_array.hpp"
#include "workbench.hpp"

namespace bench {

/// A loop over p, g, m and v on each of several threads. It does not check that gradients are finite.
class raw_adamw {
 public:
  static constexpr double bytes_per_element = 28.0;  // reads p, g, m, v; writes p, m, v

  raw_adamw(const model& tensors, unsigned threads);

  void step(float learning_rate);

 private:
  // A part of one tensor.
  struct piece {
    float* parameter;
    const float* gradient;
    float* momentum;
    float* variance;
    std::size_t count;
  };

  huge_array momentum_;
  huge_array variance_;
  std::vector<std::vector<piece>> pieces_;  // by thread
  std::uint64_t step_ = 0;
};

}  // namespace bench
