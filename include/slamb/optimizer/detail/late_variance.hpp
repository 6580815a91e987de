// Elements whose variance begins after it has stopped for the others: docs/algorithms/update_bound.md, "Late elements".
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "slamb/detail/kernel/segments.hpp"
#include "slamb/detail/pass/arena.hpp"
#include "slamb/detail/pass/layout.hpp"
#include "slamb/detail/pass/pass.hpp"
#include "slamb/optimizer/detail/adam_passes.hpp"

namespace slamb::detail {

/// Begins and continues the variances of late elements, by a momentum that all ranks have: update_bound.md (7), (8).
/// @tparam HasSign          v is stored with a sign, which marks them
/// @tparam FollowsGradient  tensors without a gradient stay as they are; else those stay whose `has_common` is 0
template <bool HasSign, bool FollowsGradient>
struct continue_late_variances {
  using reads = arrays<array::momentum, array::variance>;
  using writes = arrays<array::variance>;
  static constexpr bool follows_gradient = FollowsGradient;
  static constexpr int sums = 0;

  const adam_scalars* scalars;
  const float* has_common = nullptr;  ///< [tensors] not 0: all ranks have the same momentum

  SLAMB_HOST_DEVICE adam_scalars constants(std::uint32_t segment) const {
    adam_scalars s = *scalars;
    if constexpr (!FollowsGradient)
      if (has_common[segment] == 0.0F) s.late_below = no_variance_is_late;
    return s;
  }

  template <class Element, class Sums>
  SLAMB_ELEMENT void operator()(Element& e, const adam_scalars& s, Sums& /*sums*/) const {
    using ::slamb::maximum;
    using Real = typename Element::real;
    const Real none(0.0F);
    const Real gradient = e.momentum * Real(s.inverse_one_minus_beta1);
    const Real start = HasSign ? late_start(e.momentum, s) : finite_square(gradient);
    const Real begun = select(none < absolute(e.momentum), maximum(start, Real(0.5F * least_variance)), none);
    const Real continued =
        moved_towards(absolute(e.variance), finite_square(e.momentum * square_root(Real(s.inverse_one_minus_beta1))),
                      s.one_minus_beta2);
    const Real late = select(has_no_variance(e.variance, s), begun, continued);
    e.variance = select(e.variance < Real(s.late_below), HasSign ? none - late : late, e.variance);
  }
};

/// v ← |v|: late elements go on as the others.
struct end_late_variances : pass_without_constants {
  using reads = arrays<array::variance>;
  using writes = arrays<array::variance>;
  static constexpr int sums = 0;

  template <class Element, class Sums>
  SLAMB_ELEMENT void operator()(Element& e, no_constants /*constants*/, Sums& /*sums*/) const {
    e.variance = absolute(e.variance);
  }
};

/// Σ 1 over the elements with a late variance or none.
struct count_late : pass_without_constants {
  using reads = arrays<array::variance>;
  using writes = arrays<>;
  static constexpr int sums = 1;

  template <class Element, class Sums>
  SLAMB_ELEMENT void operator()(Element& e, no_constants /*constants*/, Sums& results) const {
    using Real = typename Element::real;
    results.add_square(0, select(e.variance < Real(least_variance), Real(1.0F), Real(0.0F)));
  }
};

/// Notes if a tensor has a late element; for `finish_segments`.
struct note_late {
  std::uint32_t* has_late;  ///< [tensors]

  SLAMB_HOST_DEVICE void operator()(std::size_t tensor, const double* count) const {
    has_late[tensor] = *count != 0.0 ? 1 : 0;
  }
};

/// The tiles of tensors with late elements: most models have none, and some have them in their embeddings. After the last range,
/// it goes on to the last such tensor.
struct find_ranges_of_late {
  const std::uint32_t* has_late;  ///< [tensors]
  std::size_t tensors;
  const std::size_t* first_tile;  ///< [tensors + 1]
  tile_ranges* tiles;

