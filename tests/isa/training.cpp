// LAMB, AdamW, SLAMB and 1-bit LAMB, without and with codes, on three tensors for twenty steps. Compiled once for each
// instruction set, which SLAMB_ISA names.
#include "isa/training.hpp"

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <typeinfo>
#include <utility>
#include <vector>

#include "slamb/communicator/run_ranks.hpp"
#include "slamb/slamb.hpp"

#define SLAMB_ISA_JOIN_(a, b) a##b
#define SLAMB_ISA_JOIN(a, b) SLAMB_ISA_JOIN_(a, b)

namespace {

constexpr std::array<std::size_t, 3> sizes{10007, 33, 1030};
constexpr std::array<int, 3> dimensions{2, 1, 2};
constexpr std::size_t elements = sizes[0] + sizes[1] + sizes[2];
constexpr int steps = 20;
constexpr int ranks = 2;

/// In [-1, 1), with all of a float's digits, so that sums and products are inexact.
float number(std::uint64_t seed, std::uint64_t index, std::uint64_t stream) {
  const std::uint32_t word = slamb::philox(seed, index, stream).word[0];
  return static_cast<float>(static_cast<std::int32_t>(word)) * 0x1p-31F;
}

/// FNV-1a over the bits of the parameters.
std::uint64_t hash(std::span<const float> values) {
  std::uint64_t h = 0xCBF29CE484222325U;
  for (const float x : values) h = (h ^ std::bit_cast<std::uint32_t>(x)) * 0x100000001B3U;
  return h;
}

template <class Optimizer>
std::uint64_t train(std::uint64_t seed, const typename Optimizer::options_type& options) {
  std::array<std::uint64_t, ranks> of_rank{};
  slamb::run_ranks(ranks, [&](slamb::thread_communicator communicator) {
    const auto rank = static_cast<std::size_t>(communicator.rank());
    std::vector<float> p(elements), g(elements);
    std::vector<slamb::parameter> tensors;
    std::size_t begin = 0;
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      tensors.push_back({p.data() + begin, g.data() + begin, sizes[i], dimensions[i], {}});
      begin += sizes[i];
    }
    for (std::size_t j = 0; j < elements; ++j) p[j] = number(seed, j, 0);
    Optimizer optimizer(tensors, options, std::move(communicator), {.threads = 2});
    for (std::uint64_t step = 1; step <= steps; ++step) {
      for (std::size_t j = 0; j < elements; ++j) g[j] = number(seed, j, step * ranks + rank);
      optimizer.step(0.01);
    }
    of_rank[rank] = hash(p);
  });
  return of_rank[0] * 31 + of_rank[1];
}

using slamb::rescaled_trust_ratio;
using slamb::rescaling;
using slamb::sampling;

/// Each law and each form once: the choice of elements and the ratio are different functions.
template <sampling Law, rescaling Form>
std::uint64_t train_slamb(std::uint64_t seed, std::size_t block) {
  using optimizer = slamb::slamb<slamb::thread_communicator, slamb::random_k<Law>, rescaled_trust_ratio<Form>>;
  return train<optimizer>(seed, {.local_steps = 7, .dense_below = 100, .compressor = {.k = 0.1, .block = block}});
}

}  // namespace

extern "C" isa_hashes SLAMB_ISA_JOIN(isa_training_, SLAMB_ISA)(std::uint64_t seed) {
  using slamb::thread_communicator;
  return {{train<slamb::adamw<thread_communicator>>(seed, {}), train<slamb::lamb<thread_communicator>>(seed, {}),
           train<slamb::lamb<thread_communicator>>(seed, {.max_gradient_norm = 1.0}),
           train_slamb<sampling::round_robin, rescaling::product>(seed, 1),
           train_slamb<sampling::round_robin, rescaling::product>(seed, 3),
           train_slamb<sampling::round_robin, rescaling::product>(seed, 16),
           train_slamb<sampling::bernoulli, rescaling::blend>(seed, 1),
           train_slamb<sampling::bernoulli, rescaling::blend>(seed, 8),
           train<slamb::slamb<thread_communicator, slamb::chain<slamb::random_k<>, slamb::int8>>>(seed,
                                                                                                  {.dense_below = 100}),
           train<slamb::one_bit_lamb<thread_communicator>>(seed, {.warm_up = {8}})}};
}

extern "C" isa_types SLAMB_ISA_JOIN(isa_types_, SLAMB_ISA)() {
  return {{typeid(slamb::adamw<>).name(), typeid(slamb::lamb<>).name(), typeid(slamb::slamb<>).name(),
           typeid(slamb::slamb_by_differences<>).name(), typeid(slamb::one_bit_lamb<>).name(),
           typeid(slamb::zero_one_adam<>).name()}};
}

extern "C" const char* SLAMB_ISA_JOIN(isa_choice_, SLAMB_ISA)() {
  static const std::string name = slamb::detail::name_of_choice<slamb::lamb<>, slamb::slamb<>>();
  return name.c_str();
}
