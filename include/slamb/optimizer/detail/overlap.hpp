// A step that is taken while gradients are still computed: which are ready, and what has been exchanged before the rest.
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

#include "slamb/detail/pass/layout.hpp"
#include "slamb/detail/runtime/side_stream.hpp"

namespace slamb::detail {

/// Tensors of which a step exchanges what it has to at once. The last bucket of a step has the first tensors: with it all ranks tell
/// each other whether any has seen what is not finite.
struct gradient_bucket : tensor_batch {
  bool is_last = true;
};

/// Tensors in buckets, from the last tensor to the first, as backward passes are done with them. The order of exchanges is
/// that of the buckets on all ranks, in whatever order their gradients become ready. The first tensors' bucket goes last, when
/// the step is finished, and then tells all ranks whether any has seen what is not finite.
class gradient_buckets {
 public:
  /// @param bytes  of gradients in a bucket, at least; the last may have fewer
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

  /// @throws std::invalid_argument for tensors that there are not, or that have been ready before; nothing has changed then
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

  /// The next bucket, if its gradients are ready; a bucket comes once.
  std::optional<tensor_batch> next() {
    if (next_ == buckets_.size()) return std::nullopt;
    while (waits_for_ > buckets_[next_].first && is_ready_[waits_for_ - 1] != 0) --waits_for_;
    if (waits_for_ > buckets_[next_].first) return std::nullopt;
    return buckets_[next_++];
  }

  std::size_t count() const noexcept { return buckets_.size(); }

 private:
  std::vector<tensor_batch> buckets_;   // without that of the first tensors
  std::vector<std::uint8_t> is_ready_;  // [tensors] 0 or 1
  std::size_t next_ = 0;
  std::size_t waits_for_ = 0;  // all tensors from this one on are ready
};

/// The step that is open, if there is one, and the sums over ranks that it has begun.
template <class Stream, class Ranks>
class overlapped_step {
  struct sum_over_ranks {
    Ranks* ranks;
    std::span<float> values;

    void operator()(Stream stream) const { ranks->all_reduce_sum(values, stream); }
  };

 public:
  overlapped_step() = default;
  /// A step that is open does not move: it is over.
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
  void require_closed(const char* call) const {
    if (is_open_)
      throw std::logic_error("slamb: " + std::string(call) +
                             " was called between begin_step() and finish_step(); finish the step first");
  }
  /// @throws std::logic_error if there is none
  void require_open(const char* call) const {
    if (!is_open_)
      throw std::logic_error("slamb: " + std::string(call) + " was called without a step; call begin_step() first");
  }

  /// Opens a step. The first one makes the buckets and the side stream.
  /// @throws std::system_error, or the backend's error, if there can be no side stream
  void open(const layout& tensors, std::uint64_t bucket_bytes, Stream stream) {
    if (buckets_ == nullptr) buckets_ = std::make_unique<gradient_buckets>(tensors, bucket_bytes);
    if (side_ == nullptr) side_ = std::make_unique<side_stream<Stream, sum_over_ranks>>(stream, buckets_->count());
    buckets_->reset();
    is_open_ = sends_ = true;
  }

  /// Some gradients more are ready.
  /// @throws std::invalid_argument for tensors that there are not, or that have been ready before; nothing has changed then
  void set_ready(std::size_t first, std::size_t count) { buckets_->set_ready(first, count); }
  void set_all_ready() { buckets_->set_all_ready(); }
  bool is_ready(std::size_t tensor) const { return is_open_ && buckets_->is_ready(tensor); }

  /// exchange(bucket) for each bucket that has become complete, until it says in this step, by false, that it exchanges none early.
  template <class Exchange>
  void exchange_ready(const Exchange& exchange) {
    while (sends_) {
      const std::optional<tensor_batch> bucket = buckets_->next();
      if (!bucket) return;
      sends_ = exchange(gradient_bucket{*bucket, false});
      if (sends_) sent_from_ = bucket;
    }
  }

  /// The bucket of all tensors that have not been exchanged.
  gradient_bucket rest(const layout& tensors) const noexcept {
    if (sent_from_) return {{0, sent_from_->first, {0, sent_from_->tiles.first}}, true};
    return {{0, tensors.segments().size(), {0, tensors.tiles().size()}}, true};
  }

  /// Begins to sum `values` [n] over ranks, beside the stream and after the sums before; they are left alone until `join`.
  void start_sum(std::span<float> values, Ranks& ranks) {
    has_started_ = true;
    side_->start({&ranks, values});
  }

  /// The stream goes on when what was started is done.
  /// @throws what a sum has thrown
  void join() {
    if (std::exchange(has_started_, false)) side_->join();
  }

  /// What was started and has not been waited for is waited for; whether it fails is no longer asked.
  void close() noexcept {
    try {
      join();
    } catch (...) {
      is_open_ = false;  // whatever ends the step has been thrown already
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
