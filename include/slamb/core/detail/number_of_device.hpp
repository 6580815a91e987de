// A number that is found once for each device.
#pragma once

#include <atomic>
#include <cstddef>

namespace slamb::detail {

/// A number > 0 for each device, such as the blocks of a kernel that a multiprocessor holds: unlike devices have unlike ones. For
/// static objects: it needs no construction. May be called by several threads, of which each may find the number.
class number_of_device {
 public:
  static constexpr std::size_t devices = 64;  ///< those with larger numbers search each time

  /// @param find  find(): the number of the device
  template <class Find>
  int operator()(int device, const Find& find) {
    const auto place = static_cast<std::size_t>(device);
    if (place >= devices) return find();
    int number = found_[place].load(std::memory_order_relaxed);
    if (number == 0) found_[place].store(number = find(), std::memory_order_relaxed);
    return number;
  }

 private:
  std::atomic<int> found_[devices] = {};  // 0: not found yet
};

}  // namespace slamb::detail
