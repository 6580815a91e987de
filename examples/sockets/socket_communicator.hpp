// A complete Communicator to copy: processes of one machine joined by UNIX-domain sockets, each with each. For several machines
// it needs TCP sockets and their addresses, TCP_NODELAY, a `connect` that does not block, and numbers in one byte order.
//
// Sums are made by rank r for part r of the values, in the order of ranks and in double precision, and rounded once: all ranks
// get the same bits. Every wait has an end. Whoever fails says why to all peers that it can still reach, so that their errors
// name the cause and not those who fell with it.
#pragma once

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "slamb/core/concepts.hpp"
#include "slamb/core/error.hpp"

/// A file descriptor that is closed with its owner.
class owned_socket {
 public:
  explicit owned_socket(int number = -1) : number_(number) {}
  owned_socket(owned_socket&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  owned_socket& operator=(owned_socket&& other) noexcept {
    std::swap(number_, other.number_);
    return *this;
  }
  ~owned_socket() {
    if (number_ >= 0) close(number_);
  }
  int number() const { return number_; }

 private:
  int number_;
};

class socket_communicator {
 public:
  /// Waits for all ranks to come. `folder` is one that all of them can write to, and that is new.
  /// @throws std::invalid_argument if there can be no such rank; slamb::communicator_error if one does not come within `timeout`
  socket_communicator(const std::string& folder, int rank, int size, std::chrono::milliseconds timeout)
      : rank_(rank), timeout_(timeout), peers_(static_cast<std::size_t>(std::max(size, 1))) {
    require(rank >= 0 && rank < size, "a rank is one of 0 … size - 1");
    connect_to_all(folder);
  }

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(peers_.size()); }

  void all_reduce_sum(std::span<float> values, slamb::host_stream /*stream*/) {
    // Each rank gets its part from all others, sums it, and sends it back.
    const auto part = [&](std::size_t r) {
      const std::size_t first = values.size() * r / peers_.size();
      return values.subspan(first, values.size() * (r + 1) / peers_.size() - first);
    };
    const std::span<float> own = part(me());
    std::vector<std::vector<float>> terms(peers_.size(), std::vector<float>(own.size()));
    begin("all_reduce_sum", values.size());
    for (std::size_t r = 0; r < peers_.size(); ++r)
      plan(r, std::as_bytes(part(r)), std::as_writable_bytes(std::span(terms[r])));
    transfer();
    std::ranges::copy(own, terms[me()].begin());
    for (std::size_t i = 0; i < own.size(); ++i) {
      double sum = 0.0;
      for (const std::vector<float>& term : terms) sum += static_cast<double>(term[i]);
      own[i] = static_cast<float>(sum);
    }
    begin("all_reduce_sum", values.size());
    for (std::size_t r = 0; r < peers_.size(); ++r) plan(r, std::as_bytes(own), std::as_writable_bytes(part(r)));
    transfer();
  }

  void all_gather(std::span<const std::byte> mine, std::span<std::byte> all, slamb::host_stream /*stream*/) {
    require(all.size() == mine.size() * peers_.size(), "all_gather: `all` has room for every rank's `mine`");
    begin("all_gather", mine.size());
    for (std::size_t r = 0; r < peers_.size(); ++r) plan(r, mine, all.subspan(r * mine.size(), mine.size()));
    transfer();
    std::ranges::copy(mine, all.subspan(me() * mine.size()).begin());
  }

  void all_to_all(std::span<const std::byte> send, std::span<std::byte> receive, slamb::host_stream /*stream*/) {
    const std::size_t chunk = send.size() / peers_.size();
    require(send.size() == chunk * peers_.size() && receive.size() == send.size(),
            "all_to_all: `send` and `receive` have a chunk for every rank");
    begin("all_to_all", chunk);
    for (std::size_t r = 0; r < peers_.size(); ++r)
      plan(r, send.subspan(r * chunk, chunk), receive.subspan(r * chunk, chunk));
    transfer();
    std::ranges::copy(send.subspan(me() * chunk, chunk), receive.subspan(me() * chunk).begin());
  }

