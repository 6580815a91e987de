// The functions that every optimizer invokes between passes, in the order of the backend's work, and the type that holds any of them.
#pragma once

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <initializer_list>

#include "slamb/core/config.hpp"
#include "slamb/core/detail/hash.hpp"
#include "slamb/core/real.hpp"
#include "slamb/detail/pass/one_of.hpp"
#include "slamb/detail/pass/step_state.hpp"
#include "slamb/detail/pass/sum_header.hpp"

namespace slamb::detail {

/// Writes learning rates to the memory that passes read, and adds them to the history of steps; for an executor to invoke. A rate
/// from device memory that is negative or not finite, also after the factor of a tensor, has the effect of a gradient that is not
/// finite.
struct write_learning_rates {
  static constexpr std::size_t most_values = 16;

  step_record* record = nullptr;
  double* to = nullptr;          ///< [count]
  const double* from = nullptr;  ///< [count] in the backend's memory; null: `value`, already checked
  const double* largest_factor =
      nullptr;  ///< [count] largest learning_rate_factor of the group's tensors; negative: the group has none
  std::size_t count = 0;
  std::uint64_t hash = 0;  ///< of all rates that come from the host
  bool adds_hash = false;  ///< true for the one part of the rates that adds `hash` to the history
  double value[most_values] = {};

  SLAMB_HOST_DEVICE static bool is_usable(double rate) { return rate >= 0.0 && rate <= 3.4028234663852886e38; }
  /// The bits of a rate by which ranks compare it: of the float that updates use.
  SLAMB_HOST_DEVICE static std::uint64_t word_of(double rate) { return as_word(static_cast<float>(rate) + 0.0F); }
  SLAMB_HOST_DEVICE void operator()() const {
    std::uint64_t found = hash_of_nothing;
    for (std::size_t i = 0; i < count; ++i) {
      const double rate = from == nullptr ? value[i] : from[i];
      if (from != nullptr && largest_factor[i] >= 0.0 && !is_usable(rate * largest_factor[i])) record->not_finite = 1;
      if (from != nullptr && largest_factor[i] >= 0.0) found = hash_with(found, word_of(rate));
      to[i] = rate;
    }
    if (from != nullptr || adds_hash) record->history = hash_with(record->history, from == nullptr ? hash : found);
  }
};

/// g ← g min(1, c/(‖g‖ + 1e-6)), the norm over all tensors; for an executor to invoke.
struct clip_gradient_scale {
  step_record* record;
  float* scale;          ///< by which passes scale the gradient
  const double* square;  ///< sum of the squares of the gradient as it is read
  double c;

  SLAMB_HOST_DEVICE void operator()() const {
    record->norm = record->gradient_scale * sqrt(*square);
    const double factor = c / (record->norm + 1e-6);
    if (factor < 1.0) record->gradient_scale *= factor;
    *scale = static_cast<float>(record->gradient_scale);
  }
};

/// This rank's share of the mean of ‖g_i‖² over ranks.
struct write_square_share {
  const double* square;
  float* share;
  int ranks;

  SLAMB_HOST_DEVICE void operator()() const { *share = static_cast<float>(*square / static_cast<double>(ranks)); }
};

/// Reads the mean. If it is not finite, all ranks skip the step.
struct read_mean_square {
  step_record* record;
  const float* mean;
  double* square;

  SLAMB_HOST_DEVICE void operator()() const {
    *square = static_cast<double>(*mean);
    if (!(*mean <= 0x1.fffffep127F)) record->not_finite = 1;
  }
};

/// One of these functions. A device compiles one kernel for all of them.
using step_call = one_of<begin_step, write_learning_rates, end_step, read_found_inf, note_parameters, note_payload,
                         note_selection, note_word, save_diverged, write_sum_header, read_sum_header,
                         read_local_sum_header, skip_if_not_finite, clip_gradient_scale, write_square_share,
                         read_mean_square, begin_following_exchange, end_following_exchange, drop_local_gradient>;

/// A few of them, in order: itself a function that an executor invokes.
struct step_calls {
  static constexpr int most = 4;

  int count = 0;
  step_call of[most];

  step_calls(std::initializer_list<step_call> calls) noexcept {
    for (const step_call& call : calls) of[count++] = call;
  }

  SLAMB_HOST_DEVICE void operator()() const {
    for (int i = 0; i < count; ++i) of[i].visit(run());
  }

 private:
  struct run {
    template <class Function>
    SLAMB_HOST_DEVICE void operator()(const Function& function) const {
      function();
    }
  };
};

}  // namespace slamb::detail
