// Norms of parameters and state, for statistics and schedules. They wait for the device.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <span>
#include <utility>
#include <vector>

#include "slamb/core/statistics.hpp"
#include "slamb/detail/pass/layout.hpp"
#include "slamb/detail/pass/model_passes.hpp"
#include "slamb/detail/pass/pass.hpp"

namespace slamb::detail {

/// L2 norms of an array [state elements] of the backend's memory, by group.
template <class Context, class T>
std::vector<double> norms_by_group(const Context& context, std::span<const T> values) {
  std::vector<double> norms(context.tensors.groups(), 0.0);
  for (const segment& s : context.tensors.segments())
    norms[s.group] += context.executor.sum_of_squares(values.subspan(s.state, s.size), context.ranks.wrapped());
  for (double& norm : norms) norm = std::sqrt(norm);
  return norms;
}

/// Runs `norms_of_model`, and calls visit(tensor, ‖p‖², ‖m‖², ‖v‖² as an array) for every tensor.
/// @param model  a view with momentum and variance
template <class Context, class View, class Visit>
void visit_squares(const Context& context, View model, const Visit& visit) {
  model.skip = nullptr;  // a step that failed may have been skipped before
  context.executor.run(norms_of_model{}, model, context.all_tiles(), context.sums());
  context.executor.template visit_segments<norms_of_model::sums>(context.tensors.first_tiles(), 0,
                                                                 context.tensors.segments().size(), context.sums(),
                                                                 context.ranks.wrapped(), visit);
}

/// ‖p‖, ‖m‖, ‖v‖ over all tensors.
template <class Context, class View>
statistics::norms_type norms_of(const Context& context, const View& model) {
  double square[norms_of_model::sums] = {};
  visit_squares(context, model, [&square](std::size_t, const double* of_tensor) {
    for (int i = 0; i < norms_of_model::sums; ++i) square[i] += of_tensor[i];
  });
  return {std::sqrt(square[0]), std::sqrt(square[1]), std::sqrt(square[2])};
}

/// ‖v‖₁, which is Σ v.
template <class Context, class View>
double variance_norm(const Context& context, const View& model) {
  context.executor.run(sum_of_variance{}, model, context.all_tiles(), context.sums());
  return context.executor.total({context.sums(), context.tensors.tiles().size()}, context.ranks.wrapped());
}

/// Calls set(tensor, z) for all compressed tensors, with z such that z ‖m‖/√n is equal in all: docs/algorithms/one_bit_lamb.md
/// (9). z is bounded, because a momentum near 0 may grow again.
template <class Context, class View, class Set>
void equalize_signals(const Context& context, const View& model, const Set& set) {
  constexpr double largest_signal_scale = 1e6;
  double mean = 0.0, count = 0.0;
  const auto visit_sizes = [&context, &model](const auto& visit) {
    visit_squares(context, model, [&](std::size_t i, const double* squares) {
      const segment& s = std::as_const(context.tensors).segments()[i];
      if (s.size > 0 && !s.dense) visit(i, std::sqrt(squares[1] / static_cast<double>(s.size)));
    });
  };
  visit_sizes([&](std::size_t, double q) { mean += q, count += 1.0; });
  if (count > 0.0) mean /= count;
  visit_sizes([&](std::size_t i, double q) { set(i, q > 0.0 ? std::min(mean / q, largest_signal_scale) : 1.0); });
}

}  // namespace slamb::detail
