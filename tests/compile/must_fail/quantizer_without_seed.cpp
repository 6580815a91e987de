// expect: must have a member seed
#include "slamb/slamb.hpp"

// Rounds at random, and does not say from what its draws are made.
struct seedless : slamb::bf16 {
  static constexpr bool is_stochastic = true;
};

slamb::one_bit_adam<slamb::self_communicator, seedless> optimizer({});
