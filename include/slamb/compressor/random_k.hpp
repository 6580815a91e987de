// The sparsifier of SLAMB: a random part k of the elements at each step, equal on all ranks, without state.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "slamb/compressor/detail/bernoulli.hpp"
#include "slamb/compressor/detail/round_robin.hpp"
#include "slamb/core/concepts.hpp"
#include "slamb/core/error.hpp"
#include "slamb/core/real.hpp"

namespace slamb {

/// The ways in which `random_k` selects.
enum class sampling {
  round_robin,  ///< every block has one of C = 1/k slots; slot t mod C is sent at step t
  bernoulli     ///< every block is sent with probability k, drawn at each step
};

/// Sends a part k of the elements, in blocks of `block` contiguous elements that share a slot and an age.
///
/// *round_robin* (the default) needs no state, sends every element exactly once in C = 1/k steps, and its payload has
/// the same size at every step, up to one block a tensor. *bernoulli* needs one byte an element for ages, which stop at 255.
/// Its payload varies from step to step, so it cannot be captured in a CUDA graph.
///
/// *Determinism*: the selection is a function of (seed, step, index) alone: the same on every rank, backend and launch shape.
/// *Reference*: SLAMB, ICML 2023, section 3; the round robin by keyed groups is this library's.
template <sampling Law = sampling::round_robin>
struct random_k {
  double k = 0.1;          ///< in [1/65535, 1] for round_robin, which rounds C = 1/k; in [2^-32, 1] for bernoulli
  std::size_t block = 1;   ///< elements, 1 … 2^20; multiples of 16 are the fastest
  std::uint64_t seed = 0;  ///< must be equal on all ranks

  static constexpr bool selects_on_device = true;
  static constexpr bool payload_is_constant = Law == sampling::round_robin;

  /// @throws std::invalid_argument
  void validate() const {
    const double least = Law == sampling::round_robin ? 1.0 / 65535.0 : 0x1p-32;
    detail::require_in(k >= least && k <= 1.0, "random_k's k", k,
                       Law == sampling::round_robin ? "in [1/65535, 1]" : "in [2^-32, 1]");
    detail::require_in(block >= 1 && block <= (std::size_t{1} << 20U), "random_k's block", static_cast<double>(block),
                       "in [1, 2^20]");
  }

  /// Lists the options that must be equal on all ranks.
  template <class Fields>
  void describe(Fields& fields) const {
    fields.add("random_k's k", k);
    fields.add("random_k's block", static_cast<double>(block));
    fields.add_word("random_k's seed", seed);
  }

  /// C, the number of steps in which round robin sends every element once.
  SLAMB_HOST_DEVICE std::uint32_t slots() const noexcept { return static_cast<std::uint32_t>(std::lround(1.0 / k)); }

  /// An upper bound of the elements sent at any step from a tensor of `size`.
  std::uint64_t largest_payload(std::uint64_t size) const noexcept {
    const std::uint64_t blocks = (size + block - 1) / block;
    if constexpr (Law == sampling::round_robin) {
      return std::min(size, (blocks + slots() - 1) / slots() * block);
    } else {  // exceeded with a probability below 1e-23; `step()` throws on such a draw before anything is sent
      const auto n = static_cast<double>(blocks);
      const double expected = rounded_product(n, k);  // ranks on other processors must compute the same size
      const double most = expected + rounded_product(10.0, std::sqrt(expected * (1.0 - k))) + 64.0;
      return std::min(size, static_cast<std::uint64_t>(most) * block);
    }
  }

  SLAMB_HOST_DEVICE auto at(std::uint64_t step) const noexcept {
    if constexpr (Law == sampling::round_robin)
      return all_steps().at(step);
    else
      return detail::bernoulli_selection{seed, block, step, static_cast<std::uint64_t>(std::ldexp(k, 32))};
  }

  /// The constants of all steps, for a device. Its `at(step)` equals this `at`, and is fast for one thread.
  SLAMB_HOST_DEVICE auto all_steps() const noexcept requires(Law == sampling::round_robin) {
    const std::uint32_t c = slots();
    detail::round_robin_steps all{seed, block, c, {}, {}};
    for (std::uint32_t i = 0; i < all.multipliers; ++i) {
      std::uint32_t multiplier =
          c == 1 ? 0 : 1 + static_cast<std::uint32_t>(std::uint64_t{i} * (c - 1) / all.multipliers);
      while (!are_coprime(multiplier, c)) multiplier = multiplier % c + 1;
      all.multiplier[i] = multiplier;
      all.inverse[i] = inverse_of(multiplier, c);
    }
    return all;
  }

 private:
  SLAMB_HOST_DEVICE static bool are_coprime(std::uint32_t a, std::uint32_t b) noexcept {
    while (b != 0) {
      const std::uint32_t rest = a % b;
      a = b;
      b = rest;
    }
    return a == 1;
  }

  // The inverse of a modulo n < 2^16, by Euclid's algorithm.
  SLAMB_HOST_DEVICE static std::uint32_t inverse_of(std::uint32_t a, std::uint32_t n) noexcept {
    auto r = static_cast<std::int32_t>(n), next_r = static_cast<std::int32_t>(a);
    std::int32_t x = 0, next_x = 1;
    while (next_r != 0) {
      const std::int32_t quotient = r / next_r;
      const std::int32_t rest = r - quotient * next_r, next = x - quotient * next_x;
      r = next_r;
      x = next_x;
      next_r = rest;
      next_x = next;
    }
    return static_cast<std::uint32_t>(x < 0 ? x + static_cast<std::int32_t>(n) : x) % n;
  }
};

static_assert(sparsifier<random_k<sampling::round_robin>> && sparsifier<random_k<sampling::bernoulli>>);

}  // namespace slamb
