// A block as a team: groups of elements for each thread, and arrays at any alignment.
#include "slamb/backend/cuda/detail/team.hpp"

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <vector>

#include "slamb/detail/pass/layout.hpp"
#include "slamb/detail/pass/pass.hpp"
#include "support/cuda_model.hpp"

namespace backend_cuda_team_tests {
namespace {

namespace array = slamb::detail::array;
using slamb::detail::arrays;

struct all_arrays : slamb::detail::pass_without_constants {
  using writes = arrays<array::parameter, array::momentum, array::variance, array::exchanged, array::fresh_variance,
                        array::accumulated_update, array::anchor, array::residual>;
  using reads = slamb::detail::union_of_t<writes, arrays<array::gradient>>;
};

}  // namespace

TEST_CASE("cuda team: the threads of a block cover every element once, four at a time except at the end") {
  constexpr unsigned threads = 32;
  for (std::uint32_t count = 0; count <= 300; ++count) {
    std::vector<int> seen(count + 4, 0);
    std::uint32_t in_groups = 0;
    for (unsigned thread = 0; thread < threads; ++thread)
      slamb::detail::cuda::for_each_group<threads>(thread, count, [&]<unsigned W>(slamb::detail::cuda::group<W> at) {
        CHECK(at.i % W == 0);
        in_groups += W == 4 ? 4 : 0;
        for (unsigned j = 0; j < W; ++j) ++seen[at.i + j];
      });
    CHECK(std::accumulate(seen.begin(), seen.end(), 0) == static_cast<int>(count));
    for (std::uint32_t i = 0; i < count; ++i) CHECK(seen[i] == 1);
    CHECK(in_groups == count / 4 * 4);
  }
}

TEST_CASE("cuda team: a group has the draws of its elements, in tiles that begin anywhere") {
  using slamb::detail::rounding_draws;
  using precision = slamb::detail::mixed_precision<true>;
  const std::uint64_t steps = 41;
  struct {
    rounding_draws draws;
  } const view{{.seed = 0x123456789ABCDEFU, .steps = &steps}};
  for (const std::uint64_t first : {0U, 1U, 2U, 3U, 4U, 61U, 62U, 63U, 64U, 8192U, 12345U})
    for (std::uint32_t i = 0; i < 136; i += 4) {
      CAPTURE(first);
      CAPTURE(i);
      const slamb::detail::cuda::drawn_words<precision> words(view, {.first = first, .segment = 5});
      const auto four = words.draw(slamb::detail::cuda::group<4>{i});
      for (std::uint32_t j = 0; j < 4; ++j) {
        const std::uint64_t element = first + i + j;
        const auto drawn = slamb::philox(view.draws.seed, view.draws.counter(element), view.draws.stream(5));
        CHECK(four.of[j] == rounding_draws::draw_of(drawn, element));
        CHECK(words.draw(slamb::detail::cuda::group<1>{i + j}).of[0] == rounding_draws::draw_of(drawn, element));
      }
    }
}

TEST_CASE("cuda team: any single array may be misaligned to sixteen bytes") {
  constexpr std::size_t number = 9, length = 16;
  constexpr std::uint32_t first = 4;
  for (std::size_t moved = 0; moved < number; ++moved) {
    for (std::size_t offset = 0; offset < 8; ++offset) {
      CAPTURE(moved);
      CAPTURE(offset);
      alignas(16) float memory[number][length];
      for (std::size_t k = 0; k < number; ++k)
        for (std::size_t i = 0; i < length; ++i) memory[k][i] = static_cast<float>(100 * k + i);
      const auto first_of = [&](std::size_t k) { return memory[k] + (k == moved ? offset : 0); };
      const slamb::detail::segment nothing{};
      slamb::detail::arrays_of_tile<slamb::detail::cuda::block_team<32>, all_arrays, slamb::detail::single_precision>
          at(test_support::full_view{}, nothing, {}, 0);
      at.parameter = first_of(0);
      at.gradient = {first_of(1), 1.0F};
      at.momentum = first_of(2);
      at.variance = first_of(3);
      at.exchanged = first_of(4);
      at.fresh_variance = first_of(5);
      at.accumulated_update = first_of(6);
      at.anchor = first_of(7);
      at.residual = first_of(8);
      slamb::detail::element_of<all_arrays, slamb::detail::cuda::reals<4>> e;
      const slamb::detail::cuda::group<4> here{first};
      at.load(all_arrays::reads(), e, here);
      for (std::size_t j = 0; j < 4; ++j) {
        const float read[number] = {e.parameter.of[j],          e.gradient.of[j],  e.momentum.of[j],
                                    e.variance.of[j],           e.exchanged.of[j], e.fresh_variance.of[j],
                                    e.accumulated_update.of[j], e.anchor.of[j],    e.residual.of[j]};
        for (std::size_t k = 0; k < number; ++k) CHECK(read[k] == first_of(k)[first + j]);
      }
      e.parameter = -1.0F;
      e.residual = -2.0F;
      at.store(arrays<array::parameter, array::residual>(), e, here);
      for (std::size_t i = 0; i < length - offset; ++i) {
        const bool inside = i >= first && i < first + 4;
        const auto was = [&](std::size_t k) { return static_cast<float>(100 * k + i + (k == moved ? offset : 0)); };
        CHECK(first_of(0)[i] == (inside ? -1.0F : was(0)));
        CHECK(first_of(2)[i] == was(2));
        CHECK(first_of(8)[i] == (inside ? -2.0F : was(8)));
      }
    }
  }
}

}  // namespace backend_cuda_team_tests
