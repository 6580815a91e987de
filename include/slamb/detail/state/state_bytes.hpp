// The bytes of a saved state: their sink, their source and their format. They are passed in pieces, so that memory never holds a
// copy of all of them unless the caller makes one.
//
//     text      512 bytes for people: optimizer, rank, step, number of bytes
//     header    48 bytes: facts for the library
//     parts     each a header of 16 bytes (a hash of its name; its bytes), its bytes, padding to a multiple of 8
//     hash      8 bytes: a hash of all bytes before it
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <typeinfo>
#include <utility>
#include <vector>

#include "slamb/core/config.hpp"
#include "slamb/core/detail/hash.hpp"
#include "slamb/core/saved_state.hpp"

namespace slamb::detail {

/// Bytes of a piece: the most that are saved or restored at a time.
inline constexpr std::size_t state_piece_bytes = std::size_t{4} << 20U;

/// Bytes of text at the beginning of a state.
inline constexpr std::size_t state_text_bytes = 512;

/// The kind of a state: the types of the optimizer that saved it.
struct state_kind {
  std::string_view recipe;    ///< its name, also for messages
  std::string_view policies;  ///< the name of their types

  std::uint64_t hash() const noexcept { return hash_of(recipe) ^ (hash_of(policies) << 1U); }
};

/// The kind of the states that an optimizer saves and loads. If states do not depend on all types of its options, these name a
/// type `saved_policies` with the others.
template <class Optimizer>
state_kind kind_of() noexcept {
  using options = typename Optimizer::options_type;
  if constexpr (requires { typename options::saved_policies; })
    return {Optimizer::recipe_name, typeid(typename options::saved_policies).name()};
  else
    return {Optimizer::recipe_name, typeid(options).name()};
}

/// The facts in the text of a state, apart from its kind and rank.
struct state_summary {
  std::uint64_t step = 0;
  std::uint64_t tensors = 0;
  std::uint64_t elements = 0;  ///< of all tensors
};

/// The header between the text and the parts. All numbers are in the byte order of the machine.
struct state_header {
  char magic[8] = {'s', 'l', 'a', 'm', 'b', ' ', 's', '2'};
  std::uint64_t kind = 0;               ///< `state_kind::hash`
  std::uint32_t rank = 0, shard = 0;    ///< numbers of the rank, and of its shard
  std::uint32_t world = 1, shards = 0;  ///< numbers of ranks, and of shards; 0: there is no shard group
  std::uint64_t bytes = 0;              ///< of all of it, from the text to the hash
  enum copies : std::uint64_t { none, parameters, masters };
  std::uint64_t saved_copies = none;  ///< of the parameters

  bool is_of_this_format() const noexcept { return std::memcmp(magic, state_header{}.magic, sizeof(magic)) == 0; }
};

/// The header of a part.
struct part_header {
  std::uint64_t name = 0;  ///< hash
  std::uint64_t bytes = 0;
};

inline constexpr std::size_t state_hash_bytes = sizeof(std::uint64_t);
inline constexpr std::size_t least_state_bytes = state_text_bytes + sizeof(state_header) + state_hash_bytes;
static_assert(state_text_bytes % 8 == 0 && sizeof(state_header) % 8 == 0 && state_piece_bytes % 8 == 0);

constexpr std::uint64_t padded(std::uint64_t bytes) noexcept { return (bytes + 7) / 8 * 8; }

/// Adds bytes to a hash, in words of 8 bytes. An incomplete last word is left out.
inline std::uint64_t hash_with_words(std::uint64_t hash, std::span<const std::byte> bytes) noexcept {
  for (std::size_t i = 0; i + 8 <= bytes.size(); i += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes.data() + i, 8);
    hash = hash_with(hash, word);
  }
  return hash;
}

/// The header in the first bytes of a state. With too few bytes, a header that is not of this format.
state_header header_in(std::span<const std::byte> first) noexcept;

/// "rank 1 of 2", "rank 1 of 2, shard 0 of 3".
std::string rank_in(const state_header& header);

/// The header in a source. With too few bytes, a header that is not of this format.
state_header header_of(const byte_source& from);
bool has_no_parameters(const byte_source& from);

/// A readable name of a type: demangled, if possible, and without the namespace.
std::string readable_type(std::string_view name);

/// The text at the beginning of a state: lines, then blanks, then a line break. Long names of policies are cut.
std::string text_of_state(const state_kind& kind, const state_header& header, const state_summary& summary);

/// A sink that appends to `all`, and allocates once.
byte_sink appending_to(std::vector<std::byte>& all);

/// A source of bytes in memory, which must stay valid while the source is used.
byte_source source_in(std::span<const std::byte> saved);

/// True if the bytes have the header of a state of this kind. `restore_parts` checks all bytes.
bool is_state_of(const state_kind& kind, std::span<const std::byte> saved) noexcept;

bool is_state_of(const state_kind& kind, const byte_source& from);

}  // namespace slamb::detail

#if !defined(SLAMB_SEPARATE_COMPILATION)
#include "slamb/impl/detail/state/state_bytes.ipp"
#endif
