#include "device_step.hpp"

#include <thrust/device_vector.h>

#include <algorithm>
#include <array>
#include <barrier>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "../made_up.hpp"
#include "../meeting.hpp"
#include "../planned_bytes.hpp"
#include "median.hpp"
#include "slamb/communicator/run_ranks.hpp"

namespace bench {
namespace {

std::size_t padded(std::size_t elements) { return (elements + 15) / 16 * 16; }
std::size_t padded_elements(const shape_set& shapes) {
  std::size_t sum = 0;
  for (const tensor_shape& tensor : shapes.tensors) sum += padded(tensor.size());
  return sum + 1;
}

// Parameters and gradients of one rank.
class device_model {
 public:
  device_model(const shape_set& shapes, bool is_aligned, cudaStream_t stream)
      : parameters_(padded_elements(shapes), made_up_parameters, stream),
        gradients_(parameters_.size(), made_up_gradients, stream) {
    std::size_t first = is_aligned ? 0 : 1;
    for (const tensor_shape& tensor : shapes.tensors) {
      tensors_.push_back({.data = parameters_.data() + first,
                          .gradient = gradients_.data() + first,
                          .size = tensor.size(),
                          .dimensions = tensor.dimensions()});
      first += is_aligned ? padded(tensor.size()) : tensor.size();
    }
  }

  const std::vector<slamb::parameter>& tensors() const noexcept { return tensors_; }

 private:
  made_up_array parameters_;
  made_up_array gradients_;
  std::vector<slamb::parameter> tensors_;
};

// A captured step.
class captured_step {
 public:
  captured_step(stepper& own, cudaStream_t stream, const slamb::device_learning_rates& rates) : stream_(stream) {
    slamb::detail::check_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal),
                              "cudaStreamBeginCapture");
    own.step(rates);
    slamb::detail::check_cuda(cudaStreamEndCapture(stream, &graph_), "cudaStreamEndCapture");
    slamb::detail::check_cuda(cudaGraphInstantiate(&executable_, graph_, 0), "cudaGraphInstantiate");
  }
  captured_step(captured_step&&) = delete;
  ~captured_step() {
    if (executable_ != nullptr) cudaGraphExecDestroy(executable_);
    if (graph_ != nullptr) cudaGraphDestroy(graph_);
  }

  void launch() const { slamb::detail::check_cuda(cudaGraphLaunch(executable_, stream_), "cudaGraphLaunch"); }

 private:
  cudaStream_t stream_;
  cudaGraph_t graph_ = nullptr;
  cudaGraphExec_t executable_ = nullptr;
};

// One rank during the benchmark.
class rank_at_work {
 public:
  rank_at_work(const step_benchmark& benchmark, const shape_set& shapes, slamb::thread_communicator ranks)
      : timer_(stream_), model_(shapes, benchmark.is_aligned, stream_) {
    own_ = benchmark.make({model_.tensors(), std::move(ranks), stream_, &timer_, benchmark.settings});
  }

  void step() { own_->step(learning_rate); }
  /// From now on `time_of` launches a graph of a step.
  void capture() {
    const std::array rate{learning_rate};
    rate_.assign(rate.begin(), rate.end());
    stream_.wait();
    graph_.emplace(*own_, stream_, slamb::device_learning_rates{rate_.data().get()});
  }
  void wait() const { stream_.wait(); }
  const stepper& optimizer() const noexcept { return *own_; }

  // Seconds per step. Waits.
  double time_of(std::size_t steps) {
    begin_.record(stream_);
    for (std::size_t i = 0; i < steps; ++i) {
      if (graph_)
        graph_->launch();
      else
        step();
    }
    end_.record(stream_);
    return end_.seconds_since(begin_) / static_cast<double>(steps);
  }
  std::vector<timed_call> calls_of_step() {
    return timer_.times_of([this] { step(); });
  }

 private:
  programs::cuda_stream stream_;
  timed_event begin_;
  timed_event end_;
  launch_timer timer_;
  device_model model_;
  thrust::device_vector<double> rate_;
  std::unique_ptr<stepper> own_;
  std::optional<captured_step> graph_;
};

