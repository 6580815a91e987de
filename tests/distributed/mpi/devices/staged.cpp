// staged_communicator over Communicators that know nothing of GPUs, between processes, on a stand-in for the CUDA runtime: the suite
// of all Communicators, bits of its host, nodes, and failures that the host cannot report. cuda_mpi_communicator tests the rest.
#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <map>
#include <memory>
#include <slamb/communicator/any_communicator.hpp>
#include <slamb/communicator/hierarchical_communicator.hpp>
#include <slamb/communicator/self_communicator.hpp>
#include <slamb/staged.hpp>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "../world.hpp"
#include "device_buffer.hpp"
#include "support/memory_on_stream.hpp"

#include <slamb/testing/check_communicator.hpp>

namespace {

using mpi_tests::device_buffer;
using mpi_tests::message_of;
using mpi_tests::values_of;
using slamb::host_stream;
using slamb::staged_communicator;

/// A Communicator as a user writes one: the members of the contract, floats and bytes, and nothing else. A message of all_gather
/// must not lie in its result.
class users_own {
 public:
  int rank() const { return by_->rank(); }
  int size() const { return by_->size(); }
  void all_reduce_sum(std::span<float> values, host_stream on) { by_->all_reduce_sum(values, on); }
  void broadcast(std::span<std::byte> values, int root, host_stream on) { by_->broadcast(values, root, on); }
  void broadcast(std::span<float> values, int root, host_stream on) { by_->broadcast(values, root, on); }  // for nodes
  void all_gather(std::span<const std::byte> mine, std::span<std::byte> all, host_stream on) {
    if (mine.data() + mine.size() > all.data() && mine.data() < all.data() + all.size())
      throw std::logic_error("a message lies in the result");
    by_->all_gather(mine, all, on);
  }
  void all_to_all(std::span<const std::byte> send, std::span<std::byte> receive, host_stream on) {
    by_->all_to_all(send, receive, on);
  }

 private:
  std::shared_ptr<slamb::mpi_communicator> by_ = std::make_shared<slamb::mpi_communicator>();
};

/// The same with sums alone.
class only_sums {
 public:
  int rank() const { return by_.rank(); }
  int size() const { return by_.size(); }
  void all_reduce_sum(std::span<float> values, host_stream on) { by_.all_reduce_sum(values, on); }

 private:
  slamb::mpi_communicator by_;
};

/// Rank 0 of two, whose peer sends the same values. Fails when it is told to, by an exception that is none of the library's.
class failing {
 public:
  explicit failing(const bool& fails) : fails_(&fails) {}
  int rank() const { return 0; }
  int size() const { return 2; }
  void all_reduce_sum(std::span<float> values, host_stream /*on*/) {
    if (*fails_) throw std::runtime_error("the cable is out");
    if (std::exchange(is_first_, false))  // the comparison at construction: a row of each rank
      return void(std::copy_n(values.begin(), values.size() / 2,
                              values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2)));
    for (float& x : values) x *= 2.0F;
  }
  void abort(const std::string& reason) { aborted = reason; }

  static inline std::string aborted;

 private:
  const bool* fails_;
  bool is_first_ = true;
};

using nodes = slamb::hierarchical_communicator<slamb::mpi_communicator, slamb::self_communicator>;
using own_nodes = slamb::hierarchical_communicator<users_own, slamb::self_communicator>;

/// Runs the suite with the communicator that make() returns.
void check_conforms(const auto& make, std::size_t large) {
  CUstream_st stream;
  auto mine = make();
  CHECK_NOTHROW(slamb::check_communicator<float>(
      mine, test_support::memory_on_stream{.stream = &stream, .memory = mpi_tests::device_allocator()},
      slamb::communicator_check{.large = large}));
  CHECK(device_stand_in::last_error == cudaSuccess);
}

}  // namespace

