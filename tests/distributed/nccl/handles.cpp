// Ownership and lifetime of an NCCL communicator.
#include <chrono>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "harness.hpp"
#include "slamb/communicator/counting_communicator.hpp"

namespace nccl_handles_tests {
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

/// Communicators of all ranks as a framework makes them, without slamb.
std::vector<ncclComm_t> make_native(int ranks, int blocking) {
  ncclUniqueId id;
  REQUIRE(ncclGetUniqueId(&id) == ncclSuccess);
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = blocking;
  std::vector<ncclComm_t> result(static_cast<std::size_t>(ranks));
  for (int rank = 0; rank < ranks; ++rank) {
    const ncclResult_t made = ncclCommInitRankConfig(&result[static_cast<std::size_t>(rank)], ranks, id, rank, &config);
    REQUIRE(made == (blocking != 0 ? ncclSuccess : ncclInProgress));
  }
  return result;
}

nccl_communicator make_own() { return {nccl_communicator::unique_id(), 0, 1, patient()}; }

constexpr const char* moved_from = "slamb: an nccl_communicator was called after it was moved from";

}  // namespace

static_assert(std::is_nothrow_move_constructible_v<nccl_communicator>);
static_assert(std::is_nothrow_move_assignable_v<nccl_communicator>);
static_assert(!std::is_copy_constructible_v<nccl_communicator> && !std::is_copy_assignable_v<nccl_communicator>);
static_assert(!nccl_communicator::is_local);
static_assert(slamb::communicator<nccl_communicator>);

TEST_CASE("nccl_communicator: an owned one is non-blocking, and is finalized before it is destroyed") {
  library nccl;
  {
    const nccl_communicator communicator = make_own();
    CHECK_FALSE(communicator.native_handle()->blocking);
  }
  CHECK(nccl.names(0) == names{"ncclGetUniqueId", "ncclCommInitRankConfig", "ncclCommFinalize", "ncclCommDestroy"});
  check_clean(nccl);
}

TEST_CASE("nccl_communicator: a destructor waits for collectives in flight") {
  library nccl;
  nccl.let_ranks_meet();
  const ncclUniqueId id = nccl_communicator::unique_id();
  std::vector<std::vector<float>> values(2, std::vector<float>(3, 1.0F));
  const auto thrown = run_ranks(nccl, 2, [&](int rank) {
    nccl_communicator communicator(id, rank, 2, patient());
    communicator.all_reduce_sum(std::span(values[static_cast<std::size_t>(rank)]), nccl.make_stream());
  });
  for (int rank = 0; rank < 2; ++rank) {
    CHECK(text_of(thrown[static_cast<std::size_t>(rank)]) == "");
    CHECK(values[static_cast<std::size_t>(rank)] == std::vector<float>(3, 2.0F));
    CHECK(nccl.count(rank, "ncclCommDestroy") == 1);
    CHECK(nccl.count(rank, "ncclCommAbort") == 0);
  }
  check_clean(nccl);
}

TEST_CASE("nccl_communicator: a destructor aborts collectives that do not end") {
  library nccl;
  nccl.let_ranks_meet();
  const ncclUniqueId id = nccl_communicator::unique_id();
  const auto thrown = run_ranks(nccl, 2, [&](int rank) {
    nccl_communicator communicator(id, rank, 2, limited_to(30));
    std::vector<float> values(3, 1.0F);
    if (rank == 0) communicator.all_reduce_sum(std::span(values), nccl.make_stream());
  });
  CHECK(text_of(thrown[0]) == "");
  CHECK(nccl.count(0, "ncclCommAbort") == 1);
  CHECK(nccl.count(0, "ncclCommDestroy") == 0);
  CHECK(nccl.count(1, "ncclCommDestroy") == 1);
  check_clean(nccl);
}

