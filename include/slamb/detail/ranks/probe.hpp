// Trials of a Communicator's collectives: the values that ranks send, the search for the first wrong element, and how a finding
// comes to all ranks and into a sentence. A constructor tries the few calls that its optimizer needs, because a wrong collective
// could ruin a training silently; check_communicator tries many.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <iterator>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "slamb/communicator/detail/collective_call.hpp"
#include "slamb/core/concepts.hpp"
#include "slamb/core/detail/hash.hpp"
#include "slamb/core/error.hpp"
#include "slamb/core/statistics.hpp"
#include "slamb/detail/ranks/agreement.hpp"

namespace slamb::detail {

// --------------------------------------------------------------------------------------------------------------- values

/// The terms of a sum of floating-point values.
enum class sum_content {
  plain,       ///< of either sign, with magnitudes in [1, 256]
  comparison,  ///< integers with all bits that ranks compare each other by, and NaN
  integers,    ///< one rank: a value up to 65535; other ranks: 0
  bytes,       ///< 0 … 255 on every rank; sums are exact for up to 2^16 ranks
  tiny,        ///< one rank: a denormal; other ranks: 0
  huge,        ///< of either sign, up to 2.6e31
  nan,         ///< NaN on one rank
  infinite     ///< infinite on one rank, or on two ranks with opposite signs
};

/// 64 bits that differ for each call, rank and element. The upper half is the more random one.
constexpr std::uint64_t probe_bits(std::uint64_t call, std::uint64_t rank, std::uint64_t i) noexcept {
  std::uint64_t x = (call * 0x10001U + rank + 1) * 0x9E3779B97F4A7C15U + i;
  x = (x ^ (x >> 30U)) * 0xBF58476D1CE4E5B9U;
  return (x ^ (x >> 27U)) * 0x94D049BB133111EBU;
}

/// One collective on trial, and the memory for it:
///
///     margin, `sent` elements, margin, margin, `received` elements, margin
///
/// A collective in place has no received elements.
struct probe {
  collective_call call{};  ///< count: elements that a rank sends to each rank
  bool in_node = false;    ///< the sum is an all_reduce_in_node
  sum_content content = sum_content::plain;
  std::size_t margin = 0;    ///< elements
  double wire_error = 0.0;   ///< the permitted error of a sum, relative to the sum of magnitudes
  std::uint64_t number = 0;  ///< of the call, counted by all ranks
  int rank = 0, size = 1;    ///< of the ranks that it joins

  bool is(collective kind) const noexcept { return call.kind == kind; }
  bool is_in_place() const noexcept { return is(collective::all_reduce) || is(collective::broadcast); }
  bool is_float() const noexcept { return call.family == 'f' && call.element_size == sizeof(float); }

