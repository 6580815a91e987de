#pragma once

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

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
  struct compressed_tensor {
    std::size_t number;
    double size;  // ‖m‖/√n
  };
  std::vector<compressed_tensor> tensors;
  core.on().run(norms_of_model{}, unskipped(model), core.all_tiles(), core.sums());
  core.visit_whole_sums(norms_of_model::sums, [&](std::size_t i, const double* squares) {
    const segment& s = std::as_const(core.tensors).segments()[i];
    if (s.whole_size > 0 && !s.dense) tensors.push_back({i, std::sqrt(squares[1] / static_cast<double>(s.whole_size))});
  });
  double mean = 0.0;
  for (const compressed_tensor& its : tensors) mean += its.size;
  if (!tensors.empty()) mean /= static_cast<double>(tensors.size());
  for (const compressed_tensor& its : tensors)
    set(its.number, its.size > 0.0 ? std::min(mean / its.size, largest_signal_scale) : 1.0);
}

}  // namespace slamb::detail
