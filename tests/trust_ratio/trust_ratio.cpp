// One suite for every TrustRatio: its functions give equal bits for a float and for a lane of a vector, and factors and scale
// follow the equations. The expected values come from loops over whole tensors.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "slamb/backend/host/detail/simd.hpp"
#include "slamb/slamb.hpp"
#include "support/archetype_policies.hpp"
#include "support/generate.hpp"
#include "support/quadratic.hpp"

namespace trust_ratio_trust_ratio_tests {

/// A float whose products are never fused with a sum, as `f32x16` promises for its lanes with all compiler flags.
struct strict {
  float value = 0.0F;

  strict() = default;
  explicit strict(float x) : value(x) {}
  friend strict operator+(strict a, strict b) { return strict(a.value + b.value); }
  friend strict operator-(strict a, strict b) { return strict(a.value - b.value); }
  friend strict operator*(strict a, strict b) {
    const volatile float product = a.value * b.value;
    return strict(product);
  }
  friend strict operator/(strict a, strict b) { return strict(a.value / b.value); }
  friend bool operator<(strict a, strict b) { return a.value < b.value; }
  friend strict select(bool condition, strict yes, strict no) { return condition ? yes : no; }
  friend strict square_root(strict x) { return strict(std::sqrt(x.value)); }
  friend strict minimum(strict a, strict b) { return b < a ? b : a; }
  friend strict maximum(strict a, strict b) { return a < b ? b : a; }
};

namespace {

using slamb::rescaled_trust_ratio;
using slamb::rescaling;
using slamb::tensor_properties;
using slamb::update_terms;
using slamb::detail::host::f32x16;
using test_support::random_source;

constexpr std::size_t lanes = slamb::detail::host::lanes;
constexpr double infinite = std::numeric_limits<double>::infinity();
constexpr double no_number = std::numeric_limits<double>::quiet_NaN();

using fault = std::optional<std::string>;
using lane_array = std::array<float, lanes>;

// ------------------------------------------------------------------------------------------- float against vector

/// The calls of `accumulate`, in order: the number of the sum, and the value.
template <class Real>
struct recorder {
  std::vector<std::pair<int, Real>> added;
  void add_square(int index, const Real& x) { added.push_back({index, x}); }
};

template <class Real>
Real at_lane(const lane_array& x, std::size_t lane) {
  if constexpr (std::is_same_v<Real, f32x16>)
    return f32x16::load(x.data());
  else
    return Real(x[lane]);
}

float lane_of(const f32x16& x, std::size_t lane) {
  lane_array all;
  x.store(all.data());
  return all[lane];
}
[[maybe_unused]] float lane_of(float x, std::size_t) { return x; }
float lane_of(strict x, std::size_t) { return x.value; }

bool same(float a, float b) {
  return (std::isnan(a) && std::isnan(b)) || std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b);
}

float some_value(random_source& source) {
  switch (source.below(8)) {
    case 0:
      return source.below(2) == 0 ? 0.0F : -0.0F;
    case 1:
      return std::numeric_limits<float>::denorm_min();
    case 2:
      return static_cast<float>(1e30 * source.bell());
    default:
      return static_cast<float>(source.bell());
  }
}

/// The fault, if Real does not give in every lane the bits of `f32x16`, from `accumulate` and from `scale`.
template <class Real, class T>
fault lanes_fault(const T& ratio) {
  random_source source(17);
  for (int round = 0; round < 200; ++round) {
    std::array<lane_array, 4> x;
    for (std::size_t i = 0; i < 3; ++i)
      for (float& value : x[i]) value = some_value(source);
    for (float& s : x[3]) s = static_cast<float>(std::pow(0.93, static_cast<double>(source.below(300))));
    const bool received = source.below(2) == 0;
    std::vector<double> sums;
    for (int i = 0; i < static_cast<int>(T::sums_per_segment); ++i)
      sums.push_back(source.below(6) == 0 ? 0.0 : std::exp(4.0 * source.bell()));
    const tensor_properties properties{source.below(4) != 0, source.below(2) == 0, source.below(2) == 0 ? 0.0F : 0.01F,
                                       1 + static_cast<int>(source.below(8))};
    const auto factors = ratio.factors(sums.data(), properties);

    recorder<f32x16> whole;
    ratio.accumulate(update_terms<f32x16>{at_lane<f32x16>(x[0], 0), at_lane<f32x16>(x[1], 0), at_lane<f32x16>(x[2], 0)},
                     received, whole);
    const f32x16 scale = ratio.scale(factors, at_lane<f32x16>(x[3], 0));
    for (std::size_t lane = 0; lane < lanes; ++lane) {
      recorder<Real> single;
      ratio.accumulate(
          update_terms<Real>{at_lane<Real>(x[0], lane), at_lane<Real>(x[1], lane), at_lane<Real>(x[2], lane)}, received,
          single);
      if (single.added.size() != whole.added.size()) return "accumulate adds to another number of sums";
      for (std::size_t i = 0; i < single.added.size(); ++i) {
        if (single.added[i].first != whole.added[i].first) return "accumulate adds to another sum";
        if (single.added[i].first < 0 || single.added[i].first >= static_cast<int>(T::sums_per_segment))
          return "accumulate adds to a sum that does not exist";
        if (!same(lane_of(single.added[i].second, 0), lane_of(whole.added[i].second, lane)))
          return "accumulate adds another value";
      }
      if (!same(lane_of(ratio.scale(factors, at_lane<Real>(x[3], lane)), 0), lane_of(scale, lane)))
        return "scale has other bits";
    }
  }
  return {};
}

template <class T>
void check_lanes(const T& ratio) {
  static_assert(slamb::trust_ratio<T>);
  static_assert(std::is_trivially_copyable_v<decltype(ratio.factors(nullptr, tensor_properties{}))>);
  if constexpr (requires { ratio.validate(); }) CHECK_NOTHROW(ratio.validate());
  const fault of_strict = lanes_fault<strict>(ratio);
  CHECK_MESSAGE(!of_strict, of_strict.value_or(""));
#if defined(__SSE2__) && !defined(__FMA__)  // otherwise a compiler may fuse code for plain floats
  const fault of_float = lanes_fault<float>(ratio);
  CHECK_MESSAGE(!of_float, of_float.value_or(""));
#endif
}

/// Behaves differently for vectors and floats.
template <int Fault>
struct two_faced {
  static constexpr int sums_per_segment = 2;
  template <class Real, class Sums>
  void accumulate(const update_terms<Real>& x, bool, Sums& sums) const {
    constexpr bool vector = std::is_same_v<Real, f32x16>;
    sums.add_square(Fault == 1 && vector ? 1 : 0, Fault == 2 && vector ? x.update : x.parameter);
    if (Fault == 3 && vector) sums.add_square(1, x.update);
    if (Fault == 4) sums.add_square(2, x.update);
  }
  float factors(const double*, tensor_properties) const { return 0.3F; }
  template <class Real>
  Real scale(float f, const Real& discount) const {
    const bool off = Fault == 5 && std::is_same_v<Real, f32x16>;
    return Real(f) * discount * Real(off ? 1.0000001F : 1.0F);
  }
};

// --------------------------------------------------------------------------------------- factors and scale by hand

double clamped(double x, double lower, double upper) { return std::min(std::max(x, lower), upper); }

/// ‖a‖/‖b‖ from norms; `otherwise` if either is 0.
double ratio(double a, double b, double otherwise = 1.0) { return a > 0.0 && b > 0.0 ? a / b : otherwise; }

struct norms_of_parts {
  double sent_p, sent_u, unsent_p, unsent_u;

