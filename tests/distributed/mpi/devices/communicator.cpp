// cuda_mpi_communicator between processes, on a stand-in for the CUDA runtime: the suite of all Communicators with both
// transports, equality with mpi_communicator bit for bit, streams, and invalid arguments.
#include <doctest/doctest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "../world.hpp"
#include "device_buffer.hpp"
#include "support/conformance.hpp"
#include "support/memory_on_stream.hpp"

namespace {

using mpi_tests::device_buffer;
using mpi_tests::message_of;
using mpi_tests::processes;
using mpi_tests::values_of;
using slamb::cuda_mpi_communicator;
using slamb::mpi_device_options;
using mpi_transport = slamb::mpi_device_options::transport_type;

// While it lives, MPI reports that it can or cannot access device memory, and the stand-in's device memory agrees.
struct mpi_that {
  explicit mpi_that(bool reaches_devices) {
    mpi_says = reaches_devices ? 1 : 0;
    device_stand_in::is_open = reaches_devices;
  }
  mpi_that(const mpi_that&) = delete;
  mpi_that& operator=(const mpi_that&) = delete;
  ~mpi_that() {
    mpi_says = 0;
    device_stand_in::is_open = false;
  }
};

// Runs the suite on the stand-in's device memory, with a communicator of these options.
void check_conforms(const mpi_device_options& options, std::size_t large) {
  CAPTURE(options.staging_bytes);
  CAPTURE(options.messages.piece_bytes);
  CUstream_st stream;
  cuda_mpi_communicator mine(MPI_COMM_WORLD, options);
  CHECK_NOTHROW(test_support::require_conforming(
      mine, test_support::memory_on_stream{.stream = &stream, .memory = mpi_tests::device_allocator()},
      slamb::communicator_check{.large = large}));
  CHECK(device_stand_in::last_error == cudaSuccess);
}

// The sums by mpi_communicator.
std::vector<float> host_sums(std::size_t size) {
  slamb::mpi_communicator host;
  std::vector<float> values = values_of(host.rank(), size);
  host.all_reduce_sum(std::span<float>(values), slamb::host_stream{});
  return values;
}

}  // namespace

TEST_CASE("cuda_mpi_communicator: conforms with staging buffers of several sizes") {
  for (const std::size_t bytes : {std::size_t{1} << 25, std::size_t{128}, std::size_t{5000}})
    check_conforms({.messages = {.piece_bytes = 1000, .message_bytes = 100}, .staging_bytes = bytes}, 2001);
  check_conforms({.staging_bytes = 1 << 15}, 100'003);
}

TEST_CASE("cuda_mpi_communicator: conforms with streams that run at once") {
  device_stand_in::is_lazy = false;
  check_conforms({.staging_bytes = 1000}, 2001);
  device_stand_in::is_lazy = true;
}

TEST_CASE("cuda_mpi_communicator: conforms with a CUDA-aware MPI, with both transports") {
  const mpi_that reaches(true);
  check_conforms({.messages = {.piece_bytes = 64}, .transport = mpi_transport::direct}, 2001);
  check_conforms({.transport = mpi_transport::staged, .staging_bytes = 4096}, 2001);
}

TEST_CASE("cuda_mpi_communicator: sums have the bits of mpi_communicator, with both transports") {
  constexpr std::size_t size = 10'007;
  const std::vector<float> expected = host_sums(size);
  const mpi_that reaches(true);
  for (const mpi_transport transport : {mpi_transport::staged, mpi_transport::direct}) {
    cuda_mpi_communicator communicator(MPI_COMM_WORLD, {.transport = transport, .staging_bytes = 4096});
    CUstream_st stream;
    const std::vector<float> own = values_of(communicator.rank(), size);
    device_buffer<float> buffer(own, &stream);
    communicator.all_reduce_sum(buffer.span(), &stream);
    CHECK(buffer.values(&stream) == expected);
  }
}

TEST_CASE("cuda_mpi_communicator: streams take turns without waiting for each other's copies") {
  constexpr std::size_t size = 3000;  // one full part and a short one
  std::vector<float> expected = host_sums(size);
  CUstream_st first;
  CUstream_st second;
  cuda_mpi_communicator communicator(MPI_COMM_WORLD, {.staging_bytes = 16384});
  const int last = communicator.size() - 1;
  const std::vector<float> own = values_of(communicator.rank(), size);
  device_buffer<float> sums(own, &first);
  device_buffer<float> copies(own, &second);
  communicator.all_reduce_sum(sums.span(), &first);  // its copies back are still in the queue
  communicator.broadcast(copies.span(), last, &second);
  CHECK(copies.values(&second) == values_of(last, size));
  CHECK(sums.values(&first) == expected);
}

TEST_CASE("cuda_mpi_communicator: may be destroyed while copies are in flight, and received values arrive") {
  constexpr std::size_t size = 5000;
  CUstream_st stream;
  cuda_mpi_communicator first;
  const int last = first.size() - 1;
  const std::vector<float> own = values_of(first.rank(), size);
  device_buffer<float> buffer(own, &stream);
  {
    cuda_mpi_communicator second = std::move(first);
    second.broadcast(buffer.span(), last, &stream);
    CHECK(device_stand_in::pinned.empty() == (second.size() == 1));
  }
  CHECK(device_stand_in::pinned.empty());
  CHECK(buffer.values(&stream) == values_of(last, size));
  CHECK(message_of(
            [&] { first.broadcast(buffer.span(), 0, &stream); }) ==  // NOLINT: the test looks at the moved-from object
        "slamb: an mpi_communicator was called after it was moved from");
}

TEST_CASE("cuda_mpi_communicator: elements of odd sizes, and all_gather in place") {
  using odd = std::array<std::uint8_t, 5>;
  const mpi_that reaches(true);
  for (const mpi_transport transport : {mpi_transport::staged, mpi_transport::direct}) {
    CUstream_st stream;
    cuda_mpi_communicator communicator(MPI_COMM_WORLD, {.transport = transport, .staging_bytes = 128});
    const auto rank = static_cast<std::size_t>(communicator.rank());
    std::vector<odd> all(77 * static_cast<std::size_t>(communicator.size()), odd{99});
    for (std::size_t i = 0; i < 77; ++i) all[77 * rank + i] = odd{static_cast<std::uint8_t>(rank), 1, 2, 3, 4};
    device_buffer<odd> buffer(all, &stream);
    communicator.all_gather(std::span<const odd>(buffer.span().subspan(77 * rank, 77)), buffer.span(), &stream);
    const std::vector<odd> came = buffer.values(&stream);
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < came.size(); ++i)
      wrong += came[i] == odd{static_cast<std::uint8_t>(i / 77), 1, 2, 3, 4} ? 0 : 1;
    CHECK(wrong == 0);
  }
}

