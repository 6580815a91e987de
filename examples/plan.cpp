// slamb_plan: forecasts the bytes that a training sends with each optimizer, the time of its steps on a network, and the
// bandwidth below which an optimizer is faster than dense LAMB. Exit status: 0; 1 for an error at work; 2 for a wrong command
// line.
#include <filesystem>
#include <iostream>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/output_file.hpp"
#include "common/program.hpp"
#include "common/warm_up_note.hpp"
#include "plan/command_line.hpp"
#include "plan/forecast.hpp"
#include "plan/models.hpp"
#include "plan/optimizers.hpp"
#include "plan/report.hpp"
#include "plan/shape_file.hpp"

namespace {

void run(const plan::settings& chosen) {
  const std::vector<slamb::plan::tensor_shape> tensors = chosen.shapes.empty()
                                                             ? plan::tensors_of_model(chosen.model)
                                                             : plan::read_shapes(std::filesystem::path(chosen.shapes));
  std::optional<programs::output_file> json;
  if (!chosen.json.empty()) {
    json.emplace("--json", chosen.json);
    if (!chosen.shapes.empty() && json->target() == std::filesystem::weakly_canonical(chosen.shapes))
      throw plan::usage_error("--json: " + chosen.json + " is named by --shapes too");
  }
  const std::vector<plan::forecast> forecasts = plan::forecast_all(tensors, chosen);
  plan::print_settings(std::cout, chosen, tensors);
  plan::print_table(std::cout, chosen, forecasts);
  std::vector<std::string> names;
  for (const plan::forecast& f : forecasts) names.push_back(f.optimizer);
  const std::string note = programs::warm_up_note(names, chosen.warmup(), "--warmup-steps", chosen.steps);
  if (!note.empty()) std::cerr << "slamb_plan: " << note << '\n';
  if (json) json->write([&](std::ostream& out) { plan::write_json(out, chosen, tensors, forecasts); });
  programs::require_written();
}

}  // namespace

int main(int argc, char** argv) {
  return programs::exit_status("slamb_plan", [&] {
    if (const std::optional<plan::settings> chosen = plan::parse_command_line(argc, argv, plan::optimizer_names()))
      run(*chosen);
    else
      programs::require_written();
    return 0;
  });
}
