// What the program tells: the table, the JSON document, and the curves as CSV.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <iomanip>
#include <nlohmann/json.hpp>
#include <ostream>
#include <sstream>
#include <string>
#include <vector>

#include "digits.hpp"
#include "optimizers.hpp"
#include "settings.hpp"
#include "training.hpp"

namespace train {

namespace detail {

struct summary {
  double mean = 0.0;
  double deviation = 0.0;  ///< of the sample; 0 for a single value
};

/// Over the outcomes of one optimizer, of what `value` takes from each.
template <class Value>
summary summarize(const std::vector<outcome>& outcomes, const std::string& optimizer, Value value) {
  std::vector<double> values;
  for (const outcome& o : outcomes) {
    if (o.optimizer == optimizer) values.push_back(static_cast<double>(value(o)));
  }
  const auto count = static_cast<double>(values.size());
  summary result;
  for (const double x : values) result.mean += x / count;
  double squares = 0.0;
  for (const double x : values) squares += (x - result.mean) * (x - result.mean);
  if (values.size() > 1) result.deviation = std::sqrt(squares / (count - 1.0));
  return result;
}

inline std::string formatted(const char* format, auto... values) {
  char text[128];
  std::snprintf(text, sizeof text, format, values...);
  return text;
}

inline std::string loss_text(double loss) {
  if (!std::isfinite(loss)) return std::isnan(loss) ? "nan" : "inf";
  return loss < 1e5 ? formatted("%.5f", loss) : formatted("%.3g", loss);
}

/// Pads to `width` columns on the left; the ± sign is two bytes in one column.
inline std::string right_aligned(const std::string& text, std::size_t width) {
  const auto columns = text.size() - static_cast<std::size_t>(std::ranges::count(text, '\xC2'));
  return std::string(columns < width ? width - columns : 0, ' ') + text;
}

inline std::string hexadecimal(std::uint64_t value) {
  std::ostringstream text;
  text << std::hex << std::setw(16) << std::setfill('0') << value;
  return text.str();
}

inline nlohmann::ordered_json settings_json(const settings& chosen, const split_digits& data) {
  return {{"optimizers", chosen.optimizers},
          {"ranks", chosen.ranks},
          {"batch", chosen.batch},
          {"steps", chosen.steps},
          {"schedule", chosen.schedule},
          {"warmup", chosen.warmup_steps()},
          {"weight_decay", chosen.weight_decay},
          {"seed", chosen.seed},
          {"seeds", chosen.seeds},
          {"k", chosen.k},
          {"block", chosen.block},
          {"beta3", chosen.beta3},
          {"local_steps", chosen.local_steps},
          {"data", chosen.data},
          {"training_rows", data.training.rows()},
          {"test_rows", data.test.rows()},
          {"layer_widths", layer_widths}};
}

inline nlohmann::ordered_json outcome_json(const outcome& result) {
  const slamb::traffic_counts& traffic = result.statistics.traffic;
  return {{"optimizer", result.optimizer},
          {"seed", result.seed},
          {"learning_rate", result.learning_rate},
          {"steps", result.statistics.step},
          {"skipped_steps", result.statistics.skipped_steps},
          {"final_loss", result.final_loss},
          {"test_accuracy", result.test_accuracy},
          {"sent_bytes", traffic.total().sent_bytes},
          {"rounds",
           {{"all_reduce", traffic[slamb::collective::all_reduce].rounds},
            {"all_gather", traffic[slamb::collective::all_gather].rounds},
            {"all_to_all", traffic[slamb::collective::all_to_all].rounds},
            {"broadcast", traffic[slamb::collective::broadcast].rounds}}},
          {"seconds", result.seconds},
          {"parameters_fnv1a64", hexadecimal(result.parameter_hash)}};
}

}  // namespace detail

/// Says what will be run.
inline void print_settings(std::ostream& out, const settings& chosen, const split_digits& data) {
  out << data.training.rows() << " training and " << data.test.rows() << " test images; network ";
  for (std::size_t i = 0; i < layer_widths.size(); ++i) out << (i > 0 ? "-" : "") << layer_widths[i];
  out << "; " << chosen.ranks << (chosen.ranks == 1 ? " rank" : " ranks") << ", batch " << chosen.batch << ", "
      << chosen.steps << " steps, " << chosen.schedule << " schedule after " << chosen.warmup_steps()
      << " of warm-up, seeds " << chosen.seed << "..." << chosen.seed + chosen.seeds - 1 << "\npeak learning rate: ";
  for (const std::string& name : chosen.optimizers) {
    if (&name != &chosen.optimizers.front()) out << ", ";
    out << name << ' ' << chosen.learning_rate.value_or(find_optimizer(name)->learning_rate);
  }
  out << (chosen.learning_rate ? "" : " (defaults, chosen for this task)") << "\n\n" << std::flush;
}

/// One line for each optimizer; means over the seeds.
inline void print_table(std::ostream& out, const settings& chosen, const std::vector<outcome>& outcomes) {
  constexpr std::size_t widths[] = {14, 8, 12, 18, 16, 8, 9};
  const auto line = [&](const std::string(&cells)[7]) {
    out << cells[0] << std::string(widths[0] - std::min(widths[0], cells[0].size()), ' ');
    for (std::size_t i = 1; i < 7; ++i) out << detail::right_aligned(cells[i], widths[i]);
    out << '\n';
  };
  line({"optimizer", "steps", "final loss", "test accuracy", "MB sent a rank", "rounds", "seconds"});
  for (const std::string& name : chosen.optimizers) {
    const auto mean = [&](auto value) { return detail::summarize(outcomes, name, value).mean; };
    const auto traffic = [](const outcome& o) { return o.statistics.traffic.total(); };
    const auto accuracy = detail::summarize(outcomes, name, [](const outcome& o) { return 100.0 * o.test_accuracy; });
    line({name, detail::formatted("%.0f", mean([](const outcome& o) { return o.statistics.step; })),
          detail::loss_text(mean([](const outcome& o) { return o.final_loss; })),
          chosen.seeds == 1 ? detail::formatted("%.2f %%", accuracy.mean)
                            : detail::formatted("%.2f \u00B1 %.2f %%", accuracy.mean, accuracy.deviation),
          detail::formatted("%.2f", mean([&](const outcome& o) { return traffic(o).sent_bytes; }) / 1e6),
          detail::formatted("%.0f", mean([&](const outcome& o) { return traffic(o).rounds; })),
          detail::formatted("%.2f", mean([](const outcome& o) { return o.seconds; }))});
  }
  out << "(means over " << chosen.seeds << (chosen.seeds == 1 ? " seed" : " seeds; ±: standard deviation over them")
      << "; final loss: of the training set)\n";
  for (const std::string& name : chosen.optimizers) {
    const double before = detail::summarize(outcomes, name, [](const outcome& o) { return o.untrained_loss; }).mean;
    const double after = detail::summarize(outcomes, name, [](const outcome& o) { return o.final_loss; }).mean;
    if (after <= before) continue;
    out << name << " diverged: its final loss, " << detail::loss_text(after)
        << ", is not below the untrained network's " << detail::loss_text(before)
        << "; try a lower --learning-rate, or more images a rank (--batch)\n";
  }
  for (const outcome& o : outcomes) {
    if (o.statistics.skipped_steps == 0) continue;
    out << o.optimizer << ", seed " << o.seed << ": all ranks skipped " << o.statistics.skipped_steps
        << " steps, because a gradient was not finite\n";
  }
}

/// Settings and every outcome; numbers that are not finite are null.
inline void write_json(std::ostream& out, const settings& chosen, const split_digits& data,
                       const std::vector<outcome>& outcomes) {
  nlohmann::ordered_json document;
  document["settings"] = detail::settings_json(chosen, data);
  document["runs"] = nlohmann::ordered_json::array();
  for (const outcome& result : outcomes) document["runs"].push_back(detail::outcome_json(result));
  out << document.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) << '\n';
}

/// One row for each optimizer, seed and step: the loss of the step's batch, and what rank 0 has sent after it.
inline void write_csv(std::ostream& out, const std::vector<outcome>& outcomes) {
  out << "optimizer,seed,step,loss,sent_bytes\n" << std::setprecision(9);
  for (const outcome& result : outcomes) {
    for (std::size_t i = 0; i < result.curve.size(); ++i) {
      out << result.optimizer << ',' << result.seed << ',' << i + 1 << ',' << result.curve[i].loss << ','
          << result.curve[i].sent_bytes << '\n';
    }
  }
}

}  // namespace train
