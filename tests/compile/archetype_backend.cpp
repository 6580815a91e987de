// Recipes compile with a backend that has just the members of detail::backend_launcher, and a late_read. Never linked.
#include <cstddef>
#include <cstdint>
#include <span>

#include "slamb/slamb.hpp"

namespace slamb::detail {

struct archetype_stream {};
template <class T>
struct late_read<archetype_stream, T> {
  explicit late_read(archetype_stream);
  archetype_stream stream() const;
  T finish() const;
};
struct archetype_launcher {
  static constexpr bool is_synchronous = false;
  void launch(const auto& kernel) const;
  void invoke(const auto&... functions) const;
  void clear(std::span<std::byte>) const;
  void upload(std::span<const std::byte>, std::span<std::byte>) const;
  void download(std::span<const std::byte>, std::span<std::byte>, const stream_waiter&) const;
  void wait(const stream_waiter&) const;
  void require_memory(const void*, const char*) const;
  archetype_stream stream() const;
  bool is_capturing() const;
  void read_later(const auto* from, auto& late) const;
};
struct archetype_backend {
  using stream_type = archetype_stream;
  using launcher_type = archetype_launcher;
  std::size_t cache_bytes;
  allocator memory{};
  void validate() const {}
  launcher_type make_launcher(std::uint64_t) const { return {}; }
};
static_assert(backend<archetype_backend> && backend_launcher<archetype_launcher>);

template class lamb_recipe<no_compressor, no_error_feedback, layerwise_trust_ratio, archetype_backend>;
template class lamb_recipe<int8, two_sided<>, layerwise_trust_ratio, archetype_backend>;
template class lamb_recipe<chain<top_k, int8>, residual<>, unit_trust_ratio, archetype_backend>;
template class slamb_recipe<random_k<>, local_momentum, rescaled_trust_ratio<>, archetype_backend>;
template class slamb_recipe<top_k, local_momentum, rescaled_trust_ratio<>, archetype_backend>;
template class one_bit_recipe<sign, two_sided<>, frozen_trust_ratio, archetype_backend, fixed_warm_up>;
template class one_bit_recipe<sign, two_sided<>, unit_trust_ratio, archetype_backend, fixed_warm_up, bf16>;
template class zero_one_adam_recipe<sign, two_sided<>, archetype_backend, exponential_variance_interval,
                                    doubling_local_interval, fp16>;

}  // namespace slamb::detail
