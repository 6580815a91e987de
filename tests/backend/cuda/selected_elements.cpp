// Which elements of a tile are selected, as kernels ask.
#include "slamb/backend/cuda/detail/selected_elements.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "slamb/compressor/random_k.hpp"
#include "slamb/core/concepts.hpp"
#include "slamb/detail/exchange/sparse.hpp"

namespace backend_cuda_selected_elements_tests {

using slamb::detail::cuda::group;

TEST_CASE("cuda selected_elements: groups agree with round robin on every element") {
  constexpr unsigned threads = 256;
  constexpr std::uint32_t size = 16 * threads;
  const std::vector<float> discount = slamb::detail::discounts_by_age(0.93);
  const slamb::capability::staleness_discounts table{discount.data(), static_cast<std::uint32_t>(discount.size())};
  std::size_t wrong = 0, groups = 0;
  for (const double slots : {8.0, 9.0, 10.0, 13.0, 16.0, 31.0, 32.0})
    for (const std::uint64_t step : {1U, 3U, 7U, 40U, 12345U})
      for (const std::uint64_t elements :
           {std::uint64_t{1}, std::uint64_t{9}, std::uint64_t{33}, std::uint64_t{4095}, std::uint64_t{4096},
            std::uint64_t{4097}, std::uint64_t{12288 + 5}, (std::uint64_t{1} << 33U) + 7})
        for (std::uint64_t begin = elements > size * 8 ? elements / size * size - size : 0; begin < elements;
             begin += size) {
          const auto selection = slamb::random_k<>{.k = 1.0 / slots, .seed = 5}.at(step);
          REQUIRE(selection.deals_small_groups());
          const slamb::coordinate c{.tensor = 3, .index = begin, .tensor_size = elements};
          const auto count = static_cast<std::uint32_t>(std::min<std::uint64_t>(size, elements - begin));
          slamb::detail::cuda::groups_of_piece<size, true> piece;
          for (unsigned thread = threads; thread-- > 0;) {
            piece.prepare<threads>(thread, selection, table);
            piece.deal<threads>(thread, selection, c, count);
          }
          const slamb::detail::cuda::grouped_piece known = piece.piece;
          groups += known.in_whole;
          CHECK(count - known.in_whole < static_cast<std::uint32_t>(slots));
          for (std::uint32_t i = 0; i < count; ++i) {
            slamb::coordinate at = c;
            at.index += i;
            const std::uint32_t in_sixteen = i % 16, of_sixteen = std::min(count - (i - in_sixteen), 16U);
            const bool sent = ((piece.bits(i - in_sixteen, of_sixteen) >> in_sixteen) & 1U) != 0;
            wrong += sent == selection.selects(at) ? 0 : 1;
            if (i >= known.in_whole) continue;
            wrong += piece.discounts(known, group<1>{i}).of[0] == table[selection.age(at)] ? 0 : 1;
            if (i + 4 > known.in_whole) continue;
            const auto four = piece.discounts(known, group<4>{i});
            for (std::uint32_t j = 0; j < 4; ++j, ++at.index) wrong += four.of[j] == table[selection.age(at)] ? 0 : 1;
          }
        }
  CHECK(wrong == 0);
  CHECK(groups > 0);
}

}  // namespace backend_cuda_selected_elements_tests
