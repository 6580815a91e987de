// The state arrays of a recipe.
#pragma once

#include <array>
#include <cstddef>
#include <span>

#include "slamb/detail/pass/arena.hpp"
#include "slamb/detail/pass/pass.hpp"
#include "slamb/detail/state/state_part.hpp"

namespace slamb::detail {

/// Plans state arrays in the backend's memory, [state elements] floats each, adds them to views of the model, and saves them.
template <class... Arrays>
class state_arrays {
 public:
  static constexpr std::array<const char*, sizeof...(Arrays)> names{Arrays::name...};

  /// @param exist  false: the arrays take no memory, and their pointers are null
  template <class Context>
  void plan([[maybe_unused]] Context& context, bool exist = true) {
    if (exist) regions_ = {context.memory.template plan<float>(Arrays::name, context.tensors.state_elements())...};
  }

  /// `view` with the arrays added.
  template <class View>
  state_view<View, arrays<Arrays...>> over(const View& view, [[maybe_unused]] const arena& memory) const noexcept {
    state_view<View, arrays<Arrays...>> all{
        view, typename Arrays::template field<stored_pointer_t<Arrays, typename View::precision>>{}...};
    [[maybe_unused]] std::size_t i = 0;
    ((value_of<Arrays, float*>(all) = regions_[i].count == 0 ? nullptr : memory.view(regions_[i]).data(), ++i), ...);
    return all;
  }

  /// [state elements] of array number i.
  std::span<const float> of(std::size_t i, const arena& memory) const noexcept { return memory.view(regions_[i]); }

  /// Calls part(name, bytes, what) for each of them.
  void visit([[maybe_unused]] const state_visitor& part, [[maybe_unused]] const arena& memory,
             [[maybe_unused]] state_part what = state_part::common) const {
    [[maybe_unused]] std::size_t i = 0;
    (part(Arrays::name, std::as_writable_bytes(memory.view(regions_[i++])), what), ...);
  }

 private:
  std::array<region<float>, sizeof...(Arrays)> regions_{};
};

}  // namespace slamb::detail
