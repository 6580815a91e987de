// Runs traces through the library: one thread a rank, each with its own gradients, and compares the parameters after
// every step. slamb_replay and the tests call the same functions.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <ostream>
#include <slamb/slamb.hpp>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "generate.hpp"
#include "trace.hpp"

namespace test_support {

/// Runs the optimizer over the trace, on as many threads as the trace has ranks.
///
/// @param options       the optimizer's
/// @param before_step   called as before_step(optimizer, step) with step = 0, 1, … before each step
/// @return max |got − expected| / max |expected| over all steps and ranks; infinite if a result is NaN
/// @throws whatever the optimizer throws, and std::runtime_error if it skipped a step
template <class Optimizer, class BeforeStep>
double replay_with(const trace& given, const typename Optimizer::options_type& options, BeforeStep before_step) {
  const trace_settings& settings = given.settings;
  std::vector<double> errors(static_cast<std::size_t>(settings.world), 0.0);
  slamb::run_ranks(settings.world, [&](slamb::thread_communicator communicator) {
    const int rank = communicator.rank();
    std::vector<float> parameters = given.start;
    std::vector<float> gradients(given.start.size());
    std::vector<slamb::parameter> tensors;
    std::size_t first = 0;
    for (std::size_t i = 0; i < settings.shapes.size(); ++i) {
      tensors.push_back({.data = parameters.data() + first,
                         .gradient = gradients.data() + first,
                         .size = settings.size(i),
                         .dimensions = static_cast<int>(settings.shapes[i].size())});
      first += settings.size(i);
    }
    Optimizer optimizer(tensors, options, std::move(communicator), slamb::host_backend{.threads = 1});
    double worst = 0.0;
    for (std::size_t step = 0; step < settings.steps; ++step) {
      std::ranges::copy(given.gradient(step, rank), gradients.begin());
      before_step(optimizer, step);
      optimizer.step(settings.number("lr"));
      worst = std::max(worst, max_absolute_error(std::span<const float>(parameters), given.after(step, rank)));
    }
    if (optimizer.statistics().step != settings.steps) throw std::runtime_error("the optimizer skipped a step");
    errors[static_cast<std::size_t>(rank)] = worst;
  });
  return relative_error(*std::ranges::max_element(errors), max_magnitude(std::span(given.expected)));
}

namespace detail {

// The settings that every Adam has, by the library's names.
template <class Options>
Options adam_options(const trace_settings& settings) {
  Options options{};
  options.beta1 = settings.number("beta1");
  options.beta2 = settings.number("beta2");
  options.epsilon = settings.number("eps");
  options.weight_decay = settings.number("weight_decay");
  options.bias_correction = settings.number("bias_correction", 1.0) != 0.0;
  return options;
}

inline constexpr auto nothing = [](auto&, std::size_t) {};

template <slamb::rescaling Form>
double replay_slamb_form(const trace& given) {
  using optimizer = slamb::slamb<slamb::thread_communicator, slamb::explicit_mask, slamb::rescaled_trust_ratio<Form>>;
  const trace_settings& settings = given.settings;
  auto options = adam_options<typename optimizer::options_type>(settings);
  options.beta3 = settings.number("beta3");
  options.local_steps = static_cast<decltype(options.local_steps)>(settings.number("local_steps"));
  options.dense_below = static_cast<decltype(options.dense_below)>(settings.number("dense_below"));
  options.trust_ratio.lower = settings.number("trust_min");
  options.trust_ratio.upper = settings.number("trust_max");
  return replay_with<optimizer>(given, options,
                                [&](auto& o, std::size_t step) { o.compressor().set(given.mask(step)); });
}

}  // namespace detail

inline double replay_adamw(const trace& given) {
  using optimizer = slamb::adamw<slamb::thread_communicator>;
  return replay_with<optimizer>(given, detail::adam_options<optimizer::options_type>(given.settings), detail::nothing);
}

inline double replay_lamb(const trace& given) {
  using optimizer = slamb::lamb<slamb::thread_communicator>;
  auto options = detail::adam_options<optimizer::options_type>(given.settings);
  options.trust_ratio.lower = given.settings.number("trust_min", options.trust_ratio.lower);
  options.trust_ratio.upper = given.settings.number("trust_max", options.trust_ratio.upper);
  return replay_with<optimizer>(given, options, detail::nothing);
}

inline double replay_slamb(const trace& given) {
  return given.settings.word("rescaling") == "product" ? detail::replay_slamb_form<slamb::rescaling::product>(given)
                                                       : detail::replay_slamb_form<slamb::rescaling::blend>(given);
}

/// An algorithm of the traces, and the function that runs it.
struct replayable {
  const char* algorithm;
  double (*run)(const trace&);
};

inline constexpr replayable replayables[] = {
    {"adamw", replay_adamw},
    {"lamb", replay_lamb},
    {"slamb", replay_slamb},
};

/// Runs one trace through the optimizer it names; see `replay_with`.
///
/// @throws std::runtime_error if this version has no such optimizer
inline double replay(const trace& given) {
  for (const replayable& r : replayables) {
    if (given.settings.algorithm == r.algorithm) return r.run(given);
  }
  throw std::runtime_error("this version has no optimizer for the algorithm " + given.settings.algorithm);
}

/// Replays every folder: a line `name max_rel_err=X` each, then `N passed, M failed`, on `out`; why one failed, on
/// `err`.
///
/// @return 0, or 1 if any differs by more than `tolerance` or could not be replayed
inline int replay_all(const std::vector<std::string>& folders, double tolerance, std::ostream& out, std::ostream& err) {
  const auto text = [](double x) {
    char digits[32];
    std::snprintf(digits, sizeof digits, "%.3g", x);
    return std::string(digits);
  };
  std::size_t passed = 0;
  for (const std::string& folder : folders) {
    const std::string name = trace_name(folder);
    try {
      const double error = replay(read_trace(folder));
      out << name << " max_rel_err=" << text(error) << std::endl;
      if (error <= tolerance) {
        ++passed;
      } else {
        err << name << " error: differs by more than the tolerance of " << text(tolerance) << std::endl;
      }
    } catch (const std::exception& failure) {
      err << name << " error: " << failure.what() << std::endl;
    }
  }
  out << passed << " passed, " << folders.size() - passed << " failed" << std::endl;
  return passed == folders.size() ? 0 : 1;
}

}  // namespace test_support
