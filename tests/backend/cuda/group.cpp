// The position of a kernel's elements: reads and writes at every alignment.
#include "slamb/backend/cuda/detail/group.hpp"

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <stdexcept>

#include "slamb/backend/cuda/detail/reals.hpp"

namespace backend_cuda_group_tests {
namespace {

using slamb::detail::cuda::group;
using slamb::detail::cuda::reals;
using slamb::detail::cuda::words;

/// Reads and writes group i of an array that begins `offset` numbers after an aligned place.
template <unsigned W, class T, class Load, class Store>
void expect_exact(std::size_t offset, std::uint32_t i, const Load& load_group, const Store& store_group) {
  CAPTURE(W);
  CAPTURE(offset);
  CAPTURE(i);
  constexpr std::size_t length = 24;
  alignas(16) T memory[length];
  for (std::size_t k = 0; k < length; ++k) memory[k] = static_cast<T>(k + 1);
  T* const array = memory + offset;
  auto x = load_group(static_cast<const T*>(array), group<W>{i});
  for (unsigned j = 0; j < W; ++j) {
    CHECK(x.of[j] == array[i + j]);
    x.of[j] = 100;
  }
  store_group(x, array, group<W>{i});
  for (std::size_t k = 0; k < length; ++k) {
    const bool inside = k >= offset + i && k < offset + i + W;
    CHECK(memory[k] == (inside ? static_cast<T>(100) : static_cast<T>(k + 1)));
  }
}

template <unsigned W>
void expect_exact_of_all_types(std::size_t offset, std::uint32_t i) {
  expect_exact<W, float>(
      offset, i, [](const float* from, group<W> at) { return load(from, at); },
      [](const reals<W>& x, float* to, group<W> at) { store(x, to, at); });
  expect_exact<W, std::uint16_t>(
      offset, i, [](const std::uint16_t* from, group<W> at) { return load_words(from, at); },
      [](const words<W>& x, std::uint16_t* to, group<W> at) { store_words(x, to, at); });
  expect_exact<W, std::uint8_t>(
      offset, i, [](const std::uint8_t* from, group<W> at) { return load_words(from, at); },
      [](const words<W>& x, std::uint8_t* to, group<W> at) { store_words(x, to, at); });
}

}  // namespace

TEST_CASE("cuda group: arrays of every type are read and written at every alignment, and nothing beside the group") {
  for (std::size_t offset = 0; offset < 8; ++offset) {
    for (std::uint32_t i = 0; i < 8; ++i) expect_exact_of_all_types<1>(offset, i);
    for (std::uint32_t i = 0; i < 12; i += 4) expect_exact_of_all_types<4>(offset, i);
  }
}

TEST_CASE("cuda group: words are narrowed to their lowest bits") {
  std::uint16_t halves[4];
  std::uint8_t bytes[4];
  store_words(words<4>(0x12345678U), halves, group<4>{0});
  store_words(words<4>(0x12345678U), bytes, group<4>{0});
  for (unsigned j = 0; j < 4; ++j) {
    CHECK(halves[j] == 0x5678U);
    CHECK(bytes[j] == 0x78U);
  }
}

TEST_CASE("cuda group: an address that is not aligned for a group stops the emulator") {
  alignas(16) float memory[12] = {};
  CHECK_NOTHROW(load_together(memory, group<8>{0}));
  CHECK_THROWS_AS(load_together(memory + 1, group<4>{0}), std::logic_error);
  CHECK_THROWS_AS(store_together(reals<4>(0.0F), memory + 2, group<4>{4}), std::logic_error);
  CHECK_NOTHROW(load_together(memory + 1, group<1>{0}));
}

TEST_CASE("cuda group: masks, bits and numbers are those of its elements") {
  const auto mask = mask_of(0b1010U, group<4>{0});
  for (unsigned j = 0; j < 4; ++j) CHECK(mask.of[j] == (j % 2 == 1));
  const std::uint16_t bits[] = {0xABCDU, 0x1234U};
  using slamb::detail::cuda::bits_at;
  CHECK(bits_at(bits, group<4>{0}) == 0xDU);
  CHECK(bits_at(bits, group<4>{12}) == 0xAU);
  CHECK(bits_at(bits, group<4>{16}.moved(4)) == 0x3U);
  CHECK(bits_at(bits, group<4>{36}.from(16)) == 0x3U);
  CHECK(bits_at(bits, group<1>{1}) == 0U);
  CHECK(bits_at(bits, group<1>{2}) == 1U);
  CHECK(group<4>{8}.existing() == 0xFU);
  CHECK(group<1>{8}.existing() == 1U);
  const auto numbers = numbers_at(0xFFFFFFU, group<4>{4});
  for (unsigned j = 0; j < 4; ++j) CHECK(numbers.of[j] == static_cast<float>(0xFFFFFFU + 4U + j));
}

}  // namespace backend_cuda_group_tests
