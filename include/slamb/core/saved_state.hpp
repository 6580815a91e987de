// A saved state from outside: its bytes, which come and go in pieces, and how it is saved and restored.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <utility>

namespace slamb {

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

/// What a state has beside what the optimizer keeps.
struct save_options {
  bool with_parameters =
      false;  ///< this rank's parameters too, so that nothing else of the optimizer's is needed to go on
};

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

}  // namespace slamb
