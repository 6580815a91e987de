// The calls that a sharded_communicator makes of its parts, and the ranks that learn of a failure. The parts write the calls down.
#include "slamb/communicator/sharded_communicator.hpp"

#include <doctest/doctest.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "slamb/slamb.hpp"
#include "support/said.hpp"
#include "support/thread_shards.hpp"

namespace communicator_sharded_communicator_tests {
namespace {

using slamb::host_stream;
using test_support::shard_place;
using test_support::shards_of_threads;
using test_support::thread_shards;
using log_of_calls = std::shared_ptr<std::vector<std::string>>;
using list = std::vector<std::string>;

/// One of several ranks. It writes calls down and does nothing else, except that it throws where told to.
struct writing_part {
  std::string name;
  int number = 0;
  int ranks = 2;
  log_of_calls calls{};
  std::string fails_in{};

  int rank() const { return number; }
  int size() const { return ranks; }
  void all_reduce_sum(std::span<float> /*values*/, host_stream /*stream*/) { write("sum"); }
  void broadcast(std::span<std::byte> /*values*/, int root, host_stream /*stream*/) {
    write("broadcast" + std::to_string(root));
  }
  void all_gather(std::span<const std::byte> /*mine*/, std::span<std::byte> /*all*/, host_stream /*stream*/) {
    write("gather");
  }
  void all_to_all(std::span<const std::byte> /*send*/, std::span<std::byte> /*receive*/, host_stream /*stream*/) {
    write("exchange");
  }
  bool has(slamb::collective kind) const { return (kind == slamb::collective::broadcast) == (name == "replicas"); }
  std::uint64_t value_bytes() const noexcept { return name == "replicas" ? 2 : 8; }
  void check() { write("check"); }
  void wait(host_stream /*stream*/) { write("wait"); }
  void abort(const std::string& reason) { write("abort (" + reason + ")"); }

 private:
  void write(const std::string& what) {
    calls->push_back(name + " " + what);
    if (what == fails_in) throw std::runtime_error("lost");
    if ("odd " + what == fails_in) throw 17;
  }
};

using sharded = slamb::sharded_communicator<writing_part, writing_part>;

struct made {
  log_of_calls calls = std::make_shared<list>();
  sharded all;

