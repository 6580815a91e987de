// The suite of all Communicators: check_communicator, as users call it, with all types of numbers that the library's own
// Communicators are tested with.
#pragma once

#include <cstdint>

#include "slamb/testing/check_communicator.hpp"

namespace test_support {

/// @param where  a communicator_check; or a Backend, and then a communicator_check
/// @throws slamb::communicator_error, on every rank, that lists what is wrong
template <class C, class... Where>
void require_conforming(C& ranks, const Where&... where) {
  slamb::check_communicator<float, double, std::int32_t, std::uint8_t, std::uint64_t>(ranks, where...);
}

}  // namespace test_support
