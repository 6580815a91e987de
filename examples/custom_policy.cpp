// Two policies of one's own, plugged into SLAMB: a Communicator over POSIX pipes between forked processes, and a
// Compressor that sends one stripe of every tensor at a time. Nothing is derived from and nothing is registered.
//
// Three processes fit a small linear regression, each on its own examples. The program prints the loss before and
// after, whether all processes end with the same parameters, and the bytes each of them sent.
#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "slamb/slamb.hpp"

// ------------------------------------------------------------------------------------------------- a Communicator

/// Sums through rank 0: the others write their values to it and read the sum back. All ranks get the same bits, for
/// rank 0 alone adds, in the order of the ranks. Whoever waits longer than 20 s for a peer, or finds it gone, throws.
class pipe_communicator {
 public:
  /// What a rank reads from and writes to, for each peer: rank 0 has all others, the others have rank 0.
  struct link {
    int in, out;
  };

  pipe_communicator(int rank, int size, std::vector<link> links) : rank_(rank), size_(size), links_(std::move(links)) {
    for (const link& l : links_) {
      fcntl(l.in, F_SETFL, O_NONBLOCK);
      fcntl(l.out, F_SETFL, O_NONBLOCK);
    }
  }
  pipe_communicator(pipe_communicator&&) noexcept = default;  // leaves no links behind, so nothing is closed twice
  ~pipe_communicator() {
    for (const link& l : links_) close(l.in), close(l.out);
  }

  int rank() const { return rank_; }
  int size() const { return size_; }

  void all_reduce_sum(std::span<float> values, slamb::host_stream /*stream*/) {
    std::vector<float> theirs(rank_ == 0 ? values.size() : 0);
    for (const link& l : links_) {
      if (rank_ != 0) transfer(write, l.out, POLLOUT, std::as_writable_bytes(values));
      transfer(read, l.in, POLLIN, std::as_writable_bytes(rank_ == 0 ? std::span(theirs) : values));
      for (std::size_t i = 0; i < theirs.size(); ++i) values[i] += theirs[i];
    }
    for (const link& l : links_)
      if (rank_ == 0) transfer(write, l.out, POLLOUT, std::as_writable_bytes(values));
  }

 private:
  /// Moves all bytes by `call`, read or write, however few the pipe takes at a time.
  template <class Call>
  void transfer(Call call, int pipe, short event, std::span<std::byte> bytes) const {
    while (!bytes.empty()) {
      pollfd ready{pipe, event, 0};
      const int count = poll(&ready, 1, 20'000);
      const ssize_t done = count > 0 ? call(pipe, bytes.data(), bytes.size()) : count;
      if (count == 0) fail("waited too long for a peer");
      if (done == 0) fail("a peer has closed its pipe");
      if (done > 0) bytes = bytes.subspan(static_cast<std::size_t>(done));
      if (done < 0 && errno != EINTR && errno != EAGAIN) fail(std::strerror(errno));
    }
  }

  [[noreturn]] void fail(const std::string& reason) const {
    throw slamb::communicator_error("pipe_communicator: rank " + std::to_string(rank_) + ": " + reason);
  }

  int rank_;
  int size_;
  std::vector<link> links_;
};

static_assert(slamb::has_all_reduce_sum<pipe_communicator, float>);

// --------------------------------------------------------------------------------------------------- a Compressor

/// Cuts every tensor into stripes and sends them in turn: stripe t mod `stripes` at step t.
struct stripes_in_turn {
  std::uint64_t stripes = 8;

  static constexpr bool is_sparsifier = true;
  static constexpr bool payload_is_summable = true;
  static constexpr bool payload_is_constant = false;  // stripes may differ by an element
  static constexpr int bits_per_element = 32;
  static constexpr slamb::segment_scale scale = slamb::segment_scale::none;

  /// What is sent at one step; the same at every rank, for it depends on nothing else.
  struct selection {
    std::uint64_t stripes, step;

    bool selects(slamb::coordinate c) const { return steps_since(c) == 0; }

    // Not required: without it, the optimizer keeps one byte an element.
    std::uint32_t age(slamb::coordinate c) const {
      return static_cast<std::uint32_t>(std::min(steps_since(c), step));  // never sent yet: since the start
    }

   private:
    std::uint64_t steps_since(slamb::coordinate c) const {
      const std::uint64_t stripe = c.index * stripes / c.tensor_size;
      return (step + stripes - stripe) % stripes;
    }
  };

  selection at(std::uint64_t step) const { return {stripes, step}; }