  void broadcast(std::span<std::byte> values, int root, slamb::host_stream /*stream*/) {
    const std::span<std::byte> nothing;
    require(root >= 0 && root < size(), "broadcast: `root` is a rank");
    begin("broadcast", values.size());
    for (std::size_t r = 0; r < peers_.size(); ++r)
      plan(r, rank_ == root ? values : nothing, static_cast<int>(r) == root ? values : nothing);
    transfer();
  }

  /// Optional: tells peers that this rank cannot go on. Every later call of any rank throws.
  void abort(const std::string& reason) noexcept {
    if (!failure_.empty()) return;
    failure_ = reason;
    const header head{.kind = failure_kind, .bytes = reason.size()};
    std::string said(reinterpret_cast<const char*>(&head), sizeof(head));
    said += reason;
    for (const peer& p : peers_) {
      if (p.socket.number() < 0) continue;
      if (p.sent == 0 || p.has_sent())
        static_cast<void>(send(p.socket.number(), said.data(), said.size(), MSG_NOSIGNAL | MSG_DONTWAIT));
      else
        shutdown(p.socket.number(), SHUT_RDWR);  // a sentence in the middle of a message would be read as data
    }
  }

 private:
  static void require(bool holds, const char* what) {
    if (!holds) throw std::invalid_argument(std::string("socket_communicator: wrong arguments; ") + what);
  }
  static constexpr std::uint32_t data_kind = 1, failure_kind = 2;

  /// In front of all that is sent.
  struct header {
    std::uint32_t kind = data_kind;
    char call[20] = {};        // "all_gather"
    std::uint64_t number = 0;  // of the call
    std::uint64_t elements = 0;
    std::uint64_t bytes = 0;
  };

  /// Another rank, and what is under way between it and this one.
  struct peer {
    owned_socket socket;
    header out, in;
    std::span<const std::byte> sending;
    std::span<std::byte> receiving;
    std::size_t sent = 0, received = 0;  // bytes, with the header

    bool has_sent() const { return sent == sizeof(header) + sending.size(); }
    bool has_received() const { return received == sizeof(header) + receiving.size(); }
  };

  std::size_t me() const { return static_cast<std::size_t>(rank_); }

  // --------------------------------------------------------------------------------------------------- one collective

  void begin(const char* call, std::size_t elements) {
    if (!failure_.empty()) throw slamb::communicator_error(failure_);
    ++calls_;
    now_ = {.number = calls_, .elements = elements};
    std::strncpy(now_.call, call, sizeof(now_.call) - 1);
  }
  void plan(std::size_t r, std::span<const std::byte> sending, std::span<std::byte> receiving) {
    if (r == me()) return;
    peers_[r].sending = sending;
    peers_[r].receiving = receiving;
    peers_[r].out = now_;
    peers_[r].out.bytes = sending.size();
    peers_[r].sent = peers_[r].received = 0;
  }

  /// Sends and receives all that is planned, at once, as far as each socket takes and has it.
  void transfer() {
    auto deadline = std::chrono::steady_clock::now() + timeout_;
    for (;;) {
      std::vector<pollfd> waits;
      std::vector<std::size_t> waits_for;
      for (std::size_t r = 0; r < peers_.size(); ++r) {
        if (r == me() || (peers_[r].has_sent() && peers_[r].has_received())) continue;
        const int events = (peers_[r].has_sent() ? 0 : POLLOUT) | (peers_[r].has_received() ? 0 : POLLIN);
        waits.push_back({peers_[r].socket.number(), static_cast<short>(events), 0});
        waits_for.push_back(r);
      }
      if (waits.empty()) break;
      if (wait(waits, deadline) == 0)
        fail("waited " + std::to_string(timeout_.count()) + " ms for " + names(waits_for));
      bool has_moved = false;
      for (std::size_t i = 0; i < waits.size(); ++i) {
        if ((waits[i].revents & ~POLLOUT) != 0) has_moved |= receive(waits_for[i]);  // news of a failure first
        if ((waits[i].revents & POLLOUT) != 0) has_moved |= send_more(waits_for[i]);
      }
      if (has_moved) deadline = std::chrono::steady_clock::now() + timeout_;
    }
    for (peer& p : peers_) p.sent = 0;
  }

