// The master copies of parameters of sixteen bits: their memory, and how copies and parameters follow each other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "slamb/core/parameter.hpp"
#include "slamb/detail/pass/arena.hpp"
#include "slamb/detail/pass/layout.hpp"
#include "slamb/detail/pass/model_passes.hpp"

namespace slamb::detail {

/// The master copies of a model. Those that the caller does not give are in the optimizer's memory, one after another as in the
/// state.
/// @tparam Precision  of the backend; without types, or with stochastic rounding, there is no such memory
template <class Precision>
class masters_of_model {
 public:
  /// Plans the memory, and notes in the table which tensors have their copy there.
  void plan(arena& memory, layout& tensors) {
    if constexpr (Precision::takes_types && !Precision::rounds_by_chance) {
      std::uint64_t elements = 0;
      for (segment& s : tensors.segments()) {
        s.keeps_master = s.data_type != element_type::float32 && s.master == nullptr;
        if (s.keeps_master) elements += layout::padded(s.size);
      }
      kept_ = memory.plan<float>("master copies", elements);
    }
  }

  /// Points the table at the memory, once it is allocated.
  void place(const arena& memory, layout& tensors) const {
    float* next = memory.view(kept_).data();
    for (segment& s : tensors.segments())
      if (s.keeps_master) next = (s.master = next) + layout::padded(s.size);
  }

  /// The copies in the optimizer's memory follow parameters that something else has written.
  template <class Context>
  void reload(const Context& context) const {
    run(reload_masters{context.view().segments}, context, [](const segment& s) { return s.keeps_master; });
  }
  /// The same before the first step, and before the first after `reload_later`, for frameworks that load parameters later.
  template <class Context>
  void reload_before_step(const Context& context) {
    if (context.is_captured() || !std::exchange(reloads_, false)) return;
    reload(context);
  }
  void reload_later() noexcept { reloads_ = true; }

  /// Rounds all copies, the caller's too, to the user's parameters.
  template <class Context>
  void round(const Context& context) const {
    run(round_masters{}, context, [](const segment& s) { return s.master != nullptr; });
  }

 private:
  template <class Pass, class Context, class Predicate>
  static void run(const Pass& pass, const Context& context, const Predicate& has_one) {
    if constexpr (Precision::takes_types) {
      auto all = context.view();
      all.skip = nullptr;
      const std::span<const segment> segments = context.tensors.segments();
      for (std::size_t i = 0; i < segments.size(); ++i)
        if (has_one(segments[i])) context.executor.run(pass, all, context.tensors.tiles_of(i));
    }
  }

  region<float> kept_;
  bool reloads_ = true;
};

}  // namespace slamb::detail
