// The two phases of a quantized exchange, over any tiles: encode, all_to_all, average, all_gather, decode.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "slamb/core/concepts.hpp"
#include "slamb/core/config.hpp"
#include "slamb/core/detail/questions.hpp"
#include "slamb/core/error.hpp"
#include "slamb/detail/kernel/scales.hpp"
#include "slamb/detail/kernel/two_phase.hpp"
#include "slamb/detail/pass/arena.hpp"
#include "slamb/detail/pass/layout.hpp"
#include "slamb/detail/pass/messages.hpp"
#include "slamb/detail/pass/quantized_pass.hpp"
#include "slamb/detail/pass/step_state.hpp"
#include "slamb/detail/pass/wire_layout.hpp"

namespace slamb::detail {

class optimizer_core;

/// The tables of an exchange: places of each tile's codes, this rank's tiles to average, and groups that share a scale. On the host
/// there are only their sizes, which follow from the layouts; `upload` makes the tables.
class two_phase_tables {
 public:
  /// Finds the sizes of the tables.
  /// @param mean  the layout of messages of the mean, if it is another one; or null
  void assign(const wire_layout& wire, const wire_layout* mean, int rank);

  /// Plans memory for the tables, and for tables of up to `tiles` tiles of one tensor: `upload` then allocates nothing.
  void plan(optimizer_core& core, std::uint64_t tiles = 0);

  /// Makes the tables, and copies them to the backend's memory. A plan has none.
  /// @param wire, mean  as those of `assign`
  void upload(optimizer_core& core, const wire_layout& wire, const wire_layout* mean);

  /// The number of tiles.
  std::size_t tiles() const noexcept { return count_.tiles; }

  /// [tiles] the places of their codes.
  static std::vector<wire_tile> places_in(const wire_layout& wire);

  // In the backend's memory.
  const wire_tile* placed(const optimizer_core& core) const noexcept;
  const wire_tile* mean_placed(const optimizer_core& core) const noexcept;
  std::span<const std::size_t> own(const optimizer_core& core) const noexcept;
  scale_table sent_scales(const optimizer_core& core) const noexcept;
  scale_table averaged_scales(const optimizer_core& core) const noexcept;

 private:
  struct scale_counts {
    std::size_t groups = 0, tiles = 0, places = 0;
  };
  struct counts {
    std::size_t tiles = 0, mean_tiles = 0, own = 0;
    scale_counts sent, averaged;
  };
  struct planned_scale_table {
    region<scale_entry> groups;
    region<std::uint64_t> tiles;
    region<std::uint64_t> places;
  };

  static counts sizes_of(const wire_layout& wire, const wire_layout* mean, std::uint32_t rank);
  static void plan(optimizer_core& core, host_scale_table& lists, const scale_counts& count, planned_scale_table& at,
                   std::uint64_t most);
  static void upload(optimizer_core& core, const host_scale_table& lists, const planned_scale_table& at);
  static scale_table table(const optimizer_core& core, const scale_counts& count,
                           const planned_scale_table& at) noexcept;

  static void place_tiles(const wire_layout& wire, std::vector<wire_tile>& placed);

  counts count_;
  std::uint32_t rank_ = 0;
  bool is_kept_ = false;                // tables of another size will follow: the host keeps their memory
  std::vector<wire_tile> placed_;       // [tiles]
  std::vector<wire_tile> mean_placed_;  // [tiles] in messages of the mean, if these have another layout
  std::vector<std::size_t> own_;
  host_scale_table sent_;
  host_scale_table averaged_;
  region<wire_tile> placed_at_;
  region<wire_tile> mean_placed_at_;
  region<std::size_t> own_at_;
  planned_scale_table sent_at_;
  planned_scale_table averaged_at_;
};

/// A quantized exchange. It owns the layout and the tables, but no buffers.
///
/// @tparam Quantizers  a quantizer, or `worker_and_server`
/// @tparam WorkerStorage, ServerStorage  types of stored errors: float, bfloat16, or no_storage
template <class Quantizers, class WorkerStorage, class ServerStorage>
class two_phase_exchange {
  using signal_quantizer = signal_quantizer_t<Quantizers>;
  using mean_quantizer = mean_quantizer_t<Quantizers>;
  static constexpr bool has_mean_scales = mean_quantizer::scale != segment_scale::none;
  static constexpr bool has_mean_floats = has_mean_scales && !capability::sends_scales_in_bytes<mean_quantizer>;
  static constexpr bool phases_differ = !std::is_same_v<Quantizers, signal_quantizer>;

