// The state arrays of a recipe: their memory, and their part of a saved state.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

#include "slamb/core/allocator.hpp"
#include "slamb/detail/pass/arena.hpp"
#include "slamb/detail/pass/layout.hpp"
#include "slamb/detail/pass/model_passes.hpp"
#include "slamb/detail/pass/pass.hpp"
#include "slamb/detail/pass/precision.hpp"
#include "slamb/detail/state/state_part.hpp"

namespace slamb::detail {

/// A state array, [state elements].
struct stored_array {
  const char* name;
  std::size_t element_bytes;
};

/// Checks that memory can hold the state of a very large model.
/// @throws out_of_memory
void require_room_for_state(const layout& tensors, const allocator& memory, std::span<const stored_array> arrays);

/// The same model for the passes of the core.
/// @param view  of a recipe, with momentum and variance
template <class View>
any_view any_view_of(const View& view) noexcept {
  any_view all{view};
  if constexpr (has_draws<typename View::precision>) all.draws = view.draws;
  all.momentum = memory_of(view.momentum);
  all.variance = memory_of(view.variance);
  return all;
}

/// Plans state arrays in the backend's memory, [state elements] each, adds them to views of the model, and saves them.
template <class... Arrays>
class state_arrays {
 public:
  /// Names and sizes of the arrays, in the order of this list.
  template <class Precision>
  static constexpr std::array<stored_array, sizeof...(Arrays)> stored{
      stored_array{Arrays::name, storage_of_t<Arrays, Precision>::element_bytes}...};

  /// @param exist  false: the arrays take no memory, and their pointers are null
  template <class Context>
  void plan([[maybe_unused]] Context& context, bool exist = true) {
    [[maybe_unused]] std::size_t i = 0;
    if (exist) (plan_one<Arrays>(context, i++), ...);
  }

  /// `view` with the arrays added.
  template <class View>
  state_view<View, arrays<Arrays...>> over(const View& view, [[maybe_unused]] const arena& memory) const noexcept {
    state_view<View, arrays<Arrays...>> all{
        view, typename Arrays::template field<stored_pointer_t<Arrays, typename View::precision>>{}...};
    [[maybe_unused]] std::size_t i = 0;
    (point_at<Arrays>(all, memory, i++), ...);
    return all;
  }

  /// [state elements] of an array that is stored as floats; empty if it is stored otherwise, or not one of these.
  template <class Array, class Precision>
  std::span<float> floats_of([[maybe_unused]] const arena& memory) const noexcept {
    std::span<std::byte> bytes;
    if constexpr (std::is_same_v<storage_of_t<Array, Precision>, as_floats>) {
      [[maybe_unused]] std::size_t i = 0;
      ((std::is_same_v<Arrays, Array> ? void(bytes = memory.view(regions_[i])) : void(), ++i), ...);
    }
    return {reinterpret_cast<float*>(bytes.data()), bytes.size() / sizeof(float)};
  }

  /// Calls part(name, bytes, what) for each of them.
  void visit([[maybe_unused]] const state_visitor& part, [[maybe_unused]] const arena& memory,
             [[maybe_unused]] state_part what = state_part::common) const {
    [[maybe_unused]] std::size_t i = 0;
    (visit_one<Arrays>(part, memory, what, i++), ...);
  }

 private:
  template <class Array>
  void visit_one(const state_visitor& part, const arena& memory, state_part what, std::size_t i) const {
    part(Array::name, memory.view(regions_[i]), what, of_elements{element_bytes_[i]});
  }
  template <class Array, class Context>
  void plan_one(Context& context, std::size_t i) {
    using storage = storage_of_t<Array, typename Context::precision>;
    element_bytes_[i] = storage::element_bytes;
    regions_[i] = context.memory.plan(Array::name, context.tensors.state_elements(), storage::element_bytes);
    if constexpr (storage::is_in_blocks) scales_[i] = context.scales.plan(context.memory, Array::name);
  }

  template <class Array, class View>
  void point_at(View& all, const arena& memory, std::size_t i) const noexcept {
    using precision = typename View::precision;
    using storage = storage_of_t<Array, precision>;
    if (regions_[i].count == 0) return;
    array_memory its{memory.view(regions_[i]).data()};
    if constexpr (storage::is_in_blocks) its.scales = memory.view(scales_[i]).data();
    value_of<Array, stored_pointer_t<Array, precision>>(all) = storage::at(its);
  }

  std::array<region<std::byte>, sizeof...(Arrays)> regions_{};
  std::array<std::size_t, sizeof...(Arrays)> element_bytes_{};
  std::array<late_region<float>, sizeof...(Arrays)> scales_{};  // of arrays in blocks
};

}  // namespace slamb::detail
