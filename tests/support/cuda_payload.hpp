// Payload planes and stored ages in guarded memory, and selections of every kind.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <vector>

#include "slamb/compressor/explicit_mask.hpp"
#include "slamb/compressor/random_k.hpp"
#include "slamb/core/concepts.hpp"
#include "slamb/detail/exchange/sparse.hpp"
#include "slamb/detail/pass/layout.hpp"
#include "slamb/detail/pass/sparse_pass.hpp"
#include "support/archetype_policies.hpp"
#include "support/cuda_model.hpp"
#include "support/generate.hpp"

namespace test_support {

/// The payload of the selected elements, and the ages of all elements.
template <class Age>
class guarded_payload {
 public:
  /// @param tile_offsets  its address is kept
  /// @param filled      true: the planes hold numbers; false: poison
  /// @param has_compression_error    true: there is a second plane
  guarded_payload(std::span<const std::uint64_t> tile_offsets, const slamb::detail::layout& tensors,
                  const model_spec& spec, bool filled, bool has_compression_error)
      : size_(tile_offsets.back()), memory_(room_for(size_, tensors.state_elements())) {
    for (unsigned plane = 0; plane < 3; ++plane) {
      planes_[plane] = memory_.take(size_, spec.alignment < 4 ? spec.alignment : plane % 4);
      random_source source(plane, 0xFA);
      if (filled)
        for (std::size_t i = 0; i < size_; ++i) planes_[plane][i] = static_cast<float>(source.uniform());
    }
    const std::uint64_t age_floats = tensors.state_elements() * sizeof(Age) / sizeof(float) + 4;
    auto* const age = reinterpret_cast<Age*>(memory_.take(age_floats, 0));
    random_source source(7);
    for (const slamb::detail::segment& s : tensors.segments())
      for (std::uint64_t i = 0; i < s.size; ++i)
        age[s.state + i] = static_cast<Age>(source.below(4) == 0 ? ~0U - source.below(3) : source.below(30));
    random_source betas(11);
    for (float& x : discounts_) x = static_cast<float>(betas.uniform());
    view_ = {tile_offsets.data(),
             {planes_[0], has_compression_error ? planes_[1] : nullptr, planes_[2]},
             {discounts_.data(), static_cast<std::uint32_t>(discounts_.size())},
             age};
  }

  const slamb::detail::payload_view& view() const { return view_; }
  bool operator==(const guarded_payload& other) const { return memory_ == other.memory_; }
  /// Counts elements of plane 0, 1 or 2 that are still poison.
  std::size_t unwritten(unsigned plane) const {
    std::size_t count = 0;
    for (std::size_t i = 0; i < size_; ++i) count += is_poison(planes_[plane][i]) ? 1 : 0;
    return count;
  }

 private:
  static std::size_t room_for(std::size_t size, std::uint64_t state) {
    return 3 * guarded_memory::room_for(size) + guarded_memory::room_for(state * sizeof(Age) / sizeof(float) + 4);
  }

  std::size_t size_;
  guarded_memory memory_;
  float* planes_[3];
  std::vector<float> discounts_ = std::vector<float>(20);  // fewer than there are ages
  slamb::detail::payload_view view_;
};

/// Selects runs of five elements, on the device too. Its test of a single element is never called.
struct runs_of_five {
  static constexpr bool runs_on_device = true;

  std::uint64_t step;

  std::uint32_t age(slamb::coordinate) const { throw std::logic_error("runs_of_five: runs say all"); }
  bool selects(slamb::coordinate) const { throw std::logic_error("runs_of_five: runs say all"); }
  template <class Visit>
  void runs(slamb::coordinate c, std::uint64_t count, Visit&& visit) const {
    for (const std::uint64_t end = c.index + count; c.index < end;) {
      const std::uint64_t past = std::min(end, (c.index / 5 + 1) * 5);
      visit(c.index, past - c.index, static_cast<std::uint32_t>((c.index / 5 + step) % 4));
      c.index = past;
    }
  }
};
static_assert(slamb::capability::has_runs<runs_of_five> && slamb::capability::has_age<runs_of_five>);

/// Calls body(selection) for selections of every kind at step t of a model.
template <class Body>
void for_every_selection(const slamb::detail::layout& tensors, std::uint64_t t, const Body& body) {
  using slamb::sampling;
  body(slamb::random_k<>{.k = 0.1, .block = 1, .seed = 3}.at(t));
  body(slamb::random_k<>{.k = 0.3, .block = 5, .seed = 4}.at(t));
  body(slamb::random_k<>{.k = 0.02, .block = 16, .seed = 5}.at(t));
  body(slamb::random_k<>{.k = 1.0, .block = 3, .seed = 5}.at(t));
  body(slamb::random_k<sampling::bernoulli>{.k = 0.2, .block = 1, .seed = 6}.at(t));
  body(slamb::random_k<sampling::bernoulli>{.k = 0.5, .block = 7, .seed = 6}.at(t));
  const std::vector<std::uint8_t> mask = random_mask(8, t, tensors.elements(), 0.4);
  body(slamb::explicit_mask::selection{mask.data()});
  std::vector<std::uint16_t> bits(tensors.state_elements() / 16 + 1);
  random_source source(t);
  for (std::uint16_t& x : bits) x = static_cast<std::uint16_t>(source.next());
  body(slamb::detail::bitmap_selection{bits.data()});
  body(every_nth{}.at(t));
  body(marching_quarters::at(t));
  body(now_and_then{}.at(t));
  body(nothing_ever::at(t));
  body(tensor_by_tensor{}.at(t));
  body(alternating::at(t));
  body(runs_of_five{t});
}

}  // namespace test_support
