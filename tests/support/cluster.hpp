// A made-up model, N ranks that train it with the library, and the oracle that says what they should have reached.
//
// Every rank's tensors lie between guard bands in odd alignment; a run in which a guard or a gradient was written fails.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include "slamb/slamb.hpp"
#include "support/generate.hpp"
#include "support/oracle.hpp"

namespace test_support {

/// One tensor of a made-up model.
struct tensor_spec {
  std::size_t size = 0;
  int dimensions = 2;
  slamb::tensor_options options{};
};

using model = std::vector<tensor_spec>;

inline std::size_t total_size(const model& tensors) {
  std::size_t total = 0;
  for (const tensor_spec& l : tensors) total += l.size;
  return total;
}

/// The sizes at which things go wrong, and `more` tensors of random sizes, dimensions and options, in three groups.
inline model random_model(std::uint64_t seed, std::size_t more) {
  model tensors;
  for (const std::size_t size : {std::size_t{0}, std::size_t{1}, std::size_t{15}, std::size_t{17}, std::size_t{9000}})
    tensors.push_back({size});
  for (const tensor_shape& shape : random_shapes(seed, more)) tensors.push_back({shape.size, shape.dimensions});
  random_source source(seed, 0x0D);
  constexpr std::array decays{0.0, 0.001, 0.1};
  for (std::size_t l = 1; l < tensors.size(); ++l) {
    slamb::tensor_options& options = tensors[l].options;
    if (source.below(3) == 0) options.weight_decay = decays[source.below(decays.size())];
    if (source.below(3) == 0) options.learning_rate_factor = 0.5 + source.uniform();
    options.adapt = source.below(4) != 0;
    options.compress = source.below(4) != 0;
    options.group = static_cast<int>(source.below(3));
  }
  tensors[4].options.compress = true;  // of 9000 elements
  tensors.back().options.group = 2;
  return tensors;
}

inline std::vector<oracle::tensor> oracle_tensors(const model& tensors, double weight_decay) {
  std::vector<oracle::tensor> result;
  for (const tensor_spec& l : tensors)
    result.push_back({.size = l.size,
                      .dimensions = l.dimensions,
                      .weight_decay = l.options.weight_decay.value_or(weight_decay),
                      .learning_rate_factor = l.options.learning_rate_factor,
                      .adapt = l.options.adapt,
                      .compress = l.options.compress});
  return result;
}

/// [tensors] the learning rate of each, of `by_group`.
inline oracle::vector rates_of(const model& tensors, std::span<const double> by_group) {
  oracle::vector rates;
  for (const tensor_spec& l : tensors)
    rates.push_back(by_group[by_group.size() == 1 ? 0 : static_cast<std::size_t>(l.options.group)]);
  return rates;
}

/// [n] what `selection` selects, element by element; tensors that are always dense are as the selection has them.
template <class Selection>
std::vector<std::uint8_t> mask_of(const Selection& selection, const model& tensors) {
  std::vector<std::uint8_t> mask;
  std::uint64_t offset = 0;
  for (std::size_t l = 0; l < tensors.size(); ++l) {
    for (std::uint64_t i = 0; i < tensors[l].size; ++i)
      mask.push_back(selection.selects({static_cast<std::uint32_t>(l), i, tensors[l].size, offset}) ? 1 : 0);
    offset += tensors[l].size;
  }
  return mask;
}

/// One rank's parameters and gradients.
class replica {
 public:
  replica(const model& tensors, std::span<const float> start) {
    std::size_t at = 0;
    for (const tensor_spec& l : tensors) {
      at += 5 + (3 * places_.size()) % 7;
      places_.push_back(at);
      at += l.size;
    }
    tensors_ = tensors;
    data_.assign(at + 5, guard);
    gradient_ = data_;
    set_values(start);
    set_gradient(std::vector<float>(start.size(), 0.0F));
  }

  std::vector<slamb::parameter> parameters() {
    std::vector<slamb::parameter> all;
    for (std::size_t l = 0; l < tensors_.size(); ++l)
      all.push_back({data_.data() + places_[l], gradient_.data() + places_[l], tensors_[l].size,
                     tensors_[l].dimensions, tensors_[l].options});
    return all;
  }

  /// [n] all tensors, end to end.
  std::vector<float> values() const {
    std::vector<float> all;
    for (std::size_t l = 0; l < tensors_.size(); ++l) {
      const float* const first = data_.data() + places_[l];
      all.insert(all.end(), first, first + tensors_[l].size);
    }
    return all;
  }

