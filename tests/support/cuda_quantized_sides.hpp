// Runs the stages of a compressed exchange on one rank: by the host's launcher, and by emulated kernels.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "slamb/backend/cuda/detail/emulator.hpp"
#include "slamb/detail/kernel/active.hpp"
#include "slamb/detail/kernel/scales.hpp"
#include "slamb/detail/kernel/two_phase.hpp"
#include "slamb/detail/pass/messages.hpp"
#include "support/cuda_quantized.hpp"
#include "support/launchers.hpp"

namespace test_support {

/// The types of one exchange.
template <class QuantizerType, class PassType, class WorkerStorage, class ServerStorage>
struct quantized_case {
  using quantizer = QuantizerType;
  using pass = PassType;
  using worker = WorkerStorage;
  using server = ServerStorage;
  using rank = quantized_rank<quantizer, worker, server>;
};

/// One rank's memory, and the stages of its exchange by the kernels that a launcher runs.
template <class Case, class Launcher>
class exchange_side {
  using quantizer = typename Case::quantizer;
  using pass = typename Case::pass;
  using pass_type = typename pass::type;
  using encode_mode = slamb::detail::encode_mode;

 public:
  /// How a message is encoded at first, and whether its codes follow when its scales are known.
  static constexpr bool needs_scale_first = slamb::detail::shared_scales<quantizer>::are_known_first;
  static constexpr encode_mode first = needs_scale_first ? encode_mode::statistics : encode_mode::statistics_and_codes;

  exchange_side(const quantized_setup& setup, const quantizer& its, Launcher on) : r(setup, its), on_(std::move(on)) {}

  void mark_active() {
    const std::vector<slamb::detail::row_mask> rows = r.row_masks();
    bool is_zero_aware = false;
    if constexpr (requires { r.quantizer.zero_aware; }) is_zero_aware = r.quantizer.zero_aware;
    on_.launch(slamb::detail::mark_active<>{.view = r.view,
                                            .wire = r.wire,
                                            .tiles = r.all_tiles(),
                                            .rows = rows.data(),
                                            .numbers = is_zero_aware ? r.view.variance : nullptr,
                                            .active = r.has_masks() ? r.active : nullptr,
                                            .counts = r.counts.data()});
  }
  void start_sent() { start(r.wire.sent, r.wire.ranks); }
  void start_averaged() { start(r.wire.averaged, 1); }
  /// True if all values are finite.
  template <encode_mode Work>
  bool send() {
    std::uint32_t not_finite = 0;
    on_.launch(slamb::detail::send_signal<Work, typename Case::worker, pass_type, quantizer>{
        pass::of(r), r.quantizer, r.view, r.wire, r.all_tiles(), r.statistic.data(), &not_finite});
    return not_finite == 0;
  }
  template <encode_mode Work>
  void average(const slamb::detail::read_overflow_flags& read_flags = {}) {
    on_.launch(slamb::detail::average_signals<Work, typename Case::server, quantizer>{
        r.quantizer, r.view, r.wire, r.own.data(), r.own.size(), r.statistic.data(), read_flags});
  }
  void finish_sent() { finish(r.sent_scales(), r.wire.sent); }
  void finish_averaged() { finish(r.averaged_scales(), r.wire.averaged); }
  std::vector<double> receive() {
    std::vector<double> sums(r.tiles() * slamb::detail::results_of<pass_type>() + 1, -1.0);
    on_.launch(slamb::detail::receive_mean<typename Case::worker, typename Case::server, pass_type, quantizer>{
        pass::of(r), r.quantizer, r.view, r.wire, r.all_tiles(), sums.data()});
    return sums;
  }
  std::vector<double> measure() {
    std::vector<double> squares(r.tiles() * 2 + 1, -1.0);
    on_.launch(slamb::detail::measure_error<typename Case::worker, pass_type, quantizer>{
        pass::of(r), r.quantizer, r.view, r.wire, r.all_tiles(), squares.data()});
    return squares;
  }
  template <class... Functions>
  void invoke(const Functions&... functions) {
    on_.invoke(functions...);
  }

  /// Encodes the signal. Calls after_sums() when the statistic is computed.
  template <class AfterSums = slamb::detail::nothing_to_do>
  bool send_all(const AfterSums& after_sums = {}) {
    start_sent();
    const bool finite = send<first>();
    after_sums();
    finish_sent();
    if constexpr (needs_scale_first) send<encode_mode::codes>();
    return finite;
  }
  /// Averages and encodes the mean, with the same call.
  template <class AfterSums = slamb::detail::nothing_to_do>
  void average_all(const AfterSums& after_sums = {}) {
    start_averaged();
    average<first>();
    after_sums();
    finish_averaged();
    if constexpr (needs_scale_first) average<encode_mode::codes>();
  }

  typename Case::rank r;

 private:
  // Initializes messages, unless the step is skipped.
  void start(std::byte* messages, std::uint64_t count) {
    if (!slamb::detail::is_skipped(r.view.skip))
      slamb::detail::start_messages{nullptr, messages, r.wire.message_bytes, count}();
  }
  void finish(const slamb::detail::host_scale_table& lists, std::byte* messages) {
    on_.launch(slamb::detail::finish_scales<quantizer>{
        {lists.groups.data(), lists.tiles.data(), lists.places.data(), lists.groups.size()},
        r.statistic.data(),
        r.counts.data(),
        messages,
        r.view.skip});
  }

  Launcher on_;
};

template <class Case>
struct host_side : exchange_side<Case, slamb::detail::host::thread_launcher> {
  host_side(const quantized_setup& setup, const typename Case::quantizer& quantizer)
      : host_side::exchange_side(setup, quantizer, host_launcher()) {}
};
template <class Case>
struct device_side : exchange_side<Case, emulated> {
  device_side(const quantized_setup& setup, const typename Case::quantizer& quantizer, emulated on = emulated_on())
      : device_side::exchange_side(setup, quantizer, std::move(on)) {}
};

}  // namespace test_support