  bool send_more(std::size_t r) {
    peer& p = peers_[r];
    const std::size_t before = p.sent;
    const auto head = std::as_bytes(std::span(&p.out, 1));
    while (!p.has_sent()) {
      const auto left = p.sent < head.size() ? head.subspan(p.sent) : p.sending.subspan(p.sent - head.size());
      const ssize_t count = send(p.socket.number(), left.data(), left.size(), MSG_NOSIGNAL);
      if (count < 0 && (errno == EAGAIN || errno == EINTR)) break;
      if (count < 0) fail_of(r);
      p.sent += static_cast<std::size_t>(count);
    }
    return p.sent > before;
  }

  bool receive(std::size_t r) {
    peer& p = peers_[r];
    const auto head = std::as_writable_bytes(std::span(&p.in, 1));
    const auto left =
        p.received < head.size() ? head.subspan(p.received) : p.receiving.subspan(p.received - head.size());
    if (left.empty()) return false;  // it has all, and what follows is of the next call
    const ssize_t count = recv(p.socket.number(), left.data(), left.size(), 0);
    if (count == 0 || (count < 0 && errno == ECONNRESET))
      fail("rank " + std::to_string(r) + " has closed its connection");
    if (count < 0 && errno != EAGAIN && errno != EINTR)
      fail("the connection to rank " + std::to_string(r) + " is lost: " + std::strerror(errno));
    if (count <= 0) return false;
    const std::size_t before = std::exchange(p.received, p.received + static_cast<std::size_t>(count));
    if (before < head.size() && p.received >= head.size()) require_same_call(r);
    return true;
  }

  void require_same_call(std::size_t r) {
    const header& in = peers_[r].in;
    const auto text = [](const header& h) { return std::string(h.call) + " of " + std::to_string(h.elements); };
    if (in.kind == failure_kind) fail_as_told(r);
    if (in.number == now_.number && in.elements == now_.elements && std::strcmp(in.call, now_.call) == 0 &&
        in.bytes == peers_[r].receiving.size())
      return;
    fail("rank " + std::to_string(r) + " has called " + text(in) + ", and this rank " + text(now_));
  }

  // ------------------------------------------------------------------------------------------------------- failures

  /// Sending to a peer has failed: it may have said why, behind what it has sent before.
  [[noreturn]] void fail_of(std::size_t r) {
    while (receive(r)) continue;
    header& next = peers_[r].in;
    const int socket = peers_[r].socket.number();
    if (recv(socket, &next, sizeof(next), MSG_DONTWAIT) == sizeof(next) && next.kind == failure_kind) fail_as_told(r);
    fail("rank " + std::to_string(r) + " has closed its connection");
  }
  [[noreturn]] void fail_as_told(std::size_t r) {
    std::string reason(std::min<std::size_t>(peers_[r].in.bytes, 1000), ' ');
    const ssize_t count = recv(peers_[r].socket.number(), reason.data(), reason.size(), MSG_DONTWAIT);
    reason.resize(static_cast<std::size_t>(std::max<ssize_t>(count, 0)));
    fail("rank " + std::to_string(r) + " has failed: " + reason);
  }
  [[noreturn]] void fail(const std::string& reason) {
    abort("socket_communicator: rank " + std::to_string(rank_) + " of " + std::to_string(size()) + ": " + reason);
    throw slamb::communicator_error(failure_);
  }

  static std::string names(const std::vector<std::size_t>& ranks) {
    std::string text = ranks.size() == 1 ? "rank" : "ranks";
    for (std::size_t i = 0; i < ranks.size(); ++i) text += (i == 0 ? " " : ", ") + std::to_string(ranks[i]);
    return text;
  }

