// expect: needs a sparsifier: at\(step\) returns a trivially copyable selection|its Compressor must be a sparsifier
#include <cstdint>

#include "slamb/slamb.hpp"

// Its selects() is not const.
struct every_second {
  struct selection {
    bool selects(slamb::coordinate c) { return c.index % 2 == 0; }
  };
  selection at(std::uint64_t) const { return {}; }
};

slamb::lamb<every_second, slamb::residual<>> optimizer({}, {});
