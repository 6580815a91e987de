// The output of the benchmarks of shards.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <ostream>
#include <string>
#include <thread>
#include <vector>

#include "../../examples/common/text.hpp"
#include "measurement.hpp"

namespace bench::shards {

namespace detail {

using programs::formatted;

inline std::string percent_text(double ratio) { return formatted("%+.1f %%", 100.0 * (ratio - 1.0)); }

using table = programs::text_table<6>;

/// @param seconds  samples::wall or samples::processor
/// @param collectives  of a step, alone, in seconds
inline void add_row(table& to, const std::string& name, const step_times& times, std::vector<double> samples::*seconds,
                    double collectives) {
  const auto of = [seconds](const samples& of_rounds) { return of_rounds.*seconds; };
  to.add({name, formatted("%.1f ms", 1e3 * median_of(of(times.alone))),
          percent_text(median_ratio(of(times.one_batch), of(times.alone))),
          percent_text(median_ratio(of(times.in_group), of(times.one_batch))),
          percent_text(median_ratio(of(times.in_group), of(times.alone))),
          formatted("%.4f %%", 100.0 * collectives / median_of(of(times.in_group)))});
}

inline std::string microseconds_text(double seconds) { return formatted("%.1f us", 1e6 * seconds); }

}  // namespace detail

/// @param place  "threads" or "processes"
/// @param load  the load average at the start
inline void print(std::ostream& out, const settings& chosen, const std::string& place, double load,
                  const results& all) {
  using namespace detail;
  const double message = median_of(all.gather_of_message.wall), sums = median_of(all.gather_of_sums.wall);
  const double own_message = median_of(all.gather_of_message.processor);
  const double own_sums = median_of(all.gather_of_sums.processor);
  out << "BERT-Large's " << all.tensors << " tensors"
      << (chosen.smaller == 1 ? "" : ", each with 1/" + std::to_string(chosen.smaller) + " of its elements") << ": "
      << chosen.shards << " shards of " << programs::grouped(all.elements) << " parameters, on " << place << "; "
      << std::thread::hardware_concurrency() << " processors; medians of " << chosen.rounds
      << " rounds; load average at the start " << formatted("%.1f", load) << "\n\n";
  table rows({22, 16, 14, 14, 10, 14});
  rows.add({"", "without", "all tensors", "and a", "", "collectives"});
  rows.add({"a step", "shard group", "in one batch", "shard group", "in all", "alone"});
  add_row(rows, "lamb", all.lamb, &samples::wall, message + sums);
  add_row(rows, "lamb, processor time", all.lamb, &samples::processor, own_message + own_sums);
  add_row(rows, "adamw", all.adamw, &samples::wall, message);
  add_row(rows, "adamw, processor time", all.adamw, &samples::processor, own_message);
  rows.write(out);
  out << "(without: tensors in batches that fit the cache; with all tensors in one batch it takes so much longer, and "
         "with the "
         "shard group so much\n longer than that; collectives alone: their part of a step with the shard group; "
         "processor "
         "time: of the first rank)\n\n"
      << "all_gather of " << message_bytes << " bytes a rank: " << microseconds_text(message) << "; of "
      << 2 * all.tensors << " doubles: " << microseconds_text(sums) << '\n';
}

/// The load average of the last minute; negative if it is not known.
inline double load_average() {
  double load = -1.0;
  return getloadavg(&load, 1) == 1 ? load : -1.0;
}

}  // namespace bench::shards
