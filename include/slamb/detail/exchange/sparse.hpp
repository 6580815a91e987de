// The exchange of the elements that a sparsifier selects: of the mean of the ranks' signals, as floats by one all_reduce, or by the
// codes of a chain's quantizer.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "slamb/compressor/chain.hpp"
#include "slamb/core/concepts.hpp"
#include "slamb/core/error.hpp"
#include "slamb/detail/exchange/quantized_payload.hpp"
#include "slamb/detail/exchange/selector.hpp"
#include "slamb/detail/exchange/summable.hpp"
#include "slamb/detail/kernel/place_payload.hpp"
#include "slamb/detail/kernel/run_pass.hpp"
#include "slamb/detail/kernel/run_selected.hpp"
#include "slamb/detail/pass/arena.hpp"
#include "slamb/detail/pass/layout.hpp"
#include "slamb/detail/pass/sparse_pass.hpp"
#include "slamb/detail/state/saved_state.hpp"

namespace slamb::detail {

/// β3^a for a = 0, 1, … until it no longer changes, at most 65536 of them.
inline std::vector<float> discounts_by_age(double beta3) {
  std::vector<float> all{1.0F};
  while (all.size() < 65536 && all.back() > 0.0F && beta3 < 1.0)
    all.push_back(static_cast<float>(std::pow(beta3, static_cast<double>(all.size()))));
  return all;
}

/// The codes of a chain; nothing for a sparsifier alone.
template <class Compressor, bool KeepsApart, class Context>
struct codes_of_payload {
  explicit codes_of_payload(const Compressor& /*compressor*/) {}
};
template <capability::chained Compressor, bool KeepsApart, class Context>
struct codes_of_payload<Compressor, KeepsApart, Context>
    : quantized_payload<decltype(Compressor::quantizer), KeepsApart, Context> {
  explicit codes_of_payload(const Compressor& compressor) : codes_of_payload::quantized_payload(compressor.quantizer) {}
};

/// Settings of a sparse exchange, by its recipe.
struct sparse_exchange_settings {
  std::uint64_t columns = 1;       ///< arrays that its pass packs; the first is exchanged, the others are for `sum`
  std::uint64_t least_floats = 0;  ///< of `buffer`, which the recipe may use between steps
  std::optional<double> beta3{};   ///< passes receive β3^age, with the age since an element's last exchange
};

/// The exchange of selected elements. A step calls `select`; then `send` with a pass that forms the signal; then `receive` with a
/// pass that finds the received values of selected elements. Until then nothing that lasts has changed. The sparsifier stays with the
/// caller, who may change it between steps.
///
/// With a chain, the compression error of this rank's payload is added to what it receives. With an ErrorFeedback that has a
/// worker_state it comes to the passes apart instead, as `compression_error`.
///
/// *Wire*: an all_reduce of the selected elements, with a header; or the two collectives of `quantized_payload`. Data-dependent
/// sparsifiers also broadcast a bit for each element.
template <class Compressor, class ErrorFeedback, class Context>
class sparse_exchange {
  using sparsifier_type = std::remove_cvref_t<decltype(sparsifier_of(std::declval<Compressor&>()))>;
  static_assert(
      sparsifier<sparsifier_type> || data_dependent_sparsifier<sparsifier_type>,
      "slamb: a sparse exchange needs a sparsifier: at(step) returns a trivially copyable selection with bool "
      "selects(coordinate) const; or choose(values, count, bits) sets bits");
  using selector_type = selector<sparsifier_type, Context>;
  static constexpr bool is_quantized = capability::chained<Compressor>;
  static constexpr bool keeps_error_apart = is_quantized && bool(ErrorFeedback::worker_state);

 public:
  using selection_type = typename selector_type::selection_type;
  using age_type = stored_age_t<selection_type>;

  /// True if elements are selected by their values, so that the gradients must be there first.
  static constexpr bool selects_by_value = data_dependent_sparsifier<sparsifier_type>;

