// Small kernels between passes: they add up the results of tiles, for each tensor or once a step, and call functions.
#pragma once

#include <cstddef>
#include <cstdint>

#include "slamb/core/bfloat16.hpp"
#include "slamb/core/config.hpp"
#include "slamb/detail/kernel/kernel.hpp"
#include "slamb/detail/pass/layout.hpp"
#include "slamb/detail/pass/pass.hpp"
#include "slamb/detail/pass/step_state.hpp"

namespace slamb::detail {

/// Reduces the results of each tensor's tiles in a fixed order, and calls finish(tensor, results). `results` is a const double*
/// [Sums + Maxima]: the sums, then the maxima, which are at least 0. It is valid until the call returns.
///
/// `Finish` is trivially copyable, and its const call operator can run on the device. One thread calls it; calls for different
/// tensors may run at the same time.
template <int Sums, int Maxima, class Finish>
struct finish_segments {
  static constexpr bool is_small = true;
  static constexpr int results = Sums + Maxima;
  static constexpr std::size_t sums = Sums, room = results == 0 ? 1 : results;  // of arrays

  Finish finish;
  const double* of_tiles = nullptr;         ///< [all tiles][results]
  const std::size_t* first_tile = nullptr;  ///< [tensors + 1] tensor i has tiles first_tile[i] … first_tile[i + 1] − 1
  std::size_t first = 0;                    ///< the first tensor
  std::size_t last = 0;                     ///< one past the last tensor
  const std::uint32_t* skip = nullptr;      ///< not 0: nothing is done; may be null

  std::size_t work() const noexcept { return last - first; }

  template <class Team>
  SLAMB_HOST_DEVICE void operator()(Team& team) const {
    if (is_skipped(skip)) return;
    auto& shared = team.template shared<results_of_segment>();
    for (std::size_t tensor = first + team.index(); tensor < last; tensor += team.count()) {
      const std::size_t from = first_tile[tensor];
      const std::size_t to = first_tile[tensor + 1];
      double total[room];
      if constexpr (Sums > 0) {
        double all[sums];
        team.sums(
            [&](unsigned thread, double(&own)[sums]) {
              for (double& each : own) each = 0.0;
              for (std::size_t i = from + thread; i < to; i += Team::threads)
                for (int k = 0; k < Sums; ++k) own[k] += at(i, k);
            },
            all);
        for (int k = 0; k < Sums; ++k) total[k] = all[k];
      }
      for (int k = Sums; k < results; ++k)
        total[k] = static_cast<double>(team.maximum([&](unsigned thread) {
          float own = 0.0F;
          for (std::size_t i = from + thread; i < to; i += Team::threads) {
            const auto x = static_cast<float>(at(i, k));  // it was a float
            own = own < x ? x : own;
          }
          return own;
        }));
      team.first([&] {
        for (int k = 0; k < results; ++k) shared.value[k] = total[k];
        finish(tensor, static_cast<const double*>(shared.value));
      });
    }
  }

 private:
  struct results_of_segment {
    double value[room];
  };

  SLAMB_HOST_DEVICE double at(std::size_t tile, int k) const {
    return of_tiles[tile * static_cast<std::size_t>(results) + static_cast<std::size_t>(k)];
  }
};

/// Keeps the results of each tensor, for the other ranks of a shard group; for `finish_segments`. Elements that another rank counts
/// leave 0.
template <int Results>
struct keep_results {
  const segment* segments = nullptr;  ///< null: all elements count
  double* to = nullptr;               ///< [tensors][Results]

  SLAMB_HOST_DEVICE void operator()(std::size_t tensor, const double* results) const {
    const bool counts = segments == nullptr || segments[tensor].is_counted;
    for (std::size_t k = 0; k < static_cast<std::size_t>(Results); ++k)
      to[tensor * static_cast<std::size_t>(Results) + k] = counts ? results[k] : 0.0;
  }
};

/// Calls finish(tensor, results) with the results of whole tensors: those of shards, added in their order, or their maxima.
template <int Sums, int Maxima, class Finish>
struct finish_shards {
  static constexpr bool is_small = true;
  static constexpr std::size_t sums = Sums, results = Sums + Maxima;

  Finish finish;
  const double* of_shards = nullptr;  ///< [shards][tensors][results]
  std::size_t shards = 1;
  std::size_t tensors = 0;
  const std::uint32_t* skip = nullptr;  ///< not 0: nothing is done; may be null

