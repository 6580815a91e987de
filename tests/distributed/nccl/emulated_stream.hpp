// The CUDA backend's emulated kernels, together with a stream of the stand-in that carries the collectives.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>

#include "slamb/backend/cuda/detail/emulator.hpp"
#include "slamb/backend/cuda/detail/stream_launcher.hpp"
#include "slamb/core/allocator.hpp"
#include "slamb/detail/pass/arena.hpp"
#include "slamb/detail/runtime/cuda_device_guard.hpp"
#include "stand_in.hpp"

namespace nccl_tests {

/// Counts calls of a device.
struct device_log {
  std::size_t calls = 0;
  std::size_t strays = 0;  ///< calls made while another device was current

  void add(int device) {
    ++calls;
    strays += nccl_stand_in::current_device == device ? 0 : 1;
  }
};

/// Kernels run at their launch, whatever is on the stream.
class emulator_beside_stream {
 public:
  /// @param log  must outlive this
  emulator_beside_stream(cudaStream_t stream, device_log* log)
      : stream_(stream), device_(slamb::detail::cuda::device_of(stream)), log_(log) {}

  cudaStream_t stream() const noexcept { return stream_; }
  auto enter() const noexcept { return slamb::detail::cuda::device_guard(device_); }
  bool is_capturing() const {
    add_call();
    return false;
  }
  static void require_memory(const void* /*memory*/, const char* /*what*/) noexcept {}
  void clear(std::span<std::byte> memory) const {
    add_call();
    slamb::detail::cuda::emulator::clear(memory);
  }
  void upload(std::span<const std::byte> from, std::span<std::byte> to) const {
    add_call();
    slamb::detail::cuda::emulator::upload(from, to);
  }
  /// @throws std::logic_error where a real device would wait for ever
  void download(std::span<const std::byte> from, std::span<std::byte> to) const {
    add_call();
    if (cudaStreamQuery(stream_) != cudaSuccess) throw std::logic_error("this would hang");
    slamb::detail::cuda::emulator::download(from, to);
  }
  template <class Kernel>
  void launch(const Kernel& kernel, std::size_t work) const {
    add_call();
    slamb::detail::cuda::emulator().launch(kernel, work);
  }

 private:
  void add_call() const {
    if (log_ != nullptr) log_->add(device_);
  }

  cudaStream_t stream_;
  int device_;
  device_log* log_;
};

struct backend_beside_stream {
  cudaStream_t stream = nullptr;
  device_log* log = nullptr;
  std::size_t cache_bytes = 1U << 20U;

  using stream_type = cudaStream_t;
  using launcher_type = slamb::detail::cuda::stream_launcher<emulator_beside_stream>;

  void validate() const {}
  launcher_type make_launcher(std::uint64_t /*elements*/) const {
    return launcher_type(emulator_beside_stream(stream, log));
  }
  slamb::allocator make_allocator() const {
    const slamb::allocator host = slamb::detail::host_allocator();
    if (log == nullptr) return host;
    return {.allocate =
                [host, log = log, home = nccl_stand_in::current_device](std::size_t bytes) {
                  log->add(home);
                  return host.allocate(bytes);
                },
            .deallocate =
                [host, log = log, home = nccl_stand_in::current_device](void* memory, std::size_t bytes) {
                  log->add(home);
                  host.deallocate(memory, bytes);
                }};
  }
};

}  // namespace nccl_tests
