// A plot of loss against bytes sent, drawn by gnuplot.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "optimizers.hpp"
#include "settings.hpp"
#include "training.hpp"

namespace train {

/// @throws std::runtime_error if gnuplot is not on the PATH
inline void require_gnuplot() {
  const char* const path = std::getenv("PATH");
  std::istringstream folders(path == nullptr ? "" : path);
  for (std::string folder; std::getline(folders, folder, ':');) {
    const std::filesystem::path program = std::filesystem::path(folder) / "gnuplot";
    std::error_code ignored;
    if (std::filesystem::is_regular_file(program, ignored) && access(program.c_str(), X_OK) == 0) return;
  }
  throw std::runtime_error("--plot needs gnuplot, but it is not on the PATH (Debian, Ubuntu: gnuplot-nox)");
}

namespace detail {

/// The mean over the seeds of one optimizer's curves.
inline std::vector<curve_point> mean_curve(const std::vector<outcome>& outcomes, const std::string& optimizer) {
  std::vector<curve_point> mean;
  std::size_t seeds = 0;
  for (const outcome& result : outcomes) {
    if (result.optimizer != optimizer) continue;
    ++seeds;
    mean.resize(result.curve.size());
    for (std::size_t i = 0; i < mean.size(); ++i) {
      mean[i].loss += result.curve[i].loss;
      mean[i].sent_bytes += result.curve[i].sent_bytes;
    }
  }
  for (curve_point& point : mean) {
    point.loss /= static_cast<double>(seeds);
    point.sent_bytes /= seeds;
  }
  return mean;
}

/// `text` as a gnuplot string in which no character has a special meaning.
inline std::string quoted(const std::string& text) {
  std::string result = "'";
  for (const char c : text) result += c == '\'' ? std::string("''") : std::string(1, c);
  return result + "'";
}

constexpr std::size_t smoothing = 10;  // steps
constexpr const char* colours[] = {"#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000"};

/// One data block for each optimizer: megabytes sent, and the loss averaged over the last ten steps.
inline void write_curve(std::ostream& script, std::size_t number, const std::vector<curve_point>& curve) {
  script << "$curve" << number << " << end_of_curve\n";
  for (std::size_t i = 0; i < curve.size(); ++i) {
    const std::size_t first = i + 1 > smoothing ? i + 1 - smoothing : 0;
    double sum = 0.0;
    for (std::size_t j = first; j <= i; ++j) sum += curve[j].loss;
    const double loss = sum / static_cast<double>(i + 1 - first);
    if (std::isfinite(loss) && loss > 0.0)
      script << static_cast<double>(curve[i].sent_bytes) / 1e6 << ' ' << loss << '\n';
  }
  script << "end_of_curve\n";
}

inline std::string plot_script(const settings& chosen, const std::vector<optimizer_entry>& entries,
                               const std::vector<outcome>& outcomes, const std::filesystem::path& target) {
  std::ostringstream script;
  script << "set terminal svg size 800,500 noenhanced font 'sans,14' background rgb 'white'\n"
         << "set output " << quoted(target.string()) << '\n'
         << "set logscale xy\nset format x '%g'\nset format y '%g'\nset grid\nset key top right\n"
         << "set xlabel 'MB sent by a rank'\n"
         << "set ylabel 'training loss, mean of " << smoothing << " steps'\n"
         << "set title "
         << quoted("Loss against bytes sent: " + std::to_string(chosen.ranks) + " ranks, mean of " +
                   std::to_string(chosen.seeds) + (chosen.seeds == 1 ? " seed" : " seeds"))
         << '\n';
  std::string plots;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    write_curve(script, i, mean_curve(outcomes, entries[i].name));
    // Markers distinguish the lines without colour.
    plots += (i > 0 ? ", " : "plot ") + ("$curve" + std::to_string(i)) +
             " with linespoints linewidth 2 linecolor rgb " + quoted(colours[i % std::size(colours)]) + " pointtype " +
             std::to_string(i + 4) + " pointinterval " + std::to_string(std::max<std::uint64_t>(1, chosen.steps / 12)) +
             " title " + quoted(entries[i].name);
  }
  script << plots << "\nset output\n";
  return script.str();
}

}  // namespace detail

/// Draws one line for each optimizer into `target`.
///
/// @throws std::runtime_error if gnuplot fails
inline void draw_plot(const settings& chosen, const std::vector<optimizer_entry>& entries,
                      const std::vector<outcome>& outcomes, const std::filesystem::path& target) {
  const std::string script = detail::plot_script(chosen, entries, outcomes, target);
  std::FILE* const gnuplot = popen("gnuplot -", "w");
  if (gnuplot == nullptr) throw std::runtime_error("--plot: gnuplot could not be started");
  const bool told = std::fwrite(script.data(), 1, script.size(), gnuplot) == script.size();
  const int status = pclose(gnuplot);
  std::error_code none;
  if (!told || status != 0 || std::filesystem::file_size(target, none) == 0 || none) {
    throw std::runtime_error("--plot: gnuplot failed to draw the plot");
  }
}

}  // namespace train
