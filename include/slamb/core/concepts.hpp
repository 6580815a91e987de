// The roles of policies, as concepts. A type that models a role works in every recipe, without a base class or registration.
// docs/extend/index.md shows how to write each.
#pragma once

#include <algorithm>
#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <type_traits>

#include "slamb/core/config.hpp"
#include "slamb/core/detail/questions.hpp"

namespace slamb {

// ---------------------------------------------------------------------------------------------- Communicator

/// The stream of backends that work at once, in the calling thread.
struct host_stream {};

namespace detail {

/// Copies memory in the order of a stream. A backend specialises it for its own type of streams.
template <class Stream>
struct stream_copy;
template <>
struct stream_copy<host_stream> {
  static void run(std::span<const std::byte> from, std::span<std::byte> to, host_stream /*stream*/) noexcept {
    std::copy(from.begin(), from.end(), to.begin());
  }
};

}  // namespace detail

/// Joins the ranks of a training. The optimizer owns it: it is moved into the constructor. Its collectives are the concepts
/// capability::has_all_reduce_sum, …; a recipe demands those that it calls.
template <class C>
concept communicator = std::is_move_constructible_v<C> && requires(const C& c) {
  { c.rank() } -> detail::converts_to<int>;  // 0 … size() − 1
  { c.size() } -> detail::converts_to<int>;  // number of ranks, ≥ 1
};

/// Optional members of policies.
namespace capability {

/// `all_reduce_sum(values, stream)`: every rank's `values` become their sum over ranks, the same bits everywhere.
template <class C, class T, class Stream = host_stream>
concept has_all_reduce_sum = communicator<C> && requires(C& c, std::span<T> values, Stream stream) {
  c.all_reduce_sum(values, stream);
};

/// `all_gather(mine, all, stream)`: `all` is every rank's `mine`, in rank order; all.size() = size()·mine.size().
template <class C, class T, class Stream = host_stream>
concept has_all_gather = communicator<C> && requires(C& c, std::span<const T> mine, std::span<T> all, Stream stream) {
  c.all_gather(mine, all, stream);
};

/// `all_to_all(send, receive, stream)`: equal chunks; chunk j of rank i's `send` is chunk i of rank j's `receive`.
template <class C, class T, class Stream = host_stream>
concept has_all_to_all = communicator<C> && requires(C& c, std::span<const T> send, std::span<T> receive, Stream s) {
  c.all_to_all(send, receive, s);
};

/// `broadcast(values, root, stream)`: every rank's `values` become the values of `root`.
template <class C, class T, class Stream = host_stream>
concept has_broadcast = communicator<C> && requires(C& c, std::span<T> values, int root, Stream stream) {
  c.broadcast(values, root, stream);
};

/// A Communicator of nodes: `size()` nodes of `local_size()` ranks each; rank() is the node. `all_reduce_in_node(values,
/// stream)`: `values` become their sum over the ranks of the node, the same bits on all of them. The results of its collectives
/// are equal on all ranks of a node.
template <class C, class Stream = host_stream>
concept has_all_reduce_in_node = communicator<C> &&
    requires(const C& c, C& changing, std::span<float> values, Stream stream) {
  { c.local_rank() } -> detail::converts_to<int>;  // 0 … local_size() − 1
  { c.local_size() } -> detail::converts_to<int>;  // ≥ 1, the same on all nodes
  changing.all_reduce_in_node(values, stream);
};

/// A Communicator whose ranks hold shards: each of the `size()` ranks is one of `shard_size()` ranks that hold a model together, and
/// exchanges with those that hold the same shard. `all_reduce_in_shards(values, stream)`: `values` become their sum over the shard
/// group. `all_gather_in_shards(mine, all, stream)`: `all` is `mine` of each rank of the shard group, in the order of shards.
template <class C, class Stream = host_stream>
concept has_shards = communicator<C> &&
    requires(const C& c, C& changing, std::span<float> values, std::span<const std::byte> mine,
             std::span<std::byte> all, Stream stream) {
  { c.shard_rank() } -> detail::converts_to<int>;  // 0 … shard_size() − 1
  { c.shard_size() } -> detail::converts_to<int>;  // ≥ 1, the same on all ranks
  changing.all_reduce_in_shards(values, stream);
  changing.all_gather_in_shards(mine, all, stream);
};

}  // namespace capability

namespace detail {

// Optional members of a Communicator.
template <class C>
concept has_abort = requires(C& c, const std::string& reason) {
  c.abort(reason);
};
template <class C>
concept has_check = requires(C& c) {
  c.check();
};
template <class C, class Stream>
concept has_wait = requires(C& c, Stream stream) {
  c.wait(stream);
};

/// `c.has(kind)` of a Communicator that knows its collectives only at run time; true for others.
template <class C, class Kind>
bool says_it_has(const C& c, Kind kind) {
  if constexpr (requires { c.has(kind); })
    return c.has(kind);
  else
    return true;
}

}  // namespace detail

// --------------------------------------------------------------------------------------------------- Backend

/// Runs the passes of a recipe. It holds options, and makes a launcher for a number of elements. `cache_bytes` limits the
/// batches of tensors that a step processes at once. It also has `memory`, an allocator, or make_allocator(), which returns one.
/// The launcher must model detail::backend_launcher.
template <class B>
concept backend = detail::copyable<B> && requires(const B& b, std::uint64_t elements) {
  typename B::stream_type;
  typename B::launcher_type;
  b.validate();
  { b.make_launcher(elements) } -> std::same_as<typename B::launcher_type>;
  { b.cache_bytes } -> detail::converts_to<std::size_t>;
};

// ------------------------------------------------------------------------------------------------ Compressor

/// One element of the model, as a compressor sees it.
struct coordinate {
  std::uint32_t tensor = 0;       ///< number of the tensor, in the order given to the optimizer
  std::uint64_t index = 0;        ///< number of the element in its tensor
  std::uint64_t tensor_size = 0;  ///< elements of the tensor
  std::uint64_t offset = 0;       ///< place of the tensor's first element, with all tensors laid end to end
  std::uint64_t state = 0;        ///< its place in the state arrays, in which tensors start at multiples of 16
};

/// The scale of n elements: none, l2 √(Σx²/n), l1 Σ|x|/n, or max|x|.
enum class segment_scale { none, l2, l1, max };

/// The elements that share a scale.
enum class scale_sharing {
  fused,      ///< all elements of the signal
  per_tensor  ///< the elements of a tensor
};

namespace detail {

/// Has the members of a sparsifier, or of a chain of one and a quantizer.
template <class C>
concept selects = requires(const C& c, std::uint64_t step) {
  c.at(step);
}
|| requires(const C& c, const float* values, std::uint32_t count, std::uint16_t* bits) {
  c.choose(values, count, bits);
}
|| requires(const C& c) {
  c.sparsifier;
  c.quantizer;
};

/// True if the payload of every step has the size `largest_payload`, up to one block a tensor. A sparsifier by step says so by a
/// member `payload_is_constant`; for a data-dependent one it follows from `chosen_of`.
template <class C>
inline constexpr bool payload_is_constant = requires(const C& c) {
  c.chosen_of(std::uint32_t{});
  c.largest_payload(std::uint64_t{});
};
template <class C>
requires requires { C::payload_is_constant; }
inline constexpr bool payload_is_constant<C> = bool(C::payload_is_constant);

}  // namespace detail

/// A policy that reduces the payload: a quantizer, a sparsifier, or a chain of both. Its members decide its kind; recipes branch
/// on these concepts and never on the type.
template <class C>
concept compressor = detail::copyable<C> &&(detail::selects<C> || requires {
  { C::bits_per_element } -> detail::converts_to<int>;
});

/// A compressor that sends every element in `bits_per_element` bits.
///
/// `encode(x, scale, uniform)` maps a finite x to an integer below 2^bits_per_element; `decode(code, scale)` maps it back. Both
/// are element functions. `scale` is of the kind `Q::scale`, over the elements that share one: either as the member `scales`
/// chooses, or over `block` consecutive elements, a member that is a power of two from 16 to 1024. `uniform` is a new number in
/// (0, 1) for each element if `Q::is_stochastic`, which demands a member `seed`; otherwise it is ½.
template <class Q>
concept quantizer = compressor<Q> && !detail::selects<Q> &&
                    requires(const Q& q, float x, float scale, float uniform, std::uint32_t code) {
  { Q::bits_per_element } -> detail::converts_to<int>;  // on the wire
  { Q::scale } -> detail::converts_to<segment_scale>;
  { q.encode(x, scale, uniform) } -> std::same_as<std::uint32_t>;
  { q.template decode<float>(code, scale) } -> std::same_as<float>;
}
&&(Q::bits_per_element >= 1 && Q::bits_per_element <= 32) && (
                                                                 Q::scale == segment_scale::none ||
                                                                 requires(const Q& q) {
                                                                   { q.scales } -> detail::converts_to<scale_sharing>;
                                                                 } ||
                                                                 requires(const Q& q) {
                                                                   { q.block } -> detail::converts_to<std::uint32_t>;
                                                                 });

namespace capability {

/// A quantizer of blocks that sends a scale in one byte: `encode_scale(s)` is the byte, and codes are of the scale
/// `decode_scale(byte)`. Both are element functions of floats.
template <class Q>
concept sends_scales_in_bytes = quantizer<Q> && requires(const Q& q, float s, std::uint8_t byte) {
  q.block;
  { q.encode_scale(s) } -> std::same_as<std::uint8_t>;
  { q.decode_scale(byte) } -> std::same_as<float>;
};

/// A quantizer whose codes do not depend on the scale, so that one pass encodes and sums the scale.
template <class Q>
concept encodes_without_scale = quantizer<Q> &&
    (Q::scale == segment_scale::none || requires { requires Q::encodes_without_scale; });

/// A quantizer whose codes need no scale, such as bf16 and fp16. The 1-bit optimizers and 0/1 Adam can send dense gradients by
/// it: it, or no_compressor, is their DenseCompressor.
template <class Q>
concept has_no_scale = quantizer<Q> &&(Q::scale == segment_scale::none);

/// A quantizer that rounds at random.
template <class Q>
concept stochastic_quantizer = quantizer<Q> && requires {
  requires Q::is_stochastic;
};

}  // namespace capability

/// A compressor that chooses elements by their values, as top-k does: `choose(values, count, bits)` sets exactly
/// `chosen_of(count)` bits for `count` ≤ 8192 consecutive elements of a tensor.
template <class C>
concept data_dependent_sparsifier = compressor<C> &&
    requires(const C& c, const float* values, std::uint32_t count, std::uint16_t* bits) {
  { c.chosen_of(count) } -> detail::converts_to<std::uint32_t>;
  c.choose(values, count, bits);
};

/// The elements that a sparsifier sends at one step (t = 1, 2, …). Trivially copyable, so that it can be copied to a device.
template <class S>
concept selection = std::is_trivially_copyable_v<S> && requires(const S& s, coordinate c) {
  { s.selects(c) } -> std::same_as<bool>;  // must be the same at every rank
};

/// A compressor that sends some elements, as floats.
template <class C>
concept sparsifier = compressor<C> && requires(const C& c, std::uint64_t step) {
  { c.at(step) } -> selection;  // step = 1, 2, …
};

namespace capability {

/// A compressor that selects elements and quantizes them.
template <class C>
concept chained = compressor<C> && requires(const C& c) {
  c.sparsifier;
  requires quantizer<std::remove_cvref_t<decltype(c.quantizer)>>;
};

}  // namespace capability

namespace detail {

/// The sparsifier of a compressor: the compressor itself, or the chain's.
template <class C>
constexpr auto& sparsifier_of(C& compressor) noexcept {
  if constexpr (capability::chained<std::remove_const_t<C>>)  // a const type is not copyable
    return compressor.sparsifier;
  else
    return compressor;
}

}  // namespace detail

namespace capability {

/// A sparsifier whose `at` can run on a device.
template <class Sparsifier>
concept selects_on_device = requires {
  requires Sparsifier::selects_on_device;
};

/// A selection that computes the age of an element: the steps since it was last sent (0: now). For others the optimizer stores
/// ages, as a byte that stops at 255, or as the unsigned integer that the selection names as its `age_type`.
template <class S>
concept has_age = selection<S> && requires(const S& s, coordinate c) {
  { s.age(c) } -> detail::converts_to<std::uint32_t>;
};

}  // namespace capability

namespace detail {

/// The type of a stored age.
template <class S>
struct stored_age {
  using type = std::uint8_t;
};
template <class S>
requires std::unsigned_integral<typename S::age_type>
struct stored_age<S> {
  static_assert(sizeof(typename S::age_type) <= sizeof(std::uint32_t),
                "slamb: the age_type of a selection must be std::uint8_t, std::uint16_t or std::uint32_t");
  using type = typename S::age_type;
};
template <selection S>
using stored_age_t = typename stored_age<S>::type;

struct run_visitor_archetype {
  void operator()(std::uint64_t begin, std::uint64_t length, std::uint32_t age) const;
};

}  // namespace detail

namespace capability {

/// A selection that counts without a walk: the number of selected elements of the tensor before `c.index`, which may equal
/// `c.tensor_size`.
template <class S>
concept has_selected_before = selection<S> && requires(const S& s, coordinate c) {
  { s.selected_before(c) } -> detail::converts_to<std::uint64_t>;
};

/// A selection that walks along a tensor faster than element by element. It calls `visit(begin, length, age)` for consecutive
/// runs that cover [c.index, c.index + count). A selection without ages passes 0 for selected elements and 1 for others.
template <class S>
concept has_runs = selection<S> &&
    requires(const S& s, coordinate c, std::uint64_t count, detail::run_visitor_archetype visit) {
  s.runs(c, count, visit);
};

/// The staleness discount β3^age for age = 0, 1, …; older elements have the last value.
struct staleness_discounts {
  const float* value = nullptr;  ///< [count]
  std::uint32_t count = 0;

