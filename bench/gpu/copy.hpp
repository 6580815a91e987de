// The bandwidth of the GPU's memory, the reference for every step.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>

#include "../../examples/common/cuda_stream.hpp"
#include "../made_up.hpp"
#include "slamb/core/cuda_error.hpp"
#include "timed_event.hpp"

namespace bench {

/// Enqueues to[0 … count) ← from[0 … count) as a kernel. `count` is a multiple of `copy_unit`, and the arrays are aligned to 16
/// bytes.
void enqueue_copy(const float* from, float* to, std::size_t count, cudaStream_t stream);
inline constexpr std::size_t copy_unit = 4096;  ///< elements per block

/// Floats on the current GPU: element i is made_up(i, seed, scale). Enqueues the kernel that fills them. The memory's type is
/// hidden, because only nvcc compiles the code that fills it.
class made_up_array {
 public:
  made_up_array(std::size_t count, const made_up_values& values, cudaStream_t stream);
  ~made_up_array();

  float* data() const noexcept { return data_; }
  std::size_t size() const noexcept { return size_; }

 private:
  struct memory;
  std::unique_ptr<memory> memory_;
  float* data_;
  std::size_t size_;
};

/// Bytes per second, read and written: 8 per element.
struct copy_rate {
  double kernel = 0.0;  ///< of enqueue_copy
  double memcpy = 0.0;  ///< of cudaMemcpyAsync

  friend copy_rate mean(const copy_rate& x, const copy_rate& y) {
    return {(x.kernel + y.kernel) / 2.0, (x.memcpy + y.memcpy) / 2.0};
  }
};

/// Measures copies from one array to another.
class copy_meter {
 public:
  /// @param bytes  of each array: many times the GPU's L2 cache
  explicit copy_meter(std::size_t bytes)
      : from_(bytes / sizeof(float) / copy_unit * copy_unit, {1.0F, 1}, stream_),
        to_(from_.size(), {1.0F, 1}, stream_) {
    measure();
  }

  /// The best of five rounds of both copies. Waits.
  copy_rate measure() {
    copy_rate best;
    for (int round = 0; round < 5; ++round) {
      best.kernel =
          std::max(best.kernel, rate_of([this] { enqueue_copy(from_.data(), to_.data(), from_.size(), stream_); }));
      best.memcpy =
          std::max(best.memcpy, rate_of([this] {
                     slamb::detail::check_cuda(cudaMemcpyAsync(to_.data(), from_.data(), from_.size() * sizeof(float),
                                                               cudaMemcpyDeviceToDevice, stream_),
                                               "cudaMemcpyAsync");
                   }));
    }
    return best;
  }

 private:
  template <class Body>
  double rate_of(const Body& body) const {
    begin_.record(stream_);
    body();
    end_.record(stream_);
    return 2.0 * static_cast<double>(from_.size() * sizeof(float)) / end_.seconds_since(begin_);
  }

  programs::cuda_stream stream_;
  made_up_array from_;
  made_up_array to_;
  timed_event begin_;
  timed_event end_;
};

}  // namespace bench
