// expect: a chain sends codes; it needs a Communicator with all_to_all and all_gather
#include <span>

#include "slamb/slamb.hpp"

// Sums floats, which is enough for a sparsifier without a quantizer.
struct summing_communicator {
  int rank() const { return 0; }
  int size() const { return 1; }
  void all_reduce_sum(std::span<float> values, slamb::host_stream stream);
};

using enough = slamb::slamb<summing_communicator, slamb::random_k<>>;
static_assert(sizeof(enough) > 0);

slamb::slamb<summing_communicator, slamb::chain<slamb::random_k<>, slamb::int8>> optimizer({}, {});