  template <class Q>
  static constexpr bool has_seed_if_random = !capability::stochastic_quantizer<Q> || requires(const Q& q) {
    { q.seed } -> converts_to<std::uint64_t>;
  };
  static_assert(has_seed_if_random<signal_quantizer> && has_seed_if_random<mean_quantizer>,
                "slamb: a quantizer with is_stochastic = true must have a member seed for its random numbers");
  template <class Q>
  static constexpr bool has_whole_scale_code =
      capability::sends_scales_in_bytes<Q> || !(
                                                  requires { &Q::encode_scale; } || requires { &Q::decode_scale; });
  template <class Q>
  static constexpr bool needs_scale_first = shared_scales<Q>::are_known_first;
  static_assert(has_whole_scale_code<signal_quantizer> && has_whole_scale_code<mean_quantizer>,
                "slamb: a quantizer that sends scales in bytes must have a member block, std::uint8_t "
                "encode_scale(float) const and float decode_scale(std::uint8_t) const");

 public:
  /// @throws std::invalid_argument if a quantizer's block is out of range
  explicit two_phase_exchange(const Quantizers& quantizers) : quantizers_(quantizers) {
    require_blocks(quantizer());
    if constexpr (phases_differ) require_blocks(server_quantizer(quantizers_));
  }

  /// Of the signal.
  const signal_quantizer& quantizer() const noexcept { return worker_quantizer(quantizers_); }
  const Quantizers& quantizers() const noexcept { return quantizers_; }
  /// Of the signal, and of the mean unless the phases differ.
  const wire_layout& wire() const noexcept { return wire_; }
  const wire_layout& mean_wire() const noexcept { return phases_differ ? mean_wire_ : wire_; }
  const two_phase_tables& tables() const noexcept { return tables_; }

  /// Plans memory for the tables: see `two_phase_tables`.
  void plan_tables(optimizer_core& core, std::uint64_t tiles = 0) { tables_.plan(core, tiles); }
  void upload_tables(optimizer_core& core) { tables_.upload(core, wire_, other_mean_wire()); }

  /// Lays out the messages. Allocates only if there are more pieces than before.
  void lay_out(std::span<const wire_tensor> tensors, int ranks, int rank) {
    lay_out(tensors, ranks, rank, common_chunks(quantizer(), server_quantizer(quantizers_)));
  }
  /// Lays them out with the cuts of another exchange.
  void lay_out(std::span<const wire_tensor> tensors, int ranks, int rank, chunks_of chunks) {
    wire_.assign(tensors, ranks, granularity_of(quantizer()), signal_quantizer::bits_per_element, chunks);
    if constexpr (phases_differ)
      mean_wire_.assign(tensors, ranks, granularity_of(server_quantizer(quantizers_)), mean_quantizer::bits_per_element,
                        chunks);
    tables_.assign(wire_, other_mean_wire(), rank);
  }

  /// Bytes of the buffer: received messages and dense signals, then sent and averaged messages, and the mean as floats. An
  /// exchange sends the padding of messages without writing it, so the buffer must be initialised, as an arena's memory is.
  std::uint64_t buffer_bytes() const noexcept { return part(5); }

  /// The bytes at the beginning of the buffer that `receive` reads, if no errors are kept and the pass does not use its own. Its
  /// pass may write over the rest.
  std::uint64_t received_bytes() const noexcept { return part(2); }