  std::size_t ranks() const noexcept { return static_cast<std::size_t>(size); }
  std::size_t sent() const noexcept { return call.count * (is(collective::all_to_all) ? ranks() : 1); }
  std::size_t received() const noexcept { return is_in_place() ? 0 : call.count * ranks(); }
  std::size_t bytes() const noexcept { return (4 * margin + sent() + received()) * call.element_size; }
  /// Elements of the memory [bytes()].
  template <class Byte>
  std::span<Byte> part(std::span<Byte> memory, std::size_t first, std::size_t count) const {
    return memory.subspan(first * call.element_size, count * call.element_size);
  }
  template <class Byte>
  std::span<Byte> sent_in(std::span<Byte> memory) const {
    return part(memory, margin, sent());
  }
  template <class Byte>
  std::span<Byte> received_in(std::span<Byte> memory) const {
    return part(memory, 3 * margin + sent(), received());
  }
};

/// The lowest bits of a word, as many as an element has.
inline std::uint64_t low_bits(std::uint64_t word, std::size_t element_size) noexcept {
  return element_size < sizeof word ? word & ((std::uint64_t{1} << (8 * element_size)) - 1) : word;
}
/// The bits of element i of `memory`.
inline std::uint64_t bits_in(std::span<const std::byte> memory, std::size_t i, std::size_t element_size) {
  std::uint64_t word = 0;
  std::memcpy(&word, memory.data() + i * element_size, element_size);
  return std::endian::native == std::endian::little ? word : word >> (8 * (sizeof word - element_size));
}
inline double real_of(const probe& p, std::uint64_t bits) {
  return p.is_float() ? double{std::bit_cast<float>(static_cast<std::uint32_t>(bits))} : std::bit_cast<double>(bits);
}
inline std::string element_text(const probe& p, std::uint64_t bits) {
  if (p.call.family != 'f') return std::to_string(bits);
  return p.is_float() ? to_text(static_cast<float>(real_of(p, bits))) : to_text(real_of(p, bits));
}

/// Sums of these integers are exact in float in any order.
/// - Bytes of every rank, as in a sum_header (detail/exchange/summable.hpp): 128 … 255, and 255 of all ranks as element 1.
/// - 16 bits of one rank, as in a rank_table, as element 4r + 2 of rank r, where the others add 0: 65535 of rank 0, and odd
///   numbers from 65281 of the others. All 16 bits are significant; a half float has 11.
/// - NaN of the last rank, the overflow flag, as the element in the middle.
inline double comparison_term(const probe& p, int from, std::uint64_t i) {
  constexpr int most_ranks = 1 << 16;  // whose bytes add up exactly, as sum_header::most_ranks
  const auto r = static_cast<std::uint64_t>(from);
  const std::uint64_t bits = probe_bits(p.number, r, i) >> 32U;
  if (i == p.call.count / 2 && from == p.size - 1) return std::numeric_limits<double>::quiet_NaN();
  if (i % 4 == 2 && i / 4 < p.ranks()) {
    if (i / 4 != r) return 0.0;
    return r == 0 ? 65535.0 : static_cast<double>(65535 - 2 * (bits % 128));
  }
  if (p.size > most_ranks) return static_cast<double>(1 + bits % 8);
  return i == 1 ? 255.0 : static_cast<double>(128 + bits % 128);
}

/// Element i that rank `from` sends, if elements are floating-point values.
inline double term_of(const probe& p, int from, std::uint64_t i) {
  if (p.content == sum_content::comparison) return comparison_term(p, from, i);
  const bool has_special = static_cast<std::uint64_t>(from) == i % p.ranks();
  const bool is_next = p.size > 1 && static_cast<std::uint64_t>(from) == (i + 1) % p.ranks();
  const std::uint64_t bits = probe_bits(p.number, static_cast<std::uint64_t>(from), i);
  const double fraction = 1.0 + static_cast<double>(bits >> 40U) / 16'777'216.0;
  double x = std::ldexp((bits >> 32U & 1U) != 0 ? fraction : -fraction, static_cast<int>(bits >> 33U & 7U));
  switch (p.content) {
    case sum_content::integers:
      return has_special ? static_cast<double>(bits >> 48U) : 0.0;
    case sum_content::bytes:
      return static_cast<double>(bits >> 56U);
    case sum_content::tiny:
      return has_special ? std::numeric_limits<float>::min() / 8.0 : 0.0;
    case sum_content::huge:
      x *= 1e29;
      break;
    case sum_content::nan:
      if (has_special) return std::numeric_limits<double>::quiet_NaN();
      break;
    case sum_content::infinite:
      if (has_special) return std::numeric_limits<double>::infinity();
      if (is_next && i % 2 == 1) return -std::numeric_limits<double>::infinity();
      break;
    case sum_content::plain:
    case sum_content::comparison:
      break;
  }
  return p.is_float() ? static_cast<double>(static_cast<float>(x)) : x;
}

/// The bits of element i that rank `from` sends.
inline std::uint64_t value_of(const probe& p, int from, std::uint64_t i) {
  if (p.is_float()) return std::bit_cast<std::uint32_t>(static_cast<float>(term_of(p, from, i)));
  if (p.call.family == 'f') return bits_of(term_of(p, from, i));
  return low_bits(std::rotr(probe_bits(p.number, static_cast<std::uint64_t>(from), i), 32), p.call.element_size);
}

/// Fills the memory of a call: margins, this rank's values, and nothing yet of what it receives.
inline void fill(const probe& p, std::span<std::byte> memory) {
  std::ranges::fill(memory, std::byte{0xA5});
  const std::size_t size = p.call.element_size;
  for (std::size_t i = 0; i < p.sent(); ++i) {
    std::uint64_t word = value_of(p, p.rank, i);
    if (std::endian::native == std::endian::big) word <<= 8 * (sizeof word - size);
    std::memcpy(p.sent_in(memory).data() + i * size, &word, size);
  }
}
/// Overwrites what has been sent and received, as its owner may once a collective has returned.
inline void spoil(const probe& p, std::span<std::byte> memory) {
  std::ranges::fill(memory, std::byte{0xA5});
  std::ranges::fill(p.sent_in(memory), std::byte{0x5A});
  std::ranges::fill(p.received_in(memory), std::byte{0x5A});
}

/// The index of the first element that differs from chunk `chunk` of what `from` sends; the count if none does.
/// @param found  [p.call.count] elements
inline std::size_t first_altered(const probe& p, std::span<const std::byte> found, int from, int chunk) {
  const std::uint64_t first = static_cast<std::uint64_t>(chunk) * p.call.count;
  std::size_t i = 0;
  while (i < p.call.count && bits_in(found, i, p.call.element_size) == value_of(p, from, first + i)) ++i;
  return i;
}

/// Checks `found`, the bits of element i of a sum. Returns the error text, or an empty string.
inline std::string wrong_sum(const probe& p, std::uint64_t found, std::uint64_t i) {
  constexpr const char* adds_up = "but the ranks' values add up to ";
  if (p.call.family != 'f') {
    std::uint64_t sum = 0;
    for (int from = 0; from < p.size; ++from) sum += value_of(p, from, i);
    sum = low_bits(sum, p.call.element_size);
    return found == sum ? std::string() : adds_up + element_text(p, sum);
  }
  const double x = real_of(p, found);
  long double sum = 0.0L, magnitude = 0.0L;
  for (int from = 0; from < p.size; ++from) {
    const double own = term_of(p, from, i);
    const auto its = [from](const char* kind) { return "but rank " + std::to_string(from) + "'s value is " + kind; };
    if (std::isnan(own) && !std::isnan(x))
      return its(
          "NaN, so the sum must be NaN on all ranks, because a NaN makes all ranks skip a step that has overflowed");
    if (std::isinf(own) && std::isfinite(x)) return its("infinite, so the sum must be infinite or NaN");
    sum += own;
    magnitude += std::fabs(own);
  }
  if (!std::isfinite(sum)) return {};
  const bool is_integer =
      p.content == sum_content::comparison || p.content == sum_content::integers || p.content == sum_content::bytes;
  const bool is_tiny = p.content == sum_content::tiny;
  const double epsilon =
      p.is_float() ? double{std::numeric_limits<float>::epsilon()} : std::numeric_limits<double>::epsilon();
  const double error = is_integer || is_tiny ? 0.0 : (p.size > 1 ? p.size * epsilon : 0.0) + p.wire_error;
  if (std::fabs(x - sum) <= error * magnitude) return {};
  if (is_tiny && x == 0.0) return {};  // hardware may be set to flush denormals to 0
  std::string hint;
  if (p.size > 1 && x * p.size == sum)
    hint = " (" + element_text(p, found) + " is their mean)";
  else if (is_integer && std::fabs(x - sum) < sum / 64)
    hint = " (sums of such integers must be exact)";
  return adds_up + to_text(static_cast<double>(sum)) + hint;
}

/// "all_gather of 1 byte", "all_to_all of 3 times 17 bytes", "broadcast of 5 floats from root 2".
inline std::string to_text(const probe& p) {
  std::string type = std::to_string(8 * p.call.element_size) + "-bit element";
  if (p.call.family == 'f') type = p.is_float() ? "float" : "double";
  if (p.call.family == '?' && p.call.element_size == 1) type = "byte";
  return std::string(p.in_node ? "all_reduce_in_node" : to_text(p.call.kind)) + " of " +
         (p.is(collective::all_to_all) ? std::to_string(p.size) + " times " : "") + std::to_string(p.call.count) + " " +
         type + (p.call.count == 1 ? "" : "s") +
         (p.is(collective::broadcast) ? " from root " + std::to_string(p.call.root) : "");
}

/// Makes the call of `p`, with elements of type T.
/// @param memory  [p.bytes()] in the memory of the stream
template <class T, class C, class Stream>
void make_call(const probe& p, std::span<std::byte> memory, C& ranks, Stream stream) {
  const auto elements = [](std::span<std::byte> bytes) {
    return std::span<T>(reinterpret_cast<T*>(bytes.data()), bytes.size() / sizeof(T));
  };
  const std::span<T> sent = elements(p.sent_in(memory)), received = elements(p.received_in(memory));
  if constexpr (std::is_same_v<T, float> && capability::has_all_reduce_in_node<C, Stream>)
    if (p.in_node) return ranks.all_reduce_in_node(sent, stream);
  if constexpr (capability::has_all_reduce_sum<C, T, Stream>)
    if (p.is(collective::all_reduce)) return ranks.all_reduce_sum(sent, stream);
  if constexpr (capability::has_all_gather<C, T, Stream>)
    if (p.is(collective::all_gather)) return ranks.all_gather(std::span<const T>(sent), received, stream);
  if constexpr (capability::has_all_to_all<C, T, Stream>)
    if (p.is(collective::all_to_all)) return ranks.all_to_all(std::span<const T>(sent), received, stream);
  if constexpr (capability::has_broadcast<C, T, Stream>)
    if (p.is(collective::broadcast)) return ranks.broadcast(sent, p.call.root, stream);
}

// ------------------------------------------------------------------------------------------------------------- findings

/// A rank's finding about a call, in numbers, so that a sum over ranks brings it to the others.
struct probe_finding {
  enum kind_type : std::uint64_t {
    none,
    wrong_element,  ///< the first wrong one of a chunk or a sum
    other_chunk,
    earlier_call,  ///< the values of one
    written_source,
    written_before,
    written_behind,
    written_late,
    others  ///< more findings
  };

