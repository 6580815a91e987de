// The calls of NCCL that a collective makes: their order and arguments.
#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "harness.hpp"

namespace nccl_calls_tests {
namespace {

using names = std::vector<std::string>;
using nccl_stand_in::call;
using nccl_tests::check_clean;
using nccl_tests::patient;
using nccl_tests::run_ranks;
using nccl_tests::text_of;
using nccl_tests::thrown_by;

/// A single rank.
struct single_rank {
  nccl_stand_in::library library;
  slamb::nccl_communicator communicator{slamb::nccl_communicator::unique_id(), 0, 1, patient()};
  cudaStream_t stream = library.make_stream();

  /// The calls of `function`, in order.
  std::vector<call> calls(const std::string& function) const {
    std::vector<call> result;
    for (const call& made : library.calls(0)) {
      if (made.name == function) result.push_back(made);
    }
    return result;
  }
};

/// A user-defined type.
struct user_half {
  std::uint16_t bits;
};

}  // namespace
}  // namespace nccl_calls_tests

template <>
struct slamb::nccl_type<nccl_calls_tests::user_half> {
  static constexpr ncclDataType_t value = ncclFloat16;
  static constexpr bool is_summable = false;
};

namespace nccl_calls_tests {

TEST_CASE("nccl_communicator: one call per collective, with its arguments") {
  single_rank alone;
  std::vector<double> values(7), all(7);
  alone.communicator.all_reduce_sum(std::span(values), alone.stream);
  alone.communicator.broadcast(std::span(values), 0, alone.stream);
  alone.communicator.all_gather(std::span<const double>(values), std::span(all), alone.stream);
  CHECK(alone.library.names(0) ==
        names{"ncclGetUniqueId", "ncclCommInitRankConfig", "ncclAllReduce", "ncclBroadcast", "ncclAllGather"});
  for (const char* function : {"ncclAllReduce", "ncclBroadcast", "ncclAllGather"}) {
    CAPTURE(function);
    REQUIRE(alone.calls(function).size() == 1);
    const call made = alone.calls(function)[0];
    const bool is_in_place = std::string(function) != "ncclAllGather";
    CHECK(made.depth == 0);
    CHECK(made.in == values.data());
    CHECK(made.out == (is_in_place ? values.data() : all.data()));
    CHECK(made.count == 7);
    CHECK(made.type == ncclFloat64);
    CHECK(made.communicator == alone.communicator.native_handle());
    CHECK(made.stream == alone.stream);
  }
  CHECK(alone.calls("ncclAllReduce")[0].op == ncclSum);
  CHECK(alone.calls("ncclBroadcast")[0].peer == 0);
}

TEST_CASE("nccl_communicator: checks for errors before each call that enqueues") {
  single_rank alone;
  std::vector<float> values(3), other(3);
  const std::size_t before = alone.library.calls(0).size();
  alone.communicator.all_reduce_sum(std::span(values), alone.stream);
  alone.communicator.broadcast(std::span(values), 0, alone.stream);
  alone.communicator.all_gather(std::span<const float>(values), std::span(other), alone.stream);
  alone.communicator.all_to_all(std::span<const float>(values), std::span(other), alone.stream);
  names made;
  for (const call& each : alone.library.calls(0)) made.push_back(each.name);
  made.erase(made.begin(), made.begin() + static_cast<std::ptrdiff_t>(before));
  CHECK(made == names{"ncclCommGetAsyncError", "ncclAllReduce", "ncclCommGetAsyncError", "ncclBroadcast",
                      "ncclCommGetAsyncError", "ncclAllGather", "ncclCommGetAsyncError", "ncclGroupStart", "ncclSend",
                      "ncclRecv", "ncclGroupEnd"});
}

TEST_CASE("nccl_communicator: all_to_all is one group, with the rank's own chunk in it") {
  constexpr int ranks = 3;
  nccl_stand_in::library library;
  const ncclUniqueId id = slamb::nccl_communicator::unique_id();
  std::vector<std::vector<std::int32_t>> send(ranks, std::vector<std::int32_t>(12)), receive = send;
  const auto thrown = run_ranks(library, ranks, [&](int rank) {
    slamb::nccl_communicator communicator(id, rank, ranks, patient());
    const cudaStream_t stream = library.make_stream();
    const auto place = static_cast<std::size_t>(rank);
    communicator.all_to_all(std::span<const std::int32_t>(send[place]), std::span(receive[place]), stream);
    communicator.wait(stream);
  });
  for (int rank = 0; rank < ranks; ++rank) {
    CAPTURE(rank);
    CHECK(text_of(thrown[static_cast<std::size_t>(rank)]) == "");
    std::vector<call> group;
    for (const call& made : library.calls(rank)) {
      if (made.name.starts_with("ncclGroup") || made.depth > 0) group.push_back(made);
    }
    REQUIRE(group.size() == 2 + 2 * ranks);
    CHECK(group.front().name == "ncclGroupStart");
    CHECK(group.front().depth == 0);
    CHECK(group.back().name == "ncclGroupEnd");
    CHECK(group.back().depth == 1);
    for (std::size_t peer = 0; peer < ranks; ++peer) {
      const call& sent = group[1 + 2 * peer];
      const call& received = group[2 + 2 * peer];
      CHECK(sent.name == "ncclSend");
      CHECK(received.name == "ncclRecv");
      CHECK(sent.in == send[static_cast<std::size_t>(rank)].data() + 4 * peer);
      CHECK(received.out == receive[static_cast<std::size_t>(rank)].data() + 4 * peer);
      for (const call* made : {&sent, &received}) {
        CHECK(made->count == 4);
        CHECK(made->type == ncclInt32);
        CHECK(made->peer == static_cast<int>(peer));
        CHECK(made->depth == 1);
      }
    }
  }
  check_clean(library);
}

TEST_CASE("nccl_communicator: all ranks make the same calls in the same order") {
  constexpr int ranks = 4;
  nccl_stand_in::library library;
  for (int rank = 0; rank < ranks; ++rank) library.stay_in_progress(rank, static_cast<std::uint64_t>(rank));
  library.enter(-1);
  const ncclUniqueId id = slamb::nccl_communicator::unique_id();
  const auto thrown = run_ranks(library, ranks, [&](int rank) {
    slamb::nccl_communicator communicator(id, rank, ranks, patient());
    const cudaStream_t stream = library.make_stream();
    std::vector<float> values(8), all(32);
    std::vector<float> received(8);
    communicator.broadcast(std::span(values), 2, stream);
    communicator.all_to_all(std::span<const float>(values), std::span(received), stream);
    communicator.all_gather(std::span<const float>(values), std::span(all), stream);
    communicator.all_reduce_sum(std::span(values), stream);
    communicator.wait(stream);
  });
  names expected{"ncclCommInitRankConfig", "ncclBroadcast", "ncclGroupStart"};
  for (int peer = 0; peer < ranks; ++peer) expected.insert(expected.end(), {"ncclSend", "ncclRecv"});
  expected.insert(expected.end(),
                  {"ncclGroupEnd", "ncclAllGather", "ncclAllReduce", "ncclCommFinalize", "ncclCommDestroy"});
  for (int rank = 0; rank < ranks; ++rank) {
    CAPTURE(rank);
    CHECK(text_of(thrown[static_cast<std::size_t>(rank)]) == "");
    CHECK(library.names(rank) == expected);
  }
  check_clean(library);
}

TEST_CASE("nccl_communicator: each element type has its own in NCCL") {
  using slamb::nccl_type;
  static_assert(nccl_type<float>::value == ncclFloat32 && nccl_type<double>::value == ncclFloat64);
  static_assert(nccl_type<std::int8_t>::value == ncclInt8 && nccl_type<std::uint8_t>::value == ncclUint8);
  static_assert(nccl_type<std::int32_t>::value == ncclInt32 && nccl_type<std::uint32_t>::value == ncclUint32);
  static_assert(nccl_type<long>::value == ncclInt64 && nccl_type<unsigned long>::value == ncclUint64);
  static_assert(nccl_type<long long>::value == ncclInt64 && nccl_type<unsigned long long>::value == ncclUint64);
  static_assert(nccl_type<std::byte>::value == ncclUint8 && !nccl_type<std::byte>::is_summable);
  static_assert(nccl_type<__half>::value == ncclFloat16 && nccl_type<__nv_bfloat16>::value == ncclBfloat16);
  static_assert(nccl_type<slamb::bfloat16>::value == ncclBfloat16);
  using slamb::nccl_communicator;
  using slamb::capability::has_all_reduce_sum;
  using slamb::capability::has_broadcast;
  static_assert(!has_all_reduce_sum<nccl_communicator, std::byte, cudaStream_t>);
  static_assert(!has_all_reduce_sum<nccl_communicator, std::int16_t, cudaStream_t>);
  static_assert(!has_broadcast<nccl_communicator, std::int16_t, cudaStream_t>);
  static_assert(!has_broadcast<nccl_communicator, bool, cudaStream_t>);
  static_assert(!has_all_reduce_sum<nccl_communicator, float>, "host_stream is no stream of CUDA");
  static_assert(has_broadcast<nccl_communicator, user_half, cudaStream_t>);
  static_assert(!has_all_reduce_sum<nccl_communicator, user_half, cudaStream_t>);

  single_rank alone;
  const auto type_of = [&]<class T>(T value) {
    alone.communicator.broadcast(std::span(&value, 1), 0, alone.stream);
    return alone.calls("ncclBroadcast").back().type;
  };
  CHECK(type_of(1.0F) == ncclFloat32);
  CHECK(type_of(1.0) == ncclFloat64);
  CHECK(type_of(std::int8_t{}) == ncclInt8);
  CHECK(type_of(std::byte{}) == ncclUint8);
  CHECK(type_of(std::int32_t{}) == ncclInt32);
  CHECK(type_of(std::uint32_t{}) == ncclUint32);
  CHECK(type_of(std::int64_t{}) == ncclInt64);
  CHECK(type_of(std::uint64_t{}) == ncclUint64);
  CHECK(type_of(__half{}) == ncclFloat16);
  CHECK(type_of(__nv_bfloat16{}) == ncclBfloat16);
  CHECK(type_of(user_half{}) == ncclFloat16);
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 24, 0)
  CHECK(type_of(__nv_fp8_e4m3{}) == ncclFloat8e4m3);
  CHECK(type_of(__nv_fp8_e5m2{}) == ncclFloat8e5m2);
#endif
}

