// slamb_mpi_failures CASE: something goes wrong with the last rank, and every other must be told of it by an exception, which
// it prints as "caught by rank R: …" before it leaves.
#include <array>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <slamb/mpi.hpp>
#include <slamb/slamb.hpp>
#include <span>
#include <stdexcept>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

namespace {

using slamb::host_stream;
using namespace std::chrono_literals;

void run(std::string_view kind) {
  // Short where peers are to give up, and so long else that a busy machine does not make them.
  const bool says_so = kind == "throws" || kind == "another_size" || kind == "other_settings";
  slamb::mpi_communicator communicator(MPI_COMM_WORLD, {.timeout = says_so ? 60s : 5s});
  const bool is_last = communicator.rank() == communicator.size() - 1;
  std::vector<float> values(100'000, 1.0F);
  const std::span<float> all(values);
  communicator.all_reduce_sum(all, host_stream{});  // it works, before

  if (kind == "other_settings") {
    std::vector<float> gradient(values.size());
    const slamb::parameter tensors[]{{.data = values.data(), .gradient = gradient.data(), .size = values.size()}};
    slamb::lamb<slamb::mpi_communicator> optimizer(tensors, {.beta1 = is_last ? 0.8 : 0.9}, std::move(communicator));
    return;
  }
  if (is_last) {
    if (kind == "killed") std::raise(SIGKILL);
    if (kind == "exits") std::_Exit(0);
    if (kind == "stalls") std::this_thread::sleep_for(11s);
    if (kind == "throws") {
      communicator.abort("its disk is full");
      throw std::runtime_error("its disk is full");
    }
    if (kind == "another_collective") communicator.broadcast(all, 0, host_stream{});
    if (kind == "another_size") communicator.all_reduce_sum(all.first(all.size() - 1000), host_stream{});
  }
  communicator.all_reduce_sum(all, host_stream{});
  communicator.all_reduce_sum(all, host_stream{});
}

}  // namespace

int main(int argc, char** argv) {
  const std::string_view kind = argc == 2 ? argv[1] : "";
  int provided = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &provided);
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  try {
    run(kind);
    std::printf("rank %d saw nothing wrong\n", rank);
  } catch (const std::exception& failure) {
    std::printf("caught by rank %d: %s\n", rank, failure.what());
  }
  std::fflush(stdout);
  // Peers are told by messages, which go on while this process is there; and mpirun may end who is left when others have gone,
  // so that they wait for the one that sleeps.
  std::this_thread::sleep_for(kind == "stalls" ? 8s : 1s);
  std::_Exit(0);
}
