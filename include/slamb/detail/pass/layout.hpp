// Divides tensors into segments and tiles, so that one pass covers all tensors.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "slamb/core/concepts.hpp"
#include "slamb/core/error.hpp"
#include "slamb/core/parameter.hpp"

namespace slamb::detail {

/// One tensor, as passes see it. Trivially copyable; on a device it is in device memory.
struct segment {
  float* parameter = nullptr;       ///< [size]
  const float* gradient = nullptr;  ///< [size]
  std::uint64_t size = 0;
  std::uint64_t first = 0;               ///< of its elements, with all tensors laid end to end
  std::span<const std::uint8_t> rows{};  ///< tensor_options::rows, in host memory; read by the constructor alone
  std::uint64_t state = 0;  ///< of its elements in the state arrays, where tensors start at multiples of 16
  float weight_decay = 0.0F;
  float learning_rate_factor = 1.0F;
  std::uint32_t group = 0;
  bool adapt = true;
  bool dense = false;  ///< always exchanged dense
  bool one_dimensional = false;
};

/// A piece of one tensor: the unit of work, and of the fixed order of sums.
struct tile {
  std::uint64_t first = 0;  ///< element of the tensor
  std::uint32_t segment = 0;
  std::uint32_t count = 0;
};

/// A part of one tensor that tiles must not cross.
struct tile_cut {
  std::uint32_t segment = 0;
  std::uint64_t first = 0;  ///< element of the tensor
  std::uint64_t count = 0;
};

/// A range of tiles.
struct tile_range {
  std::size_t first = 0;
  std::size_t last = 0;
};

/// The tables of segments and tiles.
class layout {
 public:
  static constexpr std::uint32_t tile_size = 8192;      ///< elements
  static constexpr std::uint64_t state_alignment = 16;  ///< elements: 64 bytes

  layout() = default;

  /// @throws std::invalid_argument for null spans, sizes that overflow, options out of range, overlapping spans.
  layout(std::span<const basic_parameter<float>> parameters, double weight_decay)
      : layout(parameters, weight_decay, [](const layout&) {}) {}

  /// @param before_tiles  called with this object before tiles are made, which take 16 bytes for 8192 elements; may throw
  template <class BeforeTiles>
  layout(std::span<const basic_parameter<float>> parameters, double weight_decay, const BeforeTiles& before_tiles) {
    segments_.reserve(parameters.size());
    for (std::size_t i = 0; i < parameters.size(); ++i) append(parameters[i], i, weight_decay);
    require_disjoint(parameters);
    for (std::size_t i = 0; i < segments_.size(); ++i)
      if (segments_[i].size > 0) by_address_.push_back(i);
    std::ranges::sort(by_address_, std::less<const float*>(), [this](std::size_t i) { return segments_[i].parameter; });
    before_tiles(std::as_const(*this));
    std::vector<tile_cut> dense;
    for (std::size_t i = 0; i < segments_.size(); ++i)
      dense.push_back({static_cast<std::uint32_t>(i), 0, segments_[i].size});
    make_tiles(std::span<const tile_cut>(dense));
  }

  /// Makes the tiles again, from these parts of tensors, which cover all elements in order.
  template <class Cut>
  void make_tiles(std::span<const Cut> cuts) {
    tiles_.clear();
    first_tile_.assign(segments_.size() + 1, 0);
    for (const tile_cut& c : cuts) {
      for (std::uint64_t done = 0; done < c.count; done += tile_size) {
        const std::uint64_t count = std::min<std::uint64_t>(tile_size, c.count - done);
        tiles_.push_back({c.first + done, c.segment, static_cast<std::uint32_t>(count)});
        ++first_tile_[c.segment + 1];
      }
    }
    for (std::size_t i = 0; i < segments_.size(); ++i) first_tile_[i + 1] += first_tile_[i];
  }

  std::span<const segment> segments() const noexcept { return segments_; }
  std::span<segment> segments() noexcept { return segments_; }
  std::span<const tile> tiles() const noexcept { return tiles_; }
  std::uint64_t elements() const noexcept { return elements_; }              ///< d, of all tensors
  std::uint64_t state_elements() const noexcept { return state_elements_; }  ///< with padding
  std::uint32_t groups() const noexcept { return groups_; }

