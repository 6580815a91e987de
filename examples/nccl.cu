// Ranks on GPUs over NCCL: SLAMB in several processes, each with its own GPU. Gradients are computed on the GPU and stay there.
//
//     cmake --preset cuda -DCMAKE_CUDA_ARCHITECTURES=native
//     cmake --build --preset cuda --target example_nccl && build/cuda/bin/example_nccl --ranks 2
//
// The program starts its ranks itself, and ends all of them if one fails. On a cluster mpirun, srun or torchrun starts the
// ranks, and also replaces the mailbox by which rank 0 sends NCCL's id. All ranks minimize the loss of common/device_loss.cuh.
// It prints the remaining loss, the bytes that rank 0 has sent, and that all ranks have ended with the same parameters:
//
//     slamb over nccl           … of the loss is left, …
//     all 2 ranks have ended with the same parameters
//
// Exit status: 0; 1 for an error at work; 2 for a wrong command line; 77 if there are too few GPUs.
#include <charconv>
#include <chrono>
#include <cstdio>
#include <exception>
#include <slamb/nccl.hpp>
#include <slamb/slamb.hpp>
#include <string_view>

#include "common/cuda_stream.hpp"
#include "common/device_loss.cuh"
#include "common/forked_ranks.hpp"

namespace {

constexpr int most_ranks = 64;
constexpr const char* usage = "usage: example_nccl [--ranks N]    N processes, each with a GPU of its own [2]";

/// One rank, on the GPU with the rank's number.
void train(const ncclUniqueId& id, int rank, int ranks) {
  using optimizer = slamb::slamb<slamb::nccl_communicator, slamb::cuda_backend>;
  programs::require_success(cudaSetDevice(rank), "cudaSetDevice");
  const auto result = examples::minimize_on_device<optimizer>(
      slamb::nccl_communicator(id, rank, ranks, {.timeout = std::chrono::seconds(60)}),
      {.weight_decay = 0.0, .local_steps = 50}, 0.06);
  if (rank == 0) examples::print("slamb over nccl", result);
}

int run(int ranks) {
  // In a process of its own: processes forked from one that has used CUDA cannot use CUDA.
  const int status = programs::run_forked(1, [&](int) { return examples::has_gpus(ranks) ? 0 : examples::skipped; });
  if (status != 0) return status;
  const programs::mailbox<ncclUniqueId> ids(ranks);
  const int trained = programs::run_forked(ranks, [&](int rank) {
    train(ids.share(rank, slamb::nccl_communicator::unique_id), rank, ranks);
    return 0;
  });
  if (trained == 0) std::printf("all %d ranks have ended with the same parameters\n", ranks);
  return trained;
}

/// The number in `text`, 0 if it is not a number.
int number_of(std::string_view text) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc{} && end == text.data() + text.size() ? value : 0;
}

}  // namespace

int main(int count, char** arguments) try {
  int ranks = 2;
  for (int i = 1; i < count; ++i) {
    const std::string_view option = arguments[i];
    if (option == "--help") return std::puts(usage) < 0 ? 1 : 0;
    if (option != "--ranks") {
      std::fprintf(stderr, "example_nccl: '%s' is not an option\n%s\n", arguments[i], usage);
      return 2;
    }
    const char* const value = ++i < count ? arguments[i] : "";
    ranks = number_of(value);
    if (ranks < 1 || ranks > most_ranks) {
      std::fprintf(stderr, "example_nccl: --ranks: '%s' is not an integer in [1, %d]\n", value, most_ranks);
      return 2;
    }
  }
  return run(ranks);
} catch (const std::exception& failure) {
  std::fprintf(stderr, "example_nccl: %s\n", failure.what());
  return 1;
}
