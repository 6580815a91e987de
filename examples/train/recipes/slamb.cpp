// SLAMB with every sparsifier and chain, by itself and as an alternative to LAMB (auto): the same types, compiled once.
#include <array>
#include <cstdint>
#include <memory>
#include <slamb/slamb.hpp>
#include <span>
#include <utility>

#include "compressors.hpp"
#include "recipe.hpp"

namespace train {

namespace {

template <auto MakeCompressor>
using slamb_with =
    slamb::slamb<rank_communicator, compressor_made_by<MakeCompressor>, slamb::rescaled_trust_ratio<>, rank_backend>;

template <auto MakeCompressor>
typename slamb_with<MakeCompressor>::options_type slamb_options(const settings& chosen, std::uint64_t seed) {
  typename slamb_with<MakeCompressor>::options_type options{
      .beta3 = chosen.beta3,
      .weight_decay = chosen.weight_decay,
      .update_bound = chosen.bound_of_updates(),
      .local_steps = static_cast<std::int64_t>(chosen.averaging_interval()),
      .compressor = MakeCompressor(chosen, seed)};
  if constexpr (slamb::capability::chained<compressor_made_by<MakeCompressor>>)
    if (decltype(options.compressor.quantizer)::bits_per_element == 1)
      options.epsilon = chosen.one_bit_epsilon.value_or(options.epsilon);
  return options;
}

template <auto MakeCompressor>
optimizer_maker make_slamb(const settings& chosen, std::uint64_t seed) {
  return maker_of<slamb_with<MakeCompressor>>(slamb_options<MakeCompressor>(chosen, seed), seed);
}

template <auto MakeCompressor>
optimizer_maker make_auto(const settings& chosen, std::uint64_t seed) {
  using dense = slamb::lamb<rank_communicator, rank_backend>;
  using compressed = slamb_with<MakeCompressor>;
  return [seed, dense_options = dense::options_type{.weight_decay = chosen.weight_decay},
          options = slamb_options<MakeCompressor>(chosen, seed)](std::span<const slamb::parameter> parameters,
                                                                 rank_communicator communicator) {
    return std::make_unique<detail::driven<slamb::chosen_optimizer<dense, compressed>>>([&] {
      return slamb::choose<dense, compressed>(parameters, dense_options, options, std::move(communicator), {},
                                              one_thread(seed));
    });
  };
}

constexpr std::array<combination, 5> all{{{"random_k", make_slamb<make_random_k>},
                                          {"top_k", make_slamb<make_top_k>},
                                          {"random_k+int8", make_slamb<make_chain<make_random_k, make_int8>>},
                                          {"random_k+int4", make_slamb<make_chain<make_random_k, make_int4>>},
                                          {"random_k+sign", make_slamb<make_chain<make_random_k, make_sign>>}}};

constexpr std::array<combination, 5> all_auto{{{"random_k", make_auto<make_random_k>},
                                               {"top_k", make_auto<make_top_k>},
                                               {"random_k+int8", make_auto<make_chain<make_random_k, make_int8>>},
                                               {"random_k+int4", make_auto<make_chain<make_random_k, make_int4>>},
                                               {"random_k+sign", make_auto<make_chain<make_random_k, make_sign>>}}};

template <auto MakeCompressor>
optimizer_maker make_by_differences(const settings& chosen, std::uint64_t seed) {
  using optimizer = slamb::slamb_by_differences<rank_communicator, compressor_made_by<MakeCompressor>, rank_backend>;
  return maker_of<optimizer>({.weight_decay = chosen.weight_decay,
                              .update_bound = chosen.bound_of_updates(),
                              .local_steps = static_cast<std::int64_t>(chosen.difference_interval()),
                              .compressor = MakeCompressor(chosen, seed)},
                             seed);
}

constexpr std::array<combination, 2> all_by_differences{
    {{"random_k+int8", make_by_differences<make_chain<make_random_k, make_int8>>},
     {"random_k", make_by_differences<make_random_k>}}};

}  // namespace

std::span<const combination> slamb_combinations() { return all; }

std::span<const combination> slamb_by_differences_combinations() { return all_by_differences; }

std::span<const combination> auto_combinations() { return all_auto; }

}  // namespace train
