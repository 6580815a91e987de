// SLAMB whose ranks keep their parameters together by differences, with the trust ratio that goes with it.
#pragma once

#include "slamb/compressor/chain.hpp"
#include "slamb/compressor/integer.hpp"
#include "slamb/compressor/random_k.hpp"
#include "slamb/optimizer/slamb.hpp"
#include "slamb/parameter_sync/quantized_difference.hpp"

namespace slamb {

inline namespace SLAMB_SIMD_NAMESPACE {

/// SLAMB with the policies that come nearest to LAMB: the selected momentum in eight bits; parameters that are kept
/// together by their differences, and the mean of these, in two bits each, in every second step; and the trust ratio of
/// the ranks' mean step. With k = 0.1 and N ranks it sends about 0.47 (N − 1)/N bytes a parameter and step, a
/// seventeenth of what LAMB sends. Begin with LAMB's learning rate.
///
/// @tparam Policies  as those of `slamb`, with the Compressor chain<random_k<>, int8> and the ParameterSync
///                   sync::quantized_difference<>
template <class... Policies>
class slamb_by_differences
    : public detail::optimizer_of<
          detail::slamb_policies<chain<random_k<>, int8>, sync::quantized_difference<>, Policies...>> {
 public:
  using slamb_by_differences::optimizer_over::optimizer_over;
};

}  // namespace SLAMB_SIMD_NAMESPACE
}  // namespace slamb