  std::size_t work() const noexcept { return tensors; }

  template <class Team>
  SLAMB_HOST_DEVICE void operator()(Team& team) const {
    if (is_skipped(skip)) return;
    auto& shared = team.template shared<results_of_tensor>();
    for (std::size_t tensor = team.index(); tensor < tensors; tensor += team.count())
      team.first([&] {
        for (std::size_t k = 0; k < results; ++k) {
          double all = 0.0;
          for (std::size_t shard = 0; shard < shards; ++shard) {
            const double its = of_shards[(shard * tensors + tensor) * results + k];
            all = k < sums ? all + its : (all < its ? its : all);
          }
          shared.value[k] = all;
        }
        finish(tensor, static_cast<const double*>(shared.value));
      });
  }

 private:
  struct results_of_tensor {
    double value[results];
  };
};

/// Adds up `count` doubles in a fixed order.
struct add_up {
  static constexpr bool is_small = true;

  const double* values = nullptr;  ///< [count]
  std::size_t count = 0;
  double* total = nullptr;              ///< [1] receives the sum
  const std::uint32_t* skip = nullptr;  ///< not 0: nothing is done; may be null
  const tile* tiles =
      nullptr;  ///< [count] not null: the values are of tiles, and those that another rank counts are left out
  const segment* segments = nullptr;  ///< [tensors] with `tiles`

  static std::size_t work() noexcept { return 1; }

  template <class Team>
  SLAMB_HOST_DEVICE void operator()(Team& team) const {
    if (is_skipped(skip) || team.index() != 0) return;
    const double all = team.sum([&](unsigned thread) {
      double own = 0.0;
      for (std::size_t i = thread; i < count; i += Team::threads)
        if (tiles == nullptr || segments[tiles[i].segment].is_counted) own += values[i];
      return own;
    });
    team.first([&] { *total = all; });
  }
};

/// Σ x² over each tile's part of an array of floats or bfloat16.
template <class T>
struct sum_squares {
  model_view view;
  tile_range tiles;
  const T* values = nullptr;  ///< [state elements]
  double* sums = nullptr;     ///< [all tiles]

  std::size_t work() const noexcept { return tiles.last - tiles.first; }

  template <class Team>
  SLAMB_HOST_DEVICE void operator()(Team& team) const {
    if (is_skipped(view.skip)) return;
    for (std::size_t i = tiles.first + team.index(); i < tiles.last; i += team.count()) {
      const tile t = view.tiles[i];
      const T* const first = values + view.segments[t.segment].state + t.first;
      const double all = team.sum([&](unsigned thread) {
        double own = 0.0;
        for (std::uint32_t j = thread; j < t.count; j += Team::threads) {
          const auto x = static_cast<double>(value_of_number(first[j]));
          own += x * x;  // exact, fused or not
        }
        return own;
      });
      team.first([&] { sums[i] = all; });
    }
  }

 private:
  SLAMB_HOST_DEVICE static float value_of_number(float x) { return x; }
  SLAMB_HOST_DEVICE static float value_of_number(bfloat16 x) { return to_float(x); }
};

/// Calls `call` once, for work that a step does once, such as updating its scalars. All threads call functions whose work threads
/// can share, also those in an `in_order`.
template <class Call>
struct invoke_functions {
  static constexpr bool is_small = true;

  Call call;                            ///< trivially copyable; its const call operator can run on the device
  const std::uint32_t* skip = nullptr;  ///< not 0: nothing is done; may be null

  static std::size_t work() noexcept { return 1; }

  template <class Team>
  SLAMB_HOST_DEVICE void operator()(Team& team) const {
    if (is_skipped(skip) || team.index() != 0) return;
    invoke(team, call);
  }

 private:
  template <class Team, class Function>
  SLAMB_HOST_DEVICE static void invoke(Team& team, const Function& function) {
    if constexpr (requires { function(0U, 1U); })
      team.each([&](unsigned thread) { function(thread, Team::threads); });
    else
      team.first([&] { function(); });
  }
  template <class Team, class First, class Second, class... Rest>
  SLAMB_HOST_DEVICE static void invoke(Team& team, const in_order<First, Second, Rest...>& all) {
    invoke(team, all.first);
    invoke(team, all.rest);
  }
  template <class Team, class Last>
  SLAMB_HOST_DEVICE static void invoke(Team& team, const in_order<Last>& all) {
    invoke(team, all.last);
  }
};

}  // namespace slamb::detail
