// A Communicator for N ranks in one process, one thread each, on one GPU or on several GPUs that can access each other's memory.
// Threads meet on the host and exchange pointers to their buffers. Streams wait for each other by events, so the host never
// waits for a device.
#pragma once

#include <cstddef>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "slamb/backend/cuda/detail/launcher.cuh"
#include "slamb/communicator/cuda/sum_ranks_kernel.hpp"
#include "slamb/communicator/thread_communicator.hpp"
#include "slamb/core/concepts.hpp"
#include "slamb/core/cuda_error.hpp"
#include "slamb/core/detail/gpu_runtime.hpp"
#include "slamb/core/error.hpp"
#include "slamb/detail/runtime/cuda_event.hpp"
#include "slamb/detail/runtime/cuda_stream.hpp"

namespace slamb {

/// One rank of a thread_group whose buffers are in device memory, for cuda_backend:
///
///     slamb::run_ranks(4, [&](slamb::thread_communicator ranks) {
///       slamb::lamb<slamb::cuda_thread_communicator, slamb::cuda_backend> optimizer(
///           parameters, options, slamb::cuda_thread_communicator(std::move(ranks)), {.stream = stream});
///
/// All ranks construct one at the same time, each in its thread and with its own device current. The same device must be current
/// in each call. All ranks call the same collectives in the same order. A call returns when all ranks have enqueued their part.
/// Work enqueued on the stream after the call may read and write the buffers. Buffers of different ranks do not overlap. If a
/// rank fails, work that its peers have enqueued may still access its buffers: free them only after all streams have finished.
///
/// Construction and every collective
/// @throws std::invalid_argument for a wrong root or sizes that do not fit
/// @throws cuda_error with the error of the runtime
/// @throws communicator_error on every rank, if ranks call different collectives or with different sizes, or a peer has
///   thrown, has left or does not come within `thread_options::timeout`; at construction also if devices cannot access
///   each other's memory. A rank that has thrown has left its group, and its later calls throw the first reason.
///
/// *Stream*: asynchronous. Not capturable, because streams of several threads wait for each other.
/// *Cost*: the host's threads meet twice; no device memory. Each rank sums 1/N of an all_reduce_sum, in place.
/// *Determinism*: as thread_communicator. Terms are added in rank order, floats in double precision: the same bits on all ranks.
class cuda_thread_communicator {
 public:
  /// Meets the other ranks, and enables devices to access each other's memory, including their default memory pools.
  explicit cuda_thread_communicator(thread_communicator host)
      : host_(std::move(host)), rank_(host_->rank()), size_(host_->size()) {
    guarded([this] {
      detail::check_cuda(cudaGetDevice(&device_), "cudaGetDevice");
      own_ = std::make_shared<const rank_events>();
      struct introduction {
        const std::shared_ptr<const rank_events>* events;
        int device;
      };
      const introduction mine{&own_, device_};
      for (const introduction& peer : gathered(mine)) {
        peers_.push_back(*peer.events);
        if (peer.device != device_) reach(peer.device);
      }
      gathered(std::byte{});  // waits until all ranks have copied this rank's pointer
    });
  }

  int rank() const noexcept { return rank_; }
  int size() const noexcept { return size_; }

  /// `values` [n] become their sum over ranks, ((x₀ + x₁) + x₂) + …; integers wrap around.
  template <detail::summable T>
  void all_reduce_sum(std::span<T> values, cudaStream_t stream) {
    const std::size_t n = values.size();
    run<T>({.kind = collective::all_reduce, .count = n}, values, values, stream, [&](const posts& all) {
      if (size_ == 1) return;
      detail::cuda::sum_ranks_kernel<T> kernel{.ranks = size_};
      for (std::size_t i = 0; i < all.size(); ++i) kernel.buffers[i] = static_cast<T*>(all[i].out);
      const detail::cuda::rank_share share = detail::cuda::share_of_rank(n, rank_, size_, kernel.piece);
      kernel.first = share.first;
      kernel.last = share.last;
      detail::cuda::launcher(stream).launch(kernel, kernel.work());
    });
  }

  /// `values` [n] become the values of rank `root`.
  template <class T>
  requires std::is_trivially_copyable_v<T>
  void broadcast(std::span<T> values, int root, cudaStream_t stream) {
    const collective_call call{.kind = collective::broadcast, .count = values.size(), .root = root};
    run<T>(
        call, values, values, stream,
        [&](const posts& all) {
          detail::cuda::copy_async(values.data(), all[static_cast<std::size_t>(root)].in, values.size_bytes(), stream);
        },
        [&] { return detail::broadcast_fault(root, size_); });
  }

  /// `all` [size()·n] becomes every rank's `mine` [n], in rank order. `mine` may be this rank's chunk of `all`.
  template <class T>
  requires std::is_trivially_copyable_v<T>
  void all_gather(std::span<const T> mine, std::span<T> all, cudaStream_t stream) {
    const collective_call call{.kind = collective::all_gather, .count = mine.size()};
    run<T>(
        call, mine, all, stream,
        [&](const posts& ranks) {
          for (std::size_t i = 0; i < ranks.size(); ++i)
            detail::cuda::copy_async(all.data() + i * mine.size(), ranks[i].in, mine.size_bytes(), stream);
        },
        [&] { return detail::all_gather_fault(mine.size(), all.size(), size_); });
  }

