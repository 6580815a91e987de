// The kernels after the second collective of a compressed exchange: they decode the mean over ranks, run the pass, and store
// this rank's compression error or measure it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "slamb/backend/cuda/detail/lanes.hpp"
#include "slamb/backend/cuda/detail/pass_kernel.hpp"
#include "slamb/backend/cuda/detail/quantized_kernels.hpp"
#include "slamb/backend/cuda/detail/reals.hpp"
#include "slamb/backend/cuda/detail/tile_access.hpp"
#include "slamb/backend/cuda/detail/tile_codes.hpp"
#include "slamb/backend/cuda/detail/tile_windows.hpp"
#include "slamb/detail/pass/layout.hpp"
#include "slamb/detail/pass/pass.hpp"
#include "slamb/detail/pass/quantized_pass.hpp"

namespace slamb::detail::cuda {

/// One tile after the exchange: `sent` has the codes of this rank's signal, `result` the received codes of the mean over ranks.
template <class Quantizers>
struct decoded_tile {
  static constexpr bool is_lossy = true;

  const Quantizers& quantizers;
  tile_active active;
  tile_codes<signal_quantizer_t<Quantizers>, const std::byte> sent;
  tile_codes<mean_quantizer_t<Quantizers>, const std::byte> result;

  SLAMB_HOST_DEVICE decoded_tile(const Quantizers& q, const wire_view& wire, std::size_t number)
      : quantizers(q),
        active(wire, wire.tiles[number]),
        sent(wire.sent + wire.tiles[number].owner * wire.message_bytes, wire, wire.tiles[number]),
        result(wire.received + wire.tiles[number].owner * wire.bytes_of_mean_message(), wire.mean_codes_from(),
               wire.mean_tile(number)) {}

  template <class At>
  SLAMB_ELEMENT typename At::real mean(At at) const {
    using real = typename At::real;
    const auto& quantizer = server_quantizer(quantizers);
    const real decoded = active.keep(result.decode(quantizer, at), at);
    if constexpr (can_announce<mean_quantizer_t<Quantizers>>)
      if (const std::uint32_t which = active.announcing(at); which != 0) {
        const auto announced = result.decode(quantizer, at, real(1.0F)) < real(0.0F);
        return select(mask_of(which, at), select(announced, real(announced_value), real(0.0F)), decoded);
      }
    return decoded;
  }
  // x minus its decoded codes; 0 for inactive elements.
  template <class At>
  SLAMB_ELEMENT typename At::real compression_error_of_active(const typename At::real& x, At at) const {
    return active.keep(x - sent.decode(worker_quantizer(quantizers), at), at);
  }
  // As `compression_error_of_active`, and all of x for inactive elements that announce it.
  template <class At>
  SLAMB_ELEMENT typename At::real compression_error(const typename At::real& x, At at) const {
    const std::uint32_t which = active.announcing(at);
    return select(mask_of(which, at), x, compression_error_of_active(x, at));
  }
};

/// The received sum over ranks of a tile that was exchanged dense: there is no compression error.
struct unmasked_tile {
  static constexpr bool is_lossy = false;

  const float* sum;
  float per_rank;

  template <class At>
  SLAMB_ELEMENT typename At::real mean(At at) const {
    return typename At::real(per_rank) * load(sum, at);
  }
};

/// Sums for a signal that is formed again. They check nothing, because the signal was checked when it was sent.
struct already_checked {
  template <class Real>
  SLAMB_ELEMENT static void check_finite(const Real& /*x*/) {}
};

/// Runs a pass with the mean of the ranks' signals. Stores the compression errors of this rank's signal (worker error) and of
/// the mean of its chunk (server error).
template <class Storage, class ServerStorage, class Pass, class Quantizer, class Precision = single_precision>
struct receive_kernel {
  static constexpr unsigned threads = 256;  ///< with 512, ptxas spills for sm_80
  /// 3 blocks allow 85 registers a thread. Without a limit ptxas aims at 64 for sm_80, and spills.
  static constexpr unsigned blocks_at_once = 3;
  static constexpr int results = results_of<Pass>();

  Pass pass;
  Quantizer quantizer;
  view_of<Pass, Precision> view;
  wire_view wire;
  tile_range tiles;
  double* sums = nullptr;  ///< [all tiles][results] each tile's sums, then its maxima

  /// The most blocks that have work to do.
  std::size_t work() const noexcept { return tiles.last - tiles.first; }

  template <class Block>
  SLAMB_HOST_DEVICE void operator()(Block& block) const {
    if (is_skipped(view.skip)) return;
    for (std::size_t i = tiles.first + block.index(); i < tiles.last; i += block.count()) {
      const tile t = view.tiles[i];
      const wire_tile w = wire.tiles[i];
      const segment& s = view.segments[t.segment];
      if (is_left_out(wire, view, i)) {
        leave_out<Pass>(block, view, s, t, results == 0 ? nullptr : sums + i * static_cast<std::size_t>(results));
        continue;
      }
      if (w.owner == wire_tile::dense) {
        const unmasked_tile dense{wire.dense + w.code, rounded_quotient(1.0F, static_cast<float>(wire.ranks))};
        run<no_storage>(block, i, t, {nullptr, 0}, dense);
      } else {
        run<Storage>(block, i, t, {wire.worker_error, s.state + t.first}, decoded_tile<Quantizer>(quantizer, wire, i));
        if constexpr (error_array<ServerStorage>::exists)
          if (w.owner == wire.rank) keep_server_error<ServerStorage>(block, server_quantizer(quantizer), view, wire, i);
      }
    }
  }

