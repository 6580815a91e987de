// What runs passes on the host: over tiles, on threads.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>

#include "slamb/backend/host/selected_tile_runner.hpp"
#include "slamb/backend/host/thread_pool.hpp"
#include "slamb/core/layout.hpp"

namespace slamb::host {
inline namespace SLAMB_SIMD_NAMESPACE {

/// Runs passes. Everything is done when a call returns.
class executor {
 public:
  /// @param threads  with the caller's; @param elements  of the model: small ones are not worth a second thread
  executor(unsigned threads, std::uint64_t elements) {
    constexpr std::uint64_t worth_a_thread = 1U << 16U;
    const auto useful = static_cast<unsigned>(std::min<std::uint64_t>(threads, elements / worth_a_thread + 1));
    pool_ = std::make_unique<thread_pool>(useful);
  }

  static host_stream stream() noexcept { return {}; }

  /// Sets memory to zero bytes.
  void clear(std::span<std::byte> memory) const {
    static constexpr std::size_t piece = std::size_t{1} << 20U;
    pool_->for_each(0, (memory.size() + piece - 1) / piece, 1, [memory](std::size_t i) {
      std::memset(memory.data() + i * piece, 0, std::min<std::size_t>(piece, memory.size() - i * piece));
    });
  }

  /// Copies a table into the backend's memory.
  template <class T>
  static void upload(std::span<const T> from, std::span<T> to) noexcept {
    std::copy(from.begin(), from.end(), to.begin());
  }

  /// One value of the backend's memory, for the few that decide what a step does.
  template <class T>
  static T read(const T* from) noexcept {
    return *from;
  }
  template <class T>
  static void write(T* to, T value) noexcept {
    *to = value;
  }

  /// The sum of `values`, in order.
  static double total(std::span<const double> values) noexcept {
    double sum = 0.0;
    for (const double value : values) sum += value;
    return sum;
  }

  /// Runs a pass over a range of tiles; `sums` [tiles][Pass::sums] receives the sums of each tile.
  /// @return whether everything the pass checked was finite
  template <class Pass>
  bool run(const Pass& pass, const model_view& view, tile_range tiles, double* sums = nullptr) const {
    return all_of(tiles, [&pass, &view, sums](std::size_t i) {
      return run_tile(pass, view, view.tiles[i], Pass::sums == 0 ? nullptr : sums + i * Pass::sums);
    });
  }

  /// The same for a selected pass.
  template <class Pass, class Selection>
  bool run(const Pass& pass, const model_view& view, const payload_view& payload, const Selection& selection,
           tile_range tiles, double* sums = nullptr) const {
    return all_of(tiles, [&](std::size_t i) {
      return run_selected_tile(pass, view, payload, selection, i, Pass::sums == 0 ? nullptr : sums + i * Pass::sums);
    });
  }

  /// Runs a pass over the payload planes in place of the arrays; adds to `sums` [tiles][Pass::sums].
  template <class Pass>
  void run_packed(const Pass& pass, const model_view& view, const payload_view& payload, tile_range tiles,
                  double* sums) const {
    all_of(tiles, [&](std::size_t i) {
      run_packed_tile(pass, view, payload, i, sums + i * Pass::sums);
      return true;
    });
  }

  /// Finds where each tile's selected elements lie in the payload: `tile_first` [tiles + 1].
  /// @return the payload's size
  template <class Selection>
  std::uint64_t place_payload(const model_view& view, const Selection& selection,
                              std::span<std::uint64_t> tile_first) const {
    const std::size_t tiles = tile_first.size() - 1;
    pool_->for_each(0, tiles, 64, [&](std::size_t i) {
      tile_first[i + 1] = count_selected(selection, view.segments[view.tiles[i].segment], view.tiles[i]);
    });
    tile_first[0] = 0;
    for (std::size_t i = 0; i < tiles; ++i) tile_first[i + 1] += tile_first[i];
    return tile_first[tiles];
  }

  /// Calls finish(segment, sums) with the sums of each tensor, its tiles added in order.
  template <int Sums, class Finish>
  void finish_segments(const layout& tensors, std::size_t first, std::size_t last, const double* tile_sums,
                       const Finish& finish) const {
    for (std::size_t segment = first; segment < last; ++segment) {
      std::array<double, Sums> total{};
      const tile_range tiles = tensors.tiles_of(segment);
      for (std::size_t i = tiles.first; i < tiles.last; ++i)
        for (std::size_t s = 0; s < Sums; ++s) total[s] += tile_sums[i * Sums + s];
      finish(segment, std::span<const double>(total));
    }
  }

 private:
  template <class Body>
  bool all_of(tile_range tiles, const Body& body) const {
    std::atomic<bool> all{true};
    constexpr std::size_t grain = 4;  // neighbours in memory, on one thread
    pool_->for_each(tiles.first, tiles.last, grain, [&all, &body](std::size_t i) {
      if (!body(i)) all.store(false, std::memory_order_relaxed);
    });
    return all.load(std::memory_order_relaxed);
  }

  std::unique_ptr<thread_pool> pool_;
};

}  // namespace SLAMB_SIMD_NAMESPACE
}  // namespace slamb::host
