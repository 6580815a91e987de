// The loss of shared_loss.hpp on a GPU: parameters and gradients stay in its memory while a rank trains.
#pragma once

#include <thrust/copy.h>
#include <thrust/device_vector.h>

#include <cstdio>
#include <exception>
#include <slamb/slamb.hpp>
#include <utility>
#include <vector>

#include "cuda_stream.hpp"
#include "shared_loss.hpp"

namespace examples {

/// gradient ← w − centre, all [elements].
__global__ inline void gradient_kernel(const float* w, const float* centre, float* gradient) {
  const std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < elements) gradient[i] = w[i] - centre[i];
}

/// One rank's parameters and its part of the loss, on the current GPU.
class device_loss {
 public:
  explicit device_loss(int rank) : w_(elements, 1.0F), gradient_(elements), centre_(elements) {
    std::vector<float> values(elements);
    for (std::size_t i = 0; i < elements; ++i) values[i] = centre(rank, i);
    thrust::copy(values.begin(), values.end(), centre_.begin());
  }

  /// The parameters for an optimizer: pointers to GPU memory.
  std::vector<slamb::parameter> parameters() {
    return {{.data = w_.data().get(), .gradient = gradient_.data().get(), .size = elements}};
  }

  /// Enqueues the computation of the gradient.
  void compute_gradient(cudaStream_t stream) {
    constexpr unsigned threads = 256;
    gradient_kernel<<<(elements + threads - 1) / threads, threads, 0, stream>>>(w_.data().get(), centre_.data().get(),
                                                                                gradient_.data().get());
    programs::require_success(cudaGetLastError(), "gradient_kernel's launch");
  }

  /// A copy of the parameters, after all work on them is done.
  std::vector<float> downloaded() const {
    std::vector<float> values(elements);
    thrust::copy(w_.begin(), w_.end(), values.begin());
    return values;
  }

 private:
  thrust::device_vector<float> w_, gradient_, centre_;
};

/// As minimize(), on the current GPU.
template <class Optimizer, class Communicator>
outcome minimize_on_device(Communicator communicator, const typename Optimizer::options_type& options, double peak) {
  const int rank = communicator.rank(), ranks = communicator.size();
  const programs::cuda_stream stream;
  device_loss loss(rank);
  Optimizer optimizer(loss.parameters(), options, std::move(communicator), {.stream = stream});
  const slamb::learning_rate::polynomial_decay schedule{.peak = peak, .steps = steps};
  try {
    for (std::uint64_t t = 1; t <= steps; ++t) {
      loss.compute_gradient(stream);
      optimizer.step(schedule(t));
    }
    optimizer.synchronize_parameters();
    optimizer.compare_ranks();
    const slamb::traffic sent = optimizer.statistics().traffic.total();  // waits for the stream
    return {loss_left(loss.downloaded(), ranks), sent.sent_bytes, sent.rounds};
  } catch (const std::exception& failure) {
    if constexpr (requires { optimizer.communicator().abort(failure.what()); })
      optimizer.communicator().abort(failure.what());  // otherwise its destructor would wait for the peers
    throw;
  }
}

/// True if there are at least `wanted` GPUs. If not, prints a line that begins with "skipped".
inline bool has_gpus(int wanted) {
  int found = 0;
  const cudaError_t code = cudaGetDeviceCount(&found);
  if (code != cudaErrorNoDevice && code != cudaErrorInsufficientDriver)
    programs::require_success(code, "cudaGetDeviceCount");
  if (code == cudaSuccess && found >= wanted) return true;
  std::printf("skipped: it needs %d GPUs, but there are %d (%s)\n", wanted, code == cudaSuccess ? found : 0,
              cudaGetErrorString(code));
  return false;
}
constexpr int skipped = 77;  ///< the exit status that ctest shows as skipped

}  // namespace examples
