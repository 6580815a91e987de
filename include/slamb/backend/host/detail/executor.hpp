// The host executor: runs kernels on threads.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>

#include "slamb/backend/host/detail/decoded_tile_runner.hpp"
#include "slamb/backend/host/detail/thread_pool.hpp"
#include "slamb/backend/host/detail/tile_runner.hpp"
#include "slamb/backend/host/detail/worker.hpp"
#include "slamb/core/detail/process.hpp"
#include "slamb/core/detail/stream_waiter.hpp"
#include "slamb/detail/kernel/choose.hpp"
#include "slamb/detail/kernel/kernel.hpp"
#include "slamb/detail/kernel/run_pass.hpp"
#include "slamb/detail/kernel/run_selected.hpp"
#include "slamb/detail/kernel/two_phase.hpp"
#include "slamb/detail/pass/layout.hpp"
#include "slamb/detail/pass/messages.hpp"

namespace slamb::detail::host {
inline namespace SLAMB_SIMD_NAMESPACE {

/// Runs kernels. All work is done when a call returns.
class executor {
 public:
  /// The results of a step can be read without waiting.
  static constexpr bool is_synchronous = true;

  /// @param threads   including the calling thread
  /// @param elements  elements of the model; a small model uses fewer threads
  executor(unsigned threads, std::uint64_t elements) {
    constexpr std::uint64_t worth_a_thread = 1U << 16U;
    const auto useful = static_cast<unsigned>(std::min<std::uint64_t>(threads, elements / worth_a_thread + 1));
    pool_.reset(new thread_pool(useful));
  }

  static host_stream stream() noexcept { return {}; }

  /// Runs a kernel: small ones on this thread, others with a team for each piece of work.
  template <class Kernel>
  void launch(const Kernel& kernel) const {
    if constexpr (requires { run(kernel); }) {
      run(kernel);
    } else if constexpr (is_small<Kernel>) {
      worker alone(0, 1);
      kernel(alone);
    } else {
      constexpr std::size_t grain = 4;  // neighbours in memory, on one thread
      pool_->for_each(0, kernel.work(), grain, [&kernel, count = kernel.work()](std::size_t i) {
        worker its(i, count);
        kernel(its);
      });
    }
  }

  /// Calls each function, in order, after all earlier work.
  template <class... Functions>
  static void invoke(const Functions&... functions) {
    (functions(), ...);
  }

  /// Sets all bytes to 0.
  void clear(std::span<std::byte> memory) const {
    static constexpr std::size_t piece = std::size_t{1} << 20U;
    pool_->for_each(0, (memory.size() + piece - 1) / piece, 1, [memory](std::size_t i) {
      std::memset(memory.data() + i * piece, 0, std::min<std::size_t>(piece, memory.size() - i * piece));
    });
  }

  static void upload(std::span<const std::byte> from, std::span<std::byte> to) noexcept {
    std::copy(from.begin(), from.end(), to.begin());
  }
  static void download(std::span<const std::byte> from, std::span<std::byte> to,
                       const stream_waiter& /*ranks*/) noexcept {
    std::copy(from.begin(), from.end(), to.begin());
  }
  /// Waits until all work is done.
  static void wait(const stream_waiter& /*ranks*/) noexcept {}

  /// @throws std::invalid_argument if `memory` is not the backend's, as far as it can be known; null is accepted
  static void require_memory(const void* /*memory*/, const char* /*what*/) noexcept {}

 private:
  template <class Pass, class Precision>
  void run(const run_pass<Pass, Precision>& k) const {
    all_of(k.view, k.tiles, k.not_finite, [&k](std::size_t i) {
      return run_tile(k.pass, k.view, i, k.sums == nullptr ? nullptr : k.sums + i * results_of<Pass>());
    });
  }
  template <class Pass, class Selection, class Precision>
  void run(const run_selected<Pass, Selection, Precision>& k) const {
    all_of(k.view, k.tiles, k.not_finite, [&k](std::size_t i) {
      return run_selected_tile(k.pass, k.view, k.payload, k.selection, i,
                               Pass::sums == 0 ? nullptr : k.sums + i * Pass::sums);
    });
  }
  template <class Pass>
  void run(const run_packed<Pass>& k) const {
    all_of(k.view, k.tiles, nullptr, [&k](std::size_t i) {
      run_packed_tile(k.pass, k.view, k.payload, i, k.sums + i * Pass::sums);
      return true;
    });
  }
  template <class Selection>
  void run(const place_payload<Selection>& k) const {
    pool_->for_each(0, k.tiles, 64, [&k](std::size_t i) {
      k.tile_offsets[i + 1] = count_selected(k.selection, k.view.segments[k.view.tiles[i].segment], k.view.tiles[i]);
    });
    k.tile_offsets[0] = 0;
    for (std::size_t i = 0; i < k.tiles; ++i) k.tile_offsets[i + 1] += k.tile_offsets[i];
    if (k.too_many != nullptr && k.tile_offsets[k.tiles] > k.capacity) *k.too_many = 1;
  }
  template <class Pass, class Compressor, class Precision>
  void run(const choose_elements<Pass, Compressor, Precision>& k) const {
    all_of(k.view, k.tiles, k.not_finite,
           [&k](std::size_t i) { return choose_in_tile(k.pass, k.compressor, k.view, i, k.bits); });
  }
  template <encode_mode Work, class Storage, class Pass, class Quantizer, class Precision>
  void run(const send_signal<Work, Storage, Pass, Quantizer, Precision>& k) const {
    all_of(k.view, k.tiles, k.not_finite, [&k](std::size_t i) {
      return send_tile<Work, Storage>(k.pass, k.quantizer, k.view, k.wire, i, k.statistic + i);
    });
  }
  template <encode_mode Work, class Storage, class Quantizers>
  void run(const average_signals<Work, Storage, Quantizers>& k) const {
    k.read_flags();
    all_of(k.view, {0, k.own.size()}, nullptr, [&k](std::size_t i) {
      average_tile<Work, Storage>(k.quantizers, k.view, k.wire, k.own[i], k.statistic + k.own[i]);
      return true;
    });
  }
  template <class Storage, class ServerStorage, class Pass, class Quantizers, class Precision>
  void run(const receive_mean<Storage, ServerStorage, Pass, Quantizers, Precision>& k) const {
    all_of(k.view, k.tiles, nullptr, [&k](std::size_t i) {
      receive_tile<Storage>(k.pass, k.quantizers, k.view, k.wire, i,
                            k.sums == nullptr ? nullptr : k.sums + i * results_of<Pass>());
      if constexpr (error_array<ServerStorage>::exists)
        if (k.wire.tiles[i].owner == k.wire.rank)
          keep_server_error<ServerStorage>(server_quantizer(k.quantizers), k.view, k.wire, i);
      return true;
    });
  }
  template <class Storage, class Pass, class Quantizer, class Precision>
  void run(const measure_error<Storage, Pass, Quantizer, Precision>& k) const {
    all_of(k.view, k.tiles, nullptr, [&k](std::size_t i) {
      measure_tile<Storage>(k.pass, k.quantizer, k.view, k.wire, i, k.squares + 2 * i);
      return true;
    });
  }

  // Calls body(i) for all tiles. It returns true if all checked values are finite.
  template <class Body>
  void all_of(const model_view& view, tile_range tiles, std::uint32_t* not_finite, const Body& body) const {
    run_tiles(
        view, tiles, not_finite,
        [](const void* context, std::size_t i) { return (*static_cast<const Body*>(context))(i); }, &body);
  }

  // Type-erased, so that all bodies share this code.
  void run_tiles(const model_view& view, tile_range tiles, std::uint32_t* not_finite,
                 bool (*body)(const void* context, std::size_t tile), const void* context) const {
    if (view.skip != nullptr && *view.skip != 0) return;
    std::atomic<bool> all{true};
    constexpr std::size_t grain = 4;  // neighbours in memory, on one thread
    pool_->for_each(tiles.first, tiles.last, grain, [&all, body, context](std::size_t i) {
      if (!body(context, i)) all.store(false, std::memory_order_relaxed);
    });
    if (not_finite != nullptr && !all.load(std::memory_order_relaxed)) *not_finite = 1;
  }

  std::unique_ptr<thread_pool, destroy_in_own_process> pool_;
};

}  // namespace SLAMB_SIMD_NAMESPACE
}  // namespace slamb::detail::host
