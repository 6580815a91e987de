// A step in parts, which exchanges buckets of gradients while others are still computed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "slamb/core/config.hpp"
#include "slamb/core/detail/collectives.hpp"
#include "slamb/core/detail/function_ref.hpp"
#include "slamb/core/detail/sentence.hpp"
#include "slamb/detail/pass/layout.hpp"
#include "slamb/detail/pass/machine.hpp"

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
  gradient_buckets(const layout& tensors, std::uint64_t bytes);

  void reset();

  /// @throws std::invalid_argument for tensors out of range, or marked ready before; nothing has changed then
  void set_ready(std::size_t first, std::size_t count);
  void set_all_ready();
  bool is_ready(std::size_t tensor) const { return tensor < is_ready_.size() && is_ready_[tensor] != 0; }

  /// The next bucket, if its gradients are ready. Returns each bucket once.
  std::optional<tensor_batch> next();

  std::size_t count() const noexcept { return buckets_.size(); }

 private:
  std::vector<tensor_batch> buckets_;   // without the bucket of the first tensors
  std::vector<std::uint8_t> is_ready_;  // [tensors] 0 or 1
  std::size_t next_ = 0;
  std::size_t waits_for_ = 0;  // all tensors from this one on are ready
};

/// The open step, if there is one, and the sums over ranks that it has started.
class overlapped_step {
 public:
  /// @throws std::logic_error if there is an open step
  void require_closed(const char* call) const {
    if (is_open_) throw_open({call});
  }
  /// The same for a call that is described by several parts.
  template <class... Parts>
  void require_closed_for(const char* call, const Parts&... more) const {
    if (is_open_) throw_open({call, more...});
  }
  /// @throws std::logic_error if there is no open step
  void require_open(const char* call) const;

  /// Opens a step. The first call makes the buckets and the side stream.
  /// @throws std::system_error, or the backend's error, if the side stream cannot be made
  void open(const layout& tensors, std::uint64_t bucket_bytes, const machine& on, counted_collectives& ranks);

  /// Marks gradients as ready.
  /// @throws std::invalid_argument for tensors that do not exist, or have been ready before; nothing has changed then
  void set_ready(std::size_t first, std::size_t count) { buckets_->set_ready(first, count); }
  void set_all_ready() { buckets_->set_all_ready(); }
  bool is_ready(std::size_t tensor) const { return is_open_ && buckets_->is_ready(tensor); }

  /// Calls exchange(bucket) for each bucket that is complete, until it returns false, which means that this step exchanges
  /// nothing early.
  void exchange_ready(function_ref<bool(const gradient_bucket&)> exchange);

  /// The bucket of all tensors that are not exchanged yet.
  gradient_bucket rest(const layout& tensors) const noexcept;

  /// Starts to sum `values` [n] over ranks, on the side stream and after the earlier sums. They must not be touched until `join`.
  void start_sum(std::span<float> values);

  /// Makes the stream wait for the started sums.
  /// @throws the exception of a sum
  void join();

  /// Waits for sums still in flight. Errors are discarded: the step has already failed or been abandoned.
  void close() noexcept;

 private:
  [[noreturn]] static void throw_open(std::initializer_list<sentence_part> call);

  std::unique_ptr<gradient_buckets> buckets_;
  std::unique_ptr<side_sums> side_;
  std::optional<tensor_batch> sent_from_;
  bool is_open_ = false;
  bool sends_ = false;
  bool has_started_ = false;
};

}  // namespace slamb::detail
