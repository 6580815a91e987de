// Norms of parameters and state, for statistics and schedules. They wait for the device.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "slamb/core/config.hpp"
#include "slamb/core/detail/function_ref.hpp"
#include "slamb/core/statistics.hpp"
#include "slamb/detail/kernel/segments.hpp"
#include "slamb/detail/pass/layout.hpp"
#include "slamb/detail/pass/model_passes.hpp"

namespace slamb::detail {

class optimizer_core;

/// L2 norms of an array [state elements] of the backend's memory, by group. Waits.
template <class Context, class T>
std::vector<double> norms_by_group(const Context& context, std::span<const T> values) {
  std::vector<double> norms(context.tensors.groups(), 0.0);
  auto model = context.view();
  model.skip = nullptr;
  context.launch(sum_squares<T>{model, context.all_tiles(), values.data(), context.sums()});
  context.visit_sums(
      1, [&](std::size_t tensor, const double* square) { norms[context.tensors.segments()[tensor].group] += *square; });
  for (double& norm : norms) norm = std::sqrt(norm);
  return norms;
}

/// ‖x‖ and ‖x − x̂‖ of a signal that has been measured, by group: its sums of squares are those of each tile. Waits.
template <class Context>
void add_up_compression(const Context& context, std::vector<statistics::compression_type>& of_groups) {
  of_groups.assign(context.tensors.groups(), {});
  context.visit_sums(2, [&](std::size_t i, const double* squares) {
    statistics::compression_type& its = of_groups[context.tensors.segments()[i].group];
    its.signal += squares[0];
    its.error += squares[1];
  });
  for (statistics::compression_type& e : of_groups) e = {std::sqrt(e.signal), std::sqrt(e.error)};
}

/// ‖p‖, ‖m‖, ‖v‖ over all tensors; of this rank's shards alone.
/// @param model  a view with momentum and variance: `any_view_of`
statistics::norms_type norms_of(const optimizer_core& core, const any_view& model);

/// ‖v‖₁, which is Σ v, of the whole tensors. Takes a collective of the shard group, if there is one.
/// @param model  as above
double variance_norm(optimizer_core& core, const any_view& model);

/// z of compressed tensors, such that z ‖m‖/√n is equal in all: docs/algorithms/one_bit_lamb.md (9). z is bounded, because a momentum
/// near 0 may grow again.
class equal_signals {
 public:
  /// Adds a tensor of n > 0 elements.
  /// @param square  ‖m‖²
  void add(double square, std::uint64_t n) {
    sum_ += size_of(square, n);
    count_ += 1.0;
  }
  /// z of one of them, when all have been added.
  double scale_of(double square, std::uint64_t n) const {
    constexpr double largest = 1e6;
    const double q = size_of(square, n);
    return q > 0.0 ? std::min(sum_ / count_ / q, largest) : 1.0;
  }

 private:
  static double size_of(double square, std::uint64_t n) { return std::sqrt(square / static_cast<double>(n)); }

  double sum_ = 0.0, count_ = 0.0;
};

/// Calls set(tensor, z) for all compressed tensors, with z of `equal_signals`. Takes a collective of the shard group, if there is one.
/// @param model  as above
void equalize_signals(optimizer_core& core, const any_view& model, function_ref<void(std::size_t, double)> set);

}  // namespace slamb::detail
