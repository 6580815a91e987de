// A stepper of one of the library's optimizers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "../bytes_of_steps.hpp"
#include "slamb/slamb.hpp"
#include "stepper.hpp"
#include "watched_device.hpp"

namespace bench {

/// The CUDA backend, whose calls a timer sees.
struct timed_backend : slamb::cuda_backend {
  launch_timer* timer = nullptr;

  using executor_type = slamb::cuda::executor<watched_device<slamb::cuda::launcher, launch_timer>>;
  executor_type make_executor(std::uint64_t /*elements*/) const {
    return executor_type({slamb::cuda::launcher(stream), *timer});
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
  slamb::statistics statistics(bool with_norms) const override { return own_.statistics(with_norms); }
  double bytes_of_steps(const slamb::statistics& before, const slamb::statistics& after) const override {
    return bench::bytes_of_steps(own_, before, after, tensors_, ranks_);
  }
  double payload_at(std::uint64_t t) const override {
    if constexpr (requires { own_.options().dense_below; })
      return bench::payload_at(t, tensors_, own_.options()).sent;
    else
      return 0.0;
  }

 private:
  std::vector<slamb::parameter> tensors_;
  std::size_t ranks_;
  Optimizer own_;
};

/// Settings of what is timed. SLAMB's parameters are averaged at the first step alone, which is not.
template <class Options>
Options timed_options(std::size_t block) {
  Options options{};
  if constexpr (requires { options.local_steps; }) options.local_steps = 1'000'000;
  if constexpr (requires { options.compressor.block; }) options.compressor.block = block;
  if constexpr (requires { options.warm_up.steps; }) {
    options.warm_up.steps = 1;
    options.compress_alone = true;
  }
  return options;
}

/// On the GPU that is current.
template <class Optimizer>
std::unique_ptr<stepper> stepper_on_device(rank_parts from) {
  const auto options = timed_options<typename Optimizer::options_type>(from.block);
  return std::make_unique<stepper_of<Optimizer>>(std::move(from), options);
}

}  // namespace bench
