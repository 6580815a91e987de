// mpi_communicator in the suite of all Communicators, with several piece sizes.
#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>

#include "world.hpp"

namespace mpi_conformance_tests {
namespace {

using namespace test_support::communicator_suite;
using mpi_tests::mpi_world;
using mpi_tests::processes;

}  // namespace

TEST_CASE("mpi_communicator: conforms for all element types") {
  const int ranks = processes::all();
  struct sizes {
    std::size_t piece, message;
  };
  for (const auto& [piece, message] :
       {sizes{1 << 22, 60 << 10}, sizes{64, 64}, sizes{1000, 1 << 30}, sizes{1000, 65}}) {
    CAPTURE(piece);
    CAPTURE(message);
    const mpi_world world{{.piece_bytes = piece, .message_bytes = message}};
    check_small_sizes<float>(world, ranks);
    check_small_sizes<double>(world, ranks);
    check_small_sizes<std::int32_t>(world, ranks);
    check_small_sizes<std::uint8_t>(world, ranks);
    check_small_sizes<std::uint64_t>(world, ranks);
  }
}

TEST_CASE("mpi_communicator: conforms for large payloads") {
  const int ranks = processes::all();
  check_size<float>(mpi_world{}, ranks, large);
  check_size<float>(mpi_world{{.piece_bytes = 100'000}}, ranks, large);
  check_size<std::uint8_t>(mpi_world{{.piece_bytes = 65'537}}, ranks, large);
  check_size<std::uint64_t>(mpi_world{{.message_bytes = 999}}, ranks, large);
  check_size<float>(mpi_world{{.message_bytes = 1 << 30}}, ranks, large);
}

}  // namespace mpi_conformance_tests
