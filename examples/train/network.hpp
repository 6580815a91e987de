// The model: a multi-layer perceptron with ReLU and softmax cross entropy. Eigen does the linear algebra on buffers of plain
// floats, so that the optimizer sees spans, as with any framework.
#pragma once

// Eigen uses one thread, because each rank has a thread already.
#ifndef EIGEN_DONT_PARALLELIZE
#define EIGEN_DONT_PARALLELIZE
#endif

#include <Eigen/Core>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <random>
#include <slamb/core/parameter.hpp>
#include <span>
#include <vector>

#include "random.hpp"

namespace train {

/// Loss and accuracy over a set of images.
struct evaluation {
  double loss = 0.0;      ///< mean cross entropy, nats
  double accuracy = 0.0;  ///< fraction of images whose label is the likeliest class
};

/// Real is float in training, and double in tests that compare gradients with differences.
template <class Real>
class basic_network {
 public:
  using matrix = Eigen::Matrix<Real, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

  /// Layers from widths[0] inputs to widths.back() classes, initialised uniformly: weights within ±√(6/inputs) (He), biases
  /// within ±1/√inputs.
  basic_network(std::span<const std::size_t> widths, std::mt19937_64 engine) {
    for (std::size_t l = 0; l + 1 < widths.size(); ++l) {
      layers_.emplace_back(static_cast<Eigen::Index>(widths[l]), static_cast<Eigen::Index>(widths[l + 1]));
      const auto inputs = static_cast<double>(widths[l]);
      for (Real& w : layers_[l].weights) w = static_cast<Real>(uniform_within(engine, std::sqrt(6.0 / inputs)));
      for (Real& b : layers_[l].biases) b = static_cast<Real>(uniform_within(engine, 1.0 / std::sqrt(inputs)));
    }
    activations_.resize(layers_.size() + 1);
  }

  /// The weights or the biases of a layer, and their gradient: `size` numbers each.
  struct tensor {
    Real* data;
    const Real* gradient;
    std::size_t size;
    int dimensions;
  };

  /// Weights and biases of each layer, valid as long as the network.
  std::vector<tensor> tensors() {
    std::vector<tensor> all;
    for (layer& l : layers_) {
      all.push_back({l.weights.data(), l.weight_gradient.data(), static_cast<std::size_t>(l.weights.size()), 2});
      all.push_back({l.biases.data(), l.bias_gradient.data(), static_cast<std::size_t>(l.biases.size()), 1});
    }
    return all;
  }

  /// The same, for an optimizer.
  std::vector<slamb::parameter> parameters() requires std::same_as<Real, float> {
    std::vector<slamb::parameter> all;
    for (const tensor& t : tensors()) all.push_back({t.data, t.gradient, t.size, t.dimensions, {}});
    return all;
  }

  /// Number of parameters.
  std::size_t size() const {
    std::size_t total = 0;
    for (const layer& l : layers_) total += l.weights.size() + l.biases.size();
    return total;
  }

  /// Sets the gradients to those of Σ cross entropy / `divisor` over the rows of `images`. Returns that sum over rows divided
  /// by `divisor`.
  double compute_gradients(const matrix& images, std::span<const int> labels, double divisor) {
    forward(images);
    matrix& delta = activations_.back();  // probabilities, changed to d loss / d logits
    const double loss = to_probabilities(delta, labels);
    for (std::size_t row = 0; row < labels.size(); ++row) delta(index(row), labels[row]) -= Real(1);
    delta /= static_cast<Real>(divisor);
    backward();
    return loss / divisor;
  }

  evaluation evaluate(const matrix& images, std::span<const int> labels) {
    forward(images);
    matrix& scores = activations_.back();
    const double loss = to_probabilities(scores, labels);
    std::size_t hits = 0;
    for (std::size_t row = 0; row < labels.size(); ++row) {
      Eigen::Index likeliest = 0;
      scores.row(index(row)).maxCoeff(&likeliest);
      if (likeliest == labels[row]) ++hits;
    }
    const auto rows = static_cast<double>(labels.size());
    return {loss / rows, static_cast<double>(hits) / rows};
  }

 private:
  using weight_map = Eigen::Map<matrix>;
  using bias_map = Eigen::Map<Eigen::Matrix<Real, 1, Eigen::Dynamic>>;

  // Eigen's order of a sum depends on the alignment. So all arrays that it sums have the same alignment: the same bits in every
  // run.
  using aligned_vector = std::vector<Real, Eigen::aligned_allocator<Real>>;

  struct layer {
    layer(Eigen::Index in, Eigen::Index out) : inputs(in), outputs(out) {
      weights.resize(static_cast<std::size_t>(in * out));
      weight_gradient.resize(weights.size());
      biases.resize(static_cast<std::size_t>(out));
      bias_gradient.resize(biases.size());
    }

    Eigen::Index inputs;
    Eigen::Index outputs;
    aligned_vector weights;          // [inputs × outputs]
    aligned_vector biases;           // [outputs]
    aligned_vector weight_gradient;  // [inputs × outputs]
    aligned_vector bias_gradient;    // [outputs]
  };

  static Eigen::Index index(std::size_t i) { return static_cast<Eigen::Index>(i); }

  // Computes the input of layer l into activations_[l], and the logits into the last.
  void forward(const matrix& images) {
    activations_[0] = images;
    for (std::size_t i = 0; i < layers_.size(); ++i) {
      layer& l = layers_[i];
      matrix& output = activations_[i + 1];
      output.noalias() = activations_[i] * weight_map(l.weights.data(), l.inputs, l.outputs);
      output.rowwise() += bias_map(l.biases.data(), l.outputs);
      if (i + 1 < layers_.size()) output = output.cwiseMax(Real(0));
    }
  }

  // Changes logits into probabilities, row by row. Returns the summed cross entropy.
  static double to_probabilities(matrix& logits, std::span<const int> labels) {
    double loss = 0.0;
    for (std::size_t i = 0; i < labels.size(); ++i) {
      auto row = logits.row(index(i));
      row.array() -= row.maxCoeff();
      const Real of_label = row(labels[i]);
      row = row.array().exp().matrix();
      const Real total = row.sum();
      loss += std::log(static_cast<double>(total)) - static_cast<double>(of_label);
      row /= total;
    }
    return loss;
  }

  // Starts from d loss / d logits in the last activation. On the way, each activation is replaced by the derivative of the loss
  // by it.
  void backward() {
    for (std::size_t i = layers_.size(); i-- > 0;) {
      layer& l = layers_[i];
      const matrix& delta = activations_[i + 1];
      matrix& input = activations_[i];
      weight_map(l.weight_gradient.data(), l.inputs, l.outputs).noalias() = input.transpose() * delta;
      bias_map(l.bias_gradient.data(), l.outputs) = delta.colwise().sum();
      if (i == 0) return;
      const auto active = (input.array() > Real(0)).template cast<Real>().eval();  // ReLU's derivative
      input.noalias() = delta * weight_map(l.weights.data(), l.inputs, l.outputs).transpose();
      input.array() *= active;
    }
  }

  std::vector<layer> layers_;
  std::vector<matrix> activations_;
};

using network = basic_network<float>;

}  // namespace train
