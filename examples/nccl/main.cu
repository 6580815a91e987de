// slamb_nccl_example: SLAMB over NCCL, a process and a GPU a rank. The program starts its ranks itself.
//
// All ranks fit one linear map to examples of their own. Gradients are made on the GPU and stay there. The program
// prints the loss, the bytes sent, and whether all ranks have ended with the same parameters.
//
// Exit status: 0; 1 for what went wrong at work; 2 for a wrong command line; 77 if there are too few GPUs.
#include <charconv>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <slamb/nccl.hpp>
#include <slamb/slamb.hpp>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "../device_memory.hpp"
#include "processes.hpp"

namespace {

constexpr int skipped = 77;
constexpr int most_ranks = 64;
constexpr std::uint64_t steps = 400;
constexpr unsigned inputs = 128, outputs = 128, examples = 256;

// ------------------------------------------------------------------------------------------------- the model

/// residual [examples × outputs] = x [examples × inputs] · w [inputs × outputs] − y. A block an example, a thread an
/// output.
__global__ void residual_kernel(const float* x, const float* w, const float* y, float* residual) {
  const unsigned of = blockIdx.x * outputs + threadIdx.x;
  float sum = -y[of];
  for (unsigned i = 0; i < inputs; ++i) sum += x[blockIdx.x * inputs + i] * w[i * outputs + threadIdx.x];
  residual[of] = sum;
}

/// gradient [inputs × outputs] = xᵀ · residual / examples. A block an input, a thread an output.
__global__ void gradient_kernel(const float* x, const float* residual, float* gradient) {
  float sum = 0.0F;
  for (unsigned e = 0; e < examples; ++e) sum += x[e * inputs + blockIdx.x] * residual[e * outputs + threadIdx.x];
  gradient[blockIdx.x * outputs + threadIdx.x] = sum / examples;
}

/// `count` numbers in [−1, 1), the same on every machine.
std::vector<float> random_numbers(std::uint64_t seed, std::size_t count) {
  std::vector<float> numbers(count);
  for (std::size_t i = 0; i < count; ++i)
    numbers[i] = static_cast<float>(slamb::philox(seed, i, 0).word[0]) * 0x1p-31F - 1.0F;
  return numbers;
}

/// One rank's examples, y = x w*, with the same w* for all ranks, and the derivative of ½ ‖x w − y‖² / examples.
class regression {
 public:
  regression(int rank, cudaStream_t stream) : stream_(stream) {
    const std::vector<float> x = random_numbers(2 + static_cast<std::uint64_t>(rank), x_.size());
    const std::vector<float> solution = random_numbers(1, weights_.size());
    device_memory::copy(x.data(), x_.data(), x.size(), stream_);
    device_memory::copy(solution.data(), weights_.data(), solution.size(), stream_);
    slamb::detail::check_cuda(cudaMemsetAsync(y_.data(), 0, y_.size() * sizeof(float), stream_), "cudaMemsetAsync");
    compute_residual(y_.data());  // x w* − 0
    slamb::detail::check_cuda(cudaMemsetAsync(weights_.data(), 0, weights_.size() * sizeof(float), stream_),
                              "cudaMemsetAsync");
  }

  /// What the optimizer takes: pointers to memory of the GPU.
  slamb::parameter weights() const {
    return {.data = weights_.data(), .gradient = gradient_.data(), .size = weights_.size()};
  }

  /// Enqueues the kernels that leave the gradient.
  void compute_gradient() const {
    compute_residual(residual_.data());
    gradient_kernel<<<inputs, outputs, 0, stream_>>>(x_.data(), residual_.data(), gradient_.data());
    slamb::detail::check_cuda(cudaGetLastError(), "gradient_kernel's launch");
  }

  /// (x w − y) [examples × outputs] as of the last gradient.
  std::span<const float> residual() const { return residual_.span(); }

 private:
  void compute_residual(float* into) const {
    residual_kernel<<<examples, outputs, 0, stream_>>>(x_.data(), weights_.data(), y_.data(), into);
    slamb::detail::check_cuda(cudaGetLastError(), "residual_kernel's launch");
  }

