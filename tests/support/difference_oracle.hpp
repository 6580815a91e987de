// The exchange of quantized differences in double precision, written only from its equations:
//
//   d_i = p_i − ref;   q_i = Q(d_i);   y = mean of q_i + e;   s' = M(y);   e ← y − s'
//   ref ← ref + s';   p_i ← ref + (d_i − q_i)
//
// Q codes each tensor. M codes the parts of each tensor that the ranks own: ⌈n/(128 N)⌉·128 elements, the last ones short. With
// scales of blocks, the tensors are cut into such parts end to end; Q and M code what is in one tensor and one part, by blocks.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>
#include <utility>
#include <vector>

#include "oracle.hpp"

namespace oracle {

/// The values that receivers decode for some values that are encoded together.
using lossy = std::function<vector(const vector&)>;

/// Their signs, times the mean of their magnitudes.
inline vector signs_of(const vector& values) {
  double scale = 0.0;
  for (const double x : values) scale += std::abs(x) / static_cast<double>(values.size());
  vector all(values.size());
  std::transform(values.begin(), values.end(), all.begin(), [scale](double x) { return x >= 0.0 ? scale : -scale; });
  return all;
}

inline double root_mean_square(const vector& values) {
  double squares = 0.0;
  for (const double x : values) squares += x * x / static_cast<double>(values.size());
  return std::sqrt(squares);
}

/// ±½ or ±2 times their root mean square, of which 5/4 divides the two.
inline vector four_levels_of(const vector& values) {
  const double scale = root_mean_square(values);
  vector all(values.size());
  std::transform(values.begin(), values.end(), all.begin(),
                 [scale](double x) { return std::copysign((std::abs(x) < 1.25 * scale ? 0.5 : 2.0) * scale, x); });
  return all;
}

class difference_exchange {
 public:
  /// @param thresholds  magnitudes at which codes change, relative to the mean magnitude, or of a block the root mean square
  /// @param block  elements that share a scale; 0: all that are coded together
  difference_exchange(std::vector<tensor> tensors, vector start, lossy difference, lossy mean,
                      vector thresholds = {0.0}, std::size_t block = 0)
      : tensors_(std::move(tensors)),
        ref_(std::move(start)),
        error_(ref_.size()),
        difference_(std::move(difference)),
        mean_(std::move(mean)),
        thresholds_(std::move(thresholds)),
        block_(block) {}

  const vector& reference() const { return ref_; }
  const vector& error() const { return error_; }  ///< [n] e of each element, of the rank that owns it
  /// The least distance of an |x| that was coded from a threshold, relative as they are: single precision may see a near one on the
  /// other side.
  double closest() const { return closest_; }

  /// @param p  [rank][n]
  void operator()(std::vector<vector>& p) {
    std::size_t begin = 0;
    const std::size_t part = part_of(ref_.size(), p.size());
    for (const tensor& l : tensors_) {
      const std::size_t end = begin + l.size;
      if (block_ == 0) {
        exchange(p, begin, end, part_of(l.size, p.size()));
      } else {
        for (std::size_t first = begin; first < end;) {
          const std::size_t last = std::min(end, (first / part + 1) * part);
          for (; first < last; first = std::min(last, first + block_))
            exchange(p, first, std::min(last, first + block_), block_);
        }
      }
      begin = end;
    }
  }

 private:
  static std::size_t part_of(std::size_t size, std::size_t world) {
    return (size + 128 * world - 1) / (128 * world) * 128;
  }

  // The elements [begin, end) are coded together by Q, and by M in chunks.
  void exchange(std::vector<vector>& p, std::size_t begin, std::size_t end, std::size_t chunk) {
    const std::size_t world = p.size(), size = end - begin;
    if (size == 0) return;
    std::vector<vector> kept(world);
    vector y(error_.begin() + static_cast<std::ptrdiff_t>(begin), error_.begin() + static_cast<std::ptrdiff_t>(end));
    for (std::size_t rank = 0; rank < world; ++rank) {
      vector d(size);
      for (std::size_t i = 0; i < size; ++i) d[i] = p[rank][begin + i] - ref_[begin + i];
      look(d);
      const vector q = difference_(d);
      for (std::size_t i = 0; i < size; ++i) {
        y[i] += q[i] / static_cast<double>(world);
        d[i] -= q[i];
      }
      kept[rank] = std::move(d);
    }
    for (std::size_t first = 0; first < size; first += chunk) {
      const vector part(y.begin() + static_cast<std::ptrdiff_t>(first),
                        y.begin() + static_cast<std::ptrdiff_t>(std::min(size, first + chunk)));
      look(part);
      const vector coded = mean_(part);
      for (std::size_t i = 0; i < part.size(); ++i) {
        const std::size_t j = begin + first + i;
        error_[j] = part[i] - coded[i];
        ref_[j] += coded[i];
        for (std::size_t rank = 0; rank < world; ++rank) p[rank][j] = ref_[j] + kept[rank][first + i];
      }
    }
  }

  void look(const vector& values) {
    double usual = 0.0;
    for (const double x : values) usual += std::abs(x) / static_cast<double>(values.size());
    if (block_ != 0) usual = root_mean_square(values);
    for (const double x : values)
      for (const double threshold : thresholds_)
        closest_ = std::min(closest_, std::abs(std::abs(x) / usual - threshold));
  }

  std::vector<tensor> tensors_;
  vector ref_, error_;
  lossy difference_, mean_;
  vector thresholds_;
  std::size_t block_;
  double closest_ = 1.0;
};

}  // namespace oracle
