// The double-precision oracle: AdamW, LAMB and SLAMB for N ranks, written only from their equations.
//
// It shares no code with the library, so that a misreading in one shows in the other. The state of every rank is a plain vector
// over all tensors, end to end.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <utility>
#include <vector>

namespace oracle {

using vector = std::vector<double>;

/// One tensor and its options.
struct tensor {
  std::size_t size = 0;
  int dimensions = 2;
  double weight_decay = 0.01;         ///< λ
  double learning_rate_factor = 1.0;  ///< multiplies γ
  bool adapt = true;                  ///< false: trust ratio 1
  bool compress = true;               ///< false: SLAMB always exchanges it dense
};

/// AdamW has no trust ratio; LAMB has one for each tensor.
enum class method { adamw, lamb };

/// Settings of AdamW and LAMB.
struct settings {
  method algorithm = method::lamb;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-6;
  bool bias_correction = true;
  double max_gradient_norm = std::numeric_limits<double>::infinity();  ///< c of g ← g min(1, c/(‖g‖ + 1e-6)); ∞: off
  double trust_lower = 0.0;
  double trust_upper = std::numeric_limits<double>::infinity();
  bool adapt_without_weight_decay = true;  ///< false: no trust ratio where λ = 0
};

/// The two rescalings of SLAMB, and the ratio of the ranks' mean step.
enum class rescaling { product, blend, mean_step };

/// Settings of SLAMB.
struct slamb_settings {
  rescaling form = rescaling::product;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double beta3 = 0.93;
  double epsilon = 1e-6;
  bool bias_correction = true;
  std::uint64_t local_steps = 100;  ///< H
  std::size_t dense_below = 9000;
  double trust_lower = 0.01;
  double trust_upper = 1000.0;
  bool capped = false;                                            ///< the step of a tensor is at most γ‖p‖ long
  double update_bound = std::numeric_limits<double>::infinity();  ///< 0: Adam's own; ∞: off
};

/// The largest |m|/√v of any gradients, without bias corrections: √(Σ a_k²/b_k), where m = Σ a_k g_{t−k} and v = Σ b_k g²_{t−k}.
/// @param gradients  the number of gradients so far
inline double largest_direction(double beta1, double beta2, std::uint64_t gradients) {
  double squares = 0.0, a = 1.0 - beta1, b = 1.0 - beta2;
  for (std::uint64_t k = 0; k < gradients && a > 0.0; ++k, a *= beta1, b *= beta2) {
    if (squares > 0.0 && a * a / b < 1e-18 * squares) break;
    squares += a * a / b;
  }
  return std::sqrt(squares);
}

/// The variance of an element without one, by its first momentum, which is of one gradient.
inline double first_variance(double m, double beta1, double beta2) {
  const double g = m / (1.0 - beta1);
  return (1.0 - beta2) * g * g;
}
/// The variance of an element that began late, after one more momentum.
inline double next_variance(double v, double m, double beta1, double beta2) {
  return beta2 * v + (1.0 - beta2) * m * m / (1.0 - beta1);
}

/// The bound of |m̂|/(√v̂ + ε): the chosen one, or of ever so many gradients, with these corrections of m and of v, and a margin for
/// rounding.
inline double bound_of(double chosen, double beta1, double beta2, double correction1, double correction2) {
  if (chosen != 0.0) return chosen;
  if (beta1 * beta1 >= beta2) return std::numeric_limits<double>::infinity();
  struct last_call {
    double beta1, beta2, largest;
  };
  static thread_local last_call last{0.0, 0.0, 0.0};  // it is asked for at each element, and takes a hundred additions
  if (last.largest == 0.0 || last.beta1 != beta1 || last.beta2 != beta2)
    last = {beta1, beta2, largest_direction(beta1, beta2, ~std::uint64_t{0})};
  return last.largest * (1.0 + std::ldexp(1.0, -16)) * std::sqrt(correction2) / correction1;
}

inline std::size_t total_size(const std::vector<tensor>& tensors) {
  std::size_t total = 0;
  for (const tensor& l : tensors) total += l.size;
  return total;
}

/// ‖a‖ / ‖b‖ from two sums of squares; `otherwise` if either is 0.
inline double ratio(double squares_a, double squares_b, double otherwise = 1.0) {
  if (squares_a == 0.0 || squares_b == 0.0) return otherwise;
  return std::sqrt(squares_a) / std::sqrt(squares_b);
}

/// The mean over ranks of element j.
inline double mean(const std::vector<vector>& of_ranks, std::size_t j) {
  double sum = 0.0;
  for (const vector& x : of_ranks) sum += x[j];
  return sum / static_cast<double>(of_ranks.size());
}

/// AdamW and LAMB. All ranks hold the same state, so there is one copy.
class adam_family {
 public:
  adam_family(std::vector<tensor> tensors, vector parameters, const settings& how)
      : tensors_(std::move(tensors)), how_(how), p_(std::move(parameters)), m_(p_.size()), v_(p_.size()) {
    if (p_.size() != total_size(tensors_)) throw std::invalid_argument("oracle: parameters and tensors differ");
  }