  kind_type kind = none;
  std::uint64_t call = 0;    ///< the number of its probe
  std::uint64_t slot = 0;    ///< the rank at whose place it is; of writes, 0: what is sent, 1: what is received
  std::uint64_t first = 0;   ///< the index of the element; the rank whose values are there; the count of others
  std::uint64_t second = 0;  ///< the bits of the element; the chunk of that rank

  static constexpr std::size_t numbers = 9;
  static constexpr unsigned bits = 24;  ///< of each number
};

inline std::array<std::uint64_t, probe_finding::numbers> to_numbers(const probe_finding& found) {
  constexpr unsigned bits = probe_finding::bits;
  if (found.kind == probe_finding::none) return {};
  constexpr std::uint64_t mask = (std::uint64_t{1} << bits) - 1;
  std::array<std::uint64_t, probe_finding::numbers> all{found.kind + 16 * found.call, found.slot};
  for (unsigned i = 0; i < 3; ++i) {
    all[2 + i] = found.first >> (bits * i) & mask;
    all[5 + i] = found.second >> (bits * i) & mask;
  }
  std::uint64_t hash = hash_of_nothing;
  for (const std::uint64_t x : all) hash = hash_with(hash, x);
  all.back() = hash & mask;
  return all;
}

/// The finding of another rank. None if a wrong sum has altered its numbers.
inline std::optional<probe_finding> finding_of(std::span<const std::uint64_t> all, std::uint64_t calls) {
  constexpr unsigned bits = probe_finding::bits;
  const probe_finding found{.kind = static_cast<probe_finding::kind_type>(all[0] % 16),
                            .call = all[0] / 16,
                            .slot = all[1],
                            .first = all[2] | all[3] << bits | all[4] << (2 * bits),
                            .second = all[5] | all[6] << bits | all[7] << (2 * bits)};
  const bool is_whole = std::ranges::equal(to_numbers(found), all);
  return is_whole && (found.kind == probe_finding::none || found.call < calls) ? std::optional(found) : std::nullopt;
}

/// Calls on trial, in the order in which all ranks make them, and what this rank has found.
class probes {
 public:
  /// @param most  findings that a rank tells the others
  probes(const rank_id& me, std::size_t most) : rank_id_(me), most_(most) {}