  std::array<double, 4> squares() const {
    return {sent_p * sent_p, sent_u * sent_u, unsent_p * unsent_p, unsent_u * unsent_u};
  }
};

/// Norms that include zeros, equal ones, and ratios beyond every clamp.
std::vector<norms_of_parts> norms_to_try() {
  std::vector<norms_of_parts> all;
  const std::array<double, 5> values{0.0, 1e-4, 0.7, 3.0, 4e3};
  for (const double a : values)
    for (const double b : values)
      for (const double c : values)
        for (const double d : values) all.push_back({a, b, c, d});
  return all;
}

double product_by_hand(const norms_of_parts& n, const tensor_properties& f, double s, double lower, double upper) {
  const double root_n = std::sqrt(static_cast<double>(f.world));
  const double r1 = f.adapt ? ratio(n.sent_p, n.sent_u) : 1.0;
  const double r2 = f.adapt ? ratio(n.unsent_p, n.unsent_u) : 1.0;
  double phi = clamped(s * r1 + (1.0 - s) * r2, lower, upper);
  if (f.one_dimensional) phi = r1;
  if (!f.adapt) phi = 1.0;
  return phi * (s + (1.0 - s) / root_n);
}

double blend_by_hand(const norms_of_parts& n, const tensor_properties& f, double s, double lower, double upper) {
  const double root_n = std::sqrt(static_cast<double>(f.world));
  double a = clamped(ratio(n.sent_p, n.sent_u, 1.0), lower, upper);
  double b = clamped(ratio(n.unsent_p, n.unsent_u, 0.0), 0.0, upper);
  if (!f.adapt) a = b = 1.0;
  return a * s + b * (1.0 - s) / root_n;
}

bool close(double got, double expected) { return std::abs(got - expected) <= 2e-6 * std::abs(expected) + 1e-30; }

/// The number of scales that differ from those by hand.
template <rescaling Form, class ByHand>
int differences(const rescaled_trust_ratio<Form>& policy, ByHand by_hand) {
  int different = 0;
  for (const norms_of_parts& n : norms_to_try())
    for (const bool adapt : {true, false})
      for (const bool one_dimensional : {true, false})
        for (const int world : {1, 2, 7})
          for (const double s : {1.0, 0.93, 0.25, 0.0}) {
            const tensor_properties properties{adapt, one_dimensional, 0.01F, world};
            const std::array<double, 4> squares = n.squares();
            const float got = policy.scale(policy.factors(squares.data(), properties), static_cast<float>(s));
            const double expected =
                by_hand(n, properties, static_cast<double>(static_cast<float>(s)), policy.lower, policy.upper);
            different += close(static_cast<double>(got), expected) ? 0 : 1;
          }
  return different;
}

float layerwise(const slamb::layerwise_trust_ratio& policy, double p, double u, const tensor_properties& properties) {
  const std::array<double, 2> squares{p * p, u * u};
  return policy.scale(policy.factors(squares.data(), properties), 1.0F);
}

}  // namespace

