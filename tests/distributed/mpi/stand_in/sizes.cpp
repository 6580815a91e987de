// Offsets of messages in payloads of more than 2^31 bytes: every byte is sent once, to the right rank. The memory is address
// space, of which the system provides only the touched pages.
#include <doctest/doctest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstddef>
#include <limits>
#include <map>
#include <slamb/communicator/mpi_communicator.hpp>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace {

using slamb::host_stream;

constexpr int ranks = 64;
constexpr int rank = 5;
constexpr std::size_t size = (std::size_t{3} << 30) / sizeof(float) + 77 * ranks;  // elements: a little more than 3 GiB

class address_space {
 public:
  explicit address_space(std::size_t bytes)
      : bytes_(bytes),
        begin_(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) {
    if (begin_ == MAP_FAILED) throw std::runtime_error("no address space");
  }
  address_space(const address_space&) = delete;
  address_space& operator=(const address_space&) = delete;
  ~address_space() { munmap(begin_, bytes_); }

  std::span<float> floats() const { return {static_cast<float*>(begin_), bytes_ / sizeof(float)}; }

 private:
  std::size_t bytes_;
  void* begin_;
};

constexpr std::size_t message_bytes = 1 << 20;

slamb::mpi_communicator make_communicator(std::size_t piece_bytes) {
  stand_in::rank = rank;
  stand_in::size = ranks;
  stand_in::messages.clear();
  return slamb::mpi_communicator::borrow(MPI_COMM_WORLD, {.piece_bytes = piece_bytes, .message_bytes = message_bytes});
}

using interval = std::pair<std::size_t, std::size_t>;  // bytes [first, second) of a buffer

// The messages of one direction with a peer that lie in a buffer, in the order of their calls.
std::vector<interval> with_peer(std::span<const float> buffer, bool is_send, int peer) {
  const std::span<const std::byte> bytes = std::as_bytes(buffer);
  std::vector<interval> found;
  for (const auto& m : stand_in::messages) {
    if (m.is_send != is_send || m.peer != peer) continue;
    if (m.buffer < bytes.data() || m.buffer >= bytes.data() + bytes.size()) continue;
    const auto first = static_cast<std::size_t>(m.buffer - bytes.data());
    found.emplace_back(first, first + m.bytes);
  }
  return found;
}

// True if the parts cover [first, last) without gap or overlap, and none is longer than a message may be.
bool tile(std::vector<interval> parts, std::size_t first, std::size_t last) {
  std::ranges::sort(parts);
  parts.erase(std::unique(parts.begin(), parts.end()), parts.end());  // parts that go to all peers, once each
  for (const auto& [begin, end] : parts) {
    if (begin != first || end <= begin || end - begin > message_bytes) return false;
    first = end;
  }
  return first == last;
}

bool tile_chunk(const std::vector<interval>& parts, int chunk) {
  constexpr std::size_t bytes = size / ranks * sizeof(float);
  return tile(parts, static_cast<std::size_t>(chunk) * bytes, static_cast<std::size_t>(chunk + 1) * bytes);
}

std::vector<interval> with_all(std::span<const float> buffer, bool is_send) {
  std::vector<interval> all;
  for (int peer = 0; peer < ranks; ++peer) {
    const std::vector<interval> some = with_peer(buffer, is_send, peer);
    all.insert(all.end(), some.begin(), some.end());
  }
  return all;
}

}  // namespace

TEST_CASE("mpi_communicator: all_gather of more than 2^31 bytes") {
  const address_space all(size * sizeof(float));
  const std::span<const float> mine = all.floats().subspan(rank * (size / ranks), size / ranks);
  for (const std::size_t piece : {std::size_t{1} << 22, std::size_t{1} << 30}) {
    auto communicator = make_communicator(piece);
    communicator.all_gather(mine, all.floats(), host_stream{});
    for (int peer = 0; peer < ranks; ++peer) {
      if (peer == rank) continue;
      CHECK(tile_chunk(with_peer(all.floats(), false, peer), peer));
      CHECK(tile_chunk(with_peer(all.floats(), true, peer), rank));
    }
    CHECK(with_peer(all.floats(), true, rank).empty());
  }
}

TEST_CASE("mpi_communicator: all_to_all of more than 2^31 bytes") {
  const address_space send(size * sizeof(float));
  const address_space receive(size * sizeof(float));
  auto communicator = make_communicator(std::size_t{1} << 22);
  communicator.all_to_all(std::span<const float>(send.floats()), receive.floats(), host_stream{});
  for (int peer = 0; peer < ranks; ++peer) {
    if (peer == rank) continue;
    CHECK(tile_chunk(with_peer(receive.floats(), false, peer), peer));
    CHECK(tile_chunk(with_peer(send.floats(), true, peer), peer));
  }
  CHECK(with_all(receive.floats(), true).empty());
  CHECK(with_all(send.floats(), false).empty());
}

