// A stepper for one of the library's optimizers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <stdexcept>
#include <utility>
#include <vector>

#include "../planned_bytes.hpp"
#include "slamb/slamb.hpp"
#include "stepper.hpp"
#include "watched_device.hpp"

namespace bench {

/// The CUDA backend, with a timer that sees its calls.
struct timed_backend : slamb::cuda_backend {
  launch_timer* timer = nullptr;

  using launcher_type =
      slamb::detail::cuda::stream_launcher<watched_device<slamb::detail::cuda::launcher, launch_timer>>;
  launcher_type make_launcher(std::uint64_t /*elements*/) const {
    return launcher_type({slamb::detail::cuda::launcher(stream), *timer});
  }
};

template <class Optimizer>
class stepper_of final : public stepper {
 public:
  stepper_of(rank_parts from, const typename Optimizer::options_type& options)
      : tensors_(from.tensors.begin(), from.tensors.end()),
        ranks_(static_cast<std::size_t>(from.ranks.size())),
        own_(tensors_, options, slamb::cuda_thread_communicator(std::move(from.ranks)),
             timed_backend{{.stream = from.stream}, from.timer}) {}

  void step(double learning_rate) override { own_.step(learning_rate); }
  void step(const slamb::device_learning_rates& rates) override {
    if constexpr (requires { own_.step(rates); })
      own_.step(rates);
    else
      throw std::logic_error("this recipe takes no learning rates in memory");
  }
  slamb::statistics statistics(bool with_norms) const override { return own_.statistics(with_norms); }
  double bytes_of_steps(const slamb::statistics& before, const slamb::statistics& after) const override {
    return bench::planned_bytes(own_, before, after, tensors_, ranks_);
  }
  double payload_at(std::uint64_t t) const override {
    if constexpr (requires { slamb::detail::sparsifier_of(own_.options().compressor).largest_payload(0); })
      return bench::payload_at(t, own_, tensors_, ranks_);
    else
      return 0.0;
  }

 private:
  std::vector<slamb::parameter> tensors_;
  std::size_t ranks_;
  Optimizer own_;
};

/// The settings of a timed optimizer. SLAMB exchanges parameters in every step, or only in the first, which is not timed. The
/// variance of 0/1 Adam is frozen after the first step, or never.
template <class Options>
Options timed_options(const step_settings& settings) {
  constexpr std::uint64_t never = std::uint64_t{1} << 40U;
  Options options{};
  if constexpr (requires { options.local_steps; }) {
    options.local_steps = settings.is_captured ? 0 : 1'000'000;
    if (settings.exchanges_parameters) options.local_steps = 1;
  }
  if constexpr (requires { slamb::detail::sparsifier_of(options.compressor).block; })
    slamb::detail::sparsifier_of(options.compressor).block = settings.block;
  if constexpr (requires { options.skip_non_finite; }) options.skip_non_finite = settings.skip_non_finite;
  if constexpr (requires { options.compress_single_rank; }) options.compress_single_rank = true;
  if constexpr (requires { options.warm_up.steps; }) options.warm_up.steps = 1;
  if constexpr (requires { options.variance_schedule.freeze_step; }) {
    const bool frozen = settings.zero_one == zero_one_step::local || settings.zero_one == zero_one_step::exchange;
    options.variance_schedule.freeze_step = frozen ? 1 : never;
    options.variance_schedule.update_scaler = settings.zero_one == zero_one_step::variance ? 1 : never;
    options.local_schedule.scaler = settings.zero_one == zero_one_step::local ? 1 : never;
    options.local_schedule.clipper = never;
  }
  return options;
}

/// Makes the stepper on the current GPU.
template <class Optimizer>
std::unique_ptr<stepper> stepper_on_device(rank_parts from) {
  const auto options = timed_options<typename Optimizer::options_type>(from.settings);
  return std::make_unique<stepper_of<Optimizer>>(std::move(from), options);
}

}  // namespace bench
