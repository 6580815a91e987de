// frozen_trust_ratio: both of its phases compared with the equations, in double precision, over whole tensors and many steps.
#include "slamb/trust_ratio/frozen_trust_ratio.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "slamb/backend/host/detail/simd.hpp"
#include "support/described.hpp"
#include "support/generate.hpp"

namespace trust_ratio_frozen_trust_ratio_tests {
namespace {

using slamb::frozen_trust_ratio;
using slamb::tensor_properties;
using slamb::update_terms;
using slamb::detail::host::f32x16;
using test_support::random_source;
using test_support::refusal;
using test_support::told_apart_by;

constexpr std::size_t lanes = slamb::detail::host::lanes;
constexpr double infinite = std::numeric_limits<double>::infinity();
constexpr double no_number = std::numeric_limits<double>::quiet_NaN();

double clamped(double x, double lower, double upper) { return std::min(std::max(x, lower), upper); }

bool close(double got, double expected) { return std::abs(got - expected) <= 1e-6 * std::abs(expected) + 1e-30; }

// ------------------------------------------------------------------------------------------- a made-up tensor

/// The inputs of the ratio of one step, after the exchange and the update.
struct tensor_step {
  std::vector<float> parameter;
  std::vector<float> momentum;
  std::vector<float> variance;
  std::vector<float> fresh_variance;

  std::size_t size() const { return parameter.size(); }
};

/// The derived values of one element, in floats or doubles.
template <class Number>
struct quantities {
  Number deviation;        // D
  Number fresh_deviation;  // D_f
  Number direction;        // w
  Number update;           // u
};

template <class Number>
quantities<Number> quantities_of(const tensor_step& x, std::size_t j, double weight_decay) {
  const auto epsilon = static_cast<Number>(1e-8);
  quantities<Number> q{};
  q.deviation = std::sqrt(static_cast<Number>(x.variance[j])) + epsilon;
  q.fresh_deviation = std::sqrt(static_cast<Number>(x.fresh_variance[j])) + epsilon;
  q.direction = static_cast<Number>(x.momentum[j]) / q.deviation;
  q.update = q.direction + static_cast<Number>(static_cast<float>(weight_decay)) * static_cast<Number>(x.parameter[j]);
  return q;
}

/// Made-up values of one step; `spread` is the deviation of v_f from v.
tensor_step made_up(random_source& source, std::size_t size, double spread) {
  tensor_step x;
  for (std::size_t j = 0; j < size; ++j) {
    const double deviation = std::exp(2.0 * source.bell() - 5.0);
    x.parameter.push_back(static_cast<float>(0.3 * source.bell()));
    x.momentum.push_back(static_cast<float>(deviation * source.bell()));
    x.variance.push_back(static_cast<float>(deviation * deviation));
    x.fresh_variance.push_back(x.variance.back() * static_cast<float>(std::exp(spread * (source.bell() + 1.0))));
  }
  return x;
}

// ----------------------------------------------------------------------------------------------------- by equations

struct settings_by_hand {
  double lower = 0.01, upper = 10.0, beta = 0.9, factor_lower = 0.5, factor_upper = 4.0, change = 0.1;
  bool mixes_weight_decay = true;
};

double norm(const std::vector<double>& x) {
  double sum = 0.0;
  for (const double value : x) sum += value * value;
  return std::sqrt(sum);
}

/// c̄ and f of one tensor, from the equations.
class tensor_by_hand {
 public:
  explicit tensor_by_hand(settings_by_hand settings, bool adapt = true) : with_(settings), adapt_(adapt) {}

  double warm_up(const tensor_step& x, double weight_decay) {
    if (!adapt_) return 1.0;
    std::vector<double> p(x.parameter.begin(), x.parameter.end()), u;
    for (std::size_t j = 0; j < x.size(); ++j) u.push_back(quantities_of<double>(x, j, weight_decay).update);
    double c = 1.0;
    if (norm(p) != 0.0 && norm(u) != 0.0) c = clamped(norm(p) / norm(u), with_.lower, with_.upper);
    if (c != 1.0) mean_ = with_.beta * mean_ + (1.0 - with_.beta) * c;
    return c;
  }

