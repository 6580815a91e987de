// When ranks compare their parameters, and when the host looks what a device has seen of that.
#pragma once

#include <bit>
#include <cstdint>
#include <memory>

#include "slamb/backend/host/late_read.hpp"

namespace slamb {

/// Of one optimizer.
template <class Stream>
class comparison {
 public:
  /// @param every  steps; 0: parameters are never compared
  explicit comparison(std::uint64_t every) noexcept : every_(every) {}

  /// Whether nothing has been compared since construction, or since `compare_next`.
  bool is_first() const noexcept { return is_first_; }
  void end_first() noexcept { is_first_ = false; }
  void compare_next() noexcept { is_first_ = true; }

  bool compares_parameters() const noexcept { return every_ > 0; }
  /// Whether step t is one of those in which parameters are compared.
  bool is_due_at(std::uint64_t t) const noexcept { return every_ > 0 && t % every_ == 0; }

  /// Before a step of a backend that runs behind the host: whether ranks have been seen to differ, as it was some steps ago, so
  /// that the device need not be waited for. All ranks ask before the same steps, and get the same answer.
  template <class Base>
  bool has_parted(const Base& base) {
    constexpr std::uint64_t interval = 64;
    if (++asked_; !std::has_single_bit(asked_) && asked_ % interval != 0) return false;
    bool has = false;
    if (late_ == nullptr) {
      late_ = std::make_unique<late_type>(base.executor.stream());
    } else {
      base.ranks.base().wait(late_->stream());
      has = late_->finish() != 0;
    }
    base.executor.read_later(&base.record()->parted, *late_);
    return has;
  }

 private:
  using late_type = late_read<Stream, std::uint32_t>;

  std::uint64_t every_;
  bool is_first_ = true;
  std::uint64_t asked_ = 0;
  std::unique_ptr<late_type> late_;
};

}  // namespace slamb
