// The output of slamb_train: the table, the JSON document, and the curves as CSV.
#pragma once

#include <cstdint>
#include <ostream>
#include <vector>

#include "digits.hpp"
#include "optimizers.hpp"
#include "settings.hpp"
#include "training.hpp"

namespace train {

/// The bytes that a rank of dense LAMB sends in as many steps, the reference for the other optimizers.
double bytes_of_lamb(std::uint64_t steps, const rank_grid& grid);

/// Prints the settings of the run.
void print_settings(std::ostream& out, const settings& chosen, const std::vector<optimizer_entry>& entries,
                    const split_digits& data);

/// One line for each optimizer: means over the seeds.
void print_table(std::ostream& out, const settings& chosen, const std::vector<optimizer_entry>& entries,
                 const std::vector<outcome>& outcomes);

/// Settings and all outcomes; numbers that are not finite are null.
void write_json(std::ostream& out, const settings& chosen, const std::vector<optimizer_entry>& entries,
                const split_digits& data, const std::vector<outcome>& outcomes);

/// One row for each optimizer, seed and step: the loss of the step's batch, the bytes and collectives that rank 0 has sent so
/// far, and the phase of the step.
void write_csv(std::ostream& out, const std::vector<outcome>& outcomes);

}  // namespace train
