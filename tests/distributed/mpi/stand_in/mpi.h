// A stand-in for the part of MPI that mpi_communicator calls, for one rank without peers: it records messages, which complete at
// once.
#pragma once

#include <cstddef>
#include <vector>

using MPI_Comm = int;
using MPI_Request = int;
using MPI_Datatype = int;
using MPI_Errhandler = int;
using MPI_Aint = std::ptrdiff_t;
struct MPI_Status {
  int MPI_SOURCE;
  int MPI_TAG;
  int MPI_ERROR;
  int bytes;
};

inline constexpr int MPI_SUCCESS = 0;
inline constexpr int MPI_ERR_TRUNCATE = 15;
inline constexpr int MPI_ERR_IN_STATUS = 18;
inline constexpr int MPI_ERR_PENDING = 19;
inline constexpr int MPI_MAX_ERROR_STRING = 64;
inline constexpr int MPI_ANY_SOURCE = -1;
inline constexpr int MPI_ANY_TAG = -1;
inline constexpr MPI_Comm MPI_COMM_NULL = 0;
inline constexpr MPI_Comm MPI_COMM_WORLD = 1;
inline constexpr MPI_Request MPI_REQUEST_NULL = 0;
inline constexpr MPI_Datatype MPI_BYTE = 1;
inline constexpr MPI_Errhandler MPI_ERRHANDLER_NULL = 0;
inline constexpr MPI_Errhandler MPI_ERRORS_ARE_FATAL = 1;
inline constexpr MPI_Errhandler MPI_ERRORS_RETURN = 2;
inline constexpr MPI_Status* MPI_STATUS_IGNORE = nullptr;

inline constexpr int MPI_THREAD_SINGLE = 0;
inline constexpr int MPI_THREAD_FUNNELED = 1;
inline constexpr int MPI_THREAD_SERIALIZED = 2;

/// The recorded calls of the rank under test, and the thread support that MPI reports.
struct stand_in {
  struct message {
    bool is_send;
    int peer;
    const std::byte* buffer;
    std::size_t bytes;
    bool until_received = false;
  };
  static inline int rank = 0;
  static inline int size = 1;
  static inline int thread_level = MPI_THREAD_SERIALIZED;
  static inline bool is_main_thread = false;
  static inline std::vector<message> messages;

  static int note(bool is_send, int peer, const void* buffer, int bytes, MPI_Request* request) {
    messages.push_back({is_send, peer, static_cast<const std::byte*>(buffer), static_cast<std::size_t>(bytes)});
    *request = static_cast<int>(messages.size());
    return MPI_SUCCESS;
  }
};

inline int MPI_Query_thread(int* provided) { return *provided = stand_in::thread_level, MPI_SUCCESS; }
inline int MPI_Is_thread_main(int* flag) { return *flag = stand_in::is_main_thread ? 1 : 0, MPI_SUCCESS; }
inline int MPI_Initialized(int* flag) { return *flag = 1, MPI_SUCCESS; }
inline int MPI_Finalized(int* flag) { return *flag = 0, MPI_SUCCESS; }
inline int MPI_Comm_test_inter(MPI_Comm, int* flag) { return *flag = 0, MPI_SUCCESS; }
inline int MPI_Comm_get_errhandler(MPI_Comm, MPI_Errhandler* handler) {
  return *handler = MPI_ERRORS_RETURN, MPI_SUCCESS;
}
inline int MPI_Comm_set_errhandler(MPI_Comm, MPI_Errhandler) { return MPI_SUCCESS; }
inline int MPI_Errhandler_free(MPI_Errhandler* handler) { return *handler = MPI_ERRHANDLER_NULL, MPI_SUCCESS; }
inline int MPI_Comm_rank(MPI_Comm, int* rank) { return *rank = stand_in::rank, MPI_SUCCESS; }
inline int MPI_Comm_size(MPI_Comm, int* size) { return *size = stand_in::size, MPI_SUCCESS; }
inline int MPI_Comm_idup(MPI_Comm, MPI_Comm* made, MPI_Request* request) {
  *made = 2;
  *request = 1;
  return MPI_SUCCESS;
}
inline int MPI_Comm_free(MPI_Comm* comm) { return *comm = MPI_COMM_NULL, MPI_SUCCESS; }
inline int MPI_Test(MPI_Request* request, int* done, MPI_Status*) {
  *request = MPI_REQUEST_NULL;
  return *done = 1, MPI_SUCCESS;
}
inline int MPI_Testsome(int count, MPI_Request* requests, int* done, int* indices, MPI_Status* statuses) {
  *done = 0;
  for (int i = 0; i < count; ++i) {
    if (requests[i] == MPI_REQUEST_NULL) continue;
    const auto& message = stand_in::messages[static_cast<std::size_t>(requests[i] - 1)];
    indices[*done] = i;
    statuses[(*done)++] = {message.peer, 0, MPI_SUCCESS, static_cast<int>(message.bytes)};
    requests[i] = MPI_REQUEST_NULL;
  }
  return MPI_SUCCESS;
}
inline int MPI_Get_count(const MPI_Status* status, MPI_Datatype, int* count) {
  return *count = status->bytes, MPI_SUCCESS;
}
inline int MPI_Iprobe(int, int, MPI_Comm, int* found, MPI_Status*) { return *found = 0, MPI_SUCCESS; }
inline int MPI_Recv(void*, int, MPI_Datatype, int, int, MPI_Comm, MPI_Status*) { return MPI_SUCCESS; }
inline int MPI_Irecv(void* to, int bytes, MPI_Datatype, int peer, int, MPI_Comm, MPI_Request* request) {
  return stand_in::note(false, peer, to, bytes, request);
}
inline int MPI_Isend(const void* from, int bytes, MPI_Datatype, int peer, int, MPI_Comm, MPI_Request* request) {
  return stand_in::note(true, peer, from, bytes, request);
}
inline int MPI_Issend(const void* from, int bytes, MPI_Datatype, int peer, int, MPI_Comm, MPI_Request* request) {
  const int code = stand_in::note(true, peer, from, bytes, request);
  stand_in::messages.back().until_received = true;
  return code;
}
inline int MPI_Cancel(MPI_Request*) { return MPI_SUCCESS; }
inline int MPI_Request_free(MPI_Request* request) { return *request = MPI_REQUEST_NULL, MPI_SUCCESS; }
inline int MPI_Error_class(int code, int* error_class) { return *error_class = code, MPI_SUCCESS; }
inline int MPI_Error_string(int, char*, int* length) { return *length = 0, MPI_SUCCESS; }
