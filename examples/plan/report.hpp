// The output of slamb_plan: the table, and the JSON document.
#pragma once

#include <ostream>
#include <string>
#include <vector>

#include "../common/text.hpp"
#include "forecast.hpp"
#include "settings.hpp"

namespace plan {

using programs::grouped;

/// Three digits and a unit.
std::string bytes_text(double bytes);

/// Prints the settings.
void print_settings(std::ostream& out, const settings& chosen, tensor_span tensors);

/// One line for each optimizer.
void print_table(std::ostream& out, const settings& chosen, const std::vector<forecast>& forecasts);

/// Settings and all forecasts; numbers that are not finite are null.
void write_json(std::ostream& out, const settings& chosen, tensor_span tensors, const std::vector<forecast>& forecasts);

}  // namespace plan
