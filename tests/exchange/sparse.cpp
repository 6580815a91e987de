// Compression errors of a sparsifier, or of a chain of a sparsifier and a quantizer, in a gradient or a momentum:
// docs/algorithms/compressors.md (14) to (18), element by element, by an optimizer whose update equals the exchanged value.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <utility>
#include <vector>

#include "slamb/slamb.hpp"
#include "support/archetype_quantizers.hpp"
#include "support/cluster.hpp"

namespace exchange_sparse_tests {
namespace {

using slamb::chain;
using slamb::thread_communicator;
using slamb::top_k;
using test_support::experiment;
using test_support::model;
using test_support::trajectory;

/// Multiples of ¼ are exact; all other numbers round to a multiple of ½. So the mean of what two ranks send is exact, while the
/// first phase of an exchange loses much.
struct grid : test_support::quantizer_facts {
  static constexpr int bits_per_element = 16;
  static constexpr slamb::segment_scale scale = slamb::segment_scale::none;

  template <class Real>
  SLAMB_ELEMENT slamb::word_of<Real> encode(const Real& x, const Real& /*scale*/, const Real& /*uniform*/) const {
    using slamb::absolute, slamb::as_word, slamb::select, slamb::to_real, slamb::to_word;
    using word = slamb::word_of<Real>;
    const Real steps = absolute(x) * Real(4.0F);
    const word below = to_word(steps);
    const word even = below + (below & word(1U));
    return select(to_real(below) < steps, even, below) | ((as_word(x) >> 16) & word(0x8000U));
  }
  template <class Real>
  SLAMB_ELEMENT Real decode(const slamb::word_of<Real>& code, const Real& /*scale*/) const {
    using slamb::as_real, slamb::as_word, slamb::to_real;
    using word = slamb::word_of<Real>;
    const Real magnitude = to_real(code & word(0x7FFFU)) * Real(0.25F);
    return as_real(as_word(magnitude) | ((code & word(0x8000U)) << 16));
  }
};
static_assert(slamb::capability::encodes_without_scale<grid>);

float as_sent(const grid& q, float x) { return q.decode<float>(q.encode(x, 1.0F, 0.5F), 1.0F); }

constexpr double huge = 0x1p20;     // ε and γ, so that m/(√v + ε) is m/ε, and a step subtracts m to 4e-6 of it
constexpr double tolerance = 1e-4;  // for sums of a few dozen gradients around 1

/// Gradients around 1, parameters 0, and a rate that makes the update equal to the exchanged value.
experiment linear_experiment(int world, std::size_t steps) {
  experiment e = test_support::make_experiment({{500}, {8193}, {1}, {0}, {129}}, 71, world, steps);
  std::fill(e.start.begin(), e.start.end(), 0.0F);
  std::uint64_t seed = 0;
  for (auto& of_step : e.gradients)
    for (auto& of_rank : of_step) of_rank = test_support::random_parameters(++seed, e.start.size(), 1.0);
  test_support::use_one_rate(e, huge);
  return e;
}

template <class Compressor>
using gradient_exchange = slamb::adamw<Compressor, slamb::residual<>, thread_communicator>;
template <class Compressor>
using momentum_exchange = slamb::slamb<Compressor, slamb::unit_trust_ratio, thread_communicator>;

/// The elements sent at step t, for signals [rank][n].
using signals = std::vector<std::vector<float>>;

template <class Sparsifier>
std::vector<std::uint8_t> sent_at(const Sparsifier& s, std::uint64_t t, const model& tensors, const signals& /*z*/) {
  return test_support::mask_of(s.at(t), tensors);
}

// (15), (16): the leader's largest values, tile by tile.
std::vector<std::uint8_t> sent_at(const top_k& s, std::uint64_t t, const model& tensors, const signals& z) {
  const std::vector<float>& of_leader = z[(t - 1) % z.size()];
  std::vector<std::uint8_t> mask(of_leader.size());
  std::size_t first = 0;
  for (const auto& l : tensors) {
    for (std::size_t done = 0; done < l.size; done += top_k::tile_size) {
      const auto count = static_cast<std::uint32_t>(std::min<std::size_t>(top_k::tile_size, l.size - done));
      std::vector<std::uint16_t> bits(count / 16 + 1);
      s.choose(of_leader.data() + first + done, count, bits.data());
      for (std::uint32_t i = 0; i < count; ++i) mask[first + done + i] = bits[i / 16] >> (i % 16) & 1U;
    }
    first += l.size;
  }
  return mask;
}

/// A model of an exchange that keeps errors: each rank sends its own codes and keeps the rest.
template <class Compressor>
class errors_kept {
 public:
  errors_kept(const Compressor& c, const experiment& e) : compressor_(c), e_(e) {
    kept_.assign(static_cast<std::size_t>(e.world), std::vector<float>(e.start.size()));
  }

