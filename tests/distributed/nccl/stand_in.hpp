// A stand-in for NCCL and the parts of the CUDA runtime that nccl_communicator calls. It has the same C symbols, for ranks that
// are threads of one process with buffers in host memory. It records every call, moves data as NCCL does, and fails on request.
// It has no clock: background work advances when it is polled.
#pragma once

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

struct CUstream_st {
  int pending = 0;                                        // launches that are enqueued and not done
  std::deque<std::vector<std::function<void()>>> behind;  // [pending] copies that wait for a launch
  bool frozen = false;
  cudaError_t error = cudaSuccess;
  int device = 0;
};

namespace nccl_stand_in {

/// One recorded call.
struct call {
  std::string name;
  int rank = 0;   // of the calling thread
  int depth = 0;  // number of open groups
  const void* in = nullptr;
  void* out = nullptr;
  std::size_t count = 0;
  ncclDataType_t type = ncclNumTypes;
  ncclRedOp_t op = ncclNumOps;
  int peer = -1;   // or root
  int device = 0;  // current device
  ncclComm_t communicator = nullptr;
  cudaStream_t stream = nullptr;
};

/// One rank's unit of work for NCCL: a collective, or the sends and receives of a group.
struct launch {
  std::vector<call> operations;
  cudaStream_t stream = nullptr;
};

/// The ranks with the same ncclUniqueId.
struct world {
  std::vector<ncclComm_t> members;         // [size], null until the rank has joined
  std::vector<std::deque<launch>> posted;  // [size], in order
  bool is_complete() const;
};

inline constexpr std::uint64_t for_ever = ~std::uint64_t{0};

/// The stand-in library; one at a time. Ranks are numbered as in their communicators.
class library {
 public:
  library();
  ~library();
  library(const library&) = delete;
  library& operator=(const library&) = delete;

  /// From now on the calling thread is `rank`; other threads are rank 0.
  void enter(int rank);
  cudaStream_t make_stream();  ///< of the current device
  /// Ranks that construct a communicator wait for one another in the call, however few polls they allow.
  void let_ranks_meet();

  /// The `nth` call (1, 2, …) of `function` by `rank` returns `result` and does nothing.
  void fail(int rank, const std::string& function, int nth, ncclResult_t result);
  /// From now on, work of `rank` stays ncclInProgress for that many polls, and only then enters the stream.
  void stay_in_progress(int rank, std::uint64_t looks);
  /// Communicators of `rank` report `result` as an asynchronous error.
  void report_error(int rank, ncclResult_t result);
  /// From now on `function`, one that ends a communicator, does not return, until `let_go` or the library's end, which wait for it.
  void hold(const std::string& function);
  void wait_for_held_call();
  void let_go();
  /// From now on no work on `stream` completes.
  void freeze(cudaStream_t stream);
  void fail_stream(cudaStream_t stream, cudaError_t error);

  /// All calls of `rank`, in order.
  std::vector<call> calls(int rank) const;
  /// Their names, without polls such as ncclCommGetAsyncError and ncclGetLastError.
  std::vector<std::string> names(int rank) const;
  int count(int rank, const std::string& function) const;
  /// Calls that NCCL does not allow: on dead communicators, before the previous call is done, or with work in flight.
  std::vector<std::string> misuses() const;
  int open_groups() const;
  int living_communicators() const;

 private:
  friend struct symbols;
  struct thread_state {
    int rank = 0;
    int depth = 0;
    ncclResult_t error = ncclSuccess;  // of a call in the group
    std::vector<call> group;
  };
  struct planned_failure {
    int rank;
    std::string function;
    int nth;
    ncclResult_t result;
  };

  thread_state& here() { return threads_[std::this_thread::get_id()]; }
  ncclResult_t record(call made);
  bool is_usable(ncclComm_t communicator, const std::string& function);
  ncclResult_t begin(call made);
  ncclResult_t enqueue(ncclComm_t communicator, launch made);
  ncclResult_t look(ncclComm_t communicator);
  void post(ncclComm_t communicator);
  void drop(ncclComm_t communicator);
  static std::vector<std::function<void()>> end_launch(cudaStream_t stream);

  mutable std::mutex mutex_;
  std::condition_variable joined_;
  bool ranks_meet_ = false;
  std::condition_variable held_calls_;
  std::set<std::string> held_;  // functions
  int calls_held_ = 0;
  std::vector<call> calls_;
  std::vector<std::string> misuses_;
  std::vector<planned_failure> failures_;
  std::map<std::pair<int, std::string>, int> counts_;
  std::map<std::thread::id, thread_state> threads_;
  std::map<int, std::uint64_t> looks_;  // [rank]
  std::vector<std::unique_ptr<CUstream_st>> streams_;
  std::vector<std::unique_ptr<ncclComm>> communicators_;
  std::map<int, std::shared_ptr<world>> worlds_;  // [number in the id]
  int ids_ = 0;
};

/// The living library.
extern library* current;
/// The result of cudaGetDevice in this thread.
extern thread_local int current_device;

/// Computes the results of a launch that all ranks have posted; `parts` [rank]. False if the parts do not match.
bool execute(const std::vector<launch>& parts);

}  // namespace nccl_stand_in

struct ncclComm {
  enum class life { living, finalizing, destroyed, aborted };

  std::shared_ptr<nccl_stand_in::world> group;
  int rank = 0;
  bool blocking = false;
  life state = life::living;
  std::uint64_t looks_left = 0;
  ncclResult_t error = ncclSuccess;
  std::string last_error;
  std::vector<nccl_stand_in::launch> deferred;  // until the polls are over
};