  explicit sparse_exchange(const Compressor& compressor) : codes_(compressor) {}

  /// Plans memory. To be called once tensors that are sent whole are marked as dense.
  void plan(Context& context, const sparsifier_type& sparsifier, const sparse_exchange_settings& settings) {
    columns_ = settings.columns;
    largest_ = largest_payload_of(sparsifier, std::as_const(context.tensors).segments());
    tile_offsets_ = context.memory.template plan<std::uint64_t>("payload", context.tensors.tile_count() + 1);
    payload_ = plan_summable(context.memory, "payload",
                             std::max((columns_ + (keeps_error_apart ? 1 : 0)) * largest_, settings.least_floats));
    if (settings.beta3) {
      discount_ = discounts_by_age(*settings.beta3);
      discounts_ = context.memory.template plan<float>("discounts by age", discount_.size());
      keeps_age_ = !capability::has_age<selection_type>;
      if constexpr (!capability::has_age<selection_type>)
        age_ = context.memory.template plan<age_type>("age", context.tensors.state_elements());
    }
    selector_.plan(context);
    if constexpr (is_quantized) codes_.plan(context, largest_);
  }
  /// Fills the tables, once memory is allocated.
  void start(Context& context) {
    if (discounts_.count > 0) context.upload(std::span<const float>(discount_), context.memory.view(discounts_));
    discount_ = {};
  }

  /// The factor that makes received values a mean.
  static float scale(const Context& context) noexcept {
    return is_quantized ? 1.0F : 1.0F / static_cast<float>(context.ranks.size());
  }

  /// The function that makes the selection on a device; for a launcher to invoke before `select`.
  auto selection_kernel(Context& context, const sparsifier_type& sparsifier) const {
    return selector_.selection_kernel(sparsifier, context);
  }

  /// Selects elements, and computes their places in the payload. If a comparison of ranks is due, the selection becomes a part of
  /// this step's fingerprint.
  ///
  /// @param pass  forms the values of `view` by which a data-dependent sparsifier selects
  template <class Pass, class View>
  void select(const Pass& pass, Context& context, const sparsifier_type& sparsifier, const View& view) {
    selection_.emplace(selector_.select(sparsifier, context, view, pass));
    sent_ = payload_of_step(context);
  }

  /// True if `send` can send some tiles before the others are there. On a device the host does not know the place of a tile's
  /// elements in the payload. What is sent last must not be empty.
  bool can_send_early(const Context& context, tile_range tiles) const {
    if constexpr (selects_by_value || is_quantized || !Context::launcher_type::is_synchronous)
      return false;
    else
      return context.ranks.size() > 1 && context.memory.view(tile_offsets_)[tiles.first] > 0;
  }

  /// Packs the selected values of some tiles, by `pass`, and sends them. With the last tiles all ranks skip the step if any rank's
  /// values are not finite.
  ///
  /// @param results  [tiles][Pass::sums] sums over elements that are not selected
  template <class Pass, class View>
  void send(const Pass& pass, Context& context, const View& view, tile_range tiles, bool is_last,
            double* results = nullptr) {
    context.launch(run_selected{pass, view, payload(context), *selection_, tiles, results, context.not_finite()});
    const std::span<float> part = sent_in(tiles, context);
    if (!is_last) return context.overlap.start_sum(part);
    context.overlap.join();
    if constexpr (is_quantized)
      codes_.exchange(part, keeps_error_apart ? payload(context).plane[1] : nullptr, context);
    else
      all_reduce_payload(part, sent_.size(), context);
  }

  /// Runs `pass` over the payload: its sums of selected elements are added to those of `send`.
  template <class Pass>
  void sum(const Pass& pass, Context& context) const {
    context.launch(run_packed<Pass>{pass, context.view(), payload(context), context.all_tiles(), context.sums()});
  }