TEST_CASE("nccl_communicator: a destructor aborts if NCCL cannot finalize, and throws nothing") {
  library nccl;
  {
    const nccl_communicator communicator = make_own();
    nccl.fail(0, "ncclCommFinalize", 1, ncclSystemError);
  }
  {
    const nccl_communicator communicator = make_own();
    nccl.report_error(0, ncclRemoteError);
  }
  CHECK(nccl.count(0, "ncclCommAbort") == 2);
  CHECK(nccl.count(0, "ncclCommDestroy") == 0);
  {
    const nccl_communicator communicator = make_own();
    nccl.fail(0, "ncclCommDestroy", 1, ncclInternalError);
  }
  check_clean(nccl);
}

TEST_CASE("nccl_communicator: an abort that never returns hangs neither a call that fails nor a destructor") {
  slamb::nccl_options options = limited_to(20);
  for (const bool fails : {true, false}) {
    CAPTURE(fails);
    options.abort_timeout = std::chrono::milliseconds(fails ? 1 : 3000);  // in which a finalize before it returns
    library nccl;
    nccl.hold("ncclCommAbort");
    nccl_stand_in::current_device = 3;
    std::optional<nccl_communicator> communicator;
    communicator.emplace(nccl_communicator::unique_id(), 0, 1, options);
    nccl.stay_in_progress(0, for_ever);
    if (fails) {
      std::vector<float> values(3);
      const cudaStream_t stream = nccl.make_stream();
      const auto thrown = thrown_by([&] { communicator->all_reduce_sum(std::span(values), stream); });
      CHECK(nccl_error_of(thrown).call() == std::string("ncclAllReduce"));
      CHECK(communicator->native_handle() == nullptr);
      CHECK(text_of(thrown_by([&] { communicator->wait(stream); })) == text_of(thrown));
    }
    communicator.reset();
    nccl.wait_for_held_call();
    CHECK(nccl.count(0, "ncclCommAbort") == 1);
    CHECK(nccl.calls(0).back().device == 3);
    CHECK(nccl.living_communicators() == 1);
    nccl.let_go();
    check_clean(nccl);
    nccl_stand_in::current_device = 0;
  }
}

TEST_CASE("nccl_communicator: a destructor returns although NCCL's calls that end a communicator do not") {
  // A peer is gone, and this rank does not know it.
  slamb::nccl_options options = limited_to(20);
  for (const std::string held : {"ncclCommFinalize", "ncclCommDestroy"}) {
    CAPTURE(held);
    // In which the calls that are not held return.
    options.abort_timeout = std::chrono::milliseconds(held == "ncclCommFinalize" ? 1 : 3000);
    library nccl;
    nccl.hold(held);
    { const nccl_communicator communicator(nccl_communicator::unique_id(), 0, 1, options); }
    nccl.wait_for_held_call();
    nccl.let_go();
    const bool is_finalized = held == "ncclCommDestroy";  // otherwise the communicator is left behind
    CHECK(nccl.count(0, "ncclCommDestroy") == (is_finalized ? 1 : 0));
    CHECK(nccl.count(0, "ncclCommAbort") == 0);
    check_clean(nccl, is_finalized ? 0 : 1);
  }
}

TEST_CASE("nccl_communicator: after a failure a destructor calls nothing") {
  library nccl;
  {
    nccl_communicator communicator = make_own();
    communicator.abort("enough");
    CHECK(nccl.count(0, "ncclCommAbort") == 1);
  }
  CHECK(nccl.names(0) == names{"ncclGetUniqueId", "ncclCommInitRankConfig", "ncclCommAbort"});
  check_clean(nccl);
}

