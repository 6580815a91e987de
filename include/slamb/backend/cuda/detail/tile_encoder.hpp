// Encodes a tile's values in a kernel, and computes the statistics from which scales are computed.
//
// The values pass through shared memory, one piece of the tile at a time. Neighbouring threads form the values of neighbouring
// elements, for any alignment of the arrays. Then each thread encodes eight values: eight codes are whole bytes, and need one
// draw of Philox. The values of a piece are 64 bytes a thread, 128 KiB for 2048 threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "slamb/backend/cuda/detail/codes.hpp"
#include "slamb/backend/cuda/detail/lanes.hpp"
#include "slamb/backend/cuda/detail/reals.hpp"
#include "slamb/backend/cuda/detail/tile_access.hpp"
#include "slamb/backend/cuda/detail/tile_codes.hpp"
#include "slamb/core/concepts.hpp"
#include "slamb/detail/pass/messages.hpp"
#include "slamb/detail/pass/quantized_pass.hpp"

namespace slamb::detail::cuda {

/// The statistic of some elements from which their scale is computed: Σ x², Σ |x| or max |x|.
template <segment_scale Scale>
struct scale_statistic {
  using type = std::conditional_t<Scale == segment_scale::max, float, double>;

  type value = 0;

  template <unsigned W>
  SLAMB_ELEMENT void add(const reals<W>& x) {
    for (unsigned j = 0; j < W; ++j) {
      const auto wide = static_cast<double>(x.of[j]);  // its square is exact, fused with the sum or not
      if constexpr (Scale == segment_scale::l2) value += wide * wide;
      if constexpr (Scale == segment_scale::l1) value += static_cast<double>(absolute(x.of[j]));
      if constexpr (Scale == segment_scale::max) value = maximum(value, absolute(x.of[j]));
    }
  }
  SLAMB_ELEMENT void add(const scale_statistic& other) {
    if constexpr (Scale == segment_scale::max)
      value = maximum(value, other.value);
    else
      value += other.value;
  }
};

/// The statistic over all threads of a block; all threads get the same value.
template <segment_scale Scale, class Block, class Statistics>
SLAMB_HOST_DEVICE double total_of(Block& block, const Statistics& of_thread) {
  if constexpr (Scale == segment_scale::max)
    return static_cast<double>(block.maximum([&](unsigned thread) { return of_thread[thread].value; }));
  else
    return block.sum([&](unsigned thread) { return of_thread[thread].value; });
}

/// Encodes a tile with all threads of a block.
template <encode_mode Work, class Quantizer, unsigned Threads>
class tile_encoder {
  static constexpr segment_scale scale = Quantizer::scale;
  static constexpr bool has_blocks = scale_traits<Quantizer>::has_blocks;
  static constexpr bool encodes = Work != encode_mode::statistics;
  static constexpr std::uint32_t piece = code_group * Threads;  // elements: one group for each thread
  static_assert(piece % 1024 == 0, "slamb: a piece must consist of whole blocks of a quantizer");

  struct values {
    alignas(16) float value[piece];
  };
  struct values_of_blocks : values {
    scale_statistic<scale> of_group[Threads];
    std::uint32_t active[Threads];  // the number of active elements of each group
    float scale_of_block[Threads];
  };
  using memory = std::conditional_t<has_blocks, values_of_blocks, values>;

 public:
  /// True if the encoder takes the statistic of a tile, for scales that tiles share.
  static constexpr bool has_statistic = scale_traits<Quantizer>::is_shared && Work != encode_mode::codes;

  const Quantizer& quantizer;
  std::uint64_t random_stream;
  std::uint64_t position;  ///< of the first element among the codes of all messages; selects its random numbers
  std::uint32_t count;

