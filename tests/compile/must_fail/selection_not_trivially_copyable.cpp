// expect: must be trivially copyable
#include <cstdint>
#include <vector>

#include "slamb/slamb.hpp"

// Its selection owns a list, which cannot be copied to a device.
struct listed_elements {
  struct selection {
    std::vector<bool> list;
    bool selects(slamb::coordinate c) const { return list[c.index]; }
  };
  selection at(std::uint64_t) const { return {std::vector<bool>(10, true)}; }
};

slamb::slamb<slamb::self_communicator, listed_elements> optimizer({}, {});
