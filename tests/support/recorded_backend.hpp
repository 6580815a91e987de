// A stand-in for a stream that is captured into a CUDA graph. It emulates kernels at once, or records them and emulates them on
// replay. On request it lists the calls.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "../../bench/gpu/watched_device.hpp"
#include "slamb/backend/cuda/emulated_backend.hpp"
#include "slamb/communicator/thread_communicator.hpp"
#include "slamb/core/error.hpp"
#include "slamb/slamb.hpp"

namespace test_support {

/// Recorded work, in order: kernels with their arguments, collectives with their memory.
class recording {
 public:
  void begin() {
    actions_.clear();
    is_on_ = true;
  }
  void end() noexcept { is_on_ = false; }
  bool is_on() const noexcept { return is_on_; }

  std::size_t waits = 0;            ///< waits of the communicator
  bool peers_are_gone = false;      ///< true: its next wait throws
  bool has_collectives = false;     ///< true: there were collectives since its last wait
  std::size_t reads = 0;            ///< reads by the host
  std::size_t unwatched_reads = 0;  ///< reads that waited for collectives without the communicator
  bench::call_list calls;           ///< calls of the device, in order
  std::size_t size() const noexcept { return actions_.size(); }

  /// Does `action` now, or at each replay if a capture is under way.
  template <class Action>
  void take(Action action) {
    if (is_on_)
      actions_.emplace_back(std::move(action));
    else
      action();
  }
  void replay() const {
    for (const auto& action : actions_) action();
  }

 private:
  bool is_on_ = false;
  std::vector<std::function<void()>> actions_;
};

/// The emulator, on a stream that can be captured.
class recording_emulator {
 public:
  explicit recording_emulator(recording& to) : to_(&to) {}

  static slamb::host_stream stream() noexcept { return {}; }
  bool is_capturing() const noexcept { return to_->is_on(); }
  static void require_memory(const void* /*memory*/, const char* /*what*/) noexcept {}
  void clear(std::span<std::byte> memory) const {
    to_->take([memory] { slamb::detail::cuda::emulator::clear(memory); });
  }
  static void upload(std::span<const std::byte> from, std::span<std::byte> to) noexcept {
    slamb::detail::cuda::emulator::upload(from, to);
  }
  void download(std::span<const std::byte> from, std::span<std::byte> to) const {
    ++to_->reads;
    if (to_->has_collectives) ++to_->unwatched_reads;
    upload(from, to);
  }
  template <class T>
  static void read_later(const T* from, slamb::detail::late_read<slamb::host_stream, T>& late) noexcept {
    late.start(from);
  }
  template <class Kernel>
  void launch(const Kernel& kernel, std::size_t work) const {
    to_->take([kernel, work] { slamb::detail::cuda::emulator(2).launch(kernel, work); });
  }

 private:
  recording* to_;
};

struct recorded_backend {
  recording* to = nullptr;
  std::size_t cache_bytes = 1U << 20U;
  slamb::allocator memory = slamb::detail::host_allocator();

  using stream_type = slamb::host_stream;
  using launcher_type =
      slamb::detail::cuda::stream_launcher<bench::watched_device<recording_emulator, bench::call_list>>;

  void validate() const {}
  launcher_type make_launcher(std::uint64_t /*elements*/) const {
    return launcher_type({recording_emulator(*to), to->calls});
  }
};

/// The communicator of threads, on the same stream.
class recorded_communicator {
 public:
  recorded_communicator(slamb::thread_communicator base, recording& to) : base_(std::move(base)), to_(&to) {}

  int rank() const noexcept { return base_.rank(); }
  int size() const noexcept { return base_.size(); }

  void all_reduce_sum(std::span<float> values, slamb::host_stream stream) {
    take([this, values, stream] { base_.all_reduce_sum(values, stream); });
  }
  void all_to_all(std::span<const std::byte> send, std::span<std::byte> receive, slamb::host_stream stream) {
    take([=, this] { base_.all_to_all(send, receive, stream); });
  }
  void all_gather(std::span<const std::byte> mine, std::span<std::byte> all, slamb::host_stream stream) {
    take([=, this] { base_.all_gather(mine, all, stream); });
  }
  void broadcast(std::span<std::byte> values, int root, slamb::host_stream stream) {
    take([=, this] { base_.broadcast(values, root, stream); });
  }

  void wait(slamb::host_stream /*stream*/) {
    ++to_->waits;
    if (to_->peers_are_gone) throw slamb::communicator_error("the peers are gone");
    to_->has_collectives = false;
  }

 private:
  template <class Collective>
  void take(const Collective& collective) {
    to_->has_collectives = true;
    to_->take(collective);
  }

  slamb::thread_communicator base_;
  recording* to_;
};

}  // namespace test_support
