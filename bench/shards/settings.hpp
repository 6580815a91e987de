// The settings of the benchmarks of shards, and their command line.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "../../examples/common/command_line.hpp"

namespace bench::shards {

struct settings {
  int shards = 2;             ///< threads; processes are all shards
  std::uint64_t smaller = 1;  ///< each tensor of BERT-Large has this part of its elements
  std::uint64_t rounds = 15;  ///< of timed steps
};

/// Reads the command line; `processes` is their number, or 0 for threads. Prints the help or the version if asked for, and then
/// returns nothing.
///
/// @throws programs::usage_error
inline std::optional<settings> parse_command_line(int argc, const char* const* argv, const std::string& program,
                                                  int processes) {
  using programs::integer_in;
  settings chosen;
  programs::command_line line(program,
                              "Times the steps of LAMB and AdamW on BERT-Large's tensors, cut into shards without "
                              "replicas: with a shard group, and without one, as if each rank had tensors of its own.");
  if (processes == 0)
    line.add("--shards", chosen.shards, "Shards, each on a thread; 1: no shard group, but still the cost of one batch",
             "N")
        ->check(integer_in(1, 64));
  line.add("--smaller", chosen.smaller, "Each tensor has an N-th of its elements", "N")->check(integer_in(1, 1024));
  line.add("--rounds", chosen.rounds, "Timed steps of each optimizer", "N")->check(integer_in(1, 10'000));
  if (!line.read(argc, argv)) return std::nullopt;
  if (processes > 0) chosen.shards = processes;
  return chosen;
}

}  // namespace bench::shards
