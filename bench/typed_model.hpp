// Parameters and gradients of sixteen bits: those of a model, rounded to nearest.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "huge_array.hpp"
#include "slamb/slamb.hpp"
#include "workbench.hpp"

namespace bench {

/// Tensors lie as those of the model do: parameters and gradients in two arrays, each tensor from a multiple of 32 bytes on.
class typed_model {
 public:
  typed_model(const model& of, slamb::parameter::element_type type, unsigned threads)
      : parameters_(of.padded_elements() / 2), gradients_(parameters_.size()) {
    tensors_ = of.tensors();
    for (slamb::parameter& tensor : tensors_) {
      const std::size_t first = of.first_of(tensor);
      auto* const parameter = words(parameters_) + first;
      auto* const gradient = words(gradients_) + first;
      round(tensor.data.as<const float>(), parameter, tensor.size, type, threads);
      round(tensor.gradient.as<const float>(), gradient, tensor.size, type, threads);
      tensor.data = {parameter, type};
      tensor.gradient = {gradient, type};
    }
  }

  const std::vector<slamb::parameter>& tensors() const noexcept { return tensors_; }

 private:
  static std::uint16_t* words(const huge_array& memory) {
    return static_cast<std::uint16_t*>(static_cast<void*>(memory.data()));
  }

  static void round(const float* from, std::uint16_t* to, std::size_t count, slamb::parameter::element_type type,
                    unsigned threads) {
    for_parts(threads, count, [=](std::size_t begin, std::size_t end) {
      for (std::size_t i = begin; i < end; ++i)
        to[i] = static_cast<std::uint16_t>(type == slamb::parameter::bfloat16 ? slamb::detail::bfloat16_bits(from[i])
                                                                              : slamb::detail::half_bits(from[i]));
    });
  }

  huge_array parameters_;
  huge_array gradients_;
  std::vector<slamb::parameter> tensors_;
};

}  // namespace bench