TEST_CASE("nccl_communicator: empty spans make no call") {
  single_rank alone;
  const std::size_t before = alone.library.calls(0).size();
  alone.communicator.all_reduce_sum(std::span<float>{}, alone.stream);
  alone.communicator.broadcast(std::span<float>{}, 0, alone.stream);
  alone.communicator.all_gather(std::span<const float>{}, std::span<float>{}, alone.stream);
  alone.communicator.all_to_all(std::span<const float>{}, std::span<float>{}, alone.stream);
  CHECK(alone.library.calls(0).size() == before);
}

TEST_CASE("nccl_communicator: wrong arguments are named before any call, and it remains usable") {
  nccl_stand_in::library library;
  const ncclUniqueId id = slamb::nccl_communicator::unique_id();
  const auto thrown = run_ranks(library, 2, [&](int rank) {
    slamb::nccl_communicator communicator(id, rank, 2, patient());
    const cudaStream_t stream = library.make_stream();
    const std::size_t before = library.calls(rank).size();
    std::vector<float> three(3), four(4);
    const std::span<const float> odd(three), even(four);
    const auto rejected = [](const std::string& text, auto body) {
      CHECK_THROWS_WITH_AS(body(), text.c_str(), std::invalid_argument);
    };
    const std::string gather = "slamb: all_gather: all.size() = 4, but it must be size() * mine.size() = 2 * ";
    rejected(gather + "3", [&] { communicator.all_gather(odd, std::span(four), stream); });
    std::vector<float> five(5);
    rejected("slamb: all_gather: all.size() = 5, but it must be size() * mine.size() = 2 * 2",
             [&] { communicator.all_gather(odd.first(2), std::span(five), stream); });
    rejected(gather + "0", [&] { communicator.all_gather(odd.first(0), std::span(four), stream); });
    const std::string exchange = ", but they must be equal and a multiple of size() = 2";
    rejected("slamb: all_to_all: send.size() = 3 and receive.size() = 3" + exchange,
             [&] { communicator.all_to_all(odd, std::span(three), stream); });
    rejected("slamb: all_to_all: send.size() = 4 and receive.size() = 3" + exchange,
             [&] { communicator.all_to_all(even, std::span(three), stream); });
    rejected("slamb: broadcast: root = 2, but it must be in [0, 2)",
             [&] { communicator.broadcast(std::span(four), 2, stream); });
    rejected("slamb: broadcast: root = -1, but it must be in [0, 2)",
             [&] { communicator.broadcast(std::span(four), -1, stream); });
    CHECK(library.calls(rank).size() == before);
    communicator.all_reduce_sum(std::span(four), stream);
    communicator.wait(stream);
  });
  for (const auto& exception : thrown) CHECK(text_of(exception) == "");
  check_clean(library);
}

