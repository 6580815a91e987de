// Two equal copies of the memory of one rank's compressed exchange: one for the host backend, one for emulated kernels. All of
// it is poisoned and guarded, so equal bytes show that a kernel wrote everything it has to and nothing else.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "slamb/core/bfloat16.hpp"
#include "slamb/core/parameter.hpp"
#include "slamb/detail/exchange/two_phase.hpp"
#include "slamb/detail/pass/layout.hpp"
#include "slamb/detail/pass/messages.hpp"
#include "slamb/detail/pass/quantized_pass.hpp"
#include "slamb/optimizer/detail/adam_passes.hpp"
#include "slamb/optimizer/detail/one_bit_passes.hpp"
#include "slamb/optimizer/detail/zero_one_passes.hpp"
#include "support/generate.hpp"

namespace test_support {

/// Arrays with guards around each. Memory that was never written has bytes 0xFF, which as floats are NaN.
class guarded_arrays {
 public:
  /// @param shift  elements by which the array is off a multiple of 64 bytes
  template <class T>
  T* take(const std::string& name, std::uint64_t count, unsigned shift = 0) {
    const std::size_t bytes = 2 * guard + (count + shift) * sizeof(T);
    arrays_.push_back({name, bytes,
                       std::unique_ptr<std::byte, release>(
                           static_cast<std::byte*>(::operator new (bytes, std::align_val_t{guard})))});
    std::memset(arrays_.back().first.get(), 0xFF, bytes);
    return reinterpret_cast<T*>(arrays_.back().first.get() + guard) + shift;
  }

  /// The name of the first array that differs, or "".
  std::string difference(const guarded_arrays& other) const {
    if (arrays_.size() != other.arrays_.size()) return "the number of arrays";
    for (std::size_t i = 0; i < arrays_.size(); ++i)
      if (arrays_[i].bytes != other.arrays_[i].bytes ||
          std::memcmp(arrays_[i].first.get(), other.arrays_[i].first.get(), arrays_[i].bytes) != 0)
        return arrays_[i].name;
    return "";
  }
  std::vector<std::byte> bytes() const {
    std::vector<std::byte> all;
    for (const array& a : arrays_) all.insert(all.end(), a.first.get(), a.first.get() + a.bytes);
    return all;
  }

 private:
  static constexpr std::size_t guard = 64;
  struct release {
    void operator()(std::byte* p) const { ::operator delete (p, std::align_val_t{guard}); }
  };
  struct array {
    std::string name;
    std::size_t bytes;
    std::unique_ptr<std::byte, release> first;
  };
  std::vector<array> arrays_;
};

struct quantized_tensor {
  std::size_t size = 0;
  bool compressed = true;
  std::vector<std::uint8_t> rows{};
};

/// The tensors of an exchange, and their placement in memory.
struct quantized_setup {
  std::vector<quantized_tensor> tensors;
  int ranks = 1;
  int rank = 0;
  unsigned shift = 0;       ///< elements by which arrays are misaligned
  bool mixed = false;       ///< each array by another number
  bool zero_aware = false;  ///< a third of the variances are 0, and their elements announce signals; not all with rows
  std::uint64_t t = 1;
};

/// The tables that passes need beside the state.
struct quantized_tables {
  slamb::detail::adam_scalars scalars{.one_minus_beta1 = 0.1F,
                                      .one_minus_beta2 = 0.01F,
                                      .momentum_correction = 1.3F,
                                      .deviation_correction = 1.1F,
                                      .epsilon = 1e-3F,
                                      .gradient_scale = 0.7F};
  std::vector<double> rates{0.011};  // [groups]
  std::vector<float> signal_scales;  // [tensors][2]
};

/// The type in which an error is kept.
enum class kept_as { nothing, floats, bfloat16s };
template <class Storage>
inline constexpr kept_as kept_in = std::is_same_v<Storage, float>             ? kept_as::floats
                                   : std::is_same_v<Storage, slamb::bfloat16> ? kept_as::bfloat16s
                                                                              : kept_as::nothing;

/// The memory of one rank, independent of the quantizer.
class quantized_memory {
 public:
  quantized_memory(const quantized_memory&) = delete;
  quantized_memory& operator=(const quantized_memory&) = delete;

