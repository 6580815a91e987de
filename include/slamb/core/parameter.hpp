// What a framework hands to an optimizer: where a tensor lives, how large it is, and how it wants to be treated.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace slamb {

/// How one tensor differs from the optimizer's settings. Every member has the default of "no difference".
struct tensor_options {
  std::optional<double> weight_decay{};  ///< λ of this tensor; unset: the optimizer's
  double learning_rate_factor = 1.0;     ///< multiplies the learning rate
  bool adapt = true;                     ///< false: trust ratio 1, as is usual for biases and norms
  bool compress = true;                  ///< false: always exchanged whole (by a chain, encoded)
  int group = 0;                         ///< which of the learning rates given to `step()` applies
  /// [rows] of 0 or 1, in host memory, copied by the optimizer's constructor: the tensor is that many rows of equal size, and
  /// those with 0 take no part in a compressed exchange, since their gradient is always zero. Empty: all take part.
  std::span<const std::uint8_t> rows{};
};

/// One tensor: two spans of `size` elements in the backend's memory space, anywhere, aligned as their elements.
///
/// The caller keeps both alive as long as the optimizer. `step()` reads `gradient` and updates `data`.
template <class Element>
struct basic_parameter {
  Element* data = nullptr;            ///< [size]  the parameters, updated in place
  const Element* gradient = nullptr;  ///< [size]  this rank's own gradient, never written
  std::size_t size = 0;               ///< elements; 0 is allowed, and then both pointers may be null
  int dimensions = 2;                 ///< of the tensor; SLAMB never compresses tensors of one dimension
  tensor_options options{};
};

using parameter = basic_parameter<float>;

}  // namespace slamb
