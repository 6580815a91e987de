// Tries each collective that the optimizer will call, once, on values that all ranks know, and shares the findings, because a
// wrong collective could ruin a training silently.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "slamb/communicator/detail/collective_call.hpp"
#include "slamb/core/detail/consistency_check.hpp"
#include "slamb/core/error.hpp"
#include "slamb/core/statistics.hpp"
#include "slamb/detail/exchange/summable.hpp"

namespace slamb::detail {

/// A rank's finding about a collective, in numbers, so that a sum over ranks brings it to the others.
struct collective_fault {
  enum collective_name { none, all_reduce_sum, all_reduce_in_node, all_gather, all_to_all, broadcast };

  int of = none;
  int rank = 0;        ///< the rank that found it
  int size = 1;        ///< ranks that made the call
  int place = 0;       ///< the wrong element of a sum; else the rank at whose place there are wrong bytes
  int from = no_rank;  ///< the wrong bytes are chunk `chunk` of rank `from`
  int chunk = 0;
  int byte = 0;         ///< the first wrong byte
  float found = 0.0F;   ///< of a sum
  float wanted = 0.0F;  ///< of a sum; NaN if NaN is right

  static constexpr int no_rank = -1;
  static constexpr int unknown = -1;  ///< place

  static constexpr std::size_t integers = 7;
  static constexpr std::size_t numbers = integers + 2;
  std::array<float, numbers> to_numbers() const {
    std::array<float, numbers> all{};
    std::size_t i = 0;
    for (const int x : {of, rank, size, place, from, chunk, byte}) all[i++] = static_cast<float>(x);
    all[i++] = found;
    all[i] = wanted;
    return all;
  }
  /// The finding of another rank, from numbers that a wrong sum may have changed.
  static collective_fault of_numbers(std::span<const float> all, int at_rank, int of_ranks) {
    constexpr float most = 16'777'216.0F;
    std::array<int, integers> x{};
    for (std::size_t i = 0; i < integers; ++i) {
      const bool is_integer = all[i] >= -1.0F && all[i] <= most && all[i] == std::floor(all[i]);
      x[i] = is_integer ? static_cast<int>(all[i]) : -2;
    }
    if (*std::ranges::min_element(x) < -1 || x[0] < all_reduce_sum || x[0] > broadcast)
      return {.of = all_reduce_sum, .rank = at_rank, .size = of_ranks, .place = unknown};
    return {x[0], x[1], x[2], x[3], x[4], x[5], x[6], all[integers], all[integers + 1]};
  }
};

inline bool is_nan(float x) noexcept { return (std::bit_cast<std::uint32_t>(x) & 0x7FFFFFFFU) > 0x7F800000U; }

/// 32 bits that differ for each use, rank and place.
constexpr std::uint32_t tried_bits(std::uint64_t use, std::uint64_t rank, std::uint64_t place) noexcept {
  std::uint64_t x = (use * 0x10001U + rank + 1) * 0x9E3779B97F4A7C15U + place;
  x = (x ^ (x >> 30U)) * 0xBF58476D1CE4E5B9U;
  x = (x ^ (x >> 27U)) * 0x94D049BB133111EBU;
  return static_cast<std::uint32_t>(x >> 32U);
}

// ---------------------------------------------------------------------------------------------------------------- sums

/// Elements of a tried sum: no multiple of the number of ranks, so that algorithms that divide it have a remainder.
constexpr std::size_t tried_elements(int ranks) noexcept { return 4 * static_cast<std::size_t>(ranks) + 3; }
/// At this element the last rank has NaN, the overflow flag.
constexpr std::size_t tried_nan(int ranks) noexcept { return tried_elements(ranks) / 2; }

/// The values of `rank` of `ranks`: integers with as many bits as the library relies on. Their sums are exact in float in any
/// order.
/// - Bytes of every rank, as in a sum_header (detail/exchange/summable.hpp): 128 … 255, and 255 of all ranks as element 1.
/// - 16 bits of one rank, as in the comparison of options (core/detail/consistency_check.hpp), as element 4r + 2 of rank r, where
///   the others add 0: 65535 of rank 0, and odd numbers from 65281 of the others. All 16 bits are significant; a half float has
///   11.
inline float tried_value(int rank, int ranks, std::size_t i) noexcept {
  const auto r = static_cast<std::uint64_t>(rank);
  if (i == tried_nan(ranks) && rank == ranks - 1) return std::numeric_limits<float>::quiet_NaN();
  if (i % 4 == 2 && i / 4 < static_cast<std::size_t>(ranks)) {
    if (i / 4 != r) return 0.0F;
    return r == 0 ? 65535.0F : static_cast<float>(65535 - 2 * (tried_bits(0, r, i) % 128));
  }
  if (ranks > sum_header::most_ranks) return static_cast<float>(1 + tried_bits(0, r, i) % 8);
  return i == 1 ? 255.0F : static_cast<float>(128 + tried_bits(0, r, i) % 128);
}

/// Tries a sum over ranks.
/// @param name  all_reduce_sum or all_reduce_in_node
inline collective_fault fault_of_sum(const summing_ranks& ranks, collective_fault::collective_name name) {
  std::vector<float> values(tried_elements(ranks.size));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = tried_value(ranks.rank, ranks.size, i);
  ranks.all_reduce_sum(values);
  for (std::size_t i = 0; i < values.size(); ++i) {
    float sum = 0.0F;
    for (int rank = 0; rank < ranks.size; ++rank) sum += tried_value(rank, ranks.size, i);
    if (is_nan(sum) ? !is_nan(values[i]) : values[i] != sum)
      return {.of = name,
              .rank = ranks.rank,
              .size = ranks.size,
              .place = static_cast<int>(i),
              .found = values[i],
              .wanted = sum};
  }
  return {};
}

// --------------------------------------------------------------------------------------------------------------- bytes

/// 128 bytes that begin at a multiple of 128.
struct alignas(128) tried_line {
  std::array<std::byte, 128> bytes;
};

/// Bytes that each rank sends to each other: a multiple of 128, aligned to 128, as all quantized messages are. A Communicator may
/// rely on that; `check_communicator` tries other sizes.
inline constexpr std::size_t tried_bytes = 3 * sizeof(tried_line);

/// Byte i that `from` sends to `to`; to = 0 if it sends the same to all.
constexpr std::byte tried_byte(collective_fault::collective_name use, int from, int to, std::size_t i) noexcept {
  return static_cast<std::byte>(tried_bits(static_cast<std::uint64_t>(use) << 32U | static_cast<std::uint32_t>(to),
                                           static_cast<std::uint64_t>(from), i));
}

/// A rank whose collectives take bytes of host memory: in `call(buffer)` the sent bytes come first, then the received bytes.
struct trying_rank {
  int rank = 0;
  int size = 1;
  std::function<void(std::span<std::byte> buffer)> all_gather;  ///< [size + 1] chunks: its own, and one of each rank
  std::function<void(std::span<std::byte> buffer)> all_to_all;  ///< [2·size] chunks: one for each rank, and one of each
  std::function<void(std::span<std::byte> buffer, int root)> broadcast;  ///< one chunk
};

class tried_buffer {
 public:
  explicit tried_buffer(std::size_t chunks) : lines_(chunks * lines_a_chunk) {}

