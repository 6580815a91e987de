// Models in guarded memory, which shows every stray write, for running a pass by both the host backend and kernels.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "slamb/detail/pass/layout.hpp"
#include "slamb/detail/pass/pass.hpp"
#include "slamb/optimizer/detail/adam_passes.hpp"
#include "slamb/optimizer/detail/one_bit_passes.hpp"
#include "slamb/optimizer/detail/sparse_gradient.hpp"
#include "slamb/optimizer/detail/zero_one_passes.hpp"
#include "support/generate.hpp"
#include "support/launchers.hpp"

namespace test_support {

/// The bits of memory that was never written: a NaN, so that a read of it shows.
inline constexpr std::uint32_t poison_bits = 0x7FFADBADU;
inline bool is_poison(float x) { return std::bit_cast<std::uint32_t>(x) == poison_bits; }

/// Poisoned memory out of which arrays are cut, with poison between them.
class guarded_memory {
 public:
  explicit guarded_memory(std::size_t floats) : all_(floats + line, std::bit_cast<float>(poison_bits)) {
    while (reinterpret_cast<std::uintptr_t>(all_.data() + first_) % (line * sizeof(float)) != 0) ++first_;
    used_ = first_;
  }

  /// An array that begins `offset` floats past a multiple of 64 bytes.
  float* take(std::size_t count, unsigned offset) {
    const std::size_t begin = used_ + line + offset;
    const std::size_t end = (begin + count - first_ + line - 1) / line * line + first_;
    if (end + line > all_.size()) throw std::logic_error("guarded_memory: too small for the test");
    used_ = end;
    return all_.data() + begin;
  }
  static std::size_t room_for(std::size_t count) { return count + 4 * line; }

  std::span<const std::byte> bytes() const {
    return std::as_bytes(std::span(all_).subspan(first_, all_.size() - line));
  }

  /// Compares all bytes, poison included.
  bool operator==(const guarded_memory& other) const {
    return bytes().size() == other.bytes().size() &&
           std::memcmp(bytes().data(), other.bytes().data(), bytes().size()) == 0;
  }

 private:
  static constexpr std::size_t line = 16;  // floats
  std::vector<float> all_;
  std::size_t first_ = 0;
  std::size_t used_ = 0;
};

/// The parameters of a guarded model.
struct model_spec {
  std::vector<std::size_t> sizes{};
  unsigned filled = ~0U;  ///< bits of the streams that hold numbers; the others hold poison
  unsigned alignment =
      0;  ///< 0 … 3: floats past a multiple of 16 bytes, for all arrays; 4: another offset for each array
  std::uint64_t cut = 0;           ///< tiles do not cross multiples of it, if it is not 0
  std::size_t exchanged_tile = 0;  ///< the first tile of the exchange buffer
  bool gradient_is_exchanged = false;
  std::vector<std::size_t> dense{};  ///< tensors that are always dense
  std::uint64_t seed = 1;
};

/// One bit for each array of a model.
namespace stream {
inline constexpr unsigned parameter = 1U << 0U;
inline constexpr unsigned gradient = 1U << 1U;
inline constexpr unsigned momentum = 1U << 2U;
inline constexpr unsigned variance = 1U << 3U;
inline constexpr unsigned exchanged = 1U << 4U;
inline constexpr unsigned fresh_variance = 1U << 5U;
inline constexpr unsigned accumulated_update = 1U << 6U;
inline constexpr unsigned anchor = 1U << 7U;
inline constexpr unsigned residual = 1U << 8U;
}  // namespace stream

/// The bits of the arrays in a list.
template <class... Arrays>
constexpr unsigned streams_of(slamb::detail::arrays<Arrays...> /*list*/) {
  namespace array = slamb::detail::array;
  const auto bit = [](auto one, unsigned its) {
    return slamb::detail::arrays<Arrays...>::template has<decltype(one)> ? its : 0U;
  };
  return bit(array::parameter{}, stream::parameter) | bit(array::gradient{}, stream::gradient) |
         bit(array::momentum{}, stream::momentum) | bit(array::variance{}, stream::variance) |
         bit(array::exchanged{}, stream::exchanged) | bit(array::fresh_variance{}, stream::fresh_variance) |
         bit(array::accumulated_update{}, stream::accumulated_update) | bit(array::anchor{}, stream::anchor) |
         bit(array::residual{}, stream::residual);
}

/// A view with all arrays of a guarded model.
using full_view = slamb::detail::state_view<
    slamb::detail::view_in<>,
    slamb::detail::arrays<slamb::detail::array::momentum, slamb::detail::array::variance,
                          slamb::detail::array::fresh_variance, slamb::detail::array::accumulated_update,
                          slamb::detail::array::anchor, slamb::detail::array::residual>>;

/// A model with all arrays that passes use. Equal specs give equal bytes.
class guarded_model {
 public:
  explicit guarded_model(const model_spec& spec) : memory_(room_for(spec)), spec_(spec) {
    std::vector<slamb::parameter> parameters;
    for (const std::size_t size : spec.sizes) {
      float* const data = take(size, stream::parameter, 0.3);
      float* const gradient = take(size, stream::gradient, 1.0);
      const bool dense = std::count(spec.dense.begin(), spec.dense.end(), parameters.size()) != 0;
      parameters.push_back(
          {.data = data, .gradient = gradient, .size = size, .dimensions = 2, .options = {.compress = !dense}});
      gradients_.push_back(gradient);
    }
    tensors_ = slamb::detail::layout(parameters, 0.01);
    if (spec.cut != 0) cut_tiles();
    tiles_ = tensors_.tile_table();
    const std::uint64_t state = tensors_.state_elements();
    view_.segments = tensors_.segments().data();
    view_.tiles = tiles_.data();
    view_.momentum = take_state(state, stream::momentum, 0.1);
    view_.variance = take_state(state, stream::variance, 0.01);
    view_.fresh_variance = take_state(state, stream::fresh_variance, 0.01);
    view_.accumulated_update = take_state(state, stream::accumulated_update, 0.1);
    view_.anchor = take_state(state, stream::anchor, 0.3);
    view_.residual = take_state(state, stream::residual, 1.0);
    if (!tiles_.empty()) {
      view_.exchanged_first = tensors_.first_element(tiles_[spec.exchanged_tile]);
      exchanged_ = take(tensors_.elements() - view_.exchanged_first, stream::exchanged, 1.0);
    }
    view_.exchanged = exchanged_;
    view_.gradient_is_exchanged = spec.gradient_is_exchanged;
  }
  guarded_model(const guarded_model&) = delete;
  guarded_model& operator=(const guarded_model&) = delete;

