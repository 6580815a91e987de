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

/// The address of an array, however it is stored.
inline std::byte* address_of(float* array) noexcept { return reinterpret_cast<std::byte*>(array); }
inline std::byte* address_of(const bfloat16_numbers& array) noexcept {
  return reinterpret_cast<std::byte*>(array.bits);
}
template <bool Signed>
std::byte* address_of(const eight_bit_numbers<Signed>& array) noexcept {
  return reinterpret_cast<std::byte*>(array.codes);
}

/// The same model for the passes of the core.
/// @param view  of a recipe, with momentum and variance
template <class View>
any_view any_view_of(const View& view) noexcept {
  any_view all{view};
  if constexpr (has_draws<typename View::precision>) all.draws = view.draws;
  if constexpr (has_blocks<typename View::precision>) all.scales = view.scales;
  all.momentum = address_of(view.momentum);
  all.variance = address_of(view.variance);
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
    if (exist) regions_ = {plan_one<Arrays>(context)...};
  }

  /// `view` with the arrays added.
  template <class View>
  state_view<View, arrays<Arrays...>> over(const View& view, [[maybe_unused]] const arena& memory) const noexcept {
    state_view<View, arrays<Arrays...>> all{
        view, typename Arrays::template field<stored_pointer_t<Arrays, typename View::precision>>{}...};
    [[maybe_unused]] std::size_t i = 0;
    (point_at<Arrays>(all, memory.view(regions_[i++])), ...);
    return all;
  }

  /// [state elements] of array number i, which is stored as floats.
  std::span<const float> of(std::size_t i, const arena& memory) const noexcept {
    const std::span<std::byte> bytes = memory.view(regions_[i]);
    return {reinterpret_cast<const float*>(bytes.data()), bytes.size() / sizeof(float)};
  }

  /// [state elements] of an array that is stored as floats; empty if the array is not one of these.
  template <class Array>
  std::span<float> floats_of([[maybe_unused]] const arena& memory) const noexcept {
    std::span<std::byte> bytes;
    [[maybe_unused]] std::size_t i = 0;
    ((std::is_same_v<Arrays, Array> ? void(bytes = memory.view(regions_[i])) : void(), ++i), ...);
    return {reinterpret_cast<float*>(bytes.data()), bytes.size() / sizeof(float)};
  }

  /// Calls part(name, bytes, what) for each of them.
  void visit([[maybe_unused]] const state_visitor& part, [[maybe_unused]] const arena& memory,
             [[maybe_unused]] state_part what = state_part::common) const {
    [[maybe_unused]] std::size_t i = 0;
    (part(Arrays::name, memory.view(regions_[i++]), what), ...);
  }

 private:
  template <class Array, class Context>
  static region<std::byte> plan_one(Context& context) {
    using storage = storage_of_t<Array, typename Context::precision>;
    if constexpr (storage::is_in_blocks) context.scales.template plan<Array>();
    return context.memory.plan(Array::name, context.tensors.state_elements(), storage::element_bytes);
  }

  template <class Array, class View>
  static void point_at(View& all, std::span<std::byte> memory) noexcept {
    using precision = typename View::precision;
    using storage = storage_of_t<Array, precision>;
    float* scales = nullptr;
    if constexpr (storage::is_in_blocks)
      scales = std::is_same_v<Array, array::momentum> ? all.scales.momentum : all.scales.variance;
    if (!memory.empty()) value_of<Array, stored_pointer_t<Array, precision>>(all) = storage::at(memory.data(), scales);
  }

  std::array<region<std::byte>, sizeof...(Arrays)> regions_{};
};

}  // namespace slamb::detail
