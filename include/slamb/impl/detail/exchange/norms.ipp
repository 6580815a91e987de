#pragma once

#include <algorithm>
#include <cmath>
#include <utility>

#include "slamb/detail/exchange/norms.hpp"
#include "slamb/optimizer/detail/optimizer_core.hpp"

namespace slamb::detail {

// Runs `norms_of_model`, and calls visit(tensor, ‖p‖², ‖m‖², ‖v‖² as an array) for every tensor.
SLAMB_DECL void visit_squares(const optimizer_core& core, any_view model,
                              function_ref<void(std::size_t, const double*)> visit) {
  model.skip = nullptr;  // a step that failed may have been skipped before
  core.on().run(norms_of_model{}, model, core.all_tiles(), core.sums());
  core.visit_sums(norms_of_model::sums, visit);
}

SLAMB_DECL statistics::norms_type norms_of(const optimizer_core& core, const any_view& model) {
  double square[norms_of_model::sums] = {};
  visit_squares(core, model, [&square](std::size_t, const double* of_tensor) {
    for (int i = 0; i < norms_of_model::sums; ++i) square[i] += of_tensor[i];
  });
  return {std::sqrt(square[0]), std::sqrt(square[1]), std::sqrt(square[2])};
}

SLAMB_DECL double variance_norm(const optimizer_core& core, const any_view& model) {
  core.on().run(sum_of_variance{}, model, core.all_tiles(), core.sums());
  return core.total_of_tiles();
}

SLAMB_DECL void equalize_signals(const optimizer_core& core, const any_view& model,
                                 function_ref<void(std::size_t, double)> set) {
  constexpr double largest_signal_scale = 1e6;
  double mean = 0.0, count = 0.0;
  const auto visit_sizes = [&core, &model](const auto& visit) {
    visit_squares(core, model, [&](std::size_t i, const double* squares) {
      const segment& s = std::as_const(core.tensors).segments()[i];
      if (s.size > 0 && !s.dense) visit(i, std::sqrt(squares[1] / static_cast<double>(s.size)));
    });
  };
  visit_sizes([&](std::size_t, double q) { mean += q, count += 1.0; });
  if (count > 0.0) mean /= count;
  visit_sizes([&](std::size_t i, double q) { set(i, q > 0.0 ? std::min(mean / q, largest_signal_scale) : 1.0); });
}

}  // namespace slamb::detail