TEST_CASE("trust_ratio suite: finds a policy that treats vectors and floats differently") {
  CHECK_FALSE(lanes_fault<strict>(two_faced<0>{}));
  CHECK(lanes_fault<strict>(two_faced<1>{}));
  CHECK(lanes_fault<strict>(two_faced<2>{}));
  CHECK(lanes_fault<strict>(two_faced<3>{}));
  CHECK(lanes_fault<strict>(two_faced<4>{}));
  CHECK(lanes_fault<strict>(two_faced<5>{}));
}

TEST_CASE("trust_ratio: a float and a lane of a vector give the same bits") {
  check_lanes(slamb::unit_trust_ratio{});
  check_lanes(slamb::layerwise_trust_ratio{});
  check_lanes(slamb::layerwise_trust_ratio{.lower = 0.01, .upper = 10.0, .adapt_without_weight_decay = false});
  check_lanes(rescaled_trust_ratio<rescaling::product>{});
  check_lanes(rescaled_trust_ratio<rescaling::blend>{});
  check_lanes(rescaled_trust_ratio<rescaling::blend>{.lower = 0.5, .upper = 2.0});
  check_lanes(test_support::damped_update{});
  check_lanes(test_support::six_norms{});
  check_lanes(test_support::as_fresh_as_it_is{});
}

TEST_CASE("unit_trust_ratio: is 1 for every tensor and staleness discount") {
  const slamb::unit_trust_ratio policy;
  for (const float discount : {0.0F, 0.5F, 1.0F}) CHECK(policy.scale(policy.factors(nullptr, {}), discount) == 1.0F);
}

