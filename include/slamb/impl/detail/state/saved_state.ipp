#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

#include "slamb/core/detail/hash.hpp"
#include "slamb/core/error.hpp"
#include "slamb/detail/state/saved_state.hpp"

namespace slamb::detail {

// Passes bytes to a sink in pieces, and their hash at the end.
class state_writer {
 public:
  // @param bytes  size of the state, including the hash
  state_writer(const byte_sink& to, std::uint64_t bytes)
      : to_(&to), piece_(static_cast<std::size_t>(std::min<std::uint64_t>(bytes, state_piece_bytes))) {}

  // Adds bytes of any memory.
  // @param copy  copy(from, to) copies some of them to host memory
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
  // Adds bytes of host memory.
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

// Reads a source from its beginning to its end, and hashes the bytes.
class state_reader {
 public:
  explicit state_reader(const byte_source& from)
      : from_(&from), piece_(static_cast<std::size_t>(std::min<std::uint64_t>(from.bytes, state_piece_bytes))) {}

  // Calls use(some) for the next `bytes` bytes, piece by piece. All pieces but the last are whole words.
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

// Reads a value from a source, from byte `first` on.
template <class T>
T read_from(const byte_source& from, std::uint64_t first) {
  T value;
  from.read(first, std::as_writable_bytes(std::span(&value, 1)));
  return value;
}

SLAMB_DECL void save_parts(const backend_memory& memory, const state_kind& kind, const state_owner& owner,
                           const std::function<void(const state_visitor&)>& visit_parts, const byte_sink& to,
                           const save_options& options, const state_summary& summary, const whole_state* whole) {
  state_header header{.kind = kind.hash(),
                      .bytes = least_state_bytes,
                      .saved_copies = options.with_parameters ? state_header::parameters : state_header::none};
  owner.sign(header);
  if (whole != nullptr) header.shard = header.shards = 0;
  const auto visit_saved = [&](const auto& part) {
    visit_parts([&](std::string_view name, std::span<const std::byte> bytes, state_part whose,
                    const state_rule& /*rule*/, const of_elements& of) {
      if (whose == state_part::parameters && !options.with_parameters) return;
      if (whose == state_part::masters) {
        if (options.with_parameters) return;
        header.saved_copies = state_header::masters;
      }
      if (whole != nullptr && whose == state_part::errors) bytes = {};
      const bool is_gathered = whole != nullptr && of.bytes != 0 && whose != state_part::errors;
      part(name, bytes, is_gathered ? whole->bytes_of(of) : bytes.size(), is_gathered, of);
    });
  };
  visit_saved([&header](std::string_view, std::span<const std::byte> /*own*/, std::uint64_t bytes, bool /*is_gathered*/,
                        const of_elements& /*of*/) { header.bytes += sizeof(part_header) + padded(bytes); });
  if (whole != nullptr && !whole->is_first())  // takes part in the collectives
    return visit_saved([&](std::string_view, std::span<const std::byte> own, std::uint64_t /*bytes*/, bool is_gathered,
                           const of_elements& of) {
      if (is_gathered) whole->gather(of, own, [](std::span<const std::byte> /*some*/) {});
    });
  // A failure to write must not keep the other ranks waiting in the next collective.
  std::exception_ptr failure;
  const auto write = [&](const auto& body) {
    if (failure != nullptr) return;
    try {
      body();
    } catch (...) {
      if (whole == nullptr) throw;
      failure = std::current_exception();
    }
  };
  state_writer all(to, header.bytes);
  const std::string text = text_of_state(kind, header, summary);
  write([&] {
    all.add(std::as_bytes(std::span(text)));
    all.add(bytes_of(std::as_const(header)));
  });
  visit_saved([&](std::string_view name, std::span<const std::byte> part, std::uint64_t bytes, bool is_gathered,
                  const of_elements& of) {
    const part_header its{hash_of(name), bytes};
    write([&] { all.add(bytes_of(its)); });
    if (is_gathered)
      whole->gather(of, part, [&](std::span<const std::byte> some) { write([&] { all.add(some); }); });
    else
      write([&] {
        all.add(part, [&](std::span<const std::byte> some, std::span<std::byte> piece) {
          memory.download(some, piece, owner.waiter);
        });
      });
    constexpr std::array<std::byte, 8> zeros{};
    write([&] { all.add(std::span(zeros).first(static_cast<std::size_t>(padded(bytes) - bytes))); });
  });
  write([&] { all.finish(); });
  if (failure != nullptr) std::rethrow_exception(failure);
}

SLAMB_DECL std::vector<std::byte> save_parts(const backend_memory& memory, const state_kind& kind,
                                             const state_owner& owner,
                                             const std::function<void(const state_visitor&)>& visit_parts) {
  std::vector<std::byte> all;
  save_parts(memory, kind, owner, visit_parts, appending_to(all));
  return all;
}

/// Sets a part of a state to 0 by copies. A part may be in host memory, which a device's `clear` does not reach.
SLAMB_DECL void clear_by_copies(std::span<std::byte> part, const backend_memory& memory) {
  const std::vector<std::byte> zeros(std::min(part.size(), std::size_t{1} << 20U));
  for (; !part.empty(); part = part.subspan(std::min(part.size(), zeros.size())))
    memory.upload_bytes(std::span(zeros).first(std::min(part.size(), zeros.size())), part);
}

/// Checks a saved state, and then restores it.
class saved_state {
 public:
  using visit_function = std::function<void(const state_visitor&)>;

