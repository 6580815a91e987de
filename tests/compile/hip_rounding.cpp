// Two sums with a product, for an AMD GPU. Only the first product is rounded: HIP's __fmul_rn is a plain product, which clang fuses.
#include "slamb/core/real.hpp"

extern "C" __global__ void rounded(float a, float b, float c, float* sum) { *sum = slamb::rounded_product(a, b) + c; }
extern "C" __global__ void not_rounded(float a, float b, float c, float* sum) { *sum = __fmul_rn(a, b) + c; }
