// 1-bit Adam and 1-bit LAMB in double precision, for N ranks, written only from their equations.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <utility>
#include <vector>

#include "one_bit_exchange_oracle.hpp"

namespace oracle {

/// Settings of 1-bit Adam and 1-bit LAMB.
struct one_bit_settings {
  method algorithm = method::adamw;  ///< adamw: 1-bit Adam
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  std::uint64_t warm_up = 0;                                      ///< T_w, steps
  bool zero_aware = false;                                        ///< elements with v = 0 take no part in the exchange
  double update_bound = std::numeric_limits<double>::infinity();  ///< 0: Adam's own; ∞: off
  exchange_settings exchange{};

  // For 1-bit LAMB only.
  double trust_lower = 0.01;
  double trust_upper = 10.0;
  double average = 0.9;  ///< β_c
  double factor_lower = 0.5;
  double factor_upper = 4.0;
  double factor_change = 0.1;
};

/// The elements of all tensors end to end that some ranks hold, and exchange among themselves.
struct shard {
  std::vector<tensor> tensors;        ///< with the sizes of the parts
  std::vector<std::size_t> elements;  ///< [n] numbers among all elements
};

/// 1-bit Adam and 1-bit LAMB. All ranks hold the same parameters and moments; each has its own gradients and errors.
class one_bit {
 public:
  /// @param left_out  [n] 1 for elements that take no part in the exchange; empty: all take part
  /// @param shards    each has an exchange of its own among `world` ranks; elements of several are exchanged exactly. Empty: one exchange
  one_bit(std::vector<tensor> tensors, vector parameters, int world, const one_bit_settings& how,
          std::vector<std::uint8_t> left_out = {}, std::vector<shard> shards = {})
      : tensors_(std::move(tensors)),
        how_(how),
        shards_(std::move(shards)),
        left_out_(std::move(left_out)),
        p_(std::move(parameters)),
        m_(p_.size()),
        v_(p_.size()),
        late_(p_.size(), 0),
        awake_(p_.size(), 0),
        usual_ratio_(tensors_.size(), 0.0),
        last_factor_(tensors_.size(), 1.0) {
    if (p_.size() != total_size(tensors_)) throw std::invalid_argument("oracle: parameters and tensors differ");
    left_out_.resize(p_.size(), 0);
    if (shards_.empty()) {
      shards_.push_back({tensors_, std::vector<std::size_t>(p_.size())});
      std::iota(shards_[0].elements.begin(), shards_[0].elements.end(), std::size_t{0});
    }
    for (const shard& its : shards_) exchanges_.emplace_back(its.tensors, world, how.exchange);
  }

  /// One step with a learning rate for each tensor; `gradients` [rank][n].
  void step(const vector& learning_rates, const std::vector<vector>& gradients) {
    if (t_ == how_.warm_up) enter_compressed_phase();
    ++t_;
    if (t_ <= how_.warm_up) {
      warm_up(learning_rates, gradients);
    } else {
      compressed(learning_rates, gradients);
    }
  }

  /// Ends the warm-up: later steps are compressed.
  void end_warm_up() { how_.warm_up = static_cast<std::uint64_t>(t_); }

  const vector& parameters() const { return p_; }
  const vector& parameters(int /*rank*/) const { return p_; }
  const vector& momentum() const { return m_; }
  const vector& variance() const { return v_; }
  const vector& fresh_variance() const { return fresh_v_; }    ///< v_f
  const vector& factors() const { return last_factor_; }       ///< [tensors] f
  const vector& usual_ratios() const { return usual_ratio_; }  ///< [tensors] c̄
  const vector& signal_scales() const { return scaling_; }     ///< [tensors] z, after the warm-up
  void clear_errors() {
    for (two_phase_exchange& its : exchanges_) its.clear_errors();
  }
  const two_phase_exchange& exchange() const { return exchanges_[0]; }

  /// See `two_phase_exchange::close_calls`.
  std::vector<std::size_t> close_calls() const {
    std::vector<std::size_t> all;
    if (t_ <= how_.warm_up) return all;
    for (std::size_t s = 0; s < shards_.size(); ++s)
      for (const std::size_t i : exchanges_[s].close_calls()) all.push_back(shards_[s].elements[i]);
    return all;
  }

 private:
  // u = m/(√v+ε) + λp of element j; direction() is u without λp.
  double direction(std::size_t j) const {
    const bool is_late = may_be_late() && t_ > how_.warm_up && (v_[j] == 0.0 || late_[j] != 0);
    const double v = is_late && late_[j] == 0 ? first_variance(m_[j], how_.beta1, how_.beta2) : v_[j];
    const double w = m_[j] / (std::sqrt(v) + how_.epsilon);
    const double bound =
        t_ <= how_.warm_up || is_late ? bound_of(how_.update_bound, how_.beta1, how_.beta2, 1.0, 1.0) : frozen_bound_;
    return std::clamp(w, -bound, bound);
  }
  bool may_be_late() const { return std::isfinite(how_.update_bound); }
  double update(std::size_t j, const tensor& layer) const { return direction(j) + layer.weight_decay * p_[j]; }

