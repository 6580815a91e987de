// Packing lanes into a contiguous payload and back, for all 65536 masks.
#include "slamb/backend/host/detail/simd.hpp"

#include <doctest/doctest.h>

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <utility>

namespace backend_host_simd_packing_tests {
namespace {

using slamb::detail::host::count_of;
using slamb::detail::host::f32x16;
using slamb::detail::host::pack;
using slamb::detail::host::unpack;
constexpr std::size_t lanes = slamb::detail::host::lanes;

using lane_array = std::array<float, lanes>;

constexpr float untouched = -12345.0F;

/// A different nonzero value in each lane; arithmetic would change two of them.
lane_array distinct() {
  lane_array x;
  for (std::size_t i = 0; i < lanes; ++i) x[i] = static_cast<float>(i) + 0.5F;
  x[3] = std::numeric_limits<float>::denorm_min();
  x[11] = std::numeric_limits<float>::infinity();
  return x;
}

bool has(std::uint32_t bits, std::size_t lane) { return (bits >> lane & 1U) != 0; }

/// The payload that `pack` must write, two vectors long and filled with `untouched` before.
std::array<float, 2 * lanes> packed_by_hand(std::uint32_t bits, const lane_array& x) {
  std::array<float, 2 * lanes> to;
  to.fill(untouched);
  std::size_t next = 0;
  for (std::size_t i = 0; i < lanes; ++i)
    if (has(bits, i)) to[next++] = x[i];
  return to;
}

std::array<float, 2 * lanes> packed(std::uint32_t bits, const lane_array& x) {
  std::array<float, 2 * lanes> to;
  to.fill(untouched);
  pack(bits, f32x16::load(x.data()), to.data());
  return to;
}

}  // namespace

TEST_CASE("packing: the comparison finds a misplaced lane") {
  lane_array other = distinct();
  std::swap(other[0], other[1]);
  CHECK(packed(0xFFFFU, other) != packed_by_hand(0xFFFFU, distinct()));
  CHECK(packed(0x7FFFU, distinct()) != packed_by_hand(0xFFFFU, distinct()));
}

TEST_CASE("packing: count_of is the number of lanes, for every mask") {
  std::size_t wrong = 0;
  for (std::uint32_t bits = 0; bits < 65536; ++bits)
    wrong += count_of(bits) == static_cast<std::uint32_t>(std::popcount(bits)) ? 0 : 1;
  CHECK(wrong == 0);
}

TEST_CASE("packing: pack keeps the order of the lanes and writes nothing past them, for every mask") {
  const lane_array x = distinct();
  std::size_t wrong = 0;
  for (std::uint32_t bits = 0; bits < 65536; ++bits) wrong += packed(bits, x) == packed_by_hand(bits, x) ? 0 : 1;
  CHECK(wrong == 0);
}

TEST_CASE("packing: unpack undoes pack, with zeros in the other lanes, for every mask") {
  const lane_array x = distinct();
  std::size_t wrong = 0;
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    const auto payload = packed_by_hand(bits, x);
    lane_array got;
    unpack(bits, payload.data()).store(got.data());
    for (std::size_t i = 0; i < lanes; ++i) wrong += got[i] == (has(bits, i) ? x[i] : 0.0F) ? 0 : 1;
  }
  CHECK(wrong == 0);
}

TEST_CASE("packing: a payload at the end of memory is neither read nor written past its end") {
  const lane_array x = distinct();
  for (std::uint32_t bits = 0; bits < 65536; bits += 37) {
    const auto exact = std::make_unique<float[]>(count_of(bits));  // the address sanitizer finds a write past the end
    pack(bits, f32x16::load(x.data()), exact.get());
    lane_array got;
    unpack(bits, exact.get()).store(got.data());
    for (std::size_t i = 0; i < lanes; ++i) REQUIRE(got[i] == (has(bits, i) ? x[i] : 0.0F));
  }
}

}  // namespace backend_host_simd_packing_tests
