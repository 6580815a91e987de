// The tensors of the benchmarks: shapes of BERT, because large-batch optimizers were made for its training.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace bench {

/// One tensor; `columns` = 0: one dimension.
struct tensor_shape {
  std::size_t rows = 0;
  std::size_t columns = 0;

  constexpr std::size_t size() const noexcept { return columns == 0 ? rows : rows * columns; }
  constexpr int dimensions() const noexcept { return columns == 0 ? 1 : 2; }
};

namespace detail {

// Words in BERT's vocabulary, 30522, padded to a multiple of 8 as is customary in pre-training.
inline constexpr std::size_t vocabulary = 30528;

constexpr void append_linear(std::vector<tensor_shape>& to, std::size_t outputs, std::size_t inputs) {
  to.push_back({outputs, inputs});
  to.push_back({outputs});
}

constexpr void append_norm(std::vector<tensor_shape>& to, std::size_t width) {
  to.push_back({width});
  to.push_back({width});
}

// Query, key, value, output; norm; up, down; norm: 16 tensors, 12,596,224 parameters at a width of 1024.
constexpr void append_encoder_layer(std::vector<tensor_shape>& to, std::size_t width) {
  for (int projection = 0; projection < 4; ++projection) append_linear(to, width, width);
  append_norm(to, width);
  append_linear(to, 4 * width, width);
  append_linear(to, width, 4 * width);
  append_norm(to, width);
}

constexpr std::size_t elements_of(const std::vector<tensor_shape>& tensors) {
  std::size_t sum = 0;
  for (const tensor_shape& tensor : tensors) sum += tensor.size();
  return sum;
}

// The elements in tensors that SLAMB always exchanges dense, by its default `dense_below`.
constexpr std::size_t dense_elements_of(const std::vector<tensor_shape>& tensors) {
  std::size_t sum = 0;
  for (const tensor_shape& tensor : tensors)
    if (tensor.dimensions() == 1 || tensor.size() < 9000) sum += tensor.size();
  return sum;
}

}  // namespace detail

/// An embedding and two encoder layers of BERT-Large: 33 tensors with 33.0 million parameters, which fit any machine.
constexpr std::vector<tensor_shape> bert_25m_tensors() {
  std::vector<tensor_shape> all;
  all.push_back({detail::vocabulary, 256});
  for (int layer = 0; layer < 2; ++layer) detail::append_encoder_layer(all, 1024);
  return all;
}

/// BERT-Large as it is pre-trained, with the heads for masked words (whose decoder shares the embedding) and next sentence.
constexpr std::vector<tensor_shape> bert_large_tensors() {
  constexpr std::size_t width = 1024;
  std::vector<tensor_shape> all;
  all.push_back({detail::vocabulary, width});  // words
  all.push_back({512, width});                 // positions
  all.push_back({2, width});                   // token types
  detail::append_norm(all, width);
  for (int layer = 0; layer < 24; ++layer) detail::append_encoder_layer(all, width);
  detail::append_linear(all, width, width);  // pooler
  detail::append_linear(all, width, width);  // masked words: transform
  detail::append_norm(all, width);
  all.push_back({detail::vocabulary});   // masked words: bias of the decoder
  detail::append_linear(all, 2, width);  // next sentence
  return all;
}

/// A small model: 150 tensors with 1.0 million parameters. The launches determine the time of its steps.
constexpr std::vector<tensor_shape> small_tensors() {
  constexpr std::size_t width = 64;
  std::vector<tensor_shape> all;
  for (int layer = 0; layer < 9; ++layer) detail::append_encoder_layer(all, width);
  all.push_back({8192, width});
  detail::append_linear(all, width, width);
  detail::append_norm(all, width);
  all.push_back({100, width});
  return all;
}

static_assert(detail::elements_of(bert_25m_tensors()) == 33'007'616);
static_assert(small_tensors().size() == 150);
static_assert(bert_large_tensors().size() == 398);
static_assert(detail::elements_of(bert_large_tensors()) == 336'232'258);
static_assert(detail::dense_elements_of(bert_large_tensors()) == 360'258);

/// A set of tensors, and its name in the names of benchmarks.
struct shape_set {
  std::string name;
  std::vector<tensor_shape> tensors;

  std::size_t elements() const { return detail::elements_of(tensors); }
};

inline shape_set bert_25m() { return {"bert-25m", bert_25m_tensors()}; }
inline shape_set small_model() { return {"1m", small_tensors()}; }
inline shape_set bert_large() { return {"bert-large", bert_large_tensors()}; }

}  // namespace bench
