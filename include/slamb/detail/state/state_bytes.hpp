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
#include <cstdlib>
#include <cstring>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <typeinfo>
#include <utility>
#include <vector>

#if defined(__GNUG__)
#include <cxxabi.h>
#endif

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
  std::uint64_t kind = 0;  ///< `state_kind::hash`
  std::uint64_t rank = 0;
  std::uint64_t world = 1;
  std::uint64_t bytes = 0;  ///< of all of it, from the text to the hash
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
inline state_header header_in(std::span<const std::byte> first) noexcept {
  state_header header{.magic = {}};
  if (first.size() >= state_text_bytes + sizeof(header))
    std::memcpy(&header, first.data() + state_text_bytes, sizeof(header));
  return header;
}

/// The header in a source. With too few bytes, a header that is not of this format.
inline state_header header_of(const byte_source& from) {
  state_header header{.magic = {}};
  if (from.bytes >= least_state_bytes) from.read(state_text_bytes, std::as_writable_bytes(std::span(&header, 1)));
  return header;
}
inline bool has_no_parameters(const byte_source& from) {
  const state_header header = header_of(from);
  return header.is_of_this_format() && header.saved_copies != state_header::parameters;
}

/// A readable name of a type: demangled, if possible, and without the namespace.
inline std::string readable_type(std::string_view name) {
  std::string text(name);
#if defined(__GNUG__)
  int status = 0;
  if (char* const plain = abi::__cxa_demangle(text.c_str(), nullptr, nullptr, &status); plain != nullptr) {
    text = plain;
    std::free(plain);
  }
#endif
  for (std::size_t at = text.find("slamb::"); at != std::string::npos; at = text.find("slamb::", at)) text.erase(at, 7);
  return text;
}

/// The text at the beginning of a state: lines, then blanks, then a line break. Long names of policies are cut.
inline std::string text_of_state(const state_kind& kind, const state_header& header, const state_summary& facts) {
  const auto line = [](const char* name, const std::string& value) { return std::string(name) + value + '\n'; };
  const auto number = [](std::uint64_t value) { return std::to_string(value); };
  const std::string first = "slamb saved state, format 2\n" + line("optimizer   ", std::string(kind.recipe));
  const std::string rest =
      line("rank        ", number(header.rank) + " of " + number(header.world)) +
      line("step        ", number(facts.step)) +
      line("tensors     ", number(facts.tensors) + ", of " + number(facts.elements) + " elements") +
      line("parameters  ", header.saved_copies == state_header::parameters ? "saved"
                           : header.saved_copies == state_header::masters  ? "master copies saved"
                                                                           : "not saved") +
      line("bytes       ", number(header.bytes) + ", of which these " + number(state_text_bytes) + " are text") +
      line("saved by    ", "slamb " + number(SLAMB_VERSION_MAJOR) + "." + number(SLAMB_VERSION_MINOR) + "." +
                               number(SLAMB_VERSION_PATCH));
  std::string policies = readable_type(kind.policies);
  const std::size_t room = state_text_bytes - 1 - std::min(state_text_bytes - 1, first.size() + rest.size() + 13);
  if (policies.size() > room) policies = policies.substr(0, room - std::min<std::size_t>(room, 3)) + "...";
  std::string text = first + line("policies    ", policies) + rest;
  text.resize(state_text_bytes - 1, ' ');
  return text + '\n';
}

/// Passes bytes to a sink in pieces, and their hash at the end.
class state_writer {
 public:
  /// @param bytes  size of the state, including the hash
  state_writer(const byte_sink& to, std::uint64_t bytes)
      : to_(&to), piece_(static_cast<std::size_t>(std::min<std::uint64_t>(bytes, state_piece_bytes))) {}

  /// Adds bytes of any memory.
  /// @param copy  copy(from, to) copies some of them to host memory
  template <class Copy>
  void add(std::span<const std::byte> from, const Copy& copy) {
    while (!from.empty()) {
      const std::size_t count = std::min(from.size(), piece_.size() - filled_);
      copy(from.first(count), std::span(piece_).subspan(filled_, count));
      filled_ += count;
      from = from.subspan(count);
      if (filled_ == piece_.size()) flush();
    }
  }
  /// Adds bytes of host memory.
  void add(std::span<const std::byte> from) {
    add(from, [](std::span<const std::byte> some, std::span<std::byte> to) { std::ranges::copy(some, to.begin()); });
  }

  void finish() {
    hash_ = hash_with_words(hash_, std::span(piece_).first(filled_));
    std::memcpy(piece_.data() + filled_, &hash_, state_hash_bytes);  // both sizes are whole words, so one more fits
    (*to_)(std::span(piece_).first(filled_ + state_hash_bytes));
  }

 private:
  void flush() {
    hash_ = hash_with_words(hash_, piece_);
    (*to_)(piece_);
    filled_ = 0;
  }

  const byte_sink* to_;
  std::vector<std::byte> piece_;
  std::size_t filled_ = 0;
  std::uint64_t hash_ = hash_of_nothing;
};

/// Reads a source from its beginning to its end, and hashes the bytes.
class state_reader {
 public:
  explicit state_reader(const byte_source& from)
      : from_(&from), piece_(static_cast<std::size_t>(std::min<std::uint64_t>(from.bytes, state_piece_bytes))) {}

  /// Calls use(some) for the next `bytes` bytes, piece by piece. All pieces but the last are whole words.
  template <class Use>
  void next(std::uint64_t bytes, const Use& use) {
    for (std::uint64_t left = bytes; left > 0;) {
      const std::span<std::byte> some =
          std::span(piece_).first(static_cast<std::size_t>(std::min<std::uint64_t>(left, piece_.size())));
      from_->read(at_, some);
      hash_ = hash_with_words(hash_, some);
      at_ += some.size();
      left -= some.size();
      use(std::span<const std::byte>(some));
    }
  }
  void skip(std::uint64_t bytes) {
    next(bytes, [](std::span<const std::byte> /*some*/) {});
  }

  std::uint64_t at() const noexcept { return at_; }
  std::uint64_t hash() const noexcept { return hash_; }

 private:
  const byte_source* from_;
  std::vector<std::byte> piece_;
  std::uint64_t at_ = 0;
  std::uint64_t hash_ = hash_of_nothing;
};

/// Reads a value from a source, from byte `first` on.
template <class T>
T read_from(const byte_source& from, std::uint64_t first) {
  T value;
  from.read(first, std::as_writable_bytes(std::span(&value, 1)));
  return value;
}

/// A sink that appends to `all`, and allocates once.
inline byte_sink appending_to(std::vector<std::byte>& all) {
  return [&all](std::span<const std::byte> piece) {
    if (all.empty()) all.reserve(static_cast<std::size_t>(header_in(piece).bytes));
    all.insert(all.end(), piece.begin(), piece.end());
  };
}

/// A source of bytes in memory, which must stay valid while the source is used.
inline byte_source source_in(std::span<const std::byte> saved) {
  return {saved.size(), [saved](std::uint64_t first, std::span<std::byte> to) {
            std::ranges::copy(saved.subspan(static_cast<std::size_t>(first), to.size()), to.begin());
          }};
}

/// True if the bytes have the header of a state of this kind. `restore_parts` checks all bytes.
inline bool is_state_of(const state_kind& kind, std::span<const std::byte> saved) noexcept {
  const state_header header = header_in(saved);
  return header.is_of_this_format() && header.kind == kind.hash();
}

inline bool is_state_of(const state_kind& kind, const byte_source& from) {
  const state_header header = header_of(from);
  return header.is_of_this_format() && header.kind == kind.hash();
}

}  // namespace slamb::detail
