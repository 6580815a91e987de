// The median of measured times.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace bench {

/// The mean of the two middle values for an even number of values; 0 for none.
inline double median(std::vector<double> values) {
  if (values.empty()) return 0.0;
  std::ranges::sort(values);
  const std::size_t half = values.size() / 2;
  return values.size() % 2 != 0 ? values[half] : (values[half - 1] + values[half]) / 2.0;
}

}  // namespace bench
