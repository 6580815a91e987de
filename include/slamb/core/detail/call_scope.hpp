// A change to the calling thread for the time of a call, made by a backend.
#pragma once

namespace slamb::detail {

/// Restores at its end a state of this thread that a backend has changed, if any. On a GPU this is the current device:
/// detail/runtime/cuda_device_guard.hpp.
class call_scope {
 public:
  call_scope() = default;
  /// @param restore  restore(before) is called at the end
  call_scope(int before, void (*restore)(int before)) noexcept : before_(before), restore_(restore) {}
  call_scope(const call_scope&) = delete;
  call_scope& operator=(const call_scope&) = delete;
  ~call_scope() {
    if (restore_ != nullptr) restore_(before_);
  }

 private:
  int before_ = 0;
  void (*restore_)(int before) = nullptr;
};

}  // namespace slamb::detail
