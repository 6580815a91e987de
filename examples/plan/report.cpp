#include "report.hpp"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>

#include "../common/text.hpp"

namespace plan {

using programs::formatted;

std::string bytes_text(double bytes) {
  constexpr const char* units[] = {"B", "kB", "MB", "GB", "TB", "PB", "EB"};
  std::size_t unit = 0;
  for (; bytes >= 999.5 && unit + 1 < std::size(units); ++unit) bytes /= 1000.0;
  const int digits = unit == 0 || bytes >= 99.95 ? 0 : bytes >= 9.995 ? 1 : 2;
  return formatted("%.*f %s", digits, bytes, units[unit]);
}

namespace {

std::string times_text(double times) { return std::isfinite(times) ? formatted("%.2fx", times) : "-"; }

double gigabits(double bytes_per_second) { return bytes_per_second * 8e-9; }

/// Three significant digits, and all digits before the point.
std::string gigabits_text(double bytes_per_second) {
  const double value = gigabits(bytes_per_second);
  return formatted(value < 999.5 ? "%.3g Gbit/s" : "%.0f Gbit/s", value);
}

std::string break_even_text(const slamb::plan::break_even& b) {
  switch (b.beats) {
    case slamb::plan::break_even::always:
      return "always";
    case slamb::plan::break_even::below:
      return "< " + gigabits_text(b.bandwidth);
    case slamb::plan::break_even::above:
      return "> " + gigabits_text(b.bandwidth);
    case slamb::plan::break_even::never:
      break;
  }
  return "never";
}

nlohmann::ordered_json break_even_json(const slamb::plan::break_even& b) {
  constexpr const char* names[] = {"always", "never", "below", "above"};
  nlohmann::ordered_json json{{"beats", names[b.beats]}};
  if (b.bandwidth > 0.0) json["bytes_per_second"] = b.bandwidth;
  return json;
}

nlohmann::ordered_json traffic_json(const slamb::traffic& t) {
  return {
      {"rounds", t.rounds}, {"elements", t.elements}, {"payload_bytes", t.payload_bytes}, {"sent_bytes", t.sent_bytes}};
}

nlohmann::ordered_json settings_json(const settings& chosen, tensor_span tensors) {
  const slamb::plan::network& net = chosen.network;
  nlohmann::ordered_json json;
  json[chosen.shapes.empty() ? "model" : "shapes"] = chosen.shapes.empty() ? chosen.model : chosen.shapes;
  json.update({{"parameters", slamb::plan::elements_of(tensors)},
               {"tensors", tensors.size()},
               {"optimizers", chosen.optimizers},
               {"steps", chosen.steps},
               {"ranks", chosen.ranks},
               {"shards", chosen.shards},
               {"value_bytes", chosen.value_bytes},
               {"precision", chosen.precision},
               {"rounding", nullptr},
               {"moments", chosen.moments},
               {"k", chosen.k},
               {"local_steps", chosen.local_steps},
               {"warmup_steps", chosen.warmup()},
               {"freeze_step", chosen.freeze()},
               {"variance_update_scaler", chosen.variance_update_scaler},
               {"local_step_scaler", chosen.local_step_scaler},
               {"local_step_clipper", chosen.local_step_clipper},
               {"bandwidth_bytes_per_second", net.bandwidth},
               {"latency_seconds", net.latency},
               {"ranks_per_node", net.ranks_per_node},
               {"node_bandwidth_bytes_per_second", net.node_bandwidth},
               {"memory_bandwidth_bytes_per_second", chosen.memory_bandwidth},
               {"compute_seconds", chosen.compute_seconds}});
  if (chosen.precision != "float32") json["rounding"] = chosen.rounding_mode();
  return json;
}

nlohmann::ordered_json forecast_json(const forecast& f, std::uint64_t steps) {
  const slamb::traffic_counts& traffic = f.moved.traffic;
  nlohmann::ordered_json kinds;
  kinds["all_reduce"] = traffic_json(traffic[slamb::collective::all_reduce]);
  kinds["all_gather"] = traffic_json(traffic[slamb::collective::all_gather]);
  kinds["all_to_all"] = traffic_json(traffic[slamb::collective::all_to_all]);
  kinds["broadcast"] = traffic_json(traffic[slamb::collective::broadcast]);
  const slamb::traffic total = traffic.total();
  return {{"optimizer", f.optimizer},
          {"sent_bytes", total.sent_bytes},
          {"sent_bytes_per_step", static_cast<double>(total.sent_bytes) / static_cast<double>(steps)},
          {"rounds", total.rounds},
          {"collectives", kinds},
          {"times_less_than_fp16", f.less_than_half},
          {"times_less_than_fp32", f.less_than_single},
          {"in_shards", traffic_json(f.moved.in_shards)},
          {"memory_bytes", f.moved.memory_bytes},
          {"model_bytes_of_rank", f.model_bytes},
          {"optimizer_bytes_of_rank", f.moved.optimizer_bytes},
          {"launches", f.moved.launches},
          {"exchange_seconds", f.exchange_seconds},
          {"shards_seconds", f.shards_seconds},
          {"memory_seconds", f.memory_seconds},
          {"step_seconds", f.step_seconds},
          {"scaling_efficiency", f.efficiency},
          {"faster_than_fp16", break_even_json(f.beats_half)},
          {"faster_than_fp32", break_even_json(f.beats_single)}};
}

std::string ranks_text(const settings& chosen) {
  if (chosen.shards == 1) return std::to_string(chosen.ranks) + " ranks";
  return formatted("%lld ranks: %d that hold each of %d shards", chosen.all_ranks(), chosen.ranks, chosen.shards);
}

/// What a rank has and does, apart from its exchanges with the ranks that hold the same.
void print_ranks(std::ostream& out, const settings& chosen, const std::vector<forecast>& forecasts) {
  const auto steps = static_cast<double>(chosen.steps);
  programs::text_table<5> table({19, 12, 12, 14, 11});
  table.add({"", "memory", "launches", "in shards", "in shards"});
  table.add({"optimizer", "of a rank", "a step", "sent a step", "rounds"});
  for (const forecast& f : forecasts) {
    const slamb::traffic& in_shards = f.moved.in_shards;
    table.add({f.optimizer, bytes_text(f.model_bytes + static_cast<double>(f.moved.optimizer_bytes)),
               formatted("%.1f", static_cast<double>(f.moved.launches) / steps),
               chosen.shards == 1 ? "-" : bytes_text(static_cast<double>(in_shards.sent_bytes) / steps),
               chosen.shards == 1 ? "-" : grouped(in_shards.rounds)});
  }
  out << '\n';
  table.write(out);
  out << "(memory: parameters, gradients and the optimizer's; launches: kernels on a device, the mean";
  if (chosen.shards > 1)
    out << "; in shards: sums over whole tensors, and\n skipped steps, that the optimizer tells the ranks of the other "
           "shards; what the model sends them is not counted)\n"
        << "(a rank has 1/" << chosen.shards << " of each tensor, rounded up; all of the above is of one rank)\n";
  else
    out << ")\n";
}

}  // namespace

void print_settings(std::ostream& out, const settings& chosen, tensor_span tensors) {
  const slamb::plan::network& net = chosen.network;
  out << (chosen.shapes.empty() ? chosen.model : chosen.shapes) << ": " << grouped(slamb::plan::elements_of(tensors))
      << " parameters in " << tensors.size() << " tensors; " << grouped(chosen.steps) << " steps on "
      << ranks_text(chosen) << '\n'
      << formatted("network: %d ranks a node, %g Gbit/s a node's link, %g us a hop, %g GB/s inside a node\n",
                   net.ranks_per_node, gigabits(net.bandwidth), net.latency * 1e6, net.node_bandwidth * 1e-9)
      << formatted(
             "a step: %g ms of forward and backward, the optimizer at %g GB/s of memory, the exchange; one after "
             "another\n",
             chosen.compute_seconds * 1e3, chosen.memory_bandwidth * 1e-9)
      << "parameters and gradients: " << chosen.precision
      << (chosen.precision == "float32"         ? ""
          : chosen.rounding_mode() == "masters" ? ", with float masters"
                                                : ", by stochastic rounding")
      << (chosen.moments == "float32" ? "" : "; moments: " + chosen.moments) << '\n'
      << formatted(
             "SLAMB: k = %g, H = %llu; 1-bit: %llu steps of warm-up; 0/1 Adam: variance frozen at %llu; "
             "sums in %llu bytes a value\n\n",
             chosen.k, static_cast<unsigned long long>(chosen.local_steps),
             static_cast<unsigned long long>(chosen.warmup()), static_cast<unsigned long long>(chosen.freeze()),
             static_cast<unsigned long long>(chosen.value_bytes));
}

void print_table(std::ostream& out, const settings& chosen, const std::vector<forecast>& forecasts) {
  programs::text_table<10> table({19, 12, 12, 11, 11, 12, 11, 12, 18, 18});
  table.add({"", "sent", "sent", "less than", "less than", "", "", "scaling", "faster than", "faster than"});
  table.add({"optimizer", "a step", "in all", "fp16 LAMB", "fp32 LAMB", "rounds", "ms a step", "efficiency",
             "fp16 LAMB at", "fp32 LAMB at"});
  for (const forecast& f : forecasts) {
    const auto sent = static_cast<double>(f.moved.traffic.total().sent_bytes);
    table.add({f.optimizer, bytes_text(sent / static_cast<double>(chosen.steps)), bytes_text(sent),
               times_text(f.less_than_half), times_text(f.less_than_single), grouped(f.moved.traffic.total().rounds),
               formatted("%.1f", f.step_seconds * 1e3), formatted("%.1f %%", 100.0 * f.efficiency),
               break_even_text(f.beats_half), break_even_text(f.beats_single)});
  }
  table.write(out);
  out << "(sent: by one rank, "
      << (chosen.shards == 1 ? "to the network or inside its node" : "to the ranks that hold the same shard")
      << "; rounds: collectives; ms a step: the mean; efficiency: part of a step that computes;\n faster than dense "
         "LAMB "
         "on links of that bandwidth, all else as it is)\n";
  print_ranks(out, chosen, forecasts);
}

void write_json(std::ostream& out, const settings& chosen, tensor_span tensors,
                const std::vector<forecast>& forecasts) {
  nlohmann::ordered_json document;
  document["settings"] = settings_json(chosen, tensors);
  document["plans"] = nlohmann::ordered_json::array();
  for (const forecast& f : forecasts) document["plans"].push_back(forecast_json(f, chosen.steps));
  out << document.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) << '\n';
}

}  // namespace plan
