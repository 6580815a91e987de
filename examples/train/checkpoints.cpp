#include "checkpoints.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <cstdlib>
#include <fstream>
#include <iomanip>
#include <span>
#include <stdexcept>
#include <system_error>
#include <utility>
#include <vector>

#include "../common/output_file.hpp"
#include "../common/usage_error.hpp"

namespace train {

namespace {

using programs::flush_to_disk;
using programs::output_file;
using programs::usage_error;

constexpr std::array kinds{slamb::collective::all_reduce, slamb::collective::all_gather, slamb::collective::all_to_all,
                           slamb::collective::broadcast};

// The shortest text that reads back as the number.
template <class Number>
std::string text_of(Number value) {
  std::array<char, 32> text{};
  return {text.data(), std::to_chars(text.data(), text.data() + text.size(), value).ptr};
}

// FNV-1a over the values of all images and labels.
std::uint64_t hash_of(const digits& set, std::uint64_t hash) {
  for (const float pixel : set.pixels) hash = (hash ^ std::bit_cast<std::uint32_t>(pixel)) * 0x100000001B3U;
  for (const int label : set.labels) hash = (hash ^ static_cast<std::uint64_t>(label)) * 0x100000001B3U;
  return hash;
}

// The options that decide the result of each training, with their values. The list of optimizers and the seeds do not.
std::vector<std::pair<std::string, std::string>> decisive_settings(const settings& chosen, const split_digits& data) {
  const auto or_unset = [](const std::optional<double>& value) {
    return value ? text_of(*value) : std::string("unset");
  };
  return {{"--ranks", text_of(chosen.ranks)},
          {"--shards", text_of(chosen.shards)},
          {"--batch", text_of(chosen.batch)},
          {"--steps", text_of(chosen.steps)},
          {"--learning-rate", or_unset(chosen.learning_rate)},
          {"--schedule", chosen.schedule},
          {"--warmup", text_of(chosen.warmup_steps())},
          {"--weight-decay", text_of(chosen.weight_decay)},
          {"--held-out", chosen.held_out ? "set" : "unset"},
          {"--k", text_of(chosen.k)},
          {"--block", text_of(chosen.block)},
          {"--beta3", text_of(chosen.beta3)},
          {"--local-steps", chosen.local_steps ? text_of(*chosen.local_steps) : "unset"},
          {"--update-bound", chosen.update_bound},
          {"--one-bit-epsilon", or_unset(chosen.one_bit_epsilon)},
          {"--one-bit-warmup", text_of(chosen.one_bit_warmup_steps())},
          {"--one-bit-threshold", or_unset(chosen.one_bit_threshold)},
          {"--freeze-step", text_of(chosen.variance_freeze_step())},
          {"--variance-update-scaler", text_of(chosen.variance_update_scaler)},
          {"--local-step-scaler", text_of(chosen.local_interval_scaler())},
          {"--local-step-clipper", text_of(chosen.local_step_clipper)},
          {"--precision", chosen.precision},
          {"--rounding", chosen.has_16_bits() ? chosen.rounding_mode() : "unset"},
          {"--loss-scale", text_of(chosen.scale_of_loss())},
          {"--data", "of " + text_of(data.training.rows()) + " + " + text_of(data.test.rows()) + " images, hash " +
                         text_of(hash_of(data.test, hash_of(data.training, 0xCBF29CE484222325U)))}};
}

[[noreturn]] void refuse_file(const std::filesystem::path& file, const std::string& why) {
  throw std::runtime_error("--resume: " + file.string() + " cannot be read: " + why);
}

[[noreturn]] void refuse_settings(const std::string& folder, const std::string& then, const std::string& here) {
  throw usage_error("--resume: " + folder + " was written with " + then + ", but this run has " + here);
}

void write_traffic(std::ostream& out, const slamb::traffic& of) {
  out << of.rounds << ' ' << of.elements << ' ' << of.payload_bytes << ' ' << of.sent_bytes << ' ';
}
void write_traffic(std::ostream& out, const slamb::traffic_counts& traffic) {
  for (const slamb::collective kind : kinds) write_traffic(out, traffic[kind]);
}

// Reads the progress file of one rank.
class progress_reader {
 public:
  explicit progress_reader(std::filesystem::path file) : file_(std::move(file)), stream_(file_) {
    if (!stream_) refuse_file(file_, "it could not be opened");
  }

  void expect(const std::string& word) {
    std::string found;
    if (!(stream_ >> found) || found != word) refuse_file(file_, "expected '" + word + "', found '" + found + "'");
  }
  std::uint64_t number() {
    std::uint64_t value = 0;
    if (!(stream_ >> value)) refuse_file(file_, "expected a number");
    return value;
  }
  double real() {  // reads infinity too, which streams do not
    std::string text;
    char* end = nullptr;
    const double value = stream_ >> text ? std::strtod(text.c_str(), &end) : 0.0;
    if (text.empty() || *end != '\0') refuse_file(file_, "expected a number, found '" + text + "'");
    return value;
  }
  slamb::traffic_counts traffic() {
    slamb::traffic_counts all;
    for (const slamb::collective kind : kinds) all[kind] = traffic_of_kind();
    return all;
  }
  slamb::traffic traffic_of_kind() {
    slamb::traffic of;
    of.rounds = number();
    of.elements = number();
    of.payload_bytes = number();
    of.sent_bytes = number();
    return of;
  }
  std::string rest_of_line() {
    std::string text;
    std::getline(stream_ >> std::ws, text);
    return text;
  }

