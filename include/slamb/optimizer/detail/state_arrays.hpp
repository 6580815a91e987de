// The state arrays of a recipe: their memory, and their part of a saved state.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

#include "slamb/detail/exchange/consistency.hpp"
#include "slamb/detail/pass/arena.hpp"
#include "slamb/detail/pass/layout.hpp"
#include "slamb/detail/pass/pass.hpp"
#include "slamb/detail/pass/precision.hpp"
#include "slamb/detail/state/state_part.hpp"

namespace slamb::detail {

/// A state array, [state elements].
struct stored_array {
  const char* name;
  std::size_t element_bytes;
};

/// Checks that the backend's memory can hold the state of a very large model, before tables are made on the host that could fill
/// the machine. Smaller models are checked when all their memory is allocated.
/// @throws out_of_memory
template <class Backend>
void require_room_for_state(const layout& tensors, const Backend& backend, std::span<const stored_array> arrays) {
  constexpr std::uint64_t of_small_tables = std::uint64_t{1} << 35U;  // elements: 64 MiB of tiles, 256 GiB of state
  if (tensors.state_elements() <= of_small_tables) return;
  arena state;
  for (const stored_array& a : arrays) static_cast<void>(state.plan(a.name, tensors.state_elements(), a.element_bytes));
  state.allocate(allocator_of(backend));
}

/// Plans state arrays in the backend's memory, [state elements] each, adds them to views of the model, and saves them.
template <class... Arrays>
class state_arrays {
 public:
  /// What the arrays are, in the order of this list.
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
