// The bytes in which a Backend stores the arrays of a model, for `plan::world::stored`.
#pragma once

#include <span>

#include "slamb/core/detail/sentence.hpp"
#include "slamb/core/parameter.hpp"
#include "slamb/core/storage_bytes.hpp"
#include "slamb/detail/pass/memory_traffic.hpp"
#include "slamb/detail/pass/precision.hpp"

namespace slamb::plan {

/// The storage of tensors with these types, in an optimizer on `Backend`.
///
///     using backend = slamb::precision::mixed<>;
///     constexpr auto bfloat16 = slamb::parameter::bfloat16;
///     plan_traffic(shapes, options, {.ranks = 8, .stored = stored_by<backend>(bfloat16, bfloat16)});
///
/// @param has_master  the tensors have a `parameter::master`; with `precision::master_copies` all have a copy
/// @throws std::invalid_argument if a type is not float32 and the Backend is not `precision::mixed`
template <class Backend>
constexpr storage_bytes stored_by(parameter::element_type data, parameter::element_type gradient,
                                  bool has_master = false) {
  using precision = typename detail::precision_of<Backend>::type;
  if (!precision::takes_types && (data != parameter::float32 || gradient != parameter::float32))
    detail::throw_sentence({"plan::stored_by: the Backend stores float32 alone, but the tensors have parameters of ",
                            detail::name_of(data), " and gradients of ", detail::name_of(gradient),
                            "; plan for precision::mixed<Backend>"});
  constexpr bool keeps_masters = precision::takes_types && !precision::rounds_by_chance;
  const auto width = static_cast<double>(detail::size_of(data));
  const bool has_copy = width < sizeof(float) && (keeps_masters || has_master);
  return {.parameter = has_copy ? sizeof(float) : width,
          .rounded = has_copy ? width : 0.0,
          .data = width,
          .gradient = static_cast<double>(detail::size_of(gradient)),
          .arrays = detail::bytes_of_arrays<typename precision::arrays>};
}

/// The same for a model whose tensors have different types: the mean over its elements.
/// @param tensors  their pointers are not read
/// @throws std::invalid_argument likewise
template <class Backend>
storage_bytes stored_by(std::span<const parameter> tensors) {
  double elements = 0.0;
  for (const parameter& tensor : tensors) elements += static_cast<double>(tensor.size);
  storage_bytes mean = stored_by<Backend>(parameter::float32, parameter::float32);
  if (elements == 0.0) return mean;
  mean.parameter = mean.data = mean.gradient = 0.0;
  for (const parameter& tensor : tensors) {
    const storage_bytes own = stored_by<Backend>(tensor.data.type(), tensor.gradient.type(), tensor.master != nullptr);
    const double part = static_cast<double>(tensor.size) / elements;
    mean.parameter += part * own.parameter;
    mean.rounded += part * own.rounded;
    mean.data += part * own.data;
    mean.gradient += part * own.gradient;
  }
  return mean;
}

}  // namespace slamb::plan
