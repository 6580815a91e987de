// A Backend that is memory alone, for check_communicator on the streams of a stand-in for the CUDA runtime.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "slamb/communicator/any_communicator.hpp"
#include "slamb/core/allocator.hpp"
#include "slamb/core/cuda_error.hpp"
#include "slamb/detail/runtime/cuda_stream.hpp"

namespace test_support {

/// Copies in the order of a stream.
class copies_on_stream {
 public:
  using ranks_type = slamb::any_communicator<cudaStream_t>;

  explicit copies_on_stream(cudaStream_t stream) : stream_(stream) {}

  cudaStream_t stream() const noexcept { return stream_; }
  void upload(std::span<const std::byte> from, std::span<std::byte> to) const {
    const auto& staged = staged_->emplace_back(from.begin(), from.end());  // `from` may change before the copy is made
    slamb::detail::cuda::copy_async(to.data(), staged.data(), staged.size(), stream_);
  }
  /// @throws cuda_error
  void download(std::span<const std::byte> from, std::span<std::byte> to, const ranks_type& ranks) const {
    ranks.wait(stream_);
    slamb::detail::cuda::copy_async(to.data(), from.data(), from.size(), stream_);
    slamb::detail::check_cuda(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
  }

 private:
  cudaStream_t stream_;
  std::shared_ptr<std::deque<std::vector<std::byte>>> staged_ = std::make_shared<std::deque<std::vector<std::byte>>>();
};

struct memory_on_stream {
  cudaStream_t stream = nullptr;
  slamb::allocator memory = slamb::detail::host_allocator();
  std::size_t cache_bytes = 0;

  using stream_type = cudaStream_t;
  using launcher_type = copies_on_stream;

  void validate() const {}
  launcher_type make_launcher(std::uint64_t /*elements*/) const { return launcher_type(stream); }
};

}  // namespace test_support
