// The number of kernels that a step of each recipe launches, counted on the emulated device; and that a plan counts as many
// kernels, and the bytes that are counted for them.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "../../bench/gpu/passes.hpp"
#include "../../bench/planned_bytes.hpp"
#include "instances/emulated.hpp"
#include "slamb/slamb.hpp"
#include "support/recorded_backend.hpp"

namespace properties_launches_tests {
namespace {

/// The calls of the device in one step.
struct counts {
  std::size_t kernels = 0;
  std::size_t clears = 0;
  std::size_t uploads = 0;
  std::size_t downloads = 0;   ///< each waits for all enqueued work
  std::size_t late_reads = 0;  ///< the next step waits for each of them, but only for work enqueued before it

  friend bool operator==(const counts&, const counts&) = default;
  friend doctest::String toString(const counts& c) {
    const auto text = [](std::size_t n) { return std::to_string(n); };
    return ("{" + text(c.kernels) + ", " + text(c.clears) + ", " + text(c.uploads) + ", " + text(c.downloads) + ", " +
            text(c.late_reads) + "}")
        .c_str();
  }
};

/// A kind of step, and its expected calls of the device. Kernels and copies of the communicator are not counted.
struct expected {
  const char* step;
  int ranks;
  counts of_step;
};

// kernels, clears, uploads, downloads, and late reads if there are any. In steps 4, 8, 16, … several ranks read whether the
// device has found that they diverged.
constexpr expected table[] = {
    {"adamw", 1, {5, 0, 0, 0}},
    {"adamw", 3, {6, 0, 0, 0}},
    {"lamb", 1, {7, 0, 0, 0}},
    {"lamb", 3, {8, 0, 0, 0}},
    {"slamb", 1, {8, 0, 0, 0}},
    {"slamb", 3, {9, 0, 0, 0}},
    {"slamb, averages", 1, {8, 0, 0, 1}},
    {"slamb, averages", 3, {18, 0, 0, 1, 1}},
    {"one_bit_adam, warm-up", 1, {5, 0, 0, 0}},
    {"one_bit_adam, warm-up", 3, {6, 0, 0, 0}},
    {"one_bit_adam", 1, {8, 0, 0, 0}},
    {"one_bit_adam", 3, {8, 0, 0, 0}},
    {"one_bit_lamb, warm-up", 1, {7, 0, 0, 0}},
    {"one_bit_lamb, warm-up", 3, {8, 0, 0, 0}},
    {"one_bit_lamb", 1, {10, 0, 0, 0}},
    {"one_bit_lamb", 3, {10, 0, 0, 0}},
    {"zero_one_adam, gradient in codes", 1, {8, 0, 0, 0, 1}},
    {"zero_one_adam, gradient in codes", 3, {8, 0, 0, 0, 1}},
    {"zero_one_adam, local step", 1, {6, 0, 0, 0}},
    {"zero_one_adam, local step", 3, {6, 0, 0, 0}},
    {"zero_one_adam, exchange", 1, {8, 0, 1, 0, 1}},
    {"zero_one_adam, exchange", 3, {8, 0, 1, 0, 1}},
};

using test_support::recorded_backend;
using communicator = slamb::thread_communicator;

/// The observed calls and bytes of one rank's step.
struct observed {
  counts of_step;
  double bytes = 0.0;         ///< bytes for each element, as the passes declare them
  double kernel_bytes = 0.0;  ///< the same, summed over kernels
  std::size_t planned = 0;    ///< kernels
};

double added_up(const std::vector<bench::device_call>& calls, double payload, int ranks) {
  std::vector<bench::timed_call> timed;
  for (const bench::device_call& call : calls) timed.push_back({call, 0.0});
  double bytes = 0.0;
  for (const bench::pass_result& pass : bench::passes_of({timed}, payload, static_cast<std::size_t>(ranks)))
    bytes += pass.bytes.value_or(0.0);
  return bytes;
}

counts counts_of(const bench::call_list& list) {
  using bench::device_call, bench::count_of;
  return {count_of(list.calls, device_call::kernel), count_of(list.calls, device_call::clear),
          count_of(list.calls, device_call::upload), count_of(list.calls, device_call::download),
          count_of(list.calls, device_call::late_read)};
}

/// Observes step number `step` of an optimizer over three tensors, with several tiles on every rank.
template <class Optimizer>
observed observe(const typename Optimizer::options_type& options, communicator ranks, int step) {
  std::vector<float> parameters(90000, 0.5F);
  const std::vector<float> gradients(90000, 0.25F);
  std::vector<slamb::parameter> tensors;
  for (std::size_t i = 0; i < 3; ++i)
    tensors.push_back({.data = parameters.data() + i * 30000, .gradient = gradients.data() + i * 30000, .size = 30000});
  test_support::recording device;
  bench::call_list& list = device.calls;
  const int size = ranks.size();
  Optimizer optimizer(tensors, options, std::move(ranks), recorded_backend{.to = &device, .cache_bytes = 16U << 20U});
  for (int i = 1; i < step; ++i) optimizer.step(0.001);
  const slamb::statistics before = optimizer.statistics();
  list.is_on = true;
  optimizer.step(0.001);
  list.is_on = false;
  const slamb::statistics after = optimizer.statistics(true);
  double payload = 0.0;
  if constexpr (requires { options.dense_below; })
    payload = bench::payload_at(after.step, optimizer, tensors, static_cast<std::size_t>(size));
  return {counts_of(list), bench::planned_bytes(optimizer, before, after, tensors, static_cast<std::size_t>(size)),
          added_up(list.calls, payload, size),
          static_cast<std::size_t>(
              bench::plan_of(optimizer, tensors, static_cast<std::size_t>(size)).launches(after.step))};
}

template <class Optimizer>
void check(const std::string& name, int step, const typename Optimizer::options_type& options = {}) {
  for (const int ranks : {1, 3}) {
    CAPTURE(name);
    CAPTURE(ranks);
    const auto row = std::ranges::find_if(table, [&](const expected& e) { return e.step == name && e.ranks == ranks; });
    REQUIRE(row != std::end(table));
    const bool looks_for_difference = ranks > 1 && step == 4;  // comparisons of ranks are not planned
    std::vector<observed> of_rank(static_cast<std::size_t>(ranks));
    slamb::run_ranks(ranks, [&](communicator rank) {
      observed& own = of_rank[static_cast<std::size_t>(rank.rank())];
      own = observe<Optimizer>(options, std::move(rank), step);
    });
    for (const observed& found : of_rank) {
      CHECK(found.of_step == row->of_step);
      CHECK(found.planned + (looks_for_difference ? 1 : 0) == row->of_step.kernels);
      CHECK(found.kernel_bytes == doctest::Approx(found.bytes));
    }
  }
}

// The variance is frozen after the first step, or only the first step refreshes it.
struct one_refresh {
  bool freezes = false;

