// Errors of NCCL and CUDA, missing peers, and calls and streams that never end: each causes an exception on every rank, one
// abort, and no later call.
#include <cstddef>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "harness.hpp"

namespace nccl_failures_tests {
namespace {

using names = std::vector<std::string>;
using nccl_stand_in::for_ever;
using nccl_stand_in::library;
using nccl_tests::check_clean;
using nccl_tests::limited_to;
using nccl_tests::nccl_error_of;
using nccl_tests::patient;
using nccl_tests::run_ranks;
using nccl_tests::text_of;
using nccl_tests::thrown_by;
using slamb::nccl_communicator;

/// Calls every collective once.
void call_all(nccl_communicator& communicator, cudaStream_t stream) {
  const auto ranks = static_cast<std::size_t>(communicator.size());
  std::vector<float> values(4 * ranks), other(4 * ranks), all(4 * ranks * ranks);
  communicator.all_reduce_sum(std::span(values), stream);
  communicator.broadcast(std::span(values), 0, stream);
  communicator.all_gather(std::span<const float>(values), std::span(all), stream);
  communicator.all_to_all(std::span<const float>(values), std::span(other), stream);
  communicator.wait(stream);
}

/// Checks that every call throws `text`, and that none reaches NCCL or CUDA.
void check_dead(const library& nccl, nccl_communicator& communicator, cudaStream_t stream, const std::string& text) {
  const int rank = communicator.rank();
  const std::size_t before = nccl.calls(rank).size();
  const auto ranks = static_cast<std::size_t>(communicator.size());
  std::vector<float> values(ranks), all(ranks * ranks), other(ranks);
  CHECK(text_of(thrown_by([&] { communicator.all_reduce_sum(std::span(values), stream); })) == text);
  CHECK(text_of(thrown_by([&] { communicator.all_reduce_sum(std::span<float>{}, stream); })) == text);
  CHECK(text_of(thrown_by([&] { communicator.broadcast(std::span(values), 0, stream); })) == text);
  CHECK(text_of(thrown_by([&] { communicator.all_gather(std::span<const float>(values), std::span(all), stream); })) ==
        text);
  CHECK(text_of(thrown_by(
            [&] { communicator.all_to_all(std::span<const float>(values), std::span(other), stream); })) == text);
  CHECK(text_of(thrown_by([&] { communicator.check(); })) == text);
  CHECK(text_of(thrown_by([&] { communicator.wait(stream); })) == text);
  communicator.abort("again");
  CHECK(text_of(thrown_by([&] { communicator.check(); })) == text);
  CHECK(nccl.calls(rank).size() == before);
}

}  // namespace

TEST_CASE("nccl_communicator: an error keeps its code, its call and the text of NCCL") {
  for (const std::string function :
       {"ncclAllReduce", "ncclBroadcast", "ncclAllGather", "ncclSend", "ncclRecv", "ncclGroupStart", "ncclGroupEnd"}) {
    for (const ncclResult_t result : {ncclUnhandledCudaError, ncclSystemError, ncclInternalError, ncclInvalidArgument,
                                      ncclInvalidUsage, ncclRemoteError}) {
      CAPTURE(function);
      CAPTURE(result);
      library nccl;
      nccl_communicator communicator(nccl_communicator::unique_id(), 0, 1, patient());
      const cudaStream_t stream = nccl.make_stream();
      nccl.fail(0, function, 1, result);
      const auto thrown = thrown_by([&] { call_all(communicator, stream); });
      const slamb::nccl_error error = nccl_error_of(thrown);
      CHECK(error.result() == result);
      CHECK(error.call() == function);
      const bool is_of_group = function.starts_with("ncclGroup");
      const std::string last = is_of_group ? "" : function + " was told to fail";
      CHECK(error.last_error() == last);
      CHECK(error.what() == "slamb: " + function + " of rank 0 of 1 failed: " + ncclGetErrorString(result) +
                                " (ncclResult_t " + std::to_string(static_cast<int>(result)) + ")" +
                                (is_of_group ? "" : "; NCCL's last error: " + last));
      CHECK(nccl.count(0, "ncclCommAbort") == 1);
      CHECK(communicator.native_handle() == nullptr);
      check_dead(nccl, communicator, stream, error.what());
      check_clean(nccl);
    }
  }
}

TEST_CASE("nccl_communicator: an error derives from the library's") {
  static_assert(std::is_base_of_v<slamb::communicator_error, slamb::nccl_error>);
  static_assert(std::is_base_of_v<slamb::error, slamb::cuda_error>);
  static_assert(std::is_nothrow_copy_constructible_v<slamb::nccl_error>);
  static_assert(std::is_nothrow_copy_constructible_v<slamb::cuda_error>);
}

TEST_CASE("nccl_communicator: a failure inside the group ends the group and nothing more is sent") {
  for (const std::string function : {"ncclSend", "ncclRecv"}) {
    for (int nth = 1; nth <= 3; ++nth) {
      CAPTURE(function);
      CAPTURE(nth);
      constexpr int ranks = 3;
      library nccl;
      nccl.enter(-1);
      const ncclUniqueId id = nccl_communicator::unique_id();
      nccl.fail(1, function, nth, ncclSystemError);
      const auto thrown = run_ranks(nccl, ranks, [&](int rank) {
        nccl_communicator communicator(id, rank, ranks, patient());
        const cudaStream_t stream = nccl.make_stream();
        std::vector<float> send(6), receive(6, 7.0F);
        const auto exception =
            thrown_by([&] { communicator.all_to_all(std::span<const float>(send), std::span(receive), stream); });
        CHECK(receive == std::vector<float>(6, 7.0F));
        if (exception) std::rethrow_exception(exception);
        communicator.abort("its peer has failed");
      });
      CHECK(nccl_error_of(thrown[1]).call() == function);
      names expected{"ncclCommInitRankConfig", "ncclGroupStart"};
      for (int pair = 1; pair < nth; ++pair) expected.insert(expected.end(), {"ncclSend", "ncclRecv"});
      expected.emplace_back("ncclSend");
      if (function == "ncclRecv") expected.emplace_back("ncclRecv");
      expected.insert(expected.end(), {"ncclGroupEnd", "ncclCommAbort"});
      CHECK(nccl.names(1) == expected);
      check_clean(nccl);
    }
  }
}

TEST_CASE("nccl_communicator: if a group does not start, none is ended") {
  library nccl;
  nccl_communicator communicator(nccl_communicator::unique_id(), 0, 1, patient());
  nccl.fail(0, "ncclGroupStart", 1, ncclInternalError);
  std::vector<float> send(2), receive(2);
  const auto thrown =
      thrown_by([&] { communicator.all_to_all(std::span<const float>(send), std::span(receive), nccl.make_stream()); });
  CHECK(nccl_error_of(thrown).call() == std::string("ncclGroupStart"));
  CHECK(nccl.count(0, "ncclGroupEnd") == 0);
  check_clean(nccl);
}

TEST_CASE("nccl_communicator: reads the text of the last error before the abort") {
  library nccl;
  nccl_communicator communicator(nccl_communicator::unique_id(), 0, 1, patient());
  nccl.fail(0, "ncclAllReduce", 1, ncclSystemError);
  const cudaStream_t stream = nccl.make_stream();
  CHECK(thrown_by([&] { call_all(communicator, stream); }) != nullptr);
  const auto calls = nccl.calls(0);
  REQUIRE(calls.size() >= 2);
  CHECK(calls[calls.size() - 2].name == "ncclGetLastError");
  CHECK(calls[calls.size() - 1].name == "ncclCommAbort");
}

TEST_CASE("nccl_communicator: a call that stays in progress times out and aborts, on every rank") {
  for (const std::string function : {"ncclAllReduce", "ncclBroadcast", "ncclAllGather", "ncclGroupEnd"}) {
    CAPTURE(function);
    constexpr int ranks = 3;
    library nccl;
    nccl.let_ranks_meet();
    nccl.enter(-1);
    const ncclUniqueId id = nccl_communicator::unique_id();
    const auto thrown = run_ranks(nccl, ranks, [&](int rank) {
      nccl_communicator communicator(id, rank, ranks, limited_to(100));
      const cudaStream_t stream = nccl.make_stream();
      nccl.stay_in_progress(rank, for_ever);
      std::vector<float> values(3), other(3), all(9);
      const auto exception = thrown_by([&] {
        if (function == "ncclAllReduce") communicator.all_reduce_sum(std::span(values), stream);
        if (function == "ncclBroadcast") communicator.broadcast(std::span(values), 1, stream);
        if (function == "ncclAllGather") {
          communicator.all_gather(std::span<const float>(values), std::span(all), stream);
        }
        if (function == "ncclGroupEnd") {
          communicator.all_to_all(std::span<const float>(values), std::span(other), stream);
        }
      });
      check_dead(nccl, communicator, stream, text_of(exception));
      std::rethrow_exception(exception);
    });
    for (int rank = 0; rank < ranks; ++rank) {
      const slamb::nccl_error error = nccl_error_of(thrown[static_cast<std::size_t>(rank)]);
      CHECK(error.result() == ncclInProgress);
      CHECK(error.call() == function);
      CHECK(error.what() == "slamb: " + function + " of rank " + std::to_string(rank) +
                                " of 3 was not done within 86400000 ms or 100 polls");
      CHECK(nccl.count(rank, "ncclCommAbort") == 1);
      CHECK(nccl.count(rank, "ncclCommDestroy") == 0);
    }
    check_clean(nccl);
  }
}

TEST_CASE("nccl_communicator: a timeout counts time, not polls") {
  library nccl;
  nccl_communicator communicator(nccl_communicator::unique_id(), 0, 1, {.timeout = std::chrono::milliseconds(1)});
  const cudaStream_t stream = nccl.make_stream();
  nccl.freeze(stream);
  const auto error = nccl_error_of(thrown_by([&] { communicator.wait(stream); }));
  CHECK(std::string(error.what()) == "slamb: cudaStreamQuery of rank 0 of 1 was not done within 1 ms");
}

TEST_CASE("nccl_communicator: a missing peer ends the construction") {
  library nccl;
  nccl.enter(-1);
  const ncclUniqueId id = nccl_communicator::unique_id();
  const auto thrown =
      run_ranks(nccl, 2, [&](int rank) { nccl_communicator communicator(id, rank, 3, limited_to(50)); });
  for (int rank = 0; rank < 2; ++rank) {
    const slamb::nccl_error error = nccl_error_of(thrown[static_cast<std::size_t>(rank)]);
    CHECK(error.result() == ncclInProgress);
    CHECK(error.call() == std::string("ncclCommInitRankConfig"));
    CHECK(nccl.count(rank, "ncclCommGetAsyncError") == 50);
    CHECK(nccl.names(rank) == names{"ncclCommInitRankConfig", "ncclCommAbort"});
  }
  check_clean(nccl);
}

TEST_CASE("nccl_communicator: construction reports NCCL's errors") {
  library nccl;
  nccl.fail(0, "ncclGetUniqueId", 1, ncclSystemError);
  nccl.fail(0, "ncclCommInitRankConfig", 1, ncclInvalidUsage);
  CHECK(text_of(thrown_by([] { nccl_communicator::unique_id(); })) ==
        "slamb: ncclGetUniqueId failed: unhandled system error (ncclResult_t 2)");
  const auto error =
      nccl_error_of(thrown_by([] { nccl_communicator(nccl_communicator::unique_id(), 0, 1, patient()); }));
  CHECK(error.result() == ncclInvalidUsage);
  CHECK(error.call() == std::string("ncclCommInitRankConfig"));
  CHECK(nccl.count(0, "ncclCommAbort") == 0);
  check_clean(nccl);
}

TEST_CASE("nccl_communicator: a peer that is missing in a collective ends the wait of the others") {
  constexpr int ranks = 4;
  library nccl;
  nccl.let_ranks_meet();
  nccl.enter(-1);
  const ncclUniqueId id = nccl_communicator::unique_id();
  const auto thrown = run_ranks(nccl, ranks, [&](int rank) {
    nccl_communicator communicator(id, rank, ranks, limited_to(200));
    const cudaStream_t stream = nccl.make_stream();
    if (rank == 2) throw std::runtime_error("has other things to do");
    std::vector<float> values(5, 1.0F);
    communicator.all_reduce_sum(std::span(values), stream);
    communicator.wait(stream);
  });
  for (int rank = 0; rank < ranks; ++rank) {
    if (rank == 2) continue;
    const slamb::nccl_error error = nccl_error_of(thrown[static_cast<std::size_t>(rank)]);
    CHECK(error.result() == ncclInProgress);
    CHECK(error.call() == std::string("cudaStreamQuery"));
    CHECK(nccl.count(rank, "cudaStreamQuery") == 200);
    CHECK(nccl.count(rank, "ncclCommAbort") == 1);
  }
  CHECK(text_of(thrown[2]) == "has other things to do");
  CHECK(nccl.count(2, "ncclCommDestroy") == 1);
  check_clean(nccl);
}

TEST_CASE("nccl_communicator: the next call finds an asynchronous error") {
  for (const std::string next : {"check", "wait", "all_reduce_sum", "broadcast", "all_gather", "all_to_all"}) {
    CAPTURE(next);
    library nccl;
    nccl_communicator communicator(nccl_communicator::unique_id(), 0, 1, patient());
    const cudaStream_t stream = nccl.make_stream();
    communicator.check();
    nccl.report_error(0, ncclRemoteError);
    std::vector<float> values(3), other(3);
    const std::span<const float> sent(values);
    const auto thrown = thrown_by([&] {
      if (next == "check") communicator.check();
      if (next == "wait") communicator.wait(stream);
      if (next == "all_reduce_sum") communicator.all_reduce_sum(std::span(values), stream);
      if (next == "broadcast") communicator.broadcast(std::span(values), 0, stream);
      if (next == "all_gather") communicator.all_gather(sent, std::span(other), stream);
      if (next == "all_to_all") communicator.all_to_all(sent, std::span(other), stream);
    });
    const slamb::nccl_error error = nccl_error_of(thrown);
    CHECK(error.result() == ncclRemoteError);
    CHECK(error.call() == std::string("ncclCommGetAsyncError"));
    CHECK(error.last_error() == "told to report an error");
    CHECK(nccl.names(0) == names{"ncclGetUniqueId", "ncclCommInitRankConfig", "ncclCommAbort"});
    check_dead(nccl, communicator, stream, error.what());
    check_clean(nccl);
  }
}

TEST_CASE("nccl_communicator: an asynchronous error of one rank ends all") {
  constexpr int ranks = 3;
  library nccl;
  nccl.let_ranks_meet();
  nccl.enter(-1);
  const ncclUniqueId id = nccl_communicator::unique_id();
  const auto thrown = run_ranks(nccl, ranks, [&](int rank) {
    nccl_communicator communicator(id, rank, ranks, limited_to(200));
    const cudaStream_t stream = nccl.make_stream();
    if (rank == 1) nccl.report_error(rank, ncclSystemError);
    call_all(communicator, stream);
  });
  for (int rank = 0; rank < ranks; ++rank) {
    const slamb::nccl_error error = nccl_error_of(thrown[static_cast<std::size_t>(rank)]);
    CHECK(error.result() == (rank == 1 ? ncclSystemError : ncclInProgress));
    CHECK(nccl.count(rank, "ncclCommAbort") == 1);
  }
  check_clean(nccl);
}

TEST_CASE("nccl_communicator: an error during a wait for a stream ends the wait") {
  library nccl;
  nccl_communicator communicator(nccl_communicator::unique_id(), 0, 1, patient());
  const cudaStream_t stream = nccl.make_stream();
  nccl.freeze(stream);
  const int looks = nccl.count(0, "ncclCommGetAsyncError");
  nccl.fail(0, "ncclCommGetAsyncError", looks + 5, ncclRemoteError);
  const auto error = nccl_error_of(thrown_by([&] { communicator.wait(stream); }));
  CHECK(error.result() == ncclRemoteError);
  CHECK(nccl.count(0, "cudaStreamQuery") == 5);
  CHECK(nccl.count(0, "cudaGetLastError") == 5);  // "not ready" does not stay as the last error
  check_clean(nccl);
}

TEST_CASE("nccl_communicator: an error while a call continues in the background is attributed to the call") {
  library nccl;
  nccl_communicator communicator(nccl_communicator::unique_id(), 0, 1, patient());
  nccl.stay_in_progress(0, for_ever);
  nccl.fail(0, "ncclCommGetAsyncError", nccl.count(0, "ncclCommGetAsyncError") + 4, ncclSystemError);
  std::vector<float> values(3);
  const auto thrown = thrown_by([&] { communicator.all_reduce_sum(std::span(values), nccl.make_stream()); });
  CHECK(nccl_error_of(thrown).result() == ncclSystemError);
  CHECK(nccl_error_of(thrown).call() == std::string("ncclAllReduce"));
  check_clean(nccl);
}

TEST_CASE("nccl_communicator: an error of the stream is one of CUDA, and aborts") {
  library nccl;
  nccl_communicator communicator(nccl_communicator::unique_id(), 0, 1, patient());
  const cudaStream_t stream = nccl.make_stream();
  nccl.fail_stream(stream, cudaErrorIllegalAddress);
  const auto thrown = thrown_by([&] { communicator.wait(stream); });
  REQUIRE(thrown != nullptr);
  try {
    std::rethrow_exception(thrown);
  } catch (const slamb::cuda_error& error) {
    CHECK(error.code() == cudaErrorIllegalAddress);
    CHECK(error.call() == std::string("cudaStreamQuery"));
    CHECK(error.what() == std::string("slamb: cudaStreamQuery failed: an illegal memory access was encountered "
                                      "(cudaErrorIllegalAddress = 700)"));
  } catch (...) {
    FAIL("no cuda_error: " << text_of(thrown));
  }
  CHECK(nccl.count(0, "ncclCommAbort") == 1);
  check_dead(nccl, communicator, stream, text_of(thrown));
  check_clean(nccl);
}

TEST_CASE("cuda_error: check_cuda throws on any status but success, and clears it") {
  library nccl;
  slamb::detail::check_cuda(cudaSuccess, "cudaMemcpyAsync");
  CHECK(nccl.count(0, "cudaGetLastError") == 0);
  CHECK_THROWS_WITH_AS(slamb::detail::check_cuda(cudaErrorIllegalAddress, "cudaMemcpyAsync"),
                       "slamb: cudaMemcpyAsync failed: an illegal memory access was encountered "
                       "(cudaErrorIllegalAddress = 700)",
                       slamb::cuda_error);
  CHECK(nccl.count(0, "cudaGetLastError") == 1);
}

TEST_CASE("nccl_communicator: aborts once, and later calls throw this abort") {
  library nccl;
  nccl_communicator communicator(nccl_communicator::unique_id(), 0, 1, patient());
  const cudaStream_t stream = nccl.make_stream();
  communicator.abort("the data has run out");
  CHECK(nccl.count(0, "ncclCommAbort") == 1);
  check_dead(nccl, communicator, stream, "slamb: rank 0 of 1 was aborted: the data has run out");
  CHECK(nccl.count(0, "ncclCommAbort") == 1);
  check_clean(nccl);
}

TEST_CASE("nccl_communicator: an abort that fails changes nothing") {
  library nccl;
  nccl_communicator communicator(nccl_communicator::unique_id(), 0, 1, patient());
  const cudaStream_t stream = nccl.make_stream();
  nccl.fail(0, "ncclAllReduce", 1, ncclSystemError);
  nccl.fail(0, "ncclCommAbort", 1, ncclInternalError);
  const auto error = nccl_error_of(thrown_by([&] { call_all(communicator, stream); }));
  CHECK(error.result() == ncclSystemError);
  check_dead(nccl, communicator, stream, error.what());
  CHECK(nccl.count(0, "ncclCommAbort") == 1);
}

}  // namespace nccl_failures_tests
