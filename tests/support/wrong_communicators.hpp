// Communicators with the mistakes that an author of one may make: each is correct except for one thing.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "slamb/communicator/thread_communicator.hpp"
#include "slamb/core/concepts.hpp"

namespace test_support {

/// The single mistake.
enum class mistake {
  none,
  sum_is_mean,
  sum_is_own,             ///< nothing is summed
  sum_lacks_last_rank,    ///< on rank 0
  sum_lacks_last_if_odd,  ///< the last element is not summed if their number is odd
  sum_lacks_last_if_many,
  sum_turns_nan_to_zero,
  sum_turns_infinity_to_largest,
  sum_in_bfloat16,          ///< rounded to 8 significant bits
  sum_in_float16,           ///< rounded to 11, and infinite from 65520 on
  sum_is_clamped,           ///< to ±60000
  sum_has_bits_of_its_own,  ///< on the last rank: the next float
  sum_writes_past_end,
  sum_is_stale,  ///< a second sum of the same size returns the first
  gather_reversed,
  gather_lacks_last_byte_if_odd,
  gather_writes_its_source,
  gather_keeps_its_own_alone,
  gather_is_stale,         ///< a second gather of the same size returns the first
  exchange_keeps_its_own,  ///< `receive` becomes `send`
  exchange_swaps_ranks,    ///< swaps the first two
  exchange_writes_before_start,
  exchange_writes_late,    ///< writes to the buffer of an earlier call of 384 bytes
  exchange_of_one_thread,  ///< does nothing on threads other than the one that constructed it
  broadcast_from_rank_0,
  broadcast_lacks_last_from_rank_0,  ///< of 1000 elements
  broadcast_not_to_last_rank,
};

/// The communicator of threads with one mistake. It sums floats, sends bytes, and broadcasts both.
class wrong_communicator {
 public:
  wrong_communicator(slamb::thread_communicator base, mistake what) : base_(std::move(base)), what_(what) {}

  int rank() const { return base_.rank(); }
  int size() const { return base_.size(); }

  void all_reduce_sum(std::span<float> values, slamb::host_stream stream) {
    const std::vector<float> own(values.begin(), values.end());
    base_.all_reduce_sum(values, stream);
    const bool is_last = rank() == size() - 1;
    const std::size_t n = values.size();
    if (what_ == mistake::sum_is_mean)
      for (float& x : values) x /= static_cast<float>(size());
    if (what_ == mistake::sum_is_own) std::ranges::copy(own, values.begin());
    if (what_ == mistake::sum_lacks_last_rank) subtract_last(own, values, stream);
    if (what_ == mistake::sum_lacks_last_if_odd && n % 2 == 1) values[n - 1] = own[n - 1];
    if (what_ == mistake::sum_lacks_last_if_many && n > many) values[n - 1] = own[n - 1];
    for (float& x : values) {
      if (what_ == mistake::sum_turns_nan_to_zero && std::isnan(x)) x = 0.0F;
      if (what_ == mistake::sum_turns_infinity_to_largest && std::isinf(x)) x = std::copysign(3e38F, x);
      if (what_ == mistake::sum_in_bfloat16) x = rounded_to(8, x);
      if (what_ == mistake::sum_in_float16)
        x = std::fabs(x) < 65520.0F ? rounded_to(11, x) : x * std::numeric_limits<float>::infinity();
      if (what_ == mistake::sum_is_clamped && !std::isnan(x)) x = std::clamp(x, -60000.0F, 60000.0F);
      if (what_ == mistake::sum_has_bits_of_its_own && is_last && std::isfinite(x) && x != std::floor(x))
        x = std::nextafter(x, 0.0F);
    }
    // Callers in the tests leave room after the payload.
    if (what_ == mistake::sum_writes_past_end && n == 1000) *(values.data() + n) = 0.0F;
    if (what_ == mistake::sum_is_stale) {
      if (first_sum_.size() != n) first_sum_.assign(values.begin(), values.end());
      std::ranges::copy(first_sum_, values.begin());
    }
  }

