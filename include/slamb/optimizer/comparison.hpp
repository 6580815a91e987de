// When ranks compare their parameters, and when the host looks what a device has seen of that.
#pragma once

#include <bit>
#include <concepts>
#include <cstdint>
#include <memory>
#include <type_traits>

#include "slamb/backend/host/late_read.hpp"
#include "slamb/core/step_record.hpp"

namespace slamb {

/// Of one optimizer. It counts the steps that have ended, taken or not: all ranks end the same ones, so that all look before the
/// same steps.
template <class Stream>
class comparison {
 public:
  /// @param every  steps; 0: parameters are never compared
  explicit comparison(std::uint64_t every) noexcept : every_(every) {}

  /// Whether nothing has been compared since construction, or since `compare_next`.
  bool is_first() const noexcept { return is_first_; }
  void end_first() noexcept { is_first_ = false; }
  void compare_next() noexcept {
    is_first_ = true;
    ended_ = looked_before_ = 0;
  }
  void end_step() noexcept { ++ended_; }

  bool compares_parameters() const noexcept { return every_ > 0; }
  /// Whether the next step is one of those in which parameters are compared.
  bool is_due() const noexcept { return every_ > 0 && (ended_ + 1) % every_ == 0; }

  /// Before a step of a backend that runs behind the host: whether ranks had been seen to differ when it was last asked, some
  /// steps ago, so that the device need not be waited for: before steps 4, 8, 16, 32, 64, 128, 192, ….
  template <class Base>
  bool has_parted(const Base& base) {
    constexpr std::uint64_t interval = 64;
    const std::uint64_t step = ended_ + 1;
    if (step < 4 || step == looked_before_ || !(std::has_single_bit(step) || step % interval == 0)) return false;
    looked_before_ = step;
    if constexpr (std::same_as<late_type, nothing_late>) {
      return base.read(&base.record()->parted) != 0;
    } else {
      if (is_asked_) {
        base.ranks.base().wait(late_->stream());
        is_asked_ = false;
        if (late_->finish() != 0) return true;
      }
      if (late_ == nullptr) late_ = std::make_unique<late_type>(base.executor.stream());
      base.executor.invoke(keep_parted{base.record()});
      base.executor.read_later(&base.record()->parted_kept, *late_);
      is_asked_ = true;
      return false;
    }
  }
  /// What has been asked is of no interest any more.
  void forget() noexcept { is_asked_ = false; }

 private:
  struct nothing_late {};
  // A backend of which nothing can be read later is waited for.
  static auto late_read_of() {
    if constexpr (requires { sizeof(late_read<Stream, std::uint32_t>); })
      return std::type_identity<late_read<Stream, std::uint32_t>>();
    else
      return std::type_identity<nothing_late>();
  }
  using late_type = typename decltype(late_read_of())::type;

  std::uint64_t every_;
  bool is_first_ = true;
  bool is_asked_ = false;
  std::uint64_t ended_ = 0;          // since it was first
  std::uint64_t looked_before_ = 0;  // the step before which has_parted looked last
  std::unique_ptr<late_type> late_;
};

}  // namespace slamb