static_assert(slamb::capability::has_all_to_all<staged_communicator<users_own>, float, cudaStream_t>);
static_assert(slamb::capability::has_broadcast<staged_communicator<users_own>, std::byte, cudaStream_t>);
static_assert(!slamb::capability::has_all_reduce_sum<staged_communicator<users_own>, double, cudaStream_t>);
static_assert(
    slamb::capability::has_all_reduce_sum<staged_communicator<slamb::mpi_communicator>, double, cudaStream_t>);
static_assert(!slamb::capability::has_all_gather<staged_communicator<only_sums>, std::byte, cudaStream_t>);
static_assert(!slamb::capability::has_broadcast<staged_communicator<only_sums>, std::byte, cudaStream_t>);
static_assert(slamb::capability::has_all_reduce_in_node<staged_communicator<nodes>, cudaStream_t>);
static_assert(!slamb::capability::has_all_reduce_in_node<staged_communicator<users_own>, cudaStream_t>);

TEST_CASE("staged_communicator: conforms over a user's own Communicator, with staging buffers of several sizes") {
  for (const std::size_t bytes : {std::size_t{1} << 25, std::size_t{128}, std::size_t{5000}}) {
    CAPTURE(bytes);
    check_conforms([bytes] { return staged_communicator<users_own>({}, {.bytes = bytes}); }, 2001);
  }
  check_conforms([] { return staged_communicator<only_sums>({}, {.bytes = 1000}); }, 2001);
}

TEST_CASE("staged_communicator: conforms over an any_communicator, whose collectives are known at run time") {
  check_conforms([] { return staged_communicator(slamb::any_communicator<>{users_own()}); }, 2001);
  CHECK(staged_communicator(slamb::any_communicator<>{users_own()}).has(slamb::collective::all_gather));
  CHECK(!staged_communicator(slamb::any_communicator<>{only_sums()}).has(slamb::collective::all_gather));
}

TEST_CASE("staged_communicator: sums have the bits of its host") {
  constexpr std::size_t size = 10'007;
  slamb::mpi_communicator host;
  std::vector<float> expected = values_of(host.rank(), size);
  host.all_reduce_sum(std::span<float>(expected), host_stream{});
  staged_communicator<users_own> mine({}, {.bytes = 4096});
  CUstream_st stream;
  const std::vector<float> own = values_of(mine.rank(), size);
  device_buffer<float> buffer(own, &stream);
  mine.all_reduce_sum(buffer.span(), &stream);
  CHECK(buffer.values(&stream) == expected);
}

TEST_CASE("staged_communicator: the ranks of a node sum") {
  staged_communicator<nodes> mine{nodes(slamb::mpi_communicator(), slamb::self_communicator())};
  CHECK(mine.size() == 1);
  CHECK(mine.local_size() == mpi_tests::processes::all());
  CUstream_st stream;
  const std::vector<float> own(1000, 1.0F);
  device_buffer<float> buffer(own, &stream);
  mine.all_reduce_in_node(buffer.span(), &stream);
  CHECK(buffer.values(&stream) == std::vector<float>(1000, static_cast<float>(mine.local_size())));
}

TEST_CASE("staged_communicator: the exception of its host is final, and the host is told to report it") {
  bool fails = false;
  staged_communicator<failing> mine{failing(fails)};
  CUstream_st stream;
  const std::vector<float> own(10, 1.0F);
  device_buffer<float> buffer(own, &stream);
  mine.all_reduce_sum(buffer.span(), &stream);
  CHECK(buffer.values(&stream) == std::vector<float>(10, 2.0F));
  fails = true;
  CHECK_THROWS_AS(mine.all_reduce_sum(buffer.span(), &stream), std::runtime_error);
  CHECK(failing::aborted == "the cable is out");
  fails = false;
  CHECK(message_of([&] { mine.all_reduce_sum(buffer.span(), &stream); }) == "the cable is out");
  CHECK(message_of([&] { mine.wait(&stream); }) == "the cable is out");
  CHECK(message_of([&] { mine.check(); }) == "the cable is out");
  device_stand_in::pinned.clear();  // kept, because the network may still write to it
}

