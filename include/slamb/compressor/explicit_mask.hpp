// A sparsifier with a mask from the caller, for masks that are computed elsewhere and for recorded runs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>

#include "slamb/core/concepts.hpp"

namespace slamb {

/// Sends the elements at which the mask that was set last is not 0.
class explicit_mask {
 public:
  static constexpr bool payload_is_constant = false;

  struct selection {
    using age_type = std::uint16_t;  // masks may leave an element out for any number of steps

    const std::uint8_t* mask = nullptr;

    SLAMB_HOST_DEVICE bool selects(coordinate c) const { return mask[c.offset + c.index] != 0; }
  };

  /// Sets the mask of the next step. It must be equal on all ranks.
  ///
  /// @param mask  [elements of all tensors, laid end to end], in the backend's memory space; not copied, so it must
  ///              stay alive and unchanged until the step is done
  void set(std::span<const std::uint8_t> mask) noexcept {
    mask_ = mask;
    is_set_ = true;
  }

  /// @throws std::invalid_argument if no mask has been set, or if its size is not `elements`
  void require_ready(std::uint64_t elements) const {
    if (!is_set_)
      throw std::invalid_argument("slamb: explicit_mask has no mask; call compressor().set(mask) before step()");
    if (mask_.size() != elements)
      throw std::invalid_argument("slamb: explicit_mask was given a mask of " + std::to_string(mask_.size()) +
                                  " bytes, but it must have one for each of the " + std::to_string(elements) +
                                  " elements");
  }

  selection at(std::uint64_t /*step*/) const noexcept { return {mask_.data()}; }

 private:
  std::span<const std::uint8_t> mask_;
  bool is_set_ = false;
};

static_assert(sparsifier<explicit_mask>);

}  // namespace slamb
