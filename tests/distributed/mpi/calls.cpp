// mpi_communicator: invalid arguments, ownership of the MPI communicator, and errors.
#include <doctest/doctest.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <slamb/slamb.hpp>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "world.hpp"

namespace mpi_calls_tests {
namespace {

using mpi_tests::message_of;
using slamb::host_stream;
using slamb::mpi_communicator;

// The sum over the ranks, where rank r holds r + 1.
float sum_over_ranks(int ranks) { return static_cast<float>(ranks * (ranks + 1) / 2); }

bool adds_up(mpi_communicator& communicator) {
  std::vector<float> values(100, static_cast<float>(communicator.rank() + 1));
  communicator.all_reduce_sum(std::span<float>(values), host_stream{});
  return values == std::vector<float>(100, sum_over_ranks(communicator.size()));
}

}  // namespace

TEST_CASE("mpi_communicator: options out of range are rejected by name, on every rank") {
  using std::chrono::microseconds;
  using std::chrono::milliseconds;
  const auto made_with = [](slamb::mpi_options o) { return [o] { mpi_communicator(MPI_COMM_WORLD, o); }; };
  CHECK(message_of(made_with({.timeout = milliseconds(0)})) ==
        "slamb: mpi_options::timeout = 0, but it must be > 0 ms");
  CHECK(message_of(made_with({.poll_interval = microseconds(-1)})) ==
        "slamb: mpi_options::poll_interval = -1, but it must be ≥ 0 µs");
  CHECK(message_of(made_with({.piece_bytes = 63})) ==
        "slamb: mpi_options::piece_bytes = 63, but it must be in [64, 2^30]");
  CHECK(message_of(made_with({.message_bytes = (1U << 30) + 1})) ==
        "slamb: mpi_options::message_bytes = 1073741825, but it must be in [64, 2^30]");
  CHECK_THROWS_AS(made_with({.piece_bytes = 63})(), std::invalid_argument);
}

TEST_CASE("mpi_communicator: unsuitable MPI communicators are rejected") {
  CHECK(message_of([] { mpi_communicator{MPI_COMM_NULL}; }) ==
        "slamb: mpi_communicator: the communicator is MPI_COMM_NULL");
  CHECK_THROWS_AS(mpi_communicator::borrow(MPI_COMM_NULL), std::invalid_argument);
  CHECK(message_of([] { mpi_communicator::borrow(MPI_COMM_WORLD); }).find("MPI_ERRORS_RETURN") != std::string::npos);
}

TEST_CASE("mpi_communicator: wrong arguments are rejected before any message, and it remains usable") {
  mpi_communicator communicator;
  const auto ranks = static_cast<std::size_t>(communicator.size());
  std::vector<float> some(7);
  std::vector<float> others(7 * ranks + 1);
  CHECK(message_of([&] { communicator.broadcast(std::span<float>(some), communicator.size(), host_stream{}); }) ==
        "slamb: broadcast: root = " + std::to_string(ranks) + ", but it must be in [0, " + std::to_string(ranks) + ")");
  CHECK_THROWS_AS(communicator.broadcast(std::span<float>(some), -1, host_stream{}), std::invalid_argument);
  CHECK_THROWS_AS(communicator.all_gather(std::span<const float>(some), std::span<float>(others), host_stream{}),
                  std::invalid_argument);
  CHECK_THROWS_AS(communicator.all_to_all(std::span<const float>(some), std::span<float>(others), host_stream{}),
                  std::invalid_argument);
  CHECK(adds_up(communicator));
}

TEST_CASE("mpi_communicator: an owned copy and a borrowed communicator do not receive each other's messages") {
  MPI_Comm theirs = MPI_COMM_NULL;
  MPI_Comm_dup(MPI_COMM_WORLD, &theirs);
  MPI_Comm_set_errhandler(theirs, MPI_ERRORS_RETURN);
  {
    mpi_communicator own(theirs);
    mpi_communicator borrowed = mpi_communicator::borrow(theirs);
    CHECK(borrowed.native_handle() == theirs);
    CHECK(own.native_handle() != theirs);
    CHECK(adds_up(own));
    CHECK(adds_up(borrowed));
    CHECK(adds_up(own));
  }
  int size = 0;
  CHECK(MPI_Comm_size(theirs, &size) == MPI_SUCCESS);  // it is not freed
  MPI_Comm_free(&theirs);
}

TEST_CASE("mpi_communicator: can be moved, and names the mistake when the source is used") {
  mpi_communicator first;
  mpi_communicator second = std::move(first);
  CHECK(adds_up(second));
  CHECK(first.native_handle() == MPI_COMM_NULL);  // NOLINT: the test looks at the moved-from object
  float x = 1.0F;
  CHECK(message_of([&] { first.all_reduce_sum(std::span<float>(&x, 1), host_stream{}); }) ==
        "slamb: an mpi_communicator was called after it was moved from");
  first = std::move(second);
  CHECK(adds_up(first));
}

TEST_CASE("mpi_communicator: moves elements of odd sizes completely") {
  using odd = std::array<std::uint8_t, 5>;
  mpi_communicator communicator(MPI_COMM_WORLD, {.piece_bytes = 64});
  const int last = communicator.size() - 1;
  std::vector<odd> values(77, odd{static_cast<std::uint8_t>(communicator.rank()), 1, 2, 3, 4});
  communicator.broadcast(std::span<odd>(values), last, host_stream{});
  CHECK(values == std::vector<odd>(77, odd{static_cast<std::uint8_t>(last), 1, 2, 3, 4}));
}

TEST_CASE("mpi_communicator: all_gather in place") {
  mpi_communicator communicator;
  const auto ranks = static_cast<std::size_t>(communicator.size());
  const auto rank = static_cast<std::size_t>(communicator.rank());
  std::vector<std::size_t> all(3 * ranks, 99);
  const std::span<std::size_t> mine = std::span<std::size_t>(all).subspan(3 * rank, 3);
  for (std::size_t& x : mine) x = rank;
  communicator.all_gather(std::span<const std::size_t>(mine), std::span<std::size_t>(all), host_stream{});
  for (std::size_t i = 0; i < all.size(); ++i) CHECK(all[i] == i / 3);
}

TEST_CASE("mpi_communicator: sums have the bits of sums by threads") {
  constexpr std::size_t size = 10'007;
  using mpi_tests::value_of_rank;
  mpi_communicator communicator(MPI_COMM_WORLD, {.piece_bytes = 4096});
  std::vector<float> by_processes(size);
  for (std::size_t i = 0; i < size; ++i) by_processes[i] = value_of_rank(communicator.rank(), i);
  communicator.all_reduce_sum(std::span<float>(by_processes), host_stream{});
  std::vector<float> by_threads;
  slamb::run_ranks(communicator.size(), [&](slamb::thread_communicator threads) {
    std::vector<float> values(size);
    for (std::size_t i = 0; i < size; ++i) values[i] = value_of_rank(threads.rank(), i);
    threads.all_reduce_sum(std::span<float>(values), host_stream{});
    if (threads.rank() == 0) by_threads = values;
  });
  CHECK(by_processes == by_threads);
}

TEST_CASE("mpi_communicator: check passes on a working communicator") {
  mpi_communicator communicator;
  CHECK_NOTHROW(communicator.check());
  CHECK(adds_up(communicator));
}

}  // namespace mpi_calls_tests
