// The host executor: runs passes over tiles, on threads.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>

#include "slamb/backend/host/detail/decoded_tile_runner.hpp"
#include "slamb/backend/host/detail/thread_pool.hpp"
#include "slamb/backend/host/detail/tile_runner.hpp"
#include "slamb/core/detail/process.hpp"
#include "slamb/core/detail/stream_waiter.hpp"
#include "slamb/detail/pass/layout.hpp"
#include "slamb/detail/pass/messages.hpp"

namespace slamb::detail::host {
inline namespace SLAMB_SIMD_NAMESPACE {

/// Runs passes. All work is done when a call returns. Passes do nothing if `model_view::skip` points to a value other than 0.
///
/// Functions that read the backend's memory take `ranks`, because other executors must first wait for collectives. This one
/// ignores it: on the host, collectives are done when they return.
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

  /// Copies a table into the backend's memory.
  template <class T>
  static void upload(std::span<const T> from, std::span<T> to) noexcept {
    std::copy(from.begin(), from.end(), to.begin());
  }

  /// @throws std::invalid_argument if `memory` is not the backend's, as far as it can be known; null is accepted
  static void require_memory(const void* /*memory*/, const char* /*what*/) noexcept {}

  /// Waits until all work is done.
  static void wait(const stream_waiter& /*ranks*/) noexcept {}

  /// Copies from the backend's memory to host memory.
  static void download(std::span<const std::byte> from, std::span<std::byte> to,
                       const stream_waiter& /*ranks*/) noexcept {
    std::copy(from.begin(), from.end(), to.begin());
  }

  /// Reads one value from the backend's memory.
  template <class T>
  static T read(const T* from, const stream_waiter& /*ranks*/) noexcept {
    return *from;
  }
  template <class T>
  static void write(T* to, T value) noexcept {
    *to = value;
  }

  /// The sum of `values`, in order.
  static double total(std::span<const double> values, const stream_waiter& /*ranks*/) noexcept {
    return sum_of(values);
  }

  /// Writes the sum of `values`, in order, to `to` in the backend's memory. `to` may be one of the values.
  static void add_up(std::span<const double> values, double* to) noexcept { *to = sum_of(values); }

  /// Σ x², in a fixed order.
  template <class Storage>
  static double sum_of_squares(std::span<const Storage> values, const stream_waiter& /*ranks*/) {
    double_sum sum;
    std::size_t i = 0;
    for (; i + lanes <= values.size(); i += lanes) sum.add_square(load_floats(values.data() + i));
    if (i < values.size()) sum.add_square(load_floats(values.data() + i, static_cast<int>(values.size() - i)));
    return sum.total();
  }

  /// Runs a pass over a range of tiles; `sums` [tiles][results_of<Pass>()] receives the sums and maxima of each tile.
  /// @param not_finite  becomes 1 if the pass finds a value that is not finite; may be null
  template <class Pass, class View>
  void run(const Pass& pass, const View& view, tile_range tiles, double* sums = nullptr,
           std::uint32_t* not_finite = nullptr) const {
    all_of(view, tiles, not_finite, [&pass, its = view_of<Pass, typename View::precision>(view), sums](std::size_t i) {
      return run_tile(pass, its, i, sums == nullptr ? nullptr : sums + i * results_of<Pass>());
    });
  }

  /// Runs a sparse pass (detail/pass/sparse_pass.hpp) over a range of tiles; `sums` is [tiles][Pass::sums].
  template <class Pass, class View, class Selection>
  void run(const Pass& pass, const View& view, const payload_view& payload, const Selection& selection,
           tile_range tiles, double* sums = nullptr, std::uint32_t* not_finite = nullptr) const {
    const view_of<Pass, typename View::precision> its(view);
    all_of(view, tiles, not_finite, [&](std::size_t i) {
      return run_selected_tile(pass, its, payload, selection, i, Pass::sums == 0 ? nullptr : sums + i * Pass::sums);
    });
  }

  /// Runs a pass over the payload planes instead of the arrays, and adds to `sums` [tiles][Pass::sums].
  template <class Pass>
  void run_packed(const Pass& pass, const model_view& view, const payload_view& payload, tile_range tiles,
                  double* sums) const {
    all_of(view, tiles, nullptr, [&](std::size_t i) {
      run_packed_tile(pass, view, payload, i, sums + i * Pass::sums);
      return true;
    });
  }

  /// Computes the offset of each tile's selected elements in the payload: `tile_offsets` [tiles + 1].
  /// @return the elements of the payload
  template <class Selection>
  std::uint64_t scan_payload_offsets(const model_view& view, const Selection& selection,
                                     std::span<std::uint64_t> tile_offsets, const stream_waiter& /*ranks*/) const {
    const std::size_t tiles = tile_offsets.size() - 1;
    pool_->for_each(0, tiles, 64, [&](std::size_t i) {
      tile_offsets[i + 1] = count_selected(selection, view.segments[view.tiles[i].segment], view.tiles[i]);
    });
    tile_offsets[0] = 0;
    for (std::size_t i = 0; i < tiles; ++i) tile_offsets[i + 1] += tile_offsets[i];
    return tile_offsets[tiles];
  }

  /// Calls finish(segment, results) for tensors first … last − 1, with their sums and maxima [Sums + Maxima]. Tiles are added in
  /// order. `finish` may run on a device, so it holds its data by value or as pointers to the backend's memory.
  template <int Sums, int Maxima = 0, class Finish>
  void finish_segments(const model_view& view, std::size_t first, std::size_t last, const double* of_tiles,
                       const Finish& finish) const {
    if (view.skip == nullptr || *view.skip == 0)
      visit_sums<Sums, Maxima>({view.first_tile, last + 1}, first, last, of_tiles, finish);
  }

  /// Calls visit(segment, results) in the same way, for any function, on the host. Waits for the results.
  /// @param first_tile  [tensors + 1] as model_view::first_tile, in host memory
  template <int Sums, int Maxima = 0, class Visit>
  void visit_segments(std::span<const std::size_t> first_tile, std::size_t first, std::size_t last,
                      const double* of_tiles, const stream_waiter& /*ranks*/, const Visit& visit) const {
    visit_sums<Sums, Maxima>(first_tile, first, last, of_tiles, visit);
  }

  using no_error_storage = no_storage;

  /// Sets the bits of active elements. An element is inactive if its row is 0 in `rows` [tensors], or if its `variance` is 0.
  /// `variance` may be null. Dense tensors have no bits.
  /// @param bits    [ranks][codes/16], zeroed; null: all elements are active
  /// @param counts  [tiles] receives the number of active elements
  template <class Variance>
  void mark_active(const model_view& view, const wire_view& wire, tile_range tiles, const row_mask* rows,
                   const Variance& variance, std::uint16_t* bits, std::uint64_t* counts) const {
    all_of(view, tiles, nullptr, [&](std::size_t i) {
      const tile& t = view.tiles[i];
      const wire_tile& w = wire.tiles[i];
      counts[i] =
          bits == nullptr || w.owner == wire_tile::dense
              ? t.count
              : mark_tile(view, t, rows[t.segment], from_tile(variance, view.segments[t.segment].state + t.first, i),
                          bits + (w.owner * wire.codes + w.code) / lanes);
      return true;
    });
  }

  /// Lets `compressor` choose elements by the values that `pass` forms, and sets their `bits` [state elements/16], zeroed before.
  /// @param not_finite  becomes 1 if a value is not finite; the choice is then meaningless
  template <class Pass, class Compressor, class View>
  void choose(const Pass& pass, const Compressor& compressor, const View& view, tile_range tiles, std::uint16_t* bits,
              std::uint32_t* not_finite = nullptr) const {
    const view_of<Pass, typename View::precision> its(view);
    all_of(view, tiles, not_finite, [&](std::size_t i) { return choose_in_tile(pass, compressor, its, i, bits); });
  }

  /// Encodes this rank's signal; `statistic` [tiles] receives the sum or maximum from which scales are computed.
  /// @param not_finite  becomes 1 if the pass finds a value that is not finite; may be null
  template <encode_mode Work, class Storage, class Pass, class Quantizer, class View>
  void send(const Pass& pass, const Quantizer& quantizer, const View& view, const wire_view& wire, tile_range tiles,
            double* statistic, std::uint32_t* not_finite = nullptr) const {
    const view_of<Pass, typename View::precision> its(view);
    all_of(view, tiles, not_finite,
           [&](std::size_t i) { return send_tile<Work, Storage>(pass, quantizer, its, wire, i, statistic + i); });
  }

  /// Computes the scales that tiles share, and writes them to the messages.
  /// @param statistic    [tiles] of `send` or `average`
  /// @param counts       [tiles] numbers of active elements
  /// @param skip         as model_view::skip
  /// @param write_flags  invoked at the end
  template <class Quantizer>
  void finish_scales(const scale_table& table, const double* statistic, const std::uint64_t* counts,
                     std::byte* messages, const std::uint32_t* skip,
                     const write_overflow_flags& write_flags = {}) const {
    if (skip != nullptr && *skip != 0) return;
    for (std::size_t g = 0; g < table.group_count; ++g) {
      const scale_entry& group = table.groups[g];
      double total = 0.0;
      std::uint64_t count = 0;
      for (std::uint64_t i = group.first_tile; i < group.last_tile; ++i) {
        const double own = statistic[table.tiles[i]];
        if (own < 0.0) continue;  // left out
        total = Quantizer::scale == segment_scale::max ? std::max(total, own) : total + own;
        count += counts[table.tiles[i]];
      }
      const float scale = scale_of<Quantizer::scale>(total, count);
      for (std::uint64_t i = group.first_place; i < group.last_place; ++i)
        store_scale(messages, table.places[i], scale);
    }
    write_flags();
  }

  /// Encodes the mean of the ranks' signals over this rank's chunk, which consists of the tiles `own`.
  /// @param read_flags  invoked first
  template <encode_mode Work, class Storage, class Quantizer>
  void average(const Quantizer& quantizer, const model_view& view, const wire_view& wire,
               std::span<const std::size_t> own, double* statistic, const read_overflow_flags& read_flags = {}) const {
    read_flags();
    all_of(view, {0, own.size()}, nullptr, [&](std::size_t i) {
      average_tile<Work, Storage>(quantizer, view, wire, own[i], statistic + own[i]);
      return true;
    });
  }

  /// Runs a pass with the mean of the ranks' signals. Stores the worker error and the server error, if they are kept.
  template <class Storage, class ServerStorage, class Pass, class Quantizer, class View>
  void receive(const Pass& pass, const Quantizer& quantizer, const View& view, const wire_view& wire, tile_range tiles,
               double* results) const {
    const view_of<Pass, typename View::precision> its(view);
    all_of(view, tiles, nullptr, [&](std::size_t i) {
      double* const of_tile = results == nullptr ? nullptr : results + i * results_of<Pass>();
      receive_tile<Storage>(pass, quantizer, its, wire, i, of_tile);
      if constexpr (error_array<ServerStorage>::exists)
        if (wire.tiles[i].owner == wire.rank)
          keep_server_error<ServerStorage>(server_quantizer(quantizer), view, wire, i);
      return true;
    });
  }

  /// Computes `squares` [tiles][2]: ‖x‖² and ‖x − x̂‖² of this rank's signal x and the value x̂ of its codes.
  template <class Storage, class Pass, class Quantizer, class View>
  void measure(const Pass& pass, const Quantizer& quantizer, const View& view, const wire_view& wire, tile_range tiles,
               double* squares) const {
    const view_of<Pass, typename View::precision> its(view);
    all_of(view, tiles, nullptr, [&](std::size_t i) {
      measure_tile<Storage>(pass, quantizer, its, wire, i, squares + 2 * i);
      return true;
    });
  }

 private:
  static double sum_of(std::span<const double> values) noexcept {
    double sum = 0.0;
    for (const double value : values) sum += value;
    return sum;
  }

  template <int Sums, int Maxima, class Visit>
  static void visit_sums(std::span<const std::size_t> first_tile, std::size_t first, std::size_t last,
                         const double* of_tiles, const Visit& visit) {
    constexpr std::size_t results = Sums + Maxima;
    for (std::size_t segment = first; segment < last; ++segment) {
      std::array<double, results == 0 ? 1 : results> total{};
      for (std::size_t i = first_tile[segment]; i < first_tile[segment + 1]; ++i) {
        for (std::size_t s = 0; s < Sums; ++s) total[s] += of_tiles[i * results + s];
        for (std::size_t s = Sums; s < results; ++s) total[s] = std::max(total[s], of_tiles[i * results + s]);
      }
      visit(segment, static_cast<const double*>(total.data()));
    }
  }

  // @param variance  of the tile
  template <class Variance>
  static std::uint64_t mark_tile(const model_view& view, const tile& t, const row_mask& mask, const Variance& variance,
                                 std::uint16_t* bits) {
    const segment& s = view.segments[t.segment];
    const std::uint64_t row_size = mask.count == 0 ? 1 : s.size / mask.count;
    std::uint64_t active = 0;
    for (std::uint32_t first = 0; first < t.count; first += lanes) {
      std::uint32_t group = 0;
      for (std::uint32_t i = first; i < std::min(t.count, first + lanes); ++i)
        if ((mask.count == 0 || mask.rows[(t.first + i) / row_size] != 0) &&
            !(exists(variance) && is_zero(variance, i)))
          group |= 1U << (i - first);
      bits[first / lanes] = static_cast<std::uint16_t>(group);
      active += count_of(group);
    }
    return active;
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
