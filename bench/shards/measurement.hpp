// The time of a step with a shard group and without one, and of the collectives that the group adds.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "../shapes.hpp"
#include "../workbench.hpp"
#include "settings.hpp"
#include "slamb/slamb.hpp"

namespace bench::shards {

inline constexpr double learning_rate = 1e-4;
inline constexpr std::size_t message_bytes =
    sizeof(slamb::detail::shard_message);  ///< of the ranks' agreement on a step

inline double median_of(std::vector<double> values) {
  std::ranges::sort(values);
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2.0;
}

/// The median over rounds of the ratios within a round.
inline double median_ratio(const std::vector<double>& of, const std::vector<double>& to) {
  std::vector<double> ratios;
  for (std::size_t i = 0; i < of.size(); ++i) ratios.push_back(of[i] / to[i]);
  return median_of(std::move(ratios));
}

/// Seconds of each round.
struct samples {
  std::vector<double> wall{};  ///< until the slowest rank is done
  std::vector<double>
      processor{};  ///< time of the first rank's thread, which other programs on the machine hardly change
};

/// Steps of an optimizer on this rank's parts of all tensors.
struct step_times {
  samples alone;  ///< without a shard group, in batches of tensors that fit the cache, as host_backend has by default
  samples one_batch;  ///< without a shard group, with all tensors in one batch, as a shard group has them
  samples in_group;   ///< with the shard group
};

struct results {
  std::size_t tensors = 0;
  std::size_t elements = 0;  ///< of one rank
  step_times lamb, adamw;
  samples gather_of_message;  ///< an all_gather of `message_bytes`: in each step
  samples gather_of_sums;     ///< an all_gather of two doubles for each tensor: in each step of LAMB
};

/// This rank's parts of BERT-Large's tensors: an S-th of each, rounded up.
class parts {
 public:
  explicit parts(const settings& chosen) : model_(shapes_of(chosen)), alone_(model_.tensors()) {
    model_.fill(1);
    const std::vector<tensor_shape> whole = bert_large_tensors();
    for (std::size_t i = 0; i < whole.size(); ++i) alone_[i].dimensions = whole[i].dimensions();
  }

  /// For an optimizer without a shard group, and for one with it.
  const std::vector<slamb::parameter>& tensors() const noexcept { return alone_; }
  std::size_t elements() const noexcept {
    std::size_t sum = 0;
    for (const slamb::parameter& tensor : alone_) sum += tensor.size;
    return sum;
  }

 private:
  static std::vector<tensor_shape> shapes_of(const settings& chosen) {
    const std::size_t divisor = static_cast<std::size_t>(chosen.shards) * chosen.smaller;
    std::vector<tensor_shape> own;
    for (const tensor_shape& whole : bert_large_tensors()) own.push_back({(whole.size() + divisor - 1) / divisor});
    return own;
  }

  model model_;
  std::vector<slamb::parameter> alone_;
};

/// Processor time of this thread.
inline double processor_seconds() {
  std::timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

/// All ranks do `work` `times` times. Adds the seconds of one time.
template <class Ranks, class Work>
void take_time(samples& to, Ranks& ranks, int times, const Work& work) {
  ranks.meet();
  const auto start = std::chrono::steady_clock::now();
  const double processor = processor_seconds();
  for (int i = 0; i < times; ++i) work();
  to.processor.push_back((processor_seconds() - processor) / times);
  ranks.meet();
  to.wall.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() / times);
}

/// @tparam Alone, InGroup  the optimizer without and with a shard group
/// @param ranks  of this shard group; meet() waits for all of them, and communicator() joins them
template <class Alone, class InGroup, class Ranks>
step_times measure_steps(const settings& chosen, const parts& own, Ranks& ranks) {
  constexpr std::size_t no_limit = std::numeric_limits<std::size_t>::max();
  Alone alone(own.tensors(), {}, {}, {.threads = 1});
  Alone one_batch(own.tensors(), {}, {}, {.threads = 1, .cache_bytes = no_limit});
  InGroup in_group(own.tensors(), {}, slamb::sharded_communicator(ranks.communicator()), {.threads = 1});
  step_times times;
  constexpr int untimed = 2;
  for (std::uint64_t round = 0; round < chosen.rounds + untimed; ++round) {
    if (round == untimed) times = {};
    take_time(times.alone, ranks, 1, [&] { alone.step(learning_rate); });
    take_time(times.one_batch, ranks, 1, [&] { one_batch.step(learning_rate); });
    take_time(times.in_group, ranks, 1, [&] { in_group.step(learning_rate); });
  }
  return times;
}

/// One of several calls in a row.
template <class Ranks>
samples measure_gather(const settings& chosen, std::size_t bytes, Ranks& ranks) {
  constexpr int calls = 50;
  auto communicator = ranks.communicator();
  const std::vector<std::byte> mine(bytes);
  std::vector<std::byte> all(bytes * static_cast<std::size_t>(chosen.shards));
  samples seconds;
  for (std::uint64_t round = 0; round < chosen.rounds; ++round)
    take_time(seconds, ranks, calls,
              [&] { communicator.all_gather(std::span(mine), std::span(all), slamb::host_stream{}); });
  return seconds;
}

/// On each rank; the result of the first is reported.
template <class Ranks>
results measure(const settings& chosen, Ranks& ranks) {
  using group = slamb::sharded_communicator<slamb::self_communicator, typename Ranks::communicator_type>;
  const parts own(chosen);
  results all;
  all.tensors = own.tensors().size();
  all.elements = own.elements();
  all.lamb = measure_steps<slamb::lamb<>, slamb::lamb<group>>(chosen, own, ranks);
  all.adamw = measure_steps<slamb::adamw<>, slamb::adamw<group>>(chosen, own, ranks);
  all.gather_of_message = measure_gather(chosen, message_bytes, ranks);
  all.gather_of_sums = measure_gather(chosen, 2 * sizeof(double) * all.tensors, ranks);
  return all;
}

}  // namespace bench::shards
