// Encodes a tile's values, and computes the statistics from which scales are computed.
//
// Values pass through the memory of a team, one piece of the tile at a time: they are formed element by element, for any alignment
// of the arrays, and encoded in groups whose codes are whole bytes. A team whose threads form whole groups encodes them at once,
// unless they must wait for the scale of a block.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "slamb/core/concepts.hpp"
#include "slamb/core/config.hpp"
#include "slamb/core/real.hpp"
#include "slamb/detail/kernel/kernel.hpp"
#include "slamb/detail/kernel/scale_statistic.hpp"
#include "slamb/detail/kernel/tile_arrays.hpp"
#include "slamb/detail/kernel/tile_codes.hpp"
#include "slamb/detail/pass/messages.hpp"
#include "slamb/detail/pass/quantized_pass.hpp"

namespace slamb::detail {

/// Encodes a tile with a team.
template <encode_mode Work, class Quantizer, class Team>
class tile_encoder {
  static constexpr bool has_blocks = scale_traits<Quantizer>::has_blocks;
  static constexpr bool encodes = Work != encode_mode::statistics;
  static constexpr bool encodes_at_once = encodes && !has_blocks && Team::forms_whole_groups;
  static constexpr std::uint32_t piece = Team::values_of_piece;
  static_assert(piece % 1024 == 0, "slamb: a piece must consist of whole blocks of a quantizer");

  using statistic = scale_statistic<Quantizer::scale>;
  struct values {
    alignas(16) float value[piece];
  };
  struct values_of_blocks : values {
    typename Team::template group_statistics<Quantizer::scale> groups;
    float scale_of_block[piece / code_group];
  };
  using memory = std::conditional_t<has_blocks, values_of_blocks, values>;

 public:
  /// True if the encoder takes the statistic of a tile, for scales that tiles share.
  static constexpr bool has_statistic = scale_traits<Quantizer>::is_shared && Work != encode_mode::codes;
  /// The results of each thread.
  using sums =
      typename Team::template results<has_statistic ? statistic::sums : 0, has_statistic ? statistic::maxima : 0>;

  std::uint64_t random_stream;
  std::uint64_t position;  ///< of the first element among the codes of all messages; selects its random numbers
  std::uint32_t count;

  /// Encodes the elements of a tile. source(at, checks) returns them, and 0 for elements that are not active. source.fill_up(i) is
  /// called for the padding after the last element, up to a whole group of codes.
  ///
  /// @param mine  [threads] notes values that are not finite
  /// @param of_tile  receives the tile's statistic if `has_statistic`; else not used
  template <class Source, class Sums>
  SLAMB_HOST_DEVICE void operator()(Team& team, const Source& source, const tile_active& active,
                                    const tile_codes<Quantizer, std::byte>& to, Sums& mine, double* of_tile) const {
    float shared_scale = 1.0F;
    if constexpr (Work == encode_mode::codes) shared_scale = to.scale_at(0);
    typename Team::template uniform_numbers<Quantizer> uniform;
    for (std::uint32_t first = 0; first < count; first += piece) {
      const std::uint32_t part = count - first < piece ? count - first : piece;
      if constexpr (encodes) uniform.draw(to.quantizer, random_stream, position + first, part);
      each_position(
          team, first, part, mine, first == 0,
          [&](auto at, auto& own) {
            const auto x = source(at, own);
            if constexpr (has_statistic) statistic::add(own, x);
            if constexpr (encodes_at_once)
              to.encode(x, shared_scale, uniform.at(at.from(first)), at);
            else if constexpr (encodes)
              store_together(x, team.template shared<memory>().value, at.from(first));
          },
          [&](unsigned thread) {
            for (std::uint32_t i = part + thread; i < padded_codes(part); i += Team::threads) {
              if constexpr (encodes && !encodes_at_once) team.template shared<memory>().value[i] = 0.0F;
              source.fill_up(first + i);
            }
          });
      if constexpr (encodes && !encodes_at_once) encode_piece(team, active, to, uniform, first, part, shared_scale);
    }
    if constexpr (has_statistic) write_results<statistic::sums, statistic::maxima>(team, mine, of_tile);
  }

 private:
  template <class Uniform>
  SLAMB_ELEMENT void encode_piece(Team& team, const tile_active& active, const tile_codes<Quantizer, std::byte>& to,
                                  const Uniform& uniform, std::uint32_t first, std::uint32_t part,
                                  float shared_scale) const {
    if constexpr (has_blocks)
      each_block<Quantizer::scale>(
          team, team.template shared<memory>(), part, to.shift,
          [&](std::uint32_t i, std::uint32_t number) { return active.number(first + i, number); },
          [&](std::uint32_t block, double total, std::uint64_t number) {
            return write_scale(to.quantizer, to.message, to.scale + (first >> to.shift) + block,
                               scale_of<Quantizer::scale>(total, number));
          });
    each_group_of_codes(team, padded_codes(part), [&](auto at) {
      const memory& all = team.template shared<memory>();
      float scale = shared_scale;
      if constexpr (has_blocks) scale = all.scale_of_block[at.i >> to.shift];
      to.encode(load_together(static_cast<const float*>(all.value), at), scale, uniform.at(at), at.moved(first));
    });
  }
};

}  // namespace slamb::detail
