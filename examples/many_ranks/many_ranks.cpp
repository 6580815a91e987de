// A library with a C interface, for ranks.py: the optimizers of N ranks, each in a thread of this process.
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <slamb/core/parameter.hpp>
#include <string>
#include <utility>
#include <vector>

#include "optimizers.hpp"
#include "training_ranks.hpp"

extern "C" {

/// A tensor of all ranks, in memory of their device.
struct many_ranks_tensor {
  float* parameters;  ///< [ranks, size]
  float* gradients;   ///< [ranks, size]
  std::uint64_t size;
  double weight_decay;
  int dimensions;  ///< of one rank's tensor
  int adapt;       ///< 0: trust ratio 1
};
}

namespace {

thread_local std::string last_error;

/// The result of `function`, or `failed` after an exception.
template <class Result, class Function>
Result guarded(Result failed, const Function& function) noexcept {
  try {
    return function();
  } catch (const std::exception& error) {
    last_error = error.what();
  } catch (...) {
    last_error = "an exception of unknown type";
  }
  return failed;
}

std::vector<slamb::parameter> parameters_of(int rank, const std::vector<many_ranks_tensor>& tensors) {
  std::vector<slamb::parameter> parameters;
  for (const many_ranks_tensor& tensor : tensors) {
    const std::uint64_t first = static_cast<std::uint64_t>(rank) * tensor.size;
    parameters.push_back({.data = tensor.parameters + first,
                          .gradient = tensor.gradients + first,
                          .size = static_cast<std::size_t>(tensor.size),
                          .dimensions = tensor.dimensions,
                          .options = {.weight_decay = tensor.weight_decay, .adapt = tensor.adapt != 0}});
  }
  return parameters;
}

/// The ranks, with their device.
class training {
 public:
  training(const many_ranks::optimizer_maker& make, int ranks, const std::vector<many_ranks_tensor>& tensors)
      : device_(ranks), ranks_(ranks, [this, make, tensors](slamb::thread_communicator communicator) {
          const std::vector<slamb::parameter> parameters = parameters_of(communicator.rank(), tensors);
          return make(parameters, std::move(communicator), device_);
        }) {}

  /// The caller's work on the device, such as gradients, is done before, and that of the ranks after.
  void step(double learning_rate) {
    device_.wait();
    ranks_.step(learning_rate);
    device_.wait();
  }

  std::uint64_t sent_bytes() { return ranks_.sent_bytes(); }

 private:
  many_ranks::rank_device device_;  // first: the ranks use it until they end
  many_ranks::training_ranks ranks_;
};

}  // namespace

extern "C" {

/// The text of the last error of this thread.
const char* many_ranks_error() { return last_error.c_str(); }

/// The device of the tensors: "cpu" or "cuda".
const char* many_ranks_device() { return many_ranks::rank_device::name; }

/// Makes the optimizers. The tensors' memory must stay where it is until many_ranks_free.
/// @return null after an error
void* many_ranks_new(const char* optimizer, const char* options, int ranks, const many_ranks_tensor* tensors,
                     int count) {
  return guarded<void*>(nullptr, [&] {
    const std::vector<many_ranks_tensor> all(tensors, tensors + count);
    return std::make_unique<training>(many_ranks::maker_of(optimizer, options), ranks, all).release();
  });
}

/// Every rank takes a step.
/// @return 0, or 1 after an error: then the ranks have ended
int many_ranks_step(void* ranks, double learning_rate) {
  return guarded(1, [&] {
    static_cast<training*>(ranks)->step(learning_rate);
    return 0;
  });
}

/// @return bytes that rank 0 has sent; −1 after an error
std::int64_t many_ranks_sent_bytes(void* ranks) {
  return guarded(std::int64_t{-1},
                 [&] { return static_cast<std::int64_t>(static_cast<training*>(ranks)->sent_bytes()); });
}

/// Ends the threads.
void many_ranks_free(void* ranks) { delete static_cast<training*>(ranks); }

}  // extern "C"
