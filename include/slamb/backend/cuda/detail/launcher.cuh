// Runs kernels on the GPU. backend/cuda/detail/emulator.hpp describes the functions of a block.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <type_traits>

#include "slamb/backend/cuda/detail/block_functions.cuh"
#include "slamb/backend/cuda/detail/team.hpp"
#include "slamb/backend/cuda/detail/tuning.hpp"
#include "slamb/core/concepts.hpp"
#include "slamb/core/config.hpp"
#include "slamb/core/cuda_error.hpp"
#include "slamb/core/detail/gpu_runtime.hpp"
#include "slamb/core/detail/number_of_device.hpp"
#include "slamb/detail/runtime/cuda_device_guard.hpp"
#include "slamb/detail/runtime/cuda_late_read.hpp"
#include "slamb/detail/runtime/cuda_side_stream.hpp"
#include "slamb/detail/runtime/cuda_stream.hpp"

namespace slamb::detail::cuda {

/// Several sums that are added up in one reduction.
template <int Count>
struct sum_vector {
  double of[Count];

  struct add {
    __device__ sum_vector operator()(const sum_vector& a, const sum_vector& b) const {
      sum_vector both;
      for (int k = 0; k < Count; ++k) both.of[k] = a.of[k] + b.of[k];
      return both;
    }
  };
};

/// One block of a running kernel; as emulated_block.
template <unsigned Threads>
class device_block : public block_team<Threads> {
  template <int Count>
  using sums_type = block_primitives::BlockReduce<sum_vector<Count>, Threads>;
  using maximum_type = block_primitives::BlockReduce<float, Threads>;
  using scan_type = block_primitives::BlockScan<std::uint32_t, Threads>;

 public:
  __device__ std::size_t index() const { return blockIdx.x; }
  __device__ std::size_t count() const { return gridDim.x; }

  template <class T>
  class registers {
   public:
    __device__ T& operator[](unsigned /*thread*/) { return own_; }
    __device__ const T& operator[](unsigned /*thread*/) const { return own_; }

   private:
    T own_{};
  };

  __device__ static void add_one(std::uint32_t& shared_counter) { atomicAdd(&shared_counter, 1U); }

  template <class T>
  __device__ T& shared() {
    static_assert(std::is_trivially_copyable_v<T>);
    alignas(T) __shared__ unsigned char memory[sizeof(T)];
    return *reinterpret_cast<T*>(memory);
  }

  template <class Body>
  __device__ void each(Body&& body) {
    body(threadIdx.x);
    __syncthreads();
  }
  template <class Body>
  __device__ void first(Body&& body) {
    if (threadIdx.x == 0) body();
    __syncthreads();
  }

  template <class Value>
  __device__ double sum(Value&& value) {
    double total[1];
    sums([&](unsigned thread, double(&own)[1]) { own[0] = value(thread); }, total);
    return total[0];
  }
  template <int Count, class Value>
  __device__ void sums(Value&& value, double (&total)[Count]) {
    __shared__ typename sums_type<Count>::TempStorage memory;
    __shared__ sum_vector<Count> all;
    sum_vector<Count> own;
    value(threadIdx.x, own.of);
    const sum_vector<Count> result =
        broadcast_from_thread_0(sums_type<Count>(memory).Reduce(own, typename sum_vector<Count>::add{}), all);
    for (int k = 0; k < Count; ++k) total[k] = result.of[k];
  }
  template <class Value>
  __device__ float maximum(Value&& value) {
    __shared__ typename maximum_type::TempStorage memory;
    __shared__ float all;
    const auto larger = [](float a, float b) { return a < b ? b : a; };
    const float result = maximum_type(memory).Reduce(value(threadIdx.x), larger);
    return broadcast_from_thread_0(result, all);
  }
  template <unsigned Group, class Value>
  __device__ void maxima(Value&& value, registers<std::uint32_t>& result) {
    static_assert(Group % warp_threads == 0 && (Group & (Group - 1)) == 0 && Threads % Group == 0);
    __shared__ std::uint32_t of_warp[Threads / warp_threads];
    std::uint32_t own = value(threadIdx.x);
    for (unsigned apart = warp_threads / 2; apart > 0; apart /= 2) {
      const std::uint32_t other = value_across(own, apart);
      own = own < other ? other : own;
    }
    if (threadIdx.x % warp_threads == 0) of_warp[threadIdx.x / warp_threads] = own;
    __syncthreads();
    const unsigned first = threadIdx.x / Group * (Group / warp_threads);
    for (unsigned k = 0; k < Group / warp_threads; ++k) own = own < of_warp[first + k] ? of_warp[first + k] : own;
    result[threadIdx.x] = own;
    __syncthreads();
  }
  template <class Predicate>
  __device__ bool any(Predicate&& predicate) {
    return __syncthreads_or(predicate(threadIdx.x) ? 1 : 0) != 0;
  }
  template <class Value>
  __device__ std::uint32_t exclusive_sum(Value&& value, registers<std::uint32_t>& before) {
    __shared__ typename scan_type::TempStorage memory;
    std::uint32_t all = 0;
    scan_type(memory).ExclusiveSum(value(threadIdx.x), before[threadIdx.x], all);
    __syncthreads();
    return all;
  }