  SLAMB_HOST_DEVICE float operator[](std::uint32_t age) const { return value[age < count ? age : count - 1]; }
};

/// A selection that fills the host backend's buffers at once. It sets bit i % 16 of bits[i / 16], which are zero before, for the
/// selected ones of `count` elements from c, and, if it has ages, discount[i] unless `discount` is null. It returns false, with
/// nothing written, if `runs` is as fast.
template <class S>
concept has_fill = has_runs<S> &&
    requires(const S& s, coordinate c, staleness_discounts table, std::uint16_t* bits, float* discount) {
  { s.fill(c, std::uint32_t{}, table, bits, discount) } -> std::same_as<bool>;
};

}  // namespace capability

// -------------------------------------------------------------------------------------------- ErrorFeedback

/// Decides where the compression error of a lossy exchange is kept.
template <class F>
concept error_feedback = detail::copyable<F> && requires {
  { F::keeps_unsent } -> detail::converts_to<bool>;  // unsent elements stay in the exchanged state itself
  { F::worker_state } -> detail::converts_to<bool>;  // has a buffer for the worker error
  { F::server_state } -> detail::converts_to<bool>;  // has a buffer for the server error
};

// -------------------------------------------------------------------------------------------- ParameterSync

namespace sync {

/// Decides how the ranks' parameters are kept together, in a recipe whose ranks move by momenta of their own. A type without a
/// quantizer averages them in floats.
template <class S>
concept parameter_sync = detail::copyable<S> && requires {
  { S::default_local_steps } -> detail::converts_to<std::int64_t>;  // steps between exchanges, by default
};

}  // namespace sync

namespace capability {

/// A ParameterSync that exchanges quantized differences from a common point: by `quantizer`, and their mean by
/// `mean_quantizer`.
template <class S>
concept sends_differences = sync::parameter_sync<S> && requires(const S& s) {
  requires quantizer<std::remove_cvref_t<decltype(s.quantizer)>>;
  requires quantizer<std::remove_cvref_t<decltype(s.mean_quantizer)>>;
};

/// A policy of LAMB and AdamW by which each rank keeps the state of a part of the model alone. `quantizer` is of the parameters that
/// it sends, or no_compressor.
template <class S>
concept partitions_state = detail::copyable<S> && requires(const S& s) {
  requires S::partitions_state;
  s.quantizer;
};

}  // namespace capability

// ------------------------------------------------------------------------------------------------ TrustRatio

/// The terms of one element's update, for a trust ratio's sums (Real: float, or a vector of floats).
template <class Real>
struct update_terms {
  Real parameter;  ///< p
  Real direction;  ///< m̂ / (√v̂ + ε)
  Real update;     ///< direction + λ p
};

namespace capability {

/// The age of one element at this step, for a trust ratio's sums.
template <class Real>
struct update_age {
  Real discount;     ///< β3^age; 1 if the element is exchanged
  Real unsent_rate;  ///< 1/√N
};

}  // namespace capability

/// Properties of a tensor, for its trust ratio.
struct tensor_properties {
  bool adapt = true;             ///< tensor_options::adapt
  bool one_dimensional = false;  ///< the tensor has one dimension
  float weight_decay = 0.0F;     ///< λ of the tensor
  int world = 1;                 ///< number of ranks
  bool may_begin_late = false;   ///< elements without a variance begin one, though it is frozen for others
};

namespace detail {

struct sums_archetype {
  void add_square(int index, float value);
};

}  // namespace detail

/// Scales the learning rate of a tensor or element by norms of its tensor.
///
/// `accumulate(x, received, sums)` is called once an element; `sums.add_square(i, x)` adds x² to sum i of the tensor, in double
/// precision; `received` is true if the element was exchanged at this step, as always in recipes that exchange every element.
/// `factors(sums, properties)` is called once per tensor and step, with sums [sums_per_segment], and returns the arguments of `scale`.
/// Then p ← p − γ · scale(factors, discount) · update, where discount is the staleness discount β3^age, 1 in recipes that
/// exchange every element.
template <class T>
concept trust_ratio = detail::copyable<T> && requires(const T& t, update_terms<float> x, detail::sums_archetype& sums,
                                                      const double* values, tensor_properties properties) {
  { T::sums_per_segment } -> detail::converts_to<int>;
  t.accumulate(x, true, sums);
  { t.factors(values, properties) } -> detail::copyable;
  { t.scale(t.factors(values, properties), 1.0F) } -> detail::converts_to<float>;
} && std::is_trivially_copyable_v<decltype(std::declval<const T&>().factors(static_cast<const double*>(nullptr),
                                                                            tensor_properties{}))>;

namespace capability {

/// A trust ratio whose ε is added to the uncorrected √v: direction = m̂ / (√v̂ + ε/√(1 − β2^t)).
template <class T>
concept has_uncorrected_epsilon = trust_ratio<T> && requires {
  { T::epsilon_is_uncorrected } -> detail::converts_to<bool>;
} && bool(T::epsilon_is_uncorrected);

}  // namespace capability

namespace capability {

/// A trust ratio that also wants the terms of exchanged elements as they are on this rank before the exchange, in recipes that
/// exchange a part of the elements: `accumulate_sent(x, sums)` is called for each of them.
template <class T>
concept looks_before_exchange = trust_ratio<T> &&
    requires(const T& t, update_terms<float> x, detail::sums_archetype& sums) {
  t.accumulate_sent(x, sums);
};

/// A trust ratio whose sums depend on the ages of elements: `accumulate(x, received, age, sums)` is called instead.
template <class T>
concept looks_at_staleness = trust_ratio<T> &&
    requires(const T& t, update_terms<float> x, update_age<float> age, detail::sums_archetype& sums) {
  t.accumulate(x, true, age, sums);
};

/// A trust ratio whose scale does not depend on the staleness discount.
template <class T>
concept ignores_staleness = trust_ratio<T> && requires {
  requires T::ignores_staleness;
};

}  // namespace capability

/// The result of a trust ratio's `factors`.
template <trust_ratio TrustRatio>
using factors_of =
    decltype(std::declval<const TrustRatio&>().factors(static_cast<const double*>(nullptr), tensor_properties{}));

namespace capability {

/// A trust ratio that averages itself during the warm-up of a 1-bit optimizer, and afterwards follows the drift of the variance.
template <class T>
concept frozen_ratio = trust_ratio<T> && requires {
  requires T::is_frozen;
};

}  // namespace capability

}  // namespace slamb