  /// One step at one learning rate; `gradients` [rank][n].
  void step(double learning_rate, const std::vector<vector>& gradients) {
    step(vector(tensors_.size(), learning_rate), gradients);
  }

  /// One step with a learning rate for each tensor.
  void step(const vector& learning_rates, const std::vector<vector>& gradients) {
    ++t_;
    vector g(p_.size());
    double squares_g = 0.0;
    for (std::size_t j = 0; j < g.size(); ++j) {
      g[j] = mean(gradients, j);
      squares_g += g[j] * g[j];
    }
    const double c = how_.max_gradient_norm;
    const double factor = std::min(1.0, c / (std::sqrt(squares_g) + 1e-6));

    const double correction1 = how_.bias_correction ? 1.0 - std::pow(how_.beta1, t_) : 1.0;
    const double correction2 = how_.bias_correction ? 1.0 - std::pow(how_.beta2, t_) : 1.0;
    vector u(p_.size());
    std::size_t begin = 0;
    for (std::size_t l = 0; l < tensors_.size(); ++l) {
      const tensor& layer = tensors_[l];
      const std::size_t end = begin + layer.size;
      double squares_p = 0.0;
      double squares_u = 0.0;
      for (std::size_t j = begin; j < end; ++j) {
        const double gradient = g[j] * factor;
        m_[j] = how_.beta1 * m_[j] + (1.0 - how_.beta1) * gradient;
        v_[j] = how_.beta2 * v_[j] + (1.0 - how_.beta2) * gradient * gradient;
        const double m_hat = m_[j] / correction1;
        const double v_hat = v_[j] / correction2;
        u[j] = m_hat / (std::sqrt(v_hat) + how_.epsilon) + layer.weight_decay * p_[j];
        squares_p += p_[j] * p_[j];
        squares_u += u[j] * u[j];
      }
      double phi = 1.0;
      const bool skipped = layer.weight_decay == 0.0 && !how_.adapt_without_weight_decay;
      if (how_.algorithm == method::lamb && layer.adapt && !skipped) {
        phi = std::clamp(ratio(squares_p, squares_u), how_.trust_lower, how_.trust_upper);
      }
      const double gamma = learning_rates[l] * layer.learning_rate_factor;
      for (std::size_t j = begin; j < end; ++j) p_[j] -= gamma * phi * u[j];
      begin = end;
    }
  }

  const vector& parameters() const { return p_; }
  const vector& momentum() const { return m_; }
  const vector& variance() const { return v_; }

 private:
  std::vector<tensor> tensors_;
  settings how_;
  vector p_, m_, v_;
  int t_ = 0;
};

/// SLAMB. Each rank has its own parameters and moments; masks come from the caller.
///
/// The age of an element counts from step 0, as if all elements had been exchanged then: an element that was never exchanged has
/// age t at step t. (So at step 1 an element outside the mask has s = β3, not 1.)
class slamb {
 public:
  slamb(std::vector<tensor> tensors, const vector& parameters, int world, const slamb_settings& how)
      : tensors_(std::move(tensors)),
        how_(how),
        p_(static_cast<std::size_t>(world), parameters),
        m_(p_.size(), vector(parameters.size())),
        v_(m_),
        age_(parameters.size(), 0),
        mask_(parameters.size(), 1) {
    if (parameters.size() != total_size(tensors_)) throw std::invalid_argument("oracle: parameters and tensors differ");
  }

  /// One step at one learning rate; `gradients` [rank][n], `selected` [n] without the tensors that are always dense.
  void step(double learning_rate, const std::vector<vector>& gradients, const std::vector<std::uint8_t>& selected) {
    step(vector(tensors_.size(), learning_rate), gradients, selected);
  }

