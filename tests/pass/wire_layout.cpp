// The places of codes of a compressed exchange on the wire, compared with a map that is made element by element.
#include "slamb/detail/pass/wire_layout.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "slamb/compressor/floating.hpp"
#include "slamb/compressor/integer.hpp"
#include "slamb/compressor/natural.hpp"
#include "slamb/compressor/sign.hpp"
#include "support/generate.hpp"
#include "support/wire_map.hpp"

namespace pass_wire_layout_tests {
namespace {

using slamb::detail::scale_granularity;
using slamb::detail::wire_layout;
using slamb::detail::wire_piece;
using slamb::detail::wire_tensor;
using test_support::mapped_tensor;
using test_support::random_source;
using test_support::shared_scales;
using test_support::wire_map;
using test_support::wire_place;

struct wire_case {
  std::vector<wire_tensor> tensors;
  int ranks = 1;
  scale_granularity scales;
  int bits = 1;
};

shared_scales sharing_of(scale_granularity scales) {
  switch (scales.of) {
    case scale_granularity::none:
      return shared_scales::none;
    case scale_granularity::fused:
      return shared_scales::fused;
    case scale_granularity::per_tensor:
      return shared_scales::per_tensor;
    case scale_granularity::blocks:
      break;
  }
  return shared_scales::blocks;
}

wire_map map_of(const wire_case& c) {
  std::vector<mapped_tensor> tensors;
  for (const wire_tensor& l : c.tensors) tensors.push_back({l.size, l.compressed});
  return {tensors, static_cast<std::size_t>(c.ranks), sharing_of(c.scales), c.scales.block, c.scales.bytes};
}

wire_layout layout_of(const wire_case& c) { return {c.tensors, c.ranks, c.scales, c.bits}; }

/// The fault of a piece in its middle, at its ends or between, or "".
std::string fault_of(const wire_piece& piece, const wire_map& map, std::size_t first, const wire_case& c) {
  for (std::size_t i = 0; i < piece.count; ++i) {
    const wire_place& p = map.places[first + i];
    const bool whole = p.owner == wire_place::whole;
    const std::uint64_t block = c.scales.of == scale_granularity::blocks ? i / c.scales.block : 0;
    const std::string where =
        " of element " + std::to_string(piece.first + i) + " of tensor " + std::to_string(p.tensor);
    if (piece.segment != p.tensor) return "the tensor" + where;
    if (p.begins_piece != (i == 0)) return "the piece" + where;
    if (piece.owner != (whole ? wire_piece::dense : static_cast<std::uint32_t>(p.owner))) return "the owner" + where;
    if (piece.code + i != p.code) return "the code" + where;
    if (!whole && c.scales.of != scale_granularity::none && piece.scale + block != 16 / c.scales.bytes + p.scale)
      return "the scale" + where;
  }
  return {};
}

/// The fault of a layout, or "".
std::string fault_of(const wire_layout& wire, const wire_case& c) {
  const wire_map map = map_of(c);
  std::vector<std::size_t> first;  // [tensors] index of the first element, all tensors end to end
  std::vector<std::uint64_t> seen(c.tensors.size());
  std::size_t n = 0;
  for (const wire_tensor& l : c.tensors) {
    first.push_back(n);
    n += l.size;
  }
  std::size_t next = 0;
  for (const wire_piece& piece : wire.pieces()) {
    if (piece.count == 0) return "an empty piece";
    if (piece.segment >= c.tensors.size() || piece.first != seen[piece.segment] ||
        piece.first + piece.count > c.tensors[piece.segment].size || first[piece.segment] + piece.first != next)
      return "the order of the pieces";
    seen[piece.segment] += piece.count;
    next += piece.count;
    if (piece.owner != wire_piece::dense && piece.code % 16 != 0) return "a piece that begins within 16 codes";
    if (std::string fault = fault_of(piece, map, first[piece.segment] + piece.first, c); !fault.empty()) return fault;
  }
  if (next != n) return "elements without a piece";
  if (wire.dense_elements() != map.dense_elements) return "the elements that are exchanged whole";
  if (wire.elements() + wire.dense_elements() != n) return "the elements that are compressed";
  if (wire.codes() != map.message_codes()) return "the codes of a message";
  if (wire.codes_at() != map.first_code_byte()) return "where the codes of a message begin";
  if (wire.message_bytes() != map.message_bytes(c.bits)) return "the bytes of a message";
  if (wire.all_message_bytes() != map.ranks() * wire.message_bytes()) return "the bytes of all messages";
  return {};
}

constexpr std::array<std::size_t, 16> sizes{0, 0, 1, 2, 15, 16, 17, 127, 128, 129, 255, 1000, 1025, 4097, 8192, 8193};

wire_case random_case(std::uint64_t seed) {
  random_source source(seed, 0x31);
  wire_case c;
  c.tensors.resize(source.below(8));
  for (wire_tensor& l : c.tensors) {
    l.size = source.below(4) == 0 ? source.below(3000) : sizes[source.below(sizes.size())];
    l.compressed = source.below(5) != 0;
  }
  c.ranks = 1 + static_cast<int>(source.below(9));
  c.scales.of = static_cast<scale_granularity::kind>(source.below(4));
  if (c.scales.of == scale_granularity::blocks) {
    c.scales.block = 16U << source.below(7);
    c.scales.bytes = source.below(2) == 0 ? 4 : 1;
  }
  c.bits = 1 + static_cast<int>(source.below(32));
  return c;
}

}  // namespace

TEST_CASE("wire_layout: every element has its place, by a count of all elements") {
  bool seen_whole = false, seen_empty_chunk = false, seen_several_pieces = false;
  for (std::uint64_t seed = 0; seed < 2000; ++seed) {
    const wire_case c = random_case(seed);
    const wire_layout wire = layout_of(c);
    CAPTURE(seed);
    CHECK(fault_of(wire, c) == "");
    std::vector<std::size_t> pieces(static_cast<std::size_t>(c.ranks));
    for (const wire_piece& p : wire.pieces()) {
      if (p.owner == wire_piece::dense)
        seen_whole = true;
      else
        ++pieces[p.owner];
    }
    seen_empty_chunk = seen_empty_chunk || (wire.elements() > 0 && pieces.back() == 0);
    seen_several_pieces = seen_several_pieces || *std::max_element(pieces.begin(), pieces.end()) > 2;
  }
  CHECK(seen_whole);
  CHECK(seen_empty_chunk);
  CHECK(seen_several_pieces);
}

TEST_CASE("wire_layout: the comparison finds a layout other than the declared one") {
  const wire_case c{{{300}, {129, false}, {1000}, {17}}, 3, {scale_granularity::blocks, 64}, 4};
  const auto fault_with = [&](auto change) {
    wire_case other = c;
    change(other);
    return fault_of(layout_of(c), other);
  };
  CHECK(fault_with([](wire_case&) {}) == "");
  CHECK(fault_with([](wire_case& o) { o.tensors[0].size = 301; }) != "");
  CHECK(fault_with([](wire_case& o) { std::swap(o.tensors[0], o.tensors[2]); }) != "");
  CHECK(fault_with([](wire_case& o) { o.tensors[1].compressed = true; }) != "");
  CHECK(fault_with([](wire_case& o) { o.tensors.pop_back(); }) != "");
  CHECK(fault_with([](wire_case& o) { o.tensors.push_back({1}); }) != "");
  CHECK(fault_with([](wire_case& o) { o.ranks = 2; }) != "");
  CHECK(fault_with([](wire_case& o) { o.ranks = 4; }) != "");
  CHECK(fault_with([](wire_case& o) { o.scales.block = 128; }) != "");
  CHECK(fault_with([](wire_case& o) { o.scales = {scale_granularity::fused, 0}; }) != "");
  CHECK(fault_with([](wire_case& o) { o.scales = {scale_granularity::per_tensor, 0}; }) != "");
  CHECK(fault_with([](wire_case& o) { o.bits = 8; }) != "");
}

TEST_CASE("wire_layout: the numbers of an example") {
  // 500 elements for 3 ranks: chunks of 256; the last chunk is empty. Rank 0 has [0, 256) of the first tensor.
  const wire_layout fused(std::vector<wire_tensor>{{300}, {7, false}, {200}}, 3, {scale_granularity::fused, 0}, 1);
  REQUIRE(fused.pieces().size() == 4);
  const auto is = [](const wire_piece& p, std::uint32_t tensor, std::uint64_t first, std::uint64_t count,
                     std::uint32_t owner, std::uint64_t code, std::uint64_t scale) {
    return p.segment == tensor && p.first == first && p.count == count && p.owner == owner && p.code == code &&
           p.scale == scale;
  };
  CHECK(is(fused.pieces()[0], 0, 0, 256, 0, 0, 4));
  CHECK(is(fused.pieces()[1], 0, 256, 44, 1, 0, 4));
  CHECK(is(fused.pieces()[2], 1, 0, 7, wire_piece::dense, 0, 0));
  CHECK(is(fused.pieces()[3], 2, 0, 200, 1, 48, 4));
  CHECK_FALSE(is(fused.pieces()[3], 2, 0, 200, 1, 44, 4));
  CHECK(fused.codes() == 256);
  CHECK(fused.codes_at() == 32);
  CHECK(fused.message_bytes() == 128);  // 32 + 32 are used
  CHECK(fused.all_message_bytes() == 3 * 128);
  CHECK(fused.elements() == 500);
  CHECK(fused.dense_elements() == 7);

  // By tensor: 300 in chunks of 128, and 200 in chunks of 128.
  const wire_layout by_tensor(std::vector<wire_tensor>{{300}, {200}}, 3, {scale_granularity::per_tensor, 0}, 8);
  REQUIRE(by_tensor.pieces().size() == 5);
  CHECK(is(by_tensor.pieces()[2], 0, 256, 44, 2, 0, 4));
  CHECK(is(by_tensor.pieces()[4], 1, 128, 72, 1, 128, 5));
  CHECK(by_tensor.codes_at() == 32);
  CHECK(by_tensor.message_bytes() == 384);  // 32 + 256 are used
}

TEST_CASE("wire_layout: a message of no elements has one scale") {
  for (const auto& tensors :
       {std::vector<wire_tensor>{}, std::vector<wire_tensor>{{0}, {0, false}}, std::vector<wire_tensor>{{12, false}}}) {
    const wire_layout wire(tensors, 4, {scale_granularity::per_tensor, 0}, 1);
    CHECK(wire.codes_at() == 32);
    CHECK(wire.message_bytes() == 128);
    CHECK(wire.all_message_bytes() == 4 * 128);
    CHECK(wire.elements() == 0);
  }
}

TEST_CASE("wire_layout: a layout that is set again equals a new one") {
  wire_layout wire;
  for (std::uint64_t seed = 500; seed < 600; ++seed) {
    const wire_case c = random_case(seed);
    wire.assign(c.tensors, c.ranks, c.scales, c.bits);
    CAPTURE(seed);
    CHECK(fault_of(wire, c) == "");
  }
}

TEST_CASE("wire_layout: a layout without scales has the pieces of the layout whose cuts it follows") {
  const std::vector<wire_tensor> tensors{{300}, {0}, {20'000}, {77, false}, {1}, {129}, {8192}};
  const scale_granularity none{scale_granularity::none, 0};
  for (const int ranks : {1, 2, 3, 7})
    for (const scale_granularity scales :
         {scale_granularity{scale_granularity::fused, 0}, scale_granularity{scale_granularity::per_tensor, 0},
          scale_granularity{scale_granularity::blocks, 64}, none}) {
      const wire_layout other(tensors, ranks, scales, 1);
      const wire_layout dense(tensors, ranks, none, 16, other.chunks());
      REQUIRE(dense.pieces().size() == other.pieces().size());
      for (std::size_t i = 0; i < dense.pieces().size(); ++i) {
        const wire_piece a = dense.pieces()[i], b = other.pieces()[i];
        CHECK((a.segment == b.segment && a.first == b.first && a.count == b.count));
        CHECK((a.owner == b.owner && a.code == b.code && a.scale == 0));
      }
      CHECK(dense.codes() == other.codes());
      CHECK(dense.dense_elements() == 77);
      CHECK(dense.codes_at() == 16);
      CHECK(dense.message_bytes() == (16 + 2 * dense.codes() + 127) / 128 * 128);
    }
  const wire_layout by_tensor(tensors, 3, {scale_granularity::per_tensor, 0}, 1);
  CHECK(wire_layout(tensors, 3, none, 16).pieces().size() !=
        by_tensor.pieces().size());  // it follows nothing by itself
}

TEST_CASE("wire_layout: sizes beyond 32 bits") {
  constexpr std::uint64_t size = (std::uint64_t{1} << 40U) + 5;
  const wire_layout wire(std::vector<wire_tensor>{{size}, {3}}, 7, {scale_granularity::blocks, 16}, 8);
  constexpr std::uint64_t length = (size + 3 + 128 * 7 - 1) / (128 * 7) * 128;
  REQUIRE(wire.pieces().size() == 8);
  std::uint64_t elements = 0;
  for (std::size_t i = 0; i < 7; ++i) {
    const wire_piece& p = wire.pieces()[i];
    CHECK(p.owner == i);
    CHECK(p.first == i * length);
    CHECK(p.count == std::min(length, size - p.first));
    CHECK(p.code == 0);
    elements += p.count;
  }
  CHECK(elements == size);
  CHECK(wire.pieces()[7].owner == 6);
  CHECK(wire.pieces()[7].code % 16 == 0);
  CHECK(wire.codes() == length);
  CHECK(wire.message_bytes() == (length / 16 * 4 + length + 127) / 128 * 128);
  CHECK(wire.message_bytes() != static_cast<std::uint32_t>(wire.message_bytes()));  // does not fit 32 bits
}

TEST_CASE("wire_layout: how quantizers share their scales") {
  const auto is = [](scale_granularity groups, scale_granularity::kind of, std::uint32_t block) {
    return groups.of == of && groups.block == block;
  };
  CHECK(is(slamb::detail::granularity_of(slamb::sign{}), scale_granularity::fused, 0));
  CHECK(is(slamb::detail::granularity_of(slamb::sign{.scales = slamb::scale_sharing::per_tensor}),
           scale_granularity::per_tensor, 0));
  CHECK(is(slamb::detail::granularity_of(slamb::int8{.block = 256}), scale_granularity::blocks, 256));
  CHECK(is(slamb::detail::granularity_of(slamb::natural{}), scale_granularity::none, 0));
  CHECK(is(slamb::detail::granularity_of(slamb::bf16{}), scale_granularity::none, 0));
  CHECK_FALSE(is(slamb::detail::granularity_of(slamb::int8{.block = 256}), scale_granularity::blocks, 128));
}

}  // namespace pass_wire_layout_tests
