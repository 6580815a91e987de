// The compressors that --compressor names, made from the settings.
#pragma once

#include <cstddef>
#include <cstdint>
#include <slamb/slamb.hpp>
#include <utility>

#include "../settings.hpp"

namespace train {

// One function per compressor, to be passed as a template argument to the combinations.

inline slamb::sign make_sign(const settings& /*chosen*/, std::uint64_t /*seed*/) { return {}; }
inline slamb::sign make_sign_per_tensor(const settings& /*chosen*/, std::uint64_t /*seed*/) {
  return {.scales = slamb::scale_sharing::per_tensor};
}
/// For signals that are divided by a variance. Corner pixels are blank in all images, so the gradients of their weights are
/// always 0, which a plain sign cannot represent.
inline slamb::sign make_zero_aware_sign(const settings& /*chosen*/, std::uint64_t /*seed*/) {
  return {.zero_aware = true};
}
inline slamb::sign make_zero_aware_sign_per_tensor(const settings& /*chosen*/, std::uint64_t /*seed*/) {
  return {.scales = slamb::scale_sharing::per_tensor, .zero_aware = true};
}

inline slamb::int8 make_int8(const settings& /*chosen*/, std::uint64_t seed) { return {.seed = seed}; }
inline slamb::int4 make_int4(const settings& /*chosen*/, std::uint64_t seed) { return {.seed = seed}; }
inline slamb::natural make_natural(const settings& /*chosen*/, std::uint64_t seed) { return {.seed = seed}; }
inline slamb::bf16 make_bf16(const settings& /*chosen*/, std::uint64_t /*seed*/) { return {}; }
inline slamb::fp16 make_fp16(const settings& /*chosen*/, std::uint64_t /*seed*/) { return {}; }

inline slamb::random_k<> make_random_k(const settings& chosen, std::uint64_t seed) {
  return {.k = chosen.k, .block = static_cast<std::size_t>(chosen.block), .seed = seed};
}
inline slamb::top_k make_top_k(const settings& chosen, std::uint64_t /*seed*/) { return {.k = chosen.k}; }

/// A sparsifier followed by a quantizer.
template <auto MakeSparsifier, auto MakeQuantizer>
auto make_chain(const settings& chosen, std::uint64_t seed) {
  using sparsifier_type = decltype(MakeSparsifier(chosen, seed));
  using quantizer_type = decltype(MakeQuantizer(chosen, seed));
  return slamb::chain<sparsifier_type, quantizer_type>{MakeSparsifier(chosen, seed), MakeQuantizer(chosen, seed)};
}

/// The type of compressor that such a function makes.
template <auto MakeCompressor>
using compressor_made_by = decltype(MakeCompressor(std::declval<const settings&>(), std::uint64_t{}));

}  // namespace train