  /// [n] the exchanged gradient of step t = 1, 2, …
  std::vector<double> exchanged(std::uint64_t t) {
    signals z = kept_;
    for (std::size_t r = 0; r < z.size(); ++r)
      for (std::size_t j = 0; j < z[r].size(); ++j) z[r][j] += e_.gradients[t - 1][r][j];
    const std::vector<std::uint8_t> mask = sent_at(slamb::detail::sparsifier_of(compressor_), t, e_.tensors, z);
    std::vector<double> mean(mask.size());
    for (std::size_t r = 0; r < z.size(); ++r)
      for (std::size_t j = 0; j < mask.size(); ++j) {
        float sent = mask[j] != 0 ? z[r][j] : 0.0F;
        if constexpr (slamb::capability::chained<Compressor>)
          sent = mask[j] != 0 ? as_sent(compressor_.quantizer, sent) : 0.0F;
        kept_[r][j] = z[r][j] - sent;
        mean[j] += static_cast<double>(sent) / static_cast<double>(z.size());
      }
    return mean;
  }

 private:
  Compressor compressor_;
  const experiment& e_;
  signals kept_;  // [rank][n]
};

/// The largest difference, over all steps, between the movement of LAMB's parameters and the expected exchanged gradients.
template <class Compressor>
double error_of_gradients(const Compressor& trained_with, const Compressor& expected, int world) {
  const experiment e = linear_experiment(world, 12);
  const trajectory reached = test_support::train<gradient_exchange<Compressor>>(
      e, {.beta1 = 0.0, .epsilon = huge, .weight_decay = 0.0, .bias_correction = false, .compressor = trained_with});
  errors_kept<Compressor> model_of(expected, e);
  std::vector<double> p(e.start.size());
  double worst = 0.0;
  for (std::size_t t = 0; t < e.steps(); ++t) {
    CHECK(test_support::ranks_agree(reached, t));
    const std::vector<double> g = model_of.exchanged(t + 1);
    for (std::size_t j = 0; j < p.size(); ++j) {
      p[j] -= g[j];
      worst = std::max(worst, std::abs(p[j] - static_cast<double>(reached[t][0][j])));
    }
  }
  return worst;
}

/// The largest difference between the mean movement of SLAMB's parameters over ranks and the moving average of the mean
/// gradient, which exchanges must not change.
template <class Compressor>
double drift_of_momenta(const Compressor& compressor) {
  const experiment e = linear_experiment(2, 30);
  const trajectory reached = test_support::train<momentum_exchange<Compressor>>(e, {.epsilon = huge,
                                                                                    .weight_decay = 0.0,
                                                                                    .bias_correction = false,
                                                                                    .local_steps = 1000,
                                                                                    .dense_below = 0,
                                                                                    .compressor = compressor});
  std::vector<double> m(e.start.size()), p = m;
  double worst = 0.0;
  for (std::size_t t = 0; t < e.steps(); ++t)
    for (std::size_t j = 0; j < p.size(); ++j) {
      const double mean_gradient =
          0.5 * (static_cast<double>(e.gradients[t][0][j]) + static_cast<double>(e.gradients[t][1][j]));
      m[j] = 0.9 * m[j] + 0.1 * mean_gradient;
      p[j] -= m[j];
      const double mean = 0.5 * (static_cast<double>(reached[t][0][j]) + static_cast<double>(reached[t][1][j]));
      worst = std::max(worst, std::abs(p[j] - mean));
    }
  return worst;
}

/// The largest relative difference between training with a sparsifier and with a chain whose quantizer loses nothing.
template <template <class> class Exchange, class Sparsifier>
double difference_of_lossless_chain(const Sparsifier& s) {
  experiment e = test_support::make_experiment({{9001}, {300}, {33, 1}}, 72, 2, 6);
  const auto sparse = test_support::train<Exchange<Sparsifier>>(e, {.compressor = s});
  const auto chained = test_support::train<Exchange<chain<Sparsifier, test_support::archetype_floats>>>(
      e, {.compressor = {.sparsifier = s}});
  double worst = 0.0;
  for (std::size_t t = 0; t < e.steps(); ++t)
    for (std::size_t rank = 0; rank < 2; ++rank)
      worst =
          std::max(worst, test_support::max_relative_error(chained[t][rank], test_support::widened(sparse[t][rank])));
  return worst;
}

template <class Quantizer>
using random_chain = chain<slamb::random_k<>, Quantizer>;

}  // namespace

TEST_CASE("sparsified gradients: the selected elements are averaged, and the rest is kept") {
  for (const int world : {2, 3}) {
    CAPTURE(world);
    const slamb::random_k<> fifth{.k = 0.2, .block = 5};
    const slamb::random_k<slamb::sampling::bernoulli> drawn{.k = 0.2};
    CHECK(error_of_gradients(fifth, fifth, world) <= tolerance);
    CHECK(error_of_gradients(drawn, drawn, world) <= tolerance);
  }
}

TEST_CASE("sparsified gradients: the largest of each rank in turn, by gradient and error") {
  const top_k fifth{.k = 0.2};
  for (const int world : {2, 3, 4}) {
    CAPTURE(world);
    CHECK(error_of_gradients(fifth, fifth, world) <= tolerance);
  }
}

TEST_CASE("sparsified gradients: the compression error of a chain's codes is kept too") {
  const random_chain<grid> random{.sparsifier = {.k = 0.2}};
  const chain<top_k, grid> largest{.sparsifier = {.k = 0.2}};
  CHECK(error_of_gradients(random, random, 2) <= tolerance);
  CHECK(error_of_gradients(largest, largest, 2) <= tolerance);
}

TEST_CASE("sparsified gradients: the comparison can fail") {
  CHECK(error_of_gradients(slamb::random_k<>{.k = 0.2}, slamb::random_k<>{.k = 0.2, .seed = 1}, 2) > 1e-2);
  CHECK(error_of_gradients(top_k{.k = 0.2}, top_k{.k = 0.201}, 2) > 1e-2);
}

TEST_CASE("sparsified momenta: exchanges keep the mean over ranks, with the loss of any codes") {
  CHECK(drift_of_momenta(slamb::random_k<>{.k = 0.2}) <= tolerance);
  CHECK(drift_of_momenta(top_k{.k = 0.2}) <= tolerance);
  CHECK(drift_of_momenta(random_chain<grid>{.sparsifier = {.k = 0.2}}) <= tolerance);
  CHECK(drift_of_momenta(chain<top_k, grid>{.sparsifier = {.k = 0.2}}) <= tolerance);
  CHECK(drift_of_momenta(random_chain<test_support::archetype_ternary>{.sparsifier = {.k = 0.2}}) >
        1e-2);  // mean's code
}

TEST_CASE("chain: with a lossless quantizer it equals its sparsifier") {
  CHECK(difference_of_lossless_chain<gradient_exchange>(slamb::random_k<>{.k = 0.2}) <= 1e-6);
  CHECK(difference_of_lossless_chain<gradient_exchange>(top_k{.k = 0.2}) <= 1e-6);
  CHECK(difference_of_lossless_chain<momentum_exchange>(slamb::random_k<>{.k = 0.2}) <= 1e-6);
  CHECK(difference_of_lossless_chain<momentum_exchange>(top_k{.k = 0.2}) <= 1e-6);
}

TEST_CASE("chain: a quantizer with one scale per tensor, or one that is zero-aware, is rejected") {
  std::vector<float> p(100), g(100);
  const std::vector<slamb::parameter> tensors{{.data = p.data(), .gradient = g.data(), .size = p.size()}};
  using optimizer = slamb::slamb<slamb::self_communicator, random_chain<slamb::sign>>;
  CHECK_NOTHROW(optimizer{tensors});
  CHECK_THROWS_WITH_AS(optimizer(tensors, {.compressor = {.quantizer = {.scales = slamb::scale_sharing::per_tensor}}}),
                       doctest::Contains("must be fused"), std::invalid_argument);
  CHECK_THROWS_WITH_AS(optimizer(tensors, {.compressor = {.quantizer = {.zero_aware = true}}}),
                       doctest::Contains("must be false"), std::invalid_argument);
  CHECK_THROWS_WITH_AS(optimizer(tensors, {.compressor = {.sparsifier = {.k = 2.0}}}), doctest::Contains("k = 2"),
                       std::invalid_argument);
}

}  // namespace exchange_sparse_tests
