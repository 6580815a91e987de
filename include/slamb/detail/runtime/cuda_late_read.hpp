// A value that is copied at one point of a stream and read later: on a GPU, by a second stream. Plain C++: needs no nvcc.
#pragma once

#include <cuda_runtime_api.h>

#include <type_traits>

#include "slamb/core/cuda_error.hpp"
#include "slamb/detail/runtime/cuda_pinned_words.hpp"
#include "slamb/detail/runtime/cuda_side_stream.hpp"
#include "slamb/detail/runtime/cuda_stream.hpp"
#include "slamb/detail/runtime/late_read.hpp"

namespace slamb::detail {

/// By a copy into pinned memory, on a stream of its own. One reading at a time: what is read next takes the place of what was
/// read before.
template <class T>
class late_read<cudaStream_t, T> {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= cuda::pinned_words::word);

 public:
  /// @throws cuda_error
  explicit late_read(cudaStream_t beside) : side_(beside, 1), value_(static_cast<T*>(cuda::pinned_words::lend())) {}
  late_read(const late_read&) = delete;
  late_read& operator=(const late_read&) = delete;
  /// Waits for nothing, for a stream whose peers have died may never get there. A reading that is not done yet keeps its word
  /// of pinned memory for ever, and what the stream is given from now on waits for it, so that `from` may be freed in its order.
  ~late_read() {
    if (cudaStreamQuery(side_.stream()) == cudaSuccess) {
      cuda::pinned_words::take_back(value_);
      return;
    }
    static_cast<void>(cudaGetLastError());  // "not ready" too is kept as an error, which a later check would find
    try {
      side_.join();
    } catch (...) {
      static_cast<void>(cudaGetLastError());  // of a device that does nothing any more
    }
  }

  /// Reads behind what the stream has been given so far, without waiting.
  /// @param from  memory of the device, left alone until it has been read
  /// @throws cuda_error
  void start(const T* from) { side_.start({from, value_}); }

  /// It is done when the value has been read.
  cudaStream_t stream() const noexcept { return side_.stream(); }

  /// The value. Waits until it has been read.
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