  std::span<std::byte> bytes() noexcept { return std::as_writable_bytes(std::span(lines_)); }
  std::span<std::byte> chunk(std::size_t i) noexcept { return bytes().subspan(i * tried_bytes, tried_bytes); }

 private:
  static constexpr std::size_t lines_a_chunk = tried_bytes / sizeof(tried_line);
  std::vector<tried_line> lines_;
};

inline void fill(std::span<std::byte> chunk, collective_fault::collective_name use, int from, int to) {
  for (std::size_t i = 0; i < chunk.size(); ++i) chunk[i] = tried_byte(use, from, to, i);
}

/// The first byte that differs from the one `from` sends to `to`; the size if none does.
inline std::size_t first_other(std::span<const std::byte> chunk, collective_fault::collective_name use, int from,
                               int to) {
  std::size_t i = 0;
  while (i < chunk.size() && chunk[i] == tried_byte(use, from, to, i)) ++i;
  return i;
}

/// Compares `chunk` with the bytes that rank `place` sends to `to`. Returns a fault if they differ.
/// @param receivers  number of ranks to which a rank sends different bytes; 1 if it sends the same to all
inline collective_fault fault_of_chunk(std::span<const std::byte> chunk, collective_fault::collective_name use,
                                       int place, int to, const trying_rank& me, int receivers) {
  const std::size_t byte = first_other(chunk, use, place, to);
  if (byte == chunk.size()) return {};
  collective_fault fault{.of = use, .rank = me.rank, .size = me.size, .place = place, .byte = static_cast<int>(byte)};
  for (int from = 0; from < me.size; ++from)
    for (int other = 0; other < receivers; ++other)
      if (first_other(chunk, use, from, other) == chunk.size()) fault.from = from, fault.chunk = other;
  return fault;
}

inline collective_fault fault_of_all_gather(const trying_rank& me) {
  tried_buffer buffer(static_cast<std::size_t>(me.size) + 1);
  fill(buffer.chunk(0), collective_fault::all_gather, me.rank, 0);
  me.all_gather(buffer.bytes());
  collective_fault fault;
  for (int place = 0; place < me.size && fault.of == collective_fault::none; ++place)
    fault = fault_of_chunk(buffer.chunk(static_cast<std::size_t>(place) + 1), collective_fault::all_gather, place, 0,
                           me, 1);
  return fault;
}

inline collective_fault fault_of_all_to_all(const trying_rank& me) {
  const auto ranks = static_cast<std::size_t>(me.size);
  tried_buffer buffer(2 * ranks);
  for (int to = 0; to < me.size; ++to)
    fill(buffer.chunk(static_cast<std::size_t>(to)), collective_fault::all_to_all, me.rank, to);
  me.all_to_all(buffer.bytes());
  collective_fault fault;
  for (int place = 0; place < me.size && fault.of == collective_fault::none; ++place)
    fault = fault_of_chunk(buffer.chunk(ranks + static_cast<std::size_t>(place)), collective_fault::all_to_all, place,
                           me.rank, me, me.size);
  return fault;
}

/// Broadcasts from the last rank, to find a Communicator that takes rank 0 for every root.
inline collective_fault fault_of_broadcast(const trying_rank& me) {
  tried_buffer buffer(1);
  fill(buffer.bytes(), collective_fault::broadcast, me.rank, 0);
  me.broadcast(buffer.bytes(), me.size - 1);
  return fault_of_chunk(buffer.bytes(), collective_fault::broadcast, me.size - 1, 0, me, 1);
}

// --------------------------------------------------------------------------------------------------------- in sentences

/// The error's sentence, the same on all ranks. It names the rank that found the fault.
inline std::string to_text(const collective_fault& fault) {
  const auto rank = [](int number, const char* has) { return "rank " + std::to_string(number) + "'s " + has; };
  const std::string on = " on rank " + std::to_string(fault.rank) + " of " + std::to_string(fault.size);
  const std::string start = "slamb: the Communicator's ";
  const std::string other_byte = " with a wrong byte " + std::to_string(fault.byte);
  const bool is_known = fault.from != collective_fault::no_rank;
  switch (fault.of) {
    case collective_fault::all_gather:
      return start + "all_gather returned " +
             (is_known ? rank(fault.from, "`mine`") + " in the place of " + rank(fault.place, "`mine`")
                       : rank(fault.place, "`mine`") + other_byte) +
             on + "; " + rule_of(collective::all_gather);
    case collective_fault::all_to_all: {
      const std::string wanted = rank(fault.place, "chunk ") + std::to_string(fault.rank);
      return start + "all_to_all returned " +
             (is_known ? rank(fault.from, "chunk ") + std::to_string(fault.chunk) + " in the place of " + wanted
                       : wanted + other_byte) +
             on + "; " + rule_of(collective::all_to_all);
    }
    case collective_fault::broadcast:
      return start + "broadcast from root " + std::to_string(fault.place) + " left " +
             (is_known ? rank(fault.from, "`values`") : "`values`" + other_byte) + on + "; " +
             rule_of(collective::broadcast);
    default:
      break;
  }
  const bool is_local = fault.of == collective_fault::all_reduce_in_node;
  const std::string name = is_local ? "all_reduce_in_node" : "all_reduce_sum";
  const std::string where = on + (is_local ? " in its node" : "");
  const std::string rule = is_local ? "every rank's `values` must become their sum over the ranks of its node"
                                    : rule_of(collective::all_reduce);
  if (fault.place == collective_fault::unknown) return start + name + " returned wrong sums" + where + "; " + rule;
  const std::string found = float_to_text(fault.found);
  const std::string returned =
      start + name + " returned " + found + " as element " + std::to_string(fault.place) + where;
  if (is_nan(fault.wanted))
    return returned +
           ", where one rank's value is NaN; the sum must then be NaN on all ranks, because a NaN makes all ranks skip "
           "a step that has overflowed";
  const bool is_mean = fault.found * static_cast<float>(fault.size) == fault.wanted;
  const bool is_near = std::fabs(fault.found - fault.wanted) < fault.wanted / 64.0F;
  return returned + ", where the ranks' values add up to " + float_to_text(fault.wanted) +
         (is_mean ? " (" + found + " is their mean)" : "") + (is_near ? " (sums of such integers must be exact)" : "") +
         "; " + rule;
}

// -------------------------------------------------------------------------------------------------------------- verdicts

/// Ranks share their findings by a sum over a table with a row for each rank. A rank whose own sums are wrong reports its own
/// finding, because no other can reach it. All others report the finding of the first rank that has one.
///
/// @param own    this rank's finding
/// @param abort  reaches peers by other means, if there are any; called if sums are wrong, which may not reach them
/// @throws communicator_error on every rank if any rank has found a fault
inline void require_no_fault(const collective_fault& own, const summing_ranks& ranks,
                             const std::function<void(const std::string& reason)>& abort) {
  const auto row_in = [](std::vector<float>& table, int rank) {
    return std::span(table).subspan(static_cast<std::size_t>(rank) * collective_fault::numbers,
                                    collective_fault::numbers);
  };
  std::vector<float> table(static_cast<std::size_t>(ranks.size) * collective_fault::numbers, 0.0F);
  if (own.of != collective_fault::none) std::ranges::copy(own.to_numbers(), row_in(table, ranks.rank).begin());
  ranks.all_reduce_sum(table);
  if (own.of == collective_fault::all_reduce_sum || own.of == collective_fault::all_reduce_in_node) {
    abort(to_text(own));
    throw communicator_error(to_text(own));
  }
  for (int rank = 0; rank < ranks.size; ++rank)
    if (row_in(table, rank)[0] != 0.0F) {
      synchronize_before_throwing(ranks);
      throw communicator_error(to_text(collective_fault::of_numbers(row_in(table, rank), rank, ranks.size)));
    }
  if (own.of != collective_fault::none) throw communicator_error(to_text(own));
}

}  // namespace slamb::detail
