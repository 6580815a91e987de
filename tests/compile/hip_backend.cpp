// The device side compiles with HIP's names, which hip_stand_in/ declares. Never linked.
#include "slamb/backend/cuda/cuda_backend.cuh"
#include "slamb/communicator/cuda/thread_communicator.cuh"
#include "slamb/kit.hpp"
#include "slamb/slamb.hpp"

#if !defined(SLAMB_HIP) || defined(CUDART_VERSION)
#error "this source is compiled with SLAMB_HIP, and without a header of CUDA"
#endif

namespace slamb::detail {

#if defined(PLANT_A_CUDA_NAME)
inline void planted() { check_cuda(cudaPeekAtLastError(), "cudaPeekAtLastError"); }
#endif

template class lamb_recipe<no_compressor, no_error_feedback, layerwise_trust_ratio, cuda_backend>;
template class lamb_recipe<int8, two_sided<>, layerwise_trust_ratio, cuda_backend>;
template class slamb_recipe<random_k<>, local_momentum, rescaled_trust_ratio<>, cuda_backend>;
template class slamb_recipe<top_k, local_momentum, rescaled_trust_ratio<>, cuda_backend>;
template class one_bit_recipe<sign, two_sided<>, frozen_trust_ratio, cuda_backend, fixed_warm_up>;
template class zero_one_adam_recipe<sign, two_sided<>, cuda_backend, exponential_variance_interval,
                                    doubling_local_interval>;

}  // namespace slamb::detail
