// Bytes of memory traffic of a pass by the types in which its arrays are stored.
#pragma once

#include <cstddef>
#include <span>
#include <type_traits>

#include "slamb/slamb.hpp"

namespace bench {

/// Bytes an element of each array, as it is stored. The default is floats. Other arrays are floats.
struct storage_bytes {
  double parameter = 4.0;  ///< as passes read and write it: the master copy, if there is one
  double rounded = 0.0;    ///< beside a master copy: a pass that writes the parameter writes it rounded too
  double data = 4.0;       ///< the caller's parameters, if a pass reads them apart from the master copy
  double gradient = 4.0;   ///< the caller's
  double momentum = 4.0;
  double variance = 4.0;

  /// For passes that read the mean gradient of several ranks, in the exchange buffer.
  constexpr storage_bytes with_exchanged_gradient() const noexcept {
    storage_bytes all = *this;
    all.gradient = sizeof(float);
    return all;
  }
};

/// Bytes that a pass reads of one element of an array.
template <class Array>
constexpr double bytes_read(const storage_bytes& stored) noexcept {
  namespace array = slamb::detail::array;
  if constexpr (std::is_void_v<typename Array::stored>)
    return 0.0;
  else if constexpr (std::is_same_v<Array, array::parameter>)
    return stored.parameter;
  else if constexpr (std::is_same_v<Array, array::data>)
    return stored.data;
  else if constexpr (std::is_same_v<Array, array::gradient>)
    return stored.gradient;
  else if constexpr (std::is_same_v<Array, array::momentum>)
    return stored.momentum;
  else if constexpr (std::is_same_v<Array, array::variance>)
    return stored.variance;
  else
    return sizeof(float);
}

/// Bytes that a pass writes of one element of an array.
template <class Array>
constexpr double bytes_written(const storage_bytes& stored) noexcept {
  if constexpr (std::is_same_v<Array, slamb::detail::array::parameter>)
    return stored.parameter + stored.rounded;
  else
    return bytes_read<Array>(stored);
}

/// Bytes of one element of all arrays in a list.
template <class List>
struct bytes_of_list;
template <class... Arrays>
struct bytes_of_list<slamb::detail::arrays<Arrays...>> {
  static constexpr double read(const storage_bytes& stored) noexcept {
    return (0.0 + ... + bytes_read<Arrays>(stored));
  }
  static constexpr double written(const storage_bytes& stored) noexcept {
    return (0.0 + ... + bytes_written<Arrays>(stored));
  }
};

/// Bytes of memory traffic an element of a pass.
template <class Pass>
constexpr double bytes_per_element(const storage_bytes& stored) noexcept {
  return bytes_of_list<typename Pass::reads>::read(stored) + bytes_of_list<typename Pass::writes>::written(stored);
}

/// Bytes that these types add to the bytes of passes on floats; negative if they save some.
template <class... Passes>
constexpr double added_by_types(const storage_bytes& stored) noexcept {
  return (0.0 + ... + (bytes_per_element<Passes>(stored) - slamb::detail::bytes_per_element<Passes>()));
}

/// Bytes that these types add to those of a list that a pass reads.
template <class List>
constexpr double added_to_reads(const storage_bytes& stored) noexcept {
  return bytes_of_list<List>::read(stored) - bytes_of_list<List>::read({});
}

/// Bytes that these types add to `slamb::detail::exchange_memory_bytes` of floats, with the same arguments.
template <class Pass, class ErrorFeedback, class Quantizer>
constexpr double added_to_exchange(const storage_bytes& stored, bool is_quantized = true) noexcept {
  namespace d = slamb::detail;
  if (!is_quantized) return added_by_types<d::check_signal<Pass>, d::pass_with_own_signal<Pass>>(stored);
  constexpr double times = d::shared_scales<Quantizer>::are_known_first ? 2.0 : 1.0;
  constexpr bool finds_error = ErrorFeedback::worker_state || requires { Pass::uses_compression_error; };
  using signal_reads = typename Pass::signal_reads;
  using reads = d::union_of_t<typename Pass::reads, d::arrays_if<finds_error, signal_reads>>;
  using writes = bytes_of_list<typename Pass::writes>;
  return times * added_to_reads<signal_reads>(stored) + added_to_reads<reads>(stored) + writes::written(stored) -
         writes::written({});
}

/// Bytes an element of m or v in this storage, with its part in the scale of a block.
template <class Storage>
constexpr double bytes_of_moment() noexcept {
  constexpr double scale = Storage::is_in_blocks ? sizeof(float) / static_cast<double>(slamb::detail::code_block) : 0.0;
  return static_cast<double>(Storage::element_bytes) + scale;
}

/// The mean bytes an element of tensors, for an optimizer on this Backend.
template <class Backend>
storage_bytes storage_of(std::span<const slamb::parameter> tensors) {
  using precision = typename slamb::detail::precision_of<Backend>::type;
  constexpr bool keeps_masters = precision::takes_types && !precision::rounds_by_chance;
  storage_bytes sum{.parameter = 0.0,
                    .data = 0.0,
                    .gradient = 0.0,
                    .momentum = bytes_of_moment<typename precision::momentum_storage>(),
                    .variance = bytes_of_moment<typename precision::variance_storage>()};
  double elements = 0.0;
  for (const slamb::parameter& tensor : tensors) {
    const auto count = static_cast<double>(tensor.size);
    const auto width = static_cast<double>(slamb::detail::size_of(tensor.data.type()));
    const bool has_master = width < sizeof(float) && (keeps_masters || tensor.master != nullptr);
    elements += count;
    sum.parameter += count * (has_master ? sizeof(float) : width);
    sum.rounded += count * (has_master ? width : 0.0);
    sum.data += count * width;
    sum.gradient += count * static_cast<double>(slamb::detail::size_of(tensor.gradient.type()));
  }
  if (elements == 0.0) return {};
  for (double* const each : {&sum.parameter, &sum.rounded, &sum.data, &sum.gradient}) *each /= elements;
  return sum;
}

}  // namespace bench
