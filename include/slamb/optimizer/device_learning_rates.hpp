// Learning rates in the memory of a device.
#pragma once

namespace slamb {

/// Learning rates that a step finds in the backend's memory when it runs: of a step that is captured into a CUDA graph, which
/// reads them anew each time the graph is launched.
struct device_learning_rates {
  const double* by_group = nullptr;  ///< [groups], which the optimizer reads until the step is done
};

}  // namespace slamb
