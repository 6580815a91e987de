// The tensors that a framework gives to an optimizer, with options.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace slamb {

/// Options of one tensor. The defaults keep the optimizer's options.
struct tensor_options {
  std::optional<double> weight_decay{};  ///< λ of this tensor; unset: the optimizer's
  double learning_rate_factor = 1.0;     ///< multiplies the learning rate
  bool adapt = true;                     ///< false: trust ratio 1, as usual for biases and normalisation layers
  bool compress = true;                  ///< false: always exchanged dense (by a chain: quantized)
  int group = 0;                         ///< index of its learning rate among those given to `step()`
  /// [rows] of 0 or 1, in host memory, copied by the constructor. The tensor consists of that many rows of equal size. Rows with
  /// 0 are inactive in a quantized exchange, because their gradient is always zero. Empty: all rows are active.
  std::span<const std::uint8_t> rows{};
};

/// One tensor: its parameters and its gradient, `size` elements each, in the backend's memory, aligned as their type.
///
/// Both must outlive the optimizer. `step()` reads `gradient` and updates `data`.
template <class Element>
struct basic_parameter {
  Element* data = nullptr;            ///< [size]  the parameters, updated in place
  const Element* gradient = nullptr;  ///< [size]  this rank's own gradient, never written
  std::size_t size = 0;               ///< elements; 0 is allowed, and then both pointers may be null
  int dimensions = 2;                 ///< dimensions of the tensor; SLAMB never compresses tensors of one dimension
  tensor_options options{};
};

using parameter = basic_parameter<float>;

}  // namespace slamb
