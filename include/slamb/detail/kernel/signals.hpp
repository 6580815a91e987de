// The signals of a quantized exchange in a tile: of this rank, the mean of all ranks, and both after the exchange.
#pragma once

#include <cstddef>
#include <cstdint>

#include "slamb/core/config.hpp"
#include "slamb/core/real.hpp"
#include "slamb/detail/kernel/tile_arrays.hpp"
#include "slamb/detail/kernel/tile_codes.hpp"
#include "slamb/detail/pass/layout.hpp"
#include "slamb/detail/pass/pass.hpp"
#include "slamb/detail/pass/quantized_pass.hpp"

namespace slamb::detail {

/// This rank's signal as it is sent: what the pass forms plus the worker error.
template <class Pass, class Arrays, class Constants, class Storage>
struct worker_source {
  const Pass& pass;
  Constants constants;
  Arrays arrays;
  error_array<Storage> error;
  tile_active active;

  template <class At, class Checks>
  SLAMB_ELEMENT typename At::real operator()(At at, Checks& checks) const {
    element_of<Pass, typename At::real> e;
    hide(e);
    arrays.load(typename Pass::signal_reads(), e, at);
    typename At::real x = signal_of(pass, e, constants, checks);
    if constexpr (error_array<Storage>::exists) x = x + error.load(at);
    checks.check_finite(error.bound(x));
    return active.keep_or_announce(x, at);
  }
  SLAMB_ELEMENT static void fill_up(std::uint32_t /*i*/) {}
};

/// The mean of the ranks' signals in a tile of this rank's chunk, plus the server error. Stores it in `wire.mean`.
template <class Quantizer, class Storage>
struct server_source {
  const Quantizer& quantizer;
  const wire_view& wire;
  wire_tile tile;
  error_array<Storage> error;
  tile_active active;

  SLAMB_HOST_DEVICE float* mean() const { return wire.mean + tile.code; }

  template <class At, class Checks>
  SLAMB_ELEMENT typename At::real operator()(At at, Checks& /*checks*/) const {
    using Real = typename At::real;
    const Real per_rank = Real(1.0F) / Real(static_cast<float>(wire.ranks));
    Real x(0.0F);
    for (std::uint32_t rank = 0; rank < wire.ranks; ++rank) x = x + per_rank * codes_of(rank).decode(at);
    if constexpr (error_array<Storage>::exists) x = x + error.load(at);
    x = active.keep(x, at);
    if constexpr (can_announce<Quantizer>)
      if (const std::uint32_t which = active.announcing(at); which != 0)
        x = select(mask_of(which, at), announced_by_any(at), x);
    store_array(x, mean(), at);
    return x;
  }
  /// Sets the mean of an element after the last one.
  SLAMB_ELEMENT void fill_up(std::uint32_t i) const { mean()[i] = 0.0F; }

 private:
  SLAMB_ELEMENT tile_codes<Quantizer, const std::byte> codes_of(std::uint32_t rank) const {
    return {quantizer, wire.received + rank * wire.message_bytes, wire, tile};
  }
  template <class At>
  SLAMB_ELEMENT typename At::real announced_by_any(At at) const {
    using Real = typename At::real;
    using ::slamb::minimum;
    Real least(0.0F);
    for (std::uint32_t rank = 0; rank < wire.ranks; ++rank) least = minimum(least, codes_of(rank).decode(at, 1.0F));
    return select(least < Real(0.0F), Real(announcement), Real(0.0F));
  }
};

/// A quantized tile after the exchange: the codes of the mean over ranks, and of this rank's own signal.
template <class Quantizers>
struct decoded_tile {
  static constexpr bool is_lossy = true;

  tile_active active;
  tile_codes<signal_quantizer_t<Quantizers>, const std::byte> sent;
  tile_codes<mean_quantizer_t<Quantizers>, const std::byte> result;

  SLAMB_HOST_DEVICE decoded_tile(const Quantizers& q, const wire_view& wire, std::size_t number)
      : active(wire, wire.tiles[number]),
        sent(worker_quantizer(q), wire.sent + wire.tiles[number].owner * wire.message_bytes, wire, wire.tiles[number]),
        result(server_quantizer(q), wire.received + wire.tiles[number].owner * wire.bytes_of_mean_message(),
               wire.mean_codes_from(), wire.mean_tile(number)) {}

  template <class At>
  SLAMB_ELEMENT typename At::real mean(At at) const {
    using Real = typename At::real;
    const Real decoded = active.keep(result.decode(at), at);
    if constexpr (can_announce<mean_quantizer_t<Quantizers>>)
      if (const std::uint32_t which = active.announcing(at); which != 0) {
        const Real announced = select(result.decode(at, 1.0F) < Real(0.0F), Real(announced_value), Real(0.0F));
        return select(mask_of(which, at), announced, decoded);
      }
    return decoded;
  }
  /// The compression error of the signal x: x − its decoded codes; 0 for inactive elements.
  template <class At>
  SLAMB_ELEMENT typename At::real compression_error(const typename At::real& x, At at) const {
    return active.keep(x - sent.decode(at), at);
  }
  /// As `compression_error`, and all of x if the element only announces it.
  template <class At>
  SLAMB_ELEMENT typename At::real compression_error_or_announcement(const typename At::real& x, At at) const {
    const typename At::real lost = compression_error(x, at);
    const std::uint32_t which = active.announcing(at);
    return which == 0 ? lost : select(mask_of(which, at), x, lost);
  }
};

/// A tile that was exchanged dense, after the exchange: the mean from the sum of the ranks' signals. There is no compression error.
struct unmasked_tile {
  static constexpr bool is_lossy = false;

  const float* sum;
  float per_rank;

  template <class At>
  SLAMB_ELEMENT typename At::real mean(At at) const {
    return typename At::real(per_rank) * load_array(sum, at);
  }
};

/// Stands for the sums when a signal is formed again. The signal was checked when it was sent.
struct already_checked {
  template <class Real>
  SLAMB_ELEMENT static void check_finite(const Real& /*x*/) {}
};

}  // namespace slamb::detail
