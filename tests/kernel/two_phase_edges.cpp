// Edge cases of the kernels of the compressed exchange: any grid, models with no or very many tensors, skipped steps, and values
// that are not finite.
#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "slamb/compressor/integer.hpp"
#include "slamb/compressor/sign.hpp"
#include "slamb/detail/pass/messages.hpp"
#include "slamb/detail/pass/step_state.hpp"
#include "support/archetype_quantizers.hpp"
#include "support/cuda_quantized.hpp"
#include "support/cuda_quantized_compare.hpp"
#include "support/cuda_quantized_passes.hpp"
#include "support/cuda_quantized_sides.hpp"
#include "support/launchers.hpp"

namespace kernel_two_phase_edges_tests {
namespace {

using namespace test_support;
using slamb::bfloat16;
using slamb::detail::no_storage;
using slamb::detail::cuda::thread_order;

archetype_blocks zero_aware_blocks() {
  archetype_blocks made;
  made.block = 128;
  made.zero_aware = true;
  return made;
}

using signs = quantized<slamb::sign, refresh, float>;
using integers = quantized<slamb::int8, sum_the_mean, no_storage>;
using ternaries = quantized<archetype_ternary, sum_the_mean, bfloat16>;

}  // namespace

TEST_CASE("two_phase: no tensors, empty chunks, and ten thousand tensors of one element") {
  compare<signs>({.tensors = {}, .ranks = 2}, {});
  compare<integers>({.tensors = {}, .ranks = 2}, {});
  compare<signs>({.tensors = {{5}, {300, false}}, .ranks = 8, .rank = 7}, {});  // a chunk without elements
  compare<integers>({.tensors = {{5}, {300, false}}, .ranks = 8, .rank = 7}, {});
  const std::vector<quantized_tensor> many(10000, quantized_tensor{1});
  compare<signs>({.tensors = many, .ranks = 2, .rank = 1}, {.scales = slamb::scale_sharing::per_tensor});
  compare<signs>({.tensors = many, .ranks = 2, .rank = 1, .mixed = true}, {});
  compare<integers>({.tensors = many, .ranks = 2}, {});
}

namespace {

/// All results of an exchange by kernels, sums included.
template <class Case>
std::vector<std::byte> transcript(const quantized_setup& setup, const typename Case::quantizer& quantizer,
                                  const emulated& on) {
  device_side<Case> side(setup, quantizer, on);
  std::vector<std::byte> all;
  const auto note = [&all](const std::vector<double>& sums) {
    const auto bytes = std::as_bytes(std::span(sums));
    all.insert(all.end(), bytes.begin(), bytes.end());
  };
  side.mark_active();
  side.send_all([&] { note(side.r.statistic); });
  arrive(side.r, messages_of_others<Case>(setup, quantizer, false));
  side.average_all([&] { note(side.r.statistic); });
  arrive(side.r, messages_of_others<Case>(setup, quantizer, true));
  say(side.r, setup.rank);
  note(side.measure());
  note(side.receive());
  const std::vector<std::byte> memory = side.r.memory.bytes();
  all.insert(all.end(), memory.begin(), memory.end());
  return all;
}

template <class Case>
void compare_grids(const quantized_setup& setup, const typename Case::quantizer& quantizer) {
  const std::vector<std::byte> expected = transcript<Case>(setup, quantizer, emulated_on(1));
  for_every_launch([&](const emulated& on) { require(transcript<Case>(setup, quantizer, on) == expected); });
}

}  // namespace

TEST_CASE("two_phase: any grid and order of threads gives the same bits") {
  const quantized_setup setup{.tensors = tensors_of_all_lengths(), .ranks = 2, .rank = 1, .mixed = true};
  const quantized_setup masked{.tensors = tensors_with_rows(), .ranks = 2, .rank = 0, .zero_aware = true};
  for (const quantized_setup& one : {setup, masked}) {
    compare_grids<signs>(one, {.zero_aware = true});
    compare_grids<integers>(one, {.block = 64});
    compare_grids<quantized<archetype_blocks, sum_the_mean, float>>(one, zero_aware_blocks());
    compare_grids<ternaries>(one, per_tensor<archetype_ternary>());
  }
}

TEST_CASE("two_phase: a skipped step changes nothing") {
  const quantized_setup setup{.tensors = tensors_with_rows(), .ranks = 2, .zero_aware = true};
  const auto check = [&]<class Case>(Case, const typename Case::quantizer& quantizer) {
    device_side<Case> side(setup, quantizer);
    typename Case::rank& r = side.r;
    side.mark_active();
    side.send_all();
    arrive(r, messages_of_others<Case>(setup, quantizer, false));
    side.average_all();
    const std::vector<std::byte> before = r.memory.bytes();
    r.gradient(0)[0] = std::numeric_limits<float>::infinity();
    r.statistic.assign(r.statistic.size(), -2.0);
    r.counts.assign(r.counts.size(), 77);
    const std::uint32_t one = 1;
    const std::vector<std::byte> with_infinity = r.memory.bytes();
    require(with_infinity != before);
    r.view.skip = &one;
    const auto run = [&] {
      side.mark_active();
      const bool finite = side.send_all();
      side.average_all();
      for (const auto& sums : {side.measure(), side.receive()})
        for (const double sum : sums) require(sum == -1.0);
      return finite;
    };
    require(run());
    require(r.memory.bytes() == with_infinity);
    require(r.statistic == std::vector<double>(r.statistic.size(), -2.0));
    require(r.counts == std::vector<std::uint64_t>(r.counts.size(), 77));
    const std::uint32_t zero = 0;
    r.view.skip = &zero;
    r.counts.back() = 77;
    side.mark_active();
    require(!side.send_all());
    require(r.memory.bytes() != with_infinity);
  };
  check(signs{}, {});
  check(ternaries{}, {});
  check(integers{}, {.block = 32});
}

TEST_CASE("two_phase: finds a value that is not finite at any position, and reports no other") {
  const auto check = [&]<class Case>(Case, const typename Case::quantizer& quantizer, float value, bool is_usable) {
    for (const unsigned shift : {0U, 1U})
      for (const bool compressed : {true, false})
        for (const std::size_t place : {0U, 1U, 15U, 16U, 4095U, 4096U, 8191U, 8192U, 8205U, 8206U}) {
          CAPTURE(place);
          const quantized_setup setup{.tensors = {{5}, {8207, compressed}}, .ranks = 2, .shift = shift};
          const auto finds = [&](auto side) {
            side.r.gradient(1)[place] = value;
            return side.send_all() == is_usable;
          };
          require(finds(host_side<Case>(setup, quantizer)));
          require(finds(device_side<Case>(setup, quantizer)));
        }
  };
  constexpr float infinity = std::numeric_limits<float>::infinity();
  constexpr float nan = std::numeric_limits<float>::quiet_NaN();
  using floats = quantized<slamb::sign, sum_the_mean, float>;
  using halves = quantized<slamb::sign, sum_the_mean, bfloat16>;
  for (const float bad : {infinity, -infinity, nan, 1e30F}) check(floats{}, {}, bad, false);
  check(floats{}, {}, 1.844e19F, true);
  check(integers{}, {}, nan, false);
  check(ternaries{}, {}, -infinity, false);
  check(halves{}, {}, 1.8e19F, true);
}

TEST_CASE("two_phase: an error that would overflow in bfloat16 skips the step") {
  using halves = quantized<slamb::sign, sum_the_mean, bfloat16>;
  const auto usable = [](auto side) {
    side.r.gradient(0)[9] = 1.84e19F;
    return side.send_all();
  };
  CHECK_FALSE(usable(host_side<halves>({.tensors = {{100}}, .ranks = 2}, {})));
  CHECK_FALSE(usable(device_side<halves>({.tensors = {{100}}, .ranks = 2}, {})));
}

namespace {

/// One rank's average of the messages of all ranks, by kernels.
template <class Case>
class many_messages {
 public:
  many_messages(const quantized_setup& setup, const typename Case::quantizer& quantizer, const emulated& on)
      : side_(setup, quantizer, on) {
    arrive(side_.r, messages_of_others<Case>(setup, quantizer, false));
    side_.start_averaged();
  }

