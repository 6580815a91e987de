// The bytes in which the arrays of a model are stored, for counts of memory traffic.
#pragma once

#include <cstddef>

namespace slamb::plan {

/// Bytes an element of each array of a model, as it is stored. The default is floats. Arrays without a member here are floats.
///
/// *Reference*: docs/performance.md, "Bytes by type"
struct storage_bytes {
  double parameter = sizeof(float);  ///< as steps read and write it: the master copy, if there is one
  double rounded = 0.0;              ///< beside a master copy: what a write of the parameter writes too
  double data = sizeof(float);       ///< the caller's parameters, where they are read apart from a master copy
  double gradient = sizeof(float);   ///< the caller's
  double momentum = sizeof(float);
  double variance = sizeof(float);

  /// For passes that read the gradient of all ranks, which is floats in the exchange buffer.
  constexpr storage_bytes with_exchanged_gradient() const noexcept {
    storage_bytes all = *this;
    all.gradient = sizeof(float);
    return all;
  }
};

}  // namespace slamb::plan