  template <class F>
  void for_each_tensor(F f) const {
    std::size_t begin = 0;
    for (std::size_t l = 0; l < tensors_.size(); begin += tensors_[l++].size) f(l, tensors_[l], begin);
  }

  /// Σ f(j)² over the elements of a tensor.
  template <class F>
  static double squares(const tensor& layer, std::size_t begin, F f) {
    double sum = 0.0;
    for (std::size_t j = begin; j < begin + layer.size; ++j) sum += f(j) * f(j);
    return sum;
  }

  void apply(const tensor& layer, std::size_t begin, double rate) {
    vector u;
    for (std::size_t j = begin; j < begin + layer.size; ++j) u.push_back(update(j, layer));
    for (std::size_t i = 0; i < u.size(); ++i) p_[begin + i] -= rate * u[i];
  }

  void warm_up(const vector& learning_rates, const std::vector<vector>& gradients) {
    for (std::size_t j = 0; j < p_.size(); ++j) {
      const double g = mean(gradients, j);
      m_[j] = how_.beta1 * m_[j] + (1.0 - how_.beta1) * g;
      v_[j] = how_.beta2 * v_[j] + (1.0 - how_.beta2) * g * g;
    }
    for_each_tensor([&](std::size_t l, const tensor& layer, std::size_t begin) {
      double c = 1.0;
      if (how_.algorithm == method::lamb && layer.adapt) {
        const double of_p = squares(layer, begin, [&](std::size_t j) { return p_[j]; });
        const double of_u = squares(layer, begin, [&](std::size_t j) { return update(j, layer); });
        if (of_p > 0.0 && of_u > 0.0) c = std::clamp(std::sqrt(of_p / of_u), how_.trust_lower, how_.trust_upper);
        if (c != 1.0) usual_ratio_[l] = how_.average * usual_ratio_[l] + (1.0 - how_.average) * c;
      }
      apply(layer, begin, learning_rates[l] * layer.learning_rate_factor * c);
    });
  }

  // v_f ← v; z_l = mean of q over tensors / q_l with q_l = ‖m_l‖/√n_l, and z_l = 1 where q_l = 0. Tensors without elements do
  // not count.
  void enter_compressed_phase() {
    fresh_v_ = v_;
    // v is 1 − β2^T of what ever more gradients of its size would have made it.
    const double part = 1.0 - std::pow(how_.beta2, static_cast<double>(t_));
    frozen_bound_ = bound_of(how_.update_bound, how_.beta1, how_.beta2, 1.0, 1.0);
    if (how_.update_bound == 0.0) frozen_bound_ /= std::sqrt(part);
    scaling_.assign(tensors_.size(), 1.0);
    if (how_.algorithm != method::lamb) return;
    vector q(tensors_.size(), 0.0);
    double sum = 0.0;
    double count = 0.0;
    for_each_tensor([&](std::size_t l, const tensor& layer, std::size_t begin) {
      if (layer.size == 0) return;
      const double of_m = squares(layer, begin, [&](std::size_t j) { return m_[j]; });
      q[l] = std::sqrt(of_m / static_cast<double>(layer.size));
      sum += q[l];
      count += 1.0;
    });
    for (std::size_t l = 0; l < q.size(); ++l)
      if (q[l] > 0.0) scaling_[l] = sum / count / q[l];
  }

  void compressed(const vector& learning_rates, const std::vector<vector>& gradients) {
    exchange_momentum(gradients);
    for_each_tensor([&](std::size_t l, const tensor& layer, std::size_t begin) {
      const bool adapts = how_.algorithm == method::lamb && layer.adapt;
      double scale = 1.0;
      if (adapts && may_be_late() && usual_ratio_[l] == 0.0) {  // LAMB's ratio of this step
        const double of_p = squares(layer, begin, [&](std::size_t j) { return p_[j]; });
        const double of_u = squares(layer, begin, [&](std::size_t j) { return update(j, layer); });
        if (of_p > 0.0 && of_u > 0.0) scale = std::clamp(std::sqrt(of_p / of_u), how_.trust_lower, how_.trust_upper);
      } else if (adapts) {
        scale = usual_ratio_[l] * factor(l, layer, begin);
      }
      apply(layer, begin, learning_rates[l] * layer.learning_rate_factor * scale);
    });
    for (std::size_t j = 0; j < p_.size() && may_be_late(); ++j) {
      if (late_[j] != 0) {
        v_[j] = next_variance(v_[j], m_[j], how_.beta1, how_.beta2);
      } else if (v_[j] == 0.0 && m_[j] != 0.0) {
        v_[j] = first_variance(m_[j], how_.beta1, how_.beta2);
        late_[j] = 1;
      }
    }
  }

