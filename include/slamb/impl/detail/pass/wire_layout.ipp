#pragma once

#include <algorithm>

#include "slamb/detail/pass/wire_layout.hpp"

namespace slamb::detail {

SLAMB_DECL void wire_layout::assign(std::span<const wire_tensor> tensors, int ranks, scale_granularity scales, int bits,
                                    chunks_of chunks) {
  ranks_ = static_cast<std::uint64_t>(ranks);
  scales_ = scales;
  chunks_ = chunks;
  elements_ = dense_elements_ = codes_ = 0;
  std::uint64_t scale_count = scales.of == scale_granularity::none ? 0 : 1;
  pieces_.clear();
  pieces_.reserve(chunks == chunks_of::each_tensor ? tensors.size() : tensors.size() + ranks_);
  ends_.assign(ranks_, {});
  for (const wire_tensor& t : tensors) (t.compressed ? elements_ : dense_elements_) += t.size;
  std::uint64_t before = 0, dense = 0;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const auto tensor = static_cast<std::uint32_t>(i);
    if (!tensors[i].compressed) {
      if (tensors[i].size > 0) pieces_.push_back({{tensor, 0, tensors[i].size}, wire_piece::dense, dense, 0});
      dense += tensors[i].size;
    } else {
      const bool by_tensor = chunks == chunks_of::each_tensor;
      cut(tensor, tensors[i].size, by_tensor ? 0 : before, chunk_of(by_tensor ? tensors[i].size : elements_));
      before += tensors[i].size;
    }
  }
  for (const end& e : ends_) {
    codes_ = std::max(codes_, e.codes);
    scale_count = std::max(scale_count, e.scales);
  }
  codes_at_ = padded(header_bytes + scale_count * scales.bytes, scale_unit);
  message_bytes_ = padded(codes_at_ + codes_ * static_cast<std::uint64_t>(bits) / 8, message_unit);
}

SLAMB_DECL std::uint64_t wire_layout::chunk_of(std::uint64_t elements) const noexcept {
  return padded(elements, chunk_unit * ranks_) / ranks_;
}

SLAMB_DECL void wire_layout::cut(std::uint32_t tensor, std::uint64_t size, std::uint64_t before, std::uint64_t chunk) {
  for (std::uint64_t first = 0; first < size;) {
    const std::uint64_t owner = (before + first) / chunk;
    const std::uint64_t count = std::min(size - first, (owner + 1) * chunk - (before + first));
    end& message = ends_[owner];
    pieces_.push_back({{tensor, first, count}, static_cast<std::uint32_t>(owner), message.codes, 0});
    if (scales_.of != scale_granularity::none) pieces_.back().scale = first_scale() + message.scales;
    if (scales_.of == scale_granularity::per_tensor) ++message.scales;
    if (scales_.of == scale_granularity::blocks) message.scales += (count + scales_.block - 1) / scales_.block;
    message.codes += padded(count, code_unit);
    first += count;
  }
}

}  // namespace slamb::detail