  const full_view& view() const { return view_; }
  const slamb::detail::layout& tensors() const { return tensors_; }
  slamb::detail::tile_range tiles() const { return {spec_.exchanged_tile, tensors_.tile_count()}; }
  /// [size] of a tensor.
  float* gradient(std::size_t tensor) { return gradients_[tensor]; }
  bool operator==(const guarded_model& other) const { return memory_ == other.memory_; }

  /// Counts elements of a written stream that are still poison. For the exchange buffer, it counts from the buffer's start.
  std::size_t unwritten(unsigned stream) const {
    std::size_t count = 0;
    for (const slamb::detail::tile& t : std::span(tiles_).subspan(spec_.exchanged_tile)) {
      const slamb::detail::segment& s = tensors_.segments()[t.segment];
      const float* const from = first_of(stream, s, t);
      for (std::uint32_t i = 0; i < t.count; ++i) count += is_poison(from[i]) ? 1 : 0;
    }
    return count;
  }

 private:
  static std::size_t room_for(const model_spec& spec) {
    std::size_t room = 0;
    std::size_t state = 0;
    for (const std::size_t size : spec.sizes) {
      room += 2 * guarded_memory::room_for(size);
      state += (size + 15) / 16 * 16;
    }
    return room + 8 * guarded_memory::room_for(state);
  }

  float* take(std::size_t count, unsigned stream, double scale) {
    float* const array = memory_.take(count, spec_.alignment < 4 ? spec_.alignment : taken_ % 4);
    random_source source(spec_.seed, ++taken_);
    const bool positive = (stream & (stream::variance | stream::fresh_variance)) != 0;
    if ((spec_.filled & stream) != 0)
      for (std::size_t i = 0; i < count; ++i) {
        const double x = scale * (2.0 * source.uniform() - 1.0);
        array[i] = static_cast<float>(positive ? std::abs(x) : x);
      }
    return array;
  }

  // Fills elements with numbers, and leaves poison in the gaps.
  float* take_state(std::size_t count, unsigned stream, double scale) {
    float* const array = take(count, stream, scale);
    for (const slamb::detail::segment& s : tensors_.segments())
      for (std::uint64_t i = s.size; i < (s.size + 15) / 16 * 16; ++i)
        array[s.state + i] = std::bit_cast<float>(poison_bits);
    return array;
  }

