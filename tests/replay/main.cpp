// slamb_replay DIR… [--tolerance X]: runs traces through the library and compares the parameters after every step.
//
// Exit: 0 if all traces agree; 1 if one differs or cannot be replayed, or the output cannot be written; 2 for a wrong command
// line.
#include "support/replay_all.hpp"

#include <CLI/CLI.hpp>
#include <cmath>
#include <exception>
#include <iostream>
#include <string>
#include <vector>

namespace {

// True if the standard output accepted everything; otherwise prints an error.
bool all_is_written() {
  if (std::cout.flush()) return true;
  std::cerr << "slamb_replay: the standard output could not be written\n";
  return false;
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<std::string> folders;
  double tolerance = 1e-4;
  CLI::App app("Runs traces through the library, one thread a rank, and compares the parameters after every step.",
               "slamb_replay");
  app.add_option("DIR", folders, "Folder of a trace: trace.txt, params0.f32, grads.f32, params.f32 (masks.u8)")
      ->required();
  app.add_option("--tolerance", tolerance, "Largest max |got - expected| / max |expected| that passes")
      ->capture_default_str()
      ->check([&](const std::string& text) -> std::string {
        double value = -1.0;
        const bool holds = CLI::detail::lexical_cast(text, value) && std::isfinite(value) && value >= 0.0;
        return holds ? std::string() : "must be a finite number >= 0, not " + text;
      });
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (app.exit(error) != 0) return 2;
    return all_is_written() ? 0 : 1;
  }
  try {
    const int status = test_support::replay_all(folders, tolerance, std::cout, std::cerr);
    return all_is_written() ? status : 1;
  } catch (const std::exception& error) {
    std::cerr << "slamb_replay: " << error.what() << '\n';
    return 1;
  }
}
