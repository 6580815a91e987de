// The scenarios of ranks that are processes, over NCCL on one GPU.
//
//   slamb_device_nccl_tests [--ranks N] [--shards S] [--jobs N]     2 ranks; 4 groups of ranks that lose one, at a time
//
// --shards: each S of the N ranks hold a model together.
// NCCL refuses two ranks on one GPU of one host. So each process claims a host of its own, and NCCL connects them by sockets of the
// loopback interface. Exit status: 0; 1 if something is wrong; 2 for a wrong command line; 77, with a line "skipped: …", without
// a GPU, or if NCCL refuses nevertheless.
#include <cuda_runtime_api.h>

#include <array>
#include <charconv>
#include <cstdlib>
#include <exception>
#include <memory>
#include <slamb/core/cuda_error.hpp>
#include <slamb/nccl.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "../../../examples/common/cuda_stream.hpp"
#include "../../distributed/processes/scenarios.hpp"
#include "../gpu.hpp"
#include "recipes.hpp"

namespace rank_tests {
namespace {

constexpr int most_ranks = 16;

using slamb::detail::check_cuda;

/// Floats in memory of the GPU. Copies are in the order of a stream.
class device_array {
 public:
  device_array(std::size_t count, cudaStream_t on) : count_(count), on_(on) {
    void* memory = nullptr;
    check_cuda(cudaMalloc(&memory, count * sizeof(float)), "cudaMalloc");
    values_.reset(static_cast<float*>(memory));
  }

  float* data() { return values_.get(); }
  void write(std::span<const float> values) { copy(values_.get(), values.data(), values.size_bytes()); }
  std::vector<float> read() const {
    std::vector<float> values(count_);
    copy(values.data(), values_.get(), count_ * sizeof(float));
    return values;
  }

 private:
  struct release {
    void operator()(float* memory) const { static_cast<void>(cudaFree(memory)); }
  };

  void copy(void* to, const void* from, std::size_t bytes) const {
    check_cuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, on_), "cudaMemcpyAsync");
    check_cuda(cudaStreamSynchronize(on_), "cudaStreamSynchronize");
  }

  std::size_t count_;
  cudaStream_t on_;
  std::unique_ptr<float, release> values_;
};

