#pragma once

#include <algorithm>
#include <cmath>
#include <utility>

#include "slamb/detail/exchange/norms.hpp"
#include "slamb/optimizer/detail/optimizer_core.hpp"

namespace slamb::detail {

// The model on which passes run even if a step that failed was skipped.
SLAMB_DECL any_view unskipped(any_view model) noexcept {
  model.skip = nullptr;
  return model;
}

SLAMB_DECL statistics::norms_type norms_of(const optimizer_core& core, const any_view& model) {
  double square[norms_of_model::sums] = {};
  core.on().run(norms_of_model{}, unskipped(model), core.all_tiles(), core.sums());
  core.visit_sums(norms_of_model::sums, [&square](std::size_t, const double* of_tensor) {
    for (int i = 0; i < norms_of_model::sums; ++i) square[i] += of_tensor[i];
  });
  return {std::sqrt(square[0]), std::sqrt(square[1]), std::sqrt(square[2])};
}

SLAMB_DECL double variance_norm(optimizer_core& core, const any_view& model) {
  core.on().run(sum_of_variance{}, model, core.all_tiles(), core.sums());
  return core.total_of_tiles();
}

SLAMB_DECL void equalize_signals(optimizer_core& core, const any_view& model,
                                 function_ref<void(std::size_t, double)> set) {
  constexpr double largest_signal_scale = 1e6;
  double mean = 0.0, count = 0.0;
  const auto size_of = [&core](std::size_t i, const double* squares) {  // ‖m‖/√n; negative: the tensor is sent whole
    const segment& s = std::as_const(core.tensors).segments()[i];
    return s.whole_size == 0 || s.dense ? -1.0 : std::sqrt(squares[1] / static_cast<double>(s.whole_size));
  };
  core.on().run(norms_of_model{}, unskipped(model), core.all_tiles(), core.sums());
  core.visit_whole_sums(
      norms_of_model::sums,
      [&](std::size_t i, const double* squares) {
        const double q = size_of(i, squares);
        if (q < 0.0) return;
        mean += q;
        count += 1.0;
      },
      [&](std::size_t i, const double* squares) {
        const double q = size_of(i, squares);
        if (q < 0.0) return;
        set(i, q > 0.0 ? std::min(mean / count / q, largest_signal_scale) : 1.0);
      });
}

}  // namespace slamb::detail
