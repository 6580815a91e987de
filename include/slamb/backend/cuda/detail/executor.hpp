// The CUDA executor: enqueues the kernels of passes. It waits only to read a value from the device. It waits through the
// communicator, which detects dead peers, because a collective with a dead peer keeps the stream busy for ever.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "slamb/backend/cuda/detail/active_kernel.hpp"
#include "slamb/backend/cuda/detail/choose_kernel.hpp"
#include "slamb/backend/cuda/detail/decoded_kernels.hpp"
#include "slamb/backend/cuda/detail/pass_kernel.hpp"
#include "slamb/backend/cuda/detail/payload_offset_kernels.hpp"
#include "slamb/backend/cuda/detail/quantized_kernels.hpp"
#include "slamb/backend/cuda/detail/scale_kernels.hpp"
#include "slamb/backend/cuda/detail/segment_kernels.hpp"
#include "slamb/backend/cuda/detail/selected_kernel.hpp"
#include "slamb/core/bfloat16.hpp"
#include "slamb/core/detail/stream_waiter.hpp"
#include "slamb/detail/pass/layout.hpp"
#include "slamb/detail/pass/messages.hpp"
#include "slamb/detail/pass/step_state.hpp"
#include "slamb/detail/runtime/late_read.hpp"

namespace slamb::detail::cuda {

/// Runs passes on a `Device`, which launches kernels and copies memory in order: `launcher` or `emulator`. host::executor has the
/// same functions and documents them, but here a call returns before its work is done.
template <class Device>
class executor {
 public:
  /// Only the device knows the results of a step.
  static constexpr bool is_synchronous = false;
  using no_error_storage = no_storage;

  explicit executor(Device device) : device_(std::move(device)) {}

  auto stream() const noexcept { return device_.stream(); }
  /// A guard that a thread must hold while it calls the other functions, if the device needs one.
  auto enter() const noexcept requires(requires(const Device& device) { device.enter(); }) { return device_.enter(); }
  const Device& device() const noexcept { return device_; }

  /// True if work is captured into a graph instead of executed.
  bool is_capturing() const { return device_.is_capturing(); }