TEST_CASE("cuda_mpi_communicator: the transport is MPI's, unless another is requested") {
  CHECK(cuda_mpi_communicator().transport() == mpi_transport::staged);
  CHECK(message_of([] { cuda_mpi_communicator(MPI_COMM_WORLD, {.transport = mpi_transport::direct}); }) ==
        "slamb: mpi_device_options::transport = direct, but this MPI says that it does not take pointers to device "
        "memory (MPIX_Query_cuda_support); use an MPI that is built for CUDA, or set transport = staged");
  const mpi_that reaches(true);
  CHECK(cuda_mpi_communicator().transport() == mpi_transport::direct);
  CHECK(cuda_mpi_communicator(MPI_COMM_WORLD, {.transport = mpi_transport::staged}).transport() ==
        mpi_transport::staged);
  // If one rank cannot access device memory, all ranks use the staged transport.
  mpi_says = cuda_mpi_communicator().rank() == 0 ? 0 : 1;
  CHECK(cuda_mpi_communicator().transport() == mpi_transport::staged);
}

TEST_CASE("cuda_mpi_communicator: wrong arguments are rejected before any work, and it remains usable") {
  CHECK(message_of([] { cuda_mpi_communicator(MPI_COMM_WORLD, {.staging_bytes = 127}); }) ==
        "slamb: mpi_device_options::staging_bytes = 127, but it must be in [128, 2^40]");
  CHECK(message_of([] {
          cuda_mpi_communicator(MPI_COMM_WORLD, {.messages = {.piece_bytes = 63}});
        }).find("mpi_options::piece_bytes = 63") != std::string::npos);
  CHECK_THROWS_AS(cuda_mpi_communicator::borrow(MPI_COMM_WORLD),
                  std::invalid_argument);  // its errors end the program

  CUstream_st stream;
  cuda_mpi_communicator communicator;
  const std::vector<float> own = values_of(communicator.rank(), 10);
  device_buffer<float> buffer(own, &stream);
  device_buffer<float> other(std::vector<float>(10 * static_cast<std::size_t>(processes::all()) + 1), &stream);
  const std::span<const float> mine(buffer.span());
  CHECK_THROWS_AS(communicator.broadcast(buffer.span(), communicator.size(), &stream), std::invalid_argument);
  CHECK_THROWS_AS(communicator.all_gather(mine, other.span(), &stream), std::invalid_argument);
  CHECK_THROWS_AS(communicator.all_to_all(mine, other.span(), &stream), std::invalid_argument);

  stream.is_captured = true;
  CHECK(message_of([&] { communicator.all_reduce_sum(buffer.span(), &stream); })
            .ends_with(": all_reduce_sum of 10 float32 cannot be captured into a graph, because the host sends its "
                       "messages; call it outside the capture, or use an nccl_communicator"));
  CHECK_THROWS_AS(communicator.wait(&stream), std::logic_error);
  stream.is_captured = false;

  communicator.check();
  communicator.all_reduce_sum(buffer.span(), &stream);
  communicator.wait(&stream);
  CHECK(stream.work.empty());
  CHECK(buffer.values(&stream) == host_sums(10));
}
