// The table of tensors, segments and tiles: it has every element once, and in order.
#include "slamb/detail/pass/layout.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "slamb/core/parameter.hpp"
#include "support/cluster.hpp"

namespace pass_layout_tests {
namespace {

using slamb::detail::layout;
using slamb::detail::segment;
using slamb::detail::tile;
using test_support::model;
using test_support::replica;

/// A layout, with the model's memory.
struct laid_out {
  explicit laid_out(const model& tensors, double weight_decay = 0.01)
      : memory(tensors, std::vector<float>(test_support::total_size(tensors))),
        parameters(memory.parameters()),
        table(parameters, weight_decay) {}

  replica memory;
  std::vector<slamb::parameter> parameters;
  layout table;
};

model model_of(const test_support::tensor_shapes& shapes) {
  model tensors;
  for (const auto& shape : shapes) tensors.push_back({shape.size, shape.dimensions});
  return tensors;
}

}  // namespace

TEST_CASE("layout: tiles cover every element of every tensor once, in order") {
  std::vector<model> models{{}, {{0}}, {{0}, {0}, {1}, {0}}, {{8191}, {8192}, {8193}, {16'384}, {100'003, 1}}};
  for (std::uint64_t seed = 0; seed < 20; ++seed) models.push_back(model_of(test_support::random_shapes(seed, 30)));
  models.push_back(model_of(test_support::edge_shapes()));
  for (const model& tensors : models) {
    const laid_out made(tensors);
    const layout& table = made.table;
    const std::vector<tile> tiles = table.tile_table();
    REQUIRE(table.segments().size() == tensors.size());
    CHECK(table.elements() == test_support::total_size(tensors));
    std::uint64_t element = 0;
    std::size_t next_tile = 0;
    for (std::size_t l = 0; l < tensors.size(); ++l) {
      const slamb::detail::tile_range range = table.tiles_of(l);
      CHECK(range.first == next_tile);
      std::uint64_t in_tensor = 0;
      for (std::size_t i = range.first; i < range.last; ++i) {
        const tile& t = tiles[i];
        CHECK(t.segment == l);
        CHECK(t.first == in_tensor);
        CHECK(t.count >= 1);
        CHECK(t.count <= layout::tile_size);
        CHECK(table.first_element(t) == element);
        in_tensor += t.count;
        element += t.count;
      }
      CHECK(in_tensor == tensors[l].size);
      CHECK(range.last - range.first == (tensors[l].size + layout::tile_size - 1) / layout::tile_size);
      next_tile = range.last;
    }
    CHECK(next_tile == tiles.size());
    CHECK(element == table.elements());
  }
}

TEST_CASE("layout: elements and pieces of tiles are counted as the table has them") {
  using slamb::detail::tile_cut, slamb::detail::tile_range;
  const laid_out made(model_of(test_support::random_shapes(7, 20)));
  layout table = made.table;
  for (const bool is_cut : {false, true}) {
    if (is_cut) {  // each tensor is divided somewhere
      std::vector<tile_cut> cuts;
      for (std::uint32_t i = 0; i < table.segments().size(); ++i) {
        const std::uint64_t size = table.segments()[i].size, first = size / 3;
        cuts.push_back({i, 0, first});
        cuts.push_back({i, first, size - first});
      }
      table.make_tiles(std::span<const tile_cut>(cuts));
    }
    const std::vector<tile> tiles = table.tile_table();
    REQUIRE(tiles.size() == table.tile_count());
    const auto sum_of = [&](std::size_t first, std::size_t last) {
      std::uint64_t sum = 0;
      for (std::size_t i = first; i < last; ++i) sum += tiles[i].count;
      return sum;
    };
    for (std::size_t first = 0; first <= tiles.size(); ++first)
      for (std::size_t last = first; last <= tiles.size(); last += 1 + last / 3)
        CHECK(table.elements_of({first, last}) == sum_of(first, last));
    for (const std::uint64_t room : {1U, 100U, 8192U, 8193U, 20'000U, 100'000U, 100'000'000U}) {
      std::size_t next = 0;
      table.for_each_piece(room, [&](const tile_range& piece, std::uint64_t first, std::uint64_t elements) {
        CHECK(piece.first == next);
        CHECK(piece.last > piece.first);
        CHECK(first == sum_of(0, piece.first));
        CHECK(elements == sum_of(piece.first, piece.last));
        CHECK((elements <= room || piece.last == piece.first + 1));
        if (piece.last < tiles.size()) CHECK(elements + tiles[piece.last].count > room);
        next = piece.last;
      });
      CHECK(next == tiles.size());
    }
  }
}

TEST_CASE("layout: state arrays hold every tensor, separate and aligned") {
  const laid_out made(model_of(test_support::random_shapes(30, 40)));
  std::uint64_t first = 0;
  std::uint64_t state = 0;
  for (const segment& s : made.table.segments()) {
    CHECK(s.first == first);
    CHECK(s.state % layout::state_alignment == 0);
    CHECK(s.state >= state);
    CHECK(s.state < state + layout::state_alignment);
    first += s.size;
    state = s.state + s.size;
  }
  CHECK(made.table.state_elements() >= state);
  CHECK(made.table.state_elements() % layout::state_alignment == 0);
}

TEST_CASE("layout: segments carry the tensors' pointers and options") {
  model tensors{{10, 0}, {11, 1}, {12, 2}, {13, 4}};
  tensors[0].options = {.weight_decay = 0.0};
  tensors[1].options = {.weight_decay = 0.25, .learning_rate_factor = 2.0, .adapt = false};
  tensors[2].options = {.compress = false, .group = 65'535};
  const laid_out made(tensors, 0.5);
  const auto segments = made.table.segments();
  for (std::size_t l = 0; l < tensors.size(); ++l) {
    CHECK(segments[l].data == made.parameters[l].data.address());
    CHECK(segments[l].gradient == made.parameters[l].gradient.address());
    CHECK(segments[l].size == tensors[l].size);
    CHECK(segments[l].one_dimensional == (tensors[l].dimensions <= 1));
    CHECK(segments[l].adapt == tensors[l].options.adapt);
    CHECK(segments[l].dense == !tensors[l].options.compress);
  }
  CHECK(segments[0].weight_decay == 0.0F);
  CHECK(segments[1].weight_decay == 0.25F);
  CHECK(segments[2].weight_decay == 0.5F);
  CHECK(segments[1].learning_rate_factor == 2.0F);
  CHECK(segments[2].learning_rate_factor == 1.0F);
  CHECK(segments[2].group == 65'535);
  CHECK(made.table.groups() == 65'536);
  CHECK(laid_out(model{{1}}).table.groups() == 1);
}

TEST_CASE("layout: gradients may share memory, and tensors may be adjacent") {
  std::vector<float> data(40);
  const std::vector<float> gradient(30);
  const std::vector<slamb::parameter> parameters{{data.data() + 10, gradient.data(), 10},
                                                 {data.data(), gradient.data(), 10},
                                                 {data.data() + 20, gradient.data() + 5, 20},
                                                 {data.data() + 15, gradient.data(), 0},
                                                 {nullptr, nullptr, 0}};
  CHECK_NOTHROW(layout(parameters, 0.0));
  // The gradient of one tensor may be adjacent to the parameters of another.
  const std::vector<slamb::parameter> touching{{data.data(), data.data() + 10, 10},
                                               {data.data() + 20, data.data() + 10, 10}};
  CHECK_NOTHROW(layout(touching, 0.0));
}

}  // namespace pass_layout_tests