  void set_values(std::span<const float> values) { scatter(values, data_); }
  void set_gradient(std::span<const float> values) {
    scatter(values, gradient_);
    given_ = gradient_;
  }

  /// Whether everything but the parameters is as it was: the guards, and all of the gradients.
  bool intact() const {
    if (!same_bits(gradient_, given_)) return false;
    std::vector<float> expected(data_.size(), guard);
    for (std::size_t l = 0; l < tensors_.size(); ++l)
      std::copy_n(data_.data() + places_[l], tensors_[l].size, expected.data() + places_[l]);
    return same_bits(data_, expected);
  }

  /// All memory of this rank, guards as well: a test that spoils it must see `intact` fail.
  std::span<float> raw_data() { return data_; }
  std::span<float> raw_gradient() { return gradient_; }

 private:
  static constexpr float guard = std::bit_cast<float>(0x7FC0DEADU);  // not a number, and recognisable

  void scatter(std::span<const float> values, std::vector<float>& to) {
    std::size_t from = 0;
    for (std::size_t l = 0; l < tensors_.size(); ++l) {
      std::copy_n(values.data() + from, tensors_[l].size, to.data() + places_[l]);
      from += tensors_[l].size;
    }
  }

  model tensors_;
  std::vector<std::size_t> places_;
  std::vector<float> data_, gradient_, given_;
};

/// Everything that a run depends on but the optimizer's settings.
struct experiment {
  model tensors;
  int world = 1;
  std::vector<float> start{};                                // [n]
  std::vector<std::vector<std::vector<float>>> gradients{};  // [step][rank][n]
  std::vector<std::vector<double>> rates{};                  // [step][group]
  std::vector<std::vector<std::uint8_t>> masks{};            // [step][n], for explicit_mask and the oracle