  /// The next call of all ranks, complete with its number.
  probe add(probe next) {
    next.number = calls_.size();
    next.rank = next.in_node ? rank_id_.local_rank : rank_id_.rank;
    next.size = next.in_node ? rank_id_.local_size : rank_id_.size;
    return calls_.emplace_back(next);
  }

  /// Looks at the memory of a call as it was when the call had returned.
  void check(const probe& p, std::span<const std::byte> memory) {
    check_margins(p, memory);
    const std::span<const std::byte> sent = p.sent_in(memory), received = p.received_in(memory);
    if (p.is(collective::all_reduce)) return check_sum(p, sent);
    if (p.is(collective::broadcast)) return static_cast<void>(holds(p, sent, p.call.root));
    if (!std::ranges::equal(sent, sent_values(p))) add(p, probe_finding::written_source, 0);
    for (std::size_t from = 0; from < p.ranks(); ++from)
      if (!holds(p, p.part(received, from * p.call.count, p.call.count), static_cast<int>(from))) return;
  }
  /// Looks at spoilt memory, which must be as `spoil` has left it.
  void check_spoilt(const probe& p, std::span<const std::byte> memory) {
    std::vector<std::byte> spoilt(memory.size());
    spoil(p, spoilt);
    const auto other = static_cast<std::size_t>(std::ranges::mismatch(memory, spoilt).in1 - memory.begin());
    if (other < memory.size())
      add(p, probe_finding::written_late, other < (2 * p.margin + p.sent()) * p.call.element_size ? 0 : 1);
  }
  /// Keeps a hash of the bits of a sum, so that ranks can compare them. All NaNs count as equal.
  void keep_bits(const probe& p, std::span<const std::byte> memory) {
    std::uint64_t hash = hash_of_nothing;
    for (std::size_t i = 0; i < p.call.count; ++i) {
      const std::uint64_t bits = bits_in(p.sent_in(memory), i, p.call.element_size);
      hash = hash_with(hash, p.call.family == 'f' && std::isnan(real_of(p, bits)) ? 0x7FC00000U : bits);
    }
    sums_.push_back({p.number, low_bits(hash, probe_finding::bits / 8)});
  }