  /// One step with a learning rate for each tensor.
  void step(const vector& learning_rates, const std::vector<vector>& gradients,
            const std::vector<std::uint8_t>& selected) {
    ++t_;
    update_moments(gradients);
    own_ = m_;
    exchange(selected);
    for (std::size_t rank = 0; rank < p_.size(); ++rank) {
      std::size_t begin = 0;
      for (std::size_t l = 0; l < tensors_.size(); ++l) {
        const double gamma = learning_rates[l] * tensors_[l].learning_rate_factor;
        if (how_.form == rescaling::product) {
          apply_product(rank, tensors_[l], begin, gamma);
        } else if (how_.form == rescaling::mean_step) {
          apply_mean_step(rank, tensors_[l], begin, gamma);
        } else {
          apply_blend(rank, tensors_[l], begin, gamma);
        }
        begin += tensors_[l].size;
      }
    }
    if (how_.local_steps > 0 && (t_ - 1) % how_.local_steps == 0) synchronize_parameters();
  }

  /// p ← mean of p over ranks.
  void synchronize_parameters() {
    for (std::size_t j = 0; j < age_.size(); ++j) {
      const double average = mean(p_, j);
      for (vector& p : p_) p[j] = average;
    }
  }

  const vector& parameters(int rank) const { return p_.at(static_cast<std::size_t>(rank)); }
  std::vector<vector>& all_parameters() { return p_; }  ///< [rank][n], for another synchronisation after a step
  const vector& momentum(int rank) const { return m_.at(static_cast<std::size_t>(rank)); }
  const vector& variance(int rank) const { return v_.at(static_cast<std::size_t>(rank)); }
  const std::vector<std::uint64_t>& ages() const { return age_; }       ///< a_j after the last step
  const std::vector<std::uint8_t>& exchanged() const { return mask_; }  ///< M_t of the last step

 private:
  void update_moments(const std::vector<vector>& gradients) {
    for (std::size_t rank = 0; rank < p_.size(); ++rank) {
      for (std::size_t j = 0; j < age_.size(); ++j) {
        const double g = gradients[rank][j];
        m_[rank][j] = how_.beta1 * m_[rank][j] + (1.0 - how_.beta1) * g;
        v_[rank][j] = how_.beta2 * v_[rank][j] + (1.0 - how_.beta2) * g * g;
      }
    }
  }

  void exchange(const std::vector<std::uint8_t>& selected) {
    std::size_t j = 0;
    for (const tensor& layer : tensors_) {
      const bool dense = layer.dimensions <= 1 || layer.size < how_.dense_below || !layer.compress;
      for (const std::size_t end = j + layer.size; j < end; ++j) {
        mask_[j] = dense || selected[j] != 0 ? 1 : 0;
        age_[j] = mask_[j] != 0 ? 0 : age_[j] + 1;
        if (mask_[j] == 0) continue;
        const double average = mean(m_, j);
        for (vector& m : m_) m[j] = average;
      }
    }
  }

  /// s_j = β3^{a_j}
  double discount(std::size_t j) const { return std::pow(how_.beta3, static_cast<double>(age_[j])); }

  /// m̂ / (√v̂ + ε) of one element, for a given ε.
  double direction(std::size_t rank, std::size_t j, double epsilon) const {
    return direction_of(m_[rank][j], rank, j, epsilon);
  }
  double direction_of(double m, std::size_t rank, std::size_t j, double epsilon) const {
    const double m_hat = m / correction(how_.beta1);
    const double v_hat = v_[rank][j] / correction(how_.beta2);
    const double bound =
        bound_of(how_.update_bound, how_.beta1, how_.beta2, correction(how_.beta1), correction(how_.beta2));
    return std::clamp(m_hat / (std::sqrt(v_hat) + epsilon), -bound, bound);
  }

  double correction(double beta) const {
    return how_.bias_correction ? 1.0 - std::pow(beta, static_cast<double>(t_)) : 1.0;
  }

  void apply_product(std::size_t rank, const tensor& layer, std::size_t begin, double gamma) {
    vector& p = p_[rank];
    vector u(layer.size);
    double squares_p[2] = {0.0, 0.0};  // [0]: outside the mask, [1]: in it
    double squares_u[2] = {0.0, 0.0};
    for (std::size_t i = 0; i < layer.size; ++i) {
      const std::size_t j = begin + i;
      u[i] = direction(rank, j, how_.epsilon) + layer.weight_decay * p[j];
      squares_p[mask_[j]] += p[j] * p[j];
      squares_u[mask_[j]] += u[i] * u[i];
    }
    const double r1 = ratio(squares_p[1], squares_u[1]);
    const double r2 = ratio(squares_p[0], squares_u[0]);
    const double root_n = std::sqrt(static_cast<double>(p_.size()));
    for (std::size_t i = 0; i < layer.size; ++i) {
      const std::size_t j = begin + i;
      const double s = discount(j);
      double phi = std::clamp(s * r1 + (1.0 - s) * r2, how_.trust_lower, how_.trust_upper);
      if (layer.dimensions <= 1) phi = r1;  // no clamp
      if (!layer.adapt) phi = 1.0;
      u[i] *= phi * (s + (1.0 - s) / root_n);
    }
    move(p, u, layer, begin, gamma);
  }

