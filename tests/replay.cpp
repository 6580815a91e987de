// slamb_replay DIR… [--tolerance X]: runs traces through the library and compares the parameters after every step.
//
// Exit: 0 if every trace holds, 1 if one differs or cannot be replayed, 2 for a wrong command line.
#include "support/replay.hpp"

#include <CLI/CLI.hpp>
#include <cmath>
#include <iostream>
#include <string>
#include <vector>

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
    return app.exit(error) == 0 ? 0 : 2;
  }
  return test_support::replay_all(folders, tolerance, std::cout, std::cerr);
}
