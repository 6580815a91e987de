// The names of the library in a program whose global namespace has types of the same name, as CUDA has: beside them qualified, and
// by a using-directive.
struct int4 {
  int x, y, z, w;
};
struct half {
  unsigned short bits;
};

#include <cstdint>
#include <span>
#include <type_traits>

#include "slamb/slamb.hpp"

using namespace slamb::names;

static_assert(std::is_same_v<int4, ::int4> && std::is_same_v<half, ::half>);
static_assert(int4{1, 2, 3, 4}.w == 4);
static_assert(!std::is_same_v<slamb::int4, int4> && quantizer<slamb::int4> && quantizer<int8>);

using quantized = lamb<slamb::int4, two_sided<>>;
using sparse = slamb::slamb<chain<random_k<>, slamb::int4>, sync::quantized_difference<>>;
static_assert(std::is_same_v<quantized, slamb::lamb<slamb::int4, slamb::two_sided<>>>);

quantized make_quantized(std::span<const parameter> parameters) { return quantized(parameters, {.weight_decay = 0.1}); }
sparse make_sparse(std::span<const parameter> parameters) { return sparse(parameters, {.local_steps = 1}); }
double rate(std::uint64_t t) { return learning_rate::constant{0.01}(t); }
