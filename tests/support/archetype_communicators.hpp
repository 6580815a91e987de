// Communicators as a user might write them. They differ from the library's own as much as the concepts allow.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "slamb/core/concepts.hpp"

namespace test_support {

/// Passes messages between `size` ranks. A rank that waits longer than 60 s for a message throws.
class post_office {
 public:
  explicit post_office(int size)
      : size_(size), boxes_(static_cast<std::size_t>(size) * static_cast<std::size_t>(size)) {}

  int size() const { return size_; }

  void send(int from, int to, std::vector<float> letter) {
    const std::lock_guard lock(mutex_);
    box(from, to).push_back(std::move(letter));
    changed_.notify_all();
  }

  std::vector<float> receive(int from, int to) {
    std::unique_lock lock(mutex_);
    auto& letters = box(from, to);
    if (!changed_.wait_for(lock, std::chrono::seconds(60), [&] { return !letters.empty(); })) {
      throw std::runtime_error("post_office: no letter came");
    }
    std::vector<float> letter = std::move(letters.front());
    letters.pop_front();
    return letter;
  }

 private:
  std::deque<std::vector<float>>& box(int from, int to) {
    return boxes_[static_cast<std::size_t>(from) * static_cast<std::size_t>(size_) + static_cast<std::size_t>(to)];
  }

  int size_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::deque<std::vector<float>>> boxes_;  // [from][to]
};

/// Sums by sending copies to rank 0 and back. Its collectives are not templates and take only floats. Its facts have odd types.
/// It cannot be copied or default-constructed. It has no all_gather and no all_to_all.
class postal_communicator {
 public:
  postal_communicator(std::shared_ptr<post_office> office, short rank)
      : office_(std::move(office)), rank_(std::make_unique<const short>(rank)) {}

  short rank() const { return *rank_; }
  long size() const { return office_->size(); }

  void all_reduce_sum(std::span<float> values, slamb::host_stream stream) {
    const int me = rank();
    if (me == 0) {
      for (int peer = 1; peer < office_->size(); ++peer) {
        const std::vector<float> letter = office_->receive(peer, 0);
        for (std::size_t i = 0; i < values.size(); ++i) values[i] += letter.at(i);
      }
    } else {
      office_->send(me, 0, {values.begin(), values.end()});
    }
    broadcast(values, 0, stream);
  }

  void broadcast(std::span<float> values, int root, slamb::host_stream /*stream*/) {
    const int me = rank();
    if (me != root) {
      const std::vector<float> letter = office_->receive(root, me);
      for (std::size_t i = 0; i < values.size(); ++i) values[i] = letter.at(i);
      return;
    }
    for (int peer = 0; peer < office_->size(); ++peer) {
      if (peer != root) office_->send(root, peer, {values.begin(), values.end()});
    }
  }

 private:
  std::shared_ptr<post_office> office_;
  std::unique_ptr<const short> rank_;
};

static_assert(slamb::capability::has_all_reduce_sum<postal_communicator, float>);
static_assert(slamb::capability::has_broadcast<postal_communicator, float>);

/// Calls `body(postal_communicator)` for each rank on a thread, and rethrows the exception of the lowest rank.
template <class F>
void run_postal_ranks(int size, F&& body) {
  const auto office = std::make_shared<post_office>(size);
  std::vector<std::exception_ptr> failures(static_cast<std::size_t>(size));
  {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < size; ++rank) {
      threads.emplace_back([&, rank] {
        try {
          std::invoke(body, postal_communicator(office, static_cast<short>(rank)));
        } catch (...) {
          failures[static_cast<std::size_t>(rank)] = std::current_exception();
        }
      });
    }
  }
  for (const std::exception_ptr& failure : failures) {
    if (failure) std::rethrow_exception(failure);
  }
}

/// A user-defined stream type.
struct ticket {
  int number = 0;
};

/// Has one collective, of doubles only, on a user-defined stream: the null communicator of a backend that is not the library's.
struct one_way_communicator {
  int rank() const { return 0; }
  int size() const { return 1; }
  void all_to_all(std::span<const double> send, std::span<double> receive, const ticket& stream) {
    for (std::size_t i = 0; i < send.size(); ++i) receive[i] = send[i];
    last_ticket = stream.number;
  }
  int last_ticket = 0;
};

static_assert(slamb::capability::has_all_to_all<one_way_communicator, double, ticket>);

}  // namespace test_support
