// The tables of one rank: tiles, the layout of messages, and the places of codes and scales in them. They follow from the settings and
// the rank alone, and are made once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <slamb/compressed_lamb.hpp>

#include "settings.hpp"

namespace slamb_jax {

namespace core = slamb::detail;

/// Sizes of the arrays that pass between calls. Python allocates them.
struct array_sizes {
  std::int64_t state = 0;  ///< floats of m, of v and of the worker error: tensors begin at multiples of 16
  std::int64_t mean = 0;   ///< floats of the mean gradient: the elements of all tensors, or none if it is not received
  std::int64_t message = 0;  ///< bytes of a message; all have the same size
  std::int64_t codes = 0;    ///< floats of the server error: the codes of a message, with padding
  std::int64_t dense = 0;    ///< floats of tensors that are always exchanged as floats
  std::int64_t fresh = 0;    ///< floats of the fresh variance of 1-bit LAMB
  std::int64_t ratios = 0;   ///< floats of the trust ratios and signal scales of 1-bit LAMB
};

/// The tensors of the settings, at addresses that are never read: calls point them at the arrays of a step.
inline core::layout layout_of(const settings& s) {
  std::uintptr_t address = 1U << 20U;
  const auto next = [&address](std::uint64_t size) {
    auto* const at = reinterpret_cast<float*>(address);
    address += (size + 1) * sizeof(float);
    return at;
  };
  std::vector<slamb::parameter> all;
  for (const tensor_settings& t : s.tensors) {
    slamb::parameter p{.data = next(t.size), .gradient = next(t.size), .size = t.size};
    p.options = {.weight_decay = t.weight_decay, .adapt = t.adapt, .compress = t.compress};
    all.push_back(p);
  }
  return {all, 0.0};
}

/// The layout of messages for a quantizer.
template <class Quantizer>
core::wire_layout wire_of(const core::layout& tensors, const Quantizer& quantizer, int ranks) {
  std::vector<core::wire_tensor> all;
  for (const core::segment& s : tensors.segments()) all.push_back({s.size, !s.dense});
  return {all, ranks, core::granularity_of(quantizer), Quantizer::bits_per_element,
          core::chunks_with(core::granularity_of(quantizer))};
}

/// The tables of one rank.
class rank_tables {
 public:
  /// Of a rank that exchanges nothing by itself.
  explicit rank_tables(const settings& s) : tensors_(layout_of(s)) { make_tiles(); }

  template <class Quantizer>
  rank_tables(const settings& s, const Quantizer& quantizer, int rank)
      : tensors_(layout_of(s)), wire_(wire_of(tensors_, quantizer, s.ranks)), rank_(rank) {
    tensors_.make_tiles(wire_.pieces());
    make_tiles();
    placed_ = core::two_phase_tables::places_in(wire_);
    for (std::size_t i = 0; i < placed_.size(); ++i)
      if (placed_[i].owner == static_cast<std::uint32_t>(rank)) own_.push_back(i);
    sent_scales_.assign_sent(wire_);
    mean_scales_.assign_averaged(wire_, placed_, own_);
  }

  const core::layout& tensors() const noexcept { return tensors_; }
  const core::wire_layout& wire() const noexcept { return wire_; }
  int ranks() const noexcept { return static_cast<int>(wire_.ranks()); }
  core::tile_range all_tiles() const noexcept { return {0, tiles_.size()}; }
  std::span<const std::size_t> own_tiles() const noexcept { return own_; }
  const std::uint64_t* counts() const noexcept { return counts_.data(); }
  core::scale_table sent_scales() const noexcept { return table_of(sent_scales_); }
  core::scale_table mean_scales() const noexcept { return table_of(mean_scales_); }

  /// Points the tensors at the arrays of a step: [tensors] each; null where a call does not read them.
  void point_at(std::span<float* const> parameters, std::span<const float* const> gradients) {
    const std::span<core::segment> segments = tensors_.segments();
    for (std::size_t i = 0; i < segments.size(); ++i) {
      segments[i].data = parameters.empty() ? nullptr : parameters[i];
      segments[i].gradient = gradients.empty() ? nullptr : gradients[i];
    }
  }

  /// The model, without buffers.
  core::model_view model() const noexcept {
    core::model_view view;
    view.segments = tensors_.segments().data();
    view.tiles = tiles_.data();
    view.first_tile = tensors_.first_tiles().data();
    return view;
  }

  /// The messages of step t = taken + 1, without buffers.
  core::wire_view messages(const std::uint64_t* taken) const noexcept {
    return {.tiles = placed_.data(),
            .codes = wire_.codes(),
            .message_bytes = wire_.message_bytes(),
            .codes_at = wire_.codes_at(),
            .random_stream = static_cast<std::uint64_t>(rank_),
            .steps = taken,
            .ranks = static_cast<std::uint32_t>(wire_.ranks()),
            .rank = static_cast<std::uint32_t>(rank_),
            .follows_gradients = true,
            .mean_message_bytes = wire_.message_bytes(),
            .mean_codes_at = wire_.codes_at(),
            .dense_elements = wire_.dense_elements()};
  }

 private:
  static core::scale_table table_of(const core::host_scale_table& t) noexcept {
    return {t.groups.data(), t.tiles.data(), t.places.data(), t.groups.size()};
  }

  void make_tiles() {
    tiles_ = tensors_.tile_table();
    counts_.clear();
    for (const core::tile& t : tiles_) counts_.push_back(t.count);
  }

  core::layout tensors_;
  core::wire_layout wire_;
  int rank_ = 0;
  std::vector<core::tile> tiles_;
  std::vector<std::uint64_t> counts_;  // [tiles] elements, all of which are active
  std::vector<core::wire_tile> placed_;
  std::vector<std::size_t> own_;
  core::host_scale_table sent_scales_, mean_scales_;
};

}  // namespace slamb_jax
