// The building blocks of the kernels of the compressed exchange: codes of each width, random draws, the choice by value, and
// overflow flags.
#include "slamb/backend/cuda/detail/codes.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "slamb/backend/cuda/detail/active_kernel.hpp"
#include "slamb/backend/cuda/detail/choose_kernel.hpp"
#include "slamb/backend/cuda/detail/emulator.hpp"
#include "slamb/backend/cuda/detail/scale_kernels.hpp"
#include "slamb/backend/cuda/detail/segment_kernels.hpp"
#include "slamb/backend/host/detail/codes.hpp"
#include "slamb/backend/host/detail/uniform.hpp"
#include "slamb/compressor/sign.hpp"
#include "slamb/compressor/top_k.hpp"
#include "slamb/core/real.hpp"
#include "support/cuda_quantized.hpp"
#include "support/cuda_quantized_passes.hpp"
#include "support/generate.hpp"

namespace backend_cuda_codes_tests {
namespace {

using namespace test_support;
using slamb::detail::cuda::emulator;
using slamb::detail::cuda::group;
using slamb::detail::cuda::no_storage;
using slamb::detail::cuda::thread_order;

template <int Bits>
void compare_codes(random_source& random) {
  std::uint32_t code[16];
  for (std::uint32_t& c : code) c = static_cast<std::uint32_t>(random.next()) & slamb::detail::cuda::ones<Bits>;
  alignas(64) std::byte host[64], device[66];
  std::memset(device, 0xA5, sizeof(device));
  slamb::detail::host::store_codes<Bits>(slamb::detail::host::u32x16::load(code), host);
  for (std::uint32_t half = 0; half < 2; ++half) {
    slamb::detail::cuda::words<8> eight;
    std::copy_n(code + 8 * half, 8, eight.of);
    slamb::detail::cuda::store_codes<Bits>(eight, device, group<8>{8 * half});
    REQUIRE(device[Bits * (half + 1)] == std::byte{0xA5});
  }
  REQUIRE(std::memcmp(host, device, 2 * Bits) == 0);
  for (std::uint32_t i = 0; i < 16; ++i) {
    REQUIRE(slamb::detail::cuda::load_codes<Bits>(device, group<1>{i}).of[0] == code[i]);
    REQUIRE(slamb::detail::cuda::load_codes<Bits>(device, group<4>{i / 4 * 4}).of[i % 4] == code[i]);
  }
}

}  // namespace

TEST_CASE("cuda codes: every width gives the host's bytes") {
  random_source random(3);
  for (int round = 0; round < 50; ++round) {
    compare_codes<1>(random);
    compare_codes<2>(random);
    compare_codes<4>(random);
    compare_codes<8>(random);
    compare_codes<16>(random);
    compare_codes<32>(random);
    compare_codes<3>(random);
    compare_codes<5>(random);
    compare_codes<11>(random);
    compare_codes<31>(random);
  }
}

TEST_CASE("cuda codes: random draws are the host's, also when the lower half of the counter overflows") {
  for (const std::uint64_t first : {std::uint64_t{0}, std::uint64_t{8192}, (std::uint64_t{1} << 35U) - 64}) {
    float expected[256];
    slamb::detail::host::fill_uniform(0x123456789ABCU, ~std::uint64_t{5}, first, 256, expected);
    for (std::uint32_t i = 0; i < 256; i += 8) {
      const auto drawn = slamb::detail::cuda::draw_uniform(0x123456789ABCU, ~std::uint64_t{5}, first + i);
      for (std::uint32_t j = 0; j < 8; ++j) REQUIRE(drawn.of[j] == expected[i + j]);
    }
  }
}

namespace {

// A model in memory from which a selection is chosen. With one rank, no chunk cuts the layout's tiles.
using model = quantized_rank<slamb::sign, no_storage, no_storage>;

/// Chooses every second element; or the first ones, if the first value is positive. No shipped sparsifier does this.
struct archetype_data_dependent_sparsifier {
  SLAMB_HOST_DEVICE std::uint32_t chosen_of(std::uint32_t count) const { return (count + 1) / 2; }
  SLAMB_HOST_DEVICE void choose(const float* values, std::uint32_t count, std::uint16_t* bits) const {
    for (std::uint32_t j = 0; j < chosen_of(count); ++j)
      slamb::set_bit(bits, count > 0 && values[0] > 0.0F ? j : 2 * j);
  }
};
static_assert(slamb::data_dependent_sparsifier<archetype_data_dependent_sparsifier>);

/// Chooses every second element; on a device all threads of a block do, and, if `Wrong`, they choose the others.
template <bool Wrong>
struct evens_in_block {
  SLAMB_HOST_DEVICE std::uint32_t chosen_of(std::uint32_t count) const { return (count + 1) / 2; }
  void choose(const float* /*values*/, std::uint32_t count, std::uint16_t* bits) const {
    for (std::uint32_t i = 0; i < count; i += 2) slamb::set_bit(bits, i);
  }

