// The two-phase exchange in double precision, written only from its equations:
//
//   x ← x_i + e_i                 sent_i = coded(x)          e_i ← x − sent_i                 at every rank
//   y = mean of sent_i + s        result = coded(y)          s ← y − result                   at the chunk's rank
//
// where coded(x) is the value that receivers decode for x; with one bit an element, the scale with the sign of x.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "oracle.hpp"

namespace oracle {

/// The elements that share a scale.
enum class sharing {
  fused,       ///< all compressed elements; when received, those of a chunk. Chunks are cut from all tensors end to end
  per_tensor,  ///< those of a tensor, or of a chunk of it. Chunks are cut from every tensor
  blocks       ///< consecutive elements of a tensor's part of a chunk. Chunks are cut as for fused
};

/// The elements that share a scale, where they are encoded.
struct scale_entry {
  int rank = 0;                       ///< the rank that encodes
  bool is_server = false;             ///< the second phase
  std::vector<std::size_t> elements;  ///< indices in all tensors end to end, without elements that take no part
};

/// Encodes and decodes the values of a group.
using coding = std::function<vector(const vector& values, const scale_entry& group)>;

/// The scale of signs.
enum class sign_scale { l2, l1 };

/// √(Σx²/n) or Σ|x|/n; 0 if there are no values.
inline double scale_of(const vector& values, sign_scale scale) {
  if (values.empty()) return 0.0;
  double sum = 0.0;
  for (const double x : values) sum += scale == sign_scale::l2 ? x * x : std::abs(x);
  sum /= static_cast<double>(values.size());
  return scale == sign_scale::l2 ? std::sqrt(sum) : sum;
}

/// ±scale: + where x ≥ 0, and for −0.
inline coding signs_with(sign_scale scale) {
  return [scale](const vector& values, const scale_entry&) {
    const double alpha = scale_of(values, scale);
    vector result(values.size());
    for (std::size_t i = 0; i < result.size(); ++i) result[i] = values[i] >= 0.0 ? alpha : -alpha;
    return result;
  };
}

/// Settings of the exchange.
struct exchange_settings {
  sharing scales = sharing::fused;
  std::size_t block = 128;            ///< elements, of `sharing::blocks`
  bool compress_single_rank = false;  ///< true: encode with a single rank too; false: the exchange is then the identity
  bool worker_errors = true;
  bool server_errors = true;
  coding code = signs_with(sign_scale::l2);
  double margin = 1e-4;  ///< relative margin of `close_calls`
};

/// The exchange, with the errors that it keeps.
class two_phase_exchange {
 public:
  two_phase_exchange(const std::vector<tensor>& tensors, int world, exchange_settings how)
      : how_(std::move(how)),
        worker_(static_cast<std::size_t>(world), vector(total_size(tensors))),
        server_(total_size(tensors)),
        largest_(total_size(tensors)) {
    std::vector<std::vector<std::size_t>> parts(1);  // index lists that are cut into chunks
    for (const tensor& l : tensors) {
      if (how_.scales == sharing::per_tensor) parts.emplace_back();
      for (std::size_t i = 0; i < l.size; ++i) {
        (l.compress ? parts.back() : exact_).push_back(tensor_of_.size());
        tensor_of_.push_back(static_cast<std::size_t>(&l - tensors.data()));
      }
    }
    for (const auto& part : parts) cut(part);
  }

  /// True if nothing is encoded, because there is a single rank.
  bool is_identity() const { return worker_.size() == 1 && !how_.compress_single_rank; }

  /// The result of the exchange, equal on all ranks.
  ///
  /// @param x         [rank][n]
  /// @param left_out  [n] not 0 for elements that take no part: their result is 0, unless the exchange is the identity.
  ///                  announces: their signals stay in the errors of the ranks
  vector operator()(const std::vector<vector>& x, const std::vector<std::uint8_t>& left_out) {
    close_.clear();
    announced_.assign(server_.size(), 0);
    if (is_identity()) return x[0];
    announce(x, left_out);
    std::vector<vector> sent(x.size(), vector(server_.size()));
    for (std::size_t rank = 0; rank < x.size(); ++rank) {
      for (scale_entry& group : sent_together_) {
        group.rank = static_cast<int>(rank);
        code(group, left_out, how_.worker_errors, worker_[rank], sent[rank], [&](std::size_t j) { return x[rank][j]; });
      }
    }
    vector result(server_.size());
    for (const std::size_t j : exact_) result[j] = mean(x, j);
    for (const scale_entry& group : received_together_)
      code(group, left_out, how_.server_errors, server_, result, [&](std::size_t j) { return mean(sent, j); });
    return result;
  }

