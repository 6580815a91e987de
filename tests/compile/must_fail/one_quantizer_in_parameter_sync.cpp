// expect: a ParameterSync with a quantizer must have two
#include "slamb/slamb.hpp"

struct misspelt {
  static constexpr std::int64_t default_local_steps = 1;
  slamb::int8 quantizer{};
  slamb::int8 mean_quantiser{};
};

slamb::slamb<misspelt> optimizer({}, {});