  void all_gather(std::span<const std::byte> mine, std::span<std::byte> all, slamb::host_stream stream) {
    base_.all_gather(mine, all, stream);
    const std::size_t n = mine.size();
    const auto ranks = static_cast<std::size_t>(size());
    if (what_ == mistake::gather_reversed)
      for (std::size_t a = 0, b = ranks - 1; a < b; ++a, --b)
        std::ranges::swap_ranges(all.subspan(a * n, n), all.subspan(b * n, n));
    if (what_ == mistake::gather_lacks_last_byte_if_odd && n % 2 == 1) all[all.size() - 1] = std::byte{0};
    if (what_ == mistake::gather_writes_its_source && n > 0) *const_cast<std::byte*>(mine.data()) = std::byte{0};
    if (what_ == mistake::gather_keeps_its_own_alone)
      for (std::size_t r = 0; r < ranks; ++r)
        if (static_cast<int>(r) != rank()) std::ranges::fill(all.subspan(r * n, n), std::byte{0});
    if (what_ == mistake::gather_is_stale) {
      if (first_gather_.size() != all.size()) first_gather_.assign(all.begin(), all.end());
      std::ranges::copy(first_gather_, all.begin());
    }
  }

  void all_to_all(std::span<const std::byte> send, std::span<std::byte> receive, slamb::host_stream stream) {
    const std::vector<std::byte> before(receive.begin(), receive.end());
    base_.all_to_all(send, receive, stream);
    const std::size_t n = send.size() / static_cast<std::size_t>(size());
    if (what_ == mistake::exchange_keeps_its_own) std::ranges::copy(send, receive.begin());
    if (what_ == mistake::exchange_swaps_ranks && size() > 1)
      std::ranges::swap_ranges(receive.first(n), receive.subspan(n, n));
    if (what_ == mistake::exchange_writes_before_start && n > 0) *(receive.data() - 1) = std::byte{0};
    if (what_ == mistake::exchange_writes_late && n == 384) {  // there are three such calls in a row
      if (exchanges_++ % 3 != 0) last_received_[0] = std::byte{0};
      last_received_ = receive;
    }
    if (what_ == mistake::exchange_of_one_thread && std::this_thread::get_id() != home_)
      std::ranges::copy(before, receive.begin());
  }

  template <class T>
  void broadcast(std::span<T> values, int root, slamb::host_stream stream) {
    const std::vector<T> own(values.begin(), values.end());
    base_.broadcast(values, what_ == mistake::broadcast_from_rank_0 ? 0 : root, stream);
    if (what_ == mistake::broadcast_lacks_last_from_rank_0 && root == 0 && rank() != 0 && values.size() == 1000)
      values.back() = T{};
    if (what_ == mistake::broadcast_not_to_last_rank && rank() == size() - 1) std::ranges::copy(own, values.begin());
  }

 private:
  static constexpr std::size_t many = 500;

  /// The nearest number with `bits` significant bits. Infinity and NaN are unchanged.
  static float rounded_to(int bits, float x) {
    int exponent = 0;
    const float fraction = std::frexp(x, &exponent);
    return std::isfinite(x) ? std::ldexp(std::nearbyint(std::ldexp(fraction, bits)), exponent - bits) : x;
  }

  /// On rank 0: the sum without the last rank. On other ranks: unchanged.
  void subtract_last(const std::vector<float>& own, std::span<float> values, slamb::host_stream stream) {
    std::vector<float> last(own.size(), 0.0F);
    if (rank() == size() - 1) last = own;
    base_.all_reduce_sum(std::span<float>(last), stream);
    if (rank() != 0) return;
    for (std::size_t i = 0; i < values.size(); ++i)
      if (std::isfinite(last[i])) values[i] -= last[i];
  }

  slamb::thread_communicator base_;
  mistake what_;
  std::thread::id home_ = std::this_thread::get_id();
  std::vector<float> first_sum_;
  std::vector<std::byte> first_gather_;
  std::span<std::byte> last_received_;
  int exchanges_ = 0;
};

static_assert(slamb::capability::has_all_reduce_sum<wrong_communicator, float>);
static_assert(slamb::capability::has_all_gather<wrong_communicator, std::byte>);
static_assert(slamb::capability::has_all_to_all<wrong_communicator, std::byte>);
static_assert(slamb::capability::has_broadcast<wrong_communicator, std::byte>);

}  // namespace test_support