  /// True if a sum of this rank is wrong, so that others may not learn its findings.
  bool has_wrong_sum() const {
    return std::ranges::any_of(findings_,
                               [this](const auto& found) { return calls_[found.call].is(collective::all_reduce); });
  }
  /// The findings of this rank, in sentences.
  std::vector<std::string> own() const {
    std::vector<std::string> lines;
    for (const probe_finding& found : told()) lines.push_back(text(rank_id_.myself(), found));
    return lines;
  }
  /// Collective. [rank] the findings of all ranks, in sentences.
  std::vector<std::vector<std::string>> of_all(const summing_ranks& all) const {
    const std::size_t findings = most_ * probe_finding::numbers;
    std::vector<std::uint64_t> row;
    for (const probe_finding& found : told()) std::ranges::copy(to_numbers(found), std::back_inserter(row));
    row.resize(findings);
    for (const auto& sum : sums_) row.push_back(sum[1]);
    const rank_table table(all, row, 1, probe_finding::bits);
    std::vector<std::vector<std::string>> lines(static_cast<std::size_t>(all.size));
    for (int rank = 0; rank < all.size; ++rank)
      lines[static_cast<std::size_t>(rank)] = rank == all.rank ? own() : lines_of(table, rank);
    for (std::size_t i = 0; i < sums_.size(); ++i)
      for (std::size_t rank = 1; rank < lines.size(); ++rank)
        if (table.word(rank, findings + i) != table.word(0, findings + i)) {
          lines[rank].push_back(rank_id_.text(static_cast<int>(rank)) + ": " + to_text(calls_[sums_[i][0]]) +
                                ": the sums have other bits than on rank 0");
          return lines;
        }
    return lines;
  }

 private:
  void add(const probe& p, probe_finding::kind_type kind, std::uint64_t slot, std::uint64_t first = 0,
           std::uint64_t second = 0) {
    findings_.push_back({kind, p.number, slot, first, second});
  }

