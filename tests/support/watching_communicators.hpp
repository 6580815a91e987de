// Communicators that observe, disturb or invent the messages between ranks.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "slamb/core/concepts.hpp"
#include "slamb/core/error.hpp"
#include "slamb/detail/ranks/probe.hpp"

namespace test_support {

/// The sums of one rank.
struct exchange_log {
  std::vector<std::vector<float>> sent;      // [call][elements]
  std::vector<std::vector<float>> received;  // [call][elements]

  void clear() {
    sent.clear();
    received.clear();
  }
};

/// Copies every payload that is summed.
template <class Base>
class recording_communicator {
 public:
  recording_communicator(Base base, std::shared_ptr<exchange_log> log) : base_(std::move(base)), log_(std::move(log)) {}

  int rank() const { return base_.rank(); }
  int size() const { return base_.size(); }

  void all_reduce_sum(std::span<float> values, slamb::host_stream stream) {
    log_->sent.emplace_back(values.begin(), values.end());
    base_.all_reduce_sum(values, stream);
    log_->received.emplace_back(values.begin(), values.end());
  }

 private:
  Base base_;
  std::shared_ptr<exchange_log> log_;
};

/// Keeps the first scale of the first message of every exchange, in both phases; see docs/algorithms/one_bit_exchange.md.
template <class Base>
class scale_watching_communicator {
 public:
  scale_watching_communicator(Base base, std::shared_ptr<std::vector<float>> scales)
      : base_(std::move(base)), scales_(std::move(scales)) {}

  int rank() const { return base_.rank(); }
  int size() const { return base_.size(); }

  void all_reduce_sum(std::span<float> values, slamb::host_stream stream) { base_.all_reduce_sum(values, stream); }
  void all_to_all(std::span<const std::byte> send, std::span<std::byte> receive, slamb::host_stream stream) {
    keep(send);
    base_.all_to_all(send, receive, stream);
  }
  void all_gather(std::span<const std::byte> mine, std::span<std::byte> all, slamb::host_stream stream) {
    keep(mine);
    base_.all_gather(mine, all, stream);
  }

 private:
  void keep(std::span<const std::byte> message) {
    scales_->push_back(0.0F);
    constexpr std::size_t header_bytes = 16;
    if (message.size() >= header_bytes + sizeof(float))
      std::memcpy(&scales_->back(), message.data() + header_bytes, sizeof(float));
  }

  Base base_;
  std::shared_ptr<std::vector<float>> scales_;
};

/// Rank 0 among peers that do not exist. At construction the peers try collectives with this rank and repeat its answers. After
/// that each peer sends either zeros or the same values as this rank. The sum of N equal terms is exact if N is a power of two.
class imagined_peers {
 public:
  enum class habit { send_zeros, send_the_same };

  imagined_peers(int size, habit how) : size_(size), how_(how) {}

  static int rank() { return 0; }
  int size() const { return size_; }

  void all_reduce_sum(std::span<float> values, slamb::host_stream /*stream*/) {
    const int call = calls_++;
    if (call == 0) {
      const slamb::detail::probe sum = tried(slamb::detail::sums_on_trial({.size = size_}), 0);
      for (std::size_t i = 0; i < values.size(); ++i)
        for (int peer = 1; peer < size_; ++peer) values[i] += static_cast<float>(slamb::detail::term_of(sum, peer, i));
    } else if (call == 1) {
      return;  // the peers have found no error
    } else if (call < calls_at_construction) {
      const std::size_t share = values.size() / static_cast<std::size_t>(size_);
      for (std::size_t i = share; i < values.size(); ++i) values[i] = values[i - share];
    } else {  // the header before the payload counts for all
      const std::size_t given = how_ == habit::send_the_same ? values.size() : std::min(values.size(), header_floats);
      for (float& x : values.first(given)) x *= static_cast<float>(size_);
    }
  }

  /// Each peer sends this rank's own messages, or zeros.
  void all_to_all(std::span<const std::byte> send, std::span<std::byte> receive, slamb::host_stream /*stream*/) {
    const std::span<const std::byte> own = send.first(send.size() / static_cast<std::size_t>(size_));
    if (std::exchange(has_exchanged_, true)) return receive_from_all(own, receive);
    try_with_peers(0, own, receive);
  }
  void all_gather(std::span<const std::byte> mine, std::span<std::byte> all, slamb::host_stream /*stream*/) {
    if (std::exchange(has_gathered_, true)) return receive_from_all(mine, all);
    try_with_peers(1, mine, all);
  }

 private:
  static constexpr int calls_at_construction = 4;
  static constexpr std::size_t header_floats = 16, header_bytes = 16;

  void receive_from_all(std::span<const std::byte> own, std::span<std::byte> all) const {
    for (std::size_t i = 0; i < all.size(); ++i) {
      const bool is_header = i % own.size() < header_bytes;
      const bool is_given = i < own.size() || is_header || how_ == habit::send_the_same;
      all[i] = is_given ? own[i % own.size()] : std::byte{0};
    }
  }
  /// A call on trial.
  slamb::detail::probe tried(const std::vector<slamb::detail::probe>& calls, std::size_t number) const {
    slamb::detail::probes made({.size = size_}, 1);
    for (const slamb::detail::probe& call : std::span(calls).first(number)) made.add(call);
    return made.add(calls[number]);
  }
  void try_with_peers(std::size_t number, std::span<const std::byte> own, std::span<std::byte> all) const {
    const slamb::detail::probe p = tried(slamb::detail::bytes_on_trial({.size = size_}, true, false), number);
    std::ranges::copy(own, all.begin());
    for (std::size_t i = own.size(); i < all.size(); ++i)
      all[i] = static_cast<std::byte>(slamb::detail::value_of(p, static_cast<int>(i / own.size()), i % own.size()));
  }

  int size_;
  habit how_;
  int calls_ = 0;
  bool has_exchanged_ = false, has_gathered_ = false;
};

}  // namespace test_support