 private:
  template <class T>
  __device__ static T broadcast_from_thread_0(T value, T& all) {
    if (threadIdx.x == 0) all = value;
    __syncthreads();
    const T result = all;
    __syncthreads();
    return result;
  }
};

/// Threads that a multiprocessor can hold at once: 1024 for Turing (sm_75), at least 1536 for later architectures. A kernel
/// whose blocks_at_once need more threads is compiled for as many blocks as fit.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ == 750
inline constexpr unsigned threads_at_once = 1024;
#else
inline constexpr unsigned threads_at_once = 1536;
#endif
template <class Kernel>
inline constexpr unsigned least_blocks = tuning<Kernel>::blocks_at_once* tuning<Kernel>::threads <= threads_at_once
                                             ? tuning<Kernel>::blocks_at_once
                                             : threads_at_once / tuning<Kernel>::threads;

/// @tparam Bytes  is in the name that ptxas reports, so that a test can compare it with the size of the parameter on the device
template <class Kernel, std::size_t Bytes = sizeof(Kernel)>
__global__ void SLAMB_LAUNCH_BOUNDS(tuning<Kernel>::threads, least_blocks<Kernel>)
    run_kernel(const SLAMB_GRID_CONSTANT Kernel kernel) {
  device_block<tuning<Kernel>::threads> block;
  kernel(block);
}

/// Enqueues kernels on one stream. Its device is the one that is current at construction, and must be current at every use.
/// Grids have at most as many blocks as the device holds at once.
class launcher {
 public:
  /// @throws std::invalid_argument if `stream` belongs to another device; cuda_error
  explicit launcher(cudaStream_t stream) : stream_(stream), device_(device_of(stream)) {
    check_cuda(cudaDeviceGetAttribute(&processors_, cudaDevAttrMultiProcessorCount, device_), "cudaDeviceGetAttribute");
  }

  cudaStream_t stream() const noexcept { return stream_; }

  /// Makes its device current in this thread for the lifetime of the returned object.
  ::slamb::detail::call_scope enter() const noexcept { return device_guard(device_); }

  /// True if the stream is being captured into a graph. @throws cuda_error
  bool is_capturing() const { return ::slamb::detail::cuda::is_capturing(stream_); }

  /// @throws std::invalid_argument if kernels on the device cannot be sure to reach `memory`; cuda_error
  void require_memory(const void* memory, const char* what) const {
    cudaPointerAttributes found{};
    check_cuda(cudaPointerGetAttributes(&found, memory), "cudaPointerGetAttributes");
    if (found.type == cudaMemoryTypeManaged || (found.type == cudaMemoryTypeDevice && found.device == device_)) return;
    throw std::invalid_argument(
        "slamb: " + std::string(what) + " is in " +
        (found.type == cudaMemoryTypeDevice ? "the memory of device " + std::to_string(found.device) : "host memory") +
        "; it must be in the memory of device " + std::to_string(device_) + ", the optimizer's");
  }

  // These are enqueued in order with earlier work. The source of an upload may change once the call has returned. A download
  // waits.
  void clear(std::span<std::byte> memory) const {
    if (!memory.empty()) check_cuda(cudaMemsetAsync(memory.data(), 0, memory.size(), stream_), "cudaMemsetAsync");
  }
  void upload(std::span<const std::byte> from, std::span<std::byte> to) const {
    stream_copy<cudaStream_t>::run(from, to, stream_);
  }
  void download(std::span<const std::byte> from, std::span<std::byte> to) const {
    stream_copy<cudaStream_t>::run(from, to, stream_);
    check_cuda(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
  }
  /// As launcher::read_later. @throws cuda_error
  template <class T>
  static void read_later(const T* from, late_read<cudaStream_t, T>& late) {
    late.start(from);
  }

  /// Enqueues `kernel` with `work` blocks, but at most as many as the device holds at once. @throws cuda_error
  template <class Kernel>
  void launch(const Kernel& kernel, std::size_t work) const {
    static_assert(std::is_trivially_copyable_v<Kernel>,
                  "slamb: a kernel must be trivially copyable, because it is copied to the device byte by byte");
    if (work == 0) return;
    const std::size_t most = most_blocks<Kernel>();
    // The same as run_kernel<Kernel><<<…>>>(kernel), which only nvcc and hipcc can read.
    void* arguments[] = {const_cast<Kernel*>(&kernel)};
    static_cast<void>(cudaLaunchKernel(reinterpret_cast<const void*>(&run_kernel<Kernel>),
                                       dim3(static_cast<unsigned>(work < most ? work : most)),
                                       dim3(tuning<Kernel>::threads), arguments, 0, stream_));
    check_cuda(cudaGetLastError(), "a kernel's launch");
  }

 private:
  template <class Kernel>
  std::size_t most_blocks() const {
    static number_of_device of_processor;
    const int blocks = of_processor(device_, [] {
      int most = 0;
      check_cuda(cudaOccupancyMaxActiveBlocksPerMultiprocessor(
                     &most, reinterpret_cast<const void*>(&run_kernel<Kernel>), tuning<Kernel>::threads, 0),
                 "cudaOccupancyMaxActiveBlocksPerMultiprocessor");
      return most;
    });
    return static_cast<std::size_t>(blocks) * static_cast<std::size_t>(processors_);
  }

  cudaStream_t stream_;
  int device_;
  int processors_ = 1;
};

}  // namespace slamb::detail::cuda