  static std::vector<std::byte> sent_values(const probe& p) {
    std::vector<std::byte> memory(p.bytes());
    fill(p, memory);
    const auto sent = p.sent_in(std::span(memory));
    return {sent.begin(), sent.end()};
  }
  void check_margins(const probe& p, std::span<const std::byte> memory) {
    const std::array<std::size_t, 4> margins{0, p.margin + p.sent(), 2 * p.margin + p.sent(),
                                             3 * p.margin + p.sent() + p.received()};
    for (std::size_t i = 0; i < margins.size(); ++i)
      if (std::ranges::any_of(p.part(memory, margins[i], p.margin), [](std::byte b) { return b != std::byte{0xA5}; }))
        add(p, i % 2 == 0 ? probe_finding::written_before : probe_finding::written_behind, i / 2);
  }
  void check_sum(const probe& p, std::span<const std::byte> sums) {
    for (std::size_t i = 0; i < p.call.count; ++i) {
      const std::uint64_t found = bits_in(sums, i, p.call.element_size);
      if (!wrong_sum(p, found, i).empty()) return add(p, probe_finding::wrong_element, 0, i, found);
    }
  }
  /// True if `chunk` is what the rank `slot` has sent to this rank. If not, keeps what it is instead.
  bool holds(const probe& p, std::span<const std::byte> chunk, int slot) {
    const int chunks = p.is(collective::all_to_all) ? p.size : 1, own = chunks > 1 ? p.rank : 0;
    const std::size_t n = p.call.count, other = first_altered(p, chunk, slot, own);
    const auto at = static_cast<std::uint64_t>(slot);
    if (other == n) return true;
    if (chunk.size() >= 8) {  // fewer bytes may match by chance
      for (int from = 0; from < p.size; ++from)
        for (int c = 0; c < chunks; ++c)
          if (first_altered(p, chunk, from, c) == n) {
            add(p, probe_finding::other_chunk, at, static_cast<std::uint64_t>(from), static_cast<std::uint64_t>(c));
            return false;
          }
      probe before = p;
      for (before.number -= std::min<std::uint64_t>(p.number, 8); before.number < p.number; ++before.number)
        if (first_altered(before, chunk, slot, own) == n) return add(p, probe_finding::earlier_call, at), false;
    }
    add(p, probe_finding::wrong_element, at, other, bits_in(chunk, other, p.call.element_size));
    return false;
  }

  /// The first findings, and how many more there are.
  std::vector<probe_finding> told() const {
    std::vector<probe_finding> all = findings_;
    all.resize(std::min(most_, all.size()));
    if (findings_.size() > most_ && most_ > 1)
      all.back() = {.kind = probe_finding::others, .first = findings_.size() - most_ + 1};
    return all;
  }
  std::vector<std::string> lines_of(const rank_table& table, int rank) const {
    std::vector<std::string> lines;
    for (std::size_t i = 0; i < most_; ++i) {
      std::array<std::uint64_t, probe_finding::numbers> sent{};
      for (std::size_t k = 0; k < sent.size(); ++k)
        sent[k] = table.word(static_cast<std::size_t>(rank), i * sent.size() + k).value_or(~std::uint64_t{0});
      const std::optional<probe_finding> found = finding_of(sent, calls_.size());
      if (!found) {
        lines.push_back(rank_id_.text(rank) + ": has found mistakes, but cannot report them because sums are wrong");
        break;
      }
      if (found->kind == probe_finding::none) break;
      lines.push_back(text(rank, *found));
    }
    return lines;
  }

  /// The sentence of a finding. It names the rank that has found it.
  std::string text(int rank, const probe_finding& found) const {
    const std::string start = rank_id_.text(rank) + ": ";
    if (found.kind == probe_finding::others) return start + "and " + std::to_string(found.first) + " more";
    probe p = calls_[found.call];
    p.rank = p.in_node ? rank % rank_id_.local_size : rank / rank_id_.local_size;
    const std::string label = start + to_text(p) + ": ", written = label + "it has written ";
    std::string name = found.slot == 0 ? "`send`" : "`receive`";
    if (p.is(collective::all_gather)) name = found.slot == 0 ? "`mine`" : "`all`";
    if (p.is_in_place()) name = "`values`";
    switch (found.kind) {
      case probe_finding::written_source:
        return written + "to " + name + ", which it may only read";
      case probe_finding::written_before:
        return written + "before the first element of " + name;
      case probe_finding::written_behind:
        return written + "behind the last element of " + name;
      case probe_finding::written_late:
        return written + "to " + name + " after it had returned";
      default:
        return label + text_of_wrong(p, found) + "; " +
               (p.in_node ? "every rank's `values` must become their sum over the ranks of its node"
                          : rule_of(p.call.kind));
    }
  }
  static std::string text_of_wrong(const probe& p, const probe_finding& found) {
    const std::string its = "rank " + std::to_string(found.slot);
    const std::string slot = p.is_in_place() ? std::string("`values`") : "the place of " + its;
    const bool is_exchange = p.is(collective::all_to_all);
    if (found.kind == probe_finding::earlier_call) return slot + " has the values of an earlier call";
    if (found.kind == probe_finding::other_chunk)
      return slot + " has rank " + std::to_string(found.first) + "'s " +
             (is_exchange ? "chunk " + std::to_string(found.second) + " instead of " + its + "'s chunk " +
                                std::to_string(p.rank)
                          : "values");
    const std::string element = "element " + std::to_string(found.first), is = element_text(p, found.second) + ", ";
    if (p.is(collective::all_reduce)) return element + " is " + is + wrong_sum(p, found.second, found.first);
    const std::uint64_t first = is_exchange ? static_cast<std::uint64_t>(p.rank) * p.call.count : 0;
    return element + " of " + slot + " is " + is + "but " +
           element_text(p, value_of(p, static_cast<int>(found.slot), first + found.first)) + " was sent";
  }