TEST_CASE(
    "layerwise_trust_ratio: is the clamped ratio of the norms, and 1 if either is 0 or the tensor is not adapted") {
  using policy = slamb::layerwise_trust_ratio;
  for (const double p : {0.0, 1e-20, 0.3, 5.0, 1e20})
    for (const double u : {0.0, 1e-20, 0.3, 5.0, 1e20})
      for (const policy& with : {policy{}, policy{.lower = 0.01, .upper = 10.0}, policy{.lower = 2.0, .upper = 2.0}}) {
        const double expected = clamped(ratio(p, u), with.lower, with.upper);
        const double got = layerwise(with, p, u, {});
        CHECK(close(got, std::min(expected, 3e38)));  // a value too large for a float becomes the largest
        CHECK(layerwise(with, p, u, {.adapt = false}) == 1.0F);
      }
  CHECK(layerwise({}, 6.0, 2.0, {.weight_decay = 0.0F}) == 3.0F);
  CHECK(layerwise({.adapt_without_weight_decay = false}, 6.0, 2.0, {.weight_decay = 0.0F}) == 1.0F);
  CHECK(layerwise({.adapt_without_weight_decay = false}, 6.0, 2.0, {.weight_decay = 0.01F}) == 3.0F);
  CHECK(layerwise({}, 6.0, 2.0, {.one_dimensional = true, .world = 5}) == 3.0F);
}

TEST_CASE("layerwise_trust_ratio: sums are the squares of p and of u") {
  recorder<float> sums;
  slamb::layerwise_trust_ratio{}.accumulate(update_terms<float>{1.0F, 2.0F, 3.0F}, true, sums);
  CHECK(sums.added == std::vector<std::pair<int, float>>{{0, 1.0F}, {1, 3.0F}});
}

TEST_CASE(
    "rescaled_trust_ratio: the product form follows its equation, for zero norms, every clamp and kind of tensor") {
  CHECK(differences(rescaled_trust_ratio<rescaling::product>{}, product_by_hand) == 0);
  CHECK(differences(rescaled_trust_ratio<rescaling::product>{.lower = 0.5, .upper = 2.0}, product_by_hand) == 0);
  CHECK(differences(rescaled_trust_ratio<rescaling::product>{.lower = 0.0, .upper = infinite}, product_by_hand) == 0);
}

TEST_CASE("rescaled_trust_ratio: the blend follows its equation, with 1 or 0 if a norm is 0") {
  CHECK(differences(rescaled_trust_ratio<rescaling::blend>{}, blend_by_hand) == 0);
  CHECK(differences(rescaled_trust_ratio<rescaling::blend>{.lower = 0.5, .upper = 2.0}, blend_by_hand) == 0);
  // "or 0": a part that was not sent and has no norm does not move; a part that was sent moves at the learning rate.
  const rescaled_trust_ratio<rescaling::blend> policy;
  const std::array<double, 4> nothing{};
  CHECK(policy.scale(policy.factors(nothing.data(), {.world = 4}), 0.0F) == 0.0F);
  CHECK(policy.scale(policy.factors(nothing.data(), {.world = 4}), 1.0F) == 1.0F);
}

TEST_CASE("rescaled_trust_ratio: the comparison finds the other form, and other clamps") {
  CHECK(differences(rescaled_trust_ratio<rescaling::product>{}, blend_by_hand) > 0);
  CHECK(differences(rescaled_trust_ratio<rescaling::blend>{}, product_by_hand) > 0);
  CHECK(differences(rescaled_trust_ratio<rescaling::product>{},
                    [](const norms_of_parts& n, const tensor_properties& f, double s, double, double) {
                      return product_by_hand(n, f, s, 0.02, 1000.0);
                    }) > 0);
}

TEST_CASE("rescaled_trust_ratio: sums are of p and u in the product form, of p and w in the blend, by part") {
  const update_terms<float> x{1.0F, 2.0F, 3.0F};
  const auto added = [&x](const auto& policy, bool received) {
    recorder<float> sums;
    policy.accumulate(x, received, sums);
    return sums.added;
  };
  using list = std::vector<std::pair<int, float>>;
  CHECK(added(rescaled_trust_ratio<rescaling::product>{}, true) == list{{0, 1.0F}, {1, 3.0F}});
  CHECK(added(rescaled_trust_ratio<rescaling::product>{}, false) == list{{2, 1.0F}, {3, 3.0F}});
  CHECK(added(rescaled_trust_ratio<rescaling::blend>{}, true) == list{{0, 1.0F}, {1, 2.0F}});
  CHECK(added(rescaled_trust_ratio<rescaling::blend>{}, false) == list{{2, 1.0F}, {3, 2.0F}});
  CHECK(slamb::capability::has_uncorrected_epsilon<rescaled_trust_ratio<rescaling::blend>>);
  CHECK_FALSE(slamb::capability::has_uncorrected_epsilon<rescaled_trust_ratio<rescaling::product>>);
}