TEST_CASE("nccl_communicator: a handle that was moved from names the mistake, and the communicator is released once") {
  library nccl;
  std::vector<float> values(3);
  const cudaStream_t stream = nccl.make_stream();
  {
    nccl_communicator first = make_own();
    const ncclComm_t native = first.native_handle();
    nccl_communicator second = std::move(first);
    CHECK(second.native_handle() == native);
    CHECK(first.native_handle() ==
          nullptr);  // NOLINT(bugprone-use-after-move): the test looks at the moved-from object
    CHECK(text_of(thrown_by([&] { first.check(); })) == moved_from);
    CHECK(text_of(thrown_by([&] { first.wait(stream); })) == moved_from);
    CHECK(text_of(thrown_by([&] { first.all_reduce_sum(std::span(values), stream); })) == moved_from);
    first.abort("nothing");
    CHECK(text_of(thrown_by([&] { first.check(); })) == moved_from);
    second.all_reduce_sum(std::span(values), stream);
    first = std::move(second);
    CHECK(first.native_handle() == native);
    first.check();
    CHECK(nccl.count(0, "ncclCommDestroy") == 0);
  }
  CHECK(nccl.count(0, "ncclCommDestroy") == 1);
  check_clean(nccl);
}

TEST_CASE("nccl_communicator: an assignment releases the previous communicator") {
  library nccl;
  nccl_communicator first = make_own();
  nccl_communicator second = make_own();
  const ncclComm_t old = first.native_handle();
  const ncclComm_t kept = second.native_handle();
  first = std::move(second);
  CHECK(first.native_handle() == kept);
  CHECK(old->state == ncclComm::life::destroyed);
  CHECK(kept->state == ncclComm::life::living);
  nccl_communicator& same = first;
  first = std::move(same);
  CHECK(first.native_handle() == kept);
  first.check();
  check_clean(nccl, 1);
}

TEST_CASE("nccl_communicator: a failure moves with the handle") {
  library nccl;
  nccl_communicator first = make_own();
  first.abort("enough");
  nccl_communicator second = std::move(first);
  CHECK(text_of(thrown_by([&] { second.check(); })) == "slamb: rank 0 of 1 was aborted: enough");
  CHECK(text_of(thrown_by([&] { first.check(); })) == moved_from);  // NOLINT(bugprone-use-after-move)
  first = make_own();
  first.check();
  check_clean(nccl, 1);
}

TEST_CASE("nccl_communicator: rank and size are read from a borrowed one, which is not destroyed") {
  for (const int blocking : {0, 1}) {
    CAPTURE(blocking);
    library nccl;
    const std::vector<ncclComm_t> native = make_native(3, blocking);
    const auto thrown = run_ranks(nccl, 3, [&](int rank) {
      nccl_communicator communicator = nccl_communicator::borrow(native[static_cast<std::size_t>(rank)], patient());
      CHECK(communicator.rank() == rank);
      CHECK(communicator.size() == 3);
      const cudaStream_t stream = nccl.make_stream();
      std::vector<float> values(2, 1.0F);
      communicator.all_reduce_sum(std::span(values), stream);
      communicator.wait(stream);
      CHECK(values == std::vector<float>(2, 3.0F));
    });
    for (int rank = 0; rank < 3; ++rank) {
      CHECK(text_of(thrown[static_cast<std::size_t>(rank)]) == "");
      CHECK(nccl.count(rank, "ncclCommFinalize") == 0);
      CHECK(nccl.count(rank, "ncclCommDestroy") == 0);
    }
    check_clean(nccl, 3);
  }
}

TEST_CASE("nccl_communicator: waits until a borrowed one is ready") {
  library nccl;
  nccl.stay_in_progress(0, 7);
  const ncclComm_t native = make_native(1, 0)[0];
  const nccl_communicator communicator = nccl_communicator::borrow(native, limited_to(8));
  CHECK(communicator.native_handle() == native);
  nccl.stay_in_progress(0, for_ever);
  const ncclComm_t other = make_native(1, 0)[0];
  const auto error = nccl_error_of(thrown_by([&] { nccl_communicator::borrow(other, limited_to(8)); }));
  CHECK(error.result() == ncclInProgress);
  CHECK(nccl.count(0, "ncclCommAbort") == 0);
  check_clean(nccl, 2);
}

