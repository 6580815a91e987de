// cuda_mpi_communicator on a GPU against mpi_communicator, which has the same bits.
#include <doctest/doctest.h>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <slamb/mpi_cuda.hpp>
#include <span>
#include <stdexcept>
#include <vector>

#include "../../support/generate.hpp"
#include "../device_memory.hpp"

namespace {

using device_tests::downloaded;
using device_tests::poisoned_memory;
using device_tests::stream;
using device_tests::upload;
using slamb::mpi_transport;

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

// Floats of the device, with the values of `from`.
class floats {
 public:
  floats(std::span<const float> from, cudaStream_t on)
      : memory_(from.size_bytes()), values_(reinterpret_cast<float*>(memory_.data()), from.size()) {
    upload(from, values_.data(), on);
  }
  std::span<float> span() const { return values_; }
  std::vector<float> read(cudaStream_t on) const {
    return downloaded(static_cast<const float*>(values_.data()), values_.size(), on);
  }

 private:
  poisoned_memory memory_;
  std::span<float> values_;
};

// All collectives after one another by both, each on what the one before has left.
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
  const floats device_mine(mine, on);
  const floats device_all(all, on);
  const floats device_exchanged(exchanged, on);

  host.all_gather(std::span<const float>(mine), std::span(all), at_once);
  host.all_to_all(std::span<const float>(all), std::span(exchanged), at_once);
  host.all_reduce_sum(std::span(mine), at_once);
  host.broadcast(std::span(exchanged), host.size() - 1, at_once);
  device.all_gather(std::span<const float>(device_mine.span()), device_all.span(), on);
  device.all_to_all(std::span<const float>(device_all.span()), device_exchanged.span(), on);
  device.all_reduce_sum(device_mine.span(), on);
  device.broadcast(device_exchanged.span(), device.size() - 1, on);
  device.wait(on);
  CHECK(differences(device_mine.read(on), mine) == 0);
  CHECK(differences(device_all.read(on), all) == 0);
  CHECK(differences(device_exchanged.read(on), exchanged) == 0);
}

}  // namespace

TEST_CASE("device processes: all collectives have the bits of mpi_communicator") {
  // The transport that MPI says it has, and staged, by parts of a few lines and of megabytes.
  for (const std::size_t n : {0, 1, 1000, 100003, 3000000}) {
    check_like_host(n, {});
    check_like_host(n, {.transport = mpi_transport::staged});
    if (n <= 1000) check_like_host(n, {.transport = mpi_transport::staged, .staging_bytes = 128});
  }
}

TEST_CASE("device processes: a captured stream is refused, and the communicator goes on") {
  const stream on;
  slamb::cuda_mpi_communicator communicator;
  const std::vector<float> ones(100, 1.0F);
  const floats values(ones, on);
  slamb::detail::check_cuda(cudaStreamBeginCapture(on, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
  CHECK_THROWS_AS(communicator.all_reduce_sum(values.span(), on), std::logic_error);
  cudaGraph_t graph = nullptr;
  slamb::detail::check_cuda(cudaStreamEndCapture(on, &graph), "cudaStreamEndCapture");
  slamb::detail::check_cuda(cudaGraphDestroy(graph), "cudaGraphDestroy");
  communicator.all_reduce_sum(values.span(), on);
  CHECK(differences(values.read(on), std::vector<float>(100, static_cast<float>(communicator.size()))) == 0);
}
