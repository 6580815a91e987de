// What the benchmark of a step on a GPU found, and the tables that say so.
#pragma once

#include <cstddef>
#include <iosfwd>
#include <string>
#include <vector>

#include "copy.hpp"
#include "passes.hpp"

namespace bench {

/// A benchmark's result.
struct step_result {
  std::string name;
  std::size_t ranks = 1;
  std::size_t elements = 0;  ///< of one rank
  double seconds = 0.0;      ///< a step, median over batches of steps
  double fastest = 0.0;      ///< of the batches
  double slowest = 0.0;
  double bytes = 0.0;  ///< an element a step, of one rank
  copy_rate copy{};
  std::size_t launches = 0;  ///< of kernels, a step and rank; without the communicator's own
  std::size_t waits = 0;     ///< for what the device has found out, a step
  std::vector<pass_result> passes{};

  /// Of all ranks.
  double bytes_per_second() const {
    return bytes * static_cast<double>(elements) * static_cast<double>(ranks) / seconds;
  }
};

/// Writes the tables "Steps" and "Passes": aligned by blanks, or in Markdown with headings of the second level.
void write_report(std::ostream& to, const std::vector<step_result>& results, bool markdown);

}  // namespace bench
