#include "raw_loop.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <thread>

#if defined(__SSE2__)
#include <immintrin.h>
#endif

namespace bench {
namespace {

constexpr std::size_t chunk = 1024;  // elements that stay in the first-level cache between the loops

struct scalars {
  float beta1, beta2, epsilon, weight_decay, rate, momentum_correction, deviation_correction;
};

// With vector intrinsics, because C's square root may set errno: a compiler that must preserve that does not vectorise the
// loop.
void take_square_roots(float* x, std::size_t count) {
  std::size_t i = 0;
#if defined(__AVX512F__)
  for (; i + 16 <= count; i += 16) _mm512_storeu_ps(x + i, _mm512_maskz_sqrt_ps(0xFFFF, _mm512_loadu_ps(x + i)));
#elif defined(__AVX__)
  for (; i + 8 <= count; i += 8) _mm256_storeu_ps(x + i, _mm256_sqrt_ps(_mm256_loadu_ps(x + i)));
#elif defined(__SSE2__)
  for (; i + 4 <= count; i += 4) _mm_storeu_ps(x + i, _mm_sqrt_ps(_mm_loadu_ps(x + i)));
#endif
  for (; i < count; ++i) x[i] = std::sqrt(x[i]);
}

void update_piece(float* __restrict p, const float* __restrict g, float* __restrict m, float* __restrict v,
                  std::size_t count, const scalars& s) {
  float root[chunk];
  for (std::size_t i = 0; i < count; ++i) {
    m[i] = s.beta1 * m[i] + (1.0F - s.beta1) * g[i];
    v[i] = s.beta2 * v[i] + (1.0F - s.beta2) * g[i] * g[i];
    root[i] = v[i];
  }
  take_square_roots(root, count);
  for (std::size_t i = 0; i < count; ++i) {
    const float deviation = root[i] * s.deviation_correction + s.epsilon;
    p[i] -= s.rate * (m[i] * s.momentum_correction / deviation + s.weight_decay * p[i]);
  }
}

void update(float* p, const float* g, float* m, float* v, std::size_t count, const scalars s) {
  for (std::size_t i = 0; i < count; i += chunk)
    update_piece(p + i, g + i, m + i, v + i, std::min(chunk, count - i), s);
}

}  // namespace

raw_adamw::raw_adamw(const model& tensors, unsigned threads)
    : momentum_(tensors.padded_elements()), variance_(tensors.padded_elements()), pieces_(threads) {
  momentum_.fill(0.0F, 0, threads);
  variance_.fill(0.0F, 0, threads);
  const std::size_t share = (tensors.padded_elements() / threads + 15) / 16 * 16;  // elements per thread
  for (const slamb::parameter& tensor : tensors.tensors()) {
    const std::size_t first = tensors.first_of(tensor);
    for (std::size_t begin = first, end = first + tensor.size; begin < end;) {
      const std::size_t thread = std::min<std::size_t>(begin / share, threads - 1);
      const std::size_t past = thread + 1 == threads ? end : std::min(end, (thread + 1) * share);
      pieces_[thread].push_back({tensor.data.as<float>() + (begin - first),
                                 tensor.gradient.as<const float>() + (begin - first), momentum_.data() + begin,
                                 variance_.data() + begin, past - begin});
      begin = past;
    }
  }
}

void raw_adamw::step(float learning_rate) {
  const auto t = static_cast<double>(++step_);
  const scalars s{.beta1 = 0.9F,
                  .beta2 = 0.999F,
                  .epsilon = 1e-8F,
                  .weight_decay = 0.01F,
                  .rate = learning_rate,
                  .momentum_correction = static_cast<float>(1.0 / (1.0 - std::pow(0.9, t))),
                  .deviation_correction = static_cast<float>(1.0 / std::sqrt(1.0 - std::pow(0.999, t)))};
  const auto run = [s](const std::vector<piece>& pieces) {
    for (const piece& at : pieces) update(at.parameter, at.gradient, at.momentum, at.variance, at.count, s);
  };
  std::vector<std::jthread> others;
  for (std::size_t thread = 1; thread < pieces_.size(); ++thread) others.emplace_back(run, std::cref(pieces_[thread]));
  run(pieces_[0]);
}

}  // namespace bench
