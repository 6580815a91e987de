// What a plan is made of: the shapes of tensors, and the ranks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "slamb/core/error.hpp"
#include "slamb/core/storage_bytes.hpp"

namespace slamb::plan {

/// The shape of a whole tensor, as in `parameter`.
struct tensor_shape {
  std::uint64_t size = 0;  ///< elements
  int dimensions = 2;
  bool compress = true;  ///< tensor_options::compress
};

/// d, the elements of all tensors.
constexpr std::uint64_t elements_of(std::span<const tensor_shape> tensors) noexcept {
  std::uint64_t sum = 0;
  for (const tensor_shape& t : tensors) sum += t.size;
  return sum;
}

/// The ranks of a plan.
struct world {
  int ranks = 1;                              ///< N ≥ 1
  std::uint64_t value_bytes = sizeof(float);  ///< bytes of an element that is summed; 2 if a Communicator sums in fp16
  storage_bytes stored{};                     ///< how arrays are stored, for memory traffic: `stored_by`
  /// S ≥ 1: a model is cut into so many shards, and this rank has ⌈n/S⌉ of the n elements of each tensor. `ranks` are those that hold
  /// the same shard.
  int shards = 1;

  /// The elements of the whole tensor that this rank has.
  std::uint64_t own_size(const tensor_shape& whole) const noexcept {
    const auto each = static_cast<std::uint64_t>(shards);
    return whole.size / each + (whole.size % each != 0 ? 1 : 0);
  }

  /// @throws std::invalid_argument
  void validate() const {
    detail::require_in(ranks >= 1, "plan::world's ranks", ranks, ">= 1");
    detail::require_in(shards >= 1, "plan::world's shards", shards, ">= 1");
    detail::require_in(value_bytes >= 1 && value_bytes <= 8, "plan::world's value_bytes",
                       static_cast<double>(value_bytes), "in [1, 8]");
    const auto require_bytes = [](const char* name, double bytes) {
      detail::require_in(bytes >= 0.0 && bytes <= 8.0, name, bytes, "in [0, 8]");
    };
    require_bytes("plan::world's stored.parameter", stored.parameter);
    require_bytes("plan::world's stored.rounded", stored.rounded);
    require_bytes("plan::world's stored.data", stored.data);
    require_bytes("plan::world's stored.gradient", stored.gradient);
    for (const array_bytes& array : stored.arrays)
      require_bytes(("plan::world's stored bytes of the " + std::string(array.name)).c_str(), array.bytes);
  }
};

}  // namespace slamb::plan