  void clear(std::span<std::byte> memory) const { device_.clear(memory); }
  /// @throws std::logic_error while steps are captured
  template <class T>
  void upload(std::span<const T> from, std::span<T> to) const {
    require_no_capture("copies tables to the device; first take a step that is not captured");
    device_.upload(std::as_bytes(from), std::as_writable_bytes(to).first(from.size_bytes()));
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

  /// Returns one value. Waits.
  template <class T>
  T read(const T* from, const stream_waiter& ranks) const {
    T value;
    download(std::as_bytes(std::span(from, 1)), std::as_writable_bytes(std::span(&value, 1)), ranks);
    return value;
  }
  /// Reads one value after all earlier work, without waiting: `late.finish()` returns it.
  template <class Stream, class T>
  void read_later(const T* from, late_read<Stream, T>& late) const {
    device_.read_later(from, late);
  }
  template <class T>
  void write(T* to, T value) const {
    upload(std::span<const T>(&value, 1), std::span<T>(to, 1));
  }

  template <class... Functions>
  void invoke(const Functions&... functions) const {
    auto all = all_in_order(functions...);
    launch(invoke_kernel<decltype(all)>{all});
  }
  static void invoke(nothing_to_do /*function*/) noexcept {}

  /// Waits.
  double total(std::span<const double> values, const stream_waiter& ranks) const {
    double sum = 0.0;
    for (const double value : downloaded(values, ranks)) sum += value;
    return sum;
  }
  void add_up(std::span<const double> values, double* to) const {
    launch(total_kernel{values.data(), values.size(), to});
  }

  /// Waits, copies the values to the host, and sums there.
  template <class Storage>
  double sum_of_squares(std::span<const Storage> values, const stream_waiter& ranks) const {
    constexpr std::size_t piece = std::size_t{1} << 20U;
    double sum = 0.0;
    for (std::size_t first = 0; first < values.size(); first += piece)
      for (const Storage x : downloaded(values.subspan(first, std::min(piece, values.size() - first)), ranks)) {
        const auto value = static_cast<double>(float_of(x));
        sum += value * value;
      }
    return sum;
  }

  template <class Pass, class View>
  void run(const Pass& pass, const View& view, tile_range tiles, double* sums = nullptr,
           std::uint32_t* not_finite = nullptr) const {
    static_assert(!Pass::writes::template has<array::gradient>,
                  "slamb: a pass must not write gradients, because they belong to the user");
    launch(pass_kernel<Pass, typename View::precision>{pass, view, tiles, sums, not_finite});
  }
  template <class Pass, class View, class Selection>
  void run(const Pass& pass, const View& view, const payload_view& payload, const Selection& selection,
           tile_range tiles, double* sums = nullptr, std::uint32_t* not_finite = nullptr) const {
    launch(selected_kernel<Pass, Selection, typename View::precision>{pass, view, payload, selection, tiles, sums,
                                                                      not_finite});
  }
  template <class Pass>
  void run_packed(const Pass& pass, const model_view& view, const payload_view& payload, tile_range tiles,
                  double* sums) const {
    launch(packed_kernel<Pass>{pass, view, payload, tiles, sums});
  }

  /// Waits, because it returns the payload's size.
  template <class Selection>
  std::uint64_t scan_payload_offsets(const model_view& view, const Selection& selection,
                                     std::span<std::uint64_t> tile_offsets, const stream_waiter& ranks) const {
    scan_payload_offsets_in(view, selection, tile_offsets, std::numeric_limits<std::uint64_t>::max(), nullptr);
    return read(&tile_offsets.back(), ranks);
  }

  /// Computes the offsets without waiting.
  /// @param capacity  elements that the payload may have
  /// @param too_many  becomes 1 if the payload has more; may be null
  template <class Selection>
  void scan_payload_offsets_in(const model_view& view, const Selection& selection,
                               std::span<std::uint64_t> tile_offsets, std::uint64_t capacity,
                               std::uint32_t* too_many) const {
    const std::size_t tiles = tile_offsets.size() - 1;
    if constexpr (capability::has_selected_before<resolved_t<Selection>>) {
      launch(place_kernel<Selection>{view, selection, tiles, tile_offsets.data(), capacity, too_many});
    } else {
      launch(count_selected_kernel<Selection>{view, selection, tiles, tile_offsets.data()});
      launch(place_tiles_kernel{tiles, tile_offsets.data(), view.skip, capacity, too_many});
    }
  }

  template <int Sums, int Maxima = 0, class Finish>
  void finish_segments(const model_view& view, std::size_t first, std::size_t last, const double* of_tiles,
                       const Finish& finish) const {
    launch(segment_kernel<Sums, Maxima, Finish>{finish, of_tiles, view.first_tile, first, last, view.skip});
  }
  /// Waits.
  template <int Sums, int Maxima = 0, class Visit>
  void visit_segments(std::span<const std::size_t> first_tile, std::size_t first, std::size_t last,
                      const double* of_tiles, const stream_waiter& ranks, const Visit& visit) const {
    constexpr std::size_t results = Sums + Maxima;
    const std::vector<double> all = downloaded(std::span(of_tiles, first_tile.back() * results), ranks);
    for (std::size_t tensor = first; tensor < last; ++tensor) {
      std::array<double, results> total{};
      for (std::size_t i = first_tile[tensor]; i < first_tile[tensor + 1]; ++i)
        for (std::size_t k = 0; k < results; ++k) {
          const double own = all[i * results + k];
          total[k] = k < Sums ? total[k] + own : std::max(total[k], own);
        }
      visit(tensor, static_cast<const double*>(total.data()));
    }
  }

  template <class Variance>
  void mark_active(const model_view& view, const wire_view& wire, tile_range tiles, const row_mask* rows,
                   const Variance& variance, std::uint16_t* bits, std::uint64_t* counts) const {
    launch(mark_active_kernel<Variance>{view, wire, tiles, rows, variance, bits, counts});
  }
  template <class Pass, class Compressor, class View>
  void choose(const Pass& pass, const Compressor& compressor, const View& view, tile_range tiles, std::uint16_t* bits,
              std::uint32_t* not_finite = nullptr) const {
    launch(choose_kernel<Pass, Compressor, typename View::precision>{pass, compressor, view, tiles, bits, not_finite});
  }

  template <encode_mode Work, class Storage, class Pass, class Quantizer, class View>
  void send(const Pass& pass, const Quantizer& quantizer, const View& view, const wire_view& wire, tile_range tiles,
            double* statistic, std::uint32_t* not_finite = nullptr) const {
    launch(send_kernel<Work, Storage, Pass, Quantizer, typename View::precision>{pass, quantizer, view, wire, tiles,
                                                                                 statistic, not_finite});
  }
  template <class Quantizer>
  void finish_scales(const scale_table& table, const double* statistic, const std::uint64_t* counts,
                     std::byte* messages, const std::uint32_t* skip,
                     const write_overflow_flags& write_flags = {}) const {
    launch(scale_kernel<Quantizer>{table, statistic, counts, messages, skip, write_flags});
  }
  template <encode_mode Work, class Storage, class Quantizer>
  void average(const Quantizer& quantizer, const model_view& view, const wire_view& wire,
               std::span<const std::size_t> own, double* statistic, const read_overflow_flags& read_flags = {}) const {
    launch(
        average_kernel<Work, Storage, Quantizer>{quantizer, view, wire, own.data(), own.size(), statistic, read_flags});
  }
  template <class Storage, class ServerStorage, class Pass, class Quantizer, class View>
  void receive(const Pass& pass, const Quantizer& quantizer, const View& view, const wire_view& wire, tile_range tiles,
               double* results) const {
    launch(receive_kernel<Storage, ServerStorage, Pass, Quantizer, typename View::precision>{pass, quantizer, view,
                                                                                             wire, tiles, results});
  }
  template <class Storage, class Pass, class Quantizer, class View>
  void measure(const Pass& pass, const Quantizer& quantizer, const View& view, const wire_view& wire, tile_range tiles,
               double* squares) const {
    launch(measure_kernel<Storage, Pass, Quantizer, typename View::precision>{pass, quantizer, view, wire, tiles,
                                                                              squares});
  }

 private:
  void require_no_capture(const char* why) const {
    if (is_capturing())
      throw std::logic_error(std::string("slamb: this call cannot be captured into a graph, because it ") + why);
  }

  static float float_of(float x) noexcept { return x; }
  static float float_of(bfloat16 x) noexcept { return to_float(x); }

  template <class Kernel>
  void launch(const Kernel& kernel) const {
    if (const std::size_t work = kernel.work(); work > 0) device_.launch(kernel, work);
  }

  template <class T>
  std::vector<T> downloaded(std::span<const T> values, const stream_waiter& ranks) const {
    std::vector<T> all(values.size());
    download(std::as_bytes(values), std::as_writable_bytes(std::span(all)), ranks);
    return all;
  }

  Device device_;
};

}  // namespace slamb::detail::cuda