  // m ← onebit(z (β1 m + (1−β1) g_i)) / z;  ĝ = (m − β1 m′)/(1−β1);  v_f ← β2 v_f + (1−β2) ĝ²
  void exchange_momentum(const std::vector<vector>& gradients) {
    vector z(p_.size(), 1.0);
    for_each_tensor([&](std::size_t l, const tensor& layer, std::size_t begin) {
      for (std::size_t j = begin; j < begin + layer.size; ++j) z[j] = scaling_[l];
    });
    std::vector<vector> x = gradients;
    for (vector& of_rank : x)
      for (std::size_t j = 0; j < p_.size(); ++j)
        of_rank[j] = z[j] * (how_.beta1 * m_[j] + (1.0 - how_.beta1) * of_rank[j]);
    std::vector<std::uint8_t> left_out = left_out_;
    for (std::size_t j = 0; j < p_.size(); ++j)
      if (how_.zero_aware && v_[j] == 0.0 && awake_[j] == 0 && left_out[j] == 0)
        left_out[j] = may_be_late() ? two_phase_exchange::announces : 1;
    const vector received = exchanged(x, left_out);
    for (std::size_t j = 0; j < p_.size(); ++j) {
      const double m = received[j] / z[j];
      const double g = (m - how_.beta1 * m_[j]) / (1.0 - how_.beta1);
      fresh_v_[j] = how_.beta2 * fresh_v_[j] + (1.0 - how_.beta2) * g * g;
      m_[j] = m;
    }
  }

  vector exchanged(const std::vector<vector>& x, const std::vector<std::uint8_t>& left_out) {
    vector all(p_.size());
    for (std::size_t s = 0; s < shards_.size(); ++s) {
      const std::vector<std::size_t>& elements = shards_[s].elements;
      std::vector<vector> its(x.size(), vector(elements.size()));
      std::vector<std::uint8_t> its_left_out(elements.size());
      for (std::size_t i = 0; i < elements.size(); ++i) {
        for (std::size_t rank = 0; rank < x.size(); ++rank) its[rank][i] = x[rank][elements[i]];
        its_left_out[i] = left_out[elements[i]];
      }
      const vector received = exchanges_[s](its, its_left_out);
      for (std::size_t i = 0; i < elements.size(); ++i) {
        all[elements[i]] = received[i];
        if (exchanges_[s].announced()[i] != 0) awake_[elements[i]] = 1;
      }
    }
    return all;
  }

  // f of a tensor: max D/D_f, 1 for a late element, mixed with 1 by the weight decay's share of u, clamped twice.
  double factor(std::size_t l, const tensor& layer, std::size_t begin) {
    double f = 0.0;
    for (std::size_t j = begin; j < begin + layer.size; ++j) {
      const bool is_late = may_be_late() && (v_[j] == 0.0 || late_[j] != 0);
      f = std::max(f, is_late ? 1.0 : (std::sqrt(v_[j]) + how_.epsilon) / (std::sqrt(fresh_v_[j]) + how_.epsilon));
    }
    if (layer.weight_decay > 0.0) {
      const double of_w = squares(layer, begin, [&](std::size_t j) { return direction(j); });
      const double of_u = squares(layer, begin, [&](std::size_t j) { return update(j, layer); });
      const double rho = of_u > 0.0 ? std::min(1.0, std::sqrt(of_w / of_u)) : 1.0;
      f = f * rho + (1.0 - rho);
    }
    f = std::clamp(f, how_.factor_lower, how_.factor_upper);
    f = std::clamp(f, (1.0 - how_.factor_change) * last_factor_[l], (1.0 + how_.factor_change) * last_factor_[l]);
    return last_factor_[l] = f;
  }

  std::vector<tensor> tensors_;
  one_bit_settings how_;
  std::vector<shard> shards_;
  std::vector<two_phase_exchange> exchanges_;  // [shards]
  std::vector<std::uint8_t> left_out_;
  vector p_, m_, v_;                 // [n]
  std::vector<std::uint8_t> late_;   // [n] 1: v began after the freeze
  std::vector<std::uint8_t> awake_;  // [n] 1: takes part in the exchange, though it has no v yet
  vector fresh_v_;                   // [n] v_f
  vector scaling_;                   // [tensors] z
  vector usual_ratio_;               // [tensors] c̄
  vector last_factor_;               // [tensors] f of the last step
  double frozen_bound_ = 0.0;
  std::uint64_t t_ = 0;
};

}  // namespace oracle
