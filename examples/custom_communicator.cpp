// A user-defined Communicator: sums over local sockets between processes. It needs no base class and no registration.
//
//     cmake --preset examples && cmake --build --preset examples --target example_custom_communicator
//     build/examples/bin/example_custom_communicator [--leave]
//
// Three processes are ranks. They check the Communicator by slamb::check_communicator, and train with it by SLAMB, which needs
// only all_reduce_sum. Rank 0 prints that the check has found no fault, the remaining loss, and the bytes sent. With --leave,
// rank 1 exits after the check: the other ranks then end with an error, and the program too.
//
// sockets/ has a Communicator with all collectives and errors that name the peer.
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>
#include <slamb/slamb.hpp>
#include <slamb/testing/check_communicator.hpp>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/forked_ranks.hpp"
#include "common/shared_loss.hpp"

/// Sums through rank 0: the others send their values to it and read the sum back. All ranks get the same bits, because only
/// rank 0 adds, in rank order. A rank that waits longer than 20 s for a peer, or finds it gone, throws.
class star_communicator {
 public:
  /// @param peers  connected sockets: on rank 0 to each other rank, on other ranks to rank 0
  star_communicator(int rank, int size, std::vector<int> peers) : rank_(rank), size_(size), peers_(std::move(peers)) {
    for (const int peer : peers_) fcntl(peer, F_SETFL, O_NONBLOCK);
  }
  star_communicator(star_communicator&&) noexcept = default;  // leaves no sockets behind, so nothing is closed twice
  ~star_communicator() {
    for (const int peer : peers_) close(peer);
  }

  int rank() const { return rank_; }
  int size() const { return size_; }

  void all_reduce_sum(std::span<float> values, slamb::host_stream /*stream*/) {
    std::vector<float> theirs(rank_ == 0 ? values.size() : 0);
    for (const int peer : peers_) {
      if (rank_ != 0) transfer(write, peer, POLLOUT, std::as_writable_bytes(values));
      transfer(read, peer, POLLIN, std::as_writable_bytes(rank_ == 0 ? std::span(theirs) : values));
      for (std::size_t i = 0; i < theirs.size(); ++i) values[i] += theirs[i];
    }
    for (const int peer : peers_)
      if (rank_ == 0) transfer(write, peer, POLLOUT, std::as_writable_bytes(values));
  }

 private:
  /// Moves all bytes by `call`, which is read or write, however few bytes the socket accepts at a time.
  template <class Call>
  void transfer(Call call, int peer, short event, std::span<std::byte> bytes) const {
    while (!bytes.empty()) {
      pollfd ready{peer, event, 0};
      const int count = poll(&ready, 1, 20'000);
      const ssize_t done = count > 0 ? call(peer, bytes.data(), bytes.size()) : count;
      if (count == 0) fail("waited too long for a peer");
      if (done == 0) fail("a peer has closed its socket");
      if (done > 0) bytes = bytes.subspan(static_cast<std::size_t>(done));
      if (done < 0 && errno != EINTR && errno != EAGAIN) fail(std::strerror(errno));
    }
  }
  [[noreturn]] void fail(const std::string& reason) const {
    throw slamb::communicator_error("star_communicator: rank " + std::to_string(rank_) + ": " + reason);
  }

  int rank_;
  int size_;
  std::vector<int> peers_;
};
static_assert(slamb::capability::has_all_reduce_sum<star_communicator, float>);

namespace {

constexpr int ranks = 3;

int train(star_communicator own, bool leaves) {
  const int rank = own.rank();
  slamb::check_communicator(own);
  if (rank == 0) std::puts("check_communicator has found nothing wrong");
  if (leaves && rank == 1) return 0;
  using optimizer = slamb::slamb<star_communicator>;
  const auto result = examples::minimize<optimizer>(std::move(own), {.weight_decay = 0.0, .local_steps = 50}, 0.06);
  if (rank == 0) examples::print("slamb", result);
  return 0;
}

}  // namespace

int main(int count, char** arguments) {
  const bool leaves = count == 2 && std::string_view(arguments[1]) == "--leave";
  if (count > 1 && !leaves) return std::fputs("usage: example_custom_communicator [--leave]\n", stderr), 2;
  std::signal(SIGPIPE, SIG_IGN);               // writing to a closed socket must fail, not end the process
  std::array<int, 2 * (ranks - 1)> sockets{};  // for each other rank: rank 0's end and the rank's own end
  for (std::size_t i = 0; i < sockets.size(); i += 2)
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, &sockets[i]) != 0) return std::perror("socketpair"), 1;
  // A rank keeps its own ends and closes the others, so that peers notice when a rank's process ends.
  const auto keep_ends_of = [&sockets](std::size_t rank) {
    std::vector<int> mine;
    for (std::size_t i = 0; i < sockets.size(); ++i)
      (i % 2 == 0 ? 0 : i / 2 + 1) == rank ? mine.push_back(sockets[i]) : static_cast<void>(close(sockets[i]));
    return mine;
  };
  const auto run = [&](int rank) { return train({rank, ranks, keep_ends_of(static_cast<std::size_t>(rank))}, leaves); };
  return programs::run_forked(ranks, run, [&] { keep_ends_of(ranks); });
}