  /// The buffers, without tables, errors, mask and number of the step.
  /// @param buffer  `buffer_bytes()`, or empty: pointers to it are then null
  wire_view view(std::span<std::byte> buffer, int ranks, int rank) const noexcept {
    const auto at = [&](std::uint64_t first) { return buffer.empty() ? nullptr : buffer.data() + first; };
    return {.sent = at(part(2)),
            .received = buffer.data(),
            .averaged = at(part(3)),
            .dense = reinterpret_cast<float*>(at(part(1))),
            .mean = reinterpret_cast<float*>(at(part(4))),
            .codes = wire_.codes(),
            .message_bytes = wire_.message_bytes(),
            .codes_at = wire_.codes_at(),
            .random_stream = static_cast<std::uint64_t>(rank),
            .ranks = static_cast<std::uint32_t>(ranks),
            .rank = static_cast<std::uint32_t>(rank),
            .mean_message_bytes = mean_wire().message_bytes(),
            .mean_codes_at = mean_wire().codes_at(),
            .dense_elements = wire_.dense_elements()};
  }
  /// The buffers and tables of one rank's optimizer. Random draws depend on the number of the step.
  template <class Context>
  wire_view view(const Context& context, std::span<std::byte> buffer) const noexcept {
    wire_view wire = view(buffer, context.ranks.size(), context.ranks.rank());
    wire.tiles = tables_.placed(context);
    wire.mean_tiles = tables_.mean_placed(context);
    wire.steps = &context.record()->taken;
    return wire;
  }

  /// The function that initialises the messages, if there are any; for a launcher to invoke before `send`. The message of the
  /// mean receives the fingerprint of this step.
  auto message_initializer(const wire_view& wire, const step_record* record) const {
    return all_in_order(
        start_messages{nullptr, wire.sent, wire_.message_bytes(), wire.sent == nullptr ? 0U : wire_.ranks()},
        start_messages{record, wire.averaged, mean_wire().message_bytes(), wire.averaged == nullptr ? 0U : 1U});
  }

  /// Runs both phases. Changes nothing that lasts. All ranks skip the step if any rank has found a value that is not finite, or
  /// if ranks have diverged, which the second phase shows.
  ///
  /// @param counts  [tiles] active elements; @param statistic  [tiles], for the backend's use
  template <class Pass, class Context, class View>
  void send(const Pass& pass, Context& context, const View& model, const wire_view& wire, const std::uint64_t* counts,
            double* statistic) const {
    // Starts the mean's message again: it was started before ranks of this node could know that they have diverged.
    if (context.ranks.local_size() > 1)
      context.invoke(start_messages{context.record(), wire.averaged, mean_wire().message_bytes(), 1});
    encode_signal(pass, context, model, wire, counts, statistic, context.not_finite());
    context.ranks.all_to_all(std::span<const std::byte>(wire.sent, wire_.all_message_bytes()), received(wire, wire_),
                             context.stream());
    const read_overflow_flags read_flags{context.record(), wire.received, wire_.message_bytes(), wire_.ranks()};
    encode_mean(context, model, wire, read_flags, counts, statistic);
    if (context.is_skipped_on_host()) return;
    context.ranks.all_gather(std::span<const std::byte>(wire.averaged, mean_wire().message_bytes()),
                             received(wire, mean_wire()), context.stream());
    // Also for flags that a device has raised in the first phase.
    context.invoke(skip_if_not_finite{context.record()},
                   read_overflow_flags{context.record(), wire.received, mean_wire().message_bytes(), wire_.ranks(),
                                       has_mean_floats},
                   compare_fingerprints{context.record(), wire.received, mean_wire().message_bytes(), wire_.ranks()},
                   note_received{context.record(), wire.received, mean_wire().message_bytes(), wire_.ranks(),
                                 mean_wire().codes_at(), has_mean_scales, has_word_of_codes()});
    if (context.is_skipped_on_host()) return;
    if (wire_.dense_elements() > 0)
      context.ranks.all_reduce_sum(std::span<float>(wire.dense, wire_.dense_elements()), context.stream());
  }

  /// α and the codes of this rank's signal, and the overflow flag of its messages: docs/algorithms/one_bit_exchange.md (2), (3)
  /// @param not_finite  becomes 1 if a value of the signal is not finite; null: nothing is checked
  template <class Pass, class Context, class View>
  void encode_signal(const Pass& pass, Context& context, const View& model, const wire_view& wire,
                     const std::uint64_t* counts, double* statistic, std::uint32_t* not_finite) const {
    const auto run = [&](auto work) {
      context.launch(send_signal<work(), WorkerStorage, Pass, signal_quantizer, typename View::precision>{
          pass, quantizer(), model, wire, all_tiles(), statistic, not_finite});
    };
    run([] {
      return needs_scale_first<signal_quantizer> ? encode_mode::statistics : encode_mode::statistics_and_codes;
    });
    context.launch(finish_scales<signal_quantizer>{
        tables_.sent_scales(context), statistic, counts, wire.sent, model.skip,
        write_overflow_flags{context.record(), wire.sent, wire_.message_bytes(), wire_.ranks()}});
    if constexpr (needs_scale_first<signal_quantizer>) run([] { return encode_mode::codes; });
  }

