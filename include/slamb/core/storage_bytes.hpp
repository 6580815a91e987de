// The bytes in which the arrays of a model are stored, for counts of memory traffic.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

namespace slamb::plan {

/// Bytes an element of an array of the state, with its part in the scale of a block.
struct array_bytes {
  std::string_view name;  ///< the array's; it must outlive plans
  double bytes = sizeof(float);
};

/// Bytes an element of each array of a model, as it is stored. The default is floats.
///
/// *Reference*: docs/performance.md, "Bytes by type"
struct storage_bytes {
  double parameter = sizeof(float);          ///< as steps read and write it: the master copy, if there is one
  double rounded = 0.0;                      ///< beside a master copy: what a write of the parameter writes too
  double data = sizeof(float);               ///< the caller's parameters, where they are read apart from a master copy
  double gradient = sizeof(float);           ///< the caller's
  std::span<const array_bytes> arrays = {};  ///< of the state, that are not floats; plans copy them

  /// Of an array of the state.
  constexpr double of(std::string_view name) const noexcept {
    for (const array_bytes& array : arrays)
      if (array.name == name) return array.bytes;
    return sizeof(float);
  }

  /// For passes that read the gradient of all ranks, which is floats in the exchange buffer.
  constexpr storage_bytes with_exchanged_gradient() const noexcept {
    storage_bytes all = *this;
    all.gradient = sizeof(float);
    return all;
  }
};

}  // namespace slamb::plan
