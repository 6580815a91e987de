// A team of one thread, sixteen elements at a time: the host runs kernels by it. detail/kernel/kernel.hpp.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>

#include "slamb/backend/host/detail/draws.hpp"
#include "slamb/backend/host/detail/positions.hpp"
#include "slamb/backend/host/detail/selected_elements.hpp"
#include "slamb/backend/host/detail/sums.hpp"
#include "slamb/core/detail/eight_bits.hpp"
#include "slamb/detail/kernel/scale_statistic.hpp"
#include "slamb/detail/kernel/tile_arrays.hpp"
#include "slamb/detail/pass/pass.hpp"

namespace slamb::detail::host {
inline namespace SLAMB_SIMD_NAMESPACE {

/// One thread, as a team.
class worker {
 public:
  worker(std::size_t index, std::size_t count) noexcept : index_(index), count_(count) {}

  static constexpr unsigned threads = 1;
  std::size_t index() const noexcept { return index_; }
  std::size_t count() const noexcept { return count_; }

  template <int Sums, int Maxima>
  using results = tile_sums<Sums, Maxima>;
  template <class Precision>
  using draws = rounding_words<Precision>;

  static constexpr std::uint32_t values_of_piece = 1024;
  static constexpr bool forms_whole_groups = true;
  template <class Quantizer>
  using uniform_numbers = uniform_piece<Quantizer, values_of_piece>;
  template <segment_scale Scale>
  struct group_statistics {};

  template <bool Discounted, class Selection>
  using selected = selected_elements<Discounted, Selection>;

  template <class T>
  class registers {
   public:
    SLAMB_ALWAYS_INLINE T& operator[](unsigned /*thread*/) noexcept { return own_; }
    SLAMB_ALWAYS_INLINE const T& operator[](unsigned /*thread*/) const noexcept { return own_; }

   private:
    T own_{};
  };

  /// Memory of the stack, uninitialised.
  template <class T>
  SLAMB_ALWAYS_INLINE T& shared() noexcept {
    static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= sizeof(shared_) && alignof(T) <= 64);
    return *reinterpret_cast<T*>(shared_);
  }

  template <class Body>
  static SLAMB_ALWAYS_INLINE void each(const Body& body) {
    body(0U);
  }
  template <class Body>
  static SLAMB_ALWAYS_INLINE void first(const Body& body) {
    body();
  }
  template <class Value>
  static double sum(const Value& value) {
    return value(0U);
  }
  template <std::size_t Count, class Value>
  static void sums(const Value& value, double (&total)[Count]) {
    value(0U, total);
  }
  template <class Value>
  static float maximum(const Value& value) {
    return value(0U);
  }
  template <class Predicate>
  static bool any(const Predicate& predicate) {
    return predicate(0U);
  }
  template <class Value>
  static std::uint32_t exclusive_sum(const Value& value, registers<std::uint32_t>& before) {
    before[0] = 0;
    return value(0U);
  }

 private:
  std::size_t index_;
  std::size_t count_;
  alignas(64) std::byte shared_[std::size_t{48} * 1024];
};

// Phases over the elements of a tile.

/// Calls body(position) for elements first … past − 1.
template <class Body>
SLAMB_ALWAYS_INLINE void each_lanes(std::size_t first, std::size_t past, const Body& body) {
  std::size_t i = first;
  for (; i + lanes <= past; i += lanes) body(whole_at{i});
  if (i < past) body(rest_at{i, static_cast<int>(past - i)});
}
/// Calls body(position, sums) for them.
template <class Sums, class Body>
SLAMB_ALWAYS_INLINE void each_lanes(std::size_t first, std::size_t past, Sums& sums, const Body& body) {
  each_lanes(first, past, [&](auto at) {
    if constexpr (decltype(at)::is_whole) {
      body(at, sums);
    } else {
      masked_tile_sums<Sums> of_rest{sums, mask_of(at.existing())};
      body(at, of_rest);
    }
  });
}

/// Calls body(position, own) for the elements first … first + count − 1 of a tile; `own` are the results of the thread, which begin
/// anew if `restarts`. Then calls after(thread).
template <class Sums, class Body, class After>
SLAMB_ALWAYS_INLINE void each_position(worker& /*team*/, std::uint32_t first, std::uint32_t count,
                                       worker::registers<Sums>& mine, bool restarts, const Body& body,
                                       const After& after) {
  Sums own = mine[0];  // compilers keep variables in registers that no store through a pointer can change
  if (restarts) own.restart();
  each_lanes(first, std::size_t{first} + count, own, body);
  own.copy_to(mine[0]);
  after(0U);
}
template <class Sums, class Body>
SLAMB_ALWAYS_INLINE void each_position(worker& team, std::uint32_t first, std::uint32_t count,
                                       worker::registers<Sums>& mine, bool restarts, const Body& body) {
  each_position(team, first, count, mine, restarts, body, [](unsigned) {});
}

/// What is written to arrays in blocks, one block at a time.
template <std::size_t Arrays>
struct waiting_block {
  std::size_t begin = 0;
  alignas(64) float of[Arrays][code_block];

