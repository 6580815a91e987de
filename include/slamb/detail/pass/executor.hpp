// The concepts of a backend's executor: it runs passes, exchanges quantized tiles, adds sums and moves memory, in order.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "slamb/core/concepts.hpp"
#include "slamb/core/detail/questions.hpp"
#include "slamb/core/detail/stream_waiter.hpp"
#include "slamb/detail/pass/layout.hpp"
#include "slamb/detail/pass/messages.hpp"
#include "slamb/detail/pass/pass.hpp"
#include "slamb/detail/pass/quantized_pass.hpp"
#include "slamb/detail/pass/sparse_pass.hpp"
#include "slamb/detail/pass/step_state.hpp"
#include "slamb/detail/runtime/late_read.hpp"

namespace slamb::detail {

// A minimal pass, selection, quantizer, sparsifier and function, for the requirements below.
namespace archetype {

struct pass : pass_without_constants {
  using signal_reads = arrays<array::gradient>;
  using reads = arrays<array::gradient>;
  using writes = arrays<array::exchanged>;
  using packs = arrays<>;
  static constexpr int sums = 0;
  static constexpr bool receives = false;
  static constexpr bool needs_discount = false;
};

struct selection {
  bool selects(coordinate c) const;
};

struct quantizer {
  static constexpr int bits_per_element = 1;
  static constexpr segment_scale scale = segment_scale::none;
};

struct sparsifier {
  std::uint32_t chosen_of(std::uint32_t count) const;
  void choose(const float* values, std::uint32_t count, std::uint16_t* bits) const;
};

struct finish_segment {
  void operator()(std::size_t segment, const double* results) const;
};

}  // namespace archetype

/// Does work in the order of its calls: at once (`is_synchronous`), or on a stream. Pointers and spans are in the backend's
/// memory unless a function says otherwise. Passes do nothing if `skip` of their view points to a value other than 0.
template <class E>
concept executor = requires {
  { E::is_synchronous } -> converts_to<bool>;
  typename E::no_error_storage;  // stands for the type of error buffers that are not kept
};

/// Runs passes. The host's executor (backend/host/detail/executor.hpp) documents the members.
template <class E>
concept runs_passes = executor<E> &&
    requires(const E& e, const archetype::pass& pass, const view_in<>& view, const payload_view& payload,
             const archetype::selection& selection, const archetype::sparsifier& sparsifier, tile_range tiles,
             double* sums, std::uint32_t* flag, std::uint16_t* bits, std::span<std::uint64_t> offsets,
             const stream_waiter& ranks) {
  e.run(pass, view, tiles);
  e.run(pass, view, tiles, sums);
  e.run(pass, view, tiles, sums, flag);
  e.run(pass, view, payload, selection, tiles);
  e.run(pass, view, payload, selection, tiles, sums);
  e.run(pass, view, payload, selection, tiles, sums, flag);
  e.run_packed(pass, view, payload, tiles, sums);
  e.choose(pass, sparsifier, view, tiles, bits);
  e.choose(pass, sparsifier, view, tiles, bits, flag);
  { e.scan_payload_offsets(view, selection, offsets, ranks) } -> std::same_as<std::uint64_t>;
};

/// Encodes, averages and decodes the tiles of a quantized exchange.
template <class E>
concept exchanges_codes = executor<E> &&
    requires(const E& e, const archetype::pass& pass, const archetype::quantizer& quantizer, const view_in<>& view,
             const wire_view& wire, tile_range tiles, std::span<const std::size_t> own, double* sums,
             std::uint32_t* flag, std::uint16_t* bits, std::uint64_t* counts, const scale_table& table,
             std::byte* messages, const float* variance, const row_mask* rows) {
  e.mark_active(view, wire, tiles, rows, variance, bits, counts);
  e.template send<encode_mode::statistics_and_codes, float>(pass, quantizer, view, wire, tiles, sums, flag);
  e.template finish_scales<archetype::quantizer>(table, sums, counts, messages, flag);
  e.template finish_scales<archetype::quantizer>(table, sums, counts, messages, flag, write_overflow_flags{});
  e.template average<encode_mode::statistics_and_codes, float>(quantizer, view, wire, own, sums, read_overflow_flags{});
  e.template receive<float, float>(pass, quantizer, view, wire, tiles, sums);
  e.template measure<float>(pass, quantizer, view, wire, tiles, sums);
};

/// Adds up the sums of tiles, invokes functions in the order of its work, and moves memory.
template <class E>
concept moves_memory = executor<E> &&
    requires(const E& e, const model_view& view, std::span<const std::size_t> first_tile, double* sums,
             std::span<const double> values, std::span<std::byte> bytes, std::span<const std::byte> from,
             std::span<const float> floats, const std::uint64_t* value, const stream_waiter& ranks) {
  e.stream();
  e.invoke(nothing_to_do{}, nothing_to_do{});
  e.template finish_segments<1, 1>(view, std::size_t{}, std::size_t{}, sums, archetype::finish_segment{});
  e.template visit_segments<1>(first_tile, std::size_t{}, std::size_t{}, sums, ranks, archetype::finish_segment{});
  { e.total(values, ranks) } -> std::same_as<double>;
  e.add_up(values, sums);
  { e.sum_of_squares(floats, ranks) } -> std::same_as<double>;
  e.clear(bytes);
  e.upload(values, std::span<double>());
  e.download(from, bytes, ranks);
  { e.read(value, ranks) } -> std::same_as<std::uint64_t>;
  e.write(sums, 1.0);
  e.require_memory(static_cast<const void*>(sums), "name");
  e.wait(ranks);
};

template <class E>
using stream_of = decltype(std::declval<const E&>().stream());

/// The executor of a backend.
template <class E>
concept backend_executor = runs_passes<E> && exchanges_codes<E> && moves_memory<E> &&
    (bool(E::is_synchronous) ||
     requires(const E& e, const model_view& view, const archetype::selection& selection,
              std::span<std::uint64_t> offsets, std::uint64_t capacity, std::uint32_t* too_many,
              const std::uint64_t* value, late_read<stream_of<E>, std::uint64_t>& late) {
       { e.is_capturing() } -> std::same_as<bool>;
       e.scan_payload_offsets_in(view, selection, offsets, capacity, too_many);
       e.read_later(value, late);
     });

}  // namespace slamb::detail