/// A graph of the stream's work between construction and `end`.
class captured_graph {
 public:
  explicit captured_graph(cudaStream_t on) : on_(on) {
    check_cuda(cudaStreamBeginCapture(on_, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
  }
  captured_graph(captured_graph&&) = delete;
  ~captured_graph() {
    if (executable_ != nullptr) cudaGraphExecDestroy(executable_);
    if (graph_ != nullptr) cudaGraphDestroy(graph_);
  }

  void end() {
    check_cuda(cudaStreamEndCapture(on_, &graph_), "cudaStreamEndCapture");
    check_cuda(cudaGraphInstantiate(&executable_, graph_, 0), "cudaGraphInstantiate");
  }
  void launch() const { check_cuda(cudaGraphLaunch(executable_, on_), "cudaGraphLaunch"); }

 private:
  cudaStream_t on_;
  cudaGraph_t graph_ = nullptr;
  cudaGraphExec_t executable_ = nullptr;
};

struct nccl_world {
  using stream_type = cudaStream_t;
  using ranks_type = decltype(device_tests::ingredients::ranks);

  class place {
   public:
    using array = device_array;

    array floats(std::size_t count) { return {count, on_}; }
    cudaStream_t stream() const { return on_; }

   private:
    programs::cuda_stream on_;
  };

  class meeting {
   public:
    explicit meeting(int ranks) : ranks_(ranks), ids_(ranks) {}
    void introduce(int rank) const { id_ = ids_.share(rank, slamb::nccl_communicator::unique_id); }
    device_tests::device_ranks join(int rank, milliseconds timeout) const {
      return device_tests::device_ranks(
          slamb::nccl_communicator(id_, rank, ranks_, {.timeout = timeout, .abort_timeout = waits.abort_timeout}));
    }

   private:
    int ranks_;
    programs::mailbox<ncclUniqueId> ids_;
    mutable ncclUniqueId id_{};  // of this process
  };

  static constexpr bool has_graphs = true;
  static constexpr limits waits{.timeout = std::chrono::seconds(60),
                                .accident_timeout = std::chrono::seconds(10),
                                .abort_timeout = std::chrono::seconds(10)};

  /// The settings that let NCCL join several processes on one GPU, unless the environment has others.
  static void prepare(int rank) {
    setenv("NCCL_HOSTID", ("slamb-rank-" + std::to_string(rank)).c_str(), 1);
    constexpr std::array<std::pair<const char*, const char*>, 7> settings{{{"NCCL_SOCKET_IFNAME", "lo"},
                                                                           {"NCCL_NET", "Socket"},
                                                                           {"NCCL_IB_DISABLE", "1"},
                                                                           {"NCCL_P2P_DISABLE", "1"},
                                                                           {"NCCL_SHM_DISABLE", "1"},
                                                                           {"NCCL_MAX_CTAS", "2"},
                                                                           {"CUDA_MODULE_LOADING", "EAGER"}}};
    for (const auto& [name, value] : settings) setenv(name, value, 0);
    check_cuda(cudaSetDevice(0), "cudaSetDevice");
  }
  static std::shared_ptr<device_tests::device_ranks> joined(const std::shared_ptr<device_tests::device_ranks>& ranks) {
    return ranks;
  }
  static void check(device_tests::device_ranks& ranks, place& at) {
    device_tests::check_nccl_ranks(ranks.get<slamb::nccl_communicator>(), at.stream());
  }
  static std::string refusal(const std::exception& failure) {
    const std::string text = failure.what();
    return text.find("Duplicate GPU") == std::string::npos ? "" : "NCCL refuses several ranks on one GPU: " + text;
  }
  static bool names_the_cause(const std::string& text) {
    return text.find("(ncclResult_t ") != std::string::npos || text.find("was not done within ") != std::string::npos;
  }

  /// @param new_ranks  returns a Communicator for another optimizer
  template <class NewRanks>
  static std::string compare_graph(const recipe<nccl_world>& of, const NewRanks& new_ranks, const rank_of_run& rank,
                                   place& at) {
    device_array rates(2, at.stream());  // a double
    auto* const stored = reinterpret_cast<double*>(rates.data());
    const auto train = [&](bool by_graph) {
      training<nccl_world> run(of, new_ranks(), rank, at, true);
      constexpr std::size_t first = 5;  // steps that are not captured, in which warm-ups end
      for (std::size_t t = 0; t < first; ++t) run.step(t);
      const auto prepare = [&](std::size_t t) {
        run.prepare(t, t == first + 2 && rank.rank == 0);
        const double rate = 0.01 / (1.0 + static_cast<double>(t));
        check_cuda(cudaMemcpyAsync(stored, &rate, sizeof rate, cudaMemcpyDefault, at.stream()), "cudaMemcpyAsync");
        check_cuda(cudaStreamSynchronize(at.stream()), "cudaStreamSynchronize");
      };
      prepare(first);
      if (!by_graph) {
        for (std::size_t t = first; t < steps; ++t) {
          prepare(t);
          run.optimizer().step(slamb::device_learning_rates{stored});
        }
        return run.parameters();
      }
      captured_graph graph(at.stream());  // destroyed before the optimizer, to whose memory it points
      run.optimizer().step(slamb::device_learning_rates{stored});
      graph.end();
      for (std::size_t t = first; t < steps; ++t) {
        prepare(t);
        graph.launch();
      }
      return run.parameters();
    };
    const std::vector<float> plain = train(false);
    return same_bits(train(true), plain) ? "" : "other parameters than by plain steps";
  }

  template <auto OnDevice>
  static std::shared_ptr<slamb::optimizer> make(std::span<const slamb::parameter> tensors, ranks_type ranks, place& at,
                                                bool is_captured) {
    const std::shared_ptr<device_tests::optimizer> made =
        OnDevice({.tensors = tensors, .ranks = std::move(ranks), .stream = at.stream(), .is_captured = is_captured});
    return {made, &made->get()};
  }

  static ranks_type ranks_of_shards(slamb::thread_communicator exchange, slamb::thread_communicator shards) {
    return device_tests::thread_shards{std::move(exchange), std::move(shards)};
  }

  static const recipe<nccl_world> recipes[9];
};

using namespace device_tests;  // the recipes

constexpr recipe<nccl_world> nccl_world::recipes[9] = {
    {.name = "adamw", .make = nccl_world::make<adamw_on_device>, .has_exact_sums = true, .can_be_captured = true},
    {.name = "lamb",
     .make = nccl_world::make<lamb_on_device>,
     .has_exact_sums = true,
     .can_be_captured = true,
     .loses_one_of = 2},
    {.name = "lamb_int8",
     .make = nccl_world::make<lamb_int8_on_device>,
     .has_exact_sums = true,
     .can_be_captured = true},
    {.name = "slamb", .make = nccl_world::make<slamb_on_device>, .can_be_captured = true},
    {.name = "slamb_int8", .make = nccl_world::make<slamb_int8_on_device>, .can_be_captured = true},
    {.name = "slamb_by_differences", .make = nccl_world::make<slamb_by_differences_on_device>, .loses_one_of = 2},
    {.name = "one_bit_adam",
     .make = nccl_world::make<one_bit_adam_on_device>,
     .has_exact_sums = true,
     .can_be_captured = true},
    {.name = "one_bit_lamb",
     .make = nccl_world::make<one_bit_lamb_on_device>,
     .has_exact_sums = true,
     .can_be_captured = true,
     .loses_one_of = most_ranks},
    {.name = "zero_one_adam", .make = nccl_world::make<zero_one_adam_on_device>, .has_local_steps = true},
};

int run(int ranks, int shards, int jobs) {
  adopt_orphans();
  // In a process of its own: processes forked from one that has used CUDA cannot use CUDA.
  const int gpu = programs::run_forked(1, [](int) { return device_tests::status_without_gpu(); });
  if (gpu != 0) return gpu;
  const findings<nccl_world> found(ranks, shards);
  results all;
  if (!run_well<nccl_world>(ranks, found, all)) {
    std::printf("skipped: %s\n", found.refusal[0].get().c_str());
    return status_of_refusal;
  }
  lose_ranks<nccl_world>(ranks, static_cast<std::size_t>(jobs), found, all);
  return all.print_counts();
}

/// The number in `text`, 0 if it is not a number.
int number_of(std::string_view text) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc{} && end == text.data() + text.size() ? value : 0;
}

}  // namespace
}  // namespace rank_tests

int main(int count, char** arguments) try {
  int ranks = 2;
  int shards = 1;
  int jobs = 4;
  bool is_right = count % 2 == 1;
  for (int i = 1; i + 1 < count; i += 2) {
    const std::string_view option = arguments[i];
    const int value = rank_tests::number_of(arguments[i + 1]);
    if (option == "--ranks")
      ranks = value;
    else if (option == "--shards")
      shards = value;
    else if (option == "--jobs")
      jobs = value;
    else
      is_right = false;
  }
  if (!is_right || ranks < 2 || ranks > rank_tests::most_ranks || jobs < 1 || shards < 1 || ranks % shards != 0) {
    std::fprintf(
        stderr,
        "usage: slamb_device_nccl_tests [--ranks N] [--shards S] [--jobs N], where N is 2 to 16, and S divides "
        "it\n");
    return 2;
  }
  return rank_tests::run(ranks, shards, jobs);
} catch (const std::exception& failure) {
  std::fprintf(stderr, "slamb_device_nccl_tests: %s\n", failure.what());
  return 1;
}
