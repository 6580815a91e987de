// Everything that an optimizer keeps from step to step, as bytes: saved whole, checked whole, and only then restored. Bytes come
// and go in pieces, so that no copy of all of them is ever in memory unless the caller makes one.
//
//     text      512 bytes for people: whose state it is, of which step, how many bytes
//     header    48 bytes: the same for the library
//     parts     each a header of 16 bytes (a hash of its name; its bytes), its bytes, padding to a multiple of 8
//     hash      8 bytes, of all before
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <typeinfo>
#include <utility>
#include <vector>

#if defined(__GNUG__)
#include <cxxabi.h>
#endif

#include "slamb/core/config.hpp"
#include "slamb/core/error.hpp"
#include "slamb/core/hash.hpp"

namespace slamb {

/// What a state has beside what the optimizer keeps.
struct save_options {
  bool with_parameters =
      false;  ///< this rank's parameters too, so that nothing else of the optimizer's is needed to go on
};

/// Takes the bytes of a state: called with one piece after another, each of `state_piece_bytes` but for the last, which may
/// have fewer. A piece is there for the time of the call. What it throws ends the saving.
using byte_sink = std::function<void(std::span<const std::byte> piece)>;

/// The bytes of a state in memory, in a file or elsewhere. They are read twice, once to check all of them and once to restore
/// them: a pipe, which can be read once, must be kept in a file or in memory first.
struct byte_source {
  /// Copies bytes first … first + to.size() − 1, at most `state_piece_bytes`, all of which there are; or throws.
  using read_function = std::function<void(std::uint64_t first, std::span<std::byte> to)>;

  byte_source(std::uint64_t how_many, read_function from, std::string as = "load_state() was given")
      : bytes(how_many), read(std::move(from)), given_as(std::move(as)) {}

  std::uint64_t bytes;  ///< how many there are
  read_function read;
  std::string given_as;  ///< how messages begin
};

/// Bytes that are saved or restored at a time.
inline constexpr std::size_t state_piece_bytes = std::size_t{4} << 20U;

/// Bytes of text that a state begins with.
inline constexpr std::size_t state_text_bytes = 512;

/// How a saved state is restored.
struct restore_options {
  /// Also takes the state of another rank or of another number of ranks. Errors then start at zero, for what other ranks had
  /// not sent is not in it; at a rank that is given its own state as well. So say it on all ranks or on none, and give all the
  /// same parameters. Where momenta differ between ranks, with SLAMB and in the local steps of 0/1 Adam, give every rank the
  /// state of one, and expect what the others had kept back to be lost.
  bool from_other_ranks = false;
  /// Restores the parameters too, where the state has them. False: they stay as they are, for callers who restore them.
  bool parameters = true;
};

/// Whose a part of the state is.
enum class state_part {
  common,          ///< means the same to every rank
  errors,          ///< this rank's own errors: zero when they come from other ranks
  fact,            ///< not restored: must be the same, or the rest does not fit
  fact_of_errors,  ///< the same of the errors
  parameters       ///< the user's own: saved and restored where that is asked for
};

/// What is called for each part of a state: its name, its bytes in the memory of the backend or of the host, and whose it is.
using state_visitor = std::function<void(std::string_view name, std::span<std::byte> bytes, state_part whose)>;

/// Whose state it is.
struct state_kind {
  std::string_view recipe;    ///< for messages too
  std::string_view policies;  ///< a name of their types

