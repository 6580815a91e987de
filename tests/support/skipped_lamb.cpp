// LAMB and AdamW, for the tests of skipped steps.
#include "support/skipped_training.hpp"

namespace test_support {

namespace {

using slamb::chain;
using slamb::layerwise_trust_ratio;
using slamb::residual;

template <class Backend>
using adamw = slamb::adamw<failing_communicator, Backend>;
template <class Backend>
using lamb = slamb::lamb<failing_communicator, Backend>;
template <class Backend>
using lamb_sign = slamb::lamb<slamb::sign, failing_communicator, Backend>;
template <class Backend>
using lamb_int8 = slamb::lamb<slamb::int8, residual<>, failing_communicator, Backend>;
template <class Backend>
using lamb_random_k = slamb::lamb<slamb::random_k<>, failing_communicator, Backend>;
template <class Backend>
using lamb_chain = slamb::lamb<chain<slamb::random_k<>, slamb::int8>, failing_communicator, Backend>;
template <class Backend>
using lamb_top_k = slamb::lamb<slamb::top_k, failing_communicator, Backend>;

}  // namespace

std::vector<skipping_recipe> skipping_lamb() {
  return {on_both<adamw>("adamw", {.ranks = {.bucket_bytes = small_bucket}}),
          on_both<lamb>("lamb", {}),
          on_both<lamb>("lamb, clipped", {.max_gradient_norm = 1.0, .ranks = {.bucket_bytes = small_bucket}}),
          on_both<lamb_sign>("lamb, sign", {.max_gradient_norm = 1.0}),
          on_both<lamb_sign>("lamb, sign alone", {.compress_single_rank = true}),
          on_both<lamb_int8>("lamb, int8", {}),
          on_both<lamb_random_k>("lamb, random_k", {.max_gradient_norm = 1.0}),
          on_both<lamb_chain>("lamb, random_k and int8", {}),
          on_both<lamb_top_k>("lamb, top_k", {.compressor = {.k = 0.1}})};
}

}  // namespace test_support