  /// @param whole  not null: the state is one of whole tensors
  saved_state(const byte_source& from, const state_kind& kind, const restore_options& options, const whole_state* whole)
      : from_(&from), kind_(kind), options_(options), whole_(whole) {}

  /// Reads and checks the complete state. Changes nothing.
  /// @throws std::invalid_argument that names the mismatch; the exceptions of the source
  void require_fits(const state_owner& owner, const visit_function& visit_parts) {
    require_whole();
    if (header_.kind != kind_.hash())
      reject("the state of another optimizer; it must be a state of " + std::string(kind_.recipe) +
             " with the same policies");
    state_header own;
    owner.sign(own);
    if (whole_ != nullptr && header_.shards != 0)
      reject("the state of " + rank_in(header_) +
             ", but restore_options::whole_tensors asks for a state of whole tensors; save one with "
             "save_options{.whole_tensors = true}");
    if (whole_ == nullptr && (header_.shard != own.shard || header_.shards != own.shards))
      reject(
          "the state of " + rank_in(header_) + ", but this is " + rank_in(own) +
          (header_.shards == 0
               ? "; to take this shard from a state of whole tensors, pass restore_options{.whole_tensors = true}"
               : "; a rank can load only the state of its own shard, of as many shards. For others save the state of "
                 "whole tensors: save_options{.whole_tensors = true}"));
    const bool is_of_this_rank = header_.rank == own.rank && header_.world == own.world;
    if (!is_of_this_rank && owner.keeps_part)
      reject("the state of " + rank_in(header_) + ", but this is " + rank_in(own) +
             "; a rank whose optimizer updates a part of the model can load only its own state, of as many ranks");
    if (!is_of_this_rank && !options_.from_other_ranks)
      reject("the state of " + rank_in(header_) + ", but this is " + rank_in(own) +
             "; to load it without its compression errors, pass restore_options{.from_other_ranks = true}");
    std::uint64_t at = state_text_bytes + sizeof(header_);
    bool has_masters = false;
    visit_parts([&](std::string_view name, std::span<const std::byte> part, state_part whose, const state_rule& rule,
                    const of_elements& of) {
      has_masters = has_masters || whose == state_part::masters;
      if (is_saved(whose)) at = require_part(at, name, part, bytes_of_saved(part, of), whose, rule);
    });
    if (at != end_of_parts() && header_.saved_copies == state_header::masters && !has_masters)
      reject(
          "a state without the parameters, but with the optimizer's master copies, which this optimizer does not have; "
          "load one that was saved with_parameters");
    if (at != end_of_parts()) reject("a state with more parts than this optimizer has");
  }

