// The settings of slamb_bench_mpi.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "slamb/communicator/mpi_options.hpp"
#include "slamb/parameter_sync/quantized_difference.hpp"
#include "slamb/parameter_sync/whole_average.hpp"

namespace bench::distributed {

struct settings {
  std::uint64_t parameters = 12'000'000;
  std::vector<std::string> optimizers{"lamb",         "slamb",         "slamb+int8", "one_bit_adam",
                                      "one_bit_lamb", "zero_one_adam", "auto"};
  std::uint64_t steps = 5;                   ///< least number of timed steps
  double seconds = 0.0;                      ///< least sum of their times, s
  unsigned threads = 1;                      ///< of the host backend, per rank
  double k = 0.1;                            ///< SLAMB: fraction of the momentum sent at a step
  std::uint64_t block = 1;                   ///< SLAMB: consecutive elements of the momentum that are sent together
  std::optional<std::uint64_t> local_steps;  ///< SLAMB: H; unset: 100, of slamb_by_differences 2
  std::uint64_t local_interval = 1;          ///< 0/1 Adam: steps from one exchange to the next
  std::uint64_t message_bytes = slamb::mpi_options{}.message_bytes;  ///< largest message between ranks
  bool in_parts = false;                 ///< steps by begin_step, gradient_ready and finish_step
  std::optional<double> link_bandwidth;  ///< bits/s
  double latency = 0.0;                  ///< s per hop
  std::string json;

  /// H of SLAMB, and of SLAMB by differences. @{
  std::uint64_t averaging_interval() const {
    return local_steps.value_or(std::uint64_t{slamb::sync::whole_average::default_local_steps});
  }
  std::uint64_t difference_interval() const {
    return local_steps.value_or(std::uint64_t{slamb::sync::quantized_difference<>::default_local_steps});
  }
  /// @}
};

}  // namespace bench::distributed
