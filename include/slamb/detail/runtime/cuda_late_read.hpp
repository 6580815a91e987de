// late_read for CUDA streams: copies a value at one point of a stream, in a second stream, so that the host can read it later
// without waiting for the work enqueued since. Plain C++: needs no nvcc.
#pragma once

#include <type_traits>

#include "slamb/core/cuda_error.hpp"
#include "slamb/core/detail/gpu_runtime.hpp"
#include "slamb/detail/runtime/cuda_pinned_words.hpp"
#include "slamb/detail/runtime/cuda_side_stream.hpp"
#include "slamb/detail/runtime/cuda_stream.hpp"
#include "slamb/detail/runtime/late_read.hpp"

namespace slamb::detail {

/// Copies the value into pinned memory, on its own stream. Holds one value at a time: the next read overwrites it.
template <class T>
class late_read<cudaStream_t, T> {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= cuda::pinned_words::word);

 public:
  /// @throws cuda_error
  explicit late_read(cudaStream_t beside) : side_(beside, 1), value_(static_cast<T*>(cuda::pinned_words::lend())) {}
  late_read(const late_read&) = delete;
  late_read& operator=(const late_read&) = delete;
  /// Does not wait, because a stream with dead peers may never reach the copy. If the copy is not done, its word of pinned memory
  /// is never reused. Later work on the main stream waits for the copy, so that `from` may be freed in the order of that stream.
  ~late_read() {
    if (cudaStreamQuery(side_.stream()) == cudaSuccess) {
      cuda::pinned_words::take_back(value_);
      return;
    }
    static_cast<void>(cudaGetLastError());  // clears "not ready", which a later check would report as an error
    try {
      side_.join();
    } catch (...) {
      static_cast<void>(cudaGetLastError());  // the device has failed and executes nothing any more
    }
  }

  /// Enqueues the copy after all work enqueued on the main stream so far, without waiting.
  /// @param from  device memory that must not change until it has been copied
  /// @throws cuda_error
  void start(const T* from) { side_.start({from, value_}); }

  /// The stream of the copy, which has no other work.
  cudaStream_t stream() const noexcept { return side_.stream(); }

  /// Waits for the copy, and returns the value.
  /// @throws cuda_error
  T finish() const {
    check_cuda(cudaStreamSynchronize(side_.stream()), "cudaStreamSynchronize");
    return *value_;
  }

 private:
  struct copy {
    const T* from;
    T* to;

    void operator()(cudaStream_t stream) const { cuda::copy_async(to, from, sizeof(T), stream); }
  };

  side_stream<cudaStream_t, copy> side_;
  T* value_;  // pinned
};

}  // namespace slamb::detail