  SLAMB_HOST_DEVICE void operator()() const {
    constexpr int most = sizeof(tile_ranges) / sizeof(tile_range);
    tile_range* const of = tiles->of;  // in place, for an array of the function would be local memory on a GPU
    int ranges = 0;
    for (int i = 0; i < most; ++i) of[i] = {};
    for (std::size_t i = 0; i < tensors; ++i) {
      if (has_late[i] == 0 || first_tile[i] == first_tile[i + 1]) continue;
      const bool goes_on = ranges > 0 && (ranges == most || of[ranges - 1].last == first_tile[i]);
      if (!goes_on) of[ranges++].first = first_tile[i];
      of[ranges - 1].last = first_tile[i + 1];
    }
  }
};

/// The tensors with late elements.
template <class Context>
class late_elements {
  static constexpr bool has_sign = storage_of_t<array::variance, typename Context::precision>::is_signed;

 public:
  /// True if elements that a zero-aware quantizer leaves out may begin: v then marks those that take part from the next step on. An
  /// announcement is a very small momentum, which a block of large ones would round to 0.
  template <class Options>
  static bool can_be_announced(const Options& o) {
    using of_momentum = storage_of_t<array::momentum, typename Context::precision>;
    return has_sign && !of_momentum::is_in_blocks && lets_elements_begin(o);
  }

  void plan(Context& context) {
    has_late_ = context.memory.template plan<std::uint32_t>("tables", context.tensors.segments().size());
  }

  /// Finds them, once v has stopped. Waits.
  template <class View>
  void find(Context& context, const View& model) {
    search(context, model);
    found(context.read(&context.record()->late));
  }
  /// Searches without waiting: the outcome of the steps so far then has the answer, `late`.
  template <class View>
  void search(Context& context, View model) const {
    model.skip = nullptr;  // a step that failed may have been skipped before
    const std::size_t tensors = context.tensors.segments().size();
    std::uint32_t* const has_late = context.memory.view(has_late_).data();
    context.run(count_late{}, model, context.all_tiles(), context.sums());
    context.launch(finish_segments<count_late::sums, 0, note_late>{
        {has_late}, context.sums(), model.first_tile, 0, tensors, model.skip});
    context.invoke(find_ranges_of_late{has_late, tensors, model.first_tile, &context.record()->late});
  }
  /// Takes the answer.
  void found(const tile_ranges& late) noexcept { tiles_ = late; }

  /// Ends them in a restored state, if their variances can no longer begin: the passes of a step take v as it is then.
  template <class Options, class View>
  static void end_unless_allowed(const Options& o, Context& context, View model) {
    if constexpr (has_sign) {
      if (lets_elements_begin(o)) return;
      model.skip = nullptr;  // a step that failed may have been skipped before
      context.run(end_late_variances{}, model, context.all_tiles());
    }
  }

  bool exist() const noexcept { return tiles_.of[0].first < tiles_.of[0].last; }

  /// Continues their variances, after an exchange. Those that have been announced take part in the next.
  template <class View, class Exchange>
  void continue_variances(Context& context, const View& model, Exchange& exchange) const {
    continue_variances(continue_late_variances<has_sign, true>{context.scalars()}, context, model, exchange);
  }
  /// Likewise, after an exchange that gave some tensors the same momentum on all ranks, whether they have a gradient or not.
  template <class View, class Exchange>
  void continue_variances(Context& context, const View& model, Exchange& exchange, const float* has_common) const {
    continue_variances(continue_late_variances<has_sign, false>{context.scalars(), has_common}, context, model,
                       exchange);
  }

 private:
  template <class Pass, class View, class Exchange>
  void continue_variances(const Pass& pass, Context& context, const View& model, Exchange& exchange) const {
    for (const tile_range& tiles : tiles_.of) {
      if (tiles.first == tiles.last) return;
      context.run(pass, model, tiles);
      exchange.find_active(context, model, array::variance(), tiles);
    }
  }

  region<std::uint32_t> has_late_;
  tile_ranges tiles_{};
};

}  // namespace slamb::detail
