#pragma once

#include <cmath>
#include <span>
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
  equal_signals all;
  const std::span<const segment> tensors = std::as_const(core.tensors).segments();
  const auto is_compressed = [&tensors](std::size_t i) { return tensors[i].whole_size != 0 && !tensors[i].dense; };
  core.on().run(norms_of_model{}, unskipped(model), core.all_tiles(), core.sums());
  core.visit_whole_sums(
      norms_of_model::sums,
      [&](std::size_t i, const double* squares) {
        if (is_compressed(i)) all.add(squares[1], tensors[i].whole_size);
      },
      [&](std::size_t i, const double* squares) {
        if (is_compressed(i)) set(i, all.scale_of(squares[1], tensors[i].whole_size));
      });
}

}  // namespace slamb::detail
