// nccl_communicator in the suite of all Communicators, for worlds of 1 to 8 ranks; and what only NCCL has: floating-point numbers
// of 8 and 16 bits, and all_gather in place.
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "harness.hpp"
#include "slamb/testing/check_communicator.hpp"
#include "support/memory_on_stream.hpp"

namespace nccl_conformance_tests {
namespace {

using nccl_tests::check_clean;
using nccl_tests::patient;
using nccl_tests::run_ranks;
using nccl_tests::text_of;

constexpr std::array<std::size_t, 5> sizes{0, 1, 2, 15, 17};
constexpr std::size_t margin = 3;

template <class T>
T number(int value) {
  if constexpr (std::is_arithmetic_v<T>) {
    return static_cast<T>(value);
  } else if constexpr (std::is_same_v<T, slamb::bfloat16>) {
    return slamb::detail::to_bfloat16(static_cast<float>(value));
  } else {
    return T(static_cast<float>(value));
  }
}

/// The input of `rank` at `index`: small integers whose sums over eight ranks fit into every type. For types of 8 bits: 0 and 1.
template <class T>
int input(int rank, std::size_t index) {
  const int mixed = static_cast<int>((index * 7 + static_cast<std::size_t>(rank) * 5 + index / 11) % 13);
  return sizeof(T) == 1 ? mixed % 2 : mixed;
}

/// Elements of a rank between margins that no collective may touch.
template <class T>
class buffer {
 public:
  explicit buffer(std::size_t size) : elements_(size + 2 * margin, number<T>(1)), size_(size) {}
  buffer(std::size_t size, int rank) : buffer(size) {
    for (std::size_t i = 0; i < size; ++i) elements_[margin + i] = number<T>(input<T>(rank, i));
  }
  std::span<T> span() { return std::span<T>(elements_).subspan(margin, size_); }
  std::span<const T> values() const { return std::span<const T>(elements_).subspan(margin, size_); }

  /// The first element that is not `expected(index)`, or the write outside; "" if there is none.
  template <class F>
  std::string difference(F expected) const {
    for (std::size_t i = 0; i < elements_.size(); ++i) {
      const bool is_inside = i >= margin && i < margin + size_;
      const T value = is_inside ? number<T>(expected(i - margin)) : number<T>(1);
      if (std::memcmp(&value, &elements_[i], sizeof(T)) != 0) {
        return is_inside ? "element " + std::to_string(i - margin) : std::string("margin");
      }
    }
    return "";
  }

 private:
  std::vector<T> elements_;
  std::size_t size_;
};

template <class T>
void check_sum(slamb::nccl_communicator& communicator, std::size_t n, cudaStream_t stream) {
  buffer<T> values(n, communicator.rank());
  communicator.all_reduce_sum(values.span(), stream);
  communicator.wait(stream);
  const std::string wrong = values.difference([&](std::size_t i) {
    int sum = 0;
    for (int rank = 0; rank < communicator.size(); ++rank) sum += input<T>(rank, i);
    return sum;
  });
  CHECK(wrong == "");
}

template <class T>
void check_broadcast(slamb::nccl_communicator& communicator, std::size_t n, int root, cudaStream_t stream) {
  buffer<T> values(n, communicator.rank());
  communicator.broadcast(values.span(), root, stream);
  communicator.wait(stream);
  CHECK(values.difference([&](std::size_t i) { return input<T>(root, i); }) == "");
}

template <class T>
void check_gather(slamb::nccl_communicator& communicator, std::size_t n, bool in_place, cudaStream_t stream) {
  const buffer<T> mine(n, communicator.rank());
  buffer<T> all(n * static_cast<std::size_t>(communicator.size()));
  std::span<const T> sent = mine.values();
  if (in_place) {
    const auto place = all.span().subspan(static_cast<std::size_t>(communicator.rank()) * n, n);
    std::copy(sent.begin(), sent.end(), place.begin());
    sent = place;
  }
  communicator.all_gather(sent, all.span(), stream);
  communicator.wait(stream);
  CHECK(all.difference([&](std::size_t i) { return input<T>(static_cast<int>(i / n), i % n); }) == "");
}

template <class T>
void check_exchange(slamb::nccl_communicator& communicator, std::size_t n, cudaStream_t stream) {
  const auto rank = static_cast<std::size_t>(communicator.rank());
  const buffer<T> send(n * static_cast<std::size_t>(communicator.size()), communicator.rank());
  buffer<T> receive(send.values().size());
  communicator.all_to_all(send.values(), receive.span(), stream);
  communicator.wait(stream);
  CHECK(receive.difference([&](std::size_t i) { return input<T>(static_cast<int>(i / n), rank * n + i % n); }) == "");
}

template <class T>
void check_type(slamb::nccl_communicator& communicator, cudaStream_t stream) {
  for (const std::size_t n : sizes) {
    if constexpr (slamb::capability::has_all_reduce_sum<slamb::nccl_communicator, T, cudaStream_t>) {
      check_sum<T>(communicator, n, stream);
    }
    for (int root = 0; root < communicator.size(); ++root) check_broadcast<T>(communicator, n, root, stream);
    check_gather<T>(communicator, n, false, stream);
    check_gather<T>(communicator, n, true, stream);
    check_exchange<T>(communicator, n, stream);
  }
}

/// `looks`: each call of rank r stays in progress for looks · r polls.
void check_world(int ranks, std::uint64_t looks) {
  CAPTURE(ranks);
  nccl_stand_in::library library;
  for (int rank = 0; rank < ranks; ++rank) library.stay_in_progress(rank, looks * static_cast<std::uint64_t>(rank));
  const ncclUniqueId id = slamb::nccl_communicator::unique_id();
  const auto thrown = run_ranks(library, ranks, [&](int rank) {
    slamb::nccl_communicator communicator(id, rank, ranks, patient());
    CHECK(communicator.rank() == rank);
    CHECK(communicator.size() == ranks);
    const cudaStream_t stream = library.make_stream();
    slamb::check_communicator<float, double, std::int8_t, std::uint8_t, std::int32_t, std::uint32_t, std::int64_t,
                              std::uint64_t>(communicator, test_support::memory_on_stream{.stream = stream},
                                             {.large = 2001});
    for (const std::size_t n : sizes) check_gather<float>(communicator, n, true, stream);
    check_type<__half>(communicator, stream);
    check_type<__nv_bfloat16>(communicator, stream);
    check_type<slamb::bfloat16>(communicator, stream);
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 24, 0)
    check_type<__nv_fp8_e4m3>(communicator, stream);
    check_type<__nv_fp8_e5m2>(communicator, stream);
#endif
  });
  for (const auto& exception : thrown) CHECK(text_of(exception) == "");
  check_clean(library);
}

}  // namespace

