// 0/1 Adam in double precision, for N ranks, written only from its equations.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
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
  bool zero_aware = false;  ///< elements with v = 0 take no part in the exchange
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
      if (tau_ % local_interval_ == 0) exchange_updates();
      if (++local_steps_ % how_.local_scaler == 0) local_interval_ = std::min(2 * local_interval_, how_.local_clipper);
      return;
    }
    const vector g = exchange_gradient(gradients);
    for (std::size_t rank = 0; rank < p_.size(); ++rank) take(rank, learning_rates, g);
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
      if (how_.zero_aware && v_[j] == 0.0) all[j] = 1;
    return all;
  }

  // If τ mod V = 0: g in full precision, and v is updated with it. Otherwise: the one-bit exchange of g. V doubles after κ
  // refreshes.
  vector exchange_gradient(const std::vector<vector>& gradients) {
    if (tau_ % variance_interval_ != 0) {
      last_ = kind::one_bit_gradient;
      return exchange_(gradients, left_out());
    }
    last_ = kind::full_precision;
    vector g(v_.size());
    for (std::size_t j = 0; j < v_.size(); ++j) {
      g[j] = mean(gradients, j);
      v_[j] = how_.beta2 * v_[j] + (1.0 - how_.beta2) * g[j] * g[j];
    }
    if (++variance_updates_ % how_.update_scaler == 0) variance_interval_ *= 2;
    return g;
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
        p -= gamma * (m / (std::sqrt(v_[j]) + how_.epsilon) + tensors_[l].weight_decay * p);
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
    for (vector& of_rank : x)
      for (std::size_t j = 0; j < v_.size(); ++j)
        of_rank[j] = (of_rank[j] - common_[j]) * (std::sqrt(v_[j]) + how_.epsilon);
    const vector y = exchange_(x, left_out());
    std::size_t j = 0;
    for (std::size_t l = 0; l < tensors_.size(); ++l) {
      for (const std::size_t end = j + tensors_[l].size; j < end; ++j) {
        common_[j] += y[j] / (std::sqrt(v_[j]) + how_.epsilon);
        if (rates_[l] != 0.0)
          for (vector& m : m_) m[j] = -y[j] / rates_[l];
      }
    }
    p_.assign(p_.size(), common_);
    rates_.assign(rates_.size(), 0.0);
  }

  std::vector<tensor> tensors_;
  zero_one_settings how_;
  two_phase_exchange exchange_;
  std::vector<std::uint8_t> left_out_;
  vector v_, common_;          // [n]
  vector rates_;               // [tensors] Γ
  std::vector<vector> p_, m_;  // [rank][n]
  std::uint64_t tau_ = 1;      // t + 1
  std::uint64_t variance_interval_ = 1, variance_updates_ = 0;
  std::uint64_t local_interval_ = 1, local_steps_ = 0;
  bool variance_is_frozen_ = false;
  int leaves_out_ = -1;  // a rank
  kind last_ = kind::full_precision;
};

}  // namespace oracle
