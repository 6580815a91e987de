// slamb_mpi_device_failures CASE: the last rank's device fails. Every rank must get an exception, which it prints as "caught by
// rank R: …" before it leaves.
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "device_buffer.hpp"

namespace {

using namespace std::chrono_literals;
using mpi_tests::device_buffer;
using slamb::cuda_mpi_communicator;
using mpi_transport = slamb::mpi_device_options::transport_type;

void require(bool holds, const char* what) {
  if (!holds) std::printf("wrong value: %s\n", what);
}

// Calls `what` at the n-th call of this name from now on.
void at_call(std::string_view name, int n, const std::function<cudaError_t()>& what) {
  device_stand_in::fault = [=, left = n](std::string_view call) mutable {
    return call == name && --left == 0 ? what() : cudaSuccess;
  };
}
cudaError_t illegal_address() { return cudaErrorIllegalAddress; }

// Checks that every later call throws the first failure again, and that the pinned memory stays.
void require_final(cuda_mpi_communicator& communicator, std::span<float> values, CUstream_st& stream,
                   const std::string& reason) {
  device_stand_in::fault = nullptr;
  for (const auto& call :
       {std::function([&] { communicator.all_reduce_sum(values, &stream); }),
        std::function([&] { communicator.wait(&stream); }), std::function([&] { communicator.check(); })})
    try {
      call();
      require(false, "a call after a failure");
    } catch (const std::exception& failure) {
      require(failure.what() == reason, failure.what());
    }
  { const cuda_mpi_communicator going = std::move(communicator); }
  require(device_stand_in::pinned.size() == 1, "pinned memory was freed that MPI may write to");
}

void run(std::string_view kind, int rank, int ranks) {
  const bool is_last = rank == ranks - 1;
  const std::string_view failing_call = kind == "failing_copy"     ? "cudaMemcpyAsync"
                                        : kind == "failing_kernel" ? "cudaEventQuery"
                                                                   : "cudaStreamIsCapturing";
  if (kind == "no_pinned_memory" && is_last) at_call("cudaMallocHost", 1, illegal_address);
  const bool stuck = kind == "stuck_stream" && is_last;
  // Where both call different things, the last rank has the longer timeout. So its peer always gives up first, and the last rank
  // learns of it.
  const bool lost = kind == "killed_in_copy" || (kind == "another_part" && !is_last);
  cuda_mpi_communicator communicator(
      MPI_COMM_WORLD,
      {.messages = {.timeout = stuck || lost ? 5s : 60s},
       .transport = kind == "other_transport" && is_last ? mpi_transport::staged : mpi_transport::automatic,
       .staging_bytes = 4096});  // a payload has parts of 512 elements
  CUstream_st stream;
  const std::vector<float> own(3000, 1.0F);
  device_buffer<float> buffer(own, &stream);
  const std::span<float> all = buffer.span();
  try {
    communicator.all_reduce_sum(all, &stream);  // works before the failure
    require(buffer.values(&stream) == std::vector<float>(3000, static_cast<float>(ranks)), "a sum");

    if (is_last) {
      if (kind.starts_with("failing")) at_call(failing_call, kind == "failing_copy" ? 5 : 1, illegal_address);
      if (kind == "killed_in_copy") at_call("cudaMemcpyAsync", 5, [] { return std::raise(SIGKILL), cudaSuccess; });
      if (kind == "aborted") communicator.abort("its disk is full");
      stream.is_stuck = stuck;
    }
    if (kind == "another_part") {
      // The last rank's second part must not match the others' next call.
      communicator.all_reduce_sum(all.first(is_last ? 1024 : 512), &stream);
      communicator.all_reduce_sum(all.first(512), &stream);
    }
    communicator.all_reduce_sum(all, &stream);
    communicator.all_reduce_sum(all, &stream);
  } catch (const slamb::cuda_error& failure) {
    require(is_last && failure.code() == cudaErrorIllegalAddress, "the code");
    require(failure.call() == failing_call, "the call");
    require_final(communicator, all, stream, failure.what());
    throw;
  } catch (const slamb::communicator_error& failure) {
    if (kind != "aborted") require_final(communicator, all, stream, failure.what());
    throw;
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::string_view kind = argc == 2 ? argv[1] : "";
  int provided = 0;
  int rank = 0;
  int ranks = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &provided);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  try {
    run(kind, rank, ranks);
    std::printf("rank %d saw nothing wrong\n", rank);
  } catch (const std::exception& failure) {
    std::printf("caught by rank %d: %s\n", rank, failure.what());
  }
  std::fflush(stdout);
  std::this_thread::sleep_for(2s);  // peers learn of it by messages, which need this process
  std::_Exit(0);
}
