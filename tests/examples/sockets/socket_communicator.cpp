// The example of a Communicator over sockets, here between threads: its collectives, and its failures.
#include "../../../examples/sockets/socket_communicator.hpp"

#include <doctest/doctest.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <filesystem>
#include <functional>
#include <future>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "slamb/testing/check_communicator.hpp"
#include "support/allocations.hpp"
#include "support/files.hpp"
#include "support/said.hpp"

namespace examples_sockets_socket_communicator_tests {
namespace {

using namespace std::chrono_literals;
using test_support::contains;
using test_support::temporary_folder;

/// [rank] the message of the communicator_error that body(communicator) throws on each rank but `absent`; empty if it throws
/// none.
std::vector<std::string> run(int size, std::chrono::milliseconds timeout,
                             const std::function<void(socket_communicator&)>& body,
                             std::optional<int> absent = std::nullopt) {
  const temporary_folder folder;
  std::vector<std::string> said(static_cast<std::size_t>(size));
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < size; ++rank) {
    if (rank == absent) continue;
    threads.emplace_back([&, rank] {
      try {
        socket_communicator mine(folder.path().string(), rank, size, timeout);
        body(mine);
      } catch (const slamb::communicator_error& failure) {
        said[static_cast<std::size_t>(rank)] = failure.what();
      }
    });
  }
  threads.clear();
  return said;
}

}  // namespace

