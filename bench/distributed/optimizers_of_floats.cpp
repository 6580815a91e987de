// LAMB, AdamW, SLAMB, and auto, which chooses between LAMB and SLAMB.
#include <array>
#include <cstdint>

#include "optimizers.hpp"
#include "slamb/compressor/chain.hpp"

namespace bench::distributed {

namespace {

using lamb = slamb::lamb<ranks>;
using slamb_int8 = slamb::slamb<ranks, slamb::chain<slamb::random_k<>, slamb::int8>>;

const course dense_steps{.phase = "dense"};

// One of every H steps exchanges the parameters.
template <class Options>
course sparse_steps(const Options& options) {
  return {.phase = "sparse", .period = static_cast<std::uint64_t>(options.local_steps)};
}

template <class Optimizer>
typename Optimizer::options_type slamb_options(const settings& chosen) {
  typename Optimizer::options_type options;
  slamb::random_k<>& selected = [&]() -> slamb::random_k<>& {
    if constexpr (requires { options.compressor.sparsifier; })
      return options.compressor.sparsifier;
    else
      return options.compressor;
  }();
  selected.k = chosen.k;
  selected.block = chosen.block;
  if (chosen.local_steps) options.local_steps = static_cast<std::int64_t>(*chosen.local_steps);
  return options;
}

template <class Optimizer>
measurement measure_dense(const scene& at, const std::string& name) {
  return measure<Optimizer>(at, name, {}, dense_steps);
}

template <class Optimizer>
measurement measure_slamb(const scene& at, const std::string& name) {
  const auto options = slamb_options<Optimizer>(at.chosen);
  return measure<Optimizer>(at, name, options, sparse_steps(options));
}

// LAMB or SLAMB, whichever is faster here.
measurement measure_auto(const scene& at, const std::string& name) {
  using sparse = slamb::slamb<ranks>;
  at.parameters.fill(at.chosen.threads);
  exchange_clock clock;
  const double start = MPI_Wtime();
  const typename lamb::options_type dense_options{};
  const auto sparse_options = slamb_options<sparse>(at.chosen);
  auto optimizer = slamb::choose<lamb, sparse>(at.parameters.tensors(), dense_options, sparse_options,
                                               all_ranks(at, clock), {}, {.threads = at.chosen.threads});
  const double seconds = MPI_Wtime() - start;
  measurement m = optimizer.is_compressed()
                      ? measure_steps(at, name, optimizer, sparse_options, clock, sparse_steps(sparse_options))
                      : measure_steps(at, name, optimizer, dense_options, clock, dense_steps);
  m.choice = optimizer.statistics().chosen;
  m.choice_seconds = seconds;
  return m;
}

}  // namespace

std::span<const measured_optimizer> optimizers_of_floats() {
  static constexpr std::array<measured_optimizer, 6> all{{
      {"lamb", measure_dense<lamb>},
      {"adamw", measure_dense<slamb::adamw<ranks>>},
      {"slamb", measure_slamb<slamb::slamb<ranks>>},
      {"slamb+int8", measure_slamb<slamb_int8>},
      {"slamb_by_differences", measure_slamb<slamb::slamb_by_differences<ranks>>},
      {"auto", measure_auto},
  }};
  return all;
}

}  // namespace bench::distributed
