// Runs the stages of a compressed exchange on one rank: by the host's executor, and by emulated kernels.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "slamb/backend/cuda/detail/active_kernel.hpp"
#include "slamb/backend/cuda/detail/decoded_kernels.hpp"
#include "slamb/backend/cuda/detail/emulator.hpp"
#include "slamb/backend/cuda/detail/scale_kernels.hpp"
#include "slamb/backend/host/detail/executor.hpp"
#include "slamb/detail/pass/messages.hpp"
#include "support/cuda_quantized.hpp"

namespace test_support {

template <class Storage>
using host_storage = std::conditional_t<std::is_same_v<Storage, slamb::detail::cuda::no_storage>,
                                        slamb::detail::host::no_storage, Storage>;

/// The types of one exchange.
template <class QuantizerType, class PassType, class WorkerStorage, class ServerStorage>
struct quantized_case {
  using quantizer = QuantizerType;
  using pass = PassType;
  using worker = WorkerStorage;
  using server = ServerStorage;
  using rank = quantized_rank<quantizer, worker, server>;
};

/// Initializes messages, unless the step is skipped.
inline void mark(const quantized_memory& r, std::byte* messages, std::uint64_t count) {
  if (r.view.skip == nullptr || *r.view.skip == 0)
    slamb::detail::start_messages{nullptr, messages, r.wire.message_bytes, count}();
}

/// Counts the active elements, on both sides.
inline void mark_counted_on_host(quantized_memory& r, bool zero_aware) {
  const std::vector<slamb::detail::row_mask> rows = r.row_masks();
  slamb::detail::host::executor(1, 1).mark_active(r.view, r.wire, r.all_tiles(), rows.data(),
                                                  zero_aware ? r.view.variance : nullptr,
                                                  r.has_masks() ? r.active : nullptr, r.counts.data());
}
inline void mark_counted_by_kernel(quantized_memory& r, bool zero_aware, const slamb::detail::cuda::emulator& on) {
  const std::vector<slamb::detail::row_mask> rows = r.row_masks();
  const slamb::detail::cuda::mark_active_kernel<> kernel{.view = r.view,
                                                         .wire = r.wire,
                                                         .tiles = r.all_tiles(),
                                                         .rows = rows.data(),
                                                         .variance = zero_aware ? r.view.variance : nullptr,
                                                         .active = r.has_masks() ? r.active : nullptr,
                                                         .counts = r.counts.data()};
  on.launch(kernel, kernel.work());
}

/// The stages by the host's executor.
template <class Case>
class host_side {
  using rank = typename Case::rank;
  using quantizer = typename Case::quantizer;
  using pass = typename Case::pass;

 public:
  void mark_active(rank& r) const { mark_counted_on_host(r, is_zero_aware(r)); }
  template <slamb::detail::encode_mode Work>
  bool send(rank& r) const {
    std::uint32_t not_finite = 0;
    executor_.send<Work, host_storage<typename Case::worker>>(pass::of(r), r.quantizer, r.view, r.wire, r.all_tiles(),
                                                              r.statistic.data(), &not_finite);
    return not_finite == 0;
  }
  template <slamb::detail::encode_mode Work>
  void average(rank& r) const {
    executor_.average<Work, host_storage<typename Case::server>>(r.quantizer, r.view, r.wire, r.own,
                                                                 r.statistic.data());
  }
  void finish_sent(rank& r) const { finish(r, r.sent_scales(), r.wire.sent); }
  void finish_averaged(rank& r) const { finish(r, r.averaged_scales(), r.wire.averaged); }
  std::vector<double> receive(rank& r) const {
    std::vector<double> sums(r.tiles() * slamb::detail::results_of<typename pass::type>() + 1, -1.0);
    executor_.receive<host_storage<typename Case::worker>, host_storage<typename Case::server>>(
        pass::of(r), r.quantizer, r.view, r.wire, r.all_tiles(), sums.data());
    return sums;
  }
  std::vector<double> measure(rank& r) const {
    std::vector<double> squares(r.tiles() * 2 + 1, -1.0);
    executor_.measure<host_storage<typename Case::worker>>(pass::of(r), r.quantizer, r.view, r.wire, r.all_tiles(),
                                                           squares.data());
    return squares;
  }

  static bool is_zero_aware(const rank& r) {
    if constexpr (requires { r.quantizer.zero_aware; })
      return r.quantizer.zero_aware;
    else
      return false;
  }