  struct state_type {};
  bool refreshes(const state_type& /*state*/, std::uint64_t tau) const { return tau == 2; }
  void advance(state_type& /*state*/, std::uint64_t /*tau*/) const {}
  bool ends_after(std::uint64_t /*tau*/) const { return freezes; }
};

struct same_answer {
  bool exchanges_always = false;

  struct state_type {};
  bool exchanges(const state_type& /*state*/, std::uint64_t /*tau*/) const { return exchanges_always; }
  void advance(state_type& /*state*/) const {}
};

using zero_one_adam = slamb::zero_one_adam<one_refresh, same_answer, communicator, recorded_backend>;

}  // namespace

TEST_CASE("launches: names of kernels are short") {
  CHECK(bench::shortened("a::b::pass<a::apply<a::ratio<(a::form)0> > >") == "pass<apply>");
  CHECK(bench::shortened("a::send<(a::encoding)1, float, a::momentum<a::ratio>, a::sign>") ==
        "send<(encoding)1, float, momentum, sign>");
  CHECK(bench::shortened("a::place") == "place");
  CHECK(bench::name_of<slamb::detail::run_pass<slamb::detail::update_and_sum<slamb::layerwise_trust_ratio>>>() ==
        "run_pass<update_and_sum>");
}

TEST_CASE("launches: AdamW, LAMB and SLAMB") {
  check<slamb::adamw<communicator, recorded_backend>>("adamw", 3);
  check<slamb::lamb<communicator, recorded_backend>>("lamb", 3);
  using random_slamb = slamb::slamb<communicator, slamb::random_k<>, slamb::rescaled_trust_ratio<>, recorded_backend>;
  check<random_slamb>("slamb", 3, {.compressor = {.block = 16}});
  check<random_slamb>("slamb, averages", 4, {.local_steps = 3});
}

TEST_CASE("launches: 1-bit Adam and 1-bit LAMB") {
  using one_bit_adam = slamb::one_bit_adam<communicator, slamb::sign, recorded_backend>;
  using one_bit_lamb = slamb::one_bit_lamb<communicator, slamb::sign, recorded_backend>;
  check<one_bit_adam>("one_bit_adam, warm-up", 2, {.warm_up = {.steps = 9}});
  check<one_bit_adam>("one_bit_adam", 3, {.compress_single_rank = true, .warm_up = {.steps = 1}});
  check<one_bit_lamb>("one_bit_lamb, warm-up", 2, {.warm_up = {.steps = 9}});
  check<one_bit_lamb>("one_bit_lamb", 3, {.compress_single_rank = true, .warm_up = {.steps = 1}});
}

TEST_CASE("launches: 0/1 Adam") {
  const auto check_step = [](const std::string& name, bool freezes, bool exchanges) {
    check<zero_one_adam>(name, 3,
                         {.compress_single_rank = true, .variance_schedule = {freezes}, .local_schedule = {exchanges}});
  };
  check_step("zero_one_adam, gradient in codes", false, false);
  check_step("zero_one_adam, local step", true, false);
  check_step("zero_one_adam, exchange", true, true);
}

namespace {

// Launches of rank 0 in steps 2 and 3, of which ranks compare nothing, and those of the plan.
template <class Optimizer>
void check_planned(std::uint64_t size, bool compress, const typename Optimizer::options_type& options) {
  CAPTURE(size);
  CAPTURE(compress);
  slamb::run_ranks(2, [&](communicator ranks) {
    const bool is_first = ranks.rank() == 0;
    std::vector<float> parameters(size, 0.5F);
    const std::vector<float> gradients(size, 0.25F);
    std::vector<slamb::parameter> tensors{{.data = parameters.data(), .gradient = gradients.data(), .size = size}};
    tensors[0].options.compress = compress;
    test_support::recording device;
    Optimizer optimizer(tensors, options, std::move(ranks), recorded_backend{.to = &device, .cache_bytes = 16U << 20U});
    optimizer.step(0.001);
    device.calls.is_on = true;
    for (std::uint64_t t = 2; t <= 3; ++t) {
      const std::size_t before = counts_of(device.calls).kernels;
      optimizer.step(0.001);
      if (is_first)
        CHECK(counts_of(device.calls).kernels - before == bench::plan_of(optimizer, tensors, 2).launches(t));
    }
  });
}

}  // namespace

TEST_CASE("launches: a plan counts those of a model without elements, or without any that is compressed") {
  for (const std::uint64_t size : {0U, 10U, 9000U})
    for (const bool compress : {false, true}) {
      check_planned<slamb::lamb<communicator, recorded_backend>>(size, compress, {});
      check_planned<slamb::lamb<communicator, slamb::int8, recorded_backend>>(size, compress, {});
      check_planned<slamb::slamb<communicator, slamb::random_k<>, recorded_backend>>(size, compress,
                                                                                     {.local_steps = 2});
      check_planned<slamb::one_bit_lamb<communicator, slamb::sign, recorded_backend>>(size, compress,
                                                                                      {.warm_up = {.steps = 1}});
    }
}

TEST_CASE(
    "launches: set_gradients is one upload, for any number of tensors, and none without a change or during capture") {
  std::vector<float> parameters(90, 0.5F);
  const std::vector<float> gradients(90, 0.25F);
  std::vector<slamb::parameter> tensors;
  std::vector<const float*> pointers;
  for (std::size_t i = 0; i < 30; ++i) {
    tensors.push_back({.data = parameters.data() + 3 * i, .gradient = gradients.data(), .size = 3});
    pointers.push_back(gradients.data() + 3 * i);
  }
  test_support::recording device;
  slamb::adamw<slamb::self_communicator, recorded_backend> optimizer(tensors, {}, {}, {.to = &device});
  device.calls.is_on = true;
  optimizer.set_gradients(pointers);
  CHECK(counts_of(device.calls) == counts{0, 0, 1, 0});
  optimizer.set_gradients(pointers);
  CHECK(counts_of(device.calls) == counts{0, 0, 1, 0});
  for (std::size_t i = 0; i < 30; ++i) optimizer.set_gradient(i, pointers[i]);
  CHECK(counts_of(device.calls) == counts{0, 0, 31, 0});
  device.begin();
  optimizer.set_gradients(pointers);
  device.end();
  CHECK(counts_of(device.calls) == counts{0, 0, 31, 0});
}

TEST_CASE(
    "launches: a captured step writes its own pointers to gradients, 72 in one launch, if they were set during "
    "capture") {
  for (const auto& [count, launches] : {std::pair{1U, 1U}, {72U, 1U}, {73U, 2U}, {150U, 3U}}) {
    std::vector<float> parameters(count, 0.5F);
    const std::vector<float> gradients(count, 0.25F);
    std::vector<slamb::parameter> tensors;
    std::vector<const float*> pointers;
    for (std::size_t i = 0; i < count; ++i) {
      tensors.push_back({.data = &parameters[i], .gradient = &gradients[i], .size = 1});
      pointers.push_back(&gradients[i]);
    }
    test_support::recording device;
    slamb::adamw<slamb::self_communicator, recorded_backend> optimizer(tensors, {}, {}, {.to = &device});
    optimizer.step(0.1);
    const auto of_step = [&](bool sets) {
      device.calls = {};
      device.calls.is_on = true;
      device.begin();
      if (sets) optimizer.set_gradients(pointers);
      optimizer.step(0.1);
      device.end();
      return counts_of(device.calls);
    };
    const counts plain = of_step(false), with_own = of_step(true);
    CHECK(with_own.kernels == plain.kernels + launches);
    device.calls = {};
    device.calls.is_on = true;
    optimizer.step(0.1);
    CHECK(counts_of(device.calls).kernels == plain.kernels);
    CHECK(counts_of(device.calls) == counts{plain.kernels, 0, 1, 0});  // the table
  }
}

}  // namespace properties_launches_tests