TEST_CASE("trust_ratio: clamps out of range are rejected") {
  const auto refuses = [](const auto& policy) { CHECK_THROWS_AS(policy.validate(), std::invalid_argument); };
  for (const double lower : {-1.0, infinite, no_number}) {
    refuses(slamb::layerwise_trust_ratio{.lower = lower});
    refuses(rescaled_trust_ratio<>{.lower = lower});
  }
  refuses(slamb::layerwise_trust_ratio{.lower = 2.0, .upper = 1.0});
  refuses(rescaled_trust_ratio<>{.upper = 0.001});
  refuses(rescaled_trust_ratio<>{.upper = no_number});
  CHECK_NOTHROW((rescaled_trust_ratio<>{.lower = 0.0, .upper = infinite}.validate()));
}

// -------------------------------------------------------------------------------- trainings, compared with whole tensors

namespace {

using test_support::plain_loop;
using test_support::quadratic;
using test_support::tensor_at_step;

using scales_of_tensor = std::vector<double> (*)(const tensor_at_step&);

double whole_norm(std::span<const double> x) {
  double sum = 0.0;
  for (const double value : x) sum += value * value;
  return std::sqrt(sum);
}

std::vector<double> ones(const tensor_at_step& t) { return std::vector<double>(t.p.size(), 1.0); }

std::vector<double> of_layer(const tensor_at_step& t) {
  return std::vector<double>(t.p.size(), ratio(whole_norm(t.p), whole_norm(t.u)));
}

std::vector<double> rescaled(const tensor_at_step& t, bool product) {
  const std::span<const double> x = product ? t.u : t.w;
  const norms_of_parts n{t.norm(t.p, true), t.norm(x, true), t.norm(t.p, false), t.norm(x, false)};
  const tensor_properties properties{true, t.one_dimensional, 0.01F, t.world};
  std::vector<double> scale;
  for (const double s : t.discount)
    scale.push_back(product ? product_by_hand(n, properties, s, 0.01, 1000.0)
                            : blend_by_hand(n, properties, s, 0.01, 1000.0));
  return scale;
}
std::vector<double> product(const tensor_at_step& t) { return rescaled(t, true); }
std::vector<double> blend(const tensor_at_step& t) { return rescaled(t, false); }

std::vector<double> damped(const tensor_at_step& t) {
  const double u = whole_norm(t.u);
  return std::vector<double>(t.p.size(), 1.0 / std::sqrt(1.0 + u * u / 4.0));
}

std::vector<double> of_six_norms(const tensor_at_step& t) {
  const auto part = [&t](bool sent) { return t.norm(t.p, sent) / (t.norm(t.w, sent) + t.norm(t.u, sent) + 1.0); };
  const double sent = part(true);
  const double unsent = part(false);
  std::vector<double> scale;
  for (const double s : t.discount) scale.push_back(std::min(s * sent + (1.0 - s) * unsent, 2.0));
  return scale;
}

std::vector<double> fresh(const tensor_at_step& t) {
  std::vector<double> scale;
  for (const double s : t.discount)
    scale.push_back(std::max(std::sqrt(s), 0.25) * (t.one_dimensional ? 0.5 : 1.0 / t.world));
  return scale;
}

// Not 1: the blend moves a tensor of one element by λp²/|w|, which is ill-conditioned where w is near 0.
constexpr std::size_t least = 6;
constexpr int steps = 45;
constexpr double rate = 0.02;

/// The worst relative error of SLAMB with a trust ratio, compared with the plain loop that uses scales of whole tensors.
template <class TrustRatio>
double slamb_error(const TrustRatio& policy, scales_of_tensor scales, int ranks) {
  const quadratic problem(test_support::odd_tensors(least), ranks);
  const test_support::every_nth compressor{.n = 4};
  using optimizer = slamb::slamb<slamb::thread_communicator, test_support::every_nth, TrustRatio>;
  const auto got = test_support::train_ranks(problem, steps, rate, [&](auto parameters, auto communicator) {
    return optimizer(parameters,
                     {.update_bound = std::numeric_limits<double>::infinity(),
                      .local_steps = 20,
                      .dense_below = 16,
                      .compressor = compressor,
                      .trust_ratio = policy},
                     std::move(communicator), {.threads = 1});
  });
  plain_loop loop;
  loop.selects = [&](slamb::coordinate c, std::uint64_t step) { return compressor.at(step).selects(c); };
  loop.scales = scales;
  loop.epsilon_is_uncorrected = slamb::capability::has_uncorrected_epsilon<TrustRatio>;
  loop.local_steps = 20;
  loop.dense_below = 16;
  CHECK(problem.loss(std::span<const float>(got[0])) < problem.loss(std::span<const float>(problem.start())));
  return test_support::worst_error(got, loop.run(problem, steps, rate));
}

/// As above for LAMB, where everything is received and has age 0; all ranks must have the same bits.
template <class TrustRatio>
double lamb_error(const TrustRatio& policy, scales_of_tensor scales, int ranks) {
  const quadratic problem(test_support::odd_tensors(least), ranks);
  using optimizer = slamb::lamb<TrustRatio, slamb::thread_communicator>;
  const auto got = test_support::train_ranks(problem, steps, rate, [&](auto parameters, auto communicator) {
    return optimizer(parameters, {.epsilon = 1e-6, .trust_ratio = policy}, std::move(communicator), {.threads = 1});
  });
  for (const std::vector<float>& p : got) CHECK(test_support::same_bits(p, got[0]));
  plain_loop loop;
  loop.scales = scales;
  loop.epsilon_is_uncorrected = slamb::capability::has_uncorrected_epsilon<TrustRatio>;
  return test_support::worst_error(got, loop.run(problem, steps, rate));
}

template <class TrustRatio>
void check_slamb(const TrustRatio& policy, scales_of_tensor scales) {
  for (const int ranks : {1, 2, 3}) CHECK(slamb_error(policy, scales, ranks) < 1e-4);
}

template <class TrustRatio>
void check_lamb(const TrustRatio& policy, scales_of_tensor scales) {
  for (const int ranks : {1, 2, 3}) CHECK(lamb_error(policy, scales, ranks) < 1e-4);
}

}  // namespace

