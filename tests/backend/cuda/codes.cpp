// The building blocks of the kernels of the compressed exchange: codes of each width, random draws, and overflow flags.
#include "slamb/backend/cuda/detail/codes.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "slamb/backend/host/detail/codes.hpp"
#include "slamb/backend/host/detail/uniform.hpp"
#include "slamb/detail/pass/messages.hpp"
#include "slamb/detail/pass/step_state.hpp"
#include "support/generate.hpp"
#include "support/launchers.hpp"

namespace backend_cuda_codes_tests {
namespace {

using namespace test_support;
using slamb::detail::cuda::group;

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

TEST_CASE(
    "messages: a rank with a value that is not finite sets the overflow flag, and the flag of any rank skips the "
    "step") {
  for (const std::uint64_t count : {1U, 2U, 129U}) {
    constexpr std::uint64_t f32x16 = 6, message = 4 * f32x16;  // bytes: a header, a scale, and what follows
    constexpr std::uint64_t flag = 0, scale = 4;
    std::vector<float> messages(count * f32x16, 5.0F);
    auto* const bytes = reinterpret_cast<std::byte*>(messages.data());
    slamb::detail::step_record record;
    const emulated on = emulated_on(3);
    const auto skips = [&](bool looks_at_scale = true) {
      record.skip = 0;
      on.invoke(slamb::detail::read_overflow_flags{&record, bytes, message, count, looks_at_scale});
      return record.skip != 0;
    };
    const std::vector<float> before = messages;
    on.invoke(slamb::detail::write_overflow_flags{&record, bytes, message, count});
    REQUIRE(messages == before);
    on.invoke(slamb::detail::start_messages{nullptr, bytes, message, count});
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
    on.invoke(slamb::detail::write_overflow_flags{&record, bytes, message, count});
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
    const emulated on = emulated_on(3);
    on.invoke(slamb::detail::start_messages{&record, bytes, message, count});
    for (std::uint64_t i = 0; i < count * u32x16; ++i)
      REQUIRE(messages[i] == (i % u32x16 == 1 ? own : i % u32x16 == 0 || i % u32x16 == 2 ? 0U : 5U));
    const slamb::detail::compare_fingerprints compare{&record, bytes, message, count};
    on.invoke(compare);
    CHECK(record.skip == 0);
    CHECK(record.agreement.diverged == 0);
    for (std::uint64_t place = 0; place < count; ++place) {
      const std::uint64_t kept = std::exchange(messages[u32x16 * place + 1], own ^ (1U << 31U));
      on.invoke(compare);
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
