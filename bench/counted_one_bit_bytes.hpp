// Bytes of memory traffic of the steps that exchange codes, counted like those of counted_bytes.hpp. Scales that tiles
// share, and the padding of messages, are too few to count.
#pragma once

#include <bit>
#include <cstddef>
#include <span>
#include <type_traits>

#include "counted_bytes.hpp"
#include "slamb/slamb.hpp"

namespace bench {

/// Bytes an element of the parts of an exchange of codes, on one of `ranks` ranks.
template <class ErrorFeedback, slamb::quantizer Quantizer>
class exchange_bytes {
 public:
  exchange_bytes(const Quantizer& quantizer, std::size_t ranks)
      : code_(code_bytes(quantizer)), ranks_(static_cast<double>(ranks)) {}

  /// Encodes the signal, and the mean over this rank's chunk; keeps what the mean has lost.
  template <class Pass>
  double send() const {
    const double signal = rounds * (value * Pass::signal_reads::stored + worker_error) + code_;
    const double mean = rounds * (ranks_ * code_ + server_error + value) + code_;
    const double compression_error = ErrorFeedback::server_state ? value + code_ + server_error : 0.0;
    return signal + (mean + compression_error) / ranks_;
  }

  /// Runs the pass with the decoded mean, and keeps what the signal has lost.
  template <class Pass>
  double receive() const {
    using reads = slamb::detail::union_of_t<
        typename Pass::reads, slamb::detail::arrays_if<bool(ErrorFeedback::worker_state), typename Pass::signal_reads>>;
    const double compression_error =
        ErrorFeedback::worker_state ? 2.0 * worker_error + code_ : 0.0;  // by the codes that were sent
    return value * (reads::stored + Pass::writes::stored) + compression_error + code_;
  }

 private:
  using storage = typename slamb::detail::error_storage<ErrorFeedback>::type;

  static constexpr double value = sizeof(float);
  static constexpr double worker_error = ErrorFeedback::worker_state ? sizeof(storage) : 0.0;
  static constexpr double server_error = ErrorFeedback::server_state ? sizeof(storage) : 0.0;
  static constexpr double rounds =
      slamb::detail::shared_scales<Quantizer>::are_known_first ? 2.0 : 1.0;  // one for the scale

  double code_;
  double ranks_;
};

/// The same of one rank that encodes nothing: the check of the signal, and the pass.
template <class Pass>
double bytes_without_exchange() {
  return slamb::detail::bytes_per_element<slamb::detail::check_signal<Pass>>() +
         slamb::detail::bytes_per_element<slamb::detail::pass_with_own_signal<Pass>>();
}

/// Bytes an element a step: 1-bit Adam and 1-bit LAMB.
template <class Compressor, class ErrorFeedback, class TrustRatio, class Communicator, class Backend, class WarmUp>
double counted_bytes(
    const slamb::basic_one_bit<Compressor, ErrorFeedback, TrustRatio, Communicator, Backend, WarmUp>& optimizer,
    std::span<const slamb::parameter> /*tensors*/, const steps_taken& taken) {
  if (taken.phase == "warm-up") return bytes_of_whole_step<TrustRatio>(taken.ranks, true);
  const exchange_bytes<ErrorFeedback, Compressor> exchange(optimizer.options().compressor, taken.ranks);
  const auto with = [&]<class Pass>(std::type_identity<Pass>) {
    const bool exchanges = taken.exchanges_of_codes > 0.0;  // at every step
    return exchanges ? exchange.template send<Pass>() + exchange.template receive<Pass>()
                     : bytes_without_exchange<Pass>();
  };
  const double apply = slamb::detail::bytes_per_element<slamb::detail::apply_update<TrustRatio>>();
  if constexpr (slamb::capability::frozen_ratio<TrustRatio>)
    return with(std::type_identity<slamb::detail::receive_and_refresh<TrustRatio>>{}) + apply;
  else if constexpr (TrustRatio::sums_per_segment > 0)
    return with(std::type_identity<slamb::detail::receive_and_sum<TrustRatio>>{}) + apply;
  else
    return with(std::type_identity<slamb::detail::receive_and_apply<TrustRatio>>{});
}

/// Bytes an element a step: 0/1 Adam, of steps that exchanged codes and steps that did not.
template <class Compressor, class ErrorFeedback, class Communicator, class Backend, class VarianceSchedule,
          class LocalSchedule>
double counted_bytes(const slamb::basic_zero_one_adam<Compressor, ErrorFeedback, Communicator, Backend,
                                                      VarianceSchedule, LocalSchedule>& optimizer,
                     std::span<const slamb::parameter> /*tensors*/, const steps_taken& taken) {
  using slamb::detail::bytes_per_element;
  const exchange_bytes<ErrorFeedback, Compressor> exchange(optimizer.options().compressor, taken.ranks);
  const auto mixed = [part = taken.exchanges_of_codes](double with_codes, double without) {
    return part * with_codes + (1.0 - part) * without;
  };
  if (taken.phase == "variance")
    return mixed(exchange.template send<slamb::detail::receive_gradient>() +
                     exchange.template receive<slamb::detail::receive_gradient>(),
                 bytes_of_whole_step<slamb::unit_trust_ratio>(taken.ranks, true));
  const bool is_active = taken.ranks > 1 || optimizer.options().compress_single_rank;
  return mixed(exchange.template send<slamb::detail::exchange_update>() +
                   exchange.template receive<slamb::detail::exchange_update>(),
               bytes_per_element<slamb::detail::check_gradient>() +
                   (is_active ? bytes_per_element<slamb::detail::local_update>()
                              : bytes_per_element<slamb::detail::update_with_frozen_variance>()));
}

}  // namespace bench
