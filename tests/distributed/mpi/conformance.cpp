// mpi_communicator in the suite of all Communicators, with several piece sizes.
#include <doctest/doctest.h>

#include <cstddef>

#include "support/conformance.hpp"
#include "world.hpp"

namespace mpi_conformance_tests {
namespace {

/// Runs the suite on all processes, with communicators of these settings.
void check_conforms(const slamb::mpi_options& options, std::size_t large) {
  CAPTURE(options.piece_bytes);
  CAPTURE(options.message_bytes);
  slamb::mpi_communicator mine(MPI_COMM_WORLD, options);
  CHECK_NOTHROW(test_support::require_conforming(mine, slamb::communicator_check{.large = large}));
}

}  // namespace

TEST_CASE("mpi_communicator: conforms for all element types") {
  check_conforms({.piece_bytes = 1 << 22, .message_bytes = 60 << 10}, 20'001);
  check_conforms({.piece_bytes = 64, .message_bytes = 64}, 2001);
  check_conforms({.piece_bytes = 1000, .message_bytes = 1 << 30}, 2001);
  check_conforms({.piece_bytes = 1000, .message_bytes = 65}, 2001);
}

TEST_CASE("mpi_communicator: conforms for large payloads") {
  check_conforms({}, 100'003);
  check_conforms({.piece_bytes = 65'537, .message_bytes = 999}, 100'003);
  check_conforms({.message_bytes = 1 << 30}, 100'003);
}

}  // namespace mpi_conformance_tests