TEST_CASE("mpi_communicator: all_reduce_sum of more than 2^31 bytes") {
  const address_space values(size * sizeof(float));
  auto communicator = make_communicator(std::size_t{1} << 22);
  communicator.all_reduce_sum(values.floats(), host_stream{});
  // Sent: this rank's terms of the peers' chunks, and its own sums to all. Received: the others' sums.
  const std::vector<interval> sent = with_all(values.floats(), true);
  CHECK(tile(sent, 0, size * sizeof(float)));
  std::vector<interval> came = with_all(values.floats(), false);
  std::map<interval, int> to_peers;
  for (const interval& part : sent) ++to_peers[part];
  for (const auto& [part, times] : to_peers) {
    if (times == ranks - 1) came.push_back(part);  // this rank's own sums
  }
  CHECK(tile(came, 0, size * sizeof(float)));
  CHECK_FALSE(
      tile(with_all(values.floats(), false), 0, size * sizeof(float)));  // this rank does not receive its own sums
  // As many terms are received, outside the payload, as are sent.
  std::size_t terms = 0;
  for (const auto& m : stand_in::messages) terms += m.is_send ? 0 : m.bytes;
  for (const auto& [first, last] : with_all(values.floats(), false)) terms -= last - first;
  std::size_t own = size * sizeof(float);
  for (const auto& [first, last] : with_all(values.floats(), false)) own -= last - first;
  CHECK(terms == own * (ranks - 1));
}

TEST_CASE("mpi_communicator: broadcast of more than 2^31 bytes") {
  const address_space values(size * sizeof(float));
  auto communicator = make_communicator(std::size_t{1} << 22);
  communicator.broadcast(values.floats(), rank, host_stream{});
  CHECK(tile(with_all(values.floats(), true), 0, size * sizeof(float)));
  CHECK(with_all(values.floats(), false).empty());
  stand_in::messages.clear();
  communicator.broadcast(values.floats(), rank + 1, host_stream{});
  CHECK(tile(with_all(values.floats(), false), 0, size * sizeof(float)));
  CHECK(with_peer(values.floats(), true, rank + 1).empty());
}

TEST_CASE("mpi_communicator: messages have at most the largest size, and the remainder is sent first") {
  constexpr std::size_t whole = 959 * 64;  // the largest odd number of lines in 60 KiB
  const address_space all(size * sizeof(float));
  for (const std::size_t elements : {16U, 8'192U, 16'384U, static_cast<unsigned>(whole / 4), 500'000U}) {
    CAPTURE(elements);
    stand_in::rank = rank;
    stand_in::size = ranks;
    stand_in::messages.clear();
    auto communicator = slamb::mpi_communicator::borrow(MPI_COMM_WORLD, {.piece_bytes = std::size_t{1} << 30});
    communicator.all_gather(std::span<const float>(all.floats().first(elements)),
                            all.floats().subspan(elements, ranks * elements), host_stream{});
    const std::size_t bytes = elements * sizeof(float);
    for (const bool is_send : {false, true}) {
      const std::vector<interval> parts = with_peer(all.floats(), is_send, 0);
      CHECK(parts.size() == (bytes + whole - 1) / whole);
      for (std::size_t i = 0; i < parts.size(); ++i)
        CHECK(parts[i].second - parts[i].first == (i == 0 ? (bytes - 1) % whole + 1 : whole));
    }
  }
}

TEST_CASE("mpi_communicator: the root of a broadcast is at most two pieces ahead of the others") {
  const address_space values(size * sizeof(float));
  constexpr std::size_t piece = 1 << 22;
  auto communicator = make_communicator(piece);
  const std::span<float> sent = values.floats().first(10 * piece / sizeof(float));
  communicator.broadcast(sent, rank, host_stream{});
  for (int peer = 0; peer < ranks; ++peer) {
    std::vector<std::size_t> waits;  // ends of the messages that are waited for
    for (const auto& m : stand_in::messages)
      if (m.is_send && m.peer == peer && m.until_received)
        waits.push_back(static_cast<std::size_t>(m.buffer + m.bytes - std::as_bytes(sent).data()));
    if (peer == rank) continue;
    const std::size_t chunk = piece / ranks;
    CHECK(waits.size() == 9);
    for (std::size_t i = 0; i < waits.size(); ++i)
      CHECK(waits[i] == (i + 1) * piece + (static_cast<std::size_t>(peer) + 1) * chunk);
  }
}

TEST_CASE("mpi_communicator: a call from a thread that MPI does not allow throws before anything is sent") {
  slamb::mpi_communicator communicator = make_communicator(1 << 20);
  std::vector<float> values(640, 1.0F);
  const auto sum = [&] { communicator.all_reduce_sum(std::span<float>(values), host_stream{}); };
  stand_in::thread_level = MPI_THREAD_FUNNELED;
  CHECK_THROWS_WITH_AS(sum(), doctest::Contains("pass MPI_THREAD_SERIALIZED to MPI_Init_thread"), std::logic_error);
  CHECK(stand_in::messages.empty());
  stand_in::is_main_thread = true;
  CHECK_NOTHROW(sum());
  stand_in::is_main_thread = false;
  stand_in::thread_level = MPI_THREAD_SERIALIZED;
  CHECK_NOTHROW(sum());
  CHECK_FALSE(stand_in::messages.empty());
}
