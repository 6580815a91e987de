// Passes that more than one recipe uses, and the scalars of Adam's update at one step.
#pragma once

#include <cmath>
#include <cstdint>

#include "slamb/core/element.hpp"
#include "slamb/core/pass.hpp"

namespace slamb {

/// Parameters → exchange buffer.
struct gather_parameters {
  static constexpr unsigned reads = stream::parameter;
  static constexpr unsigned writes = stream::exchanged;
  static constexpr int sums = 0;

  SLAMB_HOST_DEVICE no_constants constants(std::uint32_t /*segment*/) const { return {}; }

  template <class Real, class Sums>
  SLAMB_HOST_DEVICE void operator()(element<Real>& e, no_constants /*constants*/, Sums& /*sums*/) const {
    e.exchanged = e.parameter;
  }
};

/// Exchange buffer, scaled → parameters.
struct scatter_parameters {
  static constexpr unsigned reads = stream::exchanged;
  static constexpr unsigned writes = stream::parameter;
  static constexpr int sums = 0;

  float scale = 1.0F;

  SLAMB_HOST_DEVICE no_constants constants(std::uint32_t /*segment*/) const { return {}; }

  template <class Real, class Sums>
  SLAMB_HOST_DEVICE void operator()(element<Real>& e, no_constants /*constants*/, Sums& /*sums*/) const {
    e.parameter = e.exchanged * Real(scale);
  }
};

/// ‖p‖², ‖m‖², ‖v‖².
struct norms_of_model {
  static constexpr unsigned reads = stream::parameter | stream::momentum | stream::variance;
  static constexpr unsigned writes = 0;
  static constexpr int sums = 3;

  SLAMB_HOST_DEVICE no_constants constants(std::uint32_t /*segment*/) const { return {}; }

  template <class Real, class Sums>
  SLAMB_HOST_DEVICE void operator()(element<Real>& e, no_constants /*constants*/, Sums& sums) const {
    sums.add_square(0, e.parameter);
    sums.add_square(1, e.momentum);
    sums.add_square(2, e.variance);
  }
};

/// What is constant within a tensor when an update is made or applied.
template <class Factors>
struct tensor_constants {
  float weight_decay;  ///< λ
  float rate;          ///< γ
  Factors factors;     ///< of the trust ratio
};

/// The tables from which a pass takes its tensor's constants.
template <class Factors>
struct tensor_tables {
  const segment* segments = nullptr;
  const float* rates = nullptr;
  const Factors* factors = nullptr;

  SLAMB_HOST_DEVICE tensor_constants<Factors> operator[](std::uint32_t segment) const {
    return {segments[segment].weight_decay, rates[segment], factors[segment]};
  }
};

/// Adam's hyper-parameters as a recipe has them.
struct adam_settings {
  double beta1;
  double beta2;
  double epsilon;
  bool bias_correction;
  bool epsilon_is_uncorrected;  ///< ε is added to √v, not to √v̂
};

/// The scalars of step t.
inline adam_scalars scalars_at(std::uint64_t t, const adam_settings& a, double gradient_scale) {
  const auto steps = static_cast<double>(t);
  const double momentum_correction = a.bias_correction ? 1.0 / (1.0 - std::pow(a.beta1, steps)) : 1.0;
  const double deviation_correction = a.bias_correction ? 1.0 / std::sqrt(1.0 - std::pow(a.beta2, steps)) : 1.0;
  return {.beta1 = static_cast<float>(a.beta1),
          .one_minus_beta1 = static_cast<float>(1.0 - a.beta1),
          .beta2 = static_cast<float>(a.beta2),
          .one_minus_beta2 = static_cast<float>(1.0 - a.beta2),
          .momentum_correction = static_cast<float>(momentum_correction),
          .deviation_correction = static_cast<float>(deviation_correction),
          .epsilon = static_cast<float>(a.epsilon_is_uncorrected ? a.epsilon * deviation_correction : a.epsilon),
          .gradient_scale = static_cast<float>(gradient_scale)};
}

}  // namespace slamb
