// One suite for every quantizer: codes fit into their bits, vectors and floats give equal bits, decoded values are near the
// encoded ones, and random draws preserve the mean.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "slamb/backend/host/detail/simd_words.hpp"
#include "slamb/backend/host/detail/uniform.hpp"
#include "slamb/compressor/floating.hpp"
#include "slamb/compressor/four_levels.hpp"
#include "slamb/compressor/integer.hpp"
#include "slamb/compressor/natural.hpp"
#include "slamb/compressor/sign.hpp"
#include "support/generate.hpp"
#include "support/nearest.hpp"

namespace compressor_quantizer_tests {
namespace {

using slamb::segment_scale;
using slamb::detail::host::f32x16;
using slamb::detail::host::u32x16;
using test_support::random_source;
constexpr std::size_t lanes = slamb::detail::host::lanes;

using lane_array = std::array<float, lanes>;
using fault = std::optional<std::string>;  // the fault, if there is one

std::uint32_t bits_of(float x) { return std::bit_cast<std::uint32_t>(x); }

fault text(std::string_view what, float x, float scale, float uniform) {
  return std::string(what) + ": x = " + std::to_string(static_cast<double>(x)) + " (bits " +
         std::to_string(bits_of(x)) + "), scale bits " + std::to_string(bits_of(scale)) + ", uniform " +
         std::to_string(static_cast<double>(uniform));
}

template <class Q>
constexpr bool is_stochastic = slamb::capability::stochastic_quantizer<Q>;

// ------------------------------------------------------------------------------------------------- the inputs

constexpr float largest = std::numeric_limits<float>::max();
constexpr float smallest = std::numeric_limits<float>::denorm_min();

using block = std::vector<float>;  // elements that share a scale; a multiple of 16

block block_of(std::vector<float> values) {
  values.resize((values.size() + lanes - 1) / lanes * lanes, 0.0F);
  return values;
}

/// Blocks of numbers of all magnitudes, all finite.
std::vector<block> blocks() {
  std::vector<block> all;
  all.push_back(block_of({0.0F, -0.0F}));
  all.push_back(block_of({smallest, -smallest, 2 * smallest, 0.0F, -0.0F}));
  all.push_back(block_of({1e-40F, -1e-41F, 3e-39F, -1e-38F, std::numeric_limits<float>::min()}));
  all.push_back(block_of({largest, -largest, largest / 2, 1e30F, 1.0F, -1e-30F, 0.0F}));
  all.push_back(
      block_of({65504.0F, 65519.0F, 65520.0F, 65535.0F, -65536.0F, 1e5F, -1e9F, 0x1p30F, 0x1.8p30F, -0x1p31F}));
  all.push_back(block_of({0.0F, 0.0F, 0.0F, -3.25F}));
  block ramp, wide, sixteen_bits;
  for (int i = -127; i <= 128; ++i) ramp.push_back(static_cast<float>(i) / 128.0F);
  for (int exponent = -148; exponent <= 127; ++exponent)
    for (const float mantissa : {1.0F, 1.0F + 0x1p-23F, 1.3F, 1.5F, 2.0F - 0x1p-23F})
      wide.push_back((exponent % 2 == 0 ? -1.0F : 1.0F) * std::ldexp(mantissa, exponent));
  for (int i = 0; i < 2048; ++i) sixteen_bits.push_back(std::ldexp(static_cast<float>(i) + 0.5F, -25));
  all.insert(all.end(), {block_of(ramp), block_of(wide), block_of(sixteen_bits)});
  for (const double size : {1e-30, 1e-6, 1.0, 1e12}) all.push_back(test_support::random_parameters(3, 256, size));
  random_source source(4);
  block any;
  while (any.size() < 512) {
    const auto x = std::bit_cast<float>(static_cast<std::uint32_t>(source.next()));
    if (std::isfinite(x)) any.push_back(x);
  }
  all.push_back(any);
  return all;
}

/// The statistic that a quantizer asks for.
float scale_of(segment_scale which, const block& values) {
  const auto n = static_cast<double>(values.size());
  double squares = 0.0, magnitudes = 0.0, most = 0.0;
  for (const float value : values) {
    const auto x = static_cast<double>(value);
    squares += x * x;
    magnitudes += std::abs(x);
    most = std::max(most, std::abs(x));
  }
  switch (which) {
    case segment_scale::l2:
      return static_cast<float>(std::sqrt(squares / n));
    case segment_scale::l1:
      return static_cast<float>(magnitudes / n);
    case segment_scale::max:
      return static_cast<float>(most);
    case segment_scale::none:
      break;
  }
  return 1.0F;
}

/// Draws to try: ½ for a deterministic quantizer; for a stochastic one also the ends and random ones.
template <class Q>
std::vector<float> uniforms() {
  if (!is_stochastic<Q>) return {0.5F};
  std::vector<float> all{0x1p-17F, 0.5F, 1.0F - 0x1p-17F};
  all.resize(8);
  slamb::detail::host::fill_uniform(1, 2, 0, 5, all.data() + 3);
  return all;
}

// ------------------------------------------------------------------------------------------------ properties

template <class Q>
std::uint32_t code_of(const Q& q, float x, float scale, float uniform) {
  return q.encode(x, scale, uniform);
}

template <class Q>
float decoded(const Q& q, float x, float scale, float uniform) {
  return q.template decode<float>(code_of(q, x, scale, uniform), scale);
}

/// The values that x may decode to, in double precision and from the definition. If both are equal, x must decode to that value.
struct interval {
  double low, high;
};

interval expected(const slamb::basic_sign<segment_scale::l2>&, float x, float scale) {
  const double value = x < 0.0F ? -static_cast<double>(scale) : static_cast<double>(scale);
  return {value, value};
}

interval expected(const slamb::basic_sign<segment_scale::l1>&, float x, float scale) {
  return expected(slamb::sign{}, x, scale);
}

/// Both levels where a float's 5/4 scale may be on the other side of x.
interval expected(const slamb::four_levels&, float x, float scale) {
  const double magnitude = std::abs(static_cast<double>(x)), threshold = 1.25 * static_cast<double>(scale);
  const double slack = threshold * 0x1p-23 + 0x1p-149, alpha = std::min(static_cast<double>(scale), 0x1p126);
  const interval levels{(magnitude < threshold + slack ? 0.5 : 2.0) * alpha,
                        (magnitude >= threshold - slack ? 2.0 : 0.5) * alpha};
  const interval between{levels.low - 0x1p-149, levels.high};  // half of the smallest float is none
  return x < 0.0F ? interval{-between.high, -between.low} : between;
}

/// Multiples of scale/L around x. Whole multiples are met only to a float's accuracy, except 0 and the scale.
template <int Bits>
interval expected(const slamb::integer<Bits>& q, float x, float scale) {
  const auto value = static_cast<double>(x), most = static_cast<double>(scale);
  if (std::abs(value) >= most) return {std::copysign(most, value), std::copysign(most, value)};
  if (value == 0.0) return {0.0, 0.0};
  const double level = std::abs(value) / most * q.levels, slack = q.levels * 0x1p-22 + 0x1p-17;
  const double low = std::max(0.0, std::floor(level - slack)),
               high = std::min<double>(q.levels, std::ceil(level + slack));
  const interval magnitude{low / q.levels * most * (1.0 - 0x1p-22) - 0x1p-149,
                           high / q.levels * most * (1.0 + 0x1p-22) + 0x1p-149};
  return value < 0.0 ? interval{-magnitude.high, -magnitude.low} : magnitude;
}

interval expected(const slamb::natural&, float x, float /*scale*/) {
  const double magnitude = std::min(std::abs(static_cast<double>(x)), 0x1p30);
  interval between{0.0, 0x1p-96};
  if (magnitude >= 0x1p-96) {
    const double below = std::ldexp(1.0, std::ilogb(magnitude));
    between = {below, magnitude == below ? below : 2.0 * below};
  }
  if (magnitude == 0.0) between.high = 0.0;
  return x < 0.0F ? interval{-between.high, -between.low} : between;
}

interval expected(const slamb::bf16&, float x, float /*scale*/) {
  const double value = test_support::nearest(test_support::bfloat16_format, static_cast<double>(x));
  return {value, value};
}

interval expected(const slamb::fp16&, float x, float /*scale*/) {
  const double value = test_support::nearest(test_support::binary16_format, static_cast<double>(x));
  return {value, value};
}

/// Checks that the code fits; that draws and scales have no effect where they must not; and that the decoded value is finite.
template <class Q>
fault code_fault(const Q& q, float x, float scale, float uniform) {
  const std::uint32_t code = code_of(q, x, scale, uniform);
  if (Q::bits_per_element < 32 && (code >> (Q::bits_per_element % 32)) != 0)
    return text("the code has too many bits", x, scale, uniform);
  if (code_of(q, x, scale, uniform) != code) return text("another code when asked again", x, scale, uniform);
  if (!is_stochastic<Q> && code_of(q, x, scale, 0.9F) != code) return text("the draw matters", x, scale, uniform);
  if (slamb::capability::encodes_without_scale<Q> && code_of(q, x, 2.5F, uniform) != code)
    return text("the scale matters", x, scale, uniform);
  if (!std::isfinite(decoded(q, x, scale, uniform))) return text("what is decoded is not finite", x, scale, uniform);
  return {};
}

/// Checks that the decoded value follows the definition, changes sign with x, and is unchanged when encoded again.
template <class Q>
fault value_fault(const Q& q, float x, float scale, float uniform) {
  const float value = decoded(q, x, scale, uniform);
  const interval between = expected(q, x, scale);
  if (!(static_cast<double>(value) >= between.low && static_cast<double>(value) <= between.high))
    return text("what is decoded is too far away", x, scale, uniform);
  if (x != 0.0F && decoded(q, -x, scale, uniform) != -value) return text("−x is not mirrored", x, scale, uniform);
  if (decoded(q, value, scale, 0.5F) != value) return text("encoded again, it is another", x, scale, uniform);
  return {};
}

/// Checks that sixteen lanes, each with its own numbers, have the same codes and values as single floats.
template <class Q>
fault lane_fault(const Q& q, const lane_array& x, const lane_array& scale, const lane_array& uniform) {
  const f32x16 scales = f32x16::load(scale.data());
  const u32x16 codes = q.encode(f32x16::load(x.data()), scales, f32x16::load(uniform.data()));
  std::array<std::uint32_t, lanes> code;
  lane_array value;
  codes.store(code.data());
  q.template decode<f32x16>(codes, scales).store(value.data());
  for (std::size_t i = 0; i < lanes; ++i) {
    if (code[i] != code_of(q, x[i], scale[i], uniform[i]))
      return text("a vector has another code", x[i], scale[i], uniform[i]);
    if (bits_of(value[i]) != bits_of(q.template decode<float>(code[i], scale[i])))
      return text("a vector decodes to another value", x[i], scale[i], uniform[i]);
  }
  return {};
}

/// Checks that every code decodes to equal bits in vectors and floats.
template <class Q>
fault decode_fault(const Q& q, float scale) {
  const std::uint64_t codes = std::uint64_t{1} << std::min<int>(Q::bits_per_element, 16);
  for (std::uint64_t code = 0; code < codes; ++code) {
    lane_array value;
    q.template decode<f32x16>(u32x16(static_cast<std::uint32_t>(code)), f32x16(scale)).store(value.data());
    const float alone = q.template decode<float>(static_cast<std::uint32_t>(code), scale);
    for (const float v : value)
      if (bits_of(v) != bits_of(alone)) return text("a code decodes otherwise in a vector", v, scale, 0.5F);
  }
  return {};
}

/// Checks that with equal draws, a larger x never decodes to a smaller value.
template <class Q>
fault order_fault(const Q& q, block values, float scale, float uniform) {
  std::sort(values.begin(), values.end());
  float before = -std::numeric_limits<float>::infinity();
  for (const float x : values) {
    const float value = decoded(q, x, scale, uniform);
    if (!(value >= before)) return text("larger numbers become smaller", x, scale, uniform);
    before = value;
  }
  return {};
}

/// Checks that over all draws, the mean of the decoded values is x, to 2^-17 of the distance between the two values around it.
template <class Q>
fault mean_fault(const Q& q, float x, float scale) {
  constexpr std::uint32_t draws = 1U << 16U;
  double sum = 0.0;
  for (std::uint32_t r = 0; r < draws; r += lanes) {
    lane_array uniform, value;
    for (std::size_t i = 0; i < lanes; ++i) uniform[i] = (static_cast<float>(r + i) + 0.5F) * 0x1p-16F;
    const f32x16 scales(scale);
    q.template decode<f32x16>(q.encode(f32x16(x), scales, f32x16::load(uniform.data())), scales).store(value.data());
    for (const float v : value) sum += static_cast<double>(v);
  }
  const interval between = expected(q, x, scale);
  const double rounding = std::abs(static_cast<double>(x)) * 0x1p-20 + 0x1p-149;
  const double allowed = (0x1p-17 + 0x1p-20) * (between.high - between.low) + rounding;
  if (!(std::abs(sum / draws - static_cast<double>(x)) <= allowed)) return text("the mean is another", x, scale, 0.5F);
  return {};
}

/// As above, with random draws, to five standard errors.
template <class Q>
fault drawn_mean_fault(const Q& q, float x, float scale) {
  std::vector<float> uniform(1U << 15U);
  slamb::detail::host::fill_uniform(7, bits_of(x), 0, static_cast<std::uint32_t>(uniform.size()), uniform.data());
  double sum = 0.0, squares = 0.0;
  for (const float u : uniform) {
    const double error = static_cast<double>(decoded(q, x, scale, u)) - static_cast<double>(x);
    sum += error;
    squares += error * error;
  }
  const auto n = static_cast<double>(uniform.size());
  const interval between = expected(q, x, scale);
  const double allowed = 5.0 * std::sqrt(squares) / n + 0x1p-16 * (between.high - between.low) + 0x1p-149;
  if (!(std::abs(sum / n) <= allowed)) return text("the mean of draws is another", x, scale, 0.5F);
  return {};
}

/// Checks a block with its own scale.
template <class Q>
fault block_fault(const Q& q, const block& values) {
  const float scale = scale_of(Q::scale, values);
  for (const float uniform : uniforms<Q>()) {
    for (const float x : values) {
      if (const fault f = code_fault(q, x, scale, uniform)) return f;
      if (const fault f = value_fault(q, x, scale, uniform)) return f;
    }
    if (const fault f = order_fault(q, values, scale, uniform)) return f;
  }
  return decode_fault(q, scale);
}

/// Checks combinations of numbers, scales and draws, including a scale of 0 and scales too small for x.
template <class Q>
fault company_fault(const Q& q) {
  std::vector<float> x, scale{0.0F, smallest, 1.0F, 1e30F, largest};
  for (const block& values : blocks()) {
    x.insert(x.end(), values.begin(), values.end());
    scale.push_back(scale_of(Q::scale, values));
  }
  const std::vector<float> uniform = uniforms<Q>();
  random_source source(6);
  for (int n = 0; n < 5000; ++n) {
    lane_array some_x, some_scale, some_uniform;
    for (std::size_t i = 0; i < lanes; ++i) {
      some_x[i] = x[source.below(x.size())];
      some_scale[i] = Q::scale == segment_scale::none ? 1.0F : scale[source.below(scale.size())];
      some_uniform[i] = uniform[source.below(uniform.size())];
      if (const fault f = code_fault(q, some_x[i], some_scale[i], some_uniform[i])) return f;
    }
    if (const fault f = lane_fault(q, some_x, some_scale, some_uniform)) return f;
  }
  return {};
}

/// The suite.
template <class Q>
fault quantizer_fault(const Q& q) {
  static_assert(slamb::compressor<Q> && slamb::quantizer<Q> && std::is_trivially_copyable_v<Q>);
  static_assert(!slamb::sparsifier<Q> && !slamb::data_dependent_sparsifier<Q> && !slamb::capability::chained<Q>);
  if constexpr (requires { q.validate(); }) q.validate();
  for (const block& values : blocks())
    if (const fault f = block_fault(q, values)) return f;
  if (const fault f = company_fault(q)) return f;
  if constexpr (is_stochastic<Q>) {
    for (const float scale : {1.0F, 3.0e-5F}) {
      for (const float part : {0.0F, 0x1.8p-99F, 0.001F, 1.0F / 127.0F, 0.1F, 0.249F, 0.5F, 0.77F, 0.999F, 1.0F}) {
        if (const fault f = mean_fault(q, part * scale, scale)) return f;
        if (const fault f = mean_fault(q, -part * scale, scale)) return f;
        if (const fault f = drawn_mean_fault(q, part * scale, scale)) return f;
      }
    }
  }
  return {};
}

template <class Q>
void check(const Q& q) {
  const fault f = quantizer_fault(q);
  CHECK_MESSAGE(!f, f.value_or(""));
}

}  // namespace

// ------------------------------------------------------------------------------------- checks of the suite itself

namespace {

/// `int8` with one fault.
template <int Fault>
struct wrong : slamb::int8 {
  static constexpr bool encodes_without_scale = Fault == 4;  // declared but not true
  static constexpr bool is_stochastic = Fault != 3;          // declared to be deterministic but is not