  std::size_t tiles() const { return placed_.size(); }
  slamb::detail::tile_range all_tiles() const { return {0, tiles()}; }
  bool has_masks() const {
    return setup_.zero_aware || std::ranges::any_of(setup_.tensors, [](const auto& t) { return !t.rows.empty(); });
  }
  std::vector<slamb::detail::row_mask> row_masks() const {
    std::vector<slamb::detail::row_mask> masks;
    for (const slamb::detail::segment& s : tensors.segments()) masks.push_back({s.rows.data(), s.rows.size()});
    return masks;
  }
  float* gradient(std::size_t tensor) const { return gradients_[tensor]; }

  /// One message, sent or received.
  std::span<std::byte> message(std::byte* first, std::uint64_t number) const {
    return {first + number * wire.message_bytes, wire.message_bytes};
  }
  std::string difference(const quantized_memory& other) const { return memory.difference(other.memory); }

  /// The scales of the sent message, and of the mean.
  slamb::detail::host_scale_table sent_scales() const {
    slamb::detail::host_scale_table lists;
    lists.assign_sent(*layout_);
    return lists;
  }
  slamb::detail::host_scale_table averaged_scales() const {
    slamb::detail::host_scale_table lists;
    lists.assign_averaged(*layout_, placed_, own);
    return lists;
  }

  slamb::detail::layout tensors;
  std::vector<slamb::detail::tile> table;
  guarded_arrays memory;
  slamb::detail::state_view<
      slamb::detail::view_in<>,
      slamb::detail::arrays<slamb::detail::array::momentum, slamb::detail::array::variance,
                            slamb::detail::array::fresh_variance, slamb::detail::array::accumulated_update,
                            slamb::detail::array::anchor>>
      view{};
  slamb::detail::wire_view wire;
  std::uint16_t* active = nullptr;
  std::vector<std::size_t> own;
  std::vector<double> statistic;      // [tiles + 1]
  std::vector<std::uint64_t> counts;  // [tiles + 1]
  quantized_tables tables;

 protected:
  explicit quantized_memory(const quantized_setup& setup)
      : setup_(setup), random_(7, setup.t, static_cast<std::uint64_t>(setup.rank)) {
    tensors = make_layout();
  }
  ~quantized_memory() = default;

  std::vector<slamb::detail::wire_tensor> wire_tensors() const {
    std::vector<slamb::detail::wire_tensor> sizes;
    for (const quantized_tensor& t : setup_.tensors) sizes.push_back({t.size, t.compressed});
    return sizes;
  }

  /// @param layout  its address is kept; @param sizes  a view, used only for its sizes
  void place(const slamb::detail::wire_layout& layout, std::vector<slamb::detail::wire_tile> placed,
             const slamb::detail::wire_view& sizes, kept_as worker, kept_as server) {
    layout_ = &layout;
    placed_ = std::move(placed);
    tensors.make_tiles(layout.pieces());
    make_state();
    make_wire(sizes, worker, server);
    for (std::size_t i = 0; i < placed_.size(); ++i)
      if (placed_[i].owner == static_cast<std::uint32_t>(setup_.rank)) own.push_back(i);
    statistic.assign(tiles() + 1, -1.0);
    counts.assign(tiles() + 1, 0);
    for (std::size_t i = 0; i < tiles(); ++i) counts[i] = view.tiles[i].count;
  }

 private:
  unsigned next_shift() { return setup_.mixed ? (setup_.shift + array_++) % 4 : setup_.shift; }

  float* filled(const std::string& name, std::uint64_t count) {
    float* const array = memory.take<float>(name, count, next_shift());
    for (std::uint64_t i = 0; i < count; ++i) array[i] = on_grid();
    return array;
  }
  // Multiples of 1/64. Sums of a few of them, and of their squares, are exact in double precision in any order.
  float on_grid() { return (static_cast<float>(random_.below(2048)) - 1024.0F) / 64.0F; }

  slamb::detail::layout make_layout() {
    std::vector<slamb::parameter> parameters;
    for (const quantized_tensor& t : setup_.tensors) {
      float* const data = filled("parameter", t.size);
      gradients_.push_back(filled("gradient", t.size));
      parameters.push_back({.data = data,
                            .gradient = gradients_.back(),
                            .size = t.size,
                            .options = {.learning_rate_factor = 1.0 + 0.1 * static_cast<double>(parameters.size()),
                                        .compress = t.compressed,
                                        .rows = t.rows}});
      tables.signal_scales.insert(tables.signal_scales.end(), {1.7F, 1.0F / 1.7F});
    }
    return {parameters, 0.01};
  }