  std::uint64_t hash() const noexcept { return hash_of(recipe) ^ (hash_of(policies) << 1U); }
};

/// Whose states an optimizer saves and loads.
template <class Optimizer>
state_kind kind_of() noexcept {
  return {Optimizer::recipe_name, typeid(typename Optimizer::options_type).name()};
}

/// What the text of a state says beside its kind and rank.
struct state_facts {
  std::uint64_t step = 0;
  std::uint64_t tensors = 0;
  std::uint64_t elements = 0;  ///< of all tensors
};

/// The bytes of a value in host memory.
template <class T>
requires std::is_trivially_copyable_v<std::remove_const_t<T>>
auto bytes_of(T& value) noexcept {
  if constexpr (std::is_const_v<T>)
    return std::as_bytes(std::span(&value, 1));
  else
    return std::as_writable_bytes(std::span(&value, 1));
}

/// The bytes of a vector's values.
template <class Vector>
auto bytes_of_all(Vector& values) noexcept {
  if constexpr (std::is_const_v<Vector>)
    return std::as_bytes(std::span(values));
  else
    return std::as_writable_bytes(std::span(values));
}

namespace detail {

/// What stands between the text and the parts. All numbers are in the byte order of the machine.
struct state_header {
  char magic[8] = {'s', 'l', 'a', 'm', 'b', ' ', 's', '2'};
  std::uint64_t kind = 0;  ///< `state_kind::hash`
  std::uint64_t rank = 0;
  std::uint64_t world = 1;
  std::uint64_t bytes = 0;  ///< of all of it, from the text to the hash
  std::uint64_t has_parameters = 0;

