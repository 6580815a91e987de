// The null Compressor: every element is sent as a float.
#pragma once

#include <cstdint>

#include "slamb/core/concepts.hpp"

namespace slamb {

/// Sends every element at every step. As a sparsifier it selects all.
struct no_compressor {
  static constexpr bool selects_all = true;
  static constexpr bool payload_is_constant = true;

  struct selection {
    SLAMB_HOST_DEVICE bool selects(coordinate /*c*/) const { return true; }
    SLAMB_HOST_DEVICE std::uint32_t age(coordinate /*c*/) const { return 0; }
    SLAMB_HOST_DEVICE std::uint64_t selected_before(coordinate c) const { return c.index; }

    template <class Visit>
    void runs(coordinate c, std::uint64_t count, Visit&& visit) const {
      visit(c.index, count, 0U);
    }
  };

  static selection at(std::uint64_t /*step*/) noexcept { return {}; }
};

static_assert(sparsifier<no_compressor>);
static_assert(capability::has_runs<no_compressor::selection>);

}  // namespace slamb