  // None of the following is required either: a bound that saves memory, a check of the settings, and their names, so
  // that ranks with different ones find out at construction.
  std::uint64_t largest_payload(std::uint64_t size) const { return size / stripes + 1; }
  void validate() const {
    if (stripes < 1 || stripes > 1'000'000) throw std::invalid_argument("stripes_in_turn: stripes not in [1, 10^6]");
  }
  template <class Facts>
  void describe(Facts& facts) const {
    facts.add_word("stripes_in_turn's stripes", stripes);
  }
};

static_assert(slamb::sparsifier<stripes_in_turn>);

// ------------------------------------------------------------------------------------------------------- the task

namespace {

constexpr int processes = 3;
constexpr int steps = 400;
constexpr std::size_t inputs = 64, outputs = 32, examples = 48;

/// Numbers in [-1, 1), the same on every machine.
class random_numbers {
 public:
  explicit random_numbers(std::uint64_t seed) : seed_(seed) {}
  float next() { return static_cast<float>(slamb::philox(seed_, count_++, 0).word[0]) * 0x1p-31F - 1.0F; }

 private:
  std::uint64_t seed_;
  std::uint64_t count_ = 0;
};

/// y = W x + b, fitted to the examples of one process; every process has others, made from the same W and b.
class regression {
 public:
  explicit regression(int rank) : x_(examples * inputs), y_(examples * outputs) {
    random_numbers truth(1);
    for (float& w : weights) w = truth.next();
    for (float& b : bias) b = truth.next();
    random_numbers mine(100 + static_cast<std::uint64_t>(rank));
    for (float& x : x_) x = mine.next();
    for (std::size_t e = 0; e < examples; ++e)
      for (std::size_t o = 0; o < outputs; ++o) y_[e * outputs + o] = predict(e, o) + 0.05F * mine.next();
    random_numbers start(2);
    for (float& w : weights) w = 0.5F * start.next();
    for (float& b : bias) b = 0.0F;
  }

  /// The mean squared error; its gradient is left in `weights_gradient` and `bias_gradient`.
  double loss() {
    std::fill(weights_gradient.begin(), weights_gradient.end(), 0.0F);
    std::fill(bias_gradient.begin(), bias_gradient.end(), 0.0F);
    constexpr float scale = 2.0F / static_cast<float>(examples * outputs);
    double squares = 0.0;
    for (std::size_t e = 0; e < examples; ++e)
      for (std::size_t o = 0; o < outputs; ++o) {
        const float error = predict(e, o) - y_[e * outputs + o];
        squares += static_cast<double>(error) * static_cast<double>(error);
        bias_gradient[o] += scale * error;
        for (std::size_t i = 0; i < inputs; ++i) weights_gradient[o * inputs + i] += scale * error * x_[e * inputs + i];
      }
    return squares / static_cast<double>(examples * outputs);
  }

  std::vector<float> weights = std::vector<float>(outputs * inputs), weights_gradient = weights;
  std::vector<float> bias = std::vector<float>(outputs), bias_gradient = bias;

 private:
  float predict(std::size_t e, std::size_t o) const {
    float sum = bias[o];
    for (std::size_t i = 0; i < inputs; ++i) sum += weights[o * inputs + i] * x_[e * inputs + i];
    return sum;
  }

  std::vector<float> x_, y_;
};

/// What a process tells its parent.
struct report {
  double first_loss = 0.0;
  double last_loss = 0.0;
  std::uint64_t parameters_hash = 0;
  std::uint64_t bytes_sent = 0;
};

report train(pipe_communicator communicator, bool leave_early) {
  regression model(communicator.rank());
  const std::array tensors{
      slamb::parameter{model.weights.data(), model.weights_gradient.data(), model.weights.size(), 2, {}},
      slamb::parameter{model.bias.data(), model.bias_gradient.data(), model.bias.size(), 1, {}}};

  // Both policies are named by type; options and the communicator are passed by value.
  slamb::slamb<pipe_communicator, stripes_in_turn> optimizer(
      tensors, {.local_steps = 50, .dense_below = 256, .compressor = {.stripes = 8}}, std::move(communicator),
      {.threads = 1});

  report result{.first_loss = model.loss()};
  for (int step = 0; step < steps; ++step) {
    if (leave_early && step == steps / 2) throw std::runtime_error("this process leaves, as it was asked to");
    model.loss();
    optimizer.step(0.05 * (1.0 - static_cast<double>(step) / steps));
  }
  optimizer.synchronize_parameters();
  result.last_loss = model.loss();
  for (const auto& values : {model.weights, model.bias})
    for (const std::byte b : std::as_bytes(std::span(values)))
      result.parameters_hash = (result.parameters_hash ^ std::to_integer<std::uint64_t>(b)) * 0x100000001B3U;
  result.bytes_sent = optimizer.statistics().traffic.total().sent_bytes;
  return result;
}

// -------------------------------------------------------------------------------------------------- the processes

/// Pipes between rank 0 and the others, made before the fork; each process keeps its own ends and closes the rest.
class pipe_star {
 public:
  pipe_star() {
    for (auto& pair : pipes_)
      for (auto& ends : pair)
        if (pipe(ends.data()) != 0) throw std::runtime_error(std::string("pipe: ") + std::strerror(errno));
  }

