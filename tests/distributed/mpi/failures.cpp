// slamb_mpi_failures CASE: the last rank fails. Every other rank must get an exception, which it prints as "caught by rank R: …"
// before it leaves.
#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstdint>
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

// Messages of a few bytes arrive before their receiver asks for them. If the last rank calls something else, no other rank may
// take its message for the expected one.
void call_small(slamb::mpi_communicator& communicator, std::string_view kind, bool is_last) {
  std::vector<float> values(32, 1.0F);
  std::vector<std::int32_t> integers(32, 1);
  const std::span<float> all(values);
  if (kind == "one_more" && is_last) communicator.broadcast(all.first(8), communicator.rank(), host_stream{});
  for (int call = 0; call < 4; ++call) {
    std::fill(values.begin(), values.end(), 1.0F);
    if (kind == "type" && is_last) {
      communicator.all_reduce_sum(std::span<std::int32_t>(integers), host_stream{});
    } else {
      communicator.all_reduce_sum(kind == "size" && is_last ? all.first(16) : all, host_stream{});
    }
    for (const float x : all.first(16))
      if (x != static_cast<float>(communicator.size())) std::printf("wrong value: %g\n", static_cast<double>(x));
  }
}

// The last rank is not a leader: its leader tells the leader of the other node of the failure, and that leader tells the rest.
void run_in_nodes(std::string_view kind) {
  // Short as in run() where peers must give up, and longer within a node.
  const auto timeout = kind == "killed" ? 4s : 60s;
  slamb::mpi_hierarchy nodes = slamb::split_by_node(
      MPI_COMM_WORLD, {.ranks_per_node = 2, .inter_node = {.timeout = timeout}, .local = {.timeout = timeout + 1s}});
  const bool is_last = nodes.rank() == nodes.size() - 1 && nodes.local_rank() == 1;
  std::vector<float> values(100'000, 1.0F);
  const auto exchange = [&] {
    nodes.all_reduce_in_node(std::span<float>(values), host_stream{});
    nodes.all_reduce_sum(std::span<float>(values), host_stream{});
  };
  exchange();  // works before the failure
  if (is_last) {
    if (kind == "killed") std::raise(SIGKILL);
    if (kind == "throws") throw std::runtime_error("its disk is full");
  }
  exchange();
  exchange();
}

/// Forwards to a communicator that outlives the optimizer.
struct lent_ranks {
  slamb::mpi_communicator* own;

  int rank() const { return own->rank(); }
  int size() const { return own->size(); }
  void all_reduce_sum(std::span<float> values, host_stream stream) const { own->all_reduce_sum(values, stream); }
};

/// Returns when all ranks are here, or when one of them has already left.
void wait_for_all(slamb::mpi_communicator& communicator) {
  try {
    float one = 1.0F;
    communicator.all_reduce_sum(std::span<float>(&one, 1), host_stream{});
  } catch (const slamb::communicator_error&) {  // a rank that has left was here
  }
}

void run(std::string_view kind) {
  if (kind.starts_with("nodes_")) return run_in_nodes(kind.substr(6));
  // The timeout is short where peers must give up; otherwise it is so long that a busy machine does not reach it.
  const bool says_so = kind == "aborts" || kind == "throws" || kind == "another_size" || kind == "half_the_size" ||
                       kind == "other_settings";
  slamb::mpi_communicator communicator(MPI_COMM_WORLD, {.timeout = says_so ? 60s : 5s});
  const bool is_last = communicator.rank() == communicator.size() - 1;
  std::vector<float> values(100'000, 1.0F);
  const std::span<float> all(values);
  communicator.all_reduce_sum(all, host_stream{});  // works before the failure

  if (kind == "other_settings") {
    std::vector<float> gradient(values.size());
    const slamb::parameter tensors[]{{.data = values.data(), .gradient = gradient.data(), .size = values.size()}};
    try {
      slamb::lamb<lent_ranks> optimizer(tensors, {.beta1 = is_last ? 0.8 : 0.9}, lent_ranks{&communicator});
    } catch (...) {
      wait_for_all(communicator);  // otherwise the others might report a rank that leaves first
      throw;
    }
    return;
  }
  if (is_last) {
    if (kind == "killed") std::raise(SIGKILL);
    if (kind == "exits") std::_Exit(0);
    if (kind == "stalls") std::this_thread::sleep_for(11s);
    if (kind == "aborts") communicator.abort("its disk is full");
    if (kind == "throws") throw std::runtime_error("its disk is full");
    if (kind == "another_collective") communicator.broadcast(all, 0, host_stream{});
    if (kind == "another_size") communicator.all_reduce_sum(all.first(all.size() - 1000), host_stream{});
  }
  if (kind == "half_the_size") {  // one size is a whole number of the other's messages
    std::vector<float> gathered(static_cast<std::size_t>(communicator.size()) * 16'384);
    const std::size_t size = is_last ? 8'192 : 16'384;
    communicator.all_gather(std::span<const float>(all.first(size)),
                            std::span<float>(gathered).first(size * static_cast<std::size_t>(communicator.size())),
                            host_stream{});
  }
  if (kind.starts_with("small_")) return call_small(communicator, kind.substr(6), is_last);
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
  // Peers learn of the failure by messages, which need this process. mpirun may end the remaining ranks when others have left,
  // so ranks wait for the one that sleeps.
  std::this_thread::sleep_for(kind == "stalls" ? 8s : kind == "nodes_killed" ? 3s : 2s);
  std::_Exit(0);
}
