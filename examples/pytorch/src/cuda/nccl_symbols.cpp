// NCCL's functions, which are looked up at the first call in the libnccl.so.2 that the framework has loaded. So the module does not
// link NCCL, and there is never a second copy in the process. Hidden: other libraries do not see these names.
#include <dlfcn.h>
#include <nccl.h>

#include <stdexcept>
#include <string>

namespace {

/// @throws std::runtime_error if no NCCL is loaded, or it has no such function
void* symbol(const char* name) {
  static void* const library = dlopen("libnccl.so.2", RTLD_LAZY | RTLD_NOLOAD);
  void* const found = dlsym(library != nullptr ? library : RTLD_DEFAULT, name);
  if (found == nullptr)
    throw std::runtime_error("slamb: " + std::string(name) +
                             " was not found in this process; the framework must have loaded NCCL (libnccl.so.2)");
  return found;
}

}  // namespace

#define SLAMB_FORWARD(result, name, parameters, arguments)                              \
  result name parameters {                                                              \
    static const auto function = reinterpret_cast<result(*) parameters>(symbol(#name)); \
    return function arguments;                                                          \
  }

extern "C" {
#pragma GCC visibility push(hidden)
SLAMB_FORWARD(ncclResult_t, ncclAllReduce,
              (const void* send, void* receive, size_t count, ncclDataType_t type, ncclRedOp_t operation,
               ncclComm_t ranks, cudaStream_t stream),
              (send, receive, count, type, operation, ranks, stream))
SLAMB_FORWARD(ncclResult_t, ncclBroadcast,
              (const void* send, void* receive, size_t count, ncclDataType_t type, int root, ncclComm_t ranks,
               cudaStream_t stream),
              (send, receive, count, type, root, ranks, stream))
SLAMB_FORWARD(ncclResult_t, ncclAllGather,
              (const void* send, void* receive, size_t count, ncclDataType_t type, ncclComm_t ranks,
               cudaStream_t stream),
              (send, receive, count, type, ranks, stream))
SLAMB_FORWARD(ncclResult_t, ncclSend,
              (const void* send, size_t count, ncclDataType_t type, int peer, ncclComm_t ranks, cudaStream_t stream),
              (send, count, type, peer, ranks, stream))
SLAMB_FORWARD(ncclResult_t, ncclRecv,
              (void* receive, size_t count, ncclDataType_t type, int peer, ncclComm_t ranks, cudaStream_t stream),
              (receive, count, type, peer, ranks, stream))
SLAMB_FORWARD(ncclResult_t, ncclGroupStart, (), ())
SLAMB_FORWARD(ncclResult_t, ncclGroupEnd, (), ())
SLAMB_FORWARD(ncclResult_t, ncclGetUniqueId, (ncclUniqueId * id), (id))
SLAMB_FORWARD(ncclResult_t, ncclCommInitRankConfig,
              (ncclComm_t * ranks, int size, ncclUniqueId id, int rank, ncclConfig_t* config),
              (ranks, size, id, rank, config))
SLAMB_FORWARD(ncclResult_t, ncclCommAbort, (ncclComm_t ranks), (ranks))
SLAMB_FORWARD(ncclResult_t, ncclCommCount, (const ncclComm_t ranks, int* count), (ranks, count))
SLAMB_FORWARD(ncclResult_t, ncclCommUserRank, (const ncclComm_t ranks, int* rank), (ranks, rank))
SLAMB_FORWARD(ncclResult_t, ncclCommDestroy, (ncclComm_t ranks), (ranks))
SLAMB_FORWARD(ncclResult_t, ncclCommFinalize, (ncclComm_t ranks), (ranks))
SLAMB_FORWARD(ncclResult_t, ncclCommGetAsyncError, (ncclComm_t ranks, ncclResult_t* error), (ranks, error))
SLAMB_FORWARD(const char*, ncclGetErrorString, (ncclResult_t result), (result))
SLAMB_FORWARD(const char*, ncclGetLastError, (ncclComm_t ranks), (ranks))
#pragma GCC visibility pop
}
