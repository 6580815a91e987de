// expect: slamb: the steps of this recipe do not all cost the same
#include "slamb/slamb.hpp"

struct mine : slamb::slamb<> {
  using slamb::slamb<>::basic_slamb;
};

void make() { slamb::choose<slamb::lamb<>, mine>({}, {}, {}, {}); }
