// The data-dependent sparsifier: the elements of largest magnitude, tile by tile.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "slamb/compressor/detail/magnitude_selection.hpp"
#include "slamb/core/concepts.hpp"
#include "slamb/core/config.hpp"
#include "slamb/core/error.hpp"

namespace slamb {

/// Sends the ⌈k n⌉ elements of largest magnitude of every tile: n = 8192 consecutive elements of a tensor, or the remaining n at
/// its end. Of equal elements it sends the first.
///
/// Ranks have different values, but must send the same elements so that payloads can be summed. So the leader chooses for all:
/// rank (t − 1) mod N at step t, so that the large elements of every rank get their turn.
///
/// The choice is made in each tile. Its size is known in advance, threads choose independently, and tiles of a large tensor do
/// not compete. If magnitudes differ between tiles, this differs from the k largest of the tensor.
///
/// *Cost*: the choice is 1 bit an element on the wire, from the leader to all.
/// *Determinism*: a function of the leader's values alone, for every order of threads and ranks.
struct top_k {
  double k = 0.01;  ///< in (0, 1]

  static constexpr std::uint32_t tile_size = detail::magnitude_selection::most;  ///< elements

  /// @throws std::invalid_argument
  void validate() const { detail::require_in(k > 0.0 && k <= 1.0, "top_k's k", k, "in (0, 1]"); }

  /// Lists the options that must be equal on all ranks.
  template <class Fields>
  void describe(Fields& fields) const {
    fields.add("top_k's k", k);
  }

  /// The number of elements chosen of `count`: ⌈k count⌉, at least 1 if there are any.
  SLAMB_HOST_DEVICE std::uint32_t chosen_of(std::uint32_t count) const noexcept {
    constexpr double slack = 1.0 - 1e-12;  // k = 0.07 of 100 elements are 7, though 0.07 · 100 > 7 in doubles
    const double part = std::ceil(k * slack * static_cast<double>(count));
    if (part >= static_cast<double>(count)) return count;
    return part >= 1.0 ? static_cast<std::uint32_t>(part) : 1U;
  }

  /// The number of elements sent at each step from a tensor of `size`.
  std::uint64_t largest_payload(std::uint64_t size) const noexcept {
    return size / tile_size * chosen_of(tile_size) + chosen_of(static_cast<std::uint32_t>(size % tile_size));
  }

  /// Sets bit i % 16 of bits[i / 16] for each chosen i: exactly chosen_of(count) bits.
  ///
  /// @param values  [count], count ≤ 8192, in host memory, none NaN; −0 and +0 are equal
  /// @param bits    [⌈count/16⌉], 0
  void choose(const float* values, std::uint32_t count, std::uint16_t* bits) const {
    if (count == 0) return;
    detail::magnitude_selection selection;  // 40 KiB of the stack
    auto [key, ties] = selection.threshold(values, count, chosen_of(count));
    for (std::uint32_t first = 0; first < count; first += 16) {
      const std::uint32_t end = count - first < 16 ? count - first : 16;
      std::uint32_t above = 0, below = 0;
      for (std::uint32_t i = 0; i < end; ++i) {  // keys are below 2^31, so the sign of a difference compares them
        const std::uint32_t its_key = detail::magnitude_selection::key_of(values[first + i]);
        above |= (key - its_key) >> 31U << i;
        below |= (its_key - key) >> 31U << i;
      }
      std::uint32_t equal = ((1U << end) - 1U) & ~(above | below);
      for (; equal != 0 && ties != 0; equal &= equal - 1, --ties) above |= equal & (0U - equal);
      bits[first / 16] = static_cast<std::uint16_t>(above);
    }
  }

  /// As `choose`, by all threads of a block of a CUDA kernel together.
  using block_memory = detail::magnitude_block_memory;
  template <class Block>
  SLAMB_HOST_DEVICE void choose_in_block(Block& block, block_memory& memory, const float* values, std::uint32_t count,
                                         std::uint16_t* bits) const {
    detail::magnitude_block_selection::choose(block, memory, values, count, chosen_of(count), bits);
  }
};

static_assert(data_dependent_sparsifier<top_k>);

}  // namespace slamb
