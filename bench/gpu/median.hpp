// The median of measured times.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace bench {

/// Of an even number the mean of the two in the middle; 0 of none.
inline double median(std::vector<double> values) {
  if (values.empty()) return 0.0;
  std::ranges::sort(values);
  const std::size_t half = values.size() / 2;
  return values.size() % 2 != 0 ? values[half] : (values[half - 1] + values[half]) / 2.0;
}

}  // namespace bench
