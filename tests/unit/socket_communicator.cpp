// The example of a Communicator over sockets, here between threads: what it does, and how it fails.
#include "../../examples/sockets/socket_communicator.hpp"

#include <doctest/doctest.h>
#include <stdlib.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "slamb/communicator/check_communicator.hpp"

namespace socket_communicator_tests {
namespace {

using namespace std::chrono_literals;

/// A folder that is there for a test.
class scratch_folder {
 public:
  scratch_folder() {
    std::string name = (std::filesystem::temp_directory_path() / "slamb.XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("no folder " + name);
    path_ = name;
  }
  scratch_folder(const scratch_folder&) = delete;
  scratch_folder& operator=(const scratch_folder&) = delete;
  ~scratch_folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

/// [rank] what body(communicator) throws as communicator_error on each of `present` of `size` ranks; empty if it throws nothing.
std::vector<std::string> run(int size, std::chrono::milliseconds timeout,
                             const std::function<void(socket_communicator&)>& body,
                             std::optional<int> absent = std::nullopt) {
  const scratch_folder folder;
  std::vector<std::string> said(static_cast<std::size_t>(size));
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < size; ++rank) {
    if (rank == absent) continue;
    threads.emplace_back([&, rank] {
      try {
        socket_communicator mine(folder.path(), rank, size, timeout);
        body(mine);
      } catch (const slamb::communicator_error& failure) {
        said[static_cast<std::size_t>(rank)] = failure.what();
      }
    });
  }
  threads.clear();
  return said;
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("socket_communicator: passes check_communicator") {
  for (const int size : {1, 2, 3, 5}) {
    CAPTURE(size);
    const auto said =
        run(size, 60s, [](socket_communicator& mine) { slamb::check_communicator(mine, {.large = 20'001}); });
    CHECK(said == std::vector<std::string>(static_cast<std::size_t>(size)));
  }
}

TEST_CASE("socket_communicator: a rank that never comes ends all others, by name") {
  const auto said = run(
      3, 300ms, [](socket_communicator& /*mine*/) {}, 2);
  for (const std::size_t rank : {0U, 1U}) {
    CAPTURE(said[rank]);
    CHECK(contains(said[rank], "waited 300 ms for rank"));
    CHECK(contains(said[rank], "to connect"));
  }
}

TEST_CASE("socket_communicator: a rank that leaves or stalls ends all others, by name") {
  const auto leaving = run(3, 60s, [](socket_communicator& mine) {
    if (mine.rank() == 1) return;
    std::array<float, 10> values{};
    mine.all_reduce_sum(values, {});
  });
  CHECK(leaving[1].empty());
  for (const std::size_t rank : {0U, 2U}) CHECK(contains(leaving[rank], "rank 1 has closed its connection"));

  const auto stalling = run(2, 2s, [](socket_communicator& mine) {
    std::array<std::byte, 10> values{};
    if (mine.rank() == 0) mine.broadcast(values, 1, {});
    if (mine.rank() == 1) {
      std::this_thread::sleep_for(4s);
      mine.broadcast(values, 1, {});
    }
  });
  CHECK(contains(stalling[0], "rank 0 of 2: waited 2000 ms for rank 1"));
  CHECK(contains(stalling[1], "rank 0 has "));
}

TEST_CASE("socket_communicator: ranks that call different collectives are told which") {
  const auto said = run(2, 60s, [](socket_communicator& mine) {
    std::array<std::byte, 20> bytes{};
    std::array<float, 5> floats{};
    const std::span<const std::byte> sent = std::span(bytes).first(10);
    if (mine.rank() == 0) mine.all_gather(sent, bytes, {});
    if (mine.rank() == 1) mine.all_reduce_sum(floats, {});
  });
  // The first to find it tells the other, which may have found it too.
  for (const std::string& sentence : said) {
    CAPTURE(sentence);
    CHECK(contains(sentence, "has called "));
    CHECK(contains(sentence, "all_gather of 10"));
    CHECK(contains(sentence, "all_reduce_sum of 5"));
  }
}

TEST_CASE("socket_communicator: what a rank cannot go on for is told to the others, and stays") {
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

}  // namespace socket_communicator_tests