  void cut_tiles() {
    std::vector<slamb::detail::tile_cut> cuts;
    for (std::size_t l = 0; l < spec_.sizes.size(); ++l)
      for (std::uint64_t first = 0; first < spec_.sizes[l]; first += spec_.cut)
        cuts.push_back(
            {static_cast<std::uint32_t>(l), first, std::min<std::uint64_t>(spec_.cut, spec_.sizes[l] - first)});
    tensors_.make_tiles(std::span<const slamb::detail::tile_cut>(cuts));
  }

  const float* first_of(unsigned stream, const slamb::detail::segment& s, const slamb::detail::tile& t) const {
    switch (stream) {
      case stream::parameter:
        return static_cast<const float*>(s.data) + t.first;
      case stream::exchanged:
        return view_.exchanged + (s.first + t.first - view_.exchanged_first);
      case stream::momentum:
        return view_.momentum + s.state + t.first;
      case stream::variance:
        return view_.variance + s.state + t.first;
      case stream::fresh_variance:
        return view_.fresh_variance + s.state + t.first;
      case stream::accumulated_update:
        return view_.accumulated_update + s.state + t.first;
      case stream::anchor:
        return view_.anchor + s.state + t.first;
      case stream::residual:
        return view_.residual + s.state + t.first;
      default:
        throw std::logic_error("guarded_model: no such stream is written");
    }
  }

  guarded_memory memory_;
  model_spec spec_;
  slamb::detail::layout tensors_;
  std::vector<slamb::detail::tile> tiles_;
  full_view view_{};
  float* exchanged_ = nullptr;
  std::vector<float*> gradients_;
  unsigned taken_ = 0;
};

/// The tables that Adam's update needs for a model, with factors of a trust ratio computed from made-up sums.
template <class TrustRatio>
class made_up_tables {
 public:
  made_up_tables(const slamb::detail::layout& tensors, const TrustRatio& ratio, std::uint64_t seed = 3)
      : ratio_(ratio) {
    random_source source(seed, 0x7AB);
    for (const slamb::detail::segment& s : tensors.segments()) {
      double sums[8];
      for (double& x : sums) x = 0.5 + source.uniform();
      rates_.resize(std::max<std::size_t>(rates_.size(), s.group + 1), 0.01 * source.uniform());
      factors_.push_back(ratio.factors(sums, {.adapt = s.adapt, .weight_decay = s.weight_decay, .world = 3}));
    }
  }

  template <class Variance = slamb::detail::living_variance>
  slamb::detail::adam_update<TrustRatio, Variance> update(const slamb::detail::model_view& view) const {
    return {{&scalars_, view.segments, rates_.data(), factors_.data()}, ratio_};
  }

  const slamb::detail::adam_scalars* scalars() const { return &scalars_; }
  /// No element has a late variance.
  void end_late_variances() { scalars_.late_below = slamb::detail::no_variance_is_late; }

 private:
  TrustRatio ratio_;
  // Some elements are at a bound; one in some thousand has a variance that began late, or none.
  slamb::detail::adam_scalars scalars_{.one_minus_beta1 = 0.1F,
                                       .one_minus_beta2 = 0.02F,
                                       .momentum_correction = 1.7F,
                                       .deviation_correction = 2.3F,
                                       .epsilon = 1e-6F,
                                       .gradient_scale = 0.5F,
                                       .bound = 1.5F,
                                       .late_bound = 1.2F,
                                       .late_below = 1e-3F,
                                       .inverse_one_minus_beta1 = 10.0F};
  std::vector<double> rates_;  // [groups]
  std::vector<slamb::factors_of<TrustRatio>> factors_;
};

/// True if two lists of sums differ only by the order of additions. Poison equals only poison.
inline bool are_near(std::span<const double> a, std::span<const double> b, double tolerance = 1e-13) {
  if (a.size() != b.size()) return false;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const bool same = std::bit_cast<std::uint64_t>(a[i]) == std::bit_cast<std::uint64_t>(b[i]);
    if (!same && !(std::abs(a[i] - b[i]) <= tolerance * std::abs(b[i]))) return false;
  }
  return true;
}

inline bool are_same(std::span<const double> a, std::span<const double> b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size_bytes()) == 0);
}

/// [count] doubles of poison.
inline std::vector<double> poisoned_doubles(std::size_t count) {
  return std::vector<double>(count, std::bit_cast<double>(0x7FFADBAD7FFADBADULL));
}

}  // namespace test_support
