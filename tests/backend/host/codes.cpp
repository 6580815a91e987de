// Conversion of codes of every width to and from bytes, compared with bits set one by one.
#include "slamb/backend/host/detail/codes.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "support/generate.hpp"

namespace backend_host_codes_tests {
namespace {

using slamb::detail::host::u32x16;
constexpr std::size_t lanes = slamb::detail::host::lanes;

using code_array = std::array<std::uint32_t, lanes>;

constexpr std::byte untouched{0xA5};
constexpr std::size_t margin = 8;  // bytes before and after

/// The bytes that `store_codes` must write, from byte `margin` on, into an array filled with `untouched`.
template <int Bits>
std::vector<std::byte> stored_by_hand(const code_array& codes) {
  std::vector<std::byte> bytes(2 * margin + 2 * Bits, untouched);
  std::fill_n(bytes.begin() + margin, 2 * Bits, std::byte{0});
  for (std::size_t i = 0; i < lanes; ++i)
    for (std::size_t b = 0; b < Bits; ++b)
      if ((codes[i] >> b & 1U) != 0) {
        const std::size_t at = i * Bits + b;
        bytes[margin + at / 8] |= std::byte{1} << static_cast<int>(at % 8);
      }
  return bytes;
}

/// As above, by `store_codes`, at an address `shift` bytes after an aligned one.
template <int Bits>
std::vector<std::byte> stored(const code_array& codes, std::size_t shift) {
  alignas(64) std::array<std::byte, 64 + 2 * margin + 64> memory;
  memory.fill(untouched);
  slamb::detail::host::store_codes<Bits>(u32x16::load(codes.data()), memory.data() + shift + margin);
  return {memory.begin() + static_cast<std::ptrdiff_t>(shift),
          memory.begin() + static_cast<std::ptrdiff_t>(shift + 2 * margin + 2 * Bits)};
}

template <int Bits>
code_array loaded(const std::vector<std::byte>& bytes, std::size_t shift) {
  alignas(64) std::array<std::byte, 256> memory{};
  std::copy_n(bytes.begin() + margin, 2 * Bits, memory.begin() + static_cast<std::ptrdiff_t>(shift));
  code_array codes;
  slamb::detail::host::load_codes<Bits>(memory.data() + shift).store(codes.data());
  return codes;
}

/// All zero, all ones, one nonzero code at each lane, and random codes.
template <int Bits>
std::vector<code_array> inputs() {
  constexpr std::uint32_t largest = Bits == 32 ? 0xFFFFFFFFU : (1U << (Bits % 32)) - 1U;
  std::vector<code_array> all(2);
  all[1].fill(largest);
  for (std::size_t i = 0; i < lanes; ++i)
    for (int b = 0; b < Bits; ++b) {
      code_array one{};
      one[i] = 1U << b;
      all.push_back(one);
    }
  test_support::random_source source(Bits);
  for (int n = 0; n < 500; ++n) {
    code_array codes;
    for (std::uint32_t& code : codes) code = static_cast<std::uint32_t>(source.next()) & largest;
    all.push_back(codes);
  }
  return all;
}

template <int Bits>
void check_width() {
  CAPTURE(Bits);
  std::size_t wrongly_stored = 0, wrongly_loaded = 0, shift = 0;
  for (const code_array& codes : inputs<Bits>()) {
    const std::vector<std::byte> expected = stored_by_hand<Bits>(codes);
    shift = (shift + 1) % 16;
    wrongly_stored += stored<Bits>(codes, shift) == expected ? 0 : 1;
    wrongly_loaded += loaded<Bits>(expected, shift) == codes ? 0 : 1;
  }
  CHECK(wrongly_stored == 0);
  CHECK(wrongly_loaded == 0);
}

template <int... Bits>
void check_widths(std::integer_sequence<int, Bits...>) {
  (check_width<Bits>(), ...);
}

}  // namespace

TEST_CASE("codes: the comparison finds a misplaced code and an extra byte") {
  code_array codes{}, exchanged{};
  codes[3] = 1;
  exchanged[4] = 1;
  CHECK(stored<1>(codes, 0) != stored_by_hand<1>(exchanged));
  CHECK(stored<4>(codes, 0) != stored_by_hand<4>(exchanged));
  std::vector<std::byte> longer = stored_by_hand<8>(codes);
  longer[margin + 16] = std::byte{0};
  CHECK(stored<8>(codes, 0) != longer);
  CHECK(loaded<2>(stored_by_hand<2>(exchanged), 0) != codes);
}

TEST_CASE(
    "codes: codes of every width are packed from the least significant bit, at any address, and no other byte is "
    "touched") {
  check_widths(std::integer_sequence<int, 1, 2, 4, 8, 16, 32, 3, 5, 7, 11, 24, 31>{});
}

TEST_CASE("codes: the least significant bit first") {
  code_array codes{};
  codes[0] = 1;
  codes[9] = 1;
  CHECK(stored<1>(codes, 0)[margin] == std::byte{0x01});
  CHECK(stored<1>(codes, 0)[margin + 1] == std::byte{0x02});
  codes = {0x3, 0xA};
  CHECK(stored<4>(codes, 0)[margin] == std::byte{0xA3});
  codes = {0x1234};
  CHECK(stored<16>(codes, 0)[margin] == std::byte{0x34});
  CHECK(stored<16>(codes, 0)[margin + 1] == std::byte{0x12});
}

}  // namespace backend_host_codes_tests
