// SLAMB whose ranks keep their parameters together by differences, with the trust ratio that goes with it.
#pragma once

#include "slamb/backend/host/host_backend.hpp"
#include "slamb/communicator/self_communicator.hpp"
#include "slamb/compressor/chain.hpp"
#include "slamb/compressor/integer.hpp"
#include "slamb/compressor/random_k.hpp"
#include "slamb/optimizer/slamb.hpp"
#include "slamb/parameter_sync/quantized_difference.hpp"
#include "slamb/trust_ratio/rescaled_trust_ratio.hpp"

namespace slamb::sync {

/// SLAMB with the policies that come nearest to LAMB: the selected momentum in eight bits; parameters that are kept
/// together by their differences, and the mean of these, in two bits each, in every second step; and the trust ratio of
/// the ranks' mean step. With k = 0.1 and N ranks it sends about 0.47 (N − 1)/N bytes a parameter and step, a
/// seventeenth of what LAMB sends. Begin with LAMB's learning rate.
template <class Communicator = self_communicator, class Compressor = chain<random_k<>, int8>,
          class Backend = host_backend>
using slamb_by_differences = basic_slamb<Compressor, local_momentum, rescaled_trust_ratio<rescaling::mean_step>,
                                         Communicator, Backend, quantized_difference<>>;

}  // namespace slamb::sync
