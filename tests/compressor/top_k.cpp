// top_k: its choice in a tile equals the front of a sort.
#include "slamb/compressor/top_k.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <string>
#include <string_view>
#include <vector>

#include "slamb/core/real.hpp"
#include "slamb/detail/pass/layout.hpp"
#include "support/allocations.hpp"
#include "support/described.hpp"
#include "support/generate.hpp"

namespace compressor_top_k_tests {
namespace {

using slamb::top_k;
using test_support::random_source;
using test_support::refusal;

constexpr std::uint16_t untouched = 0xA5C3;

/// Indices as bits: i is bit i % 16 of word i / 16.
std::vector<std::uint16_t> bits_of(const std::vector<std::size_t>& chosen, std::size_t count) {
  std::vector<std::uint16_t> bits((count + 15) / 16, 0);
  for (const std::size_t i : chosen) slamb::set_bit(bits.data(), static_cast<std::uint32_t>(i));
  return bits;
}

/// The first `wanted` elements of a sort by falling magnitude. Of equal ones the first come first, or the last if
/// `last_of_equals`.
std::vector<std::uint16_t> front_of_sort(const std::vector<float>& values, std::size_t wanted,
                                         bool last_of_equals = false) {
  std::vector<std::size_t> order(values.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(), [&](std::size_t i, std::size_t j) {
    const float a = std::abs(values[i]), b = std::abs(values[j]);
    return a != b ? a > b : (i < j) != last_of_equals && i != j;
  });
  order.resize(wanted);
  return bits_of(order, values.size());
}

/// The policy's choice; empty if it wrote beyond its words.
std::vector<std::uint16_t> chosen(const top_k& policy, const std::vector<float>& values) {
  const std::size_t words = (values.size() + 15) / 16;
  std::vector<std::uint16_t> bits(words + 1, 0);
  bits[words] = untouched;
  policy.choose(values.data(), static_cast<std::uint32_t>(values.size()), bits.data());
  if (bits[words] != untouched) return {};
  bits.pop_back();
  return bits;
}

/// Values of several kinds, which differ in how the magnitudes are distributed.
float value_of(std::string_view kind, random_source& source, std::size_t i, std::size_t count) {
  const double bell = source.bell();
  if (kind == "bell") return static_cast<float>(bell);
  if (kind == "heavy tail") return static_cast<float>(bell * std::exp(4.0 * source.bell()));
  if (kind == "equal") return source.below(2) == 0 ? 0.25F : -0.25F;
  if (kind == "zeros of both signs") return source.below(2) == 0 ? 0.0F : -0.0F;
  if (kind == "mostly zero") return source.below(100) == 0 ? static_cast<float>(bell) : 0.0F;
  if (kind == "few levels") return static_cast<float>(std::round(2.0 * bell));
  if (kind == "rising") return static_cast<float>(i) - 7.0F;
  if (kind == "falling") return static_cast<float>(count - i);
  if (kind == "low bits") return std::bit_cast<float>(0x3F800000U + static_cast<std::uint32_t>(source.below(1500)));
  if (kind == "middle bits")
    return std::bit_cast<float>(0x3F800000U + (static_cast<std::uint32_t>(source.below(1024)) << 10U));
  if (kind == "denormal")
    return std::bit_cast<float>(static_cast<std::uint32_t>(source.below(3000)) | (i % 2 == 0 ? 0x80000000U : 0U));
  if (kind == "infinite")
    return source.below(50) == 0 ? std::numeric_limits<float>::infinity() : static_cast<float>(bell);
  const float any = std::bit_cast<float>(static_cast<std::uint32_t>(source.next()));  // "any bits"
  return std::isnan(any) ? 1.0F : any;
}

constexpr std::string_view kinds[] = {"bell",        "heavy tail",  "equal",    "zeros of both signs",
                                      "mostly zero", "few levels",  "rising",   "falling",
                                      "low bits",    "middle bits", "denormal", "infinite",
                                      "any bits"};

std::vector<float> values_of(std::string_view kind, std::size_t count, std::uint64_t seed) {
  random_source source(seed, count);
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = value_of(kind, source, i, count);
  return values;
}

std::size_t count_of(const std::vector<std::uint16_t>& bits) {
  std::size_t count = 0;
  for (const std::uint16_t word : bits) count += static_cast<std::size_t>(std::popcount(word));
  return count;
}

}  // namespace

TEST_CASE("top_k: chooses the first elements of a sort, for every kind of values, size and k") {
  std::uint64_t seed = 0;
  for (const std::string_view kind : kinds)
    for (const std::size_t count : {1U, 2U, 15U, 16U, 17U, 31U, 33U, 257U, 1000U, 8191U, 8192U})
      for (const double k : {1e-9, 0.001, 0.01, 0.1, 0.5, 0.999, 1.0}) {
        const std::vector<float> values = values_of(kind, count, ++seed);
        const top_k policy{.k = k};
        const std::uint32_t wanted = policy.chosen_of(static_cast<std::uint32_t>(count));
        const std::vector<std::uint16_t> bits = chosen(policy, values);
        CAPTURE(kind);
        CAPTURE(count);
        CAPTURE(k);
        CHECK(count_of(bits) == wanted);
        CHECK(bits == front_of_sort(values, wanted));
      }
}

TEST_CASE("top_k: the comparison with a sort finds an extra element, and the last of equal ones") {
  const std::vector<float> values = values_of("few levels", 1000, 1);
  CHECK(chosen({.k = 0.1}, values) == front_of_sort(values, 100));
  CHECK(chosen({.k = 0.1}, values) != front_of_sort(values, 101));
  CHECK(chosen({.k = 0.1}, values) != front_of_sort(values, 100, true));
}

TEST_CASE("top_k: the same values give the same bits, and an empty tile writes nothing") {
  const std::vector<float> values = values_of("bell", 8192, 5);
  CHECK(chosen({.k = 0.02}, values) == chosen({.k = 0.02}, values));
  CHECK(chosen({.k = 0.02}, {}).empty());
  std::uint16_t word = untouched;
  top_k{}.choose(nullptr, 0, &word);
  CHECK(word == untouched);
}

TEST_CASE("top_k: choosing allocates nothing") {
  const std::vector<float> values = values_of("bell", 8192, 6);
  std::vector<std::uint16_t> bits(512, 0);
  const std::size_t before = test_support::allocations();
  top_k{}.choose(values.data(), 8192, bits.data());
  CHECK(test_support::allocations() == before);
  CHECK(count_of(bits) == 82);
}

TEST_CASE("top_k: the part k of a tile, rounded up, and at least one") {
  CHECK(top_k{.k = 0.01}.chosen_of(8192) == 82);  // 81.92
  CHECK(top_k{.k = 0.01}.chosen_of(100) == 1);
  CHECK(top_k{.k = 0.01}.chosen_of(101) == 2);
  CHECK(top_k{.k = 1e-300}.chosen_of(8192) == 1);
  CHECK(top_k{.k = 1.0}.chosen_of(8192) == 8192);
  CHECK(top_k{.k = 0.9999}.chosen_of(7) == 7);
  CHECK(top_k{.k = 0.5}.chosen_of(1) == 1);
  CHECK(top_k{.k = 0.5}.chosen_of(0) == 0);
  for (std::uint32_t percent = 1; percent <= 100; ++percent)  // in doubles 0.07 · 100 > 7
    CHECK(top_k{.k = percent / 100.0}.chosen_of(100) == percent);
}

TEST_CASE("top_k: the payload of a tensor is the sum over its tiles") {
  static_assert(top_k::tile_size == slamb::detail::layout::tile_size);
  for (const double k : {0.01, 0.3, 1.0})
    for (const std::uint64_t size : {0U, 1U, 100U, 8191U, 8192U, 8193U, 30000U, 16384U}) {
      const top_k policy{.k = k};
      std::uint64_t sum = 0;
      for (std::uint64_t first = 0; first < size; first += top_k::tile_size)
        sum += policy.chosen_of(static_cast<std::uint32_t>(std::min<std::uint64_t>(top_k::tile_size, size - first)));
      CHECK(policy.largest_payload(size) == sum);
    }
}

TEST_CASE("top_k: facts, rejected settings and description") {
  static_assert(slamb::compressor<top_k> && slamb::data_dependent_sparsifier<top_k> && !slamb::sparsifier<top_k>);
  static_assert(!slamb::quantizer<top_k> && !slamb::capability::chained<top_k>);
  static_assert(slamb::detail::payload_is_constant<top_k>);
  CHECK(refusal(top_k{}) == "nothing was thrown");
  CHECK(refusal(top_k{.k = 1.0}) == "nothing was thrown");
  CHECK(refusal(top_k{.k = 0.0}) == "slamb: top_k's k = 0, but it must be in (0, 1]");
  for (const double k : {-0.1, 1.1, std::numeric_limits<double>::quiet_NaN()})
    CHECK(refusal(top_k{.k = k}).find("top_k's k = ") != std::string::npos);
  CHECK(test_support::told_apart_by(top_k{.k = 0.1}, top_k{.k = 0.2}) == "top_k's k");
}

}  // namespace compressor_top_k_tests
