// Bytes of memory traffic of single kernels, counted like those of whole steps (planned_bytes.hpp).
#pragma once

#include <bit>
#include <cstddef>
#include <type_traits>

#include "slamb/backend/cuda/detail/executor.hpp"
#include "slamb/detail/pass/memory_traffic.hpp"
#include "slamb/detail/pass/quantized_pass.hpp"

namespace bench {

/// The bytes that a kernel moves. Scales, tables of tiles and work per tensor are negligible, and not counted.
struct kernel_bytes {
  bool is_known = false;
  double element = 0.0;  ///< per element that it covers
  double sent = 0.0;     ///< per element of SLAMB's payload
  double own = 0.0;      ///< per element of this rank's chunk
};

/// The table shows a dash for unknown kernels.
template <class Kernel>
struct bytes_of_kernel {
  static constexpr kernel_bytes value{};
};

template <class Pass>
struct bytes_of_kernel<slamb::detail::run_pass<Pass>> {
  static constexpr kernel_bytes value{.is_known = true, .element = slamb::detail::bytes_per_element<Pass>()};
};

template <class Pass, class Selection>
struct bytes_of_kernel<slamb::detail::run_selected<Pass, Selection>> {
  using kernel = slamb::detail::run_selected<Pass, Selection>;
  static constexpr double ages = kernel::stores_ages ? 2.0 * sizeof(typename kernel::age_type) : 0.0;
  static constexpr kernel_bytes value{
      .is_known = true,
      .element = slamb::detail::bytes_per_element<Pass>() + ages,
      .sent = static_cast<double>(sizeof(float)) * (Pass::packs::stored + (Pass::receives ? 1 : 0))};
};

template <class Pass>
struct bytes_of_kernel<slamb::detail::run_packed<Pass>> {
  static constexpr kernel_bytes value{.is_known = true, .sent = slamb::detail::bytes_per_element<Pass>()};
};

namespace detail {

template <class Storage>
inline constexpr double error_bytes = std::is_same_v<Storage, slamb::detail::no_storage> ? 0.0 : sizeof(Storage);
// Of a quantizer, or of the phases of two.
template <class Quantizers>
inline constexpr double bytes_of_signal = slamb::detail::signal_quantizer_t<Quantizers>::bits_per_element / 8.0;
template <class Quantizers>
inline constexpr double bytes_of_mean = slamb::detail::mean_quantizer_t<Quantizers>::bits_per_element / 8.0;
template <slamb::detail::encode_mode Work>
inline constexpr double encodes = Work == slamb::detail::encode_mode::statistics ? 0.0 : 1.0;

}  // namespace detail

template <slamb::detail::encode_mode Work, class Storage, class Pass, class Quantizer>
struct bytes_of_kernel<slamb::detail::send_signal<Work, Storage, Pass, Quantizer>> {
  static constexpr kernel_bytes value{.is_known = true,
                                      .element = static_cast<double>(sizeof(float)) * Pass::signal_reads::stored +
                                                 detail::error_bytes<Storage> +
                                                 detail::encodes<Work> * detail::bytes_of_signal<Quantizer>};
};

// Reads the codes of N ranks for the chunk, which has 1/N of the elements.
template <slamb::detail::encode_mode Work, class Storage, class Quantizers>
struct bytes_of_kernel<slamb::detail::average_signals<Work, Storage, Quantizers>> {
  static constexpr kernel_bytes value{
      .is_known = true,
      .element = detail::bytes_of_signal<Quantizers>,
      .own = sizeof(float) + detail::error_bytes<Storage> + detail::encodes<Work> * detail::bytes_of_mean<Quantizers>};
};

template <class Storage, class ServerStorage, class Pass, class Quantizers>
struct bytes_of_kernel<slamb::detail::receive_mean<Storage, ServerStorage, Pass, Quantizers>> {
  static constexpr bool keeps =
      detail::error_bytes<Storage> > 0.0;  // recomputes the compression error from the sent codes
  using reads =
      slamb::detail::union_of_t<typename Pass::reads, slamb::detail::arrays_if<keeps, typename Pass::signal_reads>>;
  static constexpr kernel_bytes value{
      .is_known = true,
      .element = static_cast<double>(sizeof(float)) * (reads::stored + Pass::writes::stored) +
                 2.0 * detail::error_bytes<Storage> + detail::bytes_of_mean<Quantizers> +
                 (keeps ? detail::bytes_of_signal<Quantizers> : 0.0),
      .own = detail::error_bytes<ServerStorage> > 0.0
                 ? sizeof(float) + detail::bytes_of_mean<Quantizers> + detail::error_bytes<ServerStorage>
                 : 0.0};
};

}  // namespace bench