  /// In left_out: the element takes part from the next exchange on, if any rank has a signal for it.
  static constexpr std::uint8_t announces = 2;
  /// [n] 1 for elements of the last exchange that will take part.
  const std::vector<std::uint8_t>& announced() const { return announced_; }

  /// Sets all errors to 0, because the next signals have another unit.
  void clear_errors() {
    for (vector& e : worker_) e.assign(e.size(), 0.0);
    server_.assign(server_.size(), 0.0);
    largest_.assign(largest_.size(), 0.0);
  }

  const vector& worker_error(int rank) const { return worker_.at(static_cast<std::size_t>(rank)); }
  const vector& server_error() const {
    return server_;
  }  ///< [n] the server error of each element, kept by its chunk's rank

  /// Elements of the last exchange with a value near 0: nearer than `margin` times the largest value that the element had so
  /// far, or times the usual value in its group. Single precision may see another sign there. Exact zeros do not count.
  const std::vector<std::size_t>& close_calls() const { return close_; }

 private:
  void announce(const std::vector<vector>& x, const std::vector<std::uint8_t>& left_out) {
    for (const scale_entry& group : received_together_)
      for (const std::size_t j : group.elements)
        for (std::size_t rank = 0; left_out[j] == announces && rank < x.size(); ++rank) {
          const double kept = x[rank][j] + worker_[rank][j];
          if (kept != 0.0) announced_[j] = 1;
          if (how_.worker_errors) worker_[rank][j] = kept;
        }
  }

  // Cuts chunks of ⌈n/(128 N)⌉·128 elements, one for each rank. The last chunks may be short or empty.
  void cut(const std::vector<std::size_t>& elements) {
    if (elements.empty()) return;
    const std::size_t world = worker_.size();
    const std::size_t length = (elements.size() + 128 * world - 1) / (128 * world) * 128;
    if (how_.scales != sharing::blocks) sent_together_.push_back({0, false, elements});
    std::size_t in_block = 0;
    for (std::size_t i = 0; i < elements.size(); ++i) {
      const bool is_first = i % length == 0;
      const bool is_new_tensor = is_first || tensor_of_[elements[i]] != tensor_of_[elements[i - 1]];
      in_block = is_new_tensor || in_block == how_.block ? 1 : in_block + 1;
      const bool is_new = how_.scales == sharing::blocks ? in_block == 1 : is_first;
      if (is_new) received_together_.push_back({static_cast<int>(i / length), true, {}});
      if (is_new && how_.scales == sharing::blocks) sent_together_.push_back({0, false, {}});
      received_together_.back().elements.push_back(elements[i]);
      if (how_.scales == sharing::blocks) sent_together_.back().elements.push_back(elements[i]);
    }
  }

  // value ← signal + error; result ← coded(value); error ← value − result
  template <class Signal>
  void code(const scale_entry& group, const std::vector<std::uint8_t>& left_out, bool keeps_error, vector& error,
            vector& result, Signal signal) {
    scale_entry taking_part{group.rank, group.is_server, {}};
    vector values;
    taking_part.elements.reserve(group.elements.size());
    values.reserve(group.elements.size());
    for (const std::size_t j : group.elements) {
      if (left_out[j] != 0) continue;
      taking_part.elements.push_back(j);
      values.push_back(signal(j) + error[j]);
    }
    find_close_calls(values, taking_part.elements);
    const vector coded = how_.code(values, taking_part);
    for (std::size_t i = 0; i < values.size(); ++i) {
      const std::size_t j = taking_part.elements[i];
      result[j] = coded.at(i);
      if (keeps_error) error[j] = values[i] - coded[i];
    }
  }

  void find_close_calls(const vector& values, const std::vector<std::size_t>& elements) {
    const double usual = scale_of(values, sign_scale::l2);
    for (std::size_t i = 0; i < values.size(); ++i) {
      double& largest = largest_[elements[i]];
      largest = std::max({largest, usual, std::abs(values[i])});
      if (values[i] != 0.0 && std::abs(values[i]) < how_.margin * largest) close_.push_back(elements[i]);
    }
  }

  exchange_settings how_;
  std::vector<vector> worker_;          // [rank][n]
  vector server_;                       // [n]
  vector largest_;                      // [n] the largest value encoded so far
  std::vector<std::size_t> tensor_of_;  // [n]
  std::vector<std::size_t> exact_;      // elements that are not compressed
  std::vector<scale_entry> sent_together_, received_together_;
  std::vector<std::size_t> close_;
  std::vector<std::uint8_t> announced_;  // [n]
};

}  // namespace oracle
