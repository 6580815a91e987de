// The result of a step's benchmark on a GPU, and the tables that show it.
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
  double seconds = 0.0;      ///< per step, median over batches of steps
  double fastest = 0.0;      ///< the fastest batch
  double slowest = 0.0;
  double bytes = 0.0;  ///< per element and step, of one rank
  copy_rate copy{};
  std::size_t launches = 0;  ///< kernels per step and rank, without the communicator's own
  std::size_t waits = 0;     ///< waits per step for data from the device
  std::vector<pass_result> passes{};

  /// The bandwidth of all ranks together.
  double bytes_per_second() const {
    return bytes * static_cast<double>(elements) * static_cast<double>(ranks) / seconds;
  }
};

/// Writes the tables "Steps" and "Passes": aligned by blanks, or in Markdown with second-level headings.
void write_report(std::ostream& to, const std::vector<step_result>& results, bool markdown);

}  // namespace bench
