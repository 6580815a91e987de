#pragma once

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

#include "slamb/optimizer/detail/overlap.hpp"

namespace slamb::detail {

SLAMB_DECL gradient_buckets::gradient_buckets(const layout& tensors, std::uint64_t bytes) {
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

SLAMB_DECL void gradient_buckets::reset() {
  std::fill(is_ready_.begin(), is_ready_.end(), std::uint8_t{0});
  next_ = 0;
  waits_for_ = is_ready_.size();
}

SLAMB_DECL void gradient_buckets::set_ready(std::size_t first, std::size_t count) {
  const std::size_t tensors = is_ready_.size();
  if (first > tensors || count > tensors - first)
    throw std::invalid_argument("slamb: gradient_ready() was given " + std::to_string(count) + " tensors from tensor " +
                                std::to_string(first) + " on, but there are " + std::to_string(tensors));
  for (std::size_t i = first; i < first + count; ++i)
    if (is_ready_[i] != 0)
      throw std::invalid_argument("slamb: gradient_ready() was given tensor " + std::to_string(i) +
                                  " for the second time in this step");
  std::fill_n(is_ready_.begin() + static_cast<std::ptrdiff_t>(first), count, std::uint8_t{1});
}

SLAMB_DECL void gradient_buckets::set_all_ready() { std::fill(is_ready_.begin(), is_ready_.end(), std::uint8_t{1}); }

SLAMB_DECL std::optional<tensor_batch> gradient_buckets::next() {
  if (next_ == buckets_.size()) return std::nullopt;
  while (waits_for_ > buckets_[next_].first && is_ready_[waits_for_ - 1] != 0) --waits_for_;
  if (waits_for_ > buckets_[next_].first) return std::nullopt;
  return buckets_[next_++];
}

SLAMB_DECL void overlapped_step::throw_open(std::initializer_list<sentence_part> call) {
  throw_sentence<std::logic_error>(call, {" was called between begin_step() and finish_step(); finish the step first"});
}

SLAMB_DECL void overlapped_step::require_open(const char* call) const {
  if (!is_open_) throw_sentence<std::logic_error>({call, " was called without a step; call begin_step() first"});
}

SLAMB_DECL void overlapped_step::open(const layout& tensors, std::uint64_t bucket_bytes, const machine& on,
                                      counted_collectives& ranks) {
  if (buckets_ == nullptr) buckets_ = std::make_unique<gradient_buckets>(tensors, bucket_bytes);
  if (side_ == nullptr) side_ = on.make_side_sums(ranks, buckets_->count());
  buckets_->reset();
  is_open_ = sends_ = true;
}

SLAMB_DECL void overlapped_step::exchange_ready(function_ref<bool(const gradient_bucket&)> exchange) {
  while (sends_) {
    const std::optional<tensor_batch> bucket = buckets_->next();
    if (!bucket) return;
    sends_ = exchange(gradient_bucket{*bucket, false});
    if (sends_) sent_from_ = bucket;
  }
}

SLAMB_DECL gradient_bucket overlapped_step::rest(const layout& tensors) const noexcept {
  if (sent_from_) return {{0, sent_from_->first, {0, sent_from_->tiles.first}}, true};
  return {{0, tensors.segments().size(), {0, tensors.tile_count()}}, true};
}

SLAMB_DECL void overlapped_step::start_sum(std::span<float> values) {
  has_started_ = true;
  side_->start(values);
}

SLAMB_DECL void overlapped_step::join() {
  if (std::exchange(has_started_, false)) side_->join();
}

SLAMB_DECL void overlapped_step::close() noexcept {
  try {
    join();
  } catch (...) {
    is_open_ = false;  // the error that ended the step has been thrown already
  }
  is_open_ = false;
  sent_from_.reset();
}

}  // namespace slamb::detail