  /// @throws std::invalid_argument if there is no such tensor, or `gradient` is null or overlaps the data of a tensor.
  void require_gradient(std::size_t tensor, const float* gradient) const {
    if (tensor >= segments_.size())
      throw std::invalid_argument("slamb: set_gradient() was given tensor " + std::to_string(tensor) +
                                  ", but there are " + std::to_string(segments_.size()));
    const std::uint64_t size = segments_[tensor].size;
    if (size == 0) return;
    require(gradient != nullptr, tensor, "has a null gradient; it must point to size elements");
    const std::less<const float*> before;
    const auto reaches_it = [&](std::size_t i) { return before(gradient, segments_[i].parameter + segments_[i].size); };
    const auto next = std::ranges::partition_point(by_address_, std::not_fn(reaches_it));
    if (next != by_address_.end() && before(segments_[*next].parameter, gradient + size))
      throw std::invalid_argument("slamb: the gradient of " + name(tensor) + " overlaps the data of " + name(*next) +
                                  "; parameters must not share memory");
  }

  /// @throws std::invalid_argument if `gradients` and tensors differ in number, or as `require_gradient`.
  void require_gradients(std::span<const float* const> gradients) const {
    if (gradients.size() != segments_.size())
      throw std::invalid_argument("slamb: set_gradients() was given " + std::to_string(gradients.size()) +
                                  " gradients, but there are " + std::to_string(segments_.size()) + " tensors");
    for (std::size_t i = 0; i < gradients.size(); ++i) require_gradient(i, gradients[i]);
  }

  /// The number of each tensor's first tile, then the number of all tiles.
  std::span<const std::size_t> first_tiles() const noexcept { return first_tile_; }

  /// The tiles of a tensor.
  tile_range tiles_of(std::size_t segment) const noexcept { return {first_tile_[segment], first_tile_[segment + 1]}; }

  /// Place of a tensor's first element, with all tensors laid end to end; for the number of tensors, the end of the last.
  std::uint64_t first_element(std::size_t tensor) const noexcept {
    return tensor == segments_.size() ? elements_ : segments_[tensor].first;
  }
  /// Place of the tile's first element.
  std::uint64_t first_element(const tile& t) const noexcept { return segments_[t.segment].first + t.first; }

 private:
  static std::string name(std::size_t tensor) { return "tensor " + std::to_string(tensor); }

  static void require(bool holds, std::size_t tensor, const std::string& what) {
    if (!holds) throw std::invalid_argument("slamb: " + name(tensor) + " " + what);
  }

  void append(const basic_parameter<float>& p, std::size_t i, double weight_decay) {
    constexpr auto most = std::numeric_limits<std::ptrdiff_t>::max() / sizeof(double);
    require(i < std::numeric_limits<std::uint32_t>::max(), i, "is one too many: at most 2^32 − 1 tensors");
    require(p.size == 0 || p.data != nullptr, i, "has null data; it must point to size elements");
    require(p.size == 0 || p.gradient != nullptr, i, "has a null gradient; it must point to size elements");
    require(p.size <= most - elements_, i,
            "has size " + std::to_string(p.size) + ", and the sizes so far add up to " + std::to_string(elements_) +
                "; their sum must be at most " + std::to_string(most));
    require(p.dimensions >= 0, i, "has dimensions = " + std::to_string(p.dimensions) + ", but it must be >= 0");
    require(p.options.group >= 0 && p.options.group < 65536, i,
            "has group = " + std::to_string(p.options.group) + ", but it must be in [0, 65535]");
    require(
        p.options.rows.empty() || p.size % p.options.rows.size() == 0, i,
        "has " + std::to_string(p.options.rows.size()) + " rows, which must divide its size " + std::to_string(p.size));
    const double decay = p.options.weight_decay.value_or(weight_decay);
    require_non_negative(name(i) + "'s weight_decay", decay);
    require_non_negative(name(i) + "'s learning_rate_factor", p.options.learning_rate_factor);
    segments_.push_back({.parameter = p.data,
                         .gradient = p.gradient,
                         .size = p.size,
                         .first = elements_,
                         .rows = p.options.rows,
                         .state = state_elements_,
                         .weight_decay = static_cast<float>(decay),
                         .learning_rate_factor = static_cast<float>(p.options.learning_rate_factor),
                         .group = static_cast<std::uint32_t>(p.options.group),
                         .adapt = p.options.adapt,
                         .dense = !p.options.compress,
                         .one_dimensional = p.dimensions <= 1});
    elements_ += p.size;
    state_elements_ += (p.size + state_alignment - 1) / state_alignment * state_alignment;
    groups_ = std::max(groups_, static_cast<std::uint32_t>(p.options.group) + 1);
  }