  template <class Real>
  static Real drawn(const Real& x, const Real& uniform) {
    using slamb::as_word;
    using slamb::select;
    if constexpr (Fault == 8) return select(x < Real(0.0F), Real(1.0F) - uniform, uniform);
    if constexpr (Fault == 9)
      return select(Real(0.5F) < uniform, uniform, select(uniform < Real(0.5F), uniform, Real(0.0F)));
    if constexpr (Fault == 10) {  // another draw for every second float
      const auto odd = as_word(x) & slamb::word_of<Real>(1U);
      return select(odd == slamb::word_of<Real>(1U), Real(1.0F) - uniform, uniform);
    }
    if constexpr (Fault == 11) return Real(0.25F) + Real(0.5F) * uniform;
    return uniform;
  }

  template <class Real>
  slamb::word_of<Real> encode(const Real& x, const Real& s, const Real& uniform) const {
    using slamb::select;
    using word = slamb::word_of<Real>;
    const word code = integer::encode(x, s, drawn(x, uniform));
    if constexpr (Fault == 1) return select(x < s, code, code + word(2U));
    if constexpr (Fault == 2) {
      static std::uint32_t calls = 0;
      return word(++calls % 250);
    }
    if constexpr (Fault == 12 && !std::is_same_v<Real, float>) return code ^ word(1U);
    return code;
  }