 private:
  static constexpr bool uses_compression_error = requires { Pass::uses_compression_error; };

  template <class ErrorStorage, class Block, class Decoded>
  SLAMB_HOST_DEVICE void run(Block& block, std::size_t number, const tile& t, const error_array<ErrorStorage>& error,
                             const Decoded& decoded) const {
    // The signal is formed only if its compression error is used.
    constexpr bool forms_signal = Decoded::is_lossy && (error_array<ErrorStorage>::exists || uses_compression_error);
    using reads = std::conditional_t<forms_signal, union_of_t<typename Pass::reads, typename Pass::signal_reads>,
                                     typename Pass::reads>;
    const tile_arrays_of<Pass, Precision> at(view, view.segments[t.segment], t, number);
    const auto constants = pass.constants(t.segment);
    typename Block::template registers<sums_of<Pass>> mine;
    for_each_window<typename Pass::writes, Precision>(
        block, at, 0, t.count, [&](unsigned thread, const auto& arrays, const auto& groups, bool begins) {
          sums_of<Pass> own;
          if (!begins) own = mine[thread];
          groups.visit([&]<class At>(At here) {
            element_of<Pass, typename At::real> e;
            hide(e);
            arrays.load(reads(), e, here);
            if constexpr (forms_signal)
              find_compression_error(e, here, constants, error, decoded);
            else if constexpr (uses_compression_error)
              e.compression_error = typename At::real(0.0F);
            e.exchanged = decoded.mean(here);
            apply(pass, e, constants, own);
            arrays.store(typename Pass::writes(), e, here);
          });
          mine[thread] = own;
        });
    if constexpr (results > 0) write(block, mine, sums + number * static_cast<std::size_t>(results));
  }

  template <class ErrorStorage, class At, class Constants, class Decoded>
  SLAMB_ELEMENT void find_compression_error(element_of<Pass, typename At::real>& e, At here, const Constants& constants,
                                            const error_array<ErrorStorage>& error, const Decoded& decoded) const {
    already_checked checks;
    const auto signal = signal_of(pass, e, constants, checks);
    if constexpr (error_array<ErrorStorage>::exists)
      error.store(decoded.compression_error(signal + error.load(here), here), here);
    else
      e.compression_error = decoded.compression_error(signal, here);
  }

  template <class Block, class Sums>
  SLAMB_HOST_DEVICE static void write(Block& block, const Sums& mine, double* to) {
    double total[results];
    add_threads<Pass::sums, results - Pass::sums>(block, mine, total);
    block.first([&] {
      for (int k = 0; k < results; ++k) to[k] = total[k];
    });
  }
};

/// Computes ‖x‖² and ‖x − x̂‖² of each tile. x is this rank's signal, x̂ its decoded codes. Both are 0 for dense tiles.
template <class Storage, class Pass, class Quantizer, class Precision = single_precision>
struct measure_kernel {
  static constexpr unsigned threads = 256;
  /// 2 blocks allow 128 registers a thread. By itself ptxas aims at fewer for sm_90, and spills.
  static constexpr unsigned blocks_at_once = 2;

  Pass pass;
  Quantizer quantizer;
  view_of<Pass, Precision> view;
  wire_view wire;
  tile_range tiles;
  double* squares = nullptr;  ///< [all tiles][2]

  /// The most blocks that have work to do.
  std::size_t work() const noexcept { return tiles.last - tiles.first; }

  template <class Block>
  SLAMB_HOST_DEVICE void operator()(Block& block) const {
    if (is_skipped(view.skip)) return;
    for (std::size_t i = tiles.first + block.index(); i < tiles.last; i += block.count()) {
      const tile t = view.tiles[i];
      const wire_tile w = wire.tiles[i];
      typename Block::template registers<thread_sums<2>> mine;
      if (w.owner != wire_tile::dense && !is_left_out(wire, view, i)) sum(block, t, i, w, mine);
      double total[2];
      add_threads<2, 0>(block, mine, total);
      block.first([&] {
        squares[2 * i] = total[0];
        squares[2 * i + 1] = total[1];
      });
    }
  }

 private:
  template <class Block, class Sums>
  SLAMB_HOST_DEVICE void sum(Block& block, const tile& t, std::size_t number, const wire_tile& w, Sums& mine) const {
    const segment& s = view.segments[t.segment];
    const worker_source<Pass, Precision, decltype(pass.constants(0)), Storage> source{
        pass,
        pass.constants(t.segment),
        tile_arrays_of<Pass, Precision>(view, s, t, number),
        {wire.worker_error, s.state + t.first},
        {wire, w}};
    const decoded_tile<Quantizer> decoded(quantizer, wire, number);
    block.each([&](unsigned thread) {
      thread_sums<2> own;
      for_each_group<threads>(thread, t.count, [&](auto at) {
        already_checked checks;
        const auto x = source(at, checks);
        own.add_square(0, x);
        own.add_square(1, decoded.compression_error_of_active(x, at));
      });
      mine[thread] = own;
    });
  }
};

}  // namespace slamb::detail::cuda
