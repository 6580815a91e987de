// The random numbers of a tile, by which numbers are rounded.
#pragma once

#include <cstddef>
#include <cstdint>

#include "slamb/backend/host/detail/positions.hpp"
#include "slamb/backend/host/detail/uniform.hpp"
#include "slamb/core/detail/eight_bits.hpp"
#include "slamb/detail/pass/layout.hpp"
#include "slamb/detail/pass/precision.hpp"

namespace slamb::detail::host {
inline namespace SLAMB_SIMD_NAMESPACE {

/// Draws of sixteen elements at a time: for elements in order, or once more for elements of the block of `code_block` that has
/// just ended.
template <class Precision>
struct rounding_words {
  rounding_words() = default;
  template <class View>
  rounding_words(const View& /*view*/, const tile& /*t*/) {}
};
template <class Precision>
requires(has_draws<Precision>) struct rounding_words<Precision> {
  rounding_words() = default;
  template <class View>
  rounding_words(const View& view, const tile& t) : draws_(view.draws), tensor_(t.segment), first_(t.first) {}

  /// Of elements i … i + 15 of the tile; i is a multiple of 16.
  template <class At>
  SLAMB_ALWAYS_INLINE u32x16 draw(At at) const {
    if (at.i == drawn_) draw_more();
    return load_codes<16>(bits_ + 2 * (at.i % size + first_ % rounding_draws::elements_of_counter));
  }

 private:
  static constexpr std::size_t size = lanes * rounding_draws::elements_of_counter;  // elements of sixteen counters
  static_assert(size % code_block == 0);  // all draws of a block are there when it ends

  void draw_more() const {
    const std::uint64_t stream = draws_.stream(tensor_), counter = draws_.counter(first_ + drawn_);
    bits_for_rounding(draws_.seed, stream, counter, bits_);
    if (first_ % rounding_draws::elements_of_counter != 0)
      bits_for_rounding(draws_.seed, stream, counter + lanes, bits_ + 2 * size);
    drawn_ += size;
  }

  rounding_draws draws_{};
  std::uint32_t tensor_ = 0;
  std::uint64_t first_ = 0;
  mutable std::size_t drawn_ = 0;  // elements so far
  alignas(64) mutable std::byte bits_[4 * size];
};

/// Uniform numbers for the stochastic quantizer of a piece of values; 1/2 for others.
template <class Quantizer, std::uint32_t Size>
struct uniform_piece {
  static void draw(const Quantizer& /*quantizer*/, std::uint64_t /*stream*/, std::uint64_t /*first*/,
                   std::uint32_t /*count*/) {}
  template <class At>
  static SLAMB_ALWAYS_INLINE f32x16 at(At /*here*/) {
    return f32x16(0.5F);
  }
};
template <capability::stochastic_quantizer Quantizer, std::uint32_t Size>
struct uniform_piece<Quantizer, Size> {
  /// @param first  place of the piece's first element among the codes of all messages
  void draw(const Quantizer& quantizer, std::uint64_t stream, std::uint64_t first, std::uint32_t count) {
    fill_uniform(quantizer.seed, stream, first, (count + lanes - 1) / lanes * lanes, value_);
  }
  template <class At>
  SLAMB_ALWAYS_INLINE f32x16 at(At here) const {
    return f32x16::load(value_ + here.i);
  }

 private:
  alignas(64) float value_[Size];
};

}  // namespace SLAMB_SIMD_NAMESPACE
}  // namespace slamb::detail::host
