// expect: must be trivially copyable
#include <cstdint>
#include <vector>

#include "slamb/slamb.hpp"

// Its selection owns a list, which cannot travel to a device.
struct listed_elements {
  static constexpr bool is_sparsifier = true;
  static constexpr bool payload_is_summable = true;
  static constexpr bool payload_is_constant = true;
  static constexpr int bits_per_element = 32;
  static constexpr slamb::segment_scale scale = slamb::segment_scale::none;

  struct selection {
    std::vector<bool> list;
    bool selects(slamb::coordinate c) const { return list[c.index]; }
  };
  selection at(std::uint64_t) const { return {std::vector<bool>(10, true)}; }
};

slamb::slamb<slamb::self_communicator, listed_elements> optimizer({});
