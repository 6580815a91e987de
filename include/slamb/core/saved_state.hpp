// Saving and restoring a state: its bytes, in pieces, and the options.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <utility>

namespace slamb {

/// Receives the bytes of a state, one piece after another. Each has `state_piece_bytes`, the last one maybe fewer. A piece is
/// valid during the call. An exception ends the saving.
using byte_sink = std::function<void(std::span<const std::byte> piece)>;

/// The bytes of a state in memory, in a file or elsewhere. They are read twice: to check all of them, then to restore them. Copy
/// a pipe to a file or to memory first.
struct byte_source {
  /// Copies bytes first … first + to.size() − 1, at most `state_piece_bytes` of existing bytes; or throws.
  using read_function = std::function<void(std::uint64_t first, std::span<std::byte> to)>;

  byte_source(std::uint64_t how_many, read_function from, std::string as = "load_state() was given")
      : bytes(how_many), read(std::move(from)), given_as(std::move(as)) {}

  std::uint64_t bytes;  ///< their number
  read_function read;
  std::string given_as;  ///< the beginning of error messages
};

/// Options of saving a state.
struct save_options {
  bool with_parameters =
      false;  ///< also saves this rank's parameters, so that a training can continue from the state alone
  /// With a shard group: saves the state of the whole tensors, which can be loaded with any number of shards, and without shards. All
  /// ranks of the group call it together, and the sink of the first receives the state; those of the others receive nothing. If the sink
  /// throws, the first rank throws its exception at the end of the call, and the others do not throw. Other shard groups need not call
  /// it. The parts of a tensor lie end to end, in the order of `parameter::shard`. Compression errors are not saved: without shards, load
  /// the state with `from_other_ranks` if the optimizer has some.
  bool whole_tensors = false;
};

/// Options of restoring a state.
struct restore_options {
  /// Also accepts the state of another rank or of another number of ranks. Compression errors then start at zero on every rank,
  /// also on a rank with its own state. Set it on all ranks or on none, and give all the same parameters. If momenta differ
  /// between ranks, as with SLAMB and in the local steps of 0/1 Adam, give every rank the state of one rank; the unsent momentum
  /// of the others is lost.
  bool from_other_ranks = false;
  /// Also restores the parameters, if the state has them. False: leaves them to the caller.
  bool parameters = true;
  /// With a shard group: the state is one of whole tensors, and each rank takes its part of them. Compression errors then start at zero.
  bool whole_tensors = false;
};

}  // namespace slamb