TEST_CASE("staged_communicator: work on the stream that is not done in time is a failure, which names the call") {
  const bool fails = false;
  staged_communicator<failing> mine(failing(fails), {.timeout = std::chrono::milliseconds(20)});
  CUstream_st stream;
  const std::vector<float> own(10, 1.0F);
  device_buffer<float> buffer(own, &stream);
  stream.is_stuck = true;
  const std::string expected =
      "slamb: staged_communicator of rank 0 of 2: all_reduce_sum of 10 float32: after 20 ms, the stream's work was not "
      "done";
  CHECK(message_of([&] { mine.all_reduce_sum(buffer.span(), &stream); }) == expected);
  CHECK(failing::aborted == expected);
  CHECK(message_of([&] { mine.wait(&stream); }) == expected);
  stream.is_stuck = false;
  cudaStreamSynchronize(&stream);
  device_stand_in::pinned.clear();
}

TEST_CASE("staged_communicator: wrong options are rejected, and those that differ between ranks") {
  const users_own host;  // outlives the exceptions, because a rank of MPI that an exception destroys has failed
  CHECK(message_of([&] { staged_communicator(host, {.bytes = 127}); }) ==
        "slamb: staged_communicator: bytes = 127, but it must be in [128, 2^40]");
  CHECK(message_of([&] { staged_communicator(host, {.timeout = std::chrono::milliseconds(0)}); }) ==
        "slamb: staged_communicator: timeout = 0, but it must be > 0 ms");
  const int last = host.size() - 1;
  const slamb::detail::staging_options own{.bytes = host.rank() == last ? std::size_t{1} << 33 : 1000};
  const auto expected = [last](const std::string& kind) {
    return last == 0 ? "nothing was thrown"
                     : "slamb: staged_communicator: bytes is 1000 on " + kind + "0, but 8589934592 on " + kind +
                           std::to_string(last) + "; it must be the same on all ranks";
  };
  CHECK(message_of([&] { staged_communicator(host, own); }) == expected("rank "));
  CHECK(message_of([&] { staged_communicator(own_nodes(host, slamb::self_communicator()), own); }) ==
        expected("local rank "));
}

TEST_CASE("staged_communicator: a captured stream, a wrong root and wrong sizes are rejected before any work") {
  staged_communicator<users_own> mine{users_own()};
  CUstream_st stream;
  const std::vector<float> own = values_of(mine.rank(), 10);
  device_buffer<float> buffer(own, &stream);
  device_buffer<float> other(std::vector<float>(10 * static_cast<std::size_t>(mine.size()) + 1), &stream);
  const std::span<const float> values(buffer.span());
  CHECK_THROWS_AS(mine.broadcast(buffer.span(), mine.size(), &stream), std::invalid_argument);
  CHECK_THROWS_AS(mine.all_gather(values, other.span(), &stream), std::invalid_argument);
  CHECK_THROWS_AS(mine.all_to_all(values, other.span(), &stream), std::invalid_argument);
  stream.is_captured = true;
  CHECK(message_of([&] { mine.all_reduce_sum(buffer.span(), &stream); }) ==
        "slamb: staged_communicator of rank " + std::to_string(mine.rank()) + " of " + std::to_string(mine.size()) +
            ": all_reduce_sum of 10 float32 cannot be captured into a graph, because the host sends its messages; call "
            "it "
            "outside the capture, or use an nccl_communicator");
  CHECK_THROWS_AS(mine.wait(&stream), std::logic_error);
  stream.is_captured = false;
  mine.check();
  mine.all_reduce_sum(buffer.span(), &stream);
  mine.wait(&stream);
  CHECK(stream.work.empty());
  mine.abort("its disk is full");
  CHECK(message_of([&] { mine.wait(&stream); }).ends_with("was aborted: its disk is full"));
}