 private:
  std::filesystem::path file_;
  std::ifstream stream_;
};

/// @param before  the step of the previous checkpoint; 0: this is the first
void write_progress(std::ostream& out, std::uint64_t step, std::uint64_t before, const outcome& result) {
  out << std::setprecision(17) << "step " << step << "\nbefore " << before << "\nseconds " << result.seconds
      << "\ntraffic ";
  write_traffic(out, result.statistics.traffic);
  out << "\nin_shards ";
  write_traffic(out, result.statistics.in_shards);
  out << "\nphases " << result.statistics.phases.size() << '\n';
  for (const slamb::statistics::phase_type& phase : result.statistics.phases) {
    out << phase.first_step << ' ';
    write_traffic(out, phase.traffic);
    out << phase.name << '\n';
  }
  for (const curve_point& point : result.curve)
    out << point.loss << ' ' << point.sent_bytes << ' ' << point.rounds << ' ' << point.phase << '\n';
  out << "end\n";
}

// The step of the previous checkpoint.
std::uint64_t read_steps(progress_reader& from, const std::filesystem::path& file, std::uint64_t step) {
  from.expect("step");
  if (from.number() != step) refuse_file(file, "it belongs to another step");
  from.expect("before");
  return from.number();
}

void read_progress(const std::filesystem::path& file, std::uint64_t step, outcome& result) {
  progress_reader from(file);
  read_steps(from, file, step);
  from.expect("seconds");
  result.seconds = from.real();
  from.expect("traffic");
  result.statistics.traffic = from.traffic();
  from.expect("in_shards");
  result.statistics.in_shards = from.traffic_of_kind();
  from.expect("phases");
  for (std::uint64_t left = from.number(); left > 0; --left) {
    slamb::statistics::phase_type phase;
    phase.first_step = from.number();
    phase.traffic = from.traffic();
    phase.name = from.rest_of_line();
    result.statistics.phases.push_back(std::move(phase));
  }
  for (std::uint64_t i = 0; i < step; ++i) {
    curve_point point;
    point.loss = from.real();
    point.sent_bytes = from.number();
    point.rounds = from.number();
    point.phase = static_cast<std::size_t>(from.number());
    if (point.phase >= result.statistics.phases.size()) refuse_file(file, "a step has a phase that does not exist");
    result.curve.push_back(point);
  }
  from.expect("end");
}

// Makes the folder, and flushes its name to the disk before anything is written into it.
void make_folder(const std::filesystem::path& folder) {
  try {
    std::vector<std::filesystem::path> made;
    for (auto path = std::filesystem::absolute(folder); !std::filesystem::exists(path); path = path.parent_path())
      made.push_back(path);
    std::filesystem::create_directories(folder);
    for (const std::filesystem::path& path : made) flush_to_disk(path.parent_path());
  } catch (const std::system_error& failure) {
    throw output_error("--checkpoint: " + folder.string() + " cannot be made: " + failure.code().message());
  }
}

slamb::traffic_counts sum_of(slamb::traffic_counts a, const slamb::traffic_counts& b) {
  for (const slamb::collective kind : kinds) a[kind] = a[kind] + b[kind];
  return a;
}

}  // namespace

void prepare_checkpoints(const settings& chosen, const split_digits& data) {
  if (chosen.checkpoint.empty()) return;
  const std::filesystem::path file = std::filesystem::path(chosen.checkpoint) / "settings.txt";
  const auto now = decisive_settings(chosen, data);
  std::ifstream before(file);
  if (!chosen.resume) {
    if (before)
      throw usage_error("--checkpoint: " + chosen.checkpoint +
                        " has the checkpoints of another run; --resume goes on from them, or name another folder");
    make_folder(chosen.checkpoint);
    output_file("--checkpoint", file).write([&now](std::ostream& out) {
      for (const auto& [option, value] : now) out << option << ' ' << value << '\n';
    });
    return;
  }
  if (!before) {
    throw usage_error("--resume: " + chosen.checkpoint +
                      " has no checkpoints; leave out --resume to begin a run that writes them there");
  }
  for (const auto& [option, value] : now) {
    std::string then, here = option;
    here.append(" ").append(value);
    std::getline(before, then);
    if (then != here) refuse_settings(chosen.checkpoint, then, here);
  }
}

rank_checkpoints::rank_checkpoints(const std::filesystem::path& folder, int rank, int ranks)
    : folder_(folder), rank_(rank), ranks_(ranks) {
  make_folder(folder_);
}

std::filesystem::path rank_checkpoints::file(std::uint64_t step, const char* ending) const {
  return folder_ / ("rank" + std::to_string(rank_) + "-step" + std::to_string(step) + ending);
}

// The newest step with a state file. Its progress file exists too, because it is written first.
std::uint64_t rank_checkpoints::newest() const {
  const std::string begin = "rank" + std::to_string(rank_) + "-step";
  std::uint64_t step = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with(begin) || !name.ends_with(".slamb")) continue;
    step = std::max<std::uint64_t>(step, std::strtoull(name.c_str() + begin.size(), nullptr, 10));
  }
  return step;
}

