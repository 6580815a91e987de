#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>

#include "slamb/core/half.hpp"
#include "slamb/core/random.hpp"
#include "slamb/core/real.hpp"
#include "slamb/optimizer/detail/trial.hpp"

namespace slamb::detail {

SLAMB_DECL synthetic_model::synthetic_model(std::span<const parameter> like, double part, const machine& on) {
  tensors_.assign(like.begin(), like.end());
  std::vector<region<std::byte>> data, gradients;
  for (parameter& p : tensors_) {
    const std::size_t rows = p.options.rows.size();
    const std::size_t kept_rows = static_cast<std::size_t>(scaled_size(rows, part));
    p.size = rows > 0 ? p.size / rows * kept_rows : static_cast<std::size_t>(scaled_size(p.size, part));
    p.options.rows = p.options.rows.first(kept_rows);
    elements_ += p.size;
    p.master = nullptr;
    data.push_back(memory_.plan<std::byte>("scratch", p.size * size_of(p.data.type())));
    gradients.push_back(memory_.plan<std::byte>("scratch", p.size * size_of(p.gradient.type())));
  }
  memory_.allocate(on.memory_source());
  const std::vector<float> values = made_up_values();
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    parameter& p = tensors_[i];
    p.data = {filled(on, memory_.view(data[i]), bytes_of_values(values, p.data.type())), p.data.type()};
    p.gradient = {filled(on, memory_.view(gradients[i]), bytes_of_values(values, p.gradient.type())),
                  p.gradient.type()};
  }
}

SLAMB_DECL std::vector<float> synthetic_model::made_up_values() {
  std::vector<float> values(std::size_t{1} << 16U);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::uint32_t word = philox(0x510A3B, i / 4, 0).at(i);
    const float size = 0.01F + 0.01F * static_cast<float>(word >> 8U) / 16777216.0F;
    values[i] = (word & 1U) != 0 ? size : -size;
  }
  return values;
}

SLAMB_DECL double median_of(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return 0.5 * (values[(values.size() - 1) / 2] + values[values.size() / 2]);
}

SLAMB_DECL typical_time typical_of(const std::vector<double>& seconds) {
  const double median = median_of(seconds);
  std::vector<double> distances = seconds;
  for (double& s : distances) s = std::abs(s - median);
  return {median, median_of(std::move(distances))};
}

SLAMB_DECL std::vector<std::byte> synthetic_model::bytes_of_values(std::span<const float> values, element_type type) {
  std::vector<std::byte> all(values.size() * size_of(type));
  for (std::size_t i = 0; i < values.size(); ++i) {
    const auto bits = static_cast<std::uint16_t>(type == element_type::bfloat16 ? nearest_bfloat16_bits(values[i])
                                                                                : half_bits(values[i]));
    if (type == element_type::float32)
      std::memcpy(all.data() + 4 * i, &values[i], 4);
    else
      std::memcpy(all.data() + 2 * i, &bits, 2);
  }
  return all;
}

SLAMB_DECL std::byte* synthetic_model::filled(const machine& on, std::span<std::byte> tensor,
                                              std::span<const std::byte> values) {
  for (std::size_t first = 0; first < tensor.size(); first += values.size()) {
    const std::size_t count = std::min(values.size(), tensor.size() - first);
    on.upload_bytes(values.first(count), tensor.subspan(first, count));
  }
  return tensor.data();
}

}  // namespace slamb::detail
