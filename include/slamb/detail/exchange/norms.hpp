// Norms of what an optimizer keeps, for statistics and schedules. They wait for the device.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <span>
#include <utility>
#include <vector>

#include "slamb/core/statistics.hpp"
#include "slamb/detail/pass/common_passes.hpp"
#include "slamb/detail/pass/layout.hpp"
#include "slamb/detail/pass/pass.hpp"

namespace slamb::detail {

/// L2 norms of an array [state elements] of the backend's memory, by group.
template <class Base, class T>
std::vector<double> norms_by_group(const Base& base, std::span<const T> values) {
  std::vector<double> norms(base.tensors.groups(), 0.0);
  for (const segment& s : base.tensors.segments())
    norms[s.group] += base.executor.sum_of_squares(values.subspan(s.state, s.size), base.ranks.base());
  for (double& norm : norms) norm = std::sqrt(norm);
  return norms;
}

/// Runs `norms_of_model`, and calls visit(tensor, ‖p‖², ‖m‖², ‖v‖² as an array) for every tensor.
/// @param model  with momentum and variance
template <class Base, class View, class Visit>
void visit_squares(const Base& base, View model, const Visit& visit) {
  model.refused = nullptr;  // a step that failed may have been refused before
  base.executor.run(norms_of_model{}, model, base.all_tiles(), base.sums());
  base.executor.template visit_segments<norms_of_model::sums>(
      base.tensors.first_tiles(), 0, base.tensors.segments().size(), base.sums(), base.ranks.base(), visit);
}

/// ‖p‖, ‖m‖, ‖v‖ of the whole model.
template <class Base, class View>
norms norms_of(const Base& base, const View& model) {
  double square[norms_of_model::sums] = {};
  visit_squares(base, model, [&square](std::size_t, const double* of_tensor) {
    for (int i = 0; i < norms_of_model::sums; ++i) square[i] += of_tensor[i];
  });
  return {std::sqrt(square[0]), std::sqrt(square[1]), std::sqrt(square[2])};
}

/// ‖v‖₁, which is Σ v.
template <class Base, class View>
double variance_norm(const Base& base, const View& model) {
  base.executor.run(sum_of_variance{}, model, base.all_tiles(), base.sums());
  return base.executor.total({base.sums(), base.tensors.tiles().size()}, base.ranks.base());
}

/// Calls set(tensor, z) for all tensors that are compressed, such that z times the momentum is as large in each, by
/// ‖m‖/√n: docs/algorithms/one_bit_lamb.md (9). A momentum that has all but vanished may grow again, so z has a bound.
template <class Base, class View, class Set>
void equalize_signals(const Base& base, const View& model, const Set& set) {
  constexpr double largest_signal_scale = 1e6;
  double mean = 0.0, count = 0.0;
  const auto visit_sizes = [&base, &model](const auto& visit) {
    visit_squares(base, model, [&](std::size_t i, const double* squares) {
      const segment& s = std::as_const(base.tensors).segments()[i];
      if (s.size > 0 && !s.dense) visit(i, std::sqrt(squares[1] / static_cast<double>(s.size)));
    });
  };
  visit_sizes([&](std::size_t, double q) { mean += q, count += 1.0; });
  if (count > 0.0) mean /= count;
  visit_sizes([&](std::size_t i, double q) { set(i, q > 0.0 ? std::min(mean / q, largest_signal_scale) : 1.0); });
}

}  // namespace slamb::detail
