// Saves an optimizer's state as bytes, and restores it. A state is checked completely before anything is restored.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "slamb/core/config.hpp"
#include "slamb/core/detail/backend_memory.hpp"
#include "slamb/core/detail/function_ref.hpp"
#include "slamb/core/detail/stream_waiter.hpp"
#include "slamb/detail/state/state_bytes.hpp"
#include "slamb/detail/state/state_part.hpp"

namespace slamb::detail {

/// The rank that a state belongs to, and by which its memory is waited for.
struct state_owner {
  int rank = 0;
  int world = 1;
  const stream_waiter& waiter;
  int shard = 0;
  int shards = 1;
  bool keeps_part = false;  ///< the state is that of a part of the model, which depends on the rank

  /// Names the owner in the header of a state.
  void sign(state_header& header) const noexcept {
    header.rank = static_cast<std::uint32_t>(rank);
    header.world = static_cast<std::uint32_t>(world);
    header.shard = static_cast<std::uint32_t>(shard);
    header.shards = static_cast<std::uint32_t>(shards > 1 ? shards : 0);
  }
};

/// The state of whole tensors, of which a rank has the part of its shards.
class whole_state {
 public:
  whole_state() = default;
  whole_state(const whole_state&) = delete;
  whole_state& operator=(const whole_state&) = delete;
  virtual ~whole_state() = default;

  /// The bytes of a part of elements.
  virtual std::uint64_t bytes_of(const of_elements& part) const = 0;
  /// Calls visit(first byte in the part of whole tensors, first byte in this rank's part, bytes) for each of this rank's shards.
  virtual void visit_own(const of_elements& part,
                         function_ref<void(std::uint64_t, std::uint64_t, std::uint64_t)> visit) const = 0;
  /// Calls take(bytes in host memory) with all bytes of a part, in order. Collective.
  /// @param own  this rank's part, in the backend's memory
  virtual void gather(const of_elements& part, std::span<const std::byte> own,
                      function_ref<void(std::span<const std::byte>)> take) const = 0;
  /// True on the rank that saves the state.
  virtual bool is_first() const = 0;
};

/// Saves a state, piece by piece.
///
/// @param whole  not null: the state is one of whole tensors. All ranks of the shard group call it
///
/// @param visit_parts  calls its argument for each part, always in the same order. Bytes are in the backend's memory or in
///                     host memory
/// @throws the exceptions of `to` and of `memory`
void save_parts(const backend_memory& memory, const state_kind& kind, const state_owner& owner,
                const std::function<void(const state_visitor&)>& visit_parts, const byte_sink& to,
                const save_options& options = {}, const state_summary& summary = {},
                const whole_state* whole = nullptr);

/// Saves a state to host memory.
std::vector<std::byte> save_parts(const backend_memory& memory, const state_kind& kind, const state_owner& owner,
                                  const std::function<void(const state_visitor&)>& visit_parts);

/// Restores a state of `save_parts`. Changes nothing unless all of it fits.
///
/// @param is_restoring  becomes true before the first change, and false at the end
/// @param whole  not null: the state is one of whole tensors
/// @param on_restored         go_on() computes values that follow from the restored state; called before `is_restoring` becomes false
/// @throws std::invalid_argument that names the mismatch; error, with `is_restoring` true, if the source's bytes have changed
///         since they were checked; the exceptions of the source, of `memory` and of `on_restored`
void restore_parts(
    const backend_memory& memory, const state_kind& kind, const state_owner& owner, const byte_source& from,
    const restore_options& options, const std::function<void(const state_visitor&)>& visit_parts, bool& is_restoring,
    const std::function<void()>& on_restored = [] {}, const whole_state* whole = nullptr);

}  // namespace slamb::detail

#if !defined(SLAMB_SEPARATE_COMPILATION)
#include "slamb/impl/detail/state/saved_state.ipp"
#endif
