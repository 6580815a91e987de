#include "report.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iomanip>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <utility>

#include "../common/text.hpp"
#include "model_shard.hpp"

namespace train {

double bytes_of_lamb(std::uint64_t steps, const rank_grid& grid) {
  const std::uint64_t own = model_shard::part_size(parameters_of_network(), static_cast<std::size_t>(grid.shards));
  return static_cast<double>(
      steps * slamb::traffic::bytes_sent_by(slamb::collective::all_reduce, own * sizeof(float), grid.ranks));
}

namespace {

using programs::formatted;

struct summary {
  double mean = 0.0;
  double deviation = 0.0;  ///< of the sample; 0 for a single value
};

/// Mean and deviation of `value` over the outcomes of one optimizer.
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

std::string loss_text(double loss) {
  if (!std::isfinite(loss)) return std::isnan(loss) ? "nan" : "inf";
  return loss < 1e5 ? formatted("%.5f", loss) : formatted("%.3g", loss);
}

std::string hexadecimal(std::uint64_t value) {
  std::ostringstream text;
  text << std::hex << std::setw(16) << std::setfill('0') << value;
  return text.str();
}

nlohmann::ordered_json settings_json(const settings& chosen, const std::vector<optimizer_entry>& entries,
                                     const split_digits& data) {
  nlohmann::ordered_json json{{"optimizers", nlohmann::ordered_json::array()}};
  for (const optimizer_entry& entry : entries) json["optimizers"].push_back(entry.name);
  json.update({{"ranks", chosen.ranks},
               {"shards", chosen.shards},
               {"batch", chosen.batch},
               {"steps", chosen.steps},
               {"schedule", chosen.schedule},
               {"warmup", chosen.warmup_steps()},
               {"weight_decay", chosen.weight_decay},
               {"precision", chosen.precision},
               {"rounding", nullptr},
               {"loss_scale", chosen.scale_of_loss()},
               {"seed", chosen.seed},
               {"seeds", chosen.seeds},
               {"held_out", chosen.held_out},
               {"k", chosen.k},
               {"block", chosen.block},
               {"beta3", chosen.beta3},
               {"local_steps", chosen.averaging_interval()},
               {"local_steps_by_differences", chosen.difference_interval()},
               {"update_bound", chosen.update_bound},
               {"one_bit_epsilon", nullptr},
               {"one_bit_warmup", chosen.one_bit_warmup_steps()},
               {"one_bit_threshold", nullptr},
               {"freeze_step", chosen.variance_freeze_step()},
               {"variance_update_scaler", chosen.variance_update_scaler},
               {"local_step_scaler", chosen.local_interval_scaler()},
               {"local_step_clipper", chosen.local_step_clipper},
               {"data", chosen.data},
               {"training_rows", data.training.rows()},
               {"test_rows", data.test.rows()},
               {"layer_widths", layer_widths}});
  if (chosen.has_16_bits()) json["rounding"] = chosen.rounding_mode();
  if (chosen.one_bit_epsilon) json["one_bit_epsilon"] = *chosen.one_bit_epsilon;
  if (chosen.one_bit_threshold) json["one_bit_threshold"] = *chosen.one_bit_threshold;
  return json;
}

/// Traffic by kind of collective, for the kinds that were used.
nlohmann::ordered_json traffic_json(const slamb::traffic_counts& traffic) {
  constexpr std::pair<slamb::collective, const char*> kinds[] = {{slamb::collective::all_reduce, "all_reduce"},
                                                                 {slamb::collective::all_gather, "all_gather"},
                                                                 {slamb::collective::all_to_all, "all_to_all"},
                                                                 {slamb::collective::broadcast, "broadcast"}};
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  for (const auto& [kind, name] : kinds) {
    if (traffic[kind].rounds == 0) continue;
    json[name] = {{"rounds", traffic[kind].rounds}, {"sent_bytes", traffic[kind].sent_bytes}};
  }
  return json;
}

nlohmann::ordered_json phases_json(const slamb::statistics& statistics) {
  nlohmann::ordered_json phases = nlohmann::ordered_json::array();
  for (const slamb::statistics::phase_type& phase : statistics.phases) {
    const slamb::traffic total = phase.traffic.total();
    phases.push_back({{"name", phase.name},
                      {"first_step", phase.first_step},
                      {"sent_bytes", total.sent_bytes},
                      {"rounds", total.rounds},
                      {"collectives", traffic_json(phase.traffic)}});
  }
  return phases;
}

/// null: there was no warm-up that could end, or it did not end.
nlohmann::ordered_json warm_up_json(const slamb::statistics::warm_up_type& decision) {
  if (decision.ended_after == 0) return nullptr;
  return {{"ended_after", decision.ended_after}, {"variance_ratio", decision.variance_ratio}};
}

/// null: there was nothing to choose from, or no trial.
nlohmann::ordered_json choice_json(const slamb::statistics::choice_type& made) {
  if (made.trial_steps == 0) return nullptr;
  return {{"kept", made.is_compressed ? "compressed" : "dense"},
          {"dense_seconds", made.dense_seconds},
          {"compressed_seconds", made.compressed_seconds},
          {"trial_steps", made.trial_steps},
          {"trial_elements", made.trial_elements}};
}

nlohmann::ordered_json traffic_in_shards_json(const slamb::traffic& traffic) {
  return {{"rounds", traffic.rounds}, {"sent_bytes", traffic.sent_bytes}};
}

nlohmann::ordered_json outcome_json(const outcome& result) {
  const slamb::traffic total = result.statistics.traffic.total();
  return {{"optimizer", result.optimizer},
          {"seed", result.seed},
          {"learning_rate", result.learning_rate},
          {"steps", result.statistics.step},
          {"skipped_steps", result.statistics.skipped_steps},
          {"local_skips", result.statistics.local_skips},
          {"final_loss", result.final_loss},
          {"test_accuracy", result.test_accuracy},
          {"sent_bytes", total.sent_bytes},
          {"rounds", total.rounds},
          {"collectives", traffic_json(result.statistics.traffic)},
          {"in_shards", traffic_in_shards_json(result.statistics.in_shards)},
          {"model_in_shards", traffic_in_shards_json(result.of_model)},
          {"phases", phases_json(result.statistics)},
          {"warm_up", warm_up_json(result.statistics.warm_up)},
          {"choice", choice_json(result.statistics.chosen)},
          {"seconds", result.seconds},
          {"parameters_fnv1a64", hexadecimal(result.parameter_hash)}};
}

/// "12.4 %" of LAMB's bytes.
std::string part_text(double sent_bytes, const settings& chosen) {
  const double whole = bytes_of_lamb(chosen.steps, {chosen.ranks, chosen.shards});
  return whole > 0.0 ? formatted("%.1f %%", 100.0 * sent_bytes / whole) : "-";
}

using result_row = std::array<std::string, 8>;

result_row header(const settings& chosen) {
  return {"optimizer",      "steps",     "final loss", chosen.held_out ? "held-out accuracy" : "test accuracy",
          "MB sent a rank", "of LAMB's", "rounds",     "seconds"};
}

result_row row_of(const settings& chosen, const std::string& name, const std::vector<outcome>& outcomes) {
  const auto mean = [&](auto value) { return summarize(outcomes, name, value).mean; };
  const auto traffic = [](const outcome& o) { return o.statistics.traffic.total(); };
  const auto accuracy = summarize(outcomes, name, [](const outcome& o) { return 100.0 * o.test_accuracy; });
  const double sent = mean([&](const outcome& o) { return traffic(o).sent_bytes; });
  return {name,
          formatted("%.0f", mean([](const outcome& o) { return o.statistics.step; })),
          loss_text(mean([](const outcome& o) { return o.final_loss; })),
          chosen.seeds == 1 ? formatted("%.2f %%", accuracy.mean)
                            : formatted("%.2f \u00B1 %.2f %%", accuracy.mean, accuracy.deviation),
          formatted("%.2f", sent / 1e6),
          part_text(sent, chosen),
          formatted("%.0f", mean([&](const outcome& o) { return traffic(o).rounds; })),
          formatted("%.2f", mean([](const outcome& o) { return o.seconds; }))};
}

/// The same with a column of the traffic within the shard group, before the rounds.
std::array<std::string, 9> with_shards(const result_row& of, const std::string& in_shards) {
  return {of[0], of[1], of[2], of[3], of[4], of[5], in_shards, of[6], of[7]};
}

void print_rows(std::ostream& out, const settings& chosen, const std::vector<optimizer_entry>& entries,
                const std::vector<outcome>& outcomes) {
  if (chosen.shards == 1) {
    programs::text_table<8> table({14, 8, 12, 18, 16, 11, 8, 9});
    table.add(header(chosen));
    for (const optimizer_entry& entry : entries) table.add(row_of(chosen, entry.name, outcomes));
    return table.write(out);
  }
  programs::text_table<9> table({14, 8, 12, 18, 16, 11, 14, 8, 9});
  table.add(with_shards(header(chosen), "MB in shards"));
  for (const optimizer_entry& entry : entries) {
    const auto sent = [](const outcome& o) { return o.statistics.in_shards.sent_bytes; };
    table.add(with_shards(row_of(chosen, entry.name, outcomes),
                          formatted("%.3f", 1e-6 * summarize(outcomes, entry.name, sent).mean)));
  }
  table.write(out);
}

/// What is sent to which ranks.
void print_shards(std::ostream& out, const settings& chosen, const std::vector<outcome>& outcomes) {
  if (chosen.shards == 1 || outcomes.empty()) return;
  out << "(sent: to the ranks that hold the same shard; in shards: by the optimizer to the ranks of the other shards: "
         "sums "
         "over whole tensors, and skipped\n steps. The model sends them "
      << formatted("%.2f MB", 1e-6 * static_cast<double>(outcomes.front().of_model.sent_bytes))
      << " in each run: gathered parameters, and sums of gradients)\n";
}

void print_choices(std::ostream& out, const std::vector<outcome>& outcomes) {
  for (const outcome& o : outcomes) {
    const slamb::statistics::choice_type& made = o.statistics.chosen;
    if (made.trial_steps == 0) continue;
    out << o.optimizer << ", seed " << o.seed << ": the " << (made.is_compressed ? "compressed" : "dense")
        << " optimizer was kept; a step of the trial took "
        << formatted("%.3g ms dense, %.3g ms compressed\n", 1e3 * made.dense_seconds, 1e3 * made.compressed_seconds);
  }
}

void print_troubles(std::ostream& out, const std::vector<optimizer_entry>& entries,
                    const std::vector<outcome>& outcomes) {
  for (const optimizer_entry& entry : entries) {
    const std::string& name = entry.name;
    const double before = summarize(outcomes, name, [](const outcome& o) { return o.untrained_loss; }).mean;
    const double after = summarize(outcomes, name, [](const outcome& o) { return o.final_loss; }).mean;
    if (after <= before) continue;
    out << name << " diverged: its final loss, " << loss_text(after) << ", is not below the untrained network's "
        << loss_text(before) << "; try a lower --learning-rate, or more images a rank (--batch)\n";
  }
  for (const outcome& o : outcomes) {
    const slamb::statistics& its = o.statistics;
    if (its.skipped_steps > 0)
      out << o.optimizer << ", seed " << o.seed << ": all ranks skipped " << its.skipped_steps
          << " steps, because a gradient was not finite\n";
    if (its.local_skips > 0)
      out << o.optimizer << ", seed " << o.seed << ": rank 0 left out " << its.local_skips
          << " gradients, which were not finite\n";
  }
}

}  // namespace

void print_settings(std::ostream& out, const settings& chosen, const std::vector<optimizer_entry>& entries,
                    const split_digits& data) {
  out << data.training.rows() << " training and " << data.test.rows() << (chosen.held_out ? " held-out" : " test")
      << " images; network ";
  for (std::size_t i = 0; i < layer_widths.size(); ++i) out << (i > 0 ? "-" : "") << layer_widths[i];
  out << "; " << chosen.all_ranks() << (chosen.all_ranks() == 1 ? " rank" : " ranks")
      << (chosen.shards == 1 ? "" : formatted(" (%d that hold each of %d shards)", chosen.ranks, chosen.shards))
      << ", batch " << chosen.batch << ", " << chosen.steps << " steps, " << chosen.schedule << " schedule after "
      << chosen.warmup_steps() << " of warm-up, seeds " << chosen.seed << "..." << chosen.seed + chosen.seeds - 1
      << "\npeak learning rate: ";
  for (const optimizer_entry& entry : entries) {
    if (&entry != &entries.front()) out << ", ";
    out << entry.name << ' ' << chosen.learning_rate.value_or(entry.learning_rate);
  }
  out << (chosen.learning_rate ? "" : " (defaults, chosen for this task)") << '\n';
  if (chosen.has_16_bits())
    out << "parameters and gradients: " << chosen.precision << ", "
        << (chosen.rounding_mode() == "masters" ? "with float masters" : "by stochastic rounding") << ", loss scale "
        << chosen.scale_of_loss() << '\n';
  out << '\n' << std::flush;
}

void print_table(std::ostream& out, const settings& chosen, const std::vector<optimizer_entry>& entries,
                 const std::vector<outcome>& outcomes) {
  print_rows(out, chosen, entries, outcomes);
  out << "(means over " << chosen.seeds << (chosen.seeds == 1 ? " seed" : " seeds; ±: standard deviation over them")
      << "; final loss: of the training set; of LAMB's: bytes, with whole gradients; rounds: collectives)\n";
  print_shards(out, chosen, outcomes);
  print_choices(out, outcomes);
  print_troubles(out, entries, outcomes);
  if (!chosen.hash) return;
  for (const outcome& o : outcomes) {
    out << o.optimizer << ", seed " << o.seed << ": final parameters " << hexadecimal(o.parameter_hash)
        << " (FNV-1a, 64 bits)\n";
  }
}

void write_json(std::ostream& out, const settings& chosen, const std::vector<optimizer_entry>& entries,
                const split_digits& data, const std::vector<outcome>& outcomes) {
  nlohmann::ordered_json document;
  document["settings"] = settings_json(chosen, entries, data);
  document["runs"] = nlohmann::ordered_json::array();
  for (const outcome& result : outcomes) document["runs"].push_back(outcome_json(result));
  out << document.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) << '\n';
}

void write_csv(std::ostream& out, const std::vector<outcome>& outcomes) {
  out << "optimizer,seed,step,loss,sent_bytes,rounds,phase\n" << std::setprecision(9);
  for (const outcome& result : outcomes) {
    for (std::size_t i = 0; i < result.curve.size(); ++i) {
      const curve_point& point = result.curve[i];
      out << result.optimizer << ',' << result.seed << ',' << i + 1 << ',' << point.loss << ',' << point.sent_bytes
          << ',' << point.rounds << ',' << result.statistics.phases[point.phase].name << '\n';
    }
  }
}

}  // namespace train