  template <class Real>
  Real decode(const slamb::word_of<Real>& code, const Real& s) const {
    using slamb::select;
    if constexpr (Fault == 5) return integer::decode(code, s + s) * Real(0.5F);  // may overflow
    if constexpr (Fault == 6) return integer::decode(code + slamb::word_of<Real>(3U), s);
    if constexpr (Fault == 7) {  // 0 does not decode to 0
      using word = slamb::word_of<Real>;
      return integer::decode(select(code == word(127U), word(128U), code), s);
    }
    if constexpr (Fault == 13 && !std::is_same_v<Real, float>)  // −0 instead of 0
      return -integer::decode(slamb::word_of<Real>(254U) - code, s);
    return integer::decode(code, s);
  }
};

template <int Fault>
interval expected(const wrong<Fault>& q, float x, float scale) {
  return expected(static_cast<const slamb::int8&>(q), x, scale);
}

/// The fault that the suite finds.
template <int Fault>
std::string finding() {
  const std::string found = quantizer_fault(wrong<Fault>{}).value_or("nothing");
  return found.substr(0, found.find(':'));
}

}  // namespace

TEST_CASE("quantizer suite: finds every planted fault, by the check for it") {
  CHECK(finding<0>() == "nothing");
  CHECK(finding<1>() == "the code has too many bits");
  CHECK(finding<2>() == "another code when asked again");
  CHECK(finding<3>() == "the draw matters");
  CHECK(finding<4>() == "the scale matters");
  CHECK(finding<5>() == "what is decoded is not finite");
  CHECK(finding<6>() == "what is decoded is too far away");
  CHECK(finding<7>() == "what is decoded is too far away");
  CHECK(finding<8>() == "−x is not mirrored");
  CHECK(finding<9>() == "encoded again, it is another");
  CHECK(finding<10>() == "larger numbers become smaller");
  CHECK(finding<11>() == "the mean is another");
  CHECK(finding<12>() == "a vector has another code");
  CHECK(finding<13>() == "a code decodes otherwise in a vector");
  CHECK(lane_fault(wrong<13>{}, {0.0F}, {1.0F}, {0.5F}));
  CHECK_FALSE(lane_fault(wrong<0>{}, {0.0F}, {1.0F}, {0.5F}));
  CHECK(drawn_mean_fault(wrong<11>{}, 0.1F, 1.0F));
  CHECK_FALSE(drawn_mean_fault(wrong<0>{}, 0.1F, 1.0F));
}

// ----------------------------------------------------------------------------------------------- shipped policies

TEST_CASE("sign: conforms, with either scale") {
  check(slamb::sign{});
  check(slamb::sign{.scales = slamb::scale_sharing::per_tensor, .zero_aware = true});
  check(slamb::basic_sign<segment_scale::l1>{});
}

TEST_CASE("four_levels: conforms") {
  check(slamb::four_levels{});
  check(slamb::four_levels{.block = 16, .zero_aware = true});
}

TEST_CASE("integer: conforms, with 2 to 8 bits") {
  check(slamb::integer<2>{});
  check(slamb::integer<3>{});
  check(slamb::integer<5>{.block = 64});
  check(slamb::integer<6>{});
  check(slamb::integer<7>{});
  check(slamb::int4{});
  check(slamb::int8{.block = 16, .seed = 3});
}

TEST_CASE("natural: conforms") { check(slamb::natural{}); }

TEST_CASE("floating: bf16 and fp16 conform") {
  check(slamb::bf16{});
  check(slamb::fp16{});
}

// --------------------------------------------------------------------------------------------------- archetypes

namespace {

/// Thirty-two bits: nothing is lost.
struct whole_floats {
  static constexpr long bits_per_element = 32;
  static constexpr segment_scale scale = segment_scale::none;