  /// The communicator of `rank`, or, for the parent's −1, only the closing.
  pipe_communicator keep(int rank) {
    std::vector<pipe_communicator::link> mine;
    for (int peer = 1; peer < processes; ++peer) {
      auto& [up, down] = pipes_[static_cast<std::size_t>(peer) - 1];
      if (rank == 0) mine.push_back({up[0], down[1]});
      if (rank == peer) mine.push_back({down[0], up[1]});
      for (const int end : {up[0], down[1]})
        if (rank != 0) close(end);
      for (const int end : {down[0], up[1]})
        if (rank != peer) close(end);
    }
    return {rank, processes, std::move(mine)};
  }

 private:
  std::array<std::array<std::array<int, 2>, 2>, processes - 1> pipes_{};  // [peer − 1][to rank 0, from it][read, write]
};

/// Runs one rank in this process; returns its exit status.
int run_rank(int rank, pipe_star& pipes, report& result, bool leave_early) {
  try {
    result = train(pipes.keep(rank), leave_early);
    return 0;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "rank %d: %s\n", rank, e.what());
    return 1;
  }
}

int run(bool leave_early) {
  std::signal(SIGPIPE, SIG_IGN);  // a closed pipe is an error of write(), not the end of the process
  void* const shared =
      mmap(nullptr, sizeof(report) * processes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED) throw std::runtime_error(std::string("mmap: ") + std::strerror(errno));
  const std::span<report> reports(static_cast<report*>(shared), processes);

  pipe_star pipes;
  std::array<pid_t, processes> children{};
  bool failed = false;
  for (int rank = 0; rank < processes; ++rank) {
    pid_t& child = children[static_cast<std::size_t>(rank)];
    child = fork();
    if (child == 0) _exit(run_rank(rank, pipes, reports[static_cast<std::size_t>(rank)], leave_early && rank == 1));
    if (child < 0) failed = true;  // its peers find its pipes closed
  }
  pipes.keep(-1);
  for (const pid_t child : children) {
    int status = 0;
    while (child > 0 && waitpid(child, &status, 0) < 0 && errno == EINTR) continue;
    failed = failed || status != 0;
  }
  if (failed) {
    std::fprintf(stderr, "custom_policy: the training failed\n");
    return 1;
  }

  bool same = true, learned = true;
  for (const report& r : reports) {
    same = same && r.parameters_hash == reports[0].parameters_hash;
    learned = learned && r.last_loss < 0.05 * r.first_loss;
  }
  for (std::size_t rank = 0; rank < processes; ++rank)
    std::printf("rank %zu: loss %.4f -> %.4f, %.1f kB sent\n", rank, reports[rank].first_loss, reports[rank].last_loss,
                static_cast<double>(reports[rank].bytes_sent) / 1000.0);
  std::printf("sending everything at every step: %.1f kB\n",
              static_cast<double>(
                  slamb::bytes_sent_by(slamb::collective::all_reduce, 4 * (inputs + 1) * outputs, processes) * steps) /
                  1000.0);
  std::printf("parameters are %s on all %d processes\n", same ? "the same" : "DIFFERENT", processes);
  if (std::fflush(stdout) != 0 || std::ferror(stdout)) throw std::runtime_error("the output could not be written");
  if (!learned) std::fprintf(stderr, "custom_policy: the loss did not fall to a twentieth\n");
  return same && learned ? 0 : 1;
}

}  // namespace

int main(int count, char** arguments) {
  // --leave: rank 1 leaves half-way, to show that the others end with an error and do not hang.
  const bool leave_early = count == 2 && std::string(arguments[1]) == "--leave";
  if (count > 1 && !leave_early) {
    std::fprintf(stderr, "usage: custom_policy [--leave]\n");
    return 2;
  }
  try {
    return run(leave_early);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "custom_policy: %s\n", e.what());
    return 1;
  }
}
