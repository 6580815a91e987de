// A step in parts, which exchanges buckets of gradients while others are still computed.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "slamb/core/detail/sentence.hpp"
#include "slamb/detail/pass/layout.hpp"
#include "slamb/detail/runtime/side_stream.hpp"

namespace slamb::detail {

/// Tensors that a step exchanges together. The last bucket holds the first tensors, and carries the overflow flag.
struct gradient_bucket : tensor_batch {
  bool is_last = true;
};

/// Divides tensors into buckets, from the last tensor to the first, which is the order of a backward pass. All ranks exchange
/// buckets in this order, even if gradients become ready in another. The bucket of the first tensors is exchanged last, when
/// the step is finished.
class gradient_buckets {
 public:
  /// @param bytes  least bytes of gradients in a bucket; the last bucket may have fewer
  gradient_buckets(const layout& tensors, std::uint64_t bytes) {
    const std::span<const segment> all = tensors.segments();
    std::size_t last = all.size();
    for (std::size_t first = last; first-- > 0;) {
      if ((tensors.first_element(last) - all[first].first) * sizeof(float) < bytes || all[first].first == 0) continue;
      buckets_.push_back({first, last, {tensors.tiles_of(first).first, tensors.tiles_of(last - 1).last}});
      last = first;
    }
    is_ready_.resize(all.size());
    reset();
  }

  void reset() {
    std::fill(is_ready_.begin(), is_ready_.end(), std::uint8_t{0});
    next_ = 0;
    waits_for_ = is_ready_.size();
  }

  /// @throws std::invalid_argument for tensors out of range, or marked ready before; nothing has changed then
  void set_ready(std::size_t first, std::size_t count) {
    const std::size_t tensors = is_ready_.size();
    if (first > tensors || count > tensors - first)
      throw std::invalid_argument("slamb: gradient_ready() was given " + std::to_string(count) +
                                  " tensors from tensor " + std::to_string(first) + " on, but there are " +
                                  std::to_string(tensors));
    for (std::size_t i = first; i < first + count; ++i)
      if (is_ready_[i] != 0)
        throw std::invalid_argument("slamb: gradient_ready() was given tensor " + std::to_string(i) +
                                    " for the second time in this step");
    std::fill_n(is_ready_.begin() + static_cast<std::ptrdiff_t>(first), count, std::uint8_t{1});
  }
  void set_all_ready() { std::fill(is_ready_.begin(), is_ready_.end(), std::uint8_t{1}); }
  bool is_ready(std::size_t tensor) const { return tensor < is_ready_.size() && is_ready_[tensor] != 0; }

  /// The next bucket, if its gradients are ready. Returns each bucket once.
  std::optional<tensor_batch> next() {
    if (next_ == buckets_.size()) return std::nullopt;
    while (waits_for_ > buckets_[next_].first && is_ready_[waits_for_ - 1] != 0) --waits_for_;
    if (waits_for_ > buckets_[next_].first) return std::nullopt;
    return buckets_[next_++];
  }

  std::size_t count() const noexcept { return buckets_.size(); }

 private:
  std::vector<tensor_batch> buckets_;   // without the bucket of the first tensors
  std::vector<std::uint8_t> is_ready_;  // [tensors] 0 or 1
  std::size_t next_ = 0;
  std::size_t waits_for_ = 0;  // all tensors from this one on are ready
};

/// The open step, if there is one, and the sums over ranks that it has started.
template <class Stream, class Ranks>
class overlapped_step {
  struct sum_over_ranks {
    Ranks* ranks;
    std::span<float> values;

    void operator()(Stream stream) const { ranks->all_reduce_sum(values, stream); }
  };

 public:
  overlapped_step() = default;
  /// Moving closes an open step.
  overlapped_step(overlapped_step&& other) noexcept { *this = std::move(other); }
  overlapped_step& operator=(overlapped_step&& other) noexcept {
    close();
    other.close();
    buckets_ = std::move(other.buckets_);
    side_ = std::move(other.side_);
    return *this;
  }
  ~overlapped_step() = default;

  /// @throws std::logic_error if there is an open step
  void require_closed(const char* call) const { require_closed_for(call); }
  /// The same for a call that is described by several parts.
  template <class... Parts>
  void require_closed_for(const char* call, const Parts&... more) const {
    if (is_open_)
      throw_sentence<std::logic_error>(
          {call, more..., " was called between begin_step() and finish_step(); finish the step first"});
  }
  /// @throws std::logic_error if there is no open step
  void require_open(const char* call) const {
    if (!is_open_) throw_sentence<std::logic_error>({call, " was called without a step; call begin_step() first"});
  }

  /// Opens a step. The first call makes the buckets and the side stream.
  /// @throws std::system_error, or the backend's error, if the side stream cannot be made
  void open(const layout& tensors, std::uint64_t bucket_bytes, Stream stream) {
    if (buckets_ == nullptr) buckets_ = std::make_unique<gradient_buckets>(tensors, bucket_bytes);
    if (side_ == nullptr) side_ = std::make_unique<side_stream<Stream, sum_over_ranks>>(stream, buckets_->count());
    buckets_->reset();
    is_open_ = sends_ = true;
  }

  /// Marks gradients as ready.
  /// @throws std::invalid_argument for tensors that do not exist, or have been ready before; nothing has changed then
  void set_ready(std::size_t first, std::size_t count) { buckets_->set_ready(first, count); }
  void set_all_ready() { buckets_->set_all_ready(); }
  bool is_ready(std::size_t tensor) const { return is_open_ && buckets_->is_ready(tensor); }

  /// Calls exchange(bucket) for each bucket that is complete, until it returns false, which means that this step exchanges
  /// nothing early.
  template <class Exchange>
  void exchange_ready(const Exchange& exchange) {
    while (sends_) {
      const std::optional<tensor_batch> bucket = buckets_->next();
      if (!bucket) return;
      sends_ = exchange(gradient_bucket{*bucket, false});
      if (sends_) sent_from_ = bucket;
    }
  }

  /// The bucket of all tensors that are not exchanged yet.
  gradient_bucket rest(const layout& tensors) const noexcept {
    if (sent_from_) return {{0, sent_from_->first, {0, sent_from_->tiles.first}}, true};
    return {{0, tensors.segments().size(), {0, tensors.tiles().size()}}, true};
  }

  /// Starts to sum `values` [n] over ranks, on the side stream and after the earlier sums. They must not be touched until `join`.
  void start_sum(std::span<float> values, Ranks& ranks) {
    has_started_ = true;
    side_->start({&ranks, values});
  }

  /// Makes the stream wait for the started sums.
  /// @throws the exception of a sum
  void join() {
    if (std::exchange(has_started_, false)) side_->join();
  }

  /// Waits for sums still in flight. Errors are discarded: the step has already failed or been abandoned.
  void close() noexcept {
    try {
      join();
    } catch (...) {
      is_open_ = false;  // the error that ended the step has been thrown already
    }
    is_open_ = false;
    sent_from_.reset();
  }

 private:
  std::unique_ptr<gradient_buckets> buckets_;
  std::unique_ptr<side_stream<Stream, sum_over_ranks>> side_;
  std::optional<tensor_batch> sent_from_;
  bool is_open_ = false;
  bool sends_ = false;
  bool has_started_ = false;
};

}  // namespace slamb::detail