TEST_CASE("nccl_communicator: conforms for all element types and worlds of 1 to 8") {
  for (int ranks = 1; ranks <= 8; ++ranks) check_world(ranks, 0);
}

TEST_CASE("nccl_communicator: conforms with calls that continue in the background") {
  for (const int ranks : {2, 3, 5}) check_world(ranks, 3);
}

TEST_CASE("nccl_communicator: check_communicator reports a collective, or a wait, that fails") {
  const auto said = [](const auto& spoil) {
    nccl_stand_in::library library;
    library.let_ranks_meet();
    const ncclUniqueId id = slamb::nccl_communicator::unique_id();
    const auto thrown = run_ranks(library, 2, [&](int rank) {
      slamb::nccl_communicator communicator(id, rank, 2, nccl_tests::limited_to(1000));
      const test_support::memory_on_stream memory{.stream = library.make_stream()};
      if (rank == 1) spoil(library, memory.stream);
      slamb::check_communicator(communicator, memory, {.large = 2001});
    });
    for (const auto& exception : thrown) CHECK(text_of(exception) != "");
    return text_of(thrown[1]);
  };
  const std::string start = "slamb: check_communicator: rank 1 of 2: ";
  CHECK(said([](auto& library, cudaStream_t) {
          library.fail(1, "ncclAllGather", 1, ncclSystemError);
        }).find(start + "all_gather of 1 byte threw: slamb: ncclAllGather") == 0);
  CHECK(said([](auto& library, cudaStream_t stream) {
          library.freeze(stream);
        }).find(start + "all_reduce_sum of size() and of the communicator_check threw: ") == 0);
}

TEST_CASE("nccl_communicator suite: the stand-in waits for all ranks") {
  nccl_stand_in::library library;
  const ncclUniqueId id = slamb::nccl_communicator::unique_id();
  std::vector<float> values(2, 1.0F);
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 1;
  ncclComm_t ranks[2];
  for (int rank = 0; rank < 2; ++rank)
    REQUIRE(ncclCommInitRankConfig(&ranks[rank], 2, id, rank, &config) == ncclSuccess);
  const cudaStream_t stream = library.make_stream();
  const auto add = [&](int rank) {
    return ncclAllReduce(&values[static_cast<std::size_t>(rank)], &values[static_cast<std::size_t>(rank)], 1,
                         ncclFloat32, ncclSum, ranks[rank], stream);
  };
  CHECK(add(0) == ncclSuccess);
  CHECK(cudaStreamQuery(stream) == cudaErrorNotReady);
  CHECK(values == std::vector<float>{1.0F, 1.0F});
  CHECK(add(1) == ncclSuccess);
  CHECK(cudaStreamQuery(stream) == cudaSuccess);
  CHECK(values == std::vector<float>{2.0F, 2.0F});
}

TEST_CASE("nccl_communicator suite: the stand-in finds ranks that call different collectives") {
  nccl_stand_in::library library;
  const ncclUniqueId id = slamb::nccl_communicator::unique_id();
  const auto thrown = run_ranks(library, 2, [&](int rank) {
    slamb::nccl_communicator communicator(id, rank, 2, patient());
    const cudaStream_t stream = library.make_stream();
    std::vector<float> values(static_cast<std::size_t>(2 + rank));
    communicator.all_reduce_sum(std::span(values), stream);
    communicator.wait(stream);
  });
  for (const auto& exception : thrown) CHECK(nccl_tests::nccl_error_of(exception).result() == ncclInternalError);
  CHECK(library.misuses() == std::vector<std::string>{"ncclAllReduce: ranks called different collectives"});
}

}  // namespace nccl_conformance_tests