  double compressed(const tensor_step& x, double weight_decay) {
    if (!adapt_) return 1.0;
    std::vector<double> w, u;
    double factor = 0.0;
    for (std::size_t j = 0; j < x.size(); ++j) {
      const quantities<double> q = quantities_of<double>(x, j, weight_decay);
      w.push_back(q.direction);
      u.push_back(q.update);
      factor = std::max(factor, q.deviation / q.fresh_deviation);
    }
    if (weight_decay > 0.0 && with_.mixes_weight_decay) {
      const double rho = norm(u) == 0.0 ? 1.0 : std::min(1.0, norm(w) / norm(u));
      factor = factor * rho + (1.0 - rho);
    }
    factor = clamped(factor, with_.factor_lower, with_.factor_upper);
    last_ = clamped(factor, (1.0 - with_.change) * last_, (1.0 + with_.change) * last_);
    return mean_ * last_;
  }

 private:
  settings_by_hand with_;
  bool adapt_;
  double mean_ = 0.0;
  double last_ = 1.0;
};

// --------------------------------------------------------------------------------------------------------- by policy

/// Sums and maxima, as a backend computes them.
struct scalar_sums {
  std::array<double, 3> sum{};
  std::array<double, 1> maximum{};
  void add_square(int i, float x) {
    sum[static_cast<std::size_t>(i)] += static_cast<double>(x) * static_cast<double>(x);
  }
  void take_maximum(int i, float x) {
    double& most = maximum[static_cast<std::size_t>(i)];
    most = std::max(most, static_cast<double>(x));
  }
};

class tensor_by_policy {
 public:
  explicit tensor_by_policy(const frozen_trust_ratio& policy, bool adapt = true) : policy_(policy), adapt_(adapt) {}

  double warm_up(const tensor_step& x, double weight_decay) {
    scalar_sums sums;
    for (std::size_t j = 0; j < x.size(); ++j) policy_.accumulate(update_terms_of(x, j, weight_decay), true, sums);
    const auto factors = policy_.factors(sums.sum.data(), properties(weight_decay));
    state_ = policy_.averaged(state_, factors);
    return static_cast<double>(policy_.scale(factors, 1.0F));
  }

  double compressed(const tensor_step& x, double weight_decay) {
    scalar_sums sums;
    for (std::size_t j = 0; j < x.size(); ++j) {
      const quantities<float> q = quantities_of<float>(x, j, weight_decay);
      policy_.accumulate_frozen(update_terms_of(x, j, weight_decay), q.deviation / q.fresh_deviation, sums);
    }
    const auto factors = policy_.frozen_factors(state_, sums.sum.data(), sums.maximum.data(), properties(weight_decay));
    return static_cast<double>(policy_.scale(factors, 1.0F));
  }

  const frozen_trust_ratio::segment_state& state() const { return state_; }

 private:
  static update_terms<float> update_terms_of(const tensor_step& x, std::size_t j, double weight_decay) {
    const quantities<float> q = quantities_of<float>(x, j, weight_decay);
    return {x.parameter[j], q.direction, q.update};
  }
  tensor_properties properties(double weight_decay) const {
    return {adapt_, false, static_cast<float>(weight_decay), 4};
  }

