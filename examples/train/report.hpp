// What the program tells: the table, the JSON document, and the curves as CSV.
#pragma once

#include <cstdint>
#include <ostream>
#include <vector>

#include "digits.hpp"
#include "optimizers.hpp"
#include "settings.hpp"
#include "training.hpp"

namespace train {

/// What dense LAMB sends in as many steps: it is the measure of the others.
double bytes_of_lamb(std::uint64_t steps, int ranks);

/// Says what will be run.
void print_settings(std::ostream& out, const settings& chosen, const std::vector<optimizer_entry>& entries,
                    const split_digits& data);

/// One line for each optimizer; means over the seeds.
void print_table(std::ostream& out, const settings& chosen, const std::vector<optimizer_entry>& entries,
                 const std::vector<outcome>& outcomes);

/// Settings and every outcome; numbers that are not finite are null.
void write_json(std::ostream& out, const settings& chosen, const std::vector<optimizer_entry>& entries,
                const split_digits& data, const std::vector<outcome>& outcomes);

/// One row for each optimizer, seed and step: the loss of the step's batch, what rank 0 has sent after it, in how many
/// collectives, and the phase of the algorithm that the step belongs to.
void write_csv(std::ostream& out, const std::vector<outcome>& outcomes);

}  // namespace train
