// The state of whole tensors, made of the states of all shards: docs/how-to/shards.md, "Checkpoints".
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "slamb/core/config.hpp"
#include "slamb/core/detail/function_ref.hpp"
#include "slamb/detail/pass/arena.hpp"
#include "slamb/detail/state/saved_state.hpp"

namespace slamb::detail {

class optimizer_core;

/// Gathers the state of whole tensors, and finds this rank's shards in one.
class state_of_shards final : public whole_state {
 public:
  explicit state_of_shards(optimizer_core& core) noexcept : core_(core) {}

  /// Allocates memory for `gather`. Collective over the shard group.
  void allocate();

  std::uint64_t bytes_of(const of_elements& part) const override;
  void visit_own(const of_elements& part,
                 function_ref<void(std::uint64_t, std::uint64_t, std::uint64_t)> visit) const override;
  void gather(const of_elements& part, std::span<const std::byte> own,
              function_ref<void(std::span<const std::byte>)> take) const override;
  bool is_first() const override;

 private:
  void gather_tensor(std::size_t tensor, std::size_t bytes, std::span<const std::byte> own,
                     function_ref<void(std::span<const std::byte>)> take) const;

  optimizer_core& core_;
  arena memory_;
  region<std::byte> mine_;
  region<std::byte> all_;  // [shards] of `mine_`
};

}  // namespace slamb::detail