// [ranks] the steps of all ranks; collective.
std::vector<std::uint64_t> rank_checkpoints::of_all_ranks(std::uint64_t own, rank_optimizer& optimizer) const {
  std::vector<float> steps(static_cast<std::size_t>(ranks_));  // at most a million, which floats hold exactly
  steps[static_cast<std::size_t>(rank_)] = static_cast<float>(own);
  optimizer.sum_over_ranks(steps);
  return {steps.begin(), steps.end()};
}

// Some ranks have a checkpoint, and some have none. This is normal if a run was stopped while ranks wrote their first
// checkpoint. Otherwise files have been lost, because ranks delete the files of a step only when all have a later one.
void rank_checkpoints::require_none_lost(const std::vector<std::uint64_t>& newest, rank_optimizer& optimizer,
                                         const std::function<void(const std::string&)>& say) const {
  const std::uint64_t own = newest[static_cast<std::size_t>(rank_)];
  std::uint64_t own_before = 0;
  if (own > 0) {
    const std::filesystem::path progress = file(own, ".progress");
    progress_reader from(progress);
    own_before = read_steps(from, progress, own);
  }
  const std::vector<std::uint64_t> before = of_all_ranks(own_before, optimizer);
  const auto without = std::ranges::find(newest, std::uint64_t{0}) - newest.begin();
  const std::string has_none =
      "--resume: " + folder_.string() + " has no checkpoint of rank " + std::to_string(without);
  for (std::size_t rank = 0; rank < before.size(); ++rank) {
    if (before[rank] == 0) continue;
    throw std::runtime_error(has_none + ", but rank " + std::to_string(rank) + " has one of step " +
                             std::to_string(newest[rank]) + ", which is not its first: files of rank " +
                             std::to_string(without) + " have been lost; restore them, or delete " + folder_.string() +
                             " to begin this training anew");
  }
  if (say)
    say(has_none + ", and other ranks have at most their first, as when a run is stopped while ranks write it: this " +
        "training begins anew");
}

std::uint64_t rank_checkpoints::go_on(rank_optimizer& optimizer, outcome& result,
                                      const std::function<void(const std::string&)>& say) {
  const std::vector<std::uint64_t> steps = of_all_ranks(newest(), optimizer);
  const auto [least, most] = std::ranges::minmax(steps);
  const std::uint64_t step = least;
  if (step == 0) {
    if (most > 0) require_none_lost(steps, optimizer, say);
    return 0;
  }
  read_progress(file(step, ".progress"), step, result);
  optimizer.load(file(step, ".slamb").string());
  remove_others_together(step, optimizer);  // also newer ones of some ranks, which `newest` would find first
  last_ = step;
  return step;
}

void rank_checkpoints::keep(std::uint64_t step, rank_optimizer& optimizer, const outcome& result) {
  output_file("--checkpoint", file(step, ".progress")).write([&](std::ostream& out) {
    write_progress(out, step, last_, result);
  });
  optimizer.save(file(step, ".slamb").string());
  remove_others_together(step, optimizer);
  last_ = step;
}

void rank_checkpoints::remove_others_together(std::uint64_t step, rank_optimizer& optimizer) const {
  float ready = 1.0F;  // all ranks have their files of this step
  optimizer.sum_over_ranks(std::span(&ready, 1));
  remove_others(step);
}

void rank_checkpoints::remove_others(std::uint64_t step) const {
  const std::string begin = "rank" + std::to_string(rank_) + "-step";
  std::vector<std::filesystem::path> others;
  for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with(begin) && !name.starts_with(begin + std::to_string(step) + '.'))
      others.push_back(entry.path());
  }
  std::error_code ignored;
  for (const std::filesystem::path& other : others) std::filesystem::remove(other, ignored);
}

slamb::statistics joined(const slamb::statistics& before, const slamb::statistics& since) {
  if (before.phases.empty()) return since;
  slamb::statistics all = since;
  all.traffic = sum_of(before.traffic, since.traffic);
  all.in_shards = before.in_shards + since.in_shards;
  all.phases = before.phases;
  for (const slamb::statistics::phase_type& phase : since.phases) {
    if (&phase == &since.phases.front() && phase.name == all.phases.back().name)
      all.phases.back().traffic = sum_of(all.phases.back().traffic, phase.traffic);
    else
      all.phases.push_back(phase);
  }
  return all;
}

}  // namespace train