TEST_CASE("nccl_communicator: waits for calls that the owner has left in progress") {
  library nccl;
  const ncclComm_t native = make_native(1, 0)[0];
  nccl_communicator communicator = nccl_communicator::borrow(native, patient());
  std::vector<float> values(2), other(2);
  const cudaStream_t stream = nccl.make_stream();
  nccl.stay_in_progress(0, 3);
  CHECK(ncclAllReduce(values.data(), values.data(), 2, ncclFloat32, ncclSum, native, stream) == ncclInProgress);
  communicator.check();
  communicator.all_gather(std::span<const float>(values), std::span(other), stream);
  check_clean(nccl, 1);
}

TEST_CASE("nccl_communicator: an error of a query names the query") {
  for (const std::string function : {"ncclCommUserRank", "ncclCommCount"}) {
    library nccl;
    const ncclComm_t native = make_native(1, 1)[0];
    nccl.fail(0, function, 1, ncclInvalidArgument);
    const auto error = nccl_error_of(thrown_by([&] { nccl_communicator::borrow(native); }));
    CHECK(error.call() == function);
    CHECK(error.result() == ncclInvalidArgument);
    check_clean(nccl, 1);
  }
}

TEST_CASE("nccl_communicator: a failure aborts a borrowed one only with that option") {
  for (const bool abort_borrowed : {false, true}) {
    CAPTURE(abort_borrowed);
    library nccl;
    const ncclComm_t native = make_native(1, 1)[0];
    slamb::nccl_options options = limited_to(20);
    options.abort_borrowed = abort_borrowed;
    {
      nccl_communicator communicator = nccl_communicator::borrow(native, options);
      const cudaStream_t stream = nccl.make_stream();
      nccl.freeze(stream);
      const auto thrown = thrown_by([&] { communicator.wait(stream); });
      CHECK(nccl_error_of(thrown).result() == ncclInProgress);
      const std::size_t before = nccl.calls(0).size();
      std::vector<float> values(2);
      CHECK(text_of(thrown_by([&] { communicator.all_reduce_sum(std::span(values), stream); })) == text_of(thrown));
      CHECK(text_of(thrown_by([&] { communicator.wait(stream); })) == text_of(thrown));
      communicator.abort("again");
      CHECK(text_of(thrown_by([&] { communicator.check(); })) == text_of(thrown));
      CHECK(nccl.calls(0).size() == before);
    }
    CHECK(nccl.count(0, "ncclCommAbort") == (abort_borrowed ? 1 : 0));
    CHECK(nccl.count(0, "ncclCommDestroy") == 0);
    check_clean(nccl, abort_borrowed ? 0 : 1);
  }
}

TEST_CASE("nccl_communicator: abort of a borrowed one ends the handle, and with that option the communicator") {
  for (const bool abort_borrowed : {false, true}) {
    library nccl;
    const ncclComm_t native = make_native(1, 1)[0];
    nccl_communicator communicator = nccl_communicator::borrow(native, {.abort_borrowed = abort_borrowed});
    communicator.abort("enough");
    communicator.abort("more");
    CHECK(text_of(thrown_by([&] { communicator.check(); })) == "slamb: rank 0 of 1 was aborted: enough");
    CHECK(nccl.count(0, "ncclCommAbort") == (abort_borrowed ? 1 : 0));
    check_clean(nccl, abort_borrowed ? 0 : 1);
  }
}

TEST_CASE("nccl_communicator: another communicator can wrap it") {
  using counting = slamb::counting_communicator<nccl_communicator>;
  static_assert(slamb::capability::has_all_reduce_sum<counting, float, cudaStream_t>);
  static_assert(!slamb::capability::has_all_reduce_sum<counting, std::byte, cudaStream_t>);
  static_assert(!slamb::capability::has_all_reduce_sum<counting, float>);
  library nccl;
  {
    counting communicator(make_own());
    std::vector<float> values(5);
    communicator.all_reduce_sum(std::span(values), nccl.make_stream());
    CHECK(communicator.counts()[slamb::collective::all_reduce].elements == 5);
  }
  check_clean(nccl);
}

}  // namespace nccl_handles_tests