 private:
  void finish(rank& r, const slamb::detail::host_scale_table& lists, std::byte* messages) const {
    executor_.finish_scales<quantizer>(
        {lists.groups.data(), lists.tiles.data(), lists.places.data(), lists.groups.size()}, r.statistic.data(),
        r.counts.data(), messages, r.view.skip);
  }

  slamb::detail::host::executor executor_{1, 1};
};

/// The stages by emulated kernels.
template <class Case>
class device_side {
  using rank = typename Case::rank;
  using quantizer = typename Case::quantizer;
  using pass = typename Case::pass;
  using pass_type = typename pass::type;

 public:
  explicit device_side(slamb::detail::cuda::emulator on = slamb::detail::cuda::emulator()) : on_(on) {}

  std::uint32_t not_finite = 0;

  void mark_active(rank& r) const { mark_counted_by_kernel(r, host_side<Case>::is_zero_aware(r), on_); }
  template <slamb::detail::encode_mode Work>
  bool send(rank& r) {
    not_finite = 0;
    launch(slamb::detail::cuda::send_kernel<Work, typename Case::worker, pass_type, quantizer>{
        pass::of(r), r.quantizer, r.view, r.wire, r.all_tiles(), r.statistic.data(), &not_finite});
    return not_finite == 0;
  }
  template <slamb::detail::encode_mode Work>
  void average(rank& r) const {
    launch(slamb::detail::cuda::average_kernel<Work, typename Case::server, quantizer>{
        r.quantizer, r.view, r.wire, r.own.data(), r.own.size(), r.statistic.data()});
  }
  void finish_sent(rank& r) const { finish(r, r.sent_scales(), r.wire.sent); }
  void finish_averaged(rank& r) const { finish(r, r.averaged_scales(), r.wire.averaged); }
  std::vector<double> receive(rank& r) const {
    std::vector<double> sums(r.tiles() * slamb::detail::results_of<pass_type>() + 1, -1.0);
    launch(slamb::detail::cuda::receive_kernel<typename Case::worker, typename Case::server, pass_type, quantizer>{
        pass::of(r), r.quantizer, r.view, r.wire, r.all_tiles(), sums.data()});
    return sums;
  }
  std::vector<double> measure(rank& r) const {
    std::vector<double> squares(r.tiles() * 2 + 1, -1.0);
    launch(slamb::detail::cuda::measure_kernel<typename Case::worker, pass_type, quantizer>{
        pass::of(r), r.quantizer, r.view, r.wire, r.all_tiles(), squares.data()});
    return squares;
  }

 private:
  template <class Kernel>
  void launch(const Kernel& kernel) const {
    on_.launch(kernel, kernel.work());
  }
  void finish(rank& r, const slamb::detail::host_scale_table& lists, std::byte* messages) const {
    if constexpr (slamb::detail::cuda::scale_traits<quantizer>::is_shared)
      launch(slamb::detail::cuda::scale_kernel<quantizer>{
          {lists.groups.data(), lists.tiles.data(), lists.places.data(), lists.groups.size()},
          r.statistic.data(),
          r.counts.data(),
          messages,
          r.view.skip});
  }

  slamb::detail::cuda::emulator on_;
};

/// Encodes the signal. Calls after_sums() when the statistic is computed, and after_scales() when the scales are.
template <class Case, class Side, class Sums, class Scales>
bool send_all(Side& side, typename Case::rank& r, const Sums& after_sums, const Scales& after_scales) {
  constexpr bool first = slamb::detail::shared_scales<typename Case::quantizer>::are_known_first;
  mark(r, r.wire.sent, r.wire.ranks);
  const bool finite = side.template send < first ? slamb::detail::encode_mode::statistics
                                                 : slamb::detail::encode_mode::statistics_and_codes > (r);
  after_sums();
  side.finish_sent(r);
  after_scales();
  if constexpr (first) side.template send<slamb::detail::encode_mode::codes>(r);
  return finite;
}

/// Averages and encodes the mean, with the same two calls.
template <class Case, class Side, class Sums, class Scales>
void average_all(Side& side, typename Case::rank& r, const Sums& after_sums, const Scales& after_scales) {
  constexpr bool first = slamb::detail::shared_scales<typename Case::quantizer>::are_known_first;
  mark(r, r.wire.averaged, 1);
  side.template average<first ? slamb::detail::encode_mode::statistics
                              : slamb::detail::encode_mode::statistics_and_codes>(r);
  after_sums();
  side.finish_averaged(r);
  after_scales();
  if constexpr (first) side.template average<slamb::detail::encode_mode::codes>(r);
}

}  // namespace test_support
