// A Compressor of one's own: a quantizer that says of each element −1, 0 or 1 times a scale, in two bits. It works wherever a
// quantizer does, here on the momentum (1-bit LAMB), on the gradient (LAMB), and on what a sparsifier selects (SLAMB).
// Nothing is derived from and nothing is registered.
//
// Four threads are ranks and minimize a loss of which each sees a part. The program prints what is left of it, and bytes.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <span>
#include <stdexcept>
#include <utility>
#include <vector>

#include "slamb/slamb.hpp"

/// x ≈ q s, s the root of the mean square of all elements, times `clip`: q is one of the two of −1, 0 and 1 about x/s, drawn
/// so that the mean is x. What is beyond ±s becomes ±s, and is left to the error feedback.
struct ternary {
  float clip = 1.0F;
  slamb::scale_sharing scales = slamb::scale_sharing::fused;  // one scale for all tensors, or one for each
  std::uint64_t seed = 0;

  static constexpr bool is_sparsifier = false;
  static constexpr bool payload_is_summable = false;
  static constexpr bool payload_is_constant = true;
  static constexpr int bits_per_element = 2;
  static constexpr slamb::segment_scale scale = slamb::segment_scale::l2;
  static constexpr bool is_stochastic = true;

  // Real is float or a vector of them, and both must give the same bits: no branches, no <cmath>.
  template <class Real>
  SLAMB_ELEMENT slamb::word_of<Real> encode(const Real& x, const Real& root_mean_square, const Real& uniform) const {
    using slamb::absolute, slamb::minimum, slamb::select,
        slamb::to_word;  // of floats; those of vectors are found anyway
    using word = slamb::word_of<Real>;
    const Real s = root_mean_square * Real(clip);
    const Real part = minimum(Real(1.0F), absolute(x) / select(Real(0.0F) < s, s, Real(1.0F)));
    const word magnitude = to_word(part + uniform);  // 0 or 1: uniform is between them
    return select(x < Real(0.0F), word(1U) - magnitude, word(1U) + magnitude);
  }

  template <class Real>
  SLAMB_ELEMENT Real decode(const slamb::word_of<Real>& code, const Real& root_mean_square) const {
    using slamb::to_real;
    return (to_real(code) - Real(1.0F)) * (root_mean_square * Real(clip));
  }

  // Not required: a check of the settings, and their names, so that ranks with different ones find out at construction.
  void validate() const {
    if (!(clip > 0.0F && clip < 1e6F)) throw std::invalid_argument("ternary: clip is not in (0, 10^6)");
  }
  template <class Facts>
  void describe(Facts& facts) const {
    facts.add("ternary's clip", static_cast<double>(clip));
    facts.add_word("ternary's scales", static_cast<std::uint64_t>(scales));
    facts.add_word("ternary's seed", seed);
  }
};
static_assert(slamb::quantizer<ternary>);

namespace {

constexpr int ranks = 4, steps = 400;
constexpr std::size_t size = 20'000;

/// Where a rank sees the minimum of element i.
float centre(int rank, std::size_t i) {
  return static_cast<float>(slamb::philox(static_cast<std::uint64_t>(rank), i, 0).word[0]) * 0x1p-31F - 1.0F;
}

/// Trains on all ranks; whether the loss above its minimum fell to a hundredth.
template <class Optimizer>
bool train(const char* name, const typename Optimizer::options_type& options, double rate) {
  constexpr double dense = slamb::bytes_sent_by(slamb::collective::all_reduce, 4 * size, ranks) * double{steps};
  double left = 0.0, sent = 0.0;
  slamb::run_ranks(ranks, [&](slamb::thread_communicator communicator) {
    const int rank = communicator.rank();
    std::vector<float> p(size, 1.0F), gradient(size);
    const slamb::parameter tensor{.data = p.data(), .gradient = gradient.data(), .size = size};
    Optimizer optimizer(std::span(&tensor, 1), options, std::move(communicator), {.threads = 1});
    const slamb::cosine_decay schedule{.peak = rate, .steps = steps};
    for (int t = 1; t <= steps; ++t) {
      for (std::size_t i = 0; i < size; ++i) gradient[i] = p[i] - centre(rank, i);
      optimizer.step(schedule(static_cast<std::uint64_t>(t)));
    }
    optimizer.synchronize_parameters();
    if (rank != 0) return;
    double before = 0.0, after = 0.0;
    for (std::size_t i = 0; i < size; ++i) {
      double minimum = 0.0;
      for (int r = 0; r < ranks; ++r) minimum += static_cast<double>(centre(r, i)) / ranks;
      before += (1.0 - minimum) * (1.0 - minimum);
      after += (static_cast<double>(p[i]) - minimum) * (static_cast<double>(p[i]) - minimum);
    }
    left = after / before;
    sent = static_cast<double>(optimizer.statistics().traffic.total().sent_bytes);
  });
  std::printf("%-28s %.1e of the loss is left, %6.2f MB sent, %.3f of dense\n", name, left, sent / 1e6, sent / dense);
  return left < 1e-2;
}

}  // namespace

int main() {
  using namespace slamb;
  using momentum = basic_one_bit<ternary, two_sided<>, frozen_trust_ratio, thread_communicator, host_backend>;
  using gradient = basic_lamb<ternary, two_sided<>, layerwise_trust_ratio, thread_communicator, host_backend>;
  using selected = ::slamb::slamb<thread_communicator, chain<random_k<>, ternary>>;
  try {
    int learned = train<momentum>("1-bit LAMB, 2 bits", {.beta2 = 0.99, .weight_decay = 0.0, .warm_up = {40}}, 0.03);
    learned += train<gradient>("LAMB, 2 bits", {.weight_decay = 0.0}, 0.03);
    learned += train<selected>("SLAMB, 2 bits of a tenth", {.weight_decay = 0.0, .local_steps = 50}, 0.06);
    if (std::fflush(stdout) != 0) throw std::runtime_error("the output could not be written");
    if (learned != 3) throw std::runtime_error("the loss did not fall to a hundredth");
  } catch (const std::exception& e) {
    std::fprintf(stderr, "ternary: %s\n", e.what());
    return 1;
  }
}
