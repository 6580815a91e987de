// Well-known models as the shapes of their tensors, built layer by layer like their public implementations.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <slamb/plan/traffic.hpp>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "../common/usage_error.hpp"

namespace plan {

using slamb::plan::tensor_shape;

/// Collects the tensors of a model.
class model_builder {
 public:
  model_builder& tensor(std::initializer_list<std::uint64_t> dimensions) {
    tensor_shape shape{1, static_cast<int>(dimensions.size()), true};
    for (const std::uint64_t d : dimensions) shape.size *= d;
    tensors_.push_back(shape);
    return *this;
  }

  /// A weight and a bias.
  model_builder& linear(std::uint64_t outputs, std::uint64_t inputs) {
    return tensor({outputs, inputs}).tensor({outputs});
  }

  /// The scale and the shift of a normalisation.
  model_builder& norm(std::uint64_t width) { return tensor({width}).tensor({width}); }

  /// A convolution of 3 × 3 without bias, and its batch normalisation.
  model_builder& convolution(std::uint64_t outputs, std::uint64_t inputs) {
    return tensor({outputs, inputs, 3, 3}).norm(outputs);
  }

  std::vector<tensor_shape> tensors() const { return tensors_; }

 private:
  std::vector<tensor_shape> tensors_;
};

/// For CIFAR-10: three stages of 18 blocks; shortcuts have no parameters.
inline std::vector<tensor_shape> resnet_110() {
  model_builder m;
  m.convolution(16, 3);
  std::uint64_t inputs = 16;
  for (const std::uint64_t width : {16U, 32U, 64U})
    for (int convolution = 0; convolution < 2 * 18; ++convolution, inputs = width) m.convolution(width, inputs);
  return m.linear(10, 64).tensors();
}

/// Patches of 4 × 4, windows of 7 × 7, ImageNet's 1000 classes.
inline std::vector<tensor_shape> swin_b() {
  constexpr std::uint64_t depths[] = {2, 2, 18, 2}, heads[] = {4, 8, 16, 32};
  constexpr std::uint64_t offsets = 13 * 13;  // relative positions in a window
  model_builder m;
  m.tensor({128, 3, 4, 4}).tensor({128}).norm(128);
  for (std::size_t stage = 0; stage < 4; ++stage) {
    const std::uint64_t width = std::uint64_t{128} << stage;
    for (std::uint64_t block = 0; block < depths[stage]; ++block) {
      m.norm(width).tensor({offsets, heads[stage]}).linear(3 * width, width).linear(width, width);
      m.norm(width).linear(4 * width, width).linear(width, 4 * width);
    }
    if (stage < 3) m.norm(4 * width).tensor({2 * width, 4 * width});
  }
  return m.norm(1024).linear(1000, 1024).tensors();
}

/// With the heads for masked words (whose decoder shares the embedding) and next sentence. The vocabulary is padded to a
/// multiple of 8, as is customary.
inline std::vector<tensor_shape> bert(std::uint64_t width, int layers) {
  constexpr std::uint64_t vocabulary = 30528;
  model_builder m;
  m.tensor({vocabulary, width}).tensor({512, width}).tensor({2, width}).norm(width);
  for (int layer = 0; layer < layers; ++layer) {
    for (int projection = 0; projection < 4; ++projection) m.linear(width, width);  // query, key, value, output
    m.norm(width).linear(4 * width, width).linear(width, 4 * width).norm(width);
  }
  m.linear(width, width);                                   // pooler
  m.linear(width, width).norm(width).tensor({vocabulary});  // masked words
  return m.linear(2, width).tensors();                      // next sentence
}

/// 48 layers; the decoder shares the embedding.
inline std::vector<tensor_shape> gpt2() {
  constexpr std::uint64_t width = 1600;
  model_builder m;
  m.tensor({50257, width}).tensor({1024, width});
  for (int layer = 0; layer < 48; ++layer) {
    m.norm(width).linear(3 * width, width).linear(width, width);
    m.norm(width).linear(4 * width, width).linear(width, 4 * width);
  }
  return m.norm(width).tensors();
}

/// Llama 3: 32 layers with 8 heads for keys and values. The decoder does not share the embedding.
inline std::vector<tensor_shape> llama_8b() {
  constexpr std::uint64_t width = 4096, keys = 1024, inner = 14336, vocabulary = 128256;
  model_builder m;
  m.tensor({vocabulary, width});
  for (int layer = 0; layer < 32; ++layer) {
    m.tensor({width, width}).tensor({keys, width}).tensor({keys, width}).tensor({width, width});
    m.tensor({inner, width}).tensor({inner, width}).tensor({width, inner}).tensor({width}).tensor({width});
  }
  return m.tensor({width}).tensor({vocabulary, width}).tensors();
}

/// A model that the program knows by name.
struct known_model {
  std::string_view name;
  std::vector<tensor_shape> (*tensors)();
};

inline constexpr std::array<known_model, 6> known_models{{
    {"resnet-110", resnet_110},
    {"swin-b", swin_b},
    {"bert-large", [] { return bert(1024, 24); }},
    // The paper (SLAMB, ICML 2023) gives only the size, 2.8 B; these are BERT-Large's layers at three times the width.
    {"bert-xl", [] { return bert(3072, 24); }},
    {"gpt2", gpt2},
    {"llama-8b", llama_8b},
}};

inline std::vector<std::string_view> model_names() { return programs::names_of(known_models); }

/// @throws std::invalid_argument for an unknown name
inline std::vector<tensor_shape> tensors_of_model(std::string_view name) {
  for (const known_model& m : known_models)
    if (m.name == name) return m.tensors();
  throw std::invalid_argument("no model is named '" + std::string(name) + "'");
}

}  // namespace plan
