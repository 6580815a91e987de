// expect: must have a member seed
#include "slamb/slamb.hpp"

// Rounds at random, but has no seed for its draws.
struct seedless : slamb::bf16 {
  static constexpr bool is_stochastic = true;
};

slamb::one_bit_adam<slamb::self_communicator, seedless> optimizer({}, {});
