// 0/1 Adam in double precision, for N ranks, written only from its equations.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <utility>
#include <vector>

#include "one_bit_exchange_oracle.hpp"

namespace oracle {

/// Settings of 0/1 Adam.
struct zero_one_settings {
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  std::uint64_t freeze_step = 0;
  std::uint64_t update_scaler = 16;  ///< κ
  std::uint64_t local_scaler = 32678;
  std::uint64_t local_clipper = 16;
  bool zero_aware = false;                                        ///< elements with v = 0 take no part in the exchange
  double update_bound = std::numeric_limits<double>::infinity();  ///< 0: Adam's own; ∞: off
  exchange_settings exchange{};
};

/// 0/1 Adam. Each rank has its own parameters and momentum; the variance is common.
class zero_one_adam {
 public:
  /// The kind of a step.
  enum class kind { full_precision, one_bit_gradient, local, exchange };

  /// @param left_out  [n] 1 for elements that take no part in the exchange; empty: all take part
  zero_one_adam(std::vector<tensor> tensors, const vector& parameters, int world, const zero_one_settings& how,
                std::vector<std::uint8_t> left_out = {})
      : tensors_(std::move(tensors)),
        how_(how),
        exchange_(tensors_, world, how.exchange),
        left_out_(std::move(left_out)),
        v_(parameters.size()),
        late_(parameters.size(), 0),
        awake_(parameters.size(), 0),
        common_(parameters),
        rates_(tensors_.size(), 0.0),
        p_(static_cast<std::size_t>(world), parameters),
        m_(p_.size(), vector(parameters.size())) {
    if (parameters.size() != total_size(tensors_)) throw std::invalid_argument("oracle: parameters and tensors differ");
    left_out_.resize(parameters.size(), 0);
  }

  /// The next step ignores the gradient of `rank`, if it is a local step.
  void leave_out(int rank) { leaves_out_ = rank; }

  /// One step with a learning rate for each tensor; `gradients` [rank][n].
  void step(const vector& learning_rates, const std::vector<vector>& gradients) {
    ++tau_;
    if (variance_is_frozen_) {
      local_step(learning_rates, gradients);
      for (std::size_t j = 0; j < v_.size() && exchange_.is_identity(); ++j) go_on_with_late(j);
      if (tau_ % local_interval_ == 0) exchange_updates();
      if (++local_steps_ % how_.local_scaler == 0) local_interval_ = std::min(2 * local_interval_, how_.local_clipper);
      return;
    }
    const vector g = exchange_gradient(gradients);
    for (std::size_t rank = 0; rank < p_.size(); ++rank) take(rank, learning_rates, g);
    if (last_ == kind::one_bit_gradient)
      for (std::size_t j = 0; j < v_.size(); ++j) go_on_with_late(j);
    if (tau_ > how_.freeze_step) {
      variance_is_frozen_ = true;
      exchange_.clear_errors();
      common_ = p_[0];
    }
  }

  const vector& parameters(int rank) const { return p_.at(static_cast<std::size_t>(rank)); }
  const vector& momentum(int rank) const { return m_.at(static_cast<std::size_t>(rank)); }
  const vector& variance() const { return v_; }
  const two_phase_exchange& exchange() const { return exchange_; }
  kind last() const { return last_; }

  /// See `two_phase_exchange::close_calls`.
  std::vector<std::size_t> close_calls() const {
    const bool compressed = last_ == kind::one_bit_gradient || last_ == kind::exchange;
    return compressed ? exchange_.close_calls() : std::vector<std::size_t>{};
  }

 private:
  std::vector<std::uint8_t> left_out() const {
    std::vector<std::uint8_t> all = left_out_;
    for (std::size_t j = 0; j < v_.size(); ++j)
      if (how_.zero_aware && v_[j] == 0.0 && awake_[j] == 0 && all[j] == 0)
        all[j] = may_be_late() ? two_phase_exchange::announces : 1;
    return all;
  }
  void wake() {
    for (std::size_t j = 0; j < v_.size(); ++j)
      if (exchange_.announced()[j] != 0) awake_[j] = 1;
  }

  bool may_be_late() const { return std::isfinite(how_.update_bound); }
  bool has_no_variance(std::size_t j) const { return may_be_late() && v_[j] == 0.0; }
  double bound_at(std::size_t j) const {
    return has_no_variance(j) || late_[j] != 0 ? bound_of(how_.update_bound, how_.beta1, how_.beta2, 1.0, 1.0)
                                               : bound();
  }
  // m/(√v+ε) within its bound.
  double direction(std::size_t j, double m) const {
    const double v = has_no_variance(j) ? first_variance(m, how_.beta1, how_.beta2) : v_[j];
    const double bound = bound_at(j);
    return std::clamp(m / (std::sqrt(v) + how_.epsilon), -bound, bound);
  }
  // By a momentum that all ranks have.
  void go_on_with_late(std::size_t j) {
    const double m = m_[0][j];
    if (late_[j] != 0) {
      v_[j] = next_variance(v_[j], m, how_.beta1, how_.beta2);
    } else if (has_no_variance(j) && m != 0.0) {
      v_[j] = first_variance(m, how_.beta1, how_.beta2);
      late_[j] = 1;
    }
  }

