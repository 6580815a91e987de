// The plan of a sparse payload: the traffic of a sparsifier, or of a chain, at each step.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>
#include <vector>

#include "slamb/compressor/chain.hpp"
#include "slamb/detail/exchange/sparse.hpp"
#include "slamb/detail/pass/layout.hpp"
#include "slamb/plan/traffic.hpp"

namespace slamb::detail {

/// The payloads of tensors under a compressor that selects.
template <compressor Compressor>
class payload_plan {
 public:
  /// The part of the compressor that selects.
  using sparsifier_type = std::remove_cvref_t<decltype(sparsifier_of(std::declval<Compressor&>()))>;
  static constexpr bool by_value = data_dependent_sparsifier<sparsifier_type>;  ///< a leader broadcasts its choice
  static constexpr bool encodes = capability::chained<Compressor>;              ///< the payload is quantized

  /// @param tensors  `compress` is false for tensors that are exchanged dense at every step
  payload_plan(const Compressor& compressor, std::vector<plan::tensor_shape> tensors, const plan::world& world)
      : compressor_(compressor), sparsifier_(sparsifier_of(compressor_)), tensors_(std::move(tensors)), world_(world) {
    if constexpr (requires { compressor.validate(); }) compressor.validate();
  }

  /// Elements sent at step t = 1, 2, ….
  std::uint64_t selected(std::uint64_t t) const {
    if constexpr (by_value)
      return sum_over([this](const coordinate& c) { return chosen_of(c.tensor_size); });
    else
      return sum_over([s = sparsifier_.at(t)](const coordinate& c) { return selected_of(s, c); });
  }

  /// The most elements sent at any step, at least one.
  std::uint64_t largest() const {
    return 1 + sum_over([this](const coordinate& c) { return largest_payload_of(sparsifier_, c.tensor_size); });
  }

  /// Traffic of step t = 1, 2, …: the payload of at least one element, after a leader's choice if there is one.
  traffic_counts step(std::uint64_t t) const {
    const std::uint64_t sent = std::max<std::uint64_t>(selected(t), 1);
    traffic_counts counts;
    if constexpr (encodes)
      counts = quantized_traffic(wire_of_payload(sent, compressor_.quantizer, world_.ranks), world_);
    else
      counts = sum_of(sent, world_);
    if (by_value && world_.ranks > 1) counts.record(collective::broadcast, choice_bytes(), 1, world_.ranks);
    return counts;
  }

  /// Traffic of steps 1 … steps. Fast if payloads repeat, as with round robin every 1/k steps.
  traffic_counts total(std::uint64_t steps) const {
    return total_of(steps, period(), [this](std::uint64_t t) { return step(t); });
  }

  const std::vector<plan::tensor_shape>& tensors() const noexcept { return tensors_; }

  /// The part of all elements that is sent at step 1.
  double part_selected() const { return part(selected(1)); }
  /// The part of all elements in tensors that are not exchanged dense.
  double part_selectable() const {
    std::uint64_t sum = 0;
    for (const plan::tensor_shape& t : tensors_) sum += t.compress ? t.size : 0;
    return part(sum);
  }

 private:
  double part(std::uint64_t elements) const {
    return static_cast<double>(elements) / static_cast<double>(std::max<std::uint64_t>(plan::elements_of(tensors_), 1));
  }

  // Sums count(element 0 of the tensor) over tensors that are not exchanged dense, and the sizes of the others.
  template <class Count>
  std::uint64_t sum_over(const Count& count) const {
    std::uint64_t sum = 0;
    coordinate c{};
    for (const plan::tensor_shape& t : tensors_) {
      c.tensor_size = t.size;
      sum += t.compress ? count(c) : t.size;
      ++c.tensor;
      c.offset += t.size;
      c.state += padded(t.size);
    }
    return sum;
  }

  // A leader chooses within each tile.
  std::uint64_t chosen_of(std::uint64_t size) const {
    const auto rest = static_cast<std::uint32_t>(size % layout::tile_size);
    return size / layout::tile_size * sparsifier_.chosen_of(layout::tile_size) +
           (rest > 0 ? sparsifier_.chosen_of(rest) : 0);
  }

  // A bit for each element of the state arrays.
  std::uint64_t choice_bytes() const noexcept {
    std::uint64_t elements = 0;
    for (const plan::tensor_shape& t : tensors_) elements += padded(t.size);
    return elements / 8;
  }

  static std::uint64_t padded(std::uint64_t size) noexcept {
    return (size + layout::state_alignment - 1) / layout::state_alignment * layout::state_alignment;
  }

  std::uint64_t period() const {
    if constexpr (by_value)
      return 1;
    else
      return period_of(sparsifier_);
  }

  Compressor compressor_;
  sparsifier_type sparsifier_;
  std::vector<plan::tensor_shape> tensors_;
  plan::world world_;
};

}  // namespace slamb::detail
