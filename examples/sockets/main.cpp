// Four processes, joined by a user-defined Communicator, socket_communicator.hpp. They check it, train with two optimizers that
// together call all of its collectives, and print the results. A process that loses a peer ends with an error.
//
//   socket_communicator [--lose RANK | --stall RANK]
//
// --lose kills a rank in the middle of the training. --stall makes a rank stop taking part, but keeps its connections open.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <span>
#include <stdexcept>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "slamb/slamb.hpp"
#include "slamb/testing/check_communicator.hpp"
#include "socket_communicator.hpp"

namespace {

constexpr int ranks = 4;
constexpr int steps = 100;
constexpr std::size_t elements = 20'000;

/// The planned accident, and the rank it happens to.
struct accident {
  enum { nothing, lose, stall } what = nothing;
  int rank = 0;
};

/// A loss: half the mean square distance of the parameters from a target. Each rank has its own target; the best parameters are
/// the mean of the targets.
class task {
 public:
  explicit task(int rank) : parameters_(elements, 0.0F), gradient_(elements), target_(elements) {
    for (std::size_t i = 0; i < elements; ++i)
      target_[i] = 1.0F + 0.25F * static_cast<float>(rank) + static_cast<float>(i % 100) / 100.0F;
  }

  std::array<slamb::parameter, 1> tensors() {
    return {slamb::parameter{.data = parameters_.data(), .gradient = gradient_.data(), .size = elements}};
  }
  /// Returns the loss and computes the gradient.
  double loss() {
    double squares = 0.0;
    for (std::size_t i = 0; i < elements; ++i) {
      gradient_[i] = parameters_[i] - target_[i];
      squares += static_cast<double>(gradient_[i]) * static_cast<double>(gradient_[i]);
    }
    return squares / (2.0 * elements);
  }
  std::uint64_t hash() const {
    std::uint64_t all = 0xCBF29CE484222325U;
    for (const std::byte b : std::as_bytes(std::span(parameters_)))
      all = (all ^ std::to_integer<std::uint64_t>(b)) * 0x100000001B3U;
    return all;
  }

