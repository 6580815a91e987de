// A Device of cuda::stream_launcher (launcher.cuh's, or the emulator's) that shows its calls to a watcher. Plain C++: needs no nvcc.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kernel_bytes.hpp"
#include "kernel_name.hpp"

namespace bench {

/// One call of a Device.
struct device_call {
  enum kind { kernel, clear, upload, download, late_read };

  kind what = kernel;
  const std::string* name = nullptr;  ///< of the kernel or of the kind; valid until the program ends
  kernel_bytes bytes{};
  std::size_t first_tile = 0;  ///< first tile that it covers
  std::size_t last_tile = 0;   ///< end of the tiles that it covers; 0: the call does not work on tiles
};

/// A call, and its time on the device: from the end of all earlier work to its own end.
struct timed_call {
  device_call call;
  double seconds = 0.0;
};

/// The Device itself, with a `Watcher`. The watcher gets each call as watcher.run(device_call, body), and makes it by body().
template <class Device, class Watcher>
class watched_device : public Device {
 public:
  /// @param watcher  must outlive this
  watched_device(Device device, Watcher& watcher) : Device(std::move(device)), watcher_(&watcher) {}

  void clear(std::span<std::byte> memory) const {
    run<device_call::clear>("clear", [&] { Device::clear(memory); });
  }
  void upload(std::span<const std::byte> from, std::span<std::byte> to) const {
    run<device_call::upload>("upload", [&] { Device::upload(from, to); });
  }
  void download(std::span<const std::byte> from, std::span<std::byte> to) const {
    run<device_call::download>("download", [&] { Device::download(from, to); });
  }
  template <class T, class Late>
  void read_later(const T* from, Late& late) const {
    run<device_call::late_read>("late_read", [&] { Device::read_later(from, late); });
  }
  template <class Kernel>
  void launch(const Kernel& kernel, std::size_t work) const {
    device_call call{.name = &name_of<Kernel>(), .bytes = bytes_of_kernel<Kernel>::value};
    if constexpr (requires { kernel.tiles.first + kernel.tiles.last; }) {
      call.first_tile = kernel.tiles.first;
      call.last_tile = kernel.tiles.last;
    }
    watcher_->run(call, [&] { Device::launch(kernel, work); });
  }

 private:
  template <device_call::kind What, class Body>
  void run(const char* name, const Body& body) const {
    static const std::string kept(name);
    watcher_->run({.what = What, .name = &kept}, body);
  }

  Watcher* watcher_;
};

/// A Watcher that records the calls.
class call_list {
 public:
  template <class Body>
  void run(const device_call& call, const Body& body) {
    if (is_on) calls.push_back(call);
    body();
  }

  bool is_on = false;
  std::vector<device_call> calls{};
};

/// The number of calls of a kind.
inline std::size_t count_of(const std::vector<device_call>& calls, device_call::kind what) {
  std::size_t count = 0;
  for (const device_call& call : calls) count += call.what == what ? 1 : 0;
  return count;
}

}  // namespace bench