  // If τ mod V = 0: g in full precision, and v is updated with it. Otherwise: the one-bit exchange of g. V doubles after κ
  // refreshes.
  vector exchange_gradient(const std::vector<vector>& gradients) {
    if (tau_ % variance_interval_ != 0) {
      last_ = kind::one_bit_gradient;
      const vector g = exchange_(gradients, left_out());
      wake();
      return g;
    }
    last_ = kind::full_precision;
    vector g(v_.size());
    for (std::size_t j = 0; j < v_.size(); ++j) {
      g[j] = mean(gradients, j);
      v_[j] = how_.beta2 * v_[j] + (1.0 - how_.beta2) * g[j] * g[j];
      late_[j] = 0;
    }
    if (++variance_updates_ % how_.update_scaler == 0) variance_interval_ *= 2;
    return g;
  }

  // v is 1 − β2^R of what ever more gradients of its size would have made it, where R is the number of refreshes.
  double bound() const {
    if (bound_after_ == variance_updates_) return bound_;  // it is asked for at each element
    bound_after_ = variance_updates_;
    bound_ = bound_of(how_.update_bound, how_.beta1, how_.beta2, 1.0, 1.0);
    if (how_.update_bound == 0.0)
      bound_ /= std::sqrt(1.0 - std::pow(how_.beta2, static_cast<double>(variance_updates_)));
    return bound_;
  }

  // m ← β1 m + (1−β1) g;  p ← p − γ(m/(√v+ε) + λp) at one rank.
  void take(std::size_t rank, const vector& learning_rates, const vector& g) {
    std::size_t j = 0;
    for (std::size_t l = 0; l < tensors_.size(); ++l) {
      const double gamma = learning_rates[l] * tensors_[l].learning_rate_factor;
      for (const std::size_t end = j + tensors_[l].size; j < end; ++j) {
        double& m = m_[rank][j];
        double& p = p_[rank][j];
        m = how_.beta1 * m + (1.0 - how_.beta1) * g[j];
        p -= gamma * (direction(j, m) + tensors_[l].weight_decay * p);
      }
    }
  }

  // A step of each rank by itself. The sum of a rank's updates since the anchor, b, is p_i − common.
  void local_step(const vector& learning_rates, const std::vector<vector>& gradients) {
    last_ = kind::local;
    for (std::size_t rank = 0; rank < p_.size(); ++rank)
      if (static_cast<int>(rank) != leaves_out_) take(rank, learning_rates, gradients[rank]);
    leaves_out_ = -1;
    for (std::size_t l = 0; l < tensors_.size(); ++l) rates_[l] += learning_rates[l] * tensors_[l].learning_rate_factor;
  }

  // y = onebit(b (√v+ε));  m ← −y/Γ, unless Γ = 0;  p ← common + y/(√v+ε). A single rank that does not encode does nothing here.
  void exchange_updates() {
    if (exchange_.is_identity()) return;
    last_ = kind::exchange;
    std::vector<vector> x = p_;
    std::size_t j = 0;
    for (std::size_t l = 0; l < tensors_.size(); ++l)
      for (const std::size_t end = j + tensors_[l].size; j < end; ++j)
        for (std::size_t rank = 0; rank < x.size(); ++rank) {
          double& signal = x[rank][j];
          signal =
              has_no_variance(j) ? -rates_[l] * m_[rank][j] : (signal - common_[j]) * (std::sqrt(v_[j]) + how_.epsilon);
        }
    const vector y = exchange_(x, left_out());
    wake();
    j = 0;
    for (std::size_t l = 0; l < tensors_.size(); ++l) {
      for (const std::size_t end = j + tensors_[l].size; j < end; ++j) {
        if (rates_[l] != 0.0)
          for (vector& m : m_) m[j] = -y[j] / rates_[l];
        const double most = std::isfinite(bound()) ? bound_at(j) * rates_[l] : bound();
        common_[j] += has_no_variance(j) ? -rates_[l] * direction(j, m_[0][j])
                                         : std::clamp(y[j] / (std::sqrt(v_[j]) + how_.epsilon), -most, most);
      }
    }
    j = 0;
    for (std::size_t l = 0; l < tensors_.size(); ++l)
      for (const std::size_t end = j + tensors_[l].size; j < end; ++j)
        if (rates_[l] != 0.0) go_on_with_late(j);
    p_.assign(p_.size(), common_);
    rates_.assign(rates_.size(), 0.0);
  }

  std::vector<tensor> tensors_;
  zero_one_settings how_;
  two_phase_exchange exchange_;
  std::vector<std::uint8_t> left_out_;
  vector v_;                         // [n]
  std::vector<std::uint8_t> late_;   // [n] 1: v began between refreshes, or after the last
  std::vector<std::uint8_t> awake_;  // [n] 1: takes part in the exchange, though it has no v yet
  vector common_;                    // [n]
  vector rates_;                     // [tensors] Γ
  std::vector<vector> p_, m_;        // [rank][n]
  std::uint64_t tau_ = 1;            // t + 1
  std::uint64_t variance_interval_ = 1, variance_updates_ = 0;
  std::uint64_t local_interval_ = 1, local_steps_ = 0;
  bool variance_is_frozen_ = false;
  int leaves_out_ = -1;                                    // a rank
  mutable std::uint64_t bound_after_ = ~std::uint64_t{0};  // the updates of the variance for which bound_ is known
  mutable double bound_ = 0.0;
  kind last_ = kind::full_precision;
};

}  // namespace oracle