TEST_CASE("socket_communicator: passes check_communicator") {
  for (const int size : {1, 2, 3, 5}) {
    CAPTURE(size);
    const auto said =
        run(size, 60s, [](socket_communicator& mine) { slamb::check_communicator(mine, {.large = 20'001}); });
    CHECK(said == std::vector<std::string>(static_cast<std::size_t>(size)));
  }
}

TEST_CASE("socket_communicator: a missing rank ends all others, which name it") {
  const auto said = run(
      3, 300ms, [](socket_communicator& /*mine*/) {}, 2);
  for (const std::size_t rank : {0U, 1U}) {
    CAPTURE(said[rank]);
    CHECK(contains(said[rank], "waited 300 ms for rank"));
    CHECK(contains(said[rank], "to connect"));
  }
}

TEST_CASE("socket_communicator: a rank that leaves or stalls ends all others, which name it") {
  const auto leaving = run(3, 60s, [](socket_communicator& mine) {
    if (mine.rank() == 1) return;
    std::array<float, 10> values{};
    mine.all_reduce_sum(values, {});
  });
  CHECK(leaving[1].empty());
  for (const std::size_t rank : {0U, 2U}) CHECK(contains(leaving[rank], "rank 1 has closed its connection"));

  std::promise<void> has_given_up;
  const auto stalling = run(2, 60s, [&](socket_communicator& mine) {
    std::array<std::byte, 10> values{};
    if (mine.rank() == 0) {
      mine.set_timeout(100ms);
      CHECK_THROWS_AS(mine.broadcast(values, 1, {}), slamb::communicator_error);
      has_given_up.set_value();
    } else {
      has_given_up.get_future().wait();
      mine.broadcast(values, 1, {});  // may finish, because it needs nothing from rank 0
    }
    mine.broadcast(values, 0, {});
  });
  CHECK(contains(stalling[0], "rank 0 of 2: waited 100 ms for rank 1"));
  CHECK(contains(stalling[1], "rank 0 has "));
}

TEST_CASE("socket_communicator: different collectives are named on all ranks") {
  const auto said = run(2, 60s, [](socket_communicator& mine) {
    std::array<std::byte, 20> bytes{};
    std::array<float, 5> floats{};
    const std::span<const std::byte> sent = std::span(bytes).first(10);
    if (mine.rank() == 0) mine.all_gather(sent, bytes, {});
    if (mine.rank() == 1) mine.all_reduce_sum(floats, {});
  });
  // The first rank to find it tells the other, which may have found it too.
  for (const std::string& sentence : said) {
    CAPTURE(sentence);
    CHECK(contains(sentence, "has called "));
    CHECK(contains(sentence, "all_gather of 10"));
    CHECK(contains(sentence, "all_reduce_sum of 5"));
  }
}

TEST_CASE("socket_communicator: a fatal error of a rank is sent to the others, and stays") {
  const auto said = run(3, 60s, [](socket_communicator& mine) {
    std::array<float, 10> values{};
    mine.all_reduce_sum(values, {});
    if (mine.rank() == 2) mine.abort("the disk is full");
    std::string first;
    try {
      mine.all_reduce_sum(values, {});
    } catch (const slamb::communicator_error& failure) {
      first = failure.what();
    }
    CAPTURE(first);
    CHECK(contains(first, "the disk is full"));
    CHECK_THROWS_WITH_AS(mine.all_reduce_sum(values, {}), first.c_str(), slamb::communicator_error);
  });
  CHECK(said == std::vector<std::string>(3));
}

TEST_CASE("socket_communicator: different roots are named on all ranks") {
  const auto said = run(2, 60s, [](socket_communicator& mine) {
    std::array<std::byte, 10> bytes{};
    mine.broadcast(bytes, mine.rank(), {});
  });
  for (const std::string& sentence : said) {
    CAPTURE(sentence);
    CHECK(contains(sentence, "broadcast of 10 from root 0, its call 1"));
    CHECK(contains(sentence, "broadcast of 10 from root 1, its call 1"));
  }
}

TEST_CASE("socket_communicator: wrong arguments on one rank do not leave the others waiting") {
  const auto said = run(2, 60s, [](socket_communicator& mine) {
    std::array<std::byte, 10> bytes{};
    if (mine.rank() == 1) return mine.broadcast(bytes, 0, {});
    CHECK_THROWS_WITH_AS(mine.broadcast(bytes, 2, {}),
                         "socket_communicator: wrong arguments; broadcast: `root` must be a rank",
                         std::invalid_argument);
    mine.broadcast(bytes, 0, {});
  });
  CHECK(contains(said[0], "broadcast: `root` must be a rank"));
  CHECK(contains(said[1], "rank 0 has failed: "));
  CHECK(contains(said[1], "broadcast: `root` must be a rank"));
  const temporary_folder folder;
  CHECK_THROWS_WITH_AS(socket_communicator(folder.path().string(), 0, 1, 0ms),
                       "socket_communicator: wrong arguments; the timeout must be positive", std::invalid_argument);
}

TEST_CASE("socket_communicator: names the mistake when it is used after a move") {
  const temporary_folder folder;
  socket_communicator before(folder.path().string(), 0, 1, 60s);
  socket_communicator after(std::move(before));
  std::array<float, 10> values{};
  CHECK_NOTHROW(after.all_reduce_sum(values, {}));
  before.abort("nobody is told");  // NOLINT(bugprone-use-after-move): the test looks at the moved-from object
  CHECK_THROWS_WITH_AS(before.all_reduce_sum(values, {}), "socket_communicator: it was called after it was moved from",
                       slamb::communicator_error);
}

TEST_CASE("socket_communicator: an error message has a limited size, and allocates nothing") {
  const std::string reason(5000, 'r');
  std::promise<void> is_idle, has_aborted;
  const auto said = run(2, 60s, [&](socket_communicator& mine) {
    std::array<float, 10> values{};
    if (mine.rank() == 1) {
      is_idle.get_future().wait();
      const std::size_t before = test_support::allocations();
      mine.abort(reason);
      CHECK(test_support::allocations() == before);
      has_aborted.set_value();
    } else {
      is_idle.set_value();
      has_aborted.get_future().wait();
    }
    mine.all_reduce_sum(values, {});
  });
  CHECK(said[1] == std::string(1000, 'r'));
  CHECK(contains(said[0], "rank 1 has failed: rrr"));
  CHECK(said[0].size() <= 1000);
}

TEST_CASE("socket_communicator: reports the reason of the system, at once") {
  const temporary_folder folder;
  const std::string none = folder.path().string() + "/none";
  CHECK_THROWS_WITH_AS(
      socket_communicator(none, 0, 2, 60s),
      ("socket_communicator: rank 0 of 2: bind to " + none + "/rank0: No such file or directory").c_str(),
      slamb::communicator_error);
}

namespace {

sockaddr_un address_of_rank_0(const std::string& folder) {
  sockaddr_un there{};
  there.sun_family = AF_UNIX;
  std::ranges::copy(folder + "/rank0", there.sun_path);
  return there;
}
bool connects(const owned_socket& from, const sockaddr_un& there) {
  return connect(from.number(), reinterpret_cast<const sockaddr*>(&there), sizeof(there)) == 0;
}

/// A foreign process connects to rank 0, claims to be a rank, and sends bytes.
void send_to_rank_0(const std::string& folder, int says_rank, const std::string& bytes,
                    const std::function<void()>& meanwhile) {
  const owned_socket foreign(socket(AF_UNIX, SOCK_STREAM, 0));
  while (!connects(foreign, address_of_rank_0(folder))) std::this_thread::sleep_for(1ms);
  // Sent in one call, because rank 0 may close the connection as soon as it has read the claimed rank.
  const std::string all = std::string(reinterpret_cast<const char*>(&says_rank), sizeof(says_rank)) + bytes;
  CHECK(send(foreign.number(), all.data(), all.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(all.size()));
  meanwhile();
}

}  // namespace

TEST_CASE("socket_communicator: a rank that accepts no connection ends the others in time") {
  const temporary_folder folder;
  const sockaddr_un there = address_of_rank_0(folder.path().string());
  const owned_socket listening(socket(AF_UNIX, SOCK_STREAM, 0));
  REQUIRE(bind(listening.number(), reinterpret_cast<const sockaddr*>(&there), sizeof(there)) == 0);
  REQUIRE(listen(listening.number(), 0) == 0);
  std::vector<owned_socket> others;  // as many as may wait to be accepted: the next one must wait for its turn
  do others.emplace_back(socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0));
  while (connects(others.back(), there));
  CHECK_THROWS_WITH_AS(socket_communicator(folder.path().string(), 1, 2, 300ms),
                       "socket_communicator: rank 1 of 2: waited 300 ms for rank 0 to connect",
                       slamb::communicator_error);
}

TEST_CASE("socket_communicator: foreign connections are closed, and the data of peers is validated") {
  const temporary_folder folder;
  std::string said;
  std::jthread rank_0([&] {
    try {
      socket_communicator mine(folder.path().string(), 0, 2, 60s);
      std::array<std::byte, 10> bytes{};
      mine.broadcast(bytes, 1, {});
    } catch (const slamb::communicator_error& failure) {
      said = failure.what();
    }
  });
  for (const int rank : {0, 2, -1}) send_to_rank_0(folder.path().string(), rank, "nonsense", [] {});
  // A header whose call name has no terminating zero.
  send_to_rank_0(folder.path().string(), 1, std::string(48, 'x'), [&] { rank_0.join(); });
  CHECK(contains(
      said, "rank 0 of 2: rank 1 has called xxxxxxxxxxxxxxxx of 8680820740569200760 from root 2021161080, its call "));
  CHECK(contains(said, "and this rank broadcast of 10 from root 1, its call 1"));
}

}  // namespace examples_sockets_socket_communicator_tests
