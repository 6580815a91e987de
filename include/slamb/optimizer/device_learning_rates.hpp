// Learning rates in the memory of a device.
#pragma once

namespace slamb {

/// Learning rates that a step reads from the backend's memory when it runs. A step captured into a CUDA graph reads them at each
/// launch of the graph.
struct device_learning_rates {
  const double* by_group = nullptr;  ///< [groups] in the backend's memory; must stay valid until the step is done
};

}  // namespace slamb
