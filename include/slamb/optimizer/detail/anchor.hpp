// The anchor: the point that all ranks have in common when their parameters differ.
#pragma once

#include "slamb/detail/pass/pass.hpp"

namespace slamb::detail::array {

/// Equal on all ranks, bit for bit. In 0/1 Adam, the parameters after the last exchange; in SLAMB, the point from which ranks exchange
/// their differences.
struct anchor : state_array {
  static constexpr const char* name = "common parameters";
  template <class T>
  struct field {
    T anchor;
  };
};

}  // namespace slamb::detail::array
