// A stand-in for the part of the CUDA runtime that cuda_mpi_communicator and late_read call, with one device. The host and MPI
// cannot access its memory. Work on a stream is done only when the host waits for it.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

enum cudaError_t {
  cudaSuccess = 0,
  cudaErrorMemoryAllocation = 2,
  cudaErrorNotReady = 600,
  cudaErrorIllegalAddress = 700,
  cudaErrorStreamCaptureImplicit = 906
};
enum cudaMemcpyKind { cudaMemcpyDefault = 4 };
enum cudaStreamCaptureStatus { cudaStreamCaptureStatusNone = 0, cudaStreamCaptureStatusActive = 1 };
inline constexpr unsigned cudaEventDisableTiming = 2;
inline constexpr unsigned cudaStreamNonBlocking = 1;

struct CUstream_st {
  std::deque<std::function<void()>> work;  // unfinished work
  std::uint64_t done = 0;                  // number of finished pieces of work
  bool is_captured = false;
  bool is_stuck = false;

  std::uint64_t enqueued() const { return done + work.size(); }
  void do_one() {
    const std::function<void()> first = std::move(work.front());
    work.pop_front();
    first();
    ++done;
  }
  void run_to(std::uint64_t number) {
    while (done < number) do_one();
  }
};
struct CUevent_st {
  CUstream_st* stream = nullptr;
  std::uint64_t number = 0;  // pieces of the stream's work when the event was recorded

  bool is_done() const { return stream == nullptr || stream->done >= number; }
};
using cudaStream_t = CUstream_st*;
using cudaEvent_t = CUevent_st*;

struct device_stand_in {
  static inline bool is_lazy = true;   ///< true: work is delayed
  static inline bool is_open = false;  ///< true: the host and MPI can access device memory
  static inline std::function<cudaError_t(std::string_view)> fault;  ///< the error that a call of this name returns
  static inline cudaError_t last_error = cudaSuccess;
  static inline std::map<void*, std::size_t> pinned;  ///< pinned allocations that are not freed, and their bytes
  static inline std::vector<std::unique_ptr<CUstream_st>> destroyed;

  static cudaError_t report(std::string_view call, cudaError_t error = cudaSuccess) {
    if (error == cudaSuccess && fault) error = fault(call);
    if (error != cudaSuccess) last_error = error;
    return error;
  }

  /// Device memory, in whole pages.
  class memory {
   public:
    explicit memory(std::size_t bytes) : bytes_((bytes + 4095) / 4096 * 4096 + 4096) {
      begin_ = mmap(nullptr, bytes_, protection(), MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      if (begin_ == MAP_FAILED) std::abort();
      all().push_back(this);
    }
    memory(const memory&) = delete;
    memory& operator=(const memory&) = delete;
    ~memory() {
      std::erase(all(), this);
      munmap(begin_, bytes_);
    }
    std::byte* data() const { return static_cast<std::byte*>(begin_); }

    static void copy(void* to, const void* from, std::size_t bytes) {
      for (const memory* m : all()) m->protect(PROT_READ | PROT_WRITE);
      std::memcpy(to, from, bytes);
      for (const memory* m : all()) m->protect(protection());
    }

   private:
    static std::vector<memory*>& all() {
      static std::vector<memory*> every;
      return every;
    }
    static int protection() { return is_open ? PROT_READ | PROT_WRITE : PROT_NONE; }
    void protect(int how) const { mprotect(begin_, bytes_, how); }

    std::size_t bytes_;
    void* begin_;
  };

  static void enqueue(cudaStream_t stream, std::function<void()> work) {
    stream->work.push_back(std::move(work));
    if (!is_lazy) stream->run_to(stream->enqueued());
  }
};

inline cudaError_t cudaGetLastError() {
  const cudaError_t last = device_stand_in::last_error;
  device_stand_in::last_error = cudaSuccess;
  return last;
}
inline const char* cudaGetErrorName(cudaError_t error) {
  return error == cudaErrorIllegalAddress ? "cudaErrorIllegalAddress" : "cudaErrorOther";
}
inline const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaErrorIllegalAddress ? "an illegal memory access was encountered" : "another error";
}
inline cudaError_t cudaMallocHost(void** memory, std::size_t bytes) {
  const cudaError_t error = device_stand_in::report("cudaMallocHost");
  if (error != cudaSuccess) return error;
  *memory = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  std::memset(*memory, 0xEE, bytes);
  device_stand_in::pinned[*memory] = bytes;
  return cudaSuccess;
}
inline cudaError_t cudaFreeHost(void* memory) {
  std::memset(memory, 0xDD, device_stand_in::pinned.at(memory));  // overwritten, so that a later read shows
  device_stand_in::pinned.erase(memory);
  std::free(memory);
  return cudaSuccess;
}
inline cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  return *event = new CUevent_st, device_stand_in::report("cudaEventCreateWithFlags");
}
inline cudaError_t cudaEventDestroy(cudaEvent_t event) { return delete event, cudaSuccess; }
inline cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  *event = {stream, stream->enqueued()};
  return device_stand_in::report("cudaEventRecord");
}
inline cudaError_t cudaEventQuery(cudaEvent_t event) {
  if (const cudaError_t error = device_stand_in::report("cudaEventQuery"); error != cudaSuccess) return error;
  if (event->is_done()) return cudaSuccess;
  if (!event->stream->is_stuck) event->stream->do_one();
  return device_stand_in::report("cudaEventQuery", cudaErrorNotReady);
}
inline cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  if (!event->is_done()) event->stream->run_to(event->number);
  return device_stand_in::report("cudaEventSynchronize");
}
inline cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  if (event->stream != nullptr)
    device_stand_in::enqueue(stream, [marked = *event] { marked.stream->run_to(marked.number); });
  return device_stand_in::report("cudaStreamWaitEvent");
}
inline cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  return stream->run_to(stream->enqueued()), device_stand_in::report("cudaStreamSynchronize");
}
inline cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  return *stream = new CUstream_st, device_stand_in::report("cudaStreamCreateWithFlags");
}
inline cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  device_stand_in::destroyed.emplace_back(stream);  // enqueued work is still done
  return cudaSuccess;
}
inline cudaError_t cudaStreamQuery(cudaStream_t stream) {
  if (stream->work.empty()) return device_stand_in::report("cudaStreamQuery");
  if (!stream->is_stuck) stream->do_one();
  return device_stand_in::report("cudaStreamQuery", cudaErrorNotReady);
}
inline cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  *status = stream->is_captured ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return device_stand_in::report("cudaStreamIsCapturing");
}
inline cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind, cudaStream_t stream) {
  const cudaError_t error = device_stand_in::report("cudaMemcpyAsync");
  if (error == cudaSuccess) device_stand_in::enqueue(stream, [=] { device_stand_in::memory::copy(to, from, bytes); });
  return error;
}