  /// Runs `pass` over all elements, with the received values of selected ones.
  template <class Pass, class View>
  void receive(const Pass& pass, Context& context, const View& view) const {
    context.launch(run_selected{pass, view, payload(context), *selection_, context.all_tiles()});
  }

  /// Adds what this rank has received to the fingerprint of the next step, if a comparison is due. Not the codes of a chain, whose
  /// ranks have added their own compression errors.
  void compare_received(Context& context) const {
    if constexpr (!is_quantized) context.agreement.hash_payload(context, payload(context));
  }

  /// The memory of the payload, for other uses between steps.
  std::span<float> buffer(const Context& context) const noexcept { return payload_in(context.memory.view(payload_)); }

  void visit_state(const Context& context, const state_visitor& part) const {
    part("age", std::as_writable_bytes(context.memory.view(age_)), state_part::common,
         of_elements{keeps_age_ ? sizeof(age_type) : 0});
  }

 private:
  // Computes the place of each tile's selected elements in the payload, and returns the payload, of at least one element. On a
  // device, a payload of constant size has the largest size, so that the host need not wait for its exact size; the pass that
  // packs it sets the rest to 0 (payload_view::capacity).
  std::span<float> payload_of_step(Context& context) const {
    const std::span<std::uint64_t> tile_offsets = context.memory.view(tile_offsets_);
    const std::span<float> capacity = buffer(context).first(largest_);
    if constexpr (!Context::launcher_type::is_synchronous && payload_is_constant<sparsifier_type>) {
      place_tiles(context.launcher, context.view(), *selection_, tile_offsets, capacity.size(),
                  &context.record()->skip);
      context.agreement.hash_selection(context, *selection_, tile_offsets);
      return capacity;
    } else {
      place_tiles(context.launcher, context.view(), *selection_, tile_offsets);
      const std::uint64_t size = context.read(&tile_offsets.back());
      if (size > capacity.size())
        throw error("slamb: the compressor selected " + std::to_string(size) + " elements, but said that at most " +
                    std::to_string(capacity.size()) + " are selected at any step");
      context.agreement.hash_selection(context, *selection_, tile_offsets);
      const std::span<float> sent = capacity.first(std::max<std::uint64_t>(size, 1));
      if (size == 0) context.write(sent.data(), 0.0F);
      return sent;
    }
  }

  // The payload's part of some tiles.
  std::span<float> sent_in(tile_range tiles, const Context& context) const {
    if (tiles.last - tiles.first == context.tensors.tile_count()) return sent_;
    const std::span<const std::uint64_t> tile_offsets = context.memory.view(tile_offsets_);
    return sent_.subspan(tile_offsets[tiles.first], tile_offsets[tiles.last] - tile_offsets[tiles.first]);
  }

  payload_view payload(const Context& context) const noexcept {
    payload_view all{.tile_offsets = context.memory.view(tile_offsets_).data(),
                     .discount = {context.memory.view(discounts_).data(), static_cast<std::uint32_t>(discounts_.count)},
                     .age = context.memory.view(age_).data(),
                     .capacity = Context::launcher_type::is_synchronous ? 0 : largest_};
    for (std::uint64_t i = 0; i < columns_ + (keeps_error_apart ? 1 : 0); ++i)
      all.plane[i] = buffer(context).data() + i * largest_;
    return all;
  }

  selector_type selector_;
  codes_of_payload<Compressor, keeps_error_apart, Context> codes_;
  bool keeps_age_ = false;
  std::uint64_t columns_ = 1;
  std::uint64_t largest_ = 0;  // most elements of a payload
  std::vector<float> discount_;
  region<std::uint64_t> tile_offsets_;
  region<float> payload_;  // [columns][largest_]
  region<float> discounts_;
  region<age_type> age_;
  // Of the current step:
  std::optional<typename selector_type::selected_type> selection_;
  std::span<float> sent_;
};

}  // namespace slamb::detail