  // Parameters are written, so they may share memory with no other span; gradients may share among themselves.
  static void require_disjoint(std::span<const basic_parameter<float>> parameters) {
    struct interval {
      std::uintptr_t first, last;
      std::size_t tensor;
      bool written;
    };
    std::vector<interval> spans;
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const auto& p = parameters[i];
      if (p.size == 0) continue;
      const auto bytes = static_cast<std::uintptr_t>(p.size * sizeof(float));
      const auto data = reinterpret_cast<std::uintptr_t>(p.data);
      const auto gradient = reinterpret_cast<std::uintptr_t>(p.gradient);
      require(data <= std::numeric_limits<std::uintptr_t>::max() - bytes, i, "reaches past the end of memory");
      require(gradient <= std::numeric_limits<std::uintptr_t>::max() - bytes, i,
              "has a gradient that reaches past the end of memory");
      spans.push_back({data, data + bytes, i, true});
      spans.push_back({gradient, gradient + bytes, i, false});
    }
    std::sort(spans.begin(), spans.end(), [](const interval& a, const interval& b) { return a.first < b.first; });
    interval any{0, 0, 0, false};     // the span that reaches furthest so far
    interval written{0, 0, 0, true};  // likewise among written spans
    for (const interval& s : spans) {
      const interval& before = s.written ? any : written;
      if (s.first < before.last)
        throw std::invalid_argument("slamb: the " + std::string(s.written ? "data" : "gradient") + " of " +
                                    name(s.tensor) + " overlaps the " + (before.written ? "data" : "gradient") +
                                    " of " + name(before.tensor) + "; parameters must not share memory");
      if (s.last > any.last) any = s;
      if (s.written && s.last > written.last) written = s;
    }
  }

  std::vector<segment> segments_;
  std::vector<std::size_t> by_address_;  // tensors that have elements, in the order of their parameters in memory
  std::vector<tile> tiles_;
  std::vector<std::size_t> first_tile_{0};
  std::uint64_t elements_ = 0;
  std::uint64_t state_elements_ = 0;
  std::uint32_t groups_ = 1;
};

/// Tensors first … last − 1, and their tiles.
struct tensor_batch {
  std::size_t first, last;
  tile_range tiles;
};

/// Divides all tensors into batches that fit the cache, in order. A larger tensor is a batch of its own.
///
/// @param bytes  bytes of an element that the passes touch
inline std::vector<tensor_batch> batches_of(const layout& tensors, std::size_t cache_bytes, std::size_t bytes) {
  std::vector<tensor_batch> all;
  const std::size_t count = tensors.segments().size();
  for (std::size_t first = 0; first < count;) {
    std::size_t last = first, size = 0;
    while (last < count && (last == first || size + tensors.segments()[last].size * bytes <= cache_bytes))
      size += tensors.segments()[last++].size * bytes;
    all.push_back({first, last, {tensors.tiles_of(first).first, tensors.tiles_of(last - 1).last}});
    first = last;
  }
  return all;
}

/// All tensors in one batch, for steps with one pass.
inline std::vector<tensor_batch> one_batch_of(const layout& tensors) {
  return {{0, tensors.segments().size(), {0, tensors.tiles().size()}}};
}

/// True if a tensor of `size` elements is exchanged dense at every step.
///
/// @param compress  tensor_options::compress
/// @param dense_below  tensors of fewer elements are exchanged dense
constexpr bool is_sent_dense(std::uint64_t size, bool one_dimensional, bool compress,
                             std::uint64_t dense_below) noexcept {
  return !compress || one_dimensional || size < dense_below;
}

/// The most elements that `c` selects at any step from a tensor of `size`.
template <compressor C>
constexpr std::uint64_t largest_payload_of(const C& c, std::uint64_t size) noexcept {
  if constexpr (requires { c.largest_payload(size); })
    return c.largest_payload(size);
  else
    return size;
}

/// Divides tiles into consecutive pieces of at most `room` elements, but at least one tile.
///
/// @param count_of  count_of(i): elements of tile i = 0 … tiles − 1
/// @param visit  visit(tile_range, elements) for each piece, in order
template <class CountOf, class Visit>
void for_each_piece(std::size_t tiles, std::uint64_t room, CountOf count_of, Visit visit) {
  for (tile_range piece{0, 0}; piece.first < tiles; piece.first = piece.last) {
    std::uint64_t elements = 0;
    for (piece.last = piece.first; piece.last < tiles; ++piece.last) {
      const std::uint64_t count = count_of(piece.last);
      if (piece.last > piece.first && elements + count > room) break;
      elements += count;
    }
    visit(piece, elements);
  }
}

}  // namespace slamb::detail