  /// Chunk j of `receive` [size()·n] becomes this rank's chunk of rank j's `send` [size()·n]; the two do not overlap.
  template <class T>
  requires std::is_trivially_copyable_v<T>
  void all_to_all(std::span<const T> send, std::span<T> receive, cudaStream_t stream) {
    const std::size_t chunk = send.size() / static_cast<std::size_t>(size_);
    const collective_call call{.kind = collective::all_to_all, .count = send.size()};
    run<T>(
        call, send, receive, stream,
        [&](const posts& all) {
          for (std::size_t i = 0; i < all.size(); ++i)
            detail::cuda::copy_async(receive.data() + i * chunk,
                                     static_cast<const T*>(all[i].in) + static_cast<std::size_t>(rank_) * chunk,
                                     chunk * sizeof(T), stream);
        },
        [&] { return detail::all_to_all_fault(send.size(), receive.size(), size_); });
  }

  /// Makes the group fail, for a rank that cannot continue. Every later call of any rank throws `reason`. Does nothing if this
  /// rank has thrown.
  void abort(const std::string& reason) {
    if (host_) host_->abort(reason);
  }

 private:
  using collective_call = detail::collective_call;
  using posts = std::vector<detail::rendezvous_post>;  // [size]

  /// The events of a rank, for which its peers wait. They share ownership, so that the events outlive a rank that has left.
  struct rank_events {
    detail::cuda::event ready;  ///< work enqueued before the collective is done: the rank's buffers are ready
    detail::cuda::event done;   ///< the rank no longer accesses its peers' buffers
  };

  static constexpr auto no_fault = [] { return std::string(); };

  /// Returns every rank's `mine`, in rank order.
  template <class T>
  std::vector<T> gathered(const T& mine) {
    std::vector<T> all(static_cast<std::size_t>(size_), mine);
    host_->all_gather(std::span<const T>(&mine, 1), std::span<T>(all), host_stream{});
    return all;
  }

  /// Calls body(). If it throws, this rank leaves the group, so that its peers fail instead of waiting for it.
  template <class Body>
  void guarded(const Body& body) {
    if (!host_) throw communicator_error(reason_);
    try {
      body();
    } catch (const std::exception& failure) {
      reason_ = failure.what();
      host_.reset();
      throw;
    }
  }

  /// Makes one collective: this rank's stream waits until its peers' buffers are ready, `work` enqueues this rank's part, and
  /// the stream then waits for the peers' parts.
  template <class T, class Work, class Fault = decltype(no_fault)>
  void run(collective_call call, std::span<const T> in, std::span<T> out, cudaStream_t stream, const Work& work,
           const Fault& fault = no_fault) {
    guarded([&] {
      if (const std::string wrong = fault(); !wrong.empty()) throw std::invalid_argument("slamb: " + wrong);
      call.family = detail::element_family<T>();
      call.element_size = sizeof(T);
      own_->ready.record(stream);
      const posts all = gathered(detail::rendezvous_post{call, in.data(), out.data()});
      require_same(all);
      for (const auto& peer : peers_)
        if (peer != own_) peer->ready.hold_back(stream);
      work(all);
      own_->done.record(stream);
      // Waits until all ranks have recorded their events, because waiting for an event that is not recorded has no effect.
      gathered(std::byte{});
      for (const auto& peer : peers_)
        if (peer != own_) peer->done.hold_back(stream);
    });
  }

  static void require_same(const posts& all) {
    bool same = true;
    std::string text;
    for (std::size_t i = 0; i < all.size(); ++i) {
      same = same && all[i].call == all[0].call;
      text += (i == 0 ? "rank " : "; rank ") + std::to_string(i) + " called " + detail::to_text(all[i].call);
    }
    if (!same) throw communicator_error("slamb: ranks called different collectives: " + text);
  }

  /// Enables this rank's device to access the memory of device `peer`, and `peer` to access this device's default memory pool.
  void reach(int peer) const {
    int can = 0;
    detail::check_cuda(cudaDeviceCanAccessPeer(&can, device_, peer), "cudaDeviceCanAccessPeer");
    if (can == 0)
      throw communicator_error(
          "slamb: a cuda_thread_communicator needs GPUs that can access each other's memory, but GPU " +
          std::to_string(device_) + " cannot access the memory of GPU " + std::to_string(peer) +
          "; use an nccl_communicator");
    const cudaError_t enabled = cudaDeviceEnablePeerAccess(peer, 0);
    if (enabled == cudaErrorPeerAccessAlreadyEnabled)
      static_cast<void>(cudaGetLastError());
    else
      detail::check_cuda(enabled, "cudaDeviceEnablePeerAccess");
    cudaMemPool_t pool = nullptr;
    detail::check_cuda(cudaDeviceGetDefaultMemPool(&pool, device_), "cudaDeviceGetDefaultMemPool");
    cudaMemAccessDesc access{};
    access.location.type = cudaMemLocationTypeDevice;
    access.location.id = peer;
    access.flags = cudaMemAccessFlagsProtReadWrite;
    detail::check_cuda(cudaMemPoolSetAccess(pool, &access, 1), "cudaMemPoolSetAccess");
  }

  std::optional<thread_communicator> host_;  // none once this rank has thrown
  int rank_ = 0;
  int size_ = 1;
  int device_ = 0;
  std::shared_ptr<const rank_events> own_;
  std::vector<std::shared_ptr<const rank_events>> peers_;  // [size]
  std::string reason_;                                     // the message of the exception that it has thrown
};

static_assert(capability::has_all_reduce_sum<cuda_thread_communicator, float, cudaStream_t>);
static_assert(capability::has_all_gather<cuda_thread_communicator, float, cudaStream_t>);
static_assert(capability::has_all_to_all<cuda_thread_communicator, float, cudaStream_t>);
static_assert(capability::has_broadcast<cuda_thread_communicator, float, cudaStream_t>);

}  // namespace slamb
