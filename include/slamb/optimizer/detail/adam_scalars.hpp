// The constants of Adam's update in one step, and the tables of its rates.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

#include "slamb/core/config.hpp"
#include "slamb/detail/pass/layout.hpp"
#include "slamb/detail/pass/step_state.hpp"
#include "slamb/optimizer/detail/update_bound.hpp"

namespace slamb::detail {

/// The scalars of Adam's update that change from step to step; the same for all tensors.
struct adam_scalars {
  float one_minus_beta1 = 0.0F;
  float one_minus_beta2 = 0.0F;
  float momentum_correction = 1.0F;                           ///< 1/(1 − β1^t), or 1
  float deviation_correction = 1.0F;                          ///< 1/√(1 − β2^t), or 1
  float epsilon = 0.0F;                                       ///< as added to the corrected √v
  float gradient_scale = 1.0F;                                ///< multiplies the gradient as it is read
  float bound = std::numeric_limits<float>::infinity();       ///< of an element's direction
  float late_bound = std::numeric_limits<float>::infinity();  ///< likewise, if its variance began late
  float late_below = no_variance_is_late;                     ///< a variance below it began late, or has not begun
  float inverse_one_minus_beta1 = 1.0F;                       ///< 1/(1 − β1)
};

/// Computes the scalars of Adam's update from the options and t.
struct set_adam_scalars {
  const step_record* record;
  adam_scalars* scalars;
  double beta1, beta2, epsilon;
  bool corrects_bias;
  bool corrects_epsilon;  ///< ε is added to the uncorrected √v
  update_bound bound;
  bool has_late;              ///< some elements have begun late, or have not begun
  bool of_last_step = false;  ///< those of the last step again, in place of the next

  SLAMB_HOST_DEVICE void operator()() const {
    const auto t = static_cast<double>(record->taken + (of_last_step ? 0 : 1));
    const double momentum_correction = corrects_bias ? 1.0 / (1.0 - pow(beta1, t)) : 1.0;
    const double deviation_correction = corrects_bias ? 1.0 / sqrt(1.0 - pow(beta2, t)) : 1.0;
    scalars->one_minus_beta1 = static_cast<float>(1.0 - beta1);
    scalars->one_minus_beta2 = static_cast<float>(1.0 - beta2);
    scalars->momentum_correction = static_cast<float>(momentum_correction);
    scalars->deviation_correction = static_cast<float>(deviation_correction);
    scalars->epsilon = static_cast<float>(corrects_epsilon ? epsilon * deviation_correction : epsilon);
    scalars->gradient_scale = static_cast<float>(record->gradient_scale);
    scalars->bound = static_cast<float>(bound.at(t, beta1, beta2, corrects_bias));
    scalars->late_bound = static_cast<float>(update_bound{bound.chosen, bound.own}.at(t, beta1, beta2, corrects_bias));
    scalars->late_below = has_late ? least_variance : no_variance_is_late;
    scalars->inverse_one_minus_beta1 = static_cast<float>(1.0 / (1.0 - beta1));
  }
};

/// The constants of a tensor in passes of other updates.
struct tensor_rate {
  float weight_decay;  ///< λ
  float rate;          ///< γ
};

/// The tables that hold these constants.
struct rate_tables {
  const segment* segments = nullptr;
  const double* rates = nullptr;  ///< [groups]

  SLAMB_HOST_DEVICE tensor_rate operator[](std::uint32_t segment) const {
    const ::slamb::detail::segment& s = segments[segment];
    return {s.weight_decay, static_cast<float>(rates[s.group] * static_cast<double>(s.learning_rate_factor))};
  }
};

}  // namespace slamb::detail