  std::size_t steps() const { return gradients.size(); }
};

/// Random parameters and gradients, and rates that differ from step to step and between three groups.
inline experiment make_experiment(model tensors, std::uint64_t seed, int world, std::size_t steps) {
  experiment e{.tensors = std::move(tensors), .world = world};
  const std::size_t n = total_size(e.tensors);
  e.start = random_parameters(seed, n);
  for (std::size_t t = 0; t < steps; ++t) {
    e.gradients.push_back(random_gradients(seed, t, world, n));
    const double rate = 0.01 * (1.0 + static_cast<double>(t) / 4.0);
    e.rates.push_back({rate, 0.5 * rate, 0.0});
    e.rates.back()[2] = t % 2 == 0 ? 0.2 * rate : 0.0;
    e.masks.push_back(random_mask(seed, t, n, 0.3));
  }
  return e;
}

/// The same rate for all tensors at each step.
inline void use_one_rate(experiment& e, double rate) {
  for (auto& by_group : e.rates) by_group = {rate};
}

using trajectory = std::vector<std::vector<std::vector<float>>>;  // [step][rank][n]

inline slamb::host_backend one_thread() { return {.threads = 1}; }

/// Trains on `e.world` ranks; what every rank has after every step.
template <class Optimizer>
trajectory train(const experiment& e, const typename Optimizer::options_type& options,
                 const slamb::host_backend& backend = one_thread()) {
  trajectory reached(e.steps(), std::vector<std::vector<float>>(static_cast<std::size_t>(e.world)));
  std::atomic<bool> intact{true};
  slamb::run_ranks(e.world, [&](slamb::thread_communicator communicator) {
    const auto rank = static_cast<std::size_t>(communicator.rank());
    replica mine(e.tensors, e.start);
    Optimizer optimizer(mine.parameters(), options, std::move(communicator), backend);
    for (std::size_t t = 0; t < e.steps(); ++t) {
      mine.set_gradient(e.gradients[t][rank]);
      if constexpr (requires { optimizer.compressor().set(e.masks[t]); }) optimizer.compressor().set(e.masks[t]);
      optimizer.step(e.rates[t]);
      reached[t][rank] = mine.values();
      if (!mine.intact()) intact = false;
    }
  });
  CHECK(intact);
  return reached;
}

/// max |got − expected| / max |expected| over ranks, the largest of all steps; `run` is an oracle at its start.
template <class Oracle>
double worst_error(const experiment& e, const trajectory& got, Oracle run) {
  double worst = 0.0;
  for (std::size_t t = 0; t < e.steps(); ++t) {
    const oracle::vector rates = rates_of(e.tensors, e.rates[t]);
    if constexpr (std::same_as<Oracle, oracle::slamb>) {
      run.step(rates, widened(e.gradients[t]), e.masks[t]);
    } else {
      run.step(rates, widened(e.gradients[t]));
    }
    for (int rank = 0; rank < e.world; ++rank) {
      const std::vector<float>& reached = got[t][static_cast<std::size_t>(rank)];
      const oracle::vector& expected = [&]() -> const oracle::vector& {
        if constexpr (std::same_as<Oracle, oracle::slamb>) return run.parameters(rank);
        if constexpr (!std::same_as<Oracle, oracle::slamb>) return run.parameters();
      }();
      worst = std::max(worst, max_relative_error(reached, expected));
    }
  }
  return worst;
}

/// What the library was told, for the oracle of AdamW and LAMB.
template <class Options>
oracle::settings oracle_settings(const Options& o) {
  oracle::settings how{.algorithm = oracle::method::adamw,
                       .beta1 = o.beta1,
                       .beta2 = o.beta2,
                       .epsilon = o.epsilon,
                       .bias_correction = o.bias_correction,
                       .max_gradient_norm = o.max_gradient_norm};
  if constexpr (requires { o.trust_ratio.adapt_without_weight_decay; }) {
    how.algorithm = oracle::method::lamb;
    how.trust_lower = o.trust_ratio.lower;
    how.trust_upper = o.trust_ratio.upper;
    how.adapt_without_weight_decay = o.trust_ratio.adapt_without_weight_decay;
  }
  return how;
}

/// The same for the oracle of SLAMB.
template <class Options>
oracle::slamb_settings oracle_slamb_settings(const Options& o) {
  constexpr bool blend =
      std::same_as<decltype(o.trust_ratio), slamb::rescaled_trust_ratio<slamb::rescaling::blend>>;
  return {.form = blend ? oracle::rescaling::blend : oracle::rescaling::product,
          .beta1 = o.beta1,
          .beta2 = o.beta2,
          .beta3 = o.beta3,
          .epsilon = o.epsilon,
          .bias_correction = o.bias_correction,
          .local_steps = static_cast<std::uint64_t>(o.local_steps),
          .dense_below = static_cast<std::size_t>(o.dense_below),
          .trust_lower = o.trust_ratio.lower,
          .trust_upper = o.trust_ratio.upper};
}

/// Trains and compares with the oracle: AdamW, LAMB.
template <class Optimizer>
double error_of_dense(const experiment& e, const typename Optimizer::options_type& options) {
  const oracle::adam_family run(oracle_tensors(e.tensors, options.weight_decay), widened(e.start),
                                oracle_settings(options));
  return worst_error(e, train<Optimizer>(e, options), run);
}

/// The oracle of SLAMB at its start.
template <class Options>
oracle::slamb slamb_oracle(const experiment& e, const Options& options) {
  return {oracle_tensors(e.tensors, options.weight_decay), widened(e.start), e.world, oracle_slamb_settings(options)};
}

/// Takes the masks of the steps from the compressor, unless it is told them.
template <class Compressor>
void take_masks(experiment& e, const Compressor& compressor) {
  if constexpr (!std::same_as<Compressor, slamb::explicit_mask>)
    for (std::size_t t = 0; t < e.steps(); ++t) e.masks[t] = mask_of(compressor.at(t + 1), e.tensors);
}

/// Trains and compares with the oracle: SLAMB.
template <class Optimizer>
double error_of_slamb(experiment e, const typename Optimizer::options_type& options) {
  take_masks(e, options.compressor);
  return worst_error(e, train<Optimizer>(e, options), slamb_oracle(e, options));
}

/// Whether two runs of ranks are the same bit for bit.
inline bool same_bits(const trajectory& a, const trajectory& b) {
  if (a.size() != b.size()) return false;
  for (std::size_t t = 0; t < a.size(); ++t) {
    if (a[t].size() != b[t].size()) return false;
    for (std::size_t rank = 0; rank < a[t].size(); ++rank)
      if (!same_bits(std::span(a[t][rank]), std::span(b[t][rank]))) return false;
  }
  return true;
}

/// Whether all ranks have the same bits after step t.
inline bool ranks_agree(const trajectory& reached, std::size_t t) {
  return std::all_of(reached[t].begin(), reached[t].end(),
                     [&](const auto& values) { return same_bits(std::span(values), std::span(reached[t][0])); });
}

}  // namespace test_support
