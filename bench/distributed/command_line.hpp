// The command line of slamb_bench_mpi. It checks every value before any work.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "../../examples/common/command_line.hpp"
#include "settings.hpp"

namespace bench::distributed {

namespace detail {

inline void add_options(programs::command_line& line, settings& into, std::span<const std::string_view> optimizers) {
  using namespace programs;
  constexpr std::uint64_t most_steps = 1'000'000;
  line.add("--parameters", into.parameters, "Elements of the model, in tensors shaped as BERT's", "N")
      ->check(integer_in(1000, 2'000'000'000));
  line.add_names("--optimizer", into.optimizers,
                 "Optimizers from " + joined(optimizers) + "; repeat it or join by commas. LAMB is always measured")
      ->capture_default_str()
      ->check(one_of(optimizers));
  line.add("--steps", into.steps, "Steps to time of each optimizer, rounded up to whole periods", "N")
      ->check(integer_in(1, most_steps));
  line.add("--seconds", into.seconds, "Seconds of steps to time, rounded up to whole periods", "X")
      ->check(number_in("[0, 86400]", 0.0, 86400.0));
  line.add("--threads", into.threads, "Threads of each rank's optimizer", "N")->check(integer_in(1, 1024));
  line.add("--k", into.k, "SLAMB: part of the momentum sent at each step", "X")
      ->check(number_in("[0.0001, 1]", 1e-4, 1.0));
  line.add("--block", into.block, "SLAMB: elements of the momentum that are sent together", "N")
      ->check(integer_in(1, std::uint64_t{1} << 20));
  line.add("--local-steps", into.local_steps,
           "SLAMB: steps from one exchange of the parameters to the next (H), its period [100; of slamb_by_differences "
           "2]",
           "N")
      ->check(integer_in(1, most_steps));
  line.add("--local-interval", into.local_interval, "0/1 Adam: steps from one exchange to the next, its period", "N")
      ->check(integer_in(1, 1000));
  line.add("--message-bytes", into.message_bytes, "Largest size of a message between ranks", "N")
      ->check(integer_in(64, std::uint64_t{1} << 30));
  line.add_flag(
      "--in-parts", into.in_parts,
      "Takes steps in parts, tensor by tensor from the last, so that exchanges run beside computation; nothing "
      "is predicted then");
  line.add_option(
          "--link-bandwidth", into.link_bandwidth,
          "Bits a second to which each rank's link is limited in each direction, for the prediction [none is made]")
      ->type_name("X")
      ->check(number_in("(0, 1e15]", 0.0, 1e15));
  line.add("--latency", into.latency, "Seconds of a hop between ranks, for the prediction", "X")
      ->check(number_in("[0, 1000]", 0.0, 1000.0));
  line.add_option("--json", into.json, "Write settings and results")->type_name("FILE")->check(file_name());
}

}  // namespace detail

/// Reads the command line. Prints the help or the version if asked for, and then returns nothing.
///
/// @throws programs::usage_error
inline std::optional<settings> parse_command_line(int argc, const char* const* argv,
                                                  std::span<const std::string_view> optimizers) {
  settings chosen;
  programs::command_line line("slamb_bench_mpi",
                              "Times the steps of the optimizers over the processes that mpirun starts, each of which "
                              "is a rank, and compares them with dense LAMB's and with what the planner predicts.");
  detail::add_options(line, chosen, optimizers);
  if (!line.read(argc, argv)) return std::nullopt;
  programs::refuse_repetition("--optimizer", chosen.optimizers, ", but each optimizer is measured once");
  return chosen;
}

}  // namespace bench::distributed