TEST_CASE("nccl_communicator: wrong ranks and options are named before any call") {
  nccl_stand_in::library library;
  const ncclUniqueId id{};
  const auto text = [&](int rank, int size, slamb::nccl_options options) {
    return text_of(thrown_by([&] { slamb::nccl_communicator(id, rank, size, options); }));
  };
  CHECK(text(0, 0, {}) == "slamb: nccl_communicator: size = 0, but it must be ≥ 1");
  CHECK(text(3, 3, {}) == "slamb: nccl_communicator: rank = 3, but it must be in [0, 3)");
  CHECK(text(-1, 3, {}) == "slamb: nccl_communicator: rank = -1, but it must be in [0, 3)");
  CHECK(text(0, 1, {.timeout = std::chrono::milliseconds(0)}) ==
        "slamb: nccl_options::timeout = 0, but it must be > 0 ms");
  CHECK(text_of(thrown_by([&] {
          slamb::nccl_communicator(id, 0, 1, {.abort_timeout = std::chrono::milliseconds(0)});
        })) == "slamb: nccl_options::abort_timeout = 0, but it must be > 0 ms");
  CHECK(text(0, 1, {.poll_interval = std::chrono::microseconds(-1)}) ==
        "slamb: nccl_options::poll_interval = -1, but it must be ≥ 0 µs");
  CHECK(text_of(thrown_by([] { slamb::nccl_communicator::borrow(nullptr); })) ==
        "slamb: nccl_communicator::borrow: the communicator is null");
  CHECK(library.calls(0).empty());
}

TEST_CASE("nccl_communicator: the longest timeout does not overflow") {
  nccl_stand_in::library library;
  const auto id = slamb::nccl_communicator::unique_id();
  library.stay_in_progress(0, 5);
  slamb::nccl_communicator communicator(id, 0, 1, {.timeout = std::chrono::milliseconds::max()});
  CHECK(library.count(0, "ncclCommGetAsyncError") == 6);
}

}  // namespace nccl_calls_tests
