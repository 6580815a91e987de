// slamb: communication-efficient large-batch optimizers on raw buffers. Include this header. When nvcc compiles it, it
// also includes the CUDA backend.
#pragma once

#include "slamb/core/config.hpp"  // first: checks the compiler's settings

#include "slamb/backend/precision.hpp"
#include "slamb/communicator/any_communicator.hpp"
#include "slamb/communicator/counting_communicator.hpp"
#include "slamb/communicator/hierarchical_communicator.hpp"
#include "slamb/communicator/run_ranks.hpp"
#include "slamb/communicator/self_communicator.hpp"
#include "slamb/communicator/sharded_communicator.hpp"
#include "slamb/communicator/thread_communicator.hpp"
#include "slamb/compressed_lamb.hpp"
#include "slamb/compressor/chain.hpp"
#include "slamb/compressor/explicit_mask.hpp"
#include "slamb/compressor/floating.hpp"
#include "slamb/compressor/four_levels.hpp"
#include "slamb/compressor/integer.hpp"
#include "slamb/compressor/natural.hpp"
#include "slamb/compressor/no_compressor.hpp"
#include "slamb/compressor/random_k.hpp"
#include "slamb/compressor/sign.hpp"
#include "slamb/compressor/top_k.hpp"
#include "slamb/core/concepts.hpp"
#include "slamb/core/error.hpp"
#include "slamb/core/parameter.hpp"
#include "slamb/core/statistics.hpp"
#include "slamb/error_feedback/local_momentum.hpp"
#include "slamb/error_feedback/no_error_feedback.hpp"
#include "slamb/error_feedback/residual.hpp"
#include "slamb/error_feedback/two_sided.hpp"
#include "slamb/lamb.hpp"
#include "slamb/one_bit.hpp"
#include "slamb/optimizer/choose.hpp"
#include "slamb/optimizer/lamb.hpp"
#include "slamb/optimizer/moments.hpp"
#include "slamb/optimizer/one_bit.hpp"
#include "slamb/optimizer/partitioned_lamb.hpp"
#include "slamb/optimizer/slamb.hpp"
#include "slamb/optimizer/slamb_by_differences.hpp"
#include "slamb/optimizer/zero_one_adam.hpp"
#include "slamb/parameter_sync/partition.hpp"
#include "slamb/parameter_sync/quantized_difference.hpp"
#include "slamb/parameter_sync/whole_average.hpp"
#include "slamb/partitioned_lamb.hpp"
#include "slamb/plan/network.hpp"
#include "slamb/plan/storage.hpp"
#include "slamb/plan/traffic.hpp"
#include "slamb/schedule/intervals.hpp"
#include "slamb/schedule/learning_rate.hpp"
#include "slamb/schedule/warm_up.hpp"
#include "slamb/sparse_momentum.hpp"
#include "slamb/threads.hpp"
#include "slamb/trust_ratio/frozen_trust_ratio.hpp"
#include "slamb/trust_ratio/layerwise_trust_ratio.hpp"
#include "slamb/trust_ratio/rescaled_trust_ratio.hpp"
#include "slamb/trust_ratio/unit_trust_ratio.hpp"

#if defined(SLAMB_DEVICE_COMPILER)
#include "slamb/backend/cuda/cuda_backend.cuh"
#include "slamb/communicator/cuda/thread_communicator.cuh"
#endif

/// All names of slamb/slamb.hpp but `slamb::slamb`, `slamb::int4` and `slamb::half`, for `using namespace slamb::names;`. With
/// `using namespace slamb;` the compiler would reject `slamb::` as ambiguous, because `slamb` is an optimizer too; and CUDA has global
/// types `int4` and `half`.
namespace slamb::names {

namespace capability = ::slamb::capability;
namespace learning_rate = ::slamb::learning_rate;
namespace plan = ::slamb::plan;
namespace precision = ::slamb::precision;
namespace sync = ::slamb::sync;

using ::slamb::absolute, ::slamb::adamw, ::slamb::allocator, ::slamb::any_communicator, ::slamb::as_real,
    ::slamb::as_word, ::slamb::automatic_warm_up, ::slamb::backend, ::slamb::basic_sign, ::slamb::bf16,
    ::slamb::bfloat16, ::slamb::byte_sink, ::slamb::byte_source, ::slamb::chain, ::slamb::choose,
    ::slamb::choose_options, ::slamb::chosen_optimizer, ::slamb::collective, ::slamb::communicator,
    ::slamb::communicator_error, ::slamb::compressor, ::slamb::coordinate, ::slamb::counting_communicator,
    ::slamb::data_dependent_sparsifier, ::slamb::dense_in, ::slamb::device_learning_rates,
    ::slamb::doubling_local_interval, ::slamb::error, ::slamb::error_feedback, ::slamb::every, ::slamb::explicit_mask,
    ::slamb::exponential_variance_interval, ::slamb::factors_of, ::slamb::file_error, ::slamb::fixed_warm_up,
    ::slamb::four_levels, ::slamb::fp16, ::slamb::frozen_trust_ratio, ::slamb::hierarchical_communicator,
    ::slamb::host_backend, ::slamb::host_stream, ::slamb::int8, ::slamb::integer, ::slamb::lamb, ::slamb::lamb_options,
    ::slamb::layerwise_trust_ratio, ::slamb::local_momentum, ::slamb::local_schedule, ::slamb::maximum,
    ::slamb::memory_report, ::slamb::minimum, ::slamb::natural, ::slamb::no_compressor, ::slamb::no_error_feedback,
    ::slamb::one_bit_adam, ::slamb::one_bit_lamb, ::slamb::one_bit_options, ::slamb::optimizer, ::slamb::out_of_memory,
    ::slamb::parameter, ::slamb::philox, ::slamb::quantizer, ::slamb::random_k, ::slamb::rank_mismatch_error,
    ::slamb::rank_options, ::slamb::rescaled_trust_ratio, ::slamb::rescaling, ::slamb::residual,
    ::slamb::restore_options, ::slamb::rounded_product, ::slamb::run_ranks, ::slamb::sampling, ::slamb::save_options,
    ::slamb::scale_sharing, ::slamb::segment_scale, ::slamb::select, ::slamb::selection, ::slamb::self_communicator,
    ::slamb::set_bit, ::slamb::sharded_communicator, ::slamb::sign, ::slamb::slamb_by_differences,
    ::slamb::slamb_options, ::slamb::sparsifier, ::slamb::square_root, ::slamb::statistics, ::slamb::tensor_options,
    ::slamb::tensor_properties, ::slamb::thread_communicator, ::slamb::thread_group, ::slamb::thread_options,
    ::slamb::to_real, ::slamb::to_word, ::slamb::top_k, ::slamb::traffic, ::slamb::traffic_counts, ::slamb::trust_ratio,
    ::slamb::two_sided, ::slamb::unit_trust_ratio, ::slamb::update_terms, ::slamb::variance_schedule,
    ::slamb::warm_up_schedule, ::slamb::word_of, ::slamb::zero_one_adam, ::slamb::zero_one_adam_options;
#if defined(SLAMB_DEVICE_COMPILER)
using ::slamb::cuda_backend, ::slamb::cuda_error, ::slamb::cuda_thread_communicator;
#endif

}  // namespace slamb::names
