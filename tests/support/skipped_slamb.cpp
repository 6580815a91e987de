// SLAMB, for the tests of skipped steps.
#include "support/skipped_training.hpp"

namespace test_support {

namespace {

using slamb::chain;
using slamb::random_k;

template <class Compressor>
struct with {
  template <class Backend>
  using optimizer = slamb::slamb<failing_communicator, Compressor, slamb::rescaled_trust_ratio<>, Backend>;
};
template <class Backend>
using blend =
    slamb::slamb<failing_communicator, random_k<>, slamb::rescaled_trust_ratio<slamb::rescaling::blend>, Backend>;
using drawn = random_k<slamb::sampling::bernoulli>;
using byte_chain = chain<random_k<>, slamb::int8>;

}  // namespace

std::vector<skipping_recipe> skipping_slamb() {
  std::vector<skipping_recipe> all{
      on_both<with<random_k<>>::optimizer>(
          "slamb", {.local_steps = 3, .dense_below = 10, .ranks = {.bucket_bytes = small_bucket}}),
      on_both<with<random_k<>>::optimizer>("slamb, H = 1", {.local_steps = 1, .dense_below = 10}),
      on_both<blend>("slamb, blend", {.local_steps = 3, .dense_below = 10}),
      on_both<with<drawn>::optimizer>("slamb, bernoulli", {.local_steps = 3, .dense_below = 10}),
      on_both<with<slamb::explicit_mask>::optimizer>("slamb, explicit_mask", {.local_steps = 3, .dense_below = 0}),
      on_both<with<slamb::top_k>::optimizer>("slamb, top_k",
                                             {.local_steps = 3, .dense_below = 10, .compressor = {.k = 0.1}}),
      on_both<with<byte_chain>::optimizer>("slamb, random_k and int8", {.local_steps = 3, .dense_below = 10})};
  for (skipping_recipe& r : all) r.averages = true;
  return all;
}

}  // namespace test_support
