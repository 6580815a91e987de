// The time of one step() on parameters and gradients of sixteen bits.
#include <benchmark/benchmark.h>

#include <cstddef>
#include <string>

#include "slamb/slamb.hpp"
#include "step.hpp"
#include "step_time.hpp"
#include "typed_model.hpp"

namespace bench {
namespace {

/// @param bytes  of memory an element, at most: p, g, the copy, m, v and more
template <class Optimizer>
void register_typed(const std::string& name, const shape_set& shapes, unsigned threads,
                    const typename Optimizer::options_type& options = {}, std::size_t bytes = 16) {
  using backend = typename Optimizer::backend_type;
  using precision = typename backend::precision;
  const std::string stored =
      std::string(precision::rounds_by_chance ? "/stochastic" : "") +
      (slamb::detail::storage_of_t<slamb::detail::array::momentum, precision>::is_in_blocks ? "/moments:8" : "");
  using type_of = slamb::parameter::element_type;
  for (const type_of type : {type_of::bfloat16, type_of::float16}) {
    const std::string type_name = type == type_of::bfloat16 ? "/bf16" : "/fp16";
    register_one("step/" + name + type_name + stored, shapes, 1, threads, [=](benchmark::State& state, workbench& at) {
      workbench::require_memory(bytes * at.elements());
      const typed_model typed(at.of_rank(0), type, threads);
      return time_alone<Optimizer>(state, at, typed.tensors(), options, backend{{.threads = threads}});
    });
  }
}

template <class Rounding>
void register_eight_bit_moments(const shape_set& shapes, unsigned threads) {
  using backend = slamb::precision::mixed<slamb::host_backend, Rounding, slamb::precision::eight_bit_moments>;
  using alone = slamb::self_communicator;
  register_typed<slamb::adamw<alone, backend>>("adamw", shapes, threads);
  register_typed<slamb::lamb<alone, backend>>("lamb", shapes, threads);
}

template <class Rounding>
void register_with(const shape_set& shapes, unsigned threads) {
  using backend = slamb::precision::mixed<slamb::host_backend, Rounding>;
  using alone = slamb::self_communicator;
  using adamw = slamb::adamw<alone, backend>;
  using slamb_in_blocks = slamb::slamb<alone, slamb::random_k<>, slamb::rescaled_trust_ratio<>, backend>;
  using one_bit_lamb = slamb::one_bit_lamb<alone, slamb::sign, backend>;
  register_typed<adamw>("adamw_unchecked", shapes, threads, {.skip_non_finite = false});
  register_typed<adamw>("adamw", shapes, threads);
  register_typed<slamb::lamb<alone, backend>>("lamb", shapes, threads);
  register_typed<slamb_in_blocks>("slamb/block:16", shapes, threads, {.compressor = {.block = 16}});
  register_typed<one_bit_lamb>("one_bit_lamb/single_rank", shapes, threads,
                               {.compress_single_rank = true, .warm_up = {.steps = 1}}, 32);
}

}  // namespace

void register_typed_steps(const shape_set& shapes, unsigned threads) {
  register_with<slamb::precision::master_copies>(shapes, threads);
  register_with<slamb::precision::stochastic_rounding>(shapes, threads);
  register_eight_bit_moments<slamb::precision::master_copies>(shapes, threads);
  register_eight_bit_moments<slamb::precision::stochastic_rounding>(shapes, threads);
}

}  // namespace bench
