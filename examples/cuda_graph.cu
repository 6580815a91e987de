// A training step as a CUDA graph: the gradient and the step are captured once, then launched for every step.
//
//     cmake --preset cuda -DCMAKE_CUDA_ARCHITECTURES=native
//     cmake --build --preset cuda --target example_cuda_graph && build/cuda/bin/example_cuda_graph
//
// LAMB minimizes the loss of common/device_loss.cuh on one GPU, once by steps and once by launches of a captured step: both end
// with the same bits. Then two ranks, threads that share the GPU, minimize it by SLAMB. Their steps are not captured, because
// the streams of the ranks wait for each other. It prints the remaining loss and the bytes that rank 0 has sent:
//
//     lamb, a captured step     … of the loss is left, …
//     slamb, two ranks          … of the loss is left, …
//
// Exit status: 0; 1 for an error; 77 without a GPU.
#include <thrust/device_vector.h>

#include <cstdint>
#include <cstdio>
#include <exception>
#include <slamb/slamb.hpp>
#include <stdexcept>
#include <utility>
#include <vector>

#include "common/cuda_stream.hpp"
#include "common/device_loss.cuh"

namespace {

using programs::require_success;

/// Captures the work that body() enqueues on a stream, without running it.
class graph {
 public:
  template <class Body>
  graph(cudaStream_t stream, const Body& body) : stream_(stream) {
    require_success(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
    body();
    require_success(cudaStreamEndCapture(stream_, &captured_), "cudaStreamEndCapture");
    require_success(cudaGraphInstantiate(&executable_, captured_, 0), "cudaGraphInstantiate");
  }
  graph(graph&&) = delete;
  ~graph() {
    cudaGraphExecDestroy(executable_);
    cudaGraphDestroy(captured_);
  }

  void launch() const { require_success(cudaGraphLaunch(executable_, stream_), "cudaGraphLaunch"); }

 private:
  cudaStream_t stream_;
  cudaGraph_t captured_ = nullptr;
  cudaGraphExec_t executable_ = nullptr;
};

/// All steps of one rank. Returns the final parameters.
std::vector<float> train(bool by_graph) {
  const programs::cuda_stream stream;
  examples::device_loss loss(0);
  slamb::lamb<slamb::cuda_backend> optimizer(loss.parameters(), {.weight_decay = 0.0}, {}, {.stream = stream});
  // A launch reads its learning rate from the place that the captured step has read.
  const slamb::learning_rate::polynomial_decay schedule{.peak = 0.03, .steps = examples::steps};
  std::vector<double> by_step;
  for (std::uint64_t t = 1; t <= examples::steps; ++t) by_step.push_back(schedule(t));
  const thrust::device_vector<double> rates(by_step.begin(), by_step.end());
  thrust::device_vector<double> rate(1);
  double* const now = rate.data().get();
  const auto set_rate = [&](std::uint64_t t) {
    require_success(cudaMemcpyAsync(now, rates.data().get() + t - 1, sizeof(double), cudaMemcpyDefault, stream),
                    "cudaMemcpyAsync");
  };
  const auto take_step = [&] {
    loss.compute_gradient(stream);
    optimizer.step(slamb::device_learning_rates{now});
  };

  set_rate(1);
  take_step();  // the first step is not captured: it copies tables to the device and loads kernels
  if (by_graph) {
    const graph step(stream, take_step);  // destroyed before the optimizer, because it points to the optimizer's memory
    for (std::uint64_t t = 2; t <= examples::steps; ++t) set_rate(t), step.launch();
    stream.wait();
  } else {
    for (std::uint64_t t = 2; t <= examples::steps; ++t) set_rate(t), take_step();
    stream.wait();
  }
  return loss.downloaded();
}

void train_two_ranks() {
  using ranks = slamb::cuda_thread_communicator;
  using optimizer = slamb::slamb<ranks, slamb::cuda_backend>;
  slamb::run_ranks(2, [](slamb::thread_communicator host) {
    const int rank = host.rank();
    const auto result =
        examples::minimize_on_device<optimizer>(ranks(std::move(host)), {.weight_decay = 0.0, .local_steps = 50}, 0.06);
    if (rank == 0) examples::print("slamb, two ranks", result);
  });
}

}  // namespace

int main() try {
  if (!examples::has_gpus(1)) return examples::skipped;
  const std::vector<float> launched = train(true);
  if (launched != train(false)) throw std::runtime_error("launches of the graph gave other parameters than steps");
  examples::print("lamb, a captured step", {.loss_left = examples::loss_left(launched, 1)});
  train_two_ranks();
  return 0;
} catch (const std::exception& failure) {
  std::fprintf(stderr, "example_cuda_graph: %s\n", failure.what());
  return 1;
}
