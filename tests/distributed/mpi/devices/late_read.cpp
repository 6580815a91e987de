// late_read on a GPU's stream, on the stand-in for the CUDA runtime, which puts work off until it is waited for.
#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "slamb/backend/cuda/late_read.hpp"

namespace {

using read_of_count = slamb::late_read<cudaStream_t, std::uint64_t>;

}  // namespace

TEST_CASE("late_read: has what the stream had come to, and nothing behind that is waited for") {
  CUstream_st stream;
  std::uint64_t count = 0;
  read_of_count late(&stream);
  for (std::uint64_t i = 0; i < 3; ++i) {
    device_stand_in::enqueue(&stream, [&] { count = 10 * i + 1; });
    late.start(&count);
    device_stand_in::enqueue(&stream, [&] { count = 10 * i + 2; });
    CHECK(stream.work.size() == (i == 0 ? 2 : 3));
    CHECK(late.finish() == 10 * i + 1);
    CHECK(late.finish() == 10 * i + 1);
    CHECK(count == 10 * i + 1);
    CHECK(stream.work.size() == 1);
  }
  cudaStreamSynchronize(&stream);
}

TEST_CASE("late_read: its stream is done when the value is there") {
  CUstream_st stream;
  std::uint64_t count = 0;
  read_of_count late(&stream);
  CHECK(cudaStreamQuery(late.stream()) == cudaSuccess);
  device_stand_in::enqueue(&stream, [&] { count = 7; });
  late.start(&count);
  int looks = 0;
  while (cudaStreamQuery(late.stream()) == cudaErrorNotReady) ++looks;
  CHECK(looks > 0);
  CHECK(count == 7);
  cudaGetLastError();
}

TEST_CASE("late_read: its memory is freed, unless it is yet to be written, and nothing is waited for then") {
  CUstream_st stream;
  std::uint64_t count = 0;
  const std::size_t before = device_stand_in::pinned.size();
  { const read_of_count unused(&stream); }
  {
    read_of_count late(&stream);
    late.start(&count);
    late.finish();
    CHECK(device_stand_in::pinned.size() == before + 1);
  }
  CHECK(device_stand_in::pinned.size() == before);
  device_stand_in::enqueue(&stream, [&] { count = 1; });
  const std::uint64_t* written = nullptr;
  {
    read_of_count late(&stream);
    for (const auto& [memory, bytes] : device_stand_in::pinned)
      if (bytes == sizeof(count)) written = static_cast<const std::uint64_t*>(memory);
    late.start(&count);
    late.stream()->is_stuck = true;  // as behind a collective whose peer has died
  }
  CHECK(count == 0);
  CHECK(device_stand_in::pinned.size() == before + 1);
  CHECK(device_stand_in::last_error == cudaSuccess);
  device_stand_in::enqueue(&stream, [&] { count = 2; });  // as memory that is freed in the stream's order
  cudaStreamSynchronize(&stream);
  CHECK(count == 2);
  CHECK(*written == 1);
}

TEST_CASE("late_read: errors of the device are thrown") {
  CUstream_st stream;
  std::uint64_t count = 0;
  const auto failing = [](std::string_view name) {
    device_stand_in::fault = [name](std::string_view call) {
      return call == name ? cudaErrorIllegalAddress : cudaSuccess;
    };
  };
  const std::size_t before = device_stand_in::pinned.size();
  for (const std::string_view call : {"cudaMallocHost", "cudaStreamCreateWithFlags"}) {
    failing(call);
    CHECK_THROWS_AS(read_of_count{&stream}, slamb::cuda_error);
  }
  device_stand_in::fault = nullptr;
  CHECK(device_stand_in::pinned.size() == before);
  std::optional<read_of_count> late(&stream);
  for (const std::string_view call : {"cudaEventRecord", "cudaStreamWaitEvent", "cudaMemcpyAsync"}) {
    failing(call);
    CHECK_THROWS_AS(late->start(&count), slamb::cuda_error);
  }
  failing("cudaStreamSynchronize");
  CHECK_THROWS_AS(late->finish(), slamb::cuda_error);
  device_stand_in::fault = nullptr;
  cudaStreamSynchronize(late->stream());
  late.reset();
  CHECK(device_stand_in::pinned.size() == before);
  cudaGetLastError();
}
