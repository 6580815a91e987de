// Counts the elements whose direction is at its bound, and those whose variance began late, for statistics.
#pragma once

#include <cmath>
#include <cstdint>
#include <utility>

#include "slamb/core/concepts.hpp"
#include "slamb/core/statistics.hpp"
#include "slamb/detail/pass/pass.hpp"
#include "slamb/optimizer/detail/adam_passes.hpp"

namespace slamb::detail {

/// Σ 1 over the elements at the bound, and over those with a late variance.
template <class Variance>
struct count_directions {
  using reads = arrays<array::momentum, array::variance>;
  using writes = arrays<>;
  static constexpr int sums = 2;

  const adam_scalars* scalars;

  SLAMB_HOST_DEVICE adam_scalars constants(std::uint32_t /*segment*/) const { return *scalars; }

  template <class Element, class Sums>
  SLAMB_ELEMENT void operator()(Element& e, const adam_scalars& s, Sums& results) const {
    using Real = typename Element::real;
    const Real one(1.0F), none(0.0F);
    const Real bound = select(e.variance < Real(s.late_below), Real(s.late_bound), Real(s.bound));
    results.add_square(0, select(absolute(Variance::direction(e.momentum, e.variance, s)) < bound, none, one));
    results.add_square(1, select(e.variance < none, one, none));
  }
};

/// Counts after the last step. Waits.
/// @param model  a view with momentum and variance
template <trust_ratio TrustRatio, class Variance, class Context, class View, class Options>
void report_directions(const Context& context, View model, const Options& options, const variance_properties& variance,
                       statistics& all) {
  if (all.step == 0) return;
  set_adam_scalars scalars = context.template scalars_of<TrustRatio>(options, variance);
  scalars.of_last_step = true;
  context.invoke(scalars);
  model.skip = nullptr;  // a step that failed may have been skipped before
  using count = count_directions<Variance>;
  context.run(count{context.scalars()}, model, context.all_tiles(), context.sums());
  context.visit_sums(count::sums, [&all](std::size_t, const double* of_tensor) {
    all.bounded_elements += static_cast<std::uint64_t>(of_tensor[0]);
    all.late_elements += static_cast<std::uint64_t>(of_tensor[1]);
  });
}

}  // namespace slamb::detail