  slamb::detail::message_header& header(std::uint64_t rank) {
    return *slamb::detail::header_of(side_.r.message(side_.r.wire.received, rank).data());
  }
  std::vector<std::byte> memory() const { return side_.r.memory.bytes(); }
  const std::vector<double>& statistic() const { return side_.r.statistic; }
  const slamb::detail::step_record& record() const { return record_; }

  /// @param looks  true: the kernel reads the overflow flags
  void average(bool looks) {
    record_ = {};
    side_.r.view.skip = &record_.skip;
    side_.template average<device_side<Case>::first>(looks ? marks() : slamb::detail::read_overflow_flags{});
  }
  /// Does the work that follows the second collective, with messages that have no overflow flag.
  void end_exchange() { side_.invoke(slamb::detail::skip_if_not_finite{&record_}, marks()); }

 private:
  slamb::detail::read_overflow_flags marks() {
    return {&record_, side_.r.wire.received, side_.r.wire.message_bytes, side_.r.wire.ranks};
  }

  device_side<Case> side_;
  slamb::detail::step_record record_;
};

/// @param rank  the rank that averages
template <class Case>
void check_marks(int rank, const typename Case::quantizer& quantizer) {
  constexpr std::uint32_t raised[] = {1U, 0x80000000U};
  for (const emulated& on : {emulated_on(3), emulated_on(1000, thread_order::backwards)}) {
    const quantized_setup setup{.tensors = {{5}, {300}}, .ranks = 100, .rank = rank};
    many_messages<Case> all(setup, quantizer, on), heedless(setup, quantizer, on);
    const std::vector<std::byte> before = all.memory();
    const std::vector<double> sums_before = all.statistic();
    for (std::uint64_t marked = 0; marked < 100; ++marked) {
      CAPTURE(marked);
      all.header(marked).has_overflow = raised[marked % 2];
      all.average(true);
      require(all.record().not_finite == 1 && all.record().skip == 0);  // blocks that begin late read it
      all.header(marked).has_overflow = 0;
      require(all.memory() == before);
      require(all.statistic() == sums_before);
      all.end_exchange();
      require(all.record().skip == 1);
    }
    all.average(true);
    heedless.average(false);
    require(all.record().not_finite == 0);
    require(all.memory() == heedless.memory());
    require(all.statistic() == heedless.statistic());
    all.end_exchange();
    require(all.record().skip == 0);
  }
}

}  // namespace

TEST_CASE(
    "two_phase: an overflow flag from any of a hundred ranks stops the averaging, and skips the step "
    "later") {
  check_marks<signs>(1, {});
  check_marks<integers>(0, {.block = 32});
  check_marks<ternaries>(2, {});
  check_marks<signs>(99, {});  // it has nothing to average
}

}  // namespace kernel_two_phase_edges_tests
