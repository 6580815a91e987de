// What a backend needs of the calling thread for the time of a call, whatever the backend.
#pragma once

namespace slamb::detail {

/// Has changed something in this thread, and restores it at its end; or has changed nothing. On a GPU it is the current device:
/// detail/runtime/cuda_device_guard.hpp.
class call_scope {
 public:
  call_scope() = default;
  /// @param restore  restore(before) at the end
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
