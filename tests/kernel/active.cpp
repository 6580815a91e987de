// The active elements of a compressed exchange, emulated and on the host. two_phase.cpp compares them for rows and zero variances.
#include "slamb/detail/kernel/active.hpp"

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "slamb/compressor/sign.hpp"
#include "slamb/detail/kernel/two_phase.hpp"
#include "support/cuda_quantized.hpp"
#include "support/launchers.hpp"

namespace kernel_active_tests {

using namespace test_support;

TEST_CASE("mark_active: without rows and for every variance, all elements are active") {
  const auto check = [](const auto& launcher) {
    quantized_rank<slamb::sign, slamb::detail::no_storage, slamb::detail::no_storage> m(
        {.tensors = {{100}, {17}, {5, false}}, .ranks = 2}, {});
    std::vector<std::uint64_t> counts(m.tiles() + 1, 99);
    launcher.launch(slamb::detail::mark_active<>{
        .view = m.view, .wire = m.wire, .tiles = m.all_tiles(), .active = m.active, .counts = counts.data()});
    CHECK(counts == std::vector<std::uint64_t>{100, 17, 5, 99});
    for (const std::size_t group : {0U, 1U, 2U, 3U, 4U, 5U}) CHECK(m.active[group] == 0xFFFF);
    CHECK(m.active[6] == 0x000F);
    CHECK(m.active[7] == 0xFFFF);
    CHECK(m.active[8] == 0x0001);
  };
  check(host_launcher());
  for_every_launch(check);
}

}  // namespace kernel_active_tests