  explicit made(const std::string& replicas_fail = {}, const std::string& shards_fail = {}, int shards = 3)
      : all({"replicas", 1, 2, calls, replicas_fail}, {"shards", shards - 1, shards, calls, shards_fail}) {}
};

std::vector<float> values(3);
const std::span<float> all_values(values);
std::vector<std::byte> memory(12);
const std::span<std::byte> all_bytes(memory);
const std::span<const std::byte> some_bytes(memory);

/// Has no optional member.
struct bare_part {
  static int rank() { return 0; }
  static int size() { return 1; }
  void all_reduce_sum(std::span<float> /*values*/, host_stream /*stream*/) {}
  void all_gather(std::span<const std::byte> /*mine*/, std::span<std::byte> /*all*/, host_stream /*stream*/) {}
};
/// Cannot take sums over shards.
struct silent_part {
  static int rank() { return 0; }
  static int size() { return 1; }
};
/// Cannot gather.
struct summing_part {
  static int rank() { return 0; }
  static int size() { return 1; }
  void all_reduce_sum(std::span<float> /*values*/, host_stream /*stream*/) {}
};
using bare = slamb::sharded_communicator<bare_part, bare_part>;

template <class C>
concept can_abort = requires(C& c) {
  c.abort("for no reason");
};
template <class C>
concept can_check = requires(C& c) {
  c.check();
};
template <class C>
concept can_wait = requires(C& c) {
  c.wait(host_stream{});
};
template <class C>
concept has_value_bytes = requires(const C& c) {
  c.value_bytes();
};

}  // namespace

TEST_CASE("sharded_communicator: has the collectives of its parts") {
  using slamb::capability::has_all_gather;
  using slamb::capability::has_all_reduce_sum;
  using slamb::capability::has_all_to_all;
  using slamb::capability::has_broadcast;
  using slamb::capability::has_shards;
  static_assert(has_shards<sharded> && can_abort<sharded> && can_check<sharded> && can_wait<sharded>);
  static_assert(has_all_reduce_sum<sharded, float> && !has_all_reduce_sum<sharded, double>);
  static_assert(has_all_gather<sharded, std::byte> && has_all_to_all<sharded, std::byte> &&
                has_broadcast<sharded, std::byte> && !has_broadcast<sharded, float>);
  static_assert(has_shards<bare> && has_all_gather<bare, std::byte> && !has_all_to_all<bare, std::byte> &&
                !has_broadcast<bare, std::byte>);
  static_assert(!can_abort<bare> && !can_check<bare> && !can_wait<bare> && !has_value_bytes<bare>);
  static_assert(!has_shards<slamb::sharded_communicator<bare_part, silent_part>>);
  static_assert(!has_all_reduce_sum<slamb::sharded_communicator<silent_part, bare_part>, float>);
  static_assert(!slamb::capability::has_all_reduce_in_node<sharded>);
  static_assert(can_abort<slamb::sharded_communicator<bare_part, writing_part>> &&
                can_abort<slamb::sharded_communicator<writing_part, bare_part>>);
  static_assert(can_wait<slamb::sharded_communicator<bare_part, writing_part>> &&
                can_check<slamb::sharded_communicator<writing_part, bare_part>>);
  const made one;
  CHECK(one.all.rank() == 1);
  CHECK(one.all.size() == 2);
  CHECK(one.all.shard_rank() == 2);
  CHECK(one.all.shard_size() == 3);
  CHECK(one.all.value_bytes() == 2);
  CHECK(one.all.has(slamb::collective::broadcast));
  CHECK_FALSE(one.all.has(slamb::collective::all_gather));
  CHECK(bare({}, {}).has(slamb::collective::all_gather));
}

TEST_CASE("sharded_communicator: exchanges go to one part, sums over shards to the other") {
  made one;
  one.all.all_reduce_sum(all_values, host_stream{});
  one.all.broadcast(all_bytes, 1, host_stream{});
  one.all.all_gather(some_bytes.first(6), all_bytes, host_stream{});
  one.all.all_to_all(some_bytes, all_bytes, host_stream{});
  CHECK(*one.calls == list{"replicas sum", "replicas broadcast1", "replicas gather", "replicas exchange"});
  one.calls->clear();
  one.all.all_reduce_in_shards(all_values, host_stream{});
  one.all.all_gather_in_shards(some_bytes.first(4), all_bytes, host_stream{});
  CHECK(*one.calls == list{"shards sum", "shards gather"});
  one.calls->clear();
  one.all.check();
  one.all.wait(host_stream{});
  CHECK(*one.calls == list{"shards check", "replicas check", "replicas wait", "shards wait"});
}

TEST_CASE("sharded_communicator: an exception of one part aborts both, and is rethrown") {
  made exchange("sum");
  CHECK_THROWS_WITH_AS(exchange.all.all_reduce_sum(all_values, host_stream{}), "lost", std::runtime_error);
  CHECK(*exchange.calls == list{"replicas sum", "shards abort (between the ranks of shard 2: lost)",
                                "replicas abort (between the ranks of shard 2: lost)"});

  made sums("", "gather");
  CHECK_THROWS_WITH_AS(sums.all.all_gather_in_shards(some_bytes.first(4), all_bytes, host_stream{}), "lost",
                       std::runtime_error);
  CHECK(*sums.calls ==
        list{"shards gather", "shards abort (in shard group 1: lost)", "replicas abort (in shard group 1: lost)"});

  made checks("odd check");
  CHECK_THROWS_AS(checks.all.check(), int);
  CHECK(checks.calls->size() == 4);
  CHECK(checks.calls->back() == "replicas abort (between the ranks of shard 2: an exception of unknown type)");

  made waits("", "wait");
  CHECK_THROWS_WITH_AS(waits.all.wait(host_stream{}), "lost", std::runtime_error);
  CHECK(waits.calls->back() == "replicas abort (in shard group 1: lost)");

  made asked;
  asked.all.abort("its disk is full");
  CHECK(*asked.calls == list{"shards abort (its disk is full)", "replicas abort (its disk is full)"});
}

TEST_CASE("sharded_communicator: without replicas it needs no communicator for them") {
  slamb::run_ranks(3, [](slamb::thread_communicator thread) {
    const int shard = thread.rank();
    slamb::sharded_communicator all(std::move(thread));
    static_assert(std::is_same_v<decltype(all),
                                 slamb::sharded_communicator<slamb::self_communicator, slamb::thread_communicator>>);
    CHECK(all.rank() == 0);
    CHECK(all.size() == 1);
    CHECK(all.shard_rank() == shard);
    CHECK(all.shard_size() == 3);
    std::array<float, 2> sums{1.0F, static_cast<float>(shard)};
    all.all_reduce_in_shards(std::span<float>(sums), host_stream{});
    CHECK(sums == std::array{3.0F, 3.0F});
    std::array own{static_cast<std::byte>(shard)};
    std::array<std::byte, 3> of_all{};
    all.all_gather_in_shards(std::span<const std::byte>(own), std::span<std::byte>(of_all), host_stream{});
    CHECK(of_all == std::array{std::byte{0}, std::byte{1}, std::byte{2}});
  });
}

TEST_CASE("sharded_communicator: each of the ranks sums with its replicas, and with its shard group") {
  thread_shards(3, 2).run([](shards_of_threads all, shard_place at) {
    const auto number = [](std::size_t replica, std::size_t shard) { return static_cast<float>(10 * replica + shard); };
    std::array mine{number(at.replica, at.shard)};
    all.all_reduce_sum(std::span<float>(mine), host_stream{});
    CHECK(mine[0] == number(0, at.shard) + number(1, at.shard));
    mine[0] = number(at.replica, at.shard);
    all.all_reduce_in_shards(std::span<float>(mine), host_stream{});
    CHECK(mine[0] == number(at.replica, 0) + number(at.replica, 1) + number(at.replica, 2));
  });
}

TEST_CASE("sharded_communicator: behind any_communicator it keeps its place and its collectives") {
  thread_shards(2, 2).run([](shards_of_threads one, shard_place at) {
    slamb::any_communicator<> all(std::move(one));
    CHECK(all.rank() == static_cast<int>(at.replica));
    CHECK(all.shard_rank() == static_cast<int>(at.shard));
    CHECK(all.shard_size() == 2);
    std::array mine{1.0F + static_cast<float>(at.shard)};
    all.all_reduce_in_shards(std::span<float>(mine), host_stream{});
    CHECK(mine[0] == 3.0F);
  });
  const slamb::any_communicator<> plain(slamb::self_communicator{});
  CHECK(plain.shard_rank() == 0);
  CHECK(plain.shard_size() == 1);
}

TEST_CASE("sharded_communicator: its parts may have any type, if they join single ranks and can gather") {
  using any = slamb::any_communicator<>;
  thread_shards(2, 2).run([](shards_of_threads one, shard_place at) {
    slamb::sharded_communicator all(any(std::move(one.exchange())), any(std::move(one.shards())));
    static_assert(slamb::capability::has_shards<decltype(all)>);
    CHECK(all.size() == 2);
    CHECK(all.shard_rank() == static_cast<int>(at.shard));
    std::array mine{1.0F + static_cast<float>(at.shard)};
    all.all_reduce_in_shards(std::span<float>(mine), host_stream{});
    CHECK(mine[0] == 3.0F);
  });
  thread_shards(2, 1).run([](const shards_of_threads& /*one*/, shard_place at) {
    const auto refused = [](const auto& make) { return test_support::said_by<std::invalid_argument>(make); };
    any nested(slamb::sharded_communicator(writing_part{.name = "shards", .number = static_cast<int>(at.shard)}));
    CHECK(test_support::contains(
        refused([&] { slamb::sharded_communicator(slamb::self_communicator{}, std::move(nested)); }),
        "slamb: the Shards of a sharded_communicator is an any_communicator that joins nodes or shards"));
    any exchange(slamb::sharded_communicator(writing_part{.name = "shards", .number = static_cast<int>(at.shard)}));
    CHECK(test_support::contains(
        refused([&] { slamb::sharded_communicator(std::move(exchange), slamb::self_communicator{}); }),
        "slamb: the Exchange of a sharded_communicator is an any_communicator that joins nodes or shards"));
    any sums_only(summing_part{});
    CHECK(test_support::contains(
        refused([&] { slamb::sharded_communicator(slamb::self_communicator{}, std::move(sums_only)); }),
        "slamb: the Shards of a sharded_communicator need all_gather of bytes"));
  });
}

namespace {

/// The exceptions of 2 × 2 threads that take sums in both directions, while `spoil(groups)` makes one of them fail.
template <class Spoil>
std::array<std::string, 4> thrown_by_ranks(const Spoil& spoil) {
  std::array<std::string, 4> thrown;
  thread_shards groups(2, 2);
  spoil(groups);
  groups.run([&](shards_of_threads all, shard_place at) {
    try {
      for (int i = 0; i < 4; ++i) {
        std::array mine{1.0F};
        all.all_reduce_sum(std::span<float>(mine), host_stream{});
        all.all_reduce_in_shards(std::span<float>(mine), host_stream{});
      }
    } catch (const slamb::communicator_error& failure) {
      thrown[2 * at.replica + at.shard] = failure.what();
    }
  });
  return thrown;
}

}  // namespace

TEST_CASE("sharded_communicator: a failure of one group ends all ranks within its timeout") {
  const auto start = std::chrono::steady_clock::now();
  for (const std::string& said :
       thrown_by_ranks([](thread_shards& all) { all.exchange(1).inject({.rank = 0, .round = 2, .kind = {}}); }))
    CHECK(test_support::contains(said, "injected fault"));
  for (const std::string& said :
       thrown_by_ranks([](thread_shards& all) { all.shard_group(1).inject({.rank = 1, .round = 1, .kind = {}}); }))
    CHECK(test_support::contains(said, "injected fault"));
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(30));
  for (const std::string& said : thrown_by_ranks([](thread_shards&) {})) CHECK(said.empty());
}

}  // namespace communicator_sharded_communicator_tests