TEST_CASE("trust_ratio: SLAMB with any of them equals a plain loop over whole tensors") {
  check_slamb(slamb::unit_trust_ratio{}, ones);
  check_slamb(slamb::layerwise_trust_ratio{}, of_layer);
  check_slamb(rescaled_trust_ratio<rescaling::product>{}, product);
  check_slamb(rescaled_trust_ratio<rescaling::blend>{}, blend);
  check_slamb(test_support::damped_update{}, damped);
  check_slamb(test_support::six_norms{}, of_six_norms);
  check_slamb(test_support::as_fresh_as_it_is{}, fresh);
}

TEST_CASE("trust_ratio: LAMB with any that takes norms equals a plain loop over whole tensors") {
  check_lamb(slamb::unit_trust_ratio{}, ones);
  check_lamb(slamb::layerwise_trust_ratio{}, of_layer);
  check_lamb(rescaled_trust_ratio<rescaling::product>{}, product);
  check_lamb(rescaled_trust_ratio<rescaling::blend>{}, blend);
  check_lamb(test_support::damped_update{}, damped);
  check_lamb(test_support::six_norms{}, of_six_norms);
}

TEST_CASE("trust_ratio: LAMB uses the factors of one that takes no norms") {
  check_lamb(test_support::as_fresh_as_it_is{}, fresh);
}

TEST_CASE("trust_ratio: the comparison of trainings finds another policy") {
  CHECK(slamb_error(rescaled_trust_ratio<rescaling::product>{}, blend, 2) > 1e-3);
  CHECK(slamb_error(test_support::damped_update{}, ones, 2) > 1e-3);
  CHECK(lamb_error(test_support::six_norms{}, damped, 2) > 1e-3);
}

TEST_CASE("trust_ratio: a policy's own validation is called") {
  const quadratic problem({{20, 2}}, 1);
  using optimizer = slamb::slamb<slamb::thread_communicator, slamb::random_k<>, test_support::damped_update>;
  CHECK_THROWS_AS(test_support::train_ranks(problem, 1, rate,
                                            [](auto parameters, auto communicator) {
                                              return optimizer(parameters, {.trust_ratio = {.damping = 0.0}},
                                                               std::move(communicator), {.threads = 1});
                                            }),
                  std::invalid_argument);
}

}  // namespace trust_ratio_trust_ratio_tests