  SLAMB_ALWAYS_INLINE void keep(unsigned k, const f32x16& x, const auto& at) { x.store(of[k] + (at.i - begin)); }
};

/// Writes a block of `count` numbers that begins at element `first` of the tile, with its scale. `value` has a whole block.
template <class Array, class Arrays>
[[gnu::noinline]] void store_block(const Arrays& all, std::size_t first, std::size_t count, float* value) {
  const auto& array = all.template pointer_to<Array>();
  for (std::size_t i = count; i % lanes != 0; ++i) value[i] = 0.0F;
  u32x16 largest(0U);
  for (std::size_t i = 0; i < count; i += lanes) {
    const u32x16 magnitude = as_word(f32x16::load(value + i)) & u32x16(0x7FFFFFFFU);
    largest = select(largest < magnitude, magnitude, largest);
  }
  std::uint32_t of_lane[lanes];
  largest.store(of_lane);
  const float scale =
      block_scale<std::remove_cvref_t<decltype(array)>::is_signed>(*std::max_element(of_lane, of_lane + lanes));
  array.scales[first / code_block] = scale;
  if (!(scale <= std::numeric_limits<float>::max())) {
    std::fill_n(array.codes + first, count, std::uint8_t{1});
    return;
  }
  const float inverse = per_scale(scale);
  each_lanes(first, first + count, [&](auto at) {
    store_words(all.template codes_of<Array>(f32x16::load(value + (at.i - first)), inverse, at), array.codes, at);
  });
}
template <class... In, std::size_t... K, class Arrays, std::size_t Count>
SLAMB_ALWAYS_INLINE void store_blocks(arrays<In...> /*blocks*/, std::index_sequence<K...> /*numbers*/,
                                      const Arrays& all, std::size_t count, waiting_block<Count>& waiting) {
  (store_block<In>(all, waiting.begin, count, waiting.of[K]), ...);
}

/// As `each_position`, but calls body(arrays, position, own) for a body that reads and writes by `arrays`: `at`, or what keeps numbers
/// for its arrays in blocks until a block is complete.
/// @param first  a multiple of code_block
template <class Writes, class Arrays, class Sums, class Body>
SLAMB_ALWAYS_INLINE void each_position_of(worker& /*team*/, const Arrays& at, std::uint32_t first, std::uint32_t count,
                                          worker::registers<Sums>& mine, bool restarts, const Body& body) {
  using blocks = typename in_blocks<typename Arrays::precision, Writes>::type;
  Sums own = mine[0];
  if (restarts) own.restart();
  if constexpr (blocks::count == 0) {
    each_lanes(first, std::size_t{first} + count, own, [&](auto here, auto& sums) { body(at, here, sums); });
  } else {
    waiting_block<blocks::count> waiting;
    const std::size_t past = std::size_t{first} + count;
    for (waiting.begin = first; waiting.begin < past; waiting.begin += code_block) {
      const std::size_t end = std::min<std::size_t>(past, waiting.begin + code_block);
      const arrays_in_window<Arrays, Writes, waiting_block<blocks::count>> window{at, waiting};
      each_lanes(waiting.begin, end, own, [&](auto here, auto& sums) { body(window, here, sums); });
      store_blocks(blocks(), std::make_index_sequence<blocks::count>(), at, end - waiting.begin, waiting);
    }
  }
  own.copy_to(mine[0]);
}

/// Calls body(position) for whole groups of codes of a piece of `count` values.
template <class Body>
SLAMB_ALWAYS_INLINE void each_group_of_codes(worker& /*team*/, std::uint32_t count, const Body& body) {
  for (std::size_t i = 0; i < count; i += lanes) body(whole_at{i});
}

/// scale_of_block[b] ← make(b, statistic, active elements) for each block of 2^shift of the `count` values of a piece.
/// @param active_among  active_among(i, n): active elements of the group of sixteen at i, of which n are there
template <segment_scale Scale, class Memory, class Active, class Make>
SLAMB_ALWAYS_INLINE void each_block(worker& /*team*/, Memory& all, std::uint32_t count, unsigned shift,
                                    const Active& active_among, const Make& make) {
  using statistic = scale_statistic<Scale>;
  for (std::uint32_t begin = 0; begin < count; begin += 1U << shift) {
    const std::uint32_t end = std::min(count, begin + (1U << shift));
    tile_sums<statistic::sums, statistic::maxima> own;
    std::uint64_t active = 0;
    for (std::uint32_t i = begin; i < end; i += lanes) {
      statistic::add(own, f32x16::load(all.value + i));
      active += active_among(i, end - i);
    }
    const double total = statistic::maxima > 0 ? own.largest(0) : own.total(0);
    all.scale_of_block[begin >> shift] = make(begin >> shift, total, active);
  }
}

// The results of the team.

template <int Sums, int Maxima, class Mine>
SLAMB_ALWAYS_INLINE void write_results(worker& /*team*/, const Mine& mine, double* to) {
  for (int k = 0; k < Sums; ++k) to[k] = mine[0].total(k);
  for (int k = 0; k < Maxima; ++k) to[Sums + k] = mine[0].largest(k);
}
template <int Sums, class Mine>
SLAMB_ALWAYS_INLINE void add_results(worker& /*team*/, const Mine& mine, double* to) {
  for (int k = 0; k < Sums; ++k) to[k] += mine[0].total(k);
}
/// Sets a flag, as other teams may do at the same time.
inline void raise(worker& /*team*/, std::uint32_t& flag) {
  std::atomic_ref<std::uint32_t>(flag).store(1, std::memory_order_relaxed);
}
/// @param not_finite  becomes 1 if a checked value is not finite; may be null
template <class Mine>
SLAMB_ALWAYS_INLINE void note_usable(worker& team, const Mine& mine, std::uint32_t* not_finite) {
  if (not_finite != nullptr && !is_usable(mine[0])) raise(team, *not_finite);
}

/// Calls `run` with the constants of a tensor. A pass may have several types of them: compilers leave out of the loop what a type
/// does not need.
template <class Pass, class Run>
SLAMB_ALWAYS_INLINE void with_constants(worker& /*team*/, const Pass& pass, std::uint32_t tensor, const Run& run) {
  const auto constants = pass.constants(tensor);
  if constexpr (requires { pass.specialize(constants, run); })
    pass.specialize(constants, run);
  else
    run(constants);
}

}  // namespace SLAMB_SIMD_NAMESPACE
}  // namespace slamb::detail::host