  /// Reads the state again and restores it.
  /// @throws error if the bytes have changed since they were checked; the exceptions of the source. A part has been restored then
  void restore(const backend_memory& memory, const visit_function& visit_parts) const {
    state_reader all(*from_);
    all.skip(state_text_bytes + sizeof(header_));
    visit_parts([&](std::string_view /*name*/, std::span<std::byte> part, state_part whose, const state_rule& /*rule*/,
                    const of_elements& of) {
      if (!is_saved(whose)) return;
      if (is_cleared(whose)) clear_by_copies(part, memory);
      const bool is_restored = restores(whose);
      std::uint64_t bytes = 0;  // as in the source: errors of other ranks may have another size than here
      all.next(sizeof(part_header), [&](std::span<const std::byte> its) {
        std::memcpy(&bytes, its.data() + offsetof(part_header, bytes), sizeof(bytes));
      });
      if (padded(bytes) > end_of_parts() - all.at() || (is_restored && bytes != bytes_of_saved(part, of)))
        reject_changed();
      if (is_restored && whole_ != nullptr && of.bytes != 0) return scatter(all, padded(bytes), part, of, memory);
      all.next(padded(bytes), [&](std::span<const std::byte> some) {
        const std::span<const std::byte> own = some.first(std::min(some.size(), part.size()));
        if (is_restored) memory.upload_bytes(own, part.first(own.size()));
        part = part.subspan(own.size());
      });
    });
    if (all.hash() != hash_) reject_changed();
  }

 private:
  std::uint64_t bytes_of_saved(std::span<const std::byte> part, const of_elements& of) const {
    return whole_ != nullptr && of.bytes != 0 ? whole_->bytes_of(of) : part.size();
  }
  // Restores this rank's shards from a part of whole tensors.
  void scatter(state_reader& all, std::uint64_t bytes, std::span<std::byte> part, const of_elements& of,
               const backend_memory& memory) const {
    std::uint64_t at = 0;
    all.next(bytes, [&](std::span<const std::byte> some) {
      const std::uint64_t end = at + some.size();
      whole_->visit_own(of, [&](std::uint64_t first, std::uint64_t own, std::uint64_t count) {
        const std::uint64_t from = std::max(first, at), to = std::min(first + count, end);
        if (from >= to) return;
        memory.upload_bytes(
            some.subspan(static_cast<std::size_t>(from - at), static_cast<std::size_t>(to - from)),
            part.subspan(static_cast<std::size_t>(own + from - first), static_cast<std::size_t>(to - from)));
      });
      at = end;
    });
  }

  [[noreturn]] void reject(const std::string& why) const {
    throw std::invalid_argument("slamb: " + from_->given_as + " " + why);
  }
  [[noreturn]] void reject_changed() const {
    throw error("slamb: " + from_->given_as +
                " a state that was changed while it was read, so the optimizer now has only a part of it; load an "
                "unchanged state before the next step");
  }

  bool is_saved(state_part whose) const noexcept {
    if (whose == state_part::parameters) return header_.saved_copies == state_header::parameters;
    return whose != state_part::masters || header_.saved_copies == state_header::masters;
  }
  bool leaves_errors() const noexcept { return options_.from_other_ranks || whole_ != nullptr; }
  bool is_cleared(state_part whose) const noexcept { return whose == state_part::errors && leaves_errors(); }
  bool restores(state_part whose) const noexcept {
    return whose == state_part::common || whose == state_part::masters ||
           (whose == state_part::errors && !leaves_errors()) ||
           (whose == state_part::parameters && options_.parameters);
  }
  std::uint64_t end_of_parts() const noexcept { return from_->bytes - state_hash_bytes; }

