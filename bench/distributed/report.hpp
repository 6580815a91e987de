// The output of slamb_bench_mpi: the table, and the JSON document.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "../../examples/common/text.hpp"
#include "measurement.hpp"
#include "settings.hpp"

namespace bench::distributed {

using programs::formatted;
using programs::grouped;

/// All measurements.
struct results {
  measurement lamb_first{};  ///< dense LAMB, before the others
  std::vector<measurement> others{};
  measurement lamb_last{};  ///< dense LAMB, after the others
  int ranks = 1;
  std::size_t tensors = 0;

  /// Seconds of LAMB's step: the mean of both measurements.
  double lamb_seconds() const noexcept { return (lamb_first.step_seconds + lamb_last.step_seconds) / 2.0; }

  std::vector<const measurement*> in_order() const {
    std::vector<const measurement*> all{&lamb_first};
    for (const measurement& each : others) all.push_back(&each);
    all.push_back(&lamb_last);
    return all;
  }
};

namespace detail {

/// The network as the planner takes it. Empty if the link's bandwidth is unknown, or if exchanges ran during computation.
inline std::optional<slamb::plan::network> network_of(const settings& chosen) {
  if (!chosen.link_bandwidth || chosen.in_parts) return std::nullopt;
  return slamb::plan::network{
      .latency = chosen.latency, .bandwidth = *chosen.link_bandwidth / 8.0, .ranks_per_node = 1};
}

/// Seconds of a step: the planner's exchange, and the measured computation.
inline double predicted_seconds(const measurement& m, const slamb::plan::network& net) {
  return m.predicted_exchange_seconds(net) + m.compute_seconds;
}

inline nlohmann::ordered_json json_of(const measurement& m, const results& all, const settings& chosen) {
  nlohmann::ordered_json json{{"optimizer", m.optimizer},
                              {"phase", m.phase},
                              {"steps", m.steps},
                              {"period", m.period},
                              {"sent_bytes_per_step", m.sent_bytes},
                              {"rounds_per_step", m.rounds},
                              {"step_seconds", m.step_seconds},
                              {"compute_seconds", m.compute_seconds},
                              {"exchange_seconds", m.exchange_seconds()},
                              {"throughput_of_lamb", all.lamb_seconds() / m.step_seconds}};
  if (const auto net = network_of(chosen)) {
    json["predicted_exchange_seconds"] = m.predicted_exchange_seconds(*net);
    json["predicted_step_seconds"] = predicted_seconds(m, *net);
  }
  if (m.choice.trial_steps > 0)
    json["choice"] = {{"kept", m.choice.is_compressed ? "slamb" : "lamb"},
                      {"lamb_seconds", m.choice.dense_seconds},
                      {"slamb_seconds", m.choice.compressed_seconds},
                      {"trial_elements", m.choice.trial_elements},
                      {"seconds", m.choice_seconds}};
  json["each_step_seconds"] = m.each_step;
  return json;
}

}  // namespace detail

inline void print_settings(std::ostream& out, const settings& chosen, int ranks, std::size_t tensors) {
  out << grouped(chosen.parameters) << " parameters in " << tensors << " tensors; " << ranks
      << " ranks, a process each, threads of each: " << chosen.threads << '\n'
      << formatted("timed: %s steps and %g s at least, in whole periods\n", grouped(chosen.steps).c_str(),
                   chosen.seconds)
      << formatted(
             "SLAMB: k = %g in blocks of %s, H = %s, by differences %s; 0/1 Adam: an exchange every %s steps; 1-bit: "
             "after the warm-up\n",
             chosen.k, grouped(chosen.block).c_str(), grouped(chosen.averaging_interval()).c_str(),
             grouped(chosen.difference_interval()).c_str(), grouped(chosen.local_interval).c_str());
  if (chosen.in_parts) {
    out << "steps in parts: nothing is predicted; compute is what no exchange ran beside\n\n";
  } else if (chosen.link_bandwidth) {
    out << formatted("predicted for links of %g Mbit/s in each direction, %g us a hop\n\n",
                     *chosen.link_bandwidth * 1e-6, chosen.latency * 1e6);
  } else {
    out << "nothing is predicted: --link-bandwidth was not given\n\n";
  }
}

/// One line for each optimizer. The first and the last line are dense LAMB's.
inline void print_table(std::ostream& out, const settings& chosen, const results& all) {
  programs::text_table<10> table({14, 14, 9, 8, 11, 10, 10, 10, 11, 9});
  table.add({"", "bytes sent", "rounds", "steps", "", "", "", "steps/s", "predicted", "its"});
  table.add({"optimizer", "a rank a step", "a step", "timed", "ms a step", "compute", "exchange", "of LAMB's",
             "ms a step", "error"});
  const std::optional<slamb::plan::network> net = detail::network_of(chosen);
  for (const measurement* m : all.in_order()) {
    const double predicted = net ? detail::predicted_seconds(*m, *net) : 0.0;
    table.add({m->optimizer, grouped(static_cast<std::uint64_t>(m->sent_bytes + 0.5)), formatted("%.2f", m->rounds),
               grouped(m->steps), formatted("%.1f", m->step_seconds * 1e3), formatted("%.1f", m->compute_seconds * 1e3),
               formatted("%.1f", m->exchange_seconds() * 1e3), formatted("%.2fx", all.lamb_seconds() / m->step_seconds),
               net ? formatted("%.1f", predicted * 1e3) : "-",
               net ? formatted("%+.1f %%", 100.0 * (predicted / m->step_seconds - 1.0)) : "-"});
  }
  table.write(out);
  out << "(ms a step: until the slowest rank is done, the median, of periods the mean of their steps' medians; "
         "compute: "
         "outside of\n collectives, of the rank that takes longest; exchange: the rest; of LAMB's: of the mean of its "
         "two "
         "lines, which differ by "
      << formatted("%.1f %%",
                   100.0 * std::abs(all.lamb_first.step_seconds - all.lamb_last.step_seconds) / all.lamb_seconds())
      << ";\n predicted: the planner's exchange and the compute that was measured)\n";
  for (const measurement* m : all.in_order()) {
    if (m->choice.trial_steps == 0) continue;
    out << m->optimizer << " kept " << (m->choice.is_compressed ? "slamb" : "lamb")
        << formatted(": in its trial, of %.1f s, a step of lamb took %.1f ms and one of slamb %.1f ms\n",
                     m->choice_seconds, 1e3 * m->choice.dense_seconds, 1e3 * m->choice.compressed_seconds);
  }
}

inline void write_json(std::ostream& out, const settings& chosen, const results& all) {
  nlohmann::ordered_json document;
  document["settings"] = {{"parameters", chosen.parameters},
                          {"tensors", all.tensors},
                          {"ranks", all.ranks},
                          {"threads", chosen.threads},
                          {"k", chosen.k},
                          {"block", chosen.block},
                          {"local_steps", chosen.averaging_interval()},
                          {"local_steps_by_differences", chosen.difference_interval()},
                          {"local_interval", chosen.local_interval},
                          {"message_bytes", chosen.message_bytes},
                          {"in_parts", chosen.in_parts},
                          {"link_bits_per_second", nullptr},
                          {"latency_seconds", chosen.latency}};
  if (chosen.link_bandwidth) document["settings"]["link_bits_per_second"] = *chosen.link_bandwidth;
  document["measurements"] = nlohmann::ordered_json::array();
  for (const measurement* m : all.in_order()) document["measurements"].push_back(detail::json_of(*m, all, chosen));
  out << document.dump(2) << '\n';
}

}  // namespace bench::distributed