  template <class Real>
  slamb::word_of<Real> encode(const Real& x, const Real&, const Real&) const {
    using slamb::as_word;
    return as_word(x);
  }
  template <class Real>
  Real decode(const slamb::word_of<Real>& code, const Real&) const {
    using slamb::as_real;
    return as_real(code);
  }
};

interval expected(const whole_floats&, float x, float) { return {static_cast<double>(x), static_cast<double>(x)}; }

/// −1, 0 or 1 in two bits. Its facts are of odd types.
struct ternary {
  static constexpr short bits_per_element = 2;
  static constexpr segment_scale scale = segment_scale::l1;

  slamb::scale_sharing scales = slamb::scale_sharing::per_tensor;

  template <class Real>
  slamb::word_of<Real> encode(const Real& x, const Real& s, const Real&) const {
    using slamb::select;
    using word = slamb::word_of<Real>;
    const Real half = s * Real(0.5F);
    return select(half < x, word(1U), select(x < -half, word(3U), word(0U)));
  }
  template <class Real>
  Real decode(const slamb::word_of<Real>& code, const Real& s) const {
    using slamb::select;
    using word = slamb::word_of<Real>;
    const Real magnitude = select(code == word(0U), Real(0.0F), s);
    return select(word(1U) < code, -magnitude, magnitude);
  }
};

interval expected(const ternary&, float x, float scale) {
  const auto s = static_cast<double>(scale);
  const float half = scale * 0.5F;
  if (half < x) return {s, s};
  return x < -half ? interval{-s, -s} : interval{0.0, 0.0};
}

}  // namespace

TEST_CASE("archetype quantizers: conform") {
  check(whole_floats{});
  check(ternary{});
}

}  // namespace compressor_quantizer_tests