  // p ← p − γ w, or with min(1, ‖p‖/‖w‖) of it.
  void move(vector& p, const vector& w, const tensor& layer, std::size_t begin, double gamma) const {
    double squares_p = 0.0, squares_w = 0.0;
    for (std::size_t i = 0; i < w.size(); ++i) {
      squares_p += p[begin + i] * p[begin + i];
      squares_w += w[i] * w[i];
    }
    const bool is_exempt = !layer.adapt || (how_.form == rescaling::product && layer.dimensions <= 1);
    const double cap = how_.capped && !is_exempt ? std::min(1.0, ratio(squares_p, squares_w)) : 1.0;
    for (std::size_t i = 0; i < w.size(); ++i) p[begin + i] -= gamma * cap * w[i];
  }

  void apply_blend(std::size_t rank, const tensor& layer, std::size_t begin, double gamma) {
    vector& p = p_[rank];
    vector w(layer.size);
    double squares_p[2] = {0.0, 0.0};
    double squares_w[2] = {0.0, 0.0};
    for (std::size_t i = 0; i < layer.size; ++i) {
      const std::size_t j = begin + i;
      w[i] = direction(rank, j, how_.epsilon / std::sqrt(correction(how_.beta2)));
      squares_p[mask_[j]] += p[j] * p[j];
      squares_w[mask_[j]] += w[i] * w[i];
    }
    double a = std::clamp(ratio(squares_p[1], squares_w[1], 1.0), how_.trust_lower, how_.trust_upper);
    double b = std::clamp(ratio(squares_p[0], squares_w[0], 0.0), 0.0, how_.trust_upper);
    if (!layer.adapt) a = b = 1.0;
    const double root_n = std::sqrt(static_cast<double>(p_.size()));
    for (std::size_t i = 0; i < layer.size; ++i) {
      const std::size_t j = begin + i;
      const double s = discount(j);
      w[i] = (a * s + b * (1.0 - s) / root_n) * (w[i] + layer.weight_decay * p[j]);
    }
    move(p, w, layer, begin, gamma);
  }

  // p ← p − γ φ u, with φ = ‖p‖/√(‖u[M]‖² + η² ‖u[¬M]‖²) and η² = ‖w̄[M]‖²/‖w[M]‖² in [1/N, 1]
  void apply_mean_step(std::size_t rank, const tensor& layer, std::size_t begin, double gamma) {
    vector& p = p_[rank];
    vector u(layer.size);
    double of_p = 0.0, after = 0.0, before = 0.0, of_u[2] = {0.0, 0.0};
    for (std::size_t i = 0; i < layer.size; ++i) {
      const std::size_t j = begin + i;
      const double w = direction(rank, j, how_.epsilon);
      u[i] = w + layer.weight_decay * p[j];
      of_p += p[j] * p[j];
      of_u[mask_[j]] += u[i] * u[i];
      if (mask_[j] == 0) continue;
      after += w * w;
      before += std::pow(direction_of(own_[rank][j], rank, j, how_.epsilon), 2.0);
    }
    const double world = static_cast<double>(p_.size());
    const double eta =
        after > 0.0 && before > 0.0 ? std::clamp(std::sqrt(after / before), 1.0 / std::sqrt(world), 1.0) : 1.0;
    double phi = std::clamp(ratio(of_p, of_u[1] + eta * eta * of_u[0]), how_.trust_lower, how_.trust_upper);
    if (!layer.adapt) phi = 1.0;
    for (std::size_t i = 0; i < layer.size; ++i) p[begin + i] -= gamma * phi * u[i];
  }

  std::vector<tensor> tensors_;
  slamb_settings how_;
  std::vector<vector> p_, m_, v_;  // [rank][n]
  std::vector<vector> own_;        // [rank][n] m before the exchange
  std::vector<std::uint64_t> age_;
  std::vector<std::uint8_t> mask_;
  std::uint64_t t_ = 0;
};

}  // namespace oracle
