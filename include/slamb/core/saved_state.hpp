// Everything that an optimizer keeps from step to step, as bytes: saved whole, checked whole, and only then restored.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <typeinfo>
#include <vector>

#include "slamb/core/hash.hpp"

namespace slamb {

/// How a saved state is restored.
struct restore_options {
  /// Also takes the state of another rank or of another number of ranks. Errors then start at zero, for what other ranks had
  /// not sent is not in it; at a rank that is given its own state as well. So say it on all ranks or on none, and give all the
  /// same parameters. Where momenta differ between ranks, with SLAMB and in the local steps of 0/1 Adam, give every rank the
  /// state of one, and expect what the others had kept back to be lost.
  bool from_other_ranks = false;
};

/// Whose a part of the state is.
enum class state_part {
  common,         ///< means the same to every rank
  errors,         ///< this rank's own errors: zero when they come from other ranks
  fact,           ///< not restored: must be the same, or the rest does not fit
  fact_of_errors  ///< the same of the errors
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

/// What stands in front of the parts. All numbers are in the byte order of the machine.
struct state_header {
  char magic[8] = {'s', 'l', 'a', 'm', 'b', ' ', 's', '1'};
  std::uint64_t kind = 0;  ///< `state_kind::hash`
  std::uint64_t rank = 0;
  std::uint64_t world = 1;
  std::uint64_t bytes = 0;  ///< of all of it
  std::uint64_t hash = 0;   ///< of all of it, with 0 here
};

/// What stands in front of a part.
struct part_header {
  std::uint64_t name = 0;  ///< hash
  std::uint64_t bytes = 0;
};

constexpr std::size_t padded(std::size_t bytes) noexcept { return (bytes + 7) / 8 * 8; }

/// The same with whole words.
inline std::uint64_t hash_with_words(std::uint64_t hash, std::span<const std::byte> bytes) noexcept {
  for (std::size_t i = 0; i + 8 <= bytes.size(); i += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes.data() + i, 8);
    hash = hash_with(hash, word);
  }
  return hash;
}

/// The hash of a state that begins with `header`.
inline std::uint64_t hash_of_state(state_header header, std::span<const std::byte> all) noexcept {
  header.hash = 0;
  return hash_with_words(hash_with_words(hash_of_nothing, std::as_bytes(std::span(&header, 1))),
                         all.subspan(sizeof(header)));
}

}  // namespace detail

/// Whether the bytes begin as a state of that kind does; `restore_parts` looks at all of them.
inline bool is_state_of(const state_kind& kind, std::span<const std::byte> saved) noexcept {
  detail::state_header header;
  if (saved.size() < sizeof(header)) return false;
  std::memcpy(&header, saved.data(), sizeof(header));
  return header.kind == kind.hash();
}