void count_calls(const std::vector<timed_call>& calls, step_result& result) {
  for (const auto& [call, seconds] : calls) {
    result.launches += call.what == device_call::kernel ? 1 : 0;
    result.waits += call.what == device_call::download || call.what == device_call::late_read ? 1 : 0;
  }
}

// The data that the ranks of a benchmark share.
struct run_of_ranks {
  const step_benchmark& benchmark;
  const shape_set& shapes;
  const effort& how_long;
  copy_meter& copy;
  std::barrier<> barrier{static_cast<std::ptrdiff_t>(benchmark.ranks)};
  std::vector<std::vector<double>> times{benchmark.ranks};  // [ranks][batches]
  step_result result{};                                     // the first rank's
};

// The copy is measured while no steps run.
void measure_steps(run_of_ranks& run, rank_at_work& at, meeting& ranks, std::size_t rank) {
  at.wait();
  ranks.wait();
  if (rank == 0) run.result.copy = run.copy.measure();
  for (std::size_t batch = 0; batch < run.how_long.batches; ++batch) {
    ranks.wait();
    run.times[rank].push_back(at.time_of(run.how_long.steps_of_batch));
  }
  ranks.wait();
  if (rank == 0) run.result.copy = mean(run.result.copy, run.copy.measure());
  ranks.wait();
}

void run_rank(run_of_ranks& run, slamb::thread_communicator communicator) {
  const auto rank = static_cast<std::size_t>(communicator.rank());
  meeting ranks(run.barrier);
  rank_at_work at(run.benchmark, run.shapes, std::move(communicator));
  for (int i = 0; i < untimed_steps; ++i) at.step();
  const slamb::statistics before = at.optimizer().statistics(false);
  slamb::statistics after;
  if (run.benchmark.settings.is_captured) {  // the host does not count launches of a graph
    at.step();
    after = at.optimizer().statistics(true);
    at.capture();
    measure_steps(run, at, ranks, rank);
    require_taken(at.optimizer().statistics(true));
  } else {
    measure_steps(run, at, ranks, rank);
    after = at.optimizer().statistics(true);
  }
  const double bytes = at.optimizer().bytes_of_steps(before, after);
  std::vector<std::vector<timed_call>> samples;
  for (std::size_t i = 0; i < run.how_long.samples_of_passes; ++i) samples.push_back(at.calls_of_step());
  if (rank == 0) {
    run.result.bytes = bytes;
    count_calls(samples.back(), run.result);
    if (run.benchmark.ranks == 1) run.result.passes = passes_of(samples, at.optimizer().payload_at(after.step), 1);
  }
  at.wait();
  ranks.wait();  // until then peers may read this rank's buffers
}

}  // namespace

step_result time_step(const step_benchmark& benchmark, const shape_set& shapes, const effort& how_long,
                      copy_meter& copy) {
  int device = 0;
  slamb::detail::check_cuda(cudaGetDevice(&device), "cudaGetDevice");
  run_of_ranks run{.benchmark = benchmark, .shapes = shapes, .how_long = how_long, .copy = copy};
  slamb::run_ranks(static_cast<int>(benchmark.ranks), [&](slamb::thread_communicator communicator) {
    slamb::detail::check_cuda(cudaSetDevice(device), "cudaSetDevice");
    run_rank(run, std::move(communicator));
  });
  std::vector<double> seconds(how_long.batches, 0.0);  // of the slowest rank
  for (const std::vector<double>& of_rank : run.times)
    for (std::size_t batch = 0; batch < seconds.size(); ++batch)
      seconds[batch] = std::max(seconds[batch], of_rank[batch]);
  step_result result = std::move(run.result);
  result.name = benchmark.name;
  result.ranks = benchmark.ranks;
  result.elements = shapes.elements();
  result.seconds = median(seconds);
  result.fastest = *std::ranges::min_element(seconds);
  result.slowest = *std::ranges::max_element(seconds);
  return result;
}

// p, g, m, v; for the 1-bit optimizers also v_f, e, δ, the mean, and codes: 33 bytes. 0/1 Adam has two more arrays. Some more
// for tables.
std::size_t bytes_needed(const step_benchmark& benchmark, const shape_set& shapes) {
  return benchmark.ranks * (padded_elements(shapes) * 48 + (std::size_t{64} << 20U));
}

}  // namespace bench
