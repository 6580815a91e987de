// The tensors of the network as the optimizer gets them. The network computes in floats; an optimizer may get parameters and
// gradients of 16 bits, as in the mixed precision of frameworks.
#pragma once

#include <Eigen/Core>
#include <cstddef>
#include <memory>
#include <slamb/core/parameter.hpp>
#include <span>
#include <stdexcept>
#include <utility>
#include <vector>

#include "network.hpp"
#include "settings.hpp"

namespace train {

/// The network's own floats.
class stored_tensors {
 public:
  explicit stored_tensors(std::vector<slamb::parameter> floats) : floats_(std::move(floats)), stored_(floats_) {}
  stored_tensors(const stored_tensors&) = delete;
  stored_tensors& operator=(const stored_tensors&) = delete;
  virtual ~stored_tensors() = default;

  /// For an optimizer, valid as long as this object and the network.
  const std::vector<slamb::parameter>& parameters() const noexcept { return stored_; }
  /// Stores the gradients that the network has computed.
  virtual void store_gradients() {}
  /// Gives the network the stored parameters.
  virtual void load_parameters() const {}

 protected:
  std::vector<slamb::parameter> floats_;  ///< [tensors] of the network
  std::vector<slamb::parameter> stored_;  ///< [tensors]
};

/// Parameters and gradients of a type of 16 bits, rounded to nearest.
/// @tparam Number  Eigen::bfloat16 or Eigen::half
template <class Number>
class tensors_of_16_bits final : public stored_tensors {
 public:
  /// @param type  of Number
  /// @param with_masters  each parameter has a float copy, which starts as the network's
  tensors_of_16_bits(std::vector<slamb::parameter> floats, slamb::parameter::element_type type, bool with_masters)
      : stored_tensors(std::move(floats)) {
    arrays_.reserve(floats_.size());
    for (std::size_t i = 0; i < floats_.size(); ++i) {
      const_floats start = data_of(floats_[i]);
      arrays& own = arrays_.emplace_back(start.cast<Number>(), numbers(start.size()), Eigen::ArrayXf());
      stored_[i].data = {own.data.data(), type};
      stored_[i].gradient = {own.gradient.data(), type};
      if (!with_masters) continue;
      own.master = start;
      stored_[i].master = own.master.data();
    }
  }

  void store_gradients() override {
    for (std::size_t i = 0; i < arrays_.size(); ++i) {
      const slamb::parameter& of = floats_[i];
      const_floats gradient(of.gradient.as<const float>(), static_cast<Eigen::Index>(of.size));
      arrays_[i].gradient = gradient.cast<Number>();
    }
  }
  void load_parameters() const override {
    for (std::size_t i = 0; i < arrays_.size(); ++i) {
      const slamb::parameter& of = floats_[i];
      Eigen::Map<Eigen::ArrayXf>(of.data.as<float>(), arrays_[i].data.size()) = arrays_[i].data.template cast<float>();
    }
  }

 private:
  using numbers = Eigen::Array<Number, Eigen::Dynamic, 1>;
  using const_floats = Eigen::Map<const Eigen::ArrayXf>;

  struct arrays {
    arrays(numbers data_, numbers gradient_, Eigen::ArrayXf master_)
        : data(std::move(data_)), gradient(std::move(gradient_)), master(std::move(master_)) {}

    numbers data;
    numbers gradient;
    Eigen::ArrayXf master;  // empty: none
  };

  static const_floats data_of(const slamb::parameter& tensor) {
    return {tensor.data.as<const float>(), static_cast<Eigen::Index>(tensor.size)};
  }

  std::vector<arrays> arrays_;  // [tensors]
};

/// The tensors of a network, or parts of them, stored as --precision and --rounding say.
/// @param floats  of the network
inline std::unique_ptr<stored_tensors> store(const std::vector<slamb::parameter>& floats, const settings& chosen) {
  using slamb::parameter;
  const bool with_masters = chosen.rounding_mode() == "masters";
  if (chosen.precision == "float32") return std::make_unique<stored_tensors>(floats);
  if (chosen.precision == "bf16")
    return std::make_unique<tensors_of_16_bits<Eigen::bfloat16>>(floats, parameter::bfloat16, with_masters);
  if (chosen.precision == "fp16")
    return std::make_unique<tensors_of_16_bits<Eigen::half>>(floats, parameter::float16, with_masters);
  throw std::invalid_argument("no precision is named '" + chosen.precision + "'");
}

}  // namespace train
