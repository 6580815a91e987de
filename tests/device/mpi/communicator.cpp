// cuda_mpi_communicator on a GPU compared bit for bit with mpi_communicator.
#include <doctest/doctest.h>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <slamb/mpi_cuda.hpp>
#include <span>
#include <stdexcept>
#include <vector>

#include "../../support/generate.hpp"
#include "../poisoned.hpp"

namespace {

using device_tests::downloaded;
using device_tests::stream;
using mpi_transport = slamb::mpi_device_options::transport_type;

std::vector<float> values_of(int rank, std::size_t n) {
  test_support::random_source source(n, static_cast<std::uint64_t>(rank));
  std::vector<float> values(n);
  for (float& x : values) x = static_cast<float>(source.bell());
  return values;
}

std::size_t differences(const std::vector<float>& a, const std::vector<float>& b) {
  std::size_t count = a.size() == b.size() ? 0 : 1;
  for (std::size_t i = 0; count == 0 && i < a.size(); ++i)
    count += std::bit_cast<std::uint32_t>(a[i]) == std::bit_cast<std::uint32_t>(b[i]) ? 0 : 1;
  return count;
}

// A copy of `from` on the device.
using floats = thrust::device_vector<float>;
floats uploaded(const std::vector<float>& from) { return {from.begin(), from.end()}; }

std::span<float> span_of(floats& values) { return {values.data().get(), values.size()}; }

std::vector<float> read(const floats& values, cudaStream_t on) {
  return downloaded(values.data().get(), values.size(), on);
}

// Calls all collectives in order on both; each uses the result of the one before.
void check_like_host(std::size_t n, const slamb::mpi_device_options& options) {
  CAPTURE(n);
  CAPTURE(options.staging_bytes);
  const stream on;
  slamb::mpi_communicator host;
  slamb::cuda_mpi_communicator device(MPI_COMM_WORLD, options);
  constexpr slamb::host_stream at_once{};
  std::vector<float> mine = values_of(host.rank(), n);
  std::vector<float> all(n * static_cast<std::size_t>(host.size()));
  std::vector<float> exchanged(all.size());
  floats device_mine = uploaded(mine);
  floats device_all = uploaded(all);
  floats device_exchanged = uploaded(exchanged);

  host.all_gather(std::span<const float>(mine), std::span(all), at_once);
  host.all_to_all(std::span<const float>(all), std::span(exchanged), at_once);
  host.all_reduce_sum(std::span(mine), at_once);
  host.broadcast(std::span(exchanged), host.size() - 1, at_once);
  device.all_gather(std::span<const float>(span_of(device_mine)), span_of(device_all), on);
  device.all_to_all(std::span<const float>(span_of(device_all)), span_of(device_exchanged), on);
  device.all_reduce_sum(span_of(device_mine), on);
  device.broadcast(span_of(device_exchanged), device.size() - 1, on);
  device.wait(on);
  CHECK(differences(read(device_mine, on), mine) == 0);
  CHECK(differences(read(device_all, on), all) == 0);
  CHECK(differences(read(device_exchanged, on), exchanged) == 0);
}

}  // namespace

TEST_CASE("device processes: all collectives have the bits of mpi_communicator") {
  // The transport that MPI reports, and the staged one, with parts from a few lines to megabytes.
  for (const std::size_t n : {0, 1, 1000, 100003, 3000000}) {
    check_like_host(n, {});
    check_like_host(n, {.transport = mpi_transport::staged});
    if (n <= 1000) check_like_host(n, {.transport = mpi_transport::staged, .staging_bytes = 128});
  }
}

TEST_CASE("device processes: a captured stream is rejected, and the communicator remains usable") {
  const stream on;
  slamb::cuda_mpi_communicator communicator;
  floats values = uploaded(std::vector<float>(100, 1.0F));
  slamb::detail::check_cuda(cudaStreamBeginCapture(on, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
  CHECK_THROWS_AS(communicator.all_reduce_sum(span_of(values), on), std::logic_error);
  cudaGraph_t graph = nullptr;
  slamb::detail::check_cuda(cudaStreamEndCapture(on, &graph), "cudaStreamEndCapture");
  slamb::detail::check_cuda(cudaGraphDestroy(graph), "cudaGraphDestroy");
  communicator.all_reduce_sum(span_of(values), on);
  CHECK(differences(read(values, on), std::vector<float>(100, static_cast<float>(communicator.size()))) == 0);
}
