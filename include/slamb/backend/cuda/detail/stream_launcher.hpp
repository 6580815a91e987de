// The launcher of CUDA: enqueues kernels. It waits only to read a value from the device. It waits through the
// communicator, which detects dead peers, because a collective with a dead peer keeps the stream busy for ever.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>

#include "slamb/core/detail/stream_waiter.hpp"
#include "slamb/detail/kernel/segments.hpp"
#include "slamb/detail/pass/step_state.hpp"
#include "slamb/detail/runtime/late_read.hpp"

namespace slamb::detail::cuda {

/// Runs passes on a `Device`, which launches kernels and copies memory in order: `launcher` or `emulator`. A call returns before its
/// work is done.
template <class Device>
class stream_launcher {
 public:
  /// Only the device knows the results of a step.
  static constexpr bool is_synchronous = false;

  explicit stream_launcher(Device device) : device_(std::move(device)) {}

  auto stream() const noexcept { return device_.stream(); }
  /// A guard that a thread must hold while it calls the other functions, if the device needs one.
  auto enter() const noexcept requires(requires(const Device& device) { device.enter(); }) { return device_.enter(); }
  const Device& device() const noexcept { return device_; }

  /// True if work is captured into a graph instead of executed.
  bool is_capturing() const { return device_.is_capturing(); }

  void clear(std::span<std::byte> memory) const { device_.clear(memory); }
  /// @throws std::logic_error while steps are captured
  void upload(std::span<const std::byte> from, std::span<std::byte> to) const {
    require_no_capture("copies tables to the device; first take a step that is not captured");
    device_.upload(from, to);
  }
  void require_memory(const void* memory, const char* what) const {
    if (memory != nullptr) device_.require_memory(memory, what);
  }
  /// Waits for all work on the stream.
  /// @throws std::logic_error while steps are captured; the exceptions of `ranks.wait`, for example if a peer has failed
  void wait(const stream_waiter& ranks) const {
    require_no_capture("waits for the device's work");
    ranks.wait(device_.stream());
  }
  /// Waits.
  /// @throws as `wait`
  void download(std::span<const std::byte> from, std::span<std::byte> to, const stream_waiter& ranks) const {
    wait(ranks);
    device_.download(from, to);
  }

  /// Reads one value after all earlier work, without waiting: `late.finish()` returns it.
  template <class Stream, class T>
  void read_later(const T* from, late_read<Stream, T>& late) const {
    device_.read_later(from, late);
  }

  template <class... Functions>
  void invoke(const Functions&... functions) const {
    auto all = all_in_order(functions...);
    launch(invoke_functions<decltype(all)>{all});
  }
  static void invoke(nothing_to_do /*function*/) noexcept {}

  template <class Kernel>
  void launch(const Kernel& kernel) const {
    if (const std::size_t work = kernel.work(); work > 0) device_.launch(kernel, work);
  }

 private:
  void require_no_capture(const char* why) const {
    if (is_capturing())
      throw std::logic_error(std::string("slamb: this call cannot be captured into a graph, because it ") + why);
  }

  Device device_;
};

}  // namespace slamb::detail::cuda
