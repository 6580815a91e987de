// Objects that belong to one process. A process that is forked from it has a copy of their memory, but neither their threads nor
// their connections to other ranks and to GPUs.
#pragma once

#include <atomic>
#include <cstdint>

#if __has_include(<unistd.h>)
#include <unistd.h>
#endif

namespace slamb::detail {

/// The number of this process; 0 on systems that cannot fork.
inline std::int64_t this_process() noexcept {
#if __has_include(<unistd.h>)
  return static_cast<std::int64_t>(::getpid());
#else
  return 0;
#endif
}

/// The base of an object that only the process that made it can use and destroy: its destructor would join threads that another
/// process does not have. *Cost* of `is_of_this_process`: a call of the system.
class bound_to_process {
 public:
  bool is_of_this_process() const noexcept { return process_ == this_process(); }

  /// Leaves the object as it is, for ever. It stays reachable, so that leak checkers do not report it.
  void abandon() noexcept {
    next_ = abandoned_.load(std::memory_order_relaxed);
    while (!abandoned_.compare_exchange_weak(next_, this, std::memory_order_release, std::memory_order_relaxed)) {
    }
  }

 protected:
  bound_to_process() = default;
  ~bound_to_process() = default;

 private:
  static inline std::atomic<bound_to_process*> abandoned_{nullptr};  // all of them, a list

  std::int64_t process_ = this_process();
  bound_to_process* next_ = nullptr;
};

/// The deleter of an object that is bound to a process: abandons it in another one.
struct destroy_in_own_process {
  template <class T>
  void operator()(T* object) const noexcept {
    if (object->is_of_this_process())
      delete object;
    else
      object->abandon();
  }
};

}  // namespace slamb::detail
