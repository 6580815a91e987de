// The C symbols of NCCL and of the CUDA runtime, on top of the stand-in.
#include <array>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "stand_in.hpp"

namespace nccl_stand_in {

/// The bodies of the C functions, with the library locked.
struct symbols {
  symbols() : library_(living()), lock_(library_.mutex_) {}

  ncclResult_t make_id(ncclUniqueId* id) {
    const ncclResult_t told = library_.record({.name = "ncclGetUniqueId"});
    if (told != ncclSuccess) return told;
    std::memset(id, 0, sizeof *id);
    const int number = ++library_.ids_;
    std::memcpy(id->internal, &number, sizeof number);
    return ncclSuccess;
  }

  ncclResult_t make(ncclComm_t* result, int size, const ncclUniqueId& id, int rank, bool blocking) {
    const ncclResult_t told = library_.record({.name = "ncclCommInitRankConfig"});
    if (told != ncclSuccess) return told;
    int number = 0;
    std::memcpy(&number, id.internal, sizeof number);
    auto& group = library_.worlds_[number];
    if (!group) group = std::make_shared<world>();
    group->members.resize(static_cast<std::size_t>(size));
    group->posted.resize(static_cast<std::size_t>(size));
    ncclComm_t made = library_.communicators_.emplace_back(std::make_unique<ncclComm>()).get();
    made->group = group;
    made->rank = rank;
    made->blocking = blocking;
    made->looks_left = blocking ? 0 : library_.looks_[rank];
    group->members[static_cast<std::size_t>(rank)] = *result = made;
    library_.joined_.notify_all();
    if (library_.ranks_meet_) library_.joined_.wait(lock_, [&] { return group->is_complete(); });
    return blocking ? ncclSuccess : ncclInProgress;
  }

  ncclResult_t finalize(ncclComm_t communicator) {
    library_.here().rank = communicator->rank;  // because it has a thread of its own
    hold("ncclCommFinalize");
    if (communicator->state == ncclComm::life::aborted) return ncclInvalidUsage;  // while it was held
    const ncclResult_t told = library_.record({.name = "ncclCommFinalize", .communicator = communicator});
    if (told != ncclSuccess) return told;
    if (!library_.is_usable(communicator, "ncclCommFinalize")) return ncclInvalidArgument;
    communicator->state = ncclComm::life::finalizing;
    communicator->looks_left = library_.looks_[communicator->rank];
    return library_.look(communicator);
  }

  ncclResult_t release(const char* name, ncclComm_t communicator, ncclComm::life state) {
    library_.here().rank = communicator->rank;  // because it has a thread of its own
    const ncclResult_t told = library_.record({.name = name, .communicator = communicator});
    hold(name);
    if (communicator->state == ncclComm::life::destroyed || communicator->state == ncclComm::life::aborted) {
      library_.misuses_.push_back(std::string(name) + " of a communicator that is gone");
      return ncclInvalidArgument;
    }
    const bool is_idle = communicator->group->posted[static_cast<std::size_t>(communicator->rank)].empty();
    if (state == ncclComm::life::destroyed && !is_idle) library_.misuses_.emplace_back("destroyed with work in flight");
    library_.drop(communicator);
    communicator->state = state;
    return told;
  }

  void hold(const std::string& function) {
    ++library_.calls_held_;
    library_.held_calls_.notify_all();
    library_.held_calls_.wait(lock_, [&] { return !library_.held_.contains(function); });
    --library_.calls_held_;
    library_.held_calls_.notify_all();
  }

  ncclResult_t look(ncclComm_t communicator, ncclResult_t* result) {
    const ncclResult_t told = library_.record({.name = "ncclCommGetAsyncError", .communicator = communicator});
    if (told != ncclSuccess) return told;
    if (communicator->state != ncclComm::life::finalizing && !library_.is_usable(communicator, "ncclCommGetAsyncError"))
      return ncclInvalidArgument;
    *result = library_.look(communicator);
    return ncclSuccess;
  }

  ncclResult_t ask(const char* name, ncclComm_t communicator, int* answer) {
    const ncclResult_t told = library_.record({.name = name, .communicator = communicator});
    if (told != ncclSuccess) return told;
    if (!library_.is_usable(communicator, name)) return ncclInvalidArgument;
    *answer = name == std::string("ncclCommCount") ? static_cast<int>(communicator->group->members.size())
                                                   : communicator->rank;
    return ncclSuccess;
  }

  const char* last_error(ncclComm_t communicator) {
    library_.record({.name = "ncclGetLastError", .communicator = communicator});
    if (communicator == nullptr) return "";
    if (communicator->state != ncclComm::life::living) library_.is_usable(communicator, "ncclGetLastError");
    return communicator->last_error.c_str();
  }

  ncclResult_t begin(call made) { return library_.begin(std::move(made)); }

  ncclResult_t open_group() {
    const ncclResult_t told = library_.record({.name = "ncclGroupStart"});
    if (told == ncclSuccess) ++library_.here().depth;
    return told;
  }

  ncclResult_t close_group() {
    const ncclResult_t told = library_.record({.name = "ncclGroupEnd"});
    library::thread_state& state = library_.here();
    if (state.depth == 0) {
      library_.misuses_.emplace_back("ncclGroupEnd without a group");
      return ncclInvalidUsage;
    }
    if (--state.depth > 0) return told;
    const ncclResult_t error = std::exchange(state.error, ncclSuccess);
    const std::vector<call> group = std::exchange(state.group, {});
    if (told != ncclSuccess) return told;
    if (error != ncclSuccess || group.empty()) return error;
    return library_.enqueue(group[0].communicator, {group, group[0].stream});
  }