  struct block_memory {
    std::uint32_t word;
  };
  template <class Block>
  SLAMB_HOST_DEVICE void choose_in_block(Block& block, block_memory& memory, const float* /*values*/,
                                         std::uint32_t count, std::uint16_t* bits) const {
    block.first([&] { memory.word = Wrong ? 0xAAAAU : 0x5555U; });
    block.each([&](unsigned thread) {
      for (std::uint32_t i = 16 * thread; i < count; i += 16 * Block::threads)
        bits[i / 16] = static_cast<std::uint16_t>(memory.word & ((1U << std::min(count - i, 16U)) - 1U));
    });
  }
};
static_assert(slamb::data_dependent_sparsifier<evens_in_block<false>>);

std::uint16_t* bits_in(model& m) {
  const std::uint64_t groups = m.tensors.state_elements() / 16;
  auto* const bits = m.memory.take<std::uint16_t>("choice", groups);
  std::fill_n(bits, groups, std::uint16_t{0});
  return bits;
}

/// The difference between the host's choice and the device's; empty if there is none.
template <class Compressor, class Change>
std::string difference_of_choice(const quantized_setup& setup, const Compressor& compressor, const Change& change,
                                 bool is_finite, emulator on = emulator()) {
  model host(setup, {}), device(setup, {});
  change(host), change(device);
  const slamb::detail::host::executor executor(1, 1);
  std::uint32_t seen = 0;
  executor.choose(sum_the_mean::type{}, compressor, host.view, host.all_tiles(), bits_in(host), &seen);
  REQUIRE(seen == (is_finite ? 0 : 1));
  std::uint32_t not_finite = 0;
  const slamb::detail::cuda::choose_kernel<sum_the_mean::type, Compressor> kernel{
      {}, compressor, device.view, device.all_tiles(), bits_in(device), &not_finite};
  on.launch(kernel, kernel.work());
  REQUIRE((not_finite == 0) == is_finite);
  return device.difference(host);
}

template <class Compressor, class Change>
void compare_choice(const quantized_setup& setup, const Compressor& compressor, const Change& change, bool is_finite,
                    emulator on = emulator()) {
  REQUIRE(difference_of_choice(setup, compressor, change, is_finite, on) == "");
}

const auto unchanged = [](model&) {};

quantized_setup some_tensors() {
  quantized_setup setup;
  for (std::size_t n = 0; n < 40; ++n) setup.tensors.push_back({n, n % 6 != 5});
  for (const std::size_t n : {8192U, 8193U, 16400U, 1000U}) setup.tensors.push_back({n});
  return setup;
}

}  // namespace

TEST_CASE("cuda choose_kernel: chooses the largest elements of each tile, the first of equal ones") {
  quantized_setup setup = some_tensors();
  for (const double k : {1e-9, 0.01, 0.07, 0.5, 0.999, 1.0})
    for (setup.shift = 0; setup.shift < 2; ++setup.shift) {
      CAPTURE(k);
      compare_choice(setup, slamb::top_k{k}, unchanged, true);
      compare_choice(
          setup, slamb::top_k{k},
          [](model& m) {
            for (const slamb::detail::segment& s : std::as_const(m.tensors).segments())
              for (std::uint64_t i = 0; i < s.size; ++i) {
                m.view.momentum[s.state + i] = 0.0F;  // equal magnitudes, zeros of both signs among them
                m.gradient(static_cast<std::size_t>(&s - m.view.segments))[i] = i % 3 == 0   ? -0.0F
                                                                                : i % 3 == 1 ? 0.0F
                                                                                             : -2.0F;
              }
          },
          true);
      compare_choice(
          setup, slamb::top_k{k}, [](model& m) { m.gradient(40)[77] = 1e19F; }, true);
    }
}

TEST_CASE("cuda choose_kernel: any grid, no tensors, very many tensors, and a user-defined compressor") {
  for (const std::size_t blocks : {1U, 2U, 5U, 1000U})
    for (const thread_order order : {thread_order::forwards, thread_order::backwards, thread_order::interleaved}) {
      compare_choice(some_tensors(), slamb::top_k{0.1}, unchanged, true, emulator(blocks, order));
      compare_choice(some_tensors(), archetype_data_dependent_sparsifier{}, unchanged, true, emulator(blocks, order));
      compare_choice(some_tensors(), evens_in_block<false>{}, unchanged, true, emulator(blocks, order));
    }
  CHECK(difference_of_choice(some_tensors(), evens_in_block<true>{}, unchanged, true) != "");
  compare_choice({}, slamb::top_k{0.1}, unchanged, true);
  compare_choice({.tensors = std::vector<quantized_tensor>(10000, quantized_tensor{1})}, slamb::top_k{0.1}, unchanged,
                 true);
}

TEST_CASE("cuda choose_kernel: a tile that is not finite gets no selection, and a skipped step chooses nothing") {
  const float infinity = std::numeric_limits<float>::infinity();
  for (const std::size_t place : {0U, 8191U, 8192U, 8200U, 16399U})
    for (const float bad : {infinity, -infinity, std::numeric_limits<float>::quiet_NaN(), 2e19F})
      compare_choice(
          some_tensors(), slamb::top_k{0.1}, [&](model& m) { m.gradient(42)[place] = bad; }, false);
  model m(some_tensors(), {});
  std::uint16_t* const bits = bits_in(m);
  const std::vector<std::byte> before = m.memory.bytes();
  const std::uint32_t skip = 1;
  m.view.skip = &skip;
  std::uint32_t not_finite = 0;
  const slamb::detail::cuda::choose_kernel<sum_the_mean::type, slamb::top_k> kernel{
      {}, {0.1}, m.view, m.all_tiles(), bits, &not_finite};
  emulator().launch(kernel, kernel.work());
  CHECK(m.memory.bytes() == before);
}

TEST_CASE("cuda active_kernel: without rows and for every variance, all elements are active") {
  model m({.tensors = {{100}, {17}, {5, false}}, .ranks = 2}, {});
  std::vector<std::uint64_t> counts(m.tiles() + 1, 99);
  const slamb::detail::cuda::mark_active_kernel<> kernel{
      .view = m.view, .wire = m.wire, .tiles = m.all_tiles(), .active = m.active, .counts = counts.data()};
  emulator().launch(kernel, kernel.work());
  CHECK(counts == std::vector<std::uint64_t>{100, 17, 5, 99});
  for (const std::size_t group : {0U, 1U, 2U, 3U, 4U, 5U}) CHECK(m.active[group] == 0xFFFF);
  CHECK(m.active[6] == 0x000F);
  CHECK(m.active[7] == 0xFFFF);
  CHECK(m.active[8] == 0x0001);
}

TEST_CASE(
    "messages: a rank with a value that is not finite sets the overflow flag, and the flag of any rank skips the "
    "step") {
  for (const std::uint64_t count : {1U, 2U, 129U}) {
    constexpr std::uint64_t f32x16 = 6, message = 4 * f32x16;  // bytes: a header, a scale, and what follows
    constexpr std::uint64_t flag = 0, scale = 4;
    std::vector<float> messages(count * f32x16, 5.0F);
    auto* const bytes = reinterpret_cast<std::byte*>(messages.data());
    slamb::detail::step_record record;
    const emulator on(3);
    const auto invoke = [&](const auto& function) {
      const slamb::detail::cuda::invoke_kernel<std::remove_cvref_t<decltype(function)>> kernel{function};
      on.launch(kernel, kernel.work());
    };
    const auto skips = [&](bool looks_at_scale = true) {
      record.skip = 0;
      invoke(slamb::detail::read_overflow_flags{&record, bytes, message, count, looks_at_scale});
      return record.skip != 0;
    };
    const std::vector<float> before = messages;
    invoke(slamb::detail::write_overflow_flags{&record, bytes, message, count});
    REQUIRE(messages == before);
    invoke(slamb::detail::start_messages{nullptr, bytes, message, count});
    for (std::uint64_t i = 0; i < count * f32x16; ++i) REQUIRE(messages[i] == (i % f32x16 <= scale ? 0.0F : 5.0F));
    CHECK_FALSE(skips());
    messages[scale + 1] = messages[count * f32x16 - 1] = std::numeric_limits<float>::quiet_NaN();
    CHECK_FALSE(skips());
    for (std::uint64_t place = 0; place < count; ++place)
      for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                              -std::numeric_limits<float>::infinity()}) {
        const float good = std::exchange(messages[f32x16 * place + scale], bad);
        CHECK(skips());
        CHECK_FALSE(skips(false));
        messages[f32x16 * place + scale] = good;
      }
    messages[scale] = std::numeric_limits<float>::max();
    CHECK_FALSE(skips());
    record.not_finite = 1;
    const std::vector<float> without = messages;
    invoke(slamb::detail::write_overflow_flags{&record, bytes, message, count});
    for (std::uint64_t i = 0; i < count * f32x16; ++i)
      CHECK((std::bit_cast<std::uint32_t>(messages[i]) == std::bit_cast<std::uint32_t>(without[i])) ==
            (i % f32x16 != flag));
    CHECK(skips(false));
    messages = without;
    std::memcpy(&messages[f32x16 * (count - 1)], "\1\0\0", 4);  // of one rank alone
    CHECK(skips(false));
  }
}