  /// Runs `pass` with the mean of the signals over some tiles, and stores this rank's errors. To be called once for each tile,
  /// after `send`; the step can no longer fail.
  template <class Pass, class Context, class View>
  void receive(const Pass& pass, Context& context, const View& model, const wire_view& wire, tile_range tiles,
               double* results) const {
    context.launch(receive_mean<WorkerStorage, ServerStorage, Pass, Quantizers, typename View::precision>{
        pass, quantizers_, model, wire, tiles, results});
  }

  /// ‖x‖² and ‖x − x̂‖² of the sent signal: `squares` [tiles][2].
  template <class Pass, class Context, class View>
  void measure(const Pass& pass, Context& context, const View& model, const wire_view& wire, double* squares) const {
    context.launch(measure_error<WorkerStorage, Pass, signal_quantizer, typename View::precision>{
        pass, quantizer(), model, wire, all_tiles(), squares});
  }

 private:
  template <class Q>
  static void require_blocks(const Q& quantizer) {
    if (const scale_granularity groups = granularity_of(quantizer); groups.of == scale_granularity::blocks)
      require_in(std::has_single_bit(groups.block) && groups.block >= 16 && groups.block <= 1024, "a quantizer's block",
                 groups.block, "a power of two in [16, 1024]");
  }

  const wire_layout* other_mean_wire() const noexcept { return phases_differ ? &mean_wire_ : nullptr; }
  tile_range all_tiles() const noexcept { return {0, tables_.tiles()}; }
  bool has_word_of_codes() const noexcept {
    const std::span<const wire_piece> pieces = wire_.pieces();
    return !pieces.empty() && pieces[0].owner == 0 && pieces[0].count * mean_quantizer::bits_per_element >= 32;
  }
  static std::span<std::byte> received(const wire_view& wire, const wire_layout& messages) noexcept {
    return {wire.received, messages.all_message_bytes()};
  }

  // The offset of a part of the buffer, a multiple of message_unit.
  std::uint64_t part(int number) const noexcept {
    const std::uint64_t sizes[] = {std::max(wire_.all_message_bytes(), mean_wire().all_message_bytes()),
                                   (wire_.dense_elements() + wire_layout::code_unit) * sizeof(float),
                                   wire_.all_message_bytes(), mean_wire().message_bytes(),
                                   wire_.codes() * sizeof(float)};
    std::uint64_t first = 0;
    constexpr std::uint64_t unit = wire_layout::message_unit;
    for (int i = 0; i < number; ++i) first += (sizes[i] + unit - 1) / unit * unit;
    return first;
  }

  // The mean over this rank's chunk, its scale and its codes: docs/algorithms/one_bit_exchange.md (5) … (7)
  template <class Context>
  void encode_mean(Context& context, const model_view& model, const wire_view& wire,
                   const read_overflow_flags& read_flags, const std::uint64_t* counts, double* statistic) const {
    read_overflow_flags flags_of_kernel{};
    if constexpr (Context::launcher_type::is_synchronous) {
      context.invoke(read_flags);
      if (context.is_skipped_on_host()) return;
    } else {
      flags_of_kernel = read_flags;
    }
    const auto run = [&](auto work) {
      const std::span<const std::size_t> own = tables_.own(context);
      context.launch(average_signals<work(), ServerStorage, Quantizers>{quantizers_, model, wire, own.data(),
                                                                        own.size(), statistic, flags_of_kernel});
    };
    run([] { return needs_scale_first<mean_quantizer> ? encode_mode::statistics : encode_mode::statistics_and_codes; });
    context.launch(
        finish_scales<mean_quantizer>{tables_.averaged_scales(context), statistic, counts, wire.averaged, model.skip});
    if constexpr (needs_scale_first<mean_quantizer>) run([] { return encode_mode::codes; });
  }

  Quantizers quantizers_;
  wire_layout wire_;
  wire_layout mean_wire_;  // if the phases differ
  two_phase_tables tables_;
};

}  // namespace slamb::detail

#if !defined(SLAMB_SEPARATE_COMPILATION)
#include "slamb/impl/detail/exchange/two_phase.ipp"
#endif
