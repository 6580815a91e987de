// A complete Communicator to copy: processes of one Linux machine, each joined with each by UNIX-domain sockets. For several
// machines it would need TCP sockets and their addresses, TCP_NODELAY, a `connect` that continues in the background, and
// numbers in one byte order.
//
// Rank r sums part r of the values, in rank order and in double precision, and rounds once: all ranks get the same bits. Only
// `poll` blocks, and it has a timeout. A rank that fails reports the reason to all peers that it can reach, so that their
// errors name the first cause.
#pragma once

#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <iterator>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "slamb/core/concepts.hpp"
#include "slamb/core/error.hpp"

/// A file descriptor that is closed by its owner's destructor.
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
  /// Waits for all ranks to connect. `folder` must be new, and all ranks must be able to write to it.
  /// @throws std::invalid_argument for a wrong rank or timeout; slamb::communicator_error if a rank does not come in time
  socket_communicator(const std::string& folder, int rank, int size, std::chrono::milliseconds timeout)
      : rank_(rank), peers_(static_cast<std::size_t>(std::max(size, 1))) {
    failure_.reserve(longest_reason);
    set_timeout(timeout);
    require(rank >= 0 && rank < size, "the rank must be in [0, size - 1]");
    connect_to_all(folder);
  }

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(peers_.size()); }

  /// Sets the timeout of waits for silent peers; > 0 and at most 20 days, because `poll` counts milliseconds in an int.
  void set_timeout(std::chrono::milliseconds timeout) {
    require(timeout.count() > 0, "the timeout must be positive");
    timeout_ = std::min<std::chrono::milliseconds>(timeout, std::chrono::hours(20 * 24));
  }

  void all_reduce_sum(std::span<float> values, slamb::host_stream /*stream*/) {
    // Each rank gets its part from all others, sums it, and sends the sum back.
    const auto part = [&](std::size_t r) {
      const std::size_t first = values.size() * r / peers_.size();
      return values.subspan(first, values.size() * (r + 1) / peers_.size() - first);
    };
    or_abort([&] {
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
    });
  }

  void all_gather(std::span<const std::byte> mine, std::span<std::byte> all, slamb::host_stream /*stream*/) {
    or_abort([&] {
      require(all.size() == mine.size() * peers_.size(), "all_gather: `all` must have room for every rank's `mine`");
      begin("all_gather", mine.size());
      for (std::size_t r = 0; r < peers_.size(); ++r) plan(r, mine, all.subspan(r * mine.size(), mine.size()));
      transfer();
      std::ranges::copy(mine, all.subspan(me() * mine.size()).begin());
    });
  }

  void all_to_all(std::span<const std::byte> send, std::span<std::byte> receive, slamb::host_stream /*stream*/) {
    or_abort([&] {
      const std::size_t chunk = send.size() / peers_.size();
      require(send.size() == chunk * peers_.size() && receive.size() == send.size(),
              "all_to_all: `send` and `receive` must have a chunk for every rank");
      begin("all_to_all", chunk);
      for (std::size_t r = 0; r < peers_.size(); ++r)
        plan(r, send.subspan(r * chunk, chunk), receive.subspan(r * chunk, chunk));
      transfer();
      std::ranges::copy(send.subspan(me() * chunk, chunk), receive.subspan(me() * chunk).begin());
    });
  }

  void broadcast(std::span<std::byte> values, int root, slamb::host_stream /*stream*/) {
    or_abort([&] {
      const std::span<std::byte> nothing;
      require(root >= 0 && root < size(), "broadcast: `root` must be a rank");
      begin("broadcast", values.size(), root);
      for (std::size_t r = 0; r < peers_.size(); ++r)
        plan(r, rank_ == root ? values : nothing, static_cast<int>(r) == root ? values : nothing);
      transfer();
    });
  }

  /// Optional: reports to the peers why this rank cannot go on, in up to 1000 letters. Every later call of any rank throws.
  void abort(const std::string& reason) noexcept {
    if (peers_.empty() || !failure_.empty()) return;  // moved from, or failed before
    failure_.assign(reason, 0, longest_reason);       // has room for it: nothing here allocates
    if (failure_.empty()) failure_ = "no reason was given";
    header head{.kind = failure_kind, .bytes = failure_.size()};
    std::array<iovec, 2> pieces{{{&head, sizeof(head)}, {failure_.data(), failure_.size()}}};
    msghdr message{};
    message.msg_iov = pieces.data();
    message.msg_iovlen = pieces.size();
    const auto whole = static_cast<ssize_t>(sizeof(head) + failure_.size());
    for (const peer& p : peers_) {
      if (p.socket.number() < 0) continue;
      const bool is_between_messages = p.sent == 0 || p.has_sent();  // within one, the reason would be read as data
      if (!is_between_messages || sendmsg(p.socket.number(), &message, MSG_NOSIGNAL | MSG_DONTWAIT) != whole)
        shutdown(p.socket.number(), SHUT_RDWR);
    }
  }

 private:
  static void require(bool holds, const char* what) {
    if (!holds) throw std::invalid_argument(std::string("socket_communicator: wrong arguments; ") + what);
  }
  static constexpr std::uint32_t data_kind = 1, failure_kind = 2;
  static constexpr std::size_t longest_reason = 1000;

  /// Sent before each message.
  struct header {
    std::uint32_t kind = data_kind;
    char call[16] = {};        // "all_gather", and zeros
    std::int32_t root = none;  // of a broadcast
    std::uint64_t number = 0;  // number of the call
    std::uint64_t elements = 0;
    std::uint64_t bytes = 0;

    static constexpr std::int32_t none = -1;

    bool is_same_call(const header& other) const {
      return std::ranges::equal(call, other.call) && root == other.root && number == other.number &&
             elements == other.elements;
    }
    /// "broadcast of 10 from root 1, its call 7". `call` from a peer may lack the final zero.
    std::string text() const {
      std::string all(std::begin(call), std::ranges::find(call, '\0'));
      all += " of " + std::to_string(elements);
      if (root != none) all += " from root " + std::to_string(root);
      return all + ", its call " + std::to_string(number);
    }
  };
  static_assert(sizeof(header) == 48, "the header must have no padding bytes");

  /// Another rank, and the messages in flight between it and this rank.
  struct peer {
    owned_socket socket;
    header out, in;
    std::span<const std::byte> sending;
    std::span<std::byte> receiving;
    std::size_t sent = 0, received = 0;  // bytes, including the header

    bool has_sent() const { return sent == sizeof(header) + sending.size(); }
    bool has_received() const { return received == sizeof(header) + receiving.size(); }
  };

  std::size_t me() const { return static_cast<std::size_t>(rank_); }

  // --------------------------------------------------------------------------------------------------- one collective

  /// Calls `call`. On an exception aborts the communicator, so that peers do not wait for this rank.
  template <class Call>
  void or_abort(const Call& call) {
    if (peers_.empty()) throw slamb::communicator_error("socket_communicator: it was called after it was moved from");
    try {
      call();
    } catch (const slamb::communicator_error&) {
      throw;  // peers have been told
    } catch (const std::exception& failure) {
      abort(named(failure.what()));
      throw;
    }
  }

  void begin(std::string_view call, std::size_t elements, std::int32_t root = header::none) {
    if (!failure_.empty()) throw slamb::communicator_error(failure_);
    now_ = {.root = root, .number = ++calls_, .elements = elements};
    std::ranges::copy(call.substr(0, sizeof(now_.call)), now_.call);
  }
  void plan(std::size_t r, std::span<const std::byte> sending, std::span<std::byte> receiving) {
    if (r == me()) return;
    peers_[r].sending = sending;
    peers_[r].receiving = receiving;
    peers_[r].out = now_;
    peers_[r].out.bytes = sending.size();
    peers_[r].sent = peers_[r].received = 0;
  }

  /// Sends and receives all planned messages at once, as far as each socket is ready.
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
        if ((waits[i].revents & ~POLLOUT) != 0) has_moved |= receive(waits_for[i]);  // failure reports are read first
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
      if (count < 0) {
        const int problem = errno;
        if (problem == EAGAIN || problem == EINTR) break;
        fail_of(r, problem);
      }
      p.sent += static_cast<std::size_t>(count);
    }
    return p.sent > before;
  }

  bool receive(std::size_t r) {
    peer& p = peers_[r];
    const auto head = std::as_writable_bytes(std::span(&p.in, 1));
    const auto left =
        p.received < head.size() ? head.subspan(p.received) : p.receiving.subspan(p.received - head.size());
    if (left.empty()) return false;  // all received; what follows belongs to the next call
    const ssize_t count = recv(p.socket.number(), left.data(), left.size(), 0);
    if (count < 0) {
      const int problem = errno;
      if (problem == EAGAIN || problem == EINTR) return false;
      fail_as_lost(r, problem);
    }
    if (count == 0) fail_as_lost(r, ECONNRESET);
    const std::size_t before = std::exchange(p.received, p.received + static_cast<std::size_t>(count));
    if (before < head.size() && p.received >= head.size()) require_same_call(r);
    return true;
  }

  void require_same_call(std::size_t r) {
    const header& in = peers_[r].in;
    const std::size_t due = peers_[r].receiving.size();
    if (in.kind == failure_kind) fail_as_told(r);
    if (!in.is_same_call(now_))
      fail("rank " + std::to_string(r) + " has called " + in.text() + ", and this rank " + now_.text());
    if (in.bytes != due)
      fail("rank " + std::to_string(r) + " sends " + std::to_string(in.bytes) + " bytes in " + now_.text() +
           ", and this rank expects " + std::to_string(due));
  }

  // ------------------------------------------------------------------------------------------------------- failures

  /// Sending to a peer has failed. Reads on: the peer may have sent the reason after its last data.
  [[noreturn]] void fail_of(std::size_t r, int problem) {
    while (receive(r)) continue;
    header& next = peers_[r].in;
    const int socket = peers_[r].socket.number();
    if (recv(socket, &next, sizeof(next), MSG_DONTWAIT) == sizeof(next) && next.kind == failure_kind) fail_as_told(r);
    fail_as_lost(r, problem);
  }
  [[noreturn]] void fail_as_lost(std::size_t r, int problem) {
    const std::string who = "rank " + std::to_string(r);
    if (problem == EPIPE || problem == ECONNRESET) fail(who + " has closed its connection");
    fail("the connection to " + who + " is lost: " + text_of(problem));
  }
  [[noreturn]] void fail_as_told(std::size_t r) {
    std::string reason(std::min<std::size_t>(peers_[r].in.bytes, longest_reason), ' ');
    const ssize_t count = recv(peers_[r].socket.number(), reason.data(), reason.size(), MSG_DONTWAIT);
    reason.resize(static_cast<std::size_t>(std::max<ssize_t>(count, 0)));
    fail("rank " + std::to_string(r) + " has failed: " + reason);
  }
  /// @param problem  errno, saved before any call that may change it
  [[noreturn]] void fail_at(const char* call, const char* path, int problem) {
    fail(std::string(call) + " " + path + ": " + text_of(problem));
  }
  [[noreturn]] void fail(const std::string& reason) {
    abort(named(reason));
    throw slamb::communicator_error(failure_);
  }
  std::string named(const std::string& reason) const {
    return "socket_communicator: rank " + std::to_string(rank_) + " of " + std::to_string(size()) + ": " + reason;
  }
  static std::string text_of(int problem) { return std::generic_category().message(problem); }

  static std::string names(const std::vector<std::size_t>& ranks) {
    std::string text = ranks.size() == 1 ? "rank" : "ranks";
    for (std::size_t i = 0; i < ranks.size(); ++i) text += (i == 0 ? " " : ", ") + std::to_string(ranks[i]);
    return text;
  }

  /// The number of sockets that are ready; 0 after the deadline.
  int wait(std::vector<pollfd>& sockets, std::chrono::steady_clock::time_point deadline) {
    using std::chrono::milliseconds, std::chrono::steady_clock;
    for (;;) {
      const auto left = std::chrono::duration_cast<milliseconds>(deadline - steady_clock::now());
      const int count = poll(sockets.data(), sockets.size(), static_cast<int>(std::max(left, milliseconds(0)).count()));
      if (count >= 0) return count;
      const int problem = errno;
      if (problem != EINTR) fail("poll: " + text_of(problem));
    }
  }

  // ------------------------------------------------------------------------------------------------------ connections

  using time_point = std::chrono::steady_clock::time_point;

  /// The name at which a socket listens. The destructor removes it.
  struct listening_name {
    const char* path;
    explicit listening_name(const char* at) : path(at) {}
    listening_name(const listening_name&) = delete;
    listening_name& operator=(const listening_name&) = delete;
    ~listening_name() { unlink(path); }
  };

  /// Connects to the lower ranks, and accepts connections of the higher ranks. A rank listens before it connects.
  void connect_to_all(const std::string& folder) {
    const time_point deadline = std::chrono::steady_clock::now() + timeout_;
    const owned_socket listening = new_socket();
    const sockaddr_un own = address(folder, me());
    if (bind(listening.number(), reinterpret_cast<const sockaddr*>(&own), sizeof(own)) != 0)
      fail_at("bind to", own.sun_path, errno);
    const listening_name name(own.sun_path);
    if (listen(listening.number(), size()) != 0) fail_at("listen at", own.sun_path, errno);
    for (std::size_t r = 0; r < me(); ++r) connect_to(r, address(folder, r), deadline);
    for (std::vector<std::size_t> left = missing(); !left.empty(); left = missing())
      accept_one(listening, left, deadline);
  }
  void connect_to(std::size_t r, const sockaddr_un& there, time_point deadline) {
    for (;;) {
      owned_socket made = new_socket();  // a new one for each try: a socket that failed to connect may be unusable
      if (connect(made.number(), reinterpret_cast<const sockaddr*>(&there), sizeof(there)) == 0) {
        if (send(made.number(), &rank_, sizeof(rank_), MSG_NOSIGNAL) != sizeof(rank_)) fail_as_lost(r, errno);
        peers_[r].socket = std::move(made);
        return;
      }
      const int problem = errno;
      // The peer does not listen yet, or must accept others first.
      if (problem != ENOENT && problem != ECONNREFUSED && problem != EAGAIN && problem != EINTR)
        fail_at("connect to", there.sun_path, problem);
      if (std::chrono::steady_clock::now() > deadline) fail_to_connect({r});
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  }
  /// Accepts a connection and reads the rank that the peer sends. Closes the connection if that is not a missing rank.
  void accept_one(const owned_socket& listening, const std::vector<std::size_t>& missing, time_point deadline) {
    wait_for_input(listening, missing, deadline);
    owned_socket from(accept4(listening.number(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (from.number() < 0) {
      const int problem = errno;
      if (problem == EAGAIN || problem == EINTR || problem == ECONNABORTED) return;  // it has gone again
      fail("accept: " + text_of(problem));
    }
    wait_for_input(from, missing, deadline);
    int r = -1;
    if (recv(from.number(), &r, sizeof(r), 0) != sizeof(r)) return;
    if (r >= 0 && std::ranges::find(missing, static_cast<std::size_t>(r)) != missing.end())
      peers_[static_cast<std::size_t>(r)].socket = std::move(from);
  }
  void wait_for_input(const owned_socket& from, const std::vector<std::size_t>& missing, time_point deadline) {
    std::vector<pollfd> waits{{from.number(), POLLIN, 0}};
    if (wait(waits, deadline) == 0) fail_to_connect(missing);
  }
  /// The number of higher ranks that have not connected yet.
  std::vector<std::size_t> missing() const {
    std::vector<std::size_t> all;
    for (std::size_t r = me() + 1; r < peers_.size(); ++r)
      if (peers_[r].socket.number() < 0) all.push_back(r);
    return all;
  }
  [[noreturn]] void fail_to_connect(const std::vector<std::size_t>& missing) {
    fail("waited " + std::to_string(timeout_.count()) + " ms for " + names(missing) + " to connect");
  }
  owned_socket new_socket() {
    owned_socket made(socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (made.number() < 0) fail_at("make", "a socket", errno);
    return made;
  }
  static sockaddr_un address(const std::string& folder, std::size_t r) {
    sockaddr_un there{};
    there.sun_family = AF_UNIX;
    const std::string path = folder + "/rank" + std::to_string(r);
    if (path.size() >= sizeof(there.sun_path))
      throw std::invalid_argument("socket_communicator: the path is too long: " + path);
    std::ranges::copy(path, there.sun_path);
    return there;
  }

  int rank_;
  std::chrono::milliseconds timeout_{};
  std::vector<peer> peers_;  // [rank]; this rank's entry is not used
  std::uint64_t calls_ = 0;
  header now_;
  std::string failure_;  // empty: no failure so far; has room for longest_reason
};

static_assert(slamb::capability::has_all_reduce_sum<socket_communicator, float>);
static_assert(slamb::capability::has_all_gather<socket_communicator, std::byte>);
static_assert(slamb::capability::has_all_to_all<socket_communicator, std::byte>);
static_assert(slamb::capability::has_broadcast<socket_communicator, std::byte>);