 private:
  std::vector<float> parameters_, gradient_, target_;
};

/// Waits until the program ends: this rank takes no further part, but its connections stay open.
void stop_taking_part() {
  const pid_t program = getppid();
  while (getppid() == program) sleep(1);
}

/// Trains, and returns the communicator.
template <class Optimizer>
socket_communicator train(const char* name, const typename Optimizer::options_type& options,
                          socket_communicator communicator, const accident& planned) {
  const int rank = communicator.rank();
  task mine(rank);
  const double first = mine.loss();
  Optimizer optimizer(mine.tensors(), options, std::move(communicator), {.threads = 1});
  for (int t = 0; t < steps; ++t) {
    if (t == steps / 2 && planned.what != accident::nothing) {
      if (planned.rank == rank && planned.what == accident::lose) raise(SIGKILL);
      if (planned.rank == rank && planned.what == accident::stall) stop_taking_part();
      // The stalled rank sends nothing any more, so the others wait only briefly.
      if (planned.what == accident::stall) optimizer.communicator().set_timeout(std::chrono::seconds(1));
    }
    mine.loss();
    optimizer.step(0.1 * (1.0 - static_cast<double>(t) / steps));
  }
  optimizer.synchronize_parameters();
  const double kilobytes = static_cast<double>(optimizer.statistics().traffic.total().sent_bytes) / 1000.0;

  socket_communicator back = std::move(optimizer.communicator());
  const std::uint64_t hash = mine.hash();
  std::array<std::uint64_t, ranks> hashes{};
  back.all_gather(std::as_bytes(std::span(&hash, 1)), std::as_writable_bytes(std::span(hashes)), {});
  const bool same = std::ranges::all_of(hashes, [&](std::uint64_t other) { return other == hash; });
  if (rank == 0)
    std::printf("%-12s loss %.3f -> %.3f, %.0f kB sent a rank, parameters are %s on all ranks\n", name, first,
                mine.loss(), kilobytes, same ? "the same" : "DIFFERENT");
  if (!same) throw std::runtime_error("ranks have different parameters");
  return back;
}

void run_rank(const std::string& folder, int rank, const accident& planned) {
  socket_communicator communicator(folder, rank, ranks, std::chrono::minutes(5));
  slamb::check_communicator(communicator);
  if (rank == 0) std::printf("%d processes over sockets: check_communicator has found nothing wrong\n", ranks);
  // The first optimizer sums floats and exchanges codes; the second sums the elements that one rank selects and broadcasts.
  communicator =
      train<slamb::one_bit_adam<socket_communicator>>("one_bit_adam", {.warm_up = {20}}, std::move(communicator), {});
  train<slamb::slamb<socket_communicator, slamb::top_k>>("slamb, top_k", {.compressor = {.k = 0.1}},
                                                         std::move(communicator), planned);
  if (std::fflush(stdout) != 0 || std::ferror(stdout)) throw std::runtime_error("the output could not be written");
}

/// The rank processes, and the folder in which they meet. The destructor ends the processes and removes the folder.
class processes {
 public:
  processes() {
    std::string name = (std::filesystem::temp_directory_path() / "slamb.XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) throw_errno(errno, "mkdtemp");
    folder_ = name;
  }
  processes(const processes&) = delete;
  processes& operator=(const processes&) = delete;
  ~processes() {
    for (int rank = 0; rank < ranks; ++rank) end(rank);
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }

  void start(const accident& planned) {
    for (int rank = 0; rank < ranks; ++rank) {
      const pid_t child = fork();
      if (child < 0) throw_errno(errno, "fork");
      if (child == 0) {
        try {
          run_rank(folder_, rank, planned);
          _exit(0);
        } catch (const std::exception& failure) {
          std::fprintf(stderr, "rank %d: %s\n", rank, failure.what());
          _exit(1);
        }
      }
      children_[static_cast<std::size_t>(rank)] = child;
    }
  }
  /// Waits for the end of a rank and returns its exit status; −1 if it was killed, or if the status is not known.
  int wait_for(int rank) {
    pid_t& child = children_[static_cast<std::size_t>(rank)];
    int status = 0;
    pid_t ended = 0;
    do ended = waitpid(child, &status, 0);
    while (ended < 0 && errno == EINTR);
    child = 0;
    return ended > 0 && WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  void end(int rank) {
    pid_t& child = children_[static_cast<std::size_t>(rank)];
    if (child == 0) return;
    kill(child, SIGKILL);
    wait_for(rank);
  }

 private:
  [[noreturn]] static void throw_errno(int problem, const char* call) {
    throw std::system_error(problem, std::generic_category(), call);
  }

  std::string folder_;
  std::array<pid_t, ranks> children_{};  // 0: none
};

int run(const accident& planned) {
  processes all;
  all.start(planned);
  int failed = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    if (planned.what != accident::nothing && rank == planned.rank) continue;
    if (all.wait_for(rank) != 0) ++failed;
  }
  if (planned.what != accident::nothing) {
    std::fprintf(stderr, "rank %d was %s: %d other ranks have ended with an error\n", planned.rank,
                 planned.what == accident::lose ? "killed" : "stopped", failed);
  }
  return failed == 0 ? 0 : 1;
}

}  // namespace

int main(int count, char** arguments) {
  accident planned;
  const std::string option = count == 3 ? arguments[1] : "";
  const std::string rank = count == 3 ? arguments[2] : "";
  if (option == "--lose") planned.what = accident::lose;
  if (option == "--stall") planned.what = accident::stall;
  if (count != 1 &&
      (planned.what == accident::nothing || rank.size() != 1 || rank[0] < '0' || rank[0] >= '0' + ranks)) {
    std::fprintf(stderr, "usage: socket_communicator [--lose RANK | --stall RANK], where RANK is 0 to %d\n", ranks - 1);
    return 2;
  }
  if (count == 3) planned.rank = rank[0] - '0';
  std::setvbuf(stdout, nullptr, _IOLBF, 0);  // so that a killed process's output is not lost
  try {
    return run(planned);
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "socket_communicator: %s\n", failure.what());
    return 1;
  }
}