  /// Encodes the elements of a tile. source(at, checks) returns elements, and 0 for those that are not active.
  /// source.fill_up(i) is called for the padding after the last element, up to a whole group of codes.
  ///
  /// @param statistic  receives the tile's statistic if `has_statistic`; else not used
  template <class Block, class Source, class Checks>
  SLAMB_HOST_DEVICE void operator()(Block& block, const Source& source, const tile_active& active,
                                    const tile_codes<Quantizer, std::byte>& to, Checks& checks,
                                    double* statistic) const {
    const unsigned shift = scale_traits<Quantizer>::block_shift(quantizer);
    float its_scale = 1.0F;
    if constexpr (Work == encode_mode::codes) its_scale = to.scale_at(quantizer, 0);
    typename Block::template registers<scale_statistic<scale>> mine;
    for (std::uint32_t first = 0; first < count; first += piece) {
      const std::uint32_t part = count - first < piece ? count - first : piece;
      block.each([&](unsigned thread) { form(block, thread, source, first, part, checks[thread], mine[thread]); });
      if constexpr (encodes) {
        if constexpr (has_blocks) {
          block.each([&](unsigned thread) { take_statistic(block, thread, active, first, part); });
          block.each([&](unsigned thread) { make_scale(block, thread, to, first, part, shift); });
        }
        block.each([&](unsigned thread) { encode(block, thread, to, first, part, shift, its_scale); });
      }
    }
    if constexpr (has_statistic) {
      const double total = total_of<scale>(block, mine);
      block.first([&] { *statistic = total; });
    }
  }

 private:
  template <class Block, class Source, class Sums>
  SLAMB_ELEMENT void form(Block& block, unsigned thread, const Source& source, std::uint32_t first, std::uint32_t part,
                          Sums& checks, scale_statistic<scale>& mine) const {
    scale_statistic<scale> own = mine;
    Sums own_checks = checks;
    for_each_group<Threads>(thread, part, [&](auto at) {
      const auto x = source(at + first, own_checks);
      if constexpr (has_statistic) own.add(x);
      if constexpr (encodes) store_together(x, block.template shared<memory>().value, at);
    });
    for (std::uint32_t i = part + thread; i < padded(part); i += Threads) {
      if constexpr (encodes) block.template shared<memory>().value[i] = 0.0F;
      source.fill_up(first + i);
    }
    mine = own;
    checks = own_checks;
  }

  // Takes the statistic of this thread's group. Threads begin at different quarters of their groups, because shared memory has
  // 32 banks of one float.
  template <class Block>
  SLAMB_ELEMENT void take_statistic(Block& block, unsigned thread, const tile_active& active, std::uint32_t first,
                                    std::uint32_t part) const {
    const std::uint32_t begin = thread * code_group;
    if (begin >= part) return;
    memory& all = block.template shared<memory>();
    scale_statistic<scale> own;
    for (unsigned k = 0; k < 4; ++k) own.add(load_together(all.value, group<4>{begin + (k + thread / 2) % 4 * 4}));
    all.of_group[thread] = own;
    all.active[thread] = active.number(first + begin, part - begin);
  }

  // Computes and stores the scale of one block of the quantizer.
  template <class Block>
  SLAMB_ELEMENT void make_scale(Block& block, unsigned thread, const tile_codes<Quantizer, std::byte>& to,
                                std::uint32_t first, std::uint32_t part, unsigned shift) const {
    if (thread << shift >= part) return;
    memory& all = block.template shared<memory>();
    const std::uint32_t of_block = (1U << shift) / code_group;
    const std::uint32_t groups = padded(part) / code_group;
    scale_statistic<scale> own;
    std::uint64_t number = 0;
    for (std::uint32_t i = thread * of_block; i < (thread + 1) * of_block && i < groups; ++i) {
      own.add(all.of_group[i]);
      number += all.active[i];
    }
    const float made = scale_of<scale>(static_cast<double>(own.value), number);
    all.scale_of_block[thread] = write_scale(quantizer, to.message, to.scale + (first >> shift) + thread, made);
  }

  template <class Block>
  SLAMB_ELEMENT void encode(Block& block, unsigned thread, const tile_codes<Quantizer, std::byte>& to,
                            std::uint32_t first, std::uint32_t part, unsigned shift, float its_scale) const {
    const memory& all = block.template shared<memory>();
    SLAMB_NO_UNROLL
    for (std::uint32_t i = 8 * thread; i < padded(part); i += 8 * Threads) {
      const group<8> at{i};
      const reals<8> x = load_together(all.value, at);
      reals<8> uniform(0.5F);
      if constexpr (capability::stochastic_quantizer<Quantizer>)
        uniform = draw_uniform(quantizer.seed, random_stream, position + first + i);
      if constexpr (has_blocks) its_scale = all.scale_of_block[i >> shift];
      words<8> code;  // lane after lane: as in lanes.hpp
      for (unsigned j = 0; j < 8; ++j)
        code.of[j] = quantizer.encode(lane_of(x, j), reals<1>(its_scale), lane_of(uniform, j)).of[0];
      store_codes<Quantizer::bits_per_element>(code, to.codes, at + first);
    }
  }
};

}  // namespace slamb::detail::cuda
