// late_read on a GPU's stream, on the stand-in for the CUDA runtime, which delays work until the host waits for it.
#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <optional>
#include <string_view>

#include "slamb/detail/runtime/cuda_late_read.hpp"

namespace {

using read_of_count = slamb::detail::late_read<cudaStream_t, std::uint64_t>;

}  // namespace

TEST_CASE("late_read: reads the value at its place in the stream, and does not wait for later work") {
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

TEST_CASE("late_read: its stream is idle when the value has arrived") {
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

TEST_CASE("late_read: reuses its memory unless a write is pending, without waiting for one") {
  constexpr std::size_t of_page = 64, many = 10 * of_page;
  CUstream_st stream;
  std::uint64_t count = 0;
  { const read_of_count unused(&stream); }
  const std::size_t pages = device_stand_in::pinned.size();
  for (std::size_t i = 0; i < many; ++i) {
    read_of_count late(&stream);
    late.start(&count);
    late.finish();
  }
  CHECK(device_stand_in::pinned.size() == pages);

  device_stand_in::enqueue(&stream, [&] { count = 1; });
  for (std::size_t i = 0; i < many; ++i) {
    read_of_count late(&stream);
    late.start(&count);
    late.stream()->is_stuck = true;  // as after a collective whose peer died
  }
  CHECK(count == 0);
  CHECK(device_stand_in::pinned.size() >= pages + many / of_page - 1);
  CHECK(device_stand_in::last_error == cudaSuccess);
  device_stand_in::enqueue(&stream, [&] { count = 2; });  // stands for memory that is freed in the stream's order
  cudaStreamSynchronize(&stream);
  CHECK(count == 2);
  std::size_t written = 0;
  for (const auto& [page, bytes] : device_stand_in::pinned)
    for (std::size_t i = 0; i + of_page <= bytes; i += of_page) {
      std::uint64_t word = 0;
      std::memcpy(&word, static_cast<const std::byte*>(page) + i, sizeof(word));
      written += word == 1 ? 1 : 0;
    }
  CHECK(written == many);
}

TEST_CASE("late_read: errors of the device are thrown") {
  CUstream_st stream;
  std::uint64_t count = 0;
  const auto failing = [](std::string_view name) {
    device_stand_in::fault = [name](std::string_view call) {
      return call == name ? cudaErrorIllegalAddress : cudaSuccess;
    };
  };
  failing("cudaStreamCreateWithFlags");
  CHECK_THROWS_AS(read_of_count{&stream}, slamb::cuda_error);
  failing("cudaMallocHost");
  std::deque<read_of_count> lent;
  CHECK_THROWS_AS(([&] {
                    for (;;) lent.emplace_back(&stream);
                  }()),
                  slamb::cuda_error);
  CHECK(lent.size() <= 64);
  lent.clear();
  device_stand_in::fault = nullptr;
  std::optional<read_of_count> late(&stream);
  for (const std::string_view call : {"cudaEventRecord", "cudaStreamWaitEvent", "cudaMemcpyAsync"}) {
    failing(call);
    CHECK_THROWS_AS(late->start(&count), slamb::cuda_error);
  }
  failing("cudaStreamSynchronize");
  CHECK_THROWS_AS(late->finish(), slamb::cuda_error);
  device_stand_in::fault = nullptr;
  cudaStreamSynchronize(late->stream());
  cudaGetLastError();
}