  // The state stays poisoned between tensors.
  float* state(const std::string& name, bool is_positive) {
    float* const array = memory.take<float>(name, tensors.state_elements(), next_shift());
    for (const slamb::detail::segment& s : std::as_const(tensors).segments())
      for (std::uint64_t i = 0; i < s.size; ++i) {
        const float x = on_grid();
        array[s.state + i] = is_positive ? (setup_.zero_aware && i % 3 == 1 ? 0.0F : x * x + 0.25F) : x;
      }
    return array;
  }

  void make_state() {
    view.segments = std::as_const(tensors).segments().data();
    table = tensors.tile_table();
    view.tiles = table.data();
    view.momentum = state("momentum", false);
    view.variance = state("variance", true);
    view.fresh_variance = state("fresh variance", true);
    view.accumulated_update = state("accumulated", false);
    view.anchor = state("common", false);
  }

  void make_wire(const slamb::detail::wire_view& sizes, kept_as worker, kept_as server) {
    wire = sizes;
    wire.random_stream |= setup_.t << 16U;
    const std::uint64_t floats = wire.message_bytes / sizeof(float);
    const auto messages = [&](const char* name, std::uint64_t count) {
      return reinterpret_cast<std::byte*>(memory.take<float>(name, count * floats, next_shift()));
    };
    wire.tiles = placed_.data();
    wire.sent = messages("sent", wire.ranks);
    wire.received = messages("received", wire.ranks);
    wire.averaged = messages("averaged", 1);
    wire.dense = memory.take<float>("whole", layout_->dense_elements(), next_shift());
    wire.mean = memory.take<float>("mean", wire.codes, next_shift());
    void* const worker_error = take_error("worker error", worker, tensors.state_elements());
    void* const server_error = take_error("server error", server, wire.codes);
    for (const slamb::detail::segment& s : std::as_const(tensors).segments())
      for (std::uint64_t i = 0; i < s.size; ++i) put(worker_error, worker, s.state + i, on_grid() / 8.0F);
    for (std::uint64_t i = 0; i < wire.codes; ++i) put(server_error, server, i, on_grid() / 8.0F);
    if (worker != kept_as::nothing) wire.worker_error = worker_error;
    if (server != kept_as::nothing) wire.server_error = server_error;
    active = memory.take<std::uint16_t>("counted", wire.ranks * wire.codes / 16, next_shift());
    if (has_masks()) wire.active = active;
    wire.announces = setup_.zero_aware;
    if (std::ranges::any_of(setup_.tensors, [](const auto& t) { return !t.rows.empty(); })) {
      auto* const may = memory.take<std::uint16_t>("may announce", wire.ranks * wire.codes / 16, next_shift());
      for (std::uint64_t i = 0; i < wire.ranks * wire.codes / 16; ++i)
        may[i] = static_cast<std::uint16_t>(random_.below(1U << 16U));
      wire.may_announce = may;
    }
  }

  // Unused error arrays hold numbers too, and these must not change.
  void* take_error(const char* name, kept_as kept, std::uint64_t count) {
    if (kept == kept_as::bfloat16s) return memory.take<slamb::bfloat16>(name, count, next_shift());
    return memory.take<float>(name, count, next_shift());
  }
  static void put(void* error, kept_as kept, std::uint64_t i, float x) {
    if (kept == kept_as::bfloat16s)
      static_cast<slamb::bfloat16*>(error)[i] = slamb::detail::to_bfloat16(x);
    else
      static_cast<float*>(error)[i] = x;
  }

  quantized_setup setup_;
  random_source random_;
  const slamb::detail::wire_layout* layout_ = nullptr;
  std::vector<slamb::detail::wire_tile> placed_;
  unsigned array_ = 0;
  std::vector<float*> gradients_;
};

/// The memory of one rank, for one quantizer and its error types.
template <class Quantizer, class WorkerStorage, class ServerStorage>
class quantized_rank : public quantized_memory {
 public:
  quantized_rank(const quantized_setup& setup, const Quantizer& its_quantizer)
      : quantized_memory(setup), quantizer(its_quantizer), codes_(its_quantizer) {
    codes_.lay_out(wire_tensors(), setup.ranks, setup.rank);
    std::vector<std::byte> elsewhere(codes_.buffer_bytes());
    place(codes_.wire(), slamb::detail::two_phase_tables::places_in(codes_.wire()),
          codes_.view(elsewhere, setup.ranks, setup.rank), kept_in<WorkerStorage>, kept_in<ServerStorage>);
  }

  Quantizer quantizer;

 private:
  slamb::detail::two_phase_exchange<Quantizer, slamb::detail::no_storage, slamb::detail::no_storage> codes_;
};

}  // namespace test_support
