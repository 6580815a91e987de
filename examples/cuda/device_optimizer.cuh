// An optimizer on the GPU for a model on the host: parameters, gradients and the optimizer's state are in device
// memory, and each step copies gradients there and parameters back. A model that lives on the GPU needs no copies: name
// its own buffers.
#pragma once

#include <functional>
#include <slamb/slamb.hpp>
#include <span>
#include <utility>
#include <vector>

#include "../device_memory.hpp"
#include "../train/rank_optimizer.hpp"

namespace cuda_example {

/// One rank's optimizer of any recipe on cuda_backend, over copies of the tensors of the host.
template <class Optimizer>
class device_optimizer final : public train::rank_optimizer {
 public:
  device_optimizer(std::span<const slamb::parameter> on_host, const typename Optimizer::options_type& options,
                   slamb::thread_communicator ranks)
      : tensors_(on_host.begin(), on_host.end()),
        optimizer_(uploaded_parameters(), options, slamb::cuda_thread_communicator(std::move(ranks)),
                   {.stream = stream_}) {}
  /// Waits for the streams of all ranks: one that has failed may still be read by what its peers have enqueued.
  ~device_optimizer() override { cudaDeviceSynchronize(); }

  void step(double learning_rate) override {
    for (const tensor& t : tensors_)
      device_memory::copy(t.on_host.gradient, t.gradient.data(), t.on_host.size, stream_);
    optimizer_.step(learning_rate);
    download_parameters();
  }

  void with_averaged_parameters(const std::function<void()>& evaluate) override {
    optimizer_.with_averaged_parameters([&] {
      download_parameters();
      evaluate();
    });
    download_parameters();
  }

  slamb::statistics statistics() const override { return optimizer_.statistics(); }

 private:
  struct tensor {
    explicit tensor(const slamb::parameter& of) : on_host(of), data(of.size), gradient(of.size) {}

    slamb::parameter on_host;
    device_memory::floats data;
    device_memory::floats gradient;
  };

  /// The tensors as the optimizer takes them: the same sizes and options, with pointers to device memory.
  std::vector<slamb::parameter> uploaded_parameters() const {
    std::vector<slamb::parameter> parameters;
    for (const tensor& t : tensors_) {
      device_memory::copy(t.on_host.data, t.data.data(), t.on_host.size, stream_);
      slamb::parameter on_device = t.on_host;
      on_device.data = t.data.data();
      on_device.gradient = t.gradient.data();
      parameters.push_back(on_device);
    }
    return parameters;
  }

  void download_parameters() const {
    for (const tensor& t : tensors_) device_memory::copy(t.data.data(), t.on_host.data, t.on_host.size, stream_);
    stream_.wait();
  }

  // The optimizer is destroyed first, and the stream that it works on last.
  device_memory::stream stream_;
  std::vector<tensor> tensors_;
  Optimizer optimizer_;
};

}  // namespace cuda_example