  frozen_trust_ratio policy_;
  bool adapt_;
  frozen_trust_ratio::segment_state state_;
};

/// The number of rates of a made-up training that differ from those by hand. v_f is above v and below it in turn.
int differences(const frozen_trust_ratio& policy, const settings_by_hand& settings, bool adapt = true) {
  int different = 0;
  for (const double weight_decay : {0.0, 0.01, 0.3})
    for (const std::size_t size : {1U, 7U, 100U}) {
      random_source source(11, size);
      tensor_by_policy got(policy, adapt);
      tensor_by_hand expected(settings, adapt);
      for (int t = 0; t < 30; ++t) {
        tensor_step x = made_up(source, size, 0.0);
        if (t % 7 == 3) x.parameter.assign(size, 0.0F);
        if (t % 7 == 5) x.momentum.assign(size, 0.0F);
        different += close(got.warm_up(x, weight_decay), expected.warm_up(x, weight_decay)) ? 0 : 1;
      }
      for (int t = 0; t < 120; ++t) {
        const tensor_step x = made_up(source, size, t % 40 < 20 ? 1.5 : -0.8);
        different += close(got.compressed(x, weight_decay), expected.compressed(x, weight_decay)) ? 0 : 1;
      }
    }
  return different;
}

using state = frozen_trust_ratio::segment_state;

/// The policy's c̄ f for given ‖w‖, ‖u‖ and max D/D_f.
float rate(const frozen_trust_ratio& policy, state& of_tensor, double w, double u, double most,
           const tensor_properties& properties = {.weight_decay = 0.01F}) {
  const std::array<double, 3> sums{w * w, u * u, 0.0};
  return policy.frozen_factors(of_tensor, sums.data(), &most, properties).ratio;
}

float warm_up_ratio(const frozen_trust_ratio& policy, double p, double u, const tensor_properties& properties = {}) {
  const std::array<double, 2> sums{p * p, u * u};
  return policy.factors(sums.data(), properties).ratio;
}

/// The values added to sums and maxima, in order.
template <class Real>
struct recorder {
  std::vector<std::pair<int, Real>> added, raised;
  void add_square(int i, const Real& x) { added.push_back({i, x}); }
  void take_maximum(int i, const Real& x) { raised.push_back({i, x}); }
};

}  // namespace

TEST_CASE("frozen_trust_ratio: follows its equations in the warm-up and after it") {
  CHECK(differences({}, {}) == 0);
  CHECK(differences({.lower = 0.1, .upper = 0.3}, {.lower = 0.1, .upper = 0.3}) == 0);
  CHECK(differences({.average = 0.5}, {.beta = 0.5}) == 0);
  CHECK(differences({.average = 0.0}, {.beta = 0.0}) == 0);
  CHECK(differences({.factor_lower = 0.9, .factor_upper = 1.3}, {.factor_lower = 0.9, .factor_upper = 1.3}) == 0);
  CHECK(differences({.factor_change = 0.5}, {.change = 0.5}) == 0);
  CHECK(differences({.factor_upper = infinite, .factor_change = 3.0}, {.factor_upper = infinite, .change = 3.0}) == 0);
  CHECK(differences({}, {}, false) == 0);
}

TEST_CASE("frozen_trust_ratio: the comparison with the equations finds any other setting") {
  CHECK(differences({}, {.lower = 0.1}) > 0);
  CHECK(differences({}, {.upper = 0.3}) > 0);
  CHECK(differences({}, {.beta = 0.89}) > 0);
  CHECK(differences({}, {.factor_lower = 0.6}) > 0);
  CHECK(differences({}, {.factor_upper = 3.0}) > 0);
  CHECK(differences({}, {.change = 0.11}) > 0);
  CHECK(differences({}, {.mixes_weight_decay = false}) > 0);
}

TEST_CASE("frozen_trust_ratio: the ratio of a warm-up is clamped, and 1 if a norm is 0 or the tensor is not adapted") {
  const frozen_trust_ratio policy{.lower = 0.1, .upper = 0.3};
  CHECK(warm_up_ratio(policy, 1.0, 5.0) == 0.2F);
  CHECK(warm_up_ratio(policy, 1.0, 50.0) == 0.1F);
  CHECK(warm_up_ratio(policy, 1.0, 1.0) == 0.3F);
  CHECK(warm_up_ratio(policy, 0.0, 5.0) == 1.0F);  // not clamped
  CHECK(warm_up_ratio(policy, 1.0, 0.0) == 1.0F);
  CHECK(warm_up_ratio(policy, 0.0, 0.0) == 1.0F);
  CHECK(warm_up_ratio(policy, 1.0, 5.0, {.adapt = false}) == 1.0F);
  CHECK(warm_up_ratio({.upper = infinite}, 1e30, 1e-30) <= std::numeric_limits<float>::max());
}

TEST_CASE("frozen_trust_ratio: averages only ratios of norms") {
  const auto mean_after = [](const frozen_trust_ratio& policy, double p, double u, bool adapt) {
    const std::array<double, 2> sums{p * p, u * u};
    return static_cast<double>(policy.averaged({0.5F, 1.0F}, policy.factors(sums.data(), {.adapt = adapt})).mean_ratio);
  };
  const auto near = [](double x) { return doctest::Approx(x).epsilon(1e-6); };
  CHECK(mean_after({}, 1.0, 0.5, true) == near(0.9 * 0.5 + 0.1 * 2.0));
  CHECK(mean_after({}, 0.0, 0.5, true) == 0.5);
  CHECK(mean_after({}, 1.0, 0.0, true) == 0.5);
  CHECK(mean_after({}, 1.0, 0.5, false) == 0.5);
  CHECK(mean_after({.upper = 1.0}, 1.0, 0.5, true) == 0.5);  // c = 1 is not averaged, for whatever reason c is 1
  CHECK(mean_after({.average = 0.0}, 1.0, 0.5, true) == 2.0);
  state untouched{0.5F, 1.7F};
  CHECK(frozen_trust_ratio{}.averaged(untouched, {2.0F}).factor == 1.7F);
}

TEST_CASE("frozen_trust_ratio: the factor moves by a tenth per step, from 1, within its range") {
  const frozen_trust_ratio policy;
  state rising{2.0F, 1.0F}, falling{2.0F, 1.0F};
  double most = 1.0, least = 1.0;
  for (int t = 0; t < 40; ++t) {
    most = std::min(most * 1.1, 4.0);
    least = std::max(least * 0.9, 0.5);
    CHECK(close(static_cast<double>(rate(policy, rising, 1.0, 1.0, 1e30)), 2.0 * most));
    CHECK(close(static_cast<double>(rate(policy, falling, 1.0, 1.0, 1e-30)), 2.0 * least));
  }
  CHECK(rising.factor == 4.0F);
  CHECK(falling.factor == 0.5F);
  state fixed{2.0F, 1.0F};
  for (const double ratio : {0.1, 3.0, 100.0}) CHECK(rate({.factor_change = 0.0}, fixed, 1.0, 1.0, ratio) == 2.0F);
}

TEST_CASE("frozen_trust_ratio: weight decay pulls the factor to 1, in proportion to its part of the update") {
  const frozen_trust_ratio policy{.factor_change = 9.0};
  const auto factor = [&](double w, double u, double most, const tensor_properties& properties) {
    state of_tensor{1.0F, 1.0F};
    return static_cast<double>(rate(policy, of_tensor, w, u, most, properties));
  };
  const tensor_properties decays{.weight_decay = 0.01F}, does_not{.weight_decay = 0.0F};
  CHECK(factor(1.0, 4.0, 3.0, decays) == 1.5);  // 3/4 + 3/4
  CHECK(factor(1.0, 4.0, 3.0, does_not) == 3.0);
  CHECK(factor(5.0, 4.0, 3.0, decays) == 3.0);  // ρ is at most 1
  CHECK(factor(0.0, 4.0, 3.0, decays) == 1.0);  // the update is only weight decay
  CHECK(factor(1.0, 0.0, 3.0, decays) == 3.0);
  CHECK(factor(0.0, 0.0, 3.0, decays) == 3.0);
  CHECK(factor(1e30, 1e-30, 3.0, decays) == 3.0);
  CHECK(factor(infinite, infinite, 3.0, decays) == 3.0);
}

TEST_CASE("frozen_trust_ratio: a tensor that is not adapted has rate 1, and one without a measured ratio has rate 0") {
  const frozen_trust_ratio policy;
  state of_tensor{7.0F, 1.3F};
  CHECK(rate(policy, of_tensor, 1.0, 2.0, 3.0, {.adapt = false}) == 1.0F);
  CHECK(of_tensor.factor == 1.3F);
  state never_measured = {};
  for (const double p : {0.0, 1.0}) {
    const std::array<double, 2> sums{p * p, 0.0};
    never_measured = policy.averaged(never_measured, policy.factors(sums.data(), {}));
  }
  CHECK(rate(policy, never_measured, 1e8, 1e8, 1e8) == 0.0F);
  state huge{3e38F, 4.0F};
  CHECK(rate(policy, huge, 1.0, 1.0, 4.0) <= std::numeric_limits<float>::max());
}

TEST_CASE("frozen_trust_ratio: products fused with sums change no bits") {
  random_source source(3);
  const frozen_trust_ratio policy;
  const auto bits = [](double x) { return std::bit_cast<std::uint32_t>(static_cast<float>(x)); };
  int different = 0;
  for (int i = 0; i < 10000; ++i) {
    const state before{static_cast<float>(std::exp(source.bell())), 1.0F};
    const auto c = static_cast<float>(std::exp(source.bell()));
    const double fresh = static_cast<double>(static_cast<float>(1.0 - policy.average));
    const auto mean = static_cast<double>(before.mean_ratio);
    const double fused = std::fma(fresh, static_cast<double>(c), std::fma(-fresh, mean, mean));
    different += bits(fused) == std::bit_cast<std::uint32_t>(policy.averaged(before, {c}).mean_ratio) ? 0 : 1;
  }
  CHECK(different == 0);
}

TEST_CASE(
    "frozen_trust_ratio: reads p and u in the warm-up, w, u and D/D_f after it, from floats and from vectors alike") {
  const frozen_trust_ratio policy;
  recorder<float> single;
  policy.accumulate(update_terms<float>{1.0F, 2.0F, 3.0F}, true, single);
  CHECK(single.added == std::vector<std::pair<int, float>>{{0, 1.0F}, {1, 3.0F}});
  CHECK(single.raised.empty());
  single = {};
  policy.accumulate_frozen(update_terms<float>{1.0F, 2.0F, 3.0F}, 4.0F, single);
  CHECK(single.added == std::vector<std::pair<int, float>>{{0, 2.0F}, {1, 3.0F}, {2, 1.0F}});
  CHECK(single.raised == std::vector<std::pair<int, float>>{{0, 4.0F}});

  std::array<std::array<float, lanes>, 4> x{};
  random_source source(9);
  for (auto& all : x)
    for (float& value : all) value = static_cast<float>(source.bell());
  const auto vector = [&](std::size_t i) { return f32x16::load(x[i].data()); };
  const auto same = [&](const f32x16& got, std::size_t i) {
    std::array<float, lanes> all{};
    got.store(all.data());
    return test_support::same_bits(all, x[i]);
  };
  recorder<f32x16> whole;
  policy.accumulate(update_terms<f32x16>{vector(0), vector(1), vector(2)}, true, whole);
  policy.accumulate_frozen(update_terms<f32x16>{vector(0), vector(1), vector(2)}, vector(3), whole);
  REQUIRE(whole.added.size() == 5);
  REQUIRE(whole.raised.size() == 1);
  const std::array<std::pair<int, std::size_t>, 5> expected{{{0, 0}, {1, 2}, {0, 1}, {1, 2}, {2, 0}}};
  for (std::size_t i = 0; i < 5; ++i) {
    CHECK(whole.added[i].first == expected[i].first);
    CHECK(same(whole.added[i].second, expected[i].second));
  }
  CHECK(same(whole.raised[0].second, 3));
  CHECK(policy.scale({0.25F}, 0.1F) == 0.25F);
  const std::array<float, lanes> quarters = [] {
    std::array<float, lanes> all{};
    all.fill(0.25F);
    return all;
  }();
  std::array<float, lanes> scale{};
  policy.scale({0.25F}, vector(0)).store(scale.data());
  CHECK(test_support::same_bits(scale, quarters));
}

TEST_CASE("frozen_trust_ratio: names a setting out of range") {
  static_assert(frozen_trust_ratio::is_frozen);
  static_assert(frozen_trust_ratio::frozen_sums == 3 && frozen_trust_ratio::frozen_maxima == 1);
  using policy = frozen_trust_ratio;
  const auto refuses = [](const policy& with, const std::string& part) {
    CHECK(refusal(with).find("frozen_trust_ratio's " + part + " = ") != std::string::npos);
  };
  CHECK(refusal(policy{}) == "nothing was thrown");
  CHECK(refusal(policy{.lower = 0.0, .upper = infinite, .factor_upper = infinite, .factor_change = 0.0}) ==
        "nothing was thrown");
  for (const double wrong : {-1.0, no_number}) {
    refuses({.lower = wrong}, "lower");
    refuses({.upper = wrong}, "upper");
    refuses({.average = wrong}, "average");
    refuses({.factor_lower = wrong}, "factor_lower");
    refuses({.factor_upper = wrong}, "factor_upper");
    refuses({.factor_change = wrong}, "factor_change");
  }
  refuses({.upper = 0.001}, "upper");
  refuses({.average = 1.0}, "average");
  refuses({.factor_lower = 0.0}, "factor_lower");
  refuses({.factor_upper = 0.4}, "factor_upper");
  refuses({.factor_change = infinite}, "factor_change");
}

TEST_CASE("frozen_trust_ratio: a tensor without an average takes the ratio of each step, if elements may begin late") {
  const frozen_trust_ratio policy;
  const std::array<double, 3> sums{9.0, 16.0, 4.0};  // ‖w‖², ‖u‖², ‖p‖²
  const double most = 1.0;
  const auto ratio = [&](state of_tensor, bool may_begin_late, const std::array<double, 3>& of_sums) {
    const tensor_properties properties{.weight_decay = 0.01F, .may_begin_late = may_begin_late};
    const float found = policy.frozen_factors(of_tensor, of_sums.data(), &most, properties).ratio;
    CHECK((of_tensor.mean_ratio == 0.0F || of_tensor.mean_ratio == 2.0F));  // c̄ does not change
    return found;
  };
  CHECK(ratio({}, true, sums) == 0.5F);
  CHECK(ratio({}, false, sums) == 0.0F);  // as in the paper: it does not move
  CHECK(ratio({.mean_ratio = 2.0F}, true, sums) == 2.0F);
  CHECK(ratio({}, true, {9.0, 16.0, 0.0}) == 1.0F);
  CHECK(ratio({}, true, {9.0, 1e-10, 4.0}) == 10.0F);  // clamped
}

TEST_CASE("frozen_trust_ratio: describes each setting") {
  using policy = frozen_trust_ratio;
  const auto differs = [](const policy& other, const std::string& name) {
    CHECK(told_apart_by(policy{}, other) == "frozen_trust_ratio's " + name);
  };
  differs({.lower = 0.02}, "lower");
  differs({.upper = 9.0}, "upper");
  differs({.average = 0.8}, "average");
  differs({.factor_lower = 0.6}, "factor_lower");
  differs({.factor_upper = 3.0}, "factor_upper");
  differs({.factor_change = 0.2}, "factor_change");
}

}  // namespace trust_ratio_frozen_trust_ratio_tests
