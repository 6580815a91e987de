// The elements that a sparsifier selects at a step: by the step alone, or by the values of one rank.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <utility>

#include "slamb/compressor/chain.hpp"
#include "slamb/core/concepts.hpp"
#include "slamb/detail/kernel/choose.hpp"
#include "slamb/detail/pass/arena.hpp"
#include "slamb/detail/pass/layout.hpp"
#include "slamb/detail/pass/sparse_pass.hpp"
#include "slamb/detail/pass/step_state.hpp"

namespace slamb::detail {

/// Selects by the step alone.
template <class Sparsifier, class Context>
class selector {
  static constexpr bool is_stored =
      !Context::launcher_type::is_synchronous && capability::selects_on_device<Sparsifier>;

 public:
  using selection_type = decltype(std::declval<const Sparsifier&>().at(std::uint64_t{1}));
  /// The result of `select`: the selection, or a pointer to it.
  using selected_type = std::conditional_t<is_stored, stored_selection<selection_type>, selection_type>;

  void plan(Context& context) {
    if constexpr (is_stored) stored_ = context.memory.template plan<selection_type>("choice", 1);
  }

  /// The function that makes the selection on a device, which knows the number of the step; to be invoked before the
  /// selection is used.
  auto selection_kernel(const Sparsifier& sparsifier, Context& context) const {
    if constexpr (!is_stored)
      return nothing_to_do{};
    else if constexpr (requires { sparsifier.all_steps(); })
      return storing(sparsifier.all_steps(), context);
    else
      return storing(sparsifier, context);
  }

  /// The selection of this step.
  /// @param pass  forms the values, for data-dependent sparsifiers
  template <class Pass, class View>
  selected_type select(const Sparsifier& sparsifier, Context& context, const View& /*view*/,
                       const Pass& /*pass*/) const {
    if constexpr (requires { sparsifier.require_ready(std::uint64_t{}); })
      sparsifier.require_ready(context.tensors.elements());
    if constexpr (is_stored)
      return {context.memory.view(stored_).data()};
    else
      return sparsifier.at(context.next_step_number(
          "the compressor's selection follows the step number, which a capture does not know"));
  }

 private:
  template <class Steps>
  store_selection<Steps, selection_type> storing(const Steps& steps, Context& context) const {
    return {steps, &context.record()->taken, context.memory.view(stored_).data()};
  }

  region<selection_type> stored_;
};

/// Selects by value: at step t rank (t − 1) mod N chooses by its own values, and broadcasts a bitmap.
template <data_dependent_sparsifier Sparsifier, class Context>
class selector<Sparsifier, Context> {
 public:
  using selection_type = bitmap_selection;
  using selected_type = bitmap_selection;

  void plan(Context& context) {
    bits_ = context.memory.template plan<std::uint16_t>("choice", (context.tensors.state_elements() + 15) / 16);
  }

  static nothing_to_do selection_kernel(const Sparsifier& /*sparsifier*/, Context& /*context*/) { return {}; }

  template <class Pass, class View>
  selection_type select(const Sparsifier& sparsifier, Context& context, const View& view, const Pass& pass) const {
    const std::span<std::uint16_t> bits = context.memory.view(bits_);
    const int leader = static_cast<int>(
        (context.next_step_number("the rank that chooses follows from the step number, which a capture does not know") -
         1) %
        static_cast<std::uint64_t>(context.ranks.size()));
    if (context.ranks.rank() == leader) {
      context.launcher.clear(std::as_writable_bytes(bits));
      // Nothing is chosen in tiles with values that are not finite. The payload's overflow flag will skip the step.
      context.launch(choose_elements{pass, sparsifier, view, context.all_tiles(), bits.data()});
    }
    if (context.ranks.size() > 1) context.ranks.broadcast(std::as_writable_bytes(bits), leader, context.stream());
    return {bits.data()};
  }

 private:
  region<std::uint16_t> bits_;
};

/// The most elements sent at any step, of dense tensors and of tensors from which the sparsifier selects.
template <class Sparsifier>
std::uint64_t largest_payload_of(const Sparsifier& sparsifier, std::span<const segment> tensors) {
  std::uint64_t payload = 1;  // at least one element is always sent
  for (const segment& s : tensors) payload += s.dense ? s.size : largest_payload_of(sparsifier, s.size);
  return payload;
}

}  // namespace slamb::detail