  void require_whole() {
    if (from_->bytes < least_state_bytes)
      reject(std::to_string(from_->bytes) + " bytes, which are too few for a saved state");
    header_ = header_of(*from_);
    if (!header_.is_of_this_format()) reject("bytes that are not a state saved by this version");
    if (header_.bytes != from_->bytes)
      reject(std::to_string(from_->bytes) + " bytes of a state that has " + std::to_string(header_.bytes));
    state_reader all(*from_);
    all.skip(end_of_parts());
    hash_ = all.hash();
    if (read_from<std::uint64_t>(*from_, end_of_parts()) != hash_)
      reject("a state whose bytes have changed since it was saved");
  }

  // Checks one part, at byte `at`. Returns the place of the next part.
  // @param bytes  of the part, as it is saved
  std::uint64_t require_part(std::uint64_t at, std::string_view name, std::span<const std::byte> part,
                             std::uint64_t bytes, state_part whose, const state_rule& rule) const {
    if (end_of_parts() - at < sizeof(part_header)) reject("a state without the " + std::string(name));
    const auto its = read_from<part_header>(*from_, at);
    const std::uint64_t left = end_of_parts() - at - sizeof(its);
    if (its.name != hash_of(name) || its.bytes > left || padded(its.bytes) > left)
      reject("a state in which the " + std::string(name) + " is not at its place");
    if (its.bytes == 0 && bytes != 0 && whose == state_part::errors && !is_cleared(whose))
      reject("a state without the " + std::string(name) +
             ", as it is saved of whole tensors; to load it without compression errors, pass "
             "restore_options{.from_other_ranks = true}");
    if (its.bytes != bytes && !is_cleared(whose))
      reject("a state with " + std::to_string(its.bytes) + " bytes of " + std::string(name) +
             ", but this optimizer has " + std::to_string(bytes) +
             "; load it into an optimizer with the same tensors and policies");
    const bool is_compared = whose == state_part::fact || (whose == state_part::fact_of_errors && !leaves_errors());
    const bool is_ruled = rule && restores(whose);
    if (is_compared || is_ruled) {
      std::vector<std::byte> saved(part.size());
      from_->read(at + sizeof(its), saved);
      if (is_compared) require_same(name, saved, part, whose);
      if (is_ruled) require_obeyed(rule, name, saved);
    }
    return at + sizeof(its) + padded(its.bytes);
  }

  void require_same(std::string_view name, std::span<const std::byte> saved, std::span<const std::byte> part,
                    state_part whose) const {
    if (std::ranges::equal(saved, part)) return;
    reject("a state with other " + std::string(name) +
           "; load it into an optimizer with the same tensors and policies" +
           (whose == state_part::fact_of_errors
                ? "; to load it without its compression errors, pass restore_options{.from_other_ranks = true}"
                : ""));
  }

  // Rejects bytes that break their rule: they were written wrongly, or not by an optimizer.
  void require_obeyed(const state_rule& rule, std::string_view name, std::span<const std::byte> saved) const {
    try {
      rule(saved);
    } catch (const std::invalid_argument& wrong) {
      std::string_view why = wrong.what();
      constexpr std::string_view begin = "slamb: ";
      if (why.starts_with(begin)) why.remove_prefix(begin.size());
      reject("a state whose " + std::string(name) + " cannot be right: " + std::string(why));
    }
  }

  const byte_source* from_;
  state_kind kind_;
  restore_options options_;
  const whole_state* whole_;
  state_header header_{};
  std::uint64_t hash_ = 0;
};

SLAMB_DECL void restore_parts(const backend_memory& memory, const state_kind& kind, const state_owner& owner,
                              const byte_source& from, const restore_options& options,
                              const std::function<void(const state_visitor&)>& visit_parts, bool& is_restoring,
                              const std::function<void()>& on_restored, const whole_state* whole) {
  saved_state saved(from, kind, options, whole);
  saved.require_fits(owner, visit_parts);
  memory.wait(owner.waiter);  // a copy from memory that is not pinned may wait for the stream
  is_restoring = true;
  saved.restore(memory, visit_parts);
  on_restored();
  is_restoring = false;
}

}  // namespace slamb::detail