  bool is_of_this_format() const noexcept { return std::memcmp(magic, state_header{}.magic, sizeof(magic)) == 0; }
};

/// What stands in front of a part.
struct part_header {
  std::uint64_t name = 0;  ///< hash
  std::uint64_t bytes = 0;
};

inline constexpr std::size_t state_hash_bytes = sizeof(std::uint64_t);
inline constexpr std::size_t least_state_bytes = state_text_bytes + sizeof(state_header) + state_hash_bytes;
static_assert(state_text_bytes % 8 == 0 && sizeof(state_header) % 8 == 0 && state_piece_bytes % 8 == 0);

constexpr std::uint64_t padded(std::uint64_t bytes) noexcept { return (bytes + 7) / 8 * 8; }

/// The same with whole words.
inline std::uint64_t hash_with_words(std::uint64_t hash, std::span<const std::byte> bytes) noexcept {
  for (std::size_t i = 0; i + 8 <= bytes.size(); i += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes.data() + i, 8);
    hash = hash_with(hash, word);
  }
  return hash;
}

/// The header in the first bytes of a state; of fewer bytes than it takes, one of no kind.
inline state_header header_in(std::span<const std::byte> first) noexcept {
  state_header header{.magic = {}};
  if (first.size() >= state_text_bytes + sizeof(header))
    std::memcpy(&header, first.data() + state_text_bytes, sizeof(header));
  return header;
}

/// The same of a source.
inline state_header header_of(const byte_source& from) {
  state_header header{.magic = {}};
  if (from.bytes >= least_state_bytes) from.read(state_text_bytes, std::as_writable_bytes(std::span(&header, 1)));
  return header;
}
inline bool has_no_parameters(const byte_source& from) {
  const state_header header = header_of(from);
  return header.is_of_this_format() && header.has_parameters == 0;
}

/// The name of a type for people: without the mangling of the compiler, if it can be undone, and without the namespace.
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

/// The text at the beginning of a state: lines, and blanks up to a last line break. Long names of policies are cut.
inline std::string text_of_state(const state_kind& kind, const state_header& header, const state_facts& facts) {
  const auto line = [](const char* name, const std::string& value) { return std::string(name) + value + '\n'; };
  const auto number = [](std::uint64_t value) { return std::to_string(value); };
  const std::string first = "slamb saved state, format 2\n" + line("optimizer   ", std::string(kind.recipe));
  const std::string rest =
      line("rank        ", number(header.rank) + " of " + number(header.world)) +
      line("step        ", number(facts.step)) +
      line("tensors     ", number(facts.tensors) + ", of " + number(facts.elements) + " elements") +
      line("parameters  ", header.has_parameters != 0 ? "saved" : "not saved") +
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

/// Hands bytes to a sink in pieces, and their hash behind them.
class state_writer {
 public:
  /// @param bytes  of the state; the last are the hash
  state_writer(const byte_sink& to, std::uint64_t bytes)
      : to_(&to), piece_(static_cast<std::size_t>(std::min<std::uint64_t>(bytes, state_piece_bytes))) {}

  /// @param copy  copy(from, to) for some bytes at a time
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
  /// Bytes of the host.
  void add(std::span<const std::byte> from) {
    add(from, [](std::span<const std::byte> some, std::span<std::byte> to) { std::ranges::copy(some, to.begin()); });
  }

  void finish() {
    hash_ = hash_with_words(hash_, std::span(piece_).first(filled_));
    std::memcpy(piece_.data() + filled_, &hash_, state_hash_bytes);  // whole words so far, and room for one more
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

/// Reads a source from its beginning to its end, and hashes what it reads.
class state_reader {
 public:
  explicit state_reader(const byte_source& from)
      : from_(&from), piece_(static_cast<std::size_t>(std::min<std::uint64_t>(from.bytes, state_piece_bytes))) {}

  /// use(some) for the next bytes, some at a time, whole words each but for the last.
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

/// A value of a source.
template <class T>
T read_from(const byte_source& from, std::uint64_t first) {
  T value;
  from.read(first, std::as_writable_bytes(std::span(&value, 1)));
  return value;
}

/// Appends to `all`, which grows once.
inline byte_sink appending_to(std::vector<std::byte>& all) {
  return [&all](std::span<const std::byte> piece) {
    if (all.empty()) all.reserve(static_cast<std::size_t>(header_in(piece).bytes));
    all.insert(all.end(), piece.begin(), piece.end());
  };
}

}  // namespace detail

/// Bytes in memory, which must stay there as long as they are read.
inline byte_source source_in(std::span<const std::byte> saved) {
  return {saved.size(), [saved](std::uint64_t first, std::span<std::byte> to) {
            std::ranges::copy(saved.subspan(static_cast<std::size_t>(first), to.size()), to.begin());
          }};
}

/// Whether the bytes begin as a state of that kind does; `restore_parts` looks at all of them.
inline bool is_state_of(const state_kind& kind, std::span<const std::byte> saved) noexcept {
  const detail::state_header header = detail::header_in(saved);
  return header.is_of_this_format() && header.kind == kind.hash();
}

inline bool is_state_of(const state_kind& kind, const byte_source& from) {
  const detail::state_header header = detail::header_of(from);
  return header.is_of_this_format() && header.kind == kind.hash();
}

/// Saves a state, piece by piece.
///
/// @param ranks        whose state this is, and by whom `executor` waits
/// @param visit_parts  calls its argument for each part, always in the same order; bytes in the memory of `executor` or of
///                     the host
/// @throws what `to` throws, and `executor`
template <class Executor>
void save_parts(const Executor& executor, const state_kind& kind, const typename Executor::ranks_type& ranks,
                const std::function<void(const state_visitor&)>& visit_parts, const byte_sink& to,
                const save_options& options = {}, const state_facts& facts = {}) {
  detail::state_header header{.kind = kind.hash(),
                              .rank = static_cast<std::uint64_t>(ranks.rank()),
                              .world = static_cast<std::uint64_t>(ranks.size()),
                              .bytes = detail::least_state_bytes,
                              .has_parameters = options.with_parameters ? 1U : 0U};
  const auto visit_saved = [&](const auto& part) {
    visit_parts([&](std::string_view name, std::span<const std::byte> bytes, state_part whose) {
      if (whose != state_part::parameters || options.with_parameters) part(name, bytes);
    });
  };
  visit_saved([&header](std::string_view, std::span<const std::byte> part) {
    header.bytes += sizeof(detail::part_header) + detail::padded(part.size());
  });
  detail::state_writer all(to, header.bytes);
  const std::string text = detail::text_of_state(kind, header, facts);
  all.add(std::as_bytes(std::span(text)));
  all.add(bytes_of(std::as_const(header)));
  visit_saved([&](std::string_view name, std::span<const std::byte> part) {
    const detail::part_header its{hash_of(name), part.size()};
    all.add(bytes_of(its));
    all.add(part, [&](std::span<const std::byte> some, std::span<std::byte> piece) {
      executor.download(some, piece, ranks);
    });
    constexpr std::array<std::byte, 8> zeros{};
    all.add(std::span(zeros).first(static_cast<std::size_t>(detail::padded(part.size()) - part.size())));
  });
  all.finish();
}

/// The bytes of a state.
template <class Executor>
std::vector<std::byte> save_parts(const Executor& executor, const state_kind& kind,
                                  const typename Executor::ranks_type& ranks,
                                  const std::function<void(const state_visitor&)>& visit_parts) {
  std::vector<std::byte> all;
  save_parts(executor, kind, ranks, visit_parts, detail::appending_to(all));
  return all;
}

/// Sets a part of a state to 0. It may be of the host's memory, which on a device a copy reaches, and not what clears the
/// device's.
template <class Executor>
void clear_by_copies(std::span<std::byte> part, const Executor& executor) {
  const std::vector<std::byte> zeros(std::min(part.size(), std::size_t{1} << 20U));
  for (; !part.empty(); part = part.subspan(std::min(part.size(), zeros.size())))
    executor.upload(std::span<const std::byte>(zeros).first(std::min(part.size(), zeros.size())), part);
}

namespace detail {

/// A saved state that is checked, and restored once it is found to fit.
class saved_state {
 public:
  using visit_function = std::function<void(const state_visitor&)>;

  saved_state(const byte_source& from, const state_kind& kind, const restore_options& options)
      : from_(&from), kind_(kind), options_(options) {}

  /// Reads all of it, and changes nothing.
  /// @throws std::invalid_argument that says what does not fit; what the source throws
  void require_fits(int rank, int world, const visit_function& visit_parts) {
    require_whole();
    if (header_.kind != kind_.hash())
      refuse("the state of another optimizer; it must be one of " + std::string(kind_.recipe) +
             " with the same policies");
    const bool is_own =
        header_.rank == static_cast<std::uint64_t>(rank) && header_.world == static_cast<std::uint64_t>(world);
    if (!is_own && !options_.from_other_ranks)
      refuse("the state of rank " + std::to_string(header_.rank) + " of " + std::to_string(header_.world) +
             ", but this is rank " + std::to_string(rank) + " of " + std::to_string(world) +
             "; with restore_options{.from_other_ranks = true} it is taken without its errors");
    std::uint64_t at = state_text_bytes + sizeof(header_);
    visit_parts([&](std::string_view name, std::span<const std::byte> part, state_part whose) {
      if (is_saved(whose)) at = require_part(at, name, part, whose);
    });
    if (at != end_of_parts()) refuse("a state with more in it than this optimizer has");
  }

  /// Reads all of it again and restores it.
  /// @throws error if what is read is not what was checked, and what the source throws: a part has been restored then
  template <class Executor>
  void restore(Executor& executor, const visit_function& visit_parts) const {
    state_reader all(*from_);
    all.skip(state_text_bytes + sizeof(header_));
    visit_parts([&](std::string_view /*name*/, std::span<std::byte> part, state_part whose) {
      if (!is_saved(whose)) return;
      const bool is_cleared = whose == state_part::errors && options_.from_other_ranks;
      if (is_cleared) clear_by_copies(part, executor);
      const bool is_restored = !is_cleared && (whose == state_part::errors || whose == state_part::common ||
                                               (whose == state_part::parameters && options_.parameters));
      std::uint64_t bytes = 0;  // as the source says it: that of errors of other ranks may be another than here
      all.next(sizeof(part_header), [&](std::span<const std::byte> its) {
        std::memcpy(&bytes, its.data() + offsetof(part_header, bytes), sizeof(bytes));
      });
      if (padded(bytes) > end_of_parts() - all.at() || (is_restored && bytes != part.size())) refuse_changed();
      all.next(padded(bytes), [&](std::span<const std::byte> some) {
        const std::span<const std::byte> own = some.first(std::min(some.size(), part.size()));
        if (is_restored) executor.upload(own, part.first(own.size()));
        part = part.subspan(own.size());
      });
    });
    if (all.hash() != hash_) refuse_changed();
  }

 private:
  [[noreturn]] void refuse(const std::string& why) const {
    throw std::invalid_argument("slamb: " + from_->given_as + " " + why);
  }
  [[noreturn]] void refuse_changed() const {
    throw error("slamb: " + from_->given_as +
                " a state that was changed while it was read; the optimizer holds a part of "
                "it: load a state that stays as it is before the next step");
  }

  bool is_saved(state_part whose) const noexcept {
    return whose != state_part::parameters || header_.has_parameters != 0;
  }
  std::uint64_t end_of_parts() const noexcept { return from_->bytes - state_hash_bytes; }

  void require_whole() {
    if (from_->bytes < least_state_bytes) refuse(std::to_string(from_->bytes) + " bytes, which are no saved state");
    header_ = header_of(*from_);
    if (!header_.is_of_this_format()) refuse("bytes that are not a state saved by this version");
    if (header_.bytes != from_->bytes)
      refuse(std::to_string(from_->bytes) + " bytes of a state of " + std::to_string(header_.bytes));
    state_reader all(*from_);
    all.skip(end_of_parts());
    hash_ = all.hash();
    if (read_from<std::uint64_t>(*from_, end_of_parts()) != hash_)
      refuse("a state whose bytes have changed since it was saved");
  }

  // Where the next part begins.
  std::uint64_t require_part(std::uint64_t at, std::string_view name, std::span<const std::byte> part,
                             state_part whose) const {
    if (end_of_parts() - at < sizeof(part_header)) refuse("a state without the " + std::string(name));
    const auto its = read_from<part_header>(*from_, at);
    const std::uint64_t left = end_of_parts() - at - sizeof(its);
    if (its.name != hash_of(name) || its.bytes > left || padded(its.bytes) > left)
      refuse("a state in which the " + std::string(name) + " should follow and does not");
    const bool has_any_size = options_.from_other_ranks && whose == state_part::errors;
    if (its.bytes != part.size() && !has_any_size)
      refuse("a state with " + std::to_string(its.bytes) + " bytes of " + std::string(name) +
             ", but this optimizer has " + std::to_string(part.size()) +
             "; tensors and policies must be those of the optimizer that was saved");
    const bool is_compared =
        whose == state_part::fact || (whose == state_part::fact_of_errors && !options_.from_other_ranks);
    if (is_compared) {
      std::vector<std::byte> saved(part.size());
      from_->read(at + sizeof(its), saved);
      if (!std::ranges::equal(saved, part))
        refuse("a state of other " + std::string(name) + "; they must be those of the optimizer that was saved" +
               (whose == state_part::fact_of_errors
                    ? "; with restore_options{.from_other_ranks = true} it is taken without its errors"
                    : ""));
    }
    return at + sizeof(its) + padded(its.bytes);
  }

  const byte_source* from_;
  state_kind kind_;
  restore_options options_;
  state_header header_{};
  std::uint64_t hash_ = 0;
};

}  // namespace detail

/// Restores what `save_parts` has saved; nothing is changed unless all of it fits.
///
/// @param is_restoring  becomes true where the first byte may change, and false at the end
/// @throws std::invalid_argument that says what does not fit; with `is_restoring` true, error if the source's bytes have changed
///         since they were checked; what the source and `executor` throw
template <class Executor>
void restore_parts(Executor& executor, const state_kind& kind, const typename Executor::ranks_type& ranks,
                   const byte_source& from, const restore_options& options,
                   const std::function<void(const state_visitor&)>& visit_parts, bool& is_restoring) {
  detail::saved_state saved(from, kind, options);
  saved.require_fits(ranks.rank(), ranks.size(), visit_parts);
  executor.wait(ranks);  // a copy from memory that is not pinned may wait for what is on the stream
  is_restoring = true;
  saved.restore(executor, visit_parts);
  is_restoring = false;
}

}  // namespace slamb