/// The bytes of a state.
///
/// @param ranks        whose state this is, and by whom `executor` waits
/// @param visit_parts  calls its argument for each part, always in the same order; bytes in the memory of `executor` or of
///                     the host
template <class Executor>
std::vector<std::byte> save_parts(const Executor& executor, const state_kind& kind,
                                  const typename Executor::ranks_type& ranks,
                                  const std::function<void(const state_visitor&)>& visit_parts) {
  detail::state_header header{.kind = kind.hash(),
                              .rank = static_cast<std::uint64_t>(ranks.rank()),
                              .world = static_cast<std::uint64_t>(ranks.size())};
  std::size_t size = sizeof(header);
  visit_parts([&size](std::string_view, std::span<const std::byte> part, state_part) {
    size += sizeof(detail::part_header) + detail::padded(part.size());
  });
  std::vector<std::byte> all(size);
  std::size_t at = sizeof(header);
  visit_parts([&](std::string_view name, std::span<const std::byte> part, state_part) {
    const detail::part_header its{hash_of(name), part.size()};
    std::memcpy(all.data() + at, &its, sizeof(its));
    executor.download(part, std::span(all).subspan(at + sizeof(its), part.size()), ranks);
    at += sizeof(its) + detail::padded(part.size());
  });
  header.bytes = size;
  header.hash = detail::hash_of_state(header, all);
  std::memcpy(all.data(), &header, sizeof(header));
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

/// Restores what `save_parts` has saved; nothing is changed unless all of it fits.
///
/// @throws std::invalid_argument that says what does not fit
template <class Executor>
void restore_parts(Executor& executor, const state_kind& kind, const typename Executor::ranks_type& ranks,
                   std::span<const std::byte> saved, const restore_options& options,
                   const std::function<void(const state_visitor&)>& visit_parts) {
  const int rank = ranks.rank(), world = ranks.size();
  const auto refuse = [](const std::string& why) {
    throw std::invalid_argument("slamb: load_state() was given " + why);
  };
  detail::state_header header;
  if (saved.size() < sizeof(header)) refuse(std::to_string(saved.size()) + " bytes, which are no saved state");
  std::memcpy(&header, saved.data(), sizeof(header));
  if (std::memcmp(header.magic, detail::state_header{}.magic, sizeof(header.magic)) != 0)
    refuse("bytes that are not a state saved by this version");
  if (header.bytes != saved.size())
    refuse(std::to_string(saved.size()) + " bytes of a state of " + std::to_string(header.bytes));
  if (header.hash != detail::hash_of_state(header, saved))
    refuse("a state whose bytes have changed since it was saved");
  if (header.kind != kind.hash())
    refuse("the state of another optimizer; it must be one of " + std::string(kind.recipe) + " with the same policies");
  const bool is_own =
      header.rank == static_cast<std::uint64_t>(rank) && header.world == static_cast<std::uint64_t>(world);
  if (!is_own && !options.from_other_ranks)
    refuse("the state of rank " + std::to_string(header.rank) + " of " + std::to_string(header.world) +
           ", but this is rank " + std::to_string(rank) + " of " + std::to_string(world) +
           "; with restore_options{.from_other_ranks = true} it is taken without its errors");

  std::size_t at = sizeof(header);
  const auto next = [&](std::string_view name, std::size_t bytes, bool any_size) {
    detail::part_header its;
    if (saved.size() - at < sizeof(its)) refuse("a state without the " + std::string(name));
    std::memcpy(&its, saved.data() + at, sizeof(its));
    const std::size_t left = saved.size() - at - sizeof(its);
    if (its.name != hash_of(name) || its.bytes > left || detail::padded(its.bytes) > left)
      refuse("a state in which the " + std::string(name) + " should follow and does not");
    if (its.bytes != bytes && !any_size)
      refuse("a state with " + std::to_string(its.bytes) + " bytes of " + std::string(name) +
             ", but this optimizer has " + std::to_string(bytes) +
             "; tensors and policies must be those of the optimizer that was saved");
    const std::span<const std::byte> part = saved.subspan(at + sizeof(its), its.bytes);
    at += sizeof(its) + detail::padded(its.bytes);
    return part;
  };
  visit_parts([&](std::string_view name, std::span<std::byte> part, state_part what) {
    const std::span<const std::byte> from =
        next(name, part.size(), options.from_other_ranks && what == state_part::errors);
    const bool is_compared =
        what == state_part::fact || (what == state_part::fact_of_errors && !options.from_other_ranks);
    if (is_compared && !std::equal(from.begin(), from.end(), part.begin()))
      refuse("a state of other " + std::string(name) + "; they must be those of the optimizer that was saved" +
             (what == state_part::fact_of_errors
                  ? "; with restore_options{.from_other_ranks = true} it is taken without its errors"
                  : ""));
  });
  if (at != saved.size()) refuse("a state with more in it than this optimizer has");
  at = sizeof(header);
  executor.wait(ranks);  // a copy from memory that is not pinned may wait for what is on the stream
  visit_parts([&](std::string_view name, std::span<std::byte> part, state_part what) {
    const std::span<const std::byte> from = next(name, part.size(), true);
    if (what == state_part::errors && options.from_other_ranks)
      clear_by_copies(part, executor);
    else if (what == state_part::errors || what == state_part::common)
      executor.upload(from, part);
  });
}

}  // namespace slamb
