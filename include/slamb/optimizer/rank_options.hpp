// What every optimizer that works on several ranks can be told about its exchanges.

#pragma once

#include <cstdint>

namespace slamb {

/// The options of every optimizer's exchanges, as the member `ranks` of its options. Equal on all ranks.
struct rank_options {
  std::uint64_t bucket_bytes = 16'777'216;  ///< bytes of gradients that a step in parts exchanges together; ≥ 1
  /// Steps between comparisons of the ranks' parameters, and of a sparsifier's masks, from the first step on; 0: never.
  std::uint64_t compare_every = 100;
};

}  // namespace slamb