  cudaStream_t stream_;
  device_memory::floats x_{examples * inputs}, y_{examples * outputs}, residual_{examples * outputs};
  device_memory::floats weights_{inputs * outputs}, gradient_{inputs * outputs};
};

// ----------------------------------------------------------------------------------------------- the training

using optimizer_type =
    slamb::slamb<slamb::nccl_communicator, slamb::random_k<>, slamb::rescaled_trust_ratio<>, slamb::cuda_backend>;

/// Values of the GPU once the stream has come to them. It is the communicator that waits, for it gives up when a peer
/// is gone.
std::vector<float> downloaded(std::span<const float> values, slamb::nccl_communicator& ranks, cudaStream_t stream) {
  ranks.wait(stream);
  std::vector<float> here(values.size());
  device_memory::copy(values.data(), here.data(), values.size(), stream);
  ranks.wait(stream);
  return here;
}

double mean_square(std::span<const float> values) {
  double sum = 0.0;
  for (const double x : values) sum += x * x;
  return sum / static_cast<double>(values.size());
}

/// Throws if this rank's parameters have other bits than those of rank 0.
void require_same_parameters(std::span<const float> parameters, slamb::nccl_communicator& ranks, cudaStream_t stream) {
  const device_memory::floats of_rank_0(parameters.size());
  device_memory::copy(parameters.data(), of_rank_0.data(), parameters.size(), stream);
  ranks.broadcast(of_rank_0.span(), 0, stream);
  const std::vector<float> expected = downloaded(of_rank_0.span(), ranks, stream);
  const std::vector<float> own = downloaded(parameters, ranks, stream);
  if (std::memcmp(own.data(), expected.data(), parameters.size_bytes()) != 0)
    throw std::runtime_error("ended with other parameters than rank 0");
}

/// All steps. Prints the loss over the examples of rank 0; throws if it does not fall to a hundredth.
void fit(const regression& model, optimizer_type& optimizer, cudaStream_t stream) {
  slamb::nccl_communicator& ranks = optimizer.communicator();
  const slamb::linear_warmup schedule{steps / 10, slamb::cosine_decay{.peak = 0.05, .steps = steps - steps / 10}};
  double first_loss = 0.0;
  for (std::uint64_t taken = 0;; ++taken) {
    if (taken == steps) optimizer.synchronize_parameters();
    model.compute_gradient();
    if (taken % 100 == 0) {
      const double loss = mean_square(downloaded(model.residual(), ranks, stream));
      if (taken == 0) first_loss = loss;
      if (ranks.rank() == 0) std::printf("after %3d steps: loss %.6f\n", static_cast<int>(taken), loss);
      std::fflush(stdout);  // what is in the buffer of a process that is killed is lost
      if (taken == steps && !(loss < 0.01 * first_loss))
        throw std::runtime_error("the loss did not fall to a hundredth of what it was");
    }
    if (taken == steps) return;
    optimizer.step(schedule(taken + 1));
  }
}

/// One rank, on the GPU of its number.
void train(const ncclUniqueId& id, int rank, int ranks) {
  slamb::detail::check_cuda(cudaSetDevice(rank), "cudaSetDevice");
  const device_memory::stream stream;
  const regression model(rank, stream);
  const slamb::parameter weights = model.weights();
  optimizer_type optimizer({&weights, 1}, {.weight_decay = 0.0, .local_steps = 50},
                           slamb::nccl_communicator(id, rank, ranks, {.timeout = std::chrono::seconds(60)}),
                           {.stream = stream});
  try {
    fit(model, optimizer, stream);
    require_same_parameters({weights.data, weights.size}, optimizer.communicator(), stream);
  } catch (const std::exception& failure) {
    optimizer.communicator().abort(failure.what());  // or its destructor would wait for the peers
    throw;
  }
  if (rank != 0) return;
  const auto dense = steps * slamb::bytes_sent_by(slamb::collective::all_reduce, weights.size * sizeof(float), ranks);
  std::printf("rank 0 has sent %.2f MB; dense gradients would be %.2f MB\n",
              static_cast<double>(optimizer.statistics().traffic.total().sent_bytes) / 1e6,
              static_cast<double>(dense) / 1e6);
}

// ------------------------------------------------------------------------------------------------ the processes

/// 0 if there is a GPU for each rank, else says so and returns what ctest shows as skipped.
int find_devices(int ranks) {
  int devices = 0;
  const cudaError_t found = cudaGetDeviceCount(&devices);
  if (found != cudaErrorNoDevice && found != cudaErrorInsufficientDriver)
    slamb::detail::check_cuda(found, "cudaGetDeviceCount");
  if (found == cudaSuccess && devices >= ranks) return 0;
  std::printf("skipped: NCCL needs a GPU for each rank: --ranks is %d, but there are %d GPUs (%s)\n", ranks,
              found == cudaSuccess ? devices : 0, cudaGetErrorString(found));
  return skipped;
}

int run(int ranks) {
  // In a process of its own: once this one had used CUDA, those forked from it could not.
  const int status = processes::run(1, [&](int) { return find_devices(ranks); });
  if (status != 0) return status;
  const processes::mailbox<ncclUniqueId> ids(ranks);
  const int trained = processes::run(ranks, [&](int rank) {
    train(ids.share(rank, slamb::nccl_communicator::unique_id), rank, ranks);
    return 0;
  });
  if (trained == 0) std::printf("all %d ranks have ended with the same parameters\n", ranks);
  return trained;
}

/// The number that `text` is, 0 if it is none.
int number_of(std::string_view text) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc{} && end == text.data() + text.size() ? value : 0;
}

constexpr const char* usage = "usage: slamb_nccl_example [--ranks N]    N processes, each with a GPU of its own [2]";

}  // namespace

int main(int count, char** arguments) {
  int ranks = 2;
  for (int i = 1; i < count; ++i) {
    const std::string_view option = arguments[i];
    if (option == "--help") {
      std::puts(usage);
      return 0;
    }
    if (option != "--ranks") {
      std::fprintf(stderr, "slamb_nccl_example: '%s' is no option\n%s\n", arguments[i], usage);
      return 2;
    }
    const char* const value = ++i < count ? arguments[i] : "";
    ranks = number_of(value);
    if (ranks < 1 || ranks > most_ranks) {
      std::fprintf(stderr, "slamb_nccl_example: --ranks: '%s' is not an integer in [1, %d]\n", value, most_ranks);
      return 2;
    }
  }
  try {
    return run(ranks);
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "slamb_nccl_example: %s\n", failure.what());
    return 1;
  }
}