  rank_id rank_id_;
  std::size_t most_;
  std::vector<probe> calls_;
  std::vector<probe_finding> findings_;
  std::vector<std::array<std::uint64_t, 2>> sums_;  // number of the call, hash
};

// --------------------------------------------------------------------------------------------------------- construction

/// Sums on trial: of all ranks of a node, and of all nodes, as far as there are several. Their number of elements is no multiple
/// of the number of ranks, so that algorithms that divide them have a remainder.
inline std::vector<probe> sums_on_trial(const rank_id& me) {
  std::vector<probe> all;
  const auto add = [&all](int size, bool in_node) {
    if (size > 1)
      all.push_back({.call = call_of<float>(collective::all_reduce, 4 * static_cast<std::size_t>(size) + 3),
                     .in_node = in_node,
                     .content = sum_content::comparison});
  };
  add(me.local_size, true);
  add(me.size, false);
  return all;
}

/// 128 bytes that begin at a multiple of 128.
struct alignas(128) probe_line {
  std::array<std::byte, 128> bytes;
};

/// Collectives of bytes on trial. Messages have a multiple of 128 bytes and begin at one, as all quantized messages do: a
/// Communicator may rely on that. The root is the last rank, which shows a Communicator that takes rank 0 for every root.
inline std::vector<probe> bytes_on_trial(const rank_id& me, bool of_codes, bool of_choices) {
  constexpr std::size_t bytes = 3 * sizeof(probe_line);
  std::vector<probe> all;
  const auto add = [&all](const collective_call& call) { all.push_back({.call = call}); };
  if (me.size > 1 && of_codes) {
    add(call_of<std::byte>(collective::all_to_all, bytes));
    add(call_of<std::byte>(collective::all_gather, bytes));
  }
  if (me.size > 1 && of_choices) add(call_of<std::byte>(collective::broadcast, bytes, me.size - 1));
  return all;
}

/// The gathers that an optimizer makes in a shard group.
inline std::vector<probe> gather_on_trial(const rank_id& me) {
  if (me.size == 1) return {};
  return {{.call = call_of<std::byte>(collective::all_gather, 3 * sizeof(probe_line))}};
}

/// Tries calls. Ranks share their findings: a rank whose own sums are wrong throws its own, because no other can reach it. All
/// others throw the finding of the first rank that has one.
///
/// @param make   makes a call on memory of the host [p.bytes()], which begins at a multiple of 128
/// @param all    all ranks of all nodes
/// @param abort  reaches peers by other means, if there are any; called if sums are wrong, which may not reach them
/// @throws communicator_error on every rank if any rank has found a fault
inline void require_right_results(const std::vector<probe>& calls, const rank_id& me,
                                  const std::function<void(const probe& p, std::span<std::byte> memory)>& make,
                                  const summing_ranks& all,
                                  const std::function<void(const std::string& reason)>& abort) {
  if (calls.empty()) return;
  probes tried(me, 1);
  for (const probe& next : calls) {
    const probe p = tried.add(next);
    std::vector<probe_line> lines((p.bytes() + sizeof(probe_line) - 1) / sizeof(probe_line));
    const auto memory = std::as_writable_bytes(std::span(lines)).first(p.bytes());
    fill(p, memory);
    make(p, memory);
    tried.check(p, memory);
  }
  const std::vector<std::vector<std::string>> found = tried.of_all(all);
  const std::string start = "slamb: a collective of this Communicator is wrong: ";
  if (tried.has_wrong_sum()) {
    const std::string wrong = start + tried.own().front();
    abort(wrong);
    throw communicator_error(wrong);
  }
  for (const std::vector<std::string>& of_rank : found)
    if (!of_rank.empty()) {
      synchronize_before_throwing(all);
      throw communicator_error(start + of_rank.front());
    }
}

}  // namespace slamb::detail
