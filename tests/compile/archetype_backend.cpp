// Recipes use only those members of a backend that the concepts require: each compiles with a backend that has just the members
// of detail::backend_executor and a late_read. Compiled, never linked.
#include <cstddef>
#include <cstdint>
#include <span>

#include "slamb/kit.hpp"
#include "slamb/slamb.hpp"

namespace archetypes {

struct archetype_stream {};

}  // namespace archetypes

// The specialization that a backend with streams provides: a value that is read while later work runs.
template <class T>
class slamb::detail::late_read<archetypes::archetype_stream, T> {
 public:
  explicit late_read(archetypes::archetype_stream);
  archetypes::archetype_stream stream() const;
  T finish() const;
};

namespace archetypes {

using namespace slamb::detail;

class archetype_executor {
 public:
  static constexpr bool is_synchronous = false;
  using ranks_type = stream_waiter;
  struct no_error_storage {};

  archetype_stream stream() const;
  bool is_capturing() const;
  void require_memory(const void*, const char*) const;
  void wait(const ranks_type&) const;
  void clear(std::span<std::byte>) const;
  template <class T>
  void upload(std::span<const T>, std::span<T>) const;
  void download(std::span<const std::byte>, std::span<std::byte>, const ranks_type&) const;
  template <class T>
  T read(const T*, const ranks_type&) const;
  template <class T>
  void read_later(const T*, late_read<archetype_stream, T>&) const;
  template <class T>
  void write(T*, T) const;
  template <class... Functions>
  void invoke(const Functions&...) const {}
  double total(std::span<const double>, const ranks_type&) const;
  void add_up(std::span<const double>, double*) const;
  template <class Storage>
  double sum_of_squares(std::span<const Storage>, const ranks_type&) const;

  template <class Pass, class View>
  void run(const Pass&, const View&, tile_range) const;
  template <class Pass, class View>
  void run(const Pass&, const View&, tile_range, double*) const;
  template <class Pass, class View>
  void run(const Pass&, const View&, tile_range, double*, std::uint32_t*) const;
  template <class Pass, class View, class Selection>
  void run(const Pass&, const View&, const payload_view&, const Selection&, tile_range) const;
  template <class Pass, class View, class Selection>
  void run(const Pass&, const View&, const payload_view&, const Selection&, tile_range, double*) const;
  template <class Pass, class View, class Selection>
  void run(const Pass&, const View&, const payload_view&, const Selection&, tile_range, double*, std::uint32_t*) const;
  template <class Pass>
  void run_packed(const Pass&, const model_view&, const payload_view&, tile_range, double*) const;
  template <class Pass, class Compressor, class View>
  void choose(const Pass&, const Compressor&, const View&, tile_range, std::uint16_t*) const;
  template <class Pass, class Compressor, class View>
  void choose(const Pass&, const Compressor&, const View&, tile_range, std::uint16_t*, std::uint32_t*) const;
  template <class Selection>
  std::uint64_t scan_payload_offsets(const model_view&, const Selection&, std::span<std::uint64_t>,
                                     const ranks_type&) const;
  template <class Selection>
  void scan_payload_offsets_in(const model_view&, const Selection&, std::span<std::uint64_t>, std::uint64_t,
                               std::uint32_t*) const;
  template <int Sums, int Maxima, class Finish>
  void finish_segments(const model_view&, std::size_t, std::size_t, const double*, const Finish&) const {}
  template <int Sums, class Visit>
  void visit_segments(std::span<const std::size_t>, std::size_t, std::size_t, const double*, const ranks_type&,
                      const Visit&) const {}

  void mark_active(const model_view&, const wire_view&, tile_range, const row_mask*, const float*, std::uint16_t*,
                   std::uint64_t*) const;
  template <encode_mode Work, class Storage, class Pass, class Quantizer, class View>
  void send(const Pass&, const Quantizer&, const View&, const wire_view&, tile_range, double*, std::uint32_t*) const;
  template <class Quantizer>
  void finish_scales(const scale_table&, const double*, const std::uint64_t*, std::byte*, const std::uint32_t*) const;
  template <class Quantizer>
  void finish_scales(const scale_table&, const double*, const std::uint64_t*, std::byte*, const std::uint32_t*,
                     const write_overflow_flags&) const;
  template <encode_mode Work, class Storage, class Quantizer>
  void average(const Quantizer&, const model_view&, const wire_view&, std::span<const std::size_t>, double*,
               const read_overflow_flags&) const;
  template <class Storage, class ServerStorage, class Pass, class Quantizer, class View>
  void receive(const Pass&, const Quantizer&, const View&, const wire_view&, tile_range, double*) const;
  template <class Storage, class Pass, class Quantizer, class View>
  void measure(const Pass&, const Quantizer&, const View&, const wire_view&, tile_range, double*) const;
};
static_assert(backend_executor<archetype_executor>);

// An executor that lacks one member is not an executor.
struct without_average : archetype_executor {
  template <encode_mode Work, class Storage, class Quantizer>
  void average(const Quantizer&) const;
};
struct without_runs : archetype_executor {
  void run() const;
};
struct without_capture : archetype_executor {
  void is_capturing() const = delete;
};
struct without_late_reads : archetype_executor {
  void read_later() const;
};
struct with_all_arguments_of_choose : archetype_executor {
  template <class Pass, class Compressor, class View>
  void choose(const Pass&, const Compressor&, const View&, tile_range, std::uint16_t*, std::uint32_t*) const;
};
static_assert(!backend_executor<without_average> && !backend_executor<without_runs> &&
              !backend_executor<without_capture> && !backend_executor<without_late_reads> &&
              !backend_executor<with_all_arguments_of_choose>);

struct archetype_backend {
  using stream_type = archetype_stream;
  using executor_type = archetype_executor;
  std::size_t cache_bytes = 0;
  slamb::allocator memory{};

  void validate() const {}
  executor_type make_executor(std::uint64_t) const { return {}; }
};
static_assert(slamb::backend<archetype_backend>);

}  // namespace archetypes

namespace slamb::detail {

template class lamb_recipe<no_compressor, no_error_feedback, layerwise_trust_ratio, archetypes::archetype_backend>;
template class lamb_recipe<int8, two_sided<>, layerwise_trust_ratio, archetypes::archetype_backend>;
template class lamb_recipe<chain<top_k, int8>, residual<>, unit_trust_ratio, archetypes::archetype_backend>;
template class slamb_recipe<random_k<>, local_momentum, rescaled_trust_ratio<>, archetypes::archetype_backend>;
template class slamb_recipe<top_k, local_momentum, rescaled_trust_ratio<>, archetypes::archetype_backend>;
template class one_bit_recipe<sign, two_sided<>, frozen_trust_ratio, archetypes::archetype_backend, fixed_warm_up>;
template class one_bit_recipe<sign, two_sided<>, unit_trust_ratio, archetypes::archetype_backend, fixed_warm_up, bf16>;
template class zero_one_adam_recipe<sign, two_sided<>, archetypes::archetype_backend, exponential_variance_interval,
                                    doubling_local_interval, fp16>;

}  // namespace slamb::detail