  /// How many of the sockets are ready; 0 when the deadline has passed.
  int wait(std::vector<pollfd>& sockets, std::chrono::steady_clock::time_point deadline) {
    using std::chrono::milliseconds, std::chrono::steady_clock;
    for (;;) {
      const auto left = std::chrono::duration_cast<milliseconds>(deadline - steady_clock::now());
      const int count = poll(sockets.data(), sockets.size(), static_cast<int>(std::max(left, milliseconds(0)).count()));
      if (count >= 0) return count;
      if (errno != EINTR) fail(std::string("poll: ") + std::strerror(errno));
    }
  }

  // ------------------------------------------------------------------------------------------------------ connections

  /// Connects to those of lower rank, which listen before they do so themselves, and is connected to by the others.
  void connect_to_all(const std::string& folder) {
    const auto deadline = std::chrono::steady_clock::now() + timeout_;
    const owned_socket listening = new_socket();
    const sockaddr_un own = address(folder, me());
    if (bind(listening.number(), reinterpret_cast<const sockaddr*>(&own), sizeof(own)) != 0 ||
        listen(listening.number(), size()) != 0)
      fail("cannot listen at " + std::string(own.sun_path) + ": " + std::strerror(errno));
    for (std::size_t r = 0; r < me(); ++r) {
      const sockaddr_un there = address(folder, r);
      peers_[r].socket = new_socket();
      while (connect(peers_[r].socket.number(), reinterpret_cast<const sockaddr*>(&there), sizeof(there)) != 0) {
        if (std::chrono::steady_clock::now() > deadline) fail_to_connect({r});
        std::this_thread::sleep_for(std::chrono::milliseconds(10));  // it does not listen yet
      }
      static_cast<void>(send(peers_[r].socket.number(), &rank_, sizeof(rank_), MSG_NOSIGNAL));
    }
    for (std::size_t left = peers_.size() - me() - 1; left > 0; --left) accept_one(listening, deadline);
    unlink(own.sun_path);
    for (peer& p : peers_)
      if (p.socket.number() >= 0) fcntl(p.socket.number(), F_SETFL, O_NONBLOCK);
  }
  void accept_one(const owned_socket& listening, std::chrono::steady_clock::time_point deadline) {
    std::vector<pollfd> waits{{listening.number(), POLLIN, 0}};
    std::vector<std::size_t> missing;
    for (std::size_t r = me() + 1; r < peers_.size(); ++r)
      if (peers_[r].socket.number() < 0) missing.push_back(r);
    if (wait(waits, deadline) == 0) fail_to_connect(missing);
    owned_socket from(accept(listening.number(), nullptr, nullptr));
    int r = -1;
    waits[0].fd = from.number();
    if (wait(waits, deadline) == 0 || recv(from.number(), &r, sizeof(r), 0) != sizeof(r) || r <= rank_ || r >= size())
      fail_to_connect(missing);
    peers_[static_cast<std::size_t>(r)].socket = std::move(from);
  }
  [[noreturn]] void fail_to_connect(const std::vector<std::size_t>& missing) {
    fail("waited " + std::to_string(timeout_.count()) + " ms for " + names(missing) + " to connect");
  }
  owned_socket new_socket() {
    owned_socket made(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (made.number() < 0) fail(std::string("no socket: ") + std::strerror(errno));
    return made;
  }
  static sockaddr_un address(const std::string& folder, std::size_t r) {
    sockaddr_un there{};
    there.sun_family = AF_UNIX;
    const std::string path = folder + "/rank" + std::to_string(r);
    if (path.size() >= sizeof(there.sun_path))
      throw std::invalid_argument("socket_communicator: too long a path: " + path);
    std::ranges::copy(path, there.sun_path);
    return there;
  }

  int rank_;
  std::chrono::milliseconds timeout_;
  std::vector<peer> peers_;  // [rank]; this one's is not used
  std::uint64_t calls_ = 0;
  header now_;
  std::string failure_;
};

static_assert(slamb::has_all_reduce_sum<socket_communicator, float>);
static_assert(slamb::has_all_gather<socket_communicator, std::byte>);
static_assert(slamb::has_all_to_all<socket_communicator, std::byte>);
static_assert(slamb::has_broadcast<socket_communicator, std::byte>);