TEST_CASE("messages: a message's header has the rank's fingerprint, and a fingerprint that differs stops training") {
  for (const std::uint64_t count : {1U, 2U, 129U}) {
    constexpr std::uint64_t u32x16 = 16, message = 8 * u32x16;  // bytes
    std::vector<std::uint64_t> messages(count * u32x16, 5U);
    auto* const bytes = reinterpret_cast<std::byte*>(messages.data());
    slamb::detail::step_record record;
    record.agreement.step_hash = 0x0123456789ABCDEFU;
    const std::uint64_t own = slamb::detail::fingerprint_of(record);
    const emulator on(3);
    const auto invoke = [&](const auto& function) {
      const slamb::detail::cuda::invoke_kernel<std::remove_cvref_t<decltype(function)>> kernel{function};
      on.launch(kernel, kernel.work());
    };
    invoke(slamb::detail::start_messages{&record, bytes, message, count});
    for (std::uint64_t i = 0; i < count * u32x16; ++i)
      REQUIRE(messages[i] == (i % u32x16 == 1 ? own : i % u32x16 == 0 || i % u32x16 == 2 ? 0U : 5U));
    const slamb::detail::compare_fingerprints compare{&record, bytes, message, count};
    invoke(compare);
    CHECK(record.skip == 0);
    CHECK(record.agreement.diverged == 0);
    for (std::uint64_t place = 0; place < count; ++place) {
      const std::uint64_t kept = std::exchange(messages[u32x16 * place + 1], own ^ (1U << 31U));
      invoke(compare);
      CHECK(record.skip == 1);
      CHECK(record.agreement.diverged == 1);
      CHECK(record.agreement.diverged_fingerprint == own);
      messages[u32x16 * place + 1] = kept;
      record.skip = record.agreement.diverged = 0;
      record.agreement.diverged_fingerprint = 0;
    }
  }
}

}  // namespace backend_cuda_codes_tests
