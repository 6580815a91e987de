// SLAMB with every sparsifier and chain.
#include <array>
#include <cstdint>
#include <slamb/optimizer/slamb.hpp>

#include "compressors.hpp"
#include "recipe.hpp"

namespace train {

namespace {

template <auto MakeCompressor>
optimizer_maker make_slamb(const settings& chosen, std::uint64_t seed) {
  using optimizer = slamb::slamb<rank_communicator, compressor_made_by<MakeCompressor>>;
  typename optimizer::options_type options{.beta3 = chosen.beta3,
                                           .weight_decay = chosen.weight_decay,
                                           .local_steps = static_cast<std::int64_t>(chosen.local_steps),
                                           .compressor = MakeCompressor(chosen, seed)};
  // A momentum of signs is as large where the variance is small as anywhere, as in the 1-bit recipes.
  if (compressor_made_by<MakeCompressor>::bits_per_element == 1) options.epsilon = chosen.one_bit_epsilon;
  return maker_of<optimizer>(options);
}

constexpr std::array<combination, 5> all{{{"random_k", make_slamb<make_random_k>},
                                          {"top_k", make_slamb<make_top_k>},
                                          {"random_k+int8", make_slamb<make_chain<make_random_k, make_int8>>},
                                          {"random_k+int4", make_slamb<make_chain<make_random_k, make_int4>>},
                                          {"random_k+sign", make_slamb<make_chain<make_random_k, make_sign>>}}};

}  // namespace

std::span<const combination> slamb_combinations() { return all; }

}  // namespace train
