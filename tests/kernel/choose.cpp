// The choice of elements by value, emulated and on the host.
#include "slamb/detail/kernel/choose.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "slamb/compressor/top_k.hpp"
#include "slamb/core/concepts.hpp"
#include "slamb/detail/pass/pass.hpp"
#include "support/cuda_model.hpp"
#include "support/launchers.hpp"

namespace kernel_choose_tests {
namespace {

using namespace test_support;

/// The signal is g + m.
struct sum_of_both : slamb::detail::pass_without_constants {
  using signal_reads = slamb::detail::arrays<slamb::detail::array::gradient, slamb::detail::array::momentum>;
  using reads = slamb::detail::arrays<>;
  using writes = slamb::detail::arrays<>;
  static constexpr int sums = 0;

  template <class Element, class Sums>
  SLAMB_ELEMENT auto signal(const Element& e, no_constants /*constants*/, Sums& sums) const {
    sums.check_finite(e.gradient);
    return e.gradient + e.momentum;
  }
};

/// A model from which elements are chosen.
struct model : guarded_model {
  explicit model(const model_spec& spec)
      : guarded_model(spec), bits(tensors().state_elements() / 16), view(guarded_model::view()) {}

  slamb::detail::tile_range all_tiles() const { return {0, tensors().tile_count()}; }
  bool operator==(const model& other) const { return guarded_model::operator==(other) && bits == other.bits; }

  std::vector<std::uint16_t> bits;
  full_view view;
};

/// Chooses every second element; or the first ones, if the first value is positive. No shipped sparsifier does this.
struct archetype_data_dependent_sparsifier {
  SLAMB_HOST_DEVICE std::uint32_t chosen_of(std::uint32_t count) const { return (count + 1) / 2; }
  SLAMB_HOST_DEVICE void choose(const float* values, std::uint32_t count, std::uint16_t* bits) const {
    for (std::uint32_t j = 0; j < chosen_of(count); ++j)
      slamb::set_bit(bits, count > 0 && values[0] > 0.0F ? j : 2 * j);
  }
};
static_assert(slamb::data_dependent_sparsifier<archetype_data_dependent_sparsifier>);

/// Chooses every second element; on a device all threads of a block do, and, if `Wrong`, they choose the others.
template <bool Wrong>
struct evens_in_block {
  SLAMB_HOST_DEVICE std::uint32_t chosen_of(std::uint32_t count) const { return (count + 1) / 2; }
  void choose(const float* /*values*/, std::uint32_t count, std::uint16_t* bits) const {
    for (std::uint32_t i = 0; i < count; i += 2) slamb::set_bit(bits, i);
  }

  struct block_memory {
    std::uint32_t word;
  };
  template <class Block>
  SLAMB_HOST_DEVICE void choose_in_block(Block& block, block_memory& memory, const float* /*values*/,
                                         std::uint32_t count, std::uint16_t* bits) const {
    block.first([&] { memory.word = Wrong ? 0xAAAAU : 0x5555U; });
    block.each([&](unsigned thread) {
      for (std::uint32_t i = 16 * thread; i < count; i += 16 * Block::threads)
        bits[i / 16] = static_cast<std::uint16_t>(memory.word & ((1U << std::min(count - i, 16U)) - 1U));
    });
  }
};
static_assert(slamb::data_dependent_sparsifier<evens_in_block<false>>);

/// True if the host and the device choose the same.
template <class Compressor, class Change>
bool choose_the_same(const model_spec& spec, const Compressor& compressor, const Change& change, bool is_finite,
                     const emulated& on = emulated_on()) {
  model host(spec), device(spec);
  const auto choose = [&](const auto& launcher, model& m) {
    change(m);
    std::uint32_t not_finite = 0;
    launcher.launch(
        slamb::detail::choose_elements{sum_of_both{}, compressor, m.view, m.all_tiles(), m.bits.data(), &not_finite});
    REQUIRE(not_finite == (is_finite ? 0 : 1));
  };
  choose(host_launcher(), host);
  choose(on, device);
  return device == host;
}

template <class Compressor, class Change>
void compare_choice(const model_spec& spec, const Compressor& compressor, const Change& change, bool is_finite,
                    const emulated& on = emulated_on()) {
  REQUIRE(choose_the_same(spec, compressor, change, is_finite, on));
}

const auto unchanged = [](model&) {};

model_spec some_tensors() {
  model_spec spec;
  for (std::size_t n = 0; n < 40; ++n) {
    if (n % 6 == 5) spec.dense.push_back(n);
    spec.sizes.push_back(n);
  }
  for (const std::size_t n : {8192U, 8193U, 16400U, 1000U}) spec.sizes.push_back(n);
  return spec;
}

}  // namespace

TEST_CASE("choose_elements: chooses the largest elements of each tile, the first of equal ones") {
  model_spec spec = some_tensors();
  for (const double k : {1e-9, 0.01, 0.07, 0.5, 0.999, 1.0})
    for (spec.alignment = 0; spec.alignment < 2; ++spec.alignment) {
      CAPTURE(k);
      compare_choice(spec, slamb::top_k{k}, unchanged, true);
      compare_choice(
          spec, slamb::top_k{k},
          [](model& m) {
            for (const slamb::detail::segment& s : m.tensors().segments())
              for (std::uint64_t i = 0; i < s.size; ++i) {
                m.view.momentum[s.state + i] = 0.0F;  // equal magnitudes, zeros of both signs among them
                m.gradient(static_cast<std::size_t>(&s - m.view.segments))[i] = i % 3 == 0   ? -0.0F
                                                                                : i % 3 == 1 ? 0.0F
                                                                                             : -2.0F;
              }
          },
          true);
      compare_choice(
          spec, slamb::top_k{k}, [](model& m) { m.gradient(40)[77] = 1e19F; }, true);
    }
}

TEST_CASE("choose_elements: any grid, no tensors, very many tensors, and a user-defined compressor") {
  for_every_launch([](const emulated& on) {
    compare_choice(some_tensors(), slamb::top_k{0.1}, unchanged, true, on);
    compare_choice(some_tensors(), archetype_data_dependent_sparsifier{}, unchanged, true, on);
    compare_choice(some_tensors(), evens_in_block<false>{}, unchanged, true, on);
  });
  CHECK_FALSE(choose_the_same(some_tensors(), evens_in_block<true>{}, unchanged, true));
  compare_choice({}, slamb::top_k{0.1}, unchanged, true);
  compare_choice({.sizes = std::vector<std::size_t>(10'000, 1)}, slamb::top_k{0.1}, unchanged, true);
}

TEST_CASE("choose_elements: a tile that is not finite gets no selection, and a skipped step chooses nothing") {
  const float infinity = std::numeric_limits<float>::infinity();
  for (const std::size_t place : {0U, 8191U, 8192U, 8200U, 16399U})
    for (const float bad : {infinity, -infinity, std::numeric_limits<float>::quiet_NaN(), 2e19F})
      compare_choice(
          some_tensors(), slamb::top_k{0.1}, [&](model& m) { m.gradient(42)[place] = bad; }, false);
  model m(some_tensors());
  const model before(some_tensors());
  const std::uint32_t skip = 1;
  m.view.skip = &skip;
  std::uint32_t not_finite = 0;
  const slamb::detail::choose_elements kernel{sum_of_both{}, slamb::top_k{0.1}, m.view,
                                              m.all_tiles(), m.bits.data(),     &not_finite};
  host_launcher().launch(kernel);
  emulated_on().launch(kernel);
  CHECK(m == before);
}

}  // namespace kernel_choose_tests
