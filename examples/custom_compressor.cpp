// A user-defined Compressor: a quantizer that encodes each element as −1, 0 or 1 times a scale, in two bits. It works
// everywhere a quantizer works: here on the momentum (1-bit LAMB), on the gradient (LAMB), and on the elements that a
// sparsifier selects (SLAMB). It needs no base class and no registration.
//
//     cmake --preset examples && cmake --build --preset examples --target example_custom_compressor
//     build/examples/bin/example_custom_compressor
//
// Four threads are ranks and minimize a loss; each rank sees a part of it. Rank 0 prints:
//
//     1-bit LAMB, 2 bits        9.9e-05 of the loss is left,  7.84 MB sent, 0.980 bytes per element and step, 760 rounds
//     LAMB, 2 bits              3.6e-06 of the loss is left,  3.38 MB sent, 0.422 bytes per element and step, 800 rounds
//     SLAMB, 2 bits of a tenth  2.9e-03 of the loss is left,  1.69 MB sent, 0.212 bytes per element and step, 827 rounds
#include <slamb/slamb.hpp>

#include <cstdint>
#include <cstdio>
#include <exception>
#include <stdexcept>
#include <utility>

#include "common/shared_loss.hpp"

/// x ≈ q s. s is the root of the mean square of all elements, times `clip`. q is one of the two values of −1, 0, 1 next to x/s,
/// drawn so that the mean of q s is x. Values beyond ±s become ±s; error feedback keeps the difference.
struct ternary {
  float clip = 1.0F;
  slamb::scale_sharing scales = slamb::scale_sharing::fused;  // one scale for all tensors, or one for each
  std::uint64_t seed = 0;

  static constexpr int bits_per_element = 2;
  static constexpr slamb::segment_scale scale = slamb::segment_scale::l2;
  static constexpr bool is_stochastic = true;

  // Real is float or a vector of floats, and both must give the same bits: no branches, no <cmath>.
  template <class Real>
  SLAMB_ELEMENT slamb::word_of<Real> encode(const Real& x, const Real& root_mean_square, const Real& uniform) const {
    using slamb::absolute, slamb::minimum, slamb::select,
        slamb::to_word;  // for floats; argument-dependent lookup finds those of vectors
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

  // Optional: a check of the settings, and their names, so that ranks with different settings notice at construction.
  void validate() const {
    if (!(clip > 0.0F && clip < 1e6F)) throw std::invalid_argument("ternary: clip is not in (0, 10^6)");
  }
  template <class Fields>
  void describe(Fields& fields) const {
    fields.add("ternary's clip", static_cast<double>(clip));
    fields.add_word("ternary's scales", static_cast<std::uint64_t>(scales));
    fields.add_word("ternary's seed", seed);
  }
};
static_assert(slamb::quantizer<ternary>);

namespace {

/// Trains on four ranks and prints the result.
template <class Optimizer>
void train(const char* name, const typename Optimizer::options_type& options, double peak) {
  slamb::run_ranks(4, [&](slamb::thread_communicator communicator) {
    const int rank = communicator.rank();
    const examples::outcome result = examples::minimize<Optimizer>(std::move(communicator), options, peak);
    if (rank == 0) examples::print(name, result);
  });
}

}  // namespace

int main() {
  using namespace slamb;
  using momentum = one_bit_lamb<ternary>;
  using gradient = lamb<ternary>;
  using selected = ::slamb::slamb<chain<random_k<>, ternary>>;
  try {
    train<momentum>("1-bit LAMB, 2 bits", {.beta2 = 0.99, .weight_decay = 0.0, .warm_up = {40}}, 0.03);
    train<gradient>("LAMB, 2 bits", {.weight_decay = 0.0}, 0.03);
    train<selected>("SLAMB, 2 bits of a tenth", {.weight_decay = 0.0, .local_steps = 50}, 0.06);
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "example_custom_compressor: %s\n", failure.what());
    return 1;
  }
}