  cudaError_t query(cudaStream_t stream) {
    library_.record({.name = "cudaStreamQuery", .stream = stream});
    if (stream->error != cudaSuccess) return stream->error;
    return stream->frozen || stream->pending > 0 ? cudaErrorNotReady : cudaSuccess;
  }

  cudaError_t copy(void* to, const void* from, std::size_t bytes, cudaStream_t stream) {
    library_.record({.name = "cudaMemcpyAsync", .in = from, .out = to, .count = bytes, .stream = stream});
    const auto move = [=] { std::memcpy(to, from, bytes); };
    if (stream->behind.empty())
      move();
    else
      stream->behind.back().emplace_back(move);
    return stream->error;
  }

  cudaError_t clear_error() {
    library_.record({.name = "cudaGetLastError"});
    return cudaSuccess;
  }

 private:
  static library& living() {
    if (current == nullptr) std::abort();
    return *current;
  }

  library& library_;
  std::unique_lock<std::mutex> lock_;
};

}  // namespace nccl_stand_in

using nccl_stand_in::current_device;
using nccl_stand_in::symbols;

extern "C" {

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) { return symbols().make_id(id); }

ncclResult_t ncclCommInitRankConfig(ncclComm_t* result, int size, ncclUniqueId id, int rank, ncclConfig_t* config) {
  return symbols().make(result, size, id, rank, config->blocking != 0);
}

ncclResult_t ncclCommFinalize(ncclComm_t communicator) { return symbols().finalize(communicator); }
ncclResult_t ncclCommDestroy(ncclComm_t communicator) {
  return symbols().release("ncclCommDestroy", communicator, ncclComm::life::destroyed);
}
ncclResult_t ncclCommAbort(ncclComm_t communicator) {
  return symbols().release("ncclCommAbort", communicator, ncclComm::life::aborted);
}
ncclResult_t ncclCommGetAsyncError(ncclComm_t communicator, ncclResult_t* result) {
  return symbols().look(communicator, result);
}
ncclResult_t ncclCommCount(const ncclComm_t communicator, int* count) {
  return symbols().ask("ncclCommCount", communicator, count);
}
ncclResult_t ncclCommUserRank(const ncclComm_t communicator, int* rank) {
  return symbols().ask("ncclCommUserRank", communicator, rank);
}

const char* ncclGetErrorString(ncclResult_t result) {
  constexpr std::array texts{
      "no error",         "unhandled cuda error", "unhandled system error", "internal error",
      "invalid argument", "invalid usage",        "remote process exited",  "operation in progress"};
  return texts.at(static_cast<std::size_t>(result));
}
const char* ncclGetLastError(ncclComm_t communicator) { return symbols().last_error(communicator); }

ncclResult_t ncclAllReduce(const void* in, void* out, size_t count, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t communicator, cudaStream_t stream) {
  return symbols().begin({.name = "ncclAllReduce",
                          .in = in,
                          .out = out,
                          .count = count,
                          .type = type,
                          .op = op,
                          .communicator = communicator,
                          .stream = stream});
}
ncclResult_t ncclAllGather(const void* in, void* out, size_t count, ncclDataType_t type, ncclComm_t communicator,
                           cudaStream_t stream) {
  return symbols().begin({.name = "ncclAllGather",
                          .in = in,
                          .out = out,
                          .count = count,
                          .type = type,
                          .communicator = communicator,
                          .stream = stream});
}
ncclResult_t ncclBroadcast(const void* in, void* out, size_t count, ncclDataType_t type, int root,
                           ncclComm_t communicator, cudaStream_t stream) {
  return symbols().begin({.name = "ncclBroadcast",
                          .in = in,
                          .out = out,
                          .count = count,
                          .type = type,
                          .peer = root,
                          .communicator = communicator,
                          .stream = stream});
}
ncclResult_t ncclSend(const void* in, size_t count, ncclDataType_t type, int peer, ncclComm_t communicator,
                      cudaStream_t stream) {
  return symbols().begin({.name = "ncclSend",
                          .in = in,
                          .count = count,
                          .type = type,
                          .peer = peer,
                          .communicator = communicator,
                          .stream = stream});
}
ncclResult_t ncclRecv(void* out, size_t count, ncclDataType_t type, int peer, ncclComm_t communicator,
                      cudaStream_t stream) {
  return symbols().begin({.name = "ncclRecv",
                          .out = out,
                          .count = count,
                          .type = type,
                          .peer = peer,
                          .communicator = communicator,
                          .stream = stream});
}
ncclResult_t ncclGroupStart() { return symbols().open_group(); }
ncclResult_t ncclGroupEnd() { return symbols().close_group(); }

cudaError_t cudaGetDevice(int* device) {
  *device = current_device;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  current_device = device;
  return cudaSuccess;
}
#if CUDART_VERSION >= 12080
cudaError_t cudaStreamGetDevice(cudaStream_t stream, int* device) {
  *device = stream->device;
  return cudaSuccess;
}
#endif
cudaError_t cudaStreamQuery(cudaStream_t stream) { return symbols().query(stream); }
/// Does not wait: a stream with work that is not done would hang.
cudaError_t cudaStreamSynchronize(cudaStream_t stream) { return symbols().query(stream); }
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind /*kind*/, cudaStream_t stream) {
  return symbols().copy(to, from, bytes, stream);
}
cudaError_t cudaGetLastError() { return symbols().clear_error(); }
const char* cudaGetErrorName(cudaError_t error) {
  return error == cudaErrorIllegalAddress ? "cudaErrorIllegalAddress" : "cudaErrorOther";
}
const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaErrorIllegalAddress ? "an illegal memory access was encountered" : "another error";
}

}  // extern "C"
