// Plans compared with the traffic of optimizers: equal in bytes and rounds after every step.
#include "slamb/plan/traffic.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <stdexcept>
#include <type_traits>
#include <utility>
#include <vector>

#include "slamb/slamb.hpp"
#include "support/cluster.hpp"

namespace plan_traffic_tests {
namespace {

using slamb::host_backend;
using slamb::thread_communicator;
using test_support::experiment;
using test_support::model;
using test_support::replica;
using test_support::tensor_spec;

/// Selects every third element, and can count them only one by one.
struct every_third {
  struct selection {
    std::uint64_t step;
    SLAMB_HOST_DEVICE bool selects(slamb::coordinate c) const { return (c.index + step) % 3 == 0; }
  };
  static selection at(std::uint64_t step) { return {step}; }
};

std::vector<slamb::plan::tensor_shape> shapes_of(const model& tensors) {
  std::vector<slamb::plan::tensor_shape> shapes;
  for (const tensor_spec& l : tensors) shapes.push_back({l.size, l.dimensions, l.options.compress});
  return shapes;
}

/// Adds one traffic to another.
void add(slamb::traffic_counts& counts, const slamb::traffic_counts& more) {
  for (const slamb::collective kind : {slamb::collective::all_reduce, slamb::collective::all_gather,
                                       slamb::collective::all_to_all, slamb::collective::broadcast})
    counts[kind] = counts[kind] + more[kind];
}

/// Odd sizes, empty tensors, tensors smaller than the number of ranks, and dense tensors.
std::vector<model> odd_models() {
  std::vector<model> all{test_support::random_model(401, 6),
                         {{1}},
                         {{1, 1}, {3}, {2, 1}},
                         {{20'011}, {300, 1}, {0}, {8999}, {9000}},
                         {{129}, {127}, {640, 1}, {5}}};
  all[4][0].options.compress = false;
  return all;
}

/// The planned traffic of each step, and of all steps.
struct planned_traffic {
  std::vector<slamb::traffic_counts> steps;
  slamb::traffic_counts total;
};

/// Trains on `world` ranks and compares every rank's traffic with the plan after each step.
void check_sent(const model& tensors, int world, const planned_traffic& plan,
                const test_support::optimizer_maker& make) {
  CAPTURE(world);
  CAPTURE(tensors.size());
  const experiment e = test_support::make_experiment(tensors, 400, world, plan.steps.size());
  slamb::run_ranks(world, [&](thread_communicator communicator) {
    const auto rank = static_cast<std::size_t>(communicator.rank());
    replica mine(e.tensors, e.start);
    test_support::made_optimizer optimizer =
        make(mine.parameters(), slamb::any_communicator<>(std::move(communicator)), test_support::one_thread());
    slamb::traffic_counts planned;
    for (std::size_t t = 0; t < plan.steps.size(); ++t) {
      CAPTURE(t);
      mine.set_gradient(e.gradients[t][rank]);
      optimizer.step(0.001);
      add(planned, plan.steps[t]);
      const slamb::traffic_counts sent = optimizer.statistics().traffic;
      CHECK(sent.total() == planned.total());
      CHECK(sent == planned);
    }
    CHECK(optimizer.statistics().skipped_steps == 0);
    CHECK(plan.total == planned);
  });
}

template <class Options>
planned_traffic planned(const model& tensors, int world, std::size_t steps, const Options& options) {
  const auto plan = slamb::plan::plan_traffic(shapes_of(tensors), options, {.ranks = world});
  planned_traffic said{.steps = {}, .total = plan.total(steps)};
  for (std::size_t t = 1; t <= steps; ++t) said.steps.push_back(plan.step(t));
  return said;
}

template <class Optimizer>
void check_plan(const model& tensors, int world, std::size_t steps, const typename Optimizer::options_type& options) {
  check_sent(tensors, world, planned(tensors, world, steps, options), test_support::maker_of<Optimizer>(options));
}

template <class Options>
void check_plans(std::size_t steps, const Options& options, const test_support::optimizer_maker& make) {
  for (const model& tensors : odd_models())
    for (int world = 1; world <= 5; ++world) check_sent(tensors, world, planned(tensors, world, steps, options), make);
}
template <class Optimizer>
void check_plans(std::size_t steps, const typename Optimizer::options_type& options) {
  check_plans(steps, options, test_support::maker_of<Optimizer>(options));
}

template <class Compressor>
using slamb_with = slamb::slamb<thread_communicator, Compressor>;

template <class Compressor>
using one_bit_adam_with = slamb::one_bit_adam<thread_communicator, Compressor>;

/// With a warm-up of one step, by a schedule that could end earlier: plans need a warm-up of known length.
template <class Compressor>
void check_quantizer(const Compressor& compressor) {
  using optimizer = slamb::one_bit_adam<Compressor, slamb::automatic_warm_up, thread_communicator>;
  const typename one_bit_adam_with<Compressor>::options_type fixed{.warm_up = {1}, .compressor = compressor};
  check_plans(3, fixed, test_support::maker_of<optimizer>({.warm_up = {.most_steps = 1}, .compressor = compressor}));
}

template <class Compressor, class ErrorFeedback>
using lamb_with = slamb::lamb<Compressor, ErrorFeedback, thread_communicator>;

template <class Partition, class Compressor>
using lamb_in_parts = slamb::lamb<Partition, Compressor, thread_communicator>;
template <class Partition, class Compressor>
using adamw_in_parts = slamb::adamw<Partition, Compressor, thread_communicator>;

}  // namespace

TEST_CASE("plan: LAMB and AdamW send the planned bytes") {
  check_plans<slamb::lamb<thread_communicator>>(3, {});
  check_plans<slamb::adamw<thread_communicator>>(3, {});
}

TEST_CASE("plan: partitions of LAMB's and AdamW's state send the planned bytes") {
  check_plans<adamw_in_parts<slamb::sync::partition<>, slamb::no_compressor>>(2, {});
  check_plans<lamb_in_parts<slamb::sync::partition<>, slamb::int8>>(2, {.max_gradient_norm = 1.0});
  check_plans<lamb_in_parts<slamb::sync::partition<slamb::sign>, slamb::sign>>(3, {});
  check_plans<adamw_in_parts<slamb::sync::partition<slamb::int8>, slamb::no_compressor>>(2, {});
}

TEST_CASE("plan: SLAMB sends the planned bytes, with round robin of any part and block") {
  using optimizer = slamb_with<slamb::random_k<>>;
  check_plans<optimizer>(12, {.local_steps = 5});
  check_plans<optimizer>(5, {.local_steps = 0});
  check_plans<optimizer>(9, {.local_steps = 3, .dense_below = 100, .compressor = {.k = 0.25, .block = 16}});
  check_plans<optimizer>(5, {.local_steps = 1, .dense_below = 0, .compressor = {.k = 0.03, .block = 7, .seed = 5}});
  check_plans<optimizer>(3, {.local_steps = 100, .dense_below = 0, .compressor = {.k = 1.0}});
}

TEST_CASE("plan: SLAMB sends the planned bytes if the payload varies, or if each element must be counted") {
  check_plans<slamb_with<slamb::random_k<slamb::sampling::bernoulli>>>(5, {.local_steps = 2, .dense_below = 20});
  check_plans<slamb_with<every_third>>(5, {.local_steps = 2, .dense_below = 20});
  check_plans<slamb_with<slamb::no_compressor>>(3, {.local_steps = 2});
}

TEST_CASE("plan: SLAMB without norms averages through a smaller buffer") {
  using optimizer = slamb::slamb<thread_communicator, slamb::random_k<>, slamb::unit_trust_ratio>;
  check_plan<optimizer>({{50'000}, {30'000}}, 3, 4, {.local_steps = 2});
}

TEST_CASE("plan: the pieces of an averaging of parameters are counted") {
  const model tensors{{100'003}, {90'001}, {17}};
  const auto shapes = shapes_of(tensors);
  slamb::slamb<>::options_type options{.local_steps = 10, .compressor = {.k = 0.02}};
  const auto plan = slamb::plan::plan_traffic(shapes, options, {.ranks = 2});
  CHECK(plan.step(1).total().rounds > 10);
  CHECK(plan.step(2).total().rounds == 1);
  check_plan<slamb_with<slamb::random_k<>>>(tensors, 2, 12, options);
}

TEST_CASE("plan: 1-bit Adam and 1-bit LAMB send the planned bytes, in the warm-up and after it") {
  check_plans<one_bit_adam_with<slamb::sign>>(6, {.warm_up = {3}});
  check_plans<one_bit_adam_with<slamb::sign>>(6, {.warm_up = {1}, .compressor = {slamb::scale_sharing::per_tensor}});
  check_plans<slamb::one_bit_lamb<thread_communicator>>(6, {.warm_up = {2}});
}

TEST_CASE("plan: 1-bit Adam with other quantizers sends the planned bytes") {
  check_quantizer(slamb::int8{});
  check_quantizer(slamb::int4{.block = 16});
  check_quantizer(slamb::four_levels{});
  check_quantizer(slamb::natural{});
  check_quantizer(slamb::fp16{});
}

TEST_CASE("plan: dense gradients of sixteen bits are planned, with the cuts of either kind of scale") {
  using one_bit_adam = slamb::one_bit_adam<slamb::dense_in<slamb::bf16>, thread_communicator>;
  using zero_one_adam = slamb::zero_one_adam<slamb::dense_in<slamb::fp16>, thread_communicator>;
  for (const auto scales : {slamb::scale_sharing::fused, slamb::scale_sharing::per_tensor}) {
    check_plans<one_bit_adam>(5, {.warm_up = {2}, .compressor = {scales}});
    check_plans<zero_one_adam>(12, {.variance_schedule = {.freeze_step = 6, .update_scaler = 2},
                                    .local_schedule = {.scaler = 2, .clipper = 4},
                                    .compressor = {scales}});
  }
  for (const model& tensors : odd_models())
    check_plan<one_bit_adam>(tensors, 1, 4, {.compress_single_rank = true, .warm_up = {2}});
}

TEST_CASE("plan: dense gradients of sixteen bits have the memory traffic of AdamW with the same compressor") {
  using one_bit_adam = slamb::one_bit_adam<slamb::dense_in<slamb::bf16>, thread_communicator>;
  using adamw = slamb::adamw<slamb::bf16, slamb::no_error_feedback, thread_communicator>;
  const std::vector<slamb::plan::tensor_shape> shapes{{100'000}};
  for (const double c : {1.0, std::numeric_limits<double>::infinity()})
    for (const int ranks : {1, 2, 8}) {
      const one_bit_adam::options_type one_bit{.max_gradient_norm = c, .warm_up = {11}};
      const adamw::options_type dense{.max_gradient_norm = c};
      CHECK(slamb::plan::plan_traffic(shapes, one_bit, {ranks}).memory_bytes(10) ==
            slamb::plan::plan_traffic(shapes, dense, {ranks}).memory_bytes(10));
    }
}

TEST_CASE("plan: SLAMB with codes sends the planned bytes") {
  using chained = slamb::chain<slamb::random_k<>, slamb::int8>;
  check_plans<slamb_with<chained>>(12, {.local_steps = 5});
  check_plans<slamb_with<chained>>(
      7, {.local_steps = 3, .dense_below = 20, .compressor = {{.k = 0.25, .block = 16}, {.block = 16}}});
  check_plans<slamb_with<slamb::chain<every_third, slamb::sign>>>(4, {.local_steps = 2, .dense_below = 20});
  check_plans<slamb_with<slamb::chain<slamb::random_k<slamb::sampling::bernoulli>, slamb::natural>>>(
      4, {.local_steps = 2, .dense_below = 20});
}

TEST_CASE("plan: SLAMB with a data-dependent sparsifier sends the planned bytes") {
  check_plans<slamb_with<slamb::top_k>>(6, {.local_steps = 3, .dense_below = 20, .compressor = {.k = 0.1}});
  check_plans<slamb_with<slamb::chain<slamb::top_k, slamb::int4>>>(4, {.local_steps = 3, .dense_below = 20});
}

TEST_CASE("plan: LAMB with a compressed gradient sends the planned bytes") {
  check_plans<lamb_with<slamb::sign, slamb::two_sided<>>>(3, {});
  check_plans<lamb_with<slamb::int8, slamb::residual<>>>(3, {.compressor = {.block = 64}});
  check_plans<lamb_with<slamb::bf16, slamb::two_sided<>>>(2, {});
  check_plans<lamb_with<slamb::random_k<>, slamb::residual<>>>(11, {.compressor = {.k = 0.2}});
  check_plans<lamb_with<slamb::top_k, slamb::residual<>>>(4, {.compressor = {.k = 0.1}});
  check_plans<lamb_with<slamb::chain<slamb::random_k<>, slamb::int8>, slamb::residual<>>>(4, {});
}

TEST_CASE("plan: a single rank with compress_single_rank calls the collectives, and sends nothing") {
  for (const model& tensors : odd_models()) {
    check_plan<one_bit_adam_with<slamb::sign>>(tensors, 1, 4, {.compress_single_rank = true, .warm_up = {2}});
    check_plan<lamb_with<slamb::sign, slamb::two_sided<>>>(tensors, 1, 2, {.compress_single_rank = true});
    check_plan<slamb::zero_one_adam<thread_communicator>>(
        tensors, 1, 6, {.compress_single_rank = true, .variance_schedule = {.freeze_step = 3, .update_scaler = 1}});
  }
}

TEST_CASE("plan: 0/1 Adam sends the planned bytes, through both phases and their intervals") {
  check_plans<slamb::zero_one_adam<thread_communicator>>(24,
                                                         {.variance_schedule = {.freeze_step = 9, .update_scaler = 2},
                                                          .local_schedule = {.scaler = 4, .clipper = 4},
                                                          .compressor = {slamb::scale_sharing::per_tensor}});
  check_plans<slamb::zero_one_adam<thread_communicator>>(
      7, {.variance_schedule = {.freeze_step = 0}, .local_schedule = {.scaler = 1, .clipper = 3}});
}

TEST_CASE(
    "plan: clipping by the norm of all ranks' gradients is planned, and clipping by each rank's own sends nothing") {
  for (const bool locally : {false, true}) {
    check_plans<slamb_with<slamb::random_k<>>>(4,
                                               {.max_gradient_norm = 1.0, .clip_locally = locally, .local_steps = 2});
    check_plans<slamb::one_bit_lamb<thread_communicator>>(
        4, {.max_gradient_norm = 1.0, .clip_locally = locally, .warm_up = {2}});
    check_plans<slamb::zero_one_adam<thread_communicator>>(16,
                                                           {.max_gradient_norm = 1.0,
                                                            .clip_locally = locally,
                                                            .variance_schedule = {.freeze_step = 6, .update_scaler = 2},
                                                            .local_schedule = {.scaler = 2, .clipper = 4}});
  }
  check_plans<slamb::lamb<thread_communicator>>(3, {.max_gradient_norm = 1.0});
}

TEST_CASE("plan: any step can be asked for, in any order, and far ones too") {
  const std::vector<slamb::plan::tensor_shape> shapes{{20'011}, {300, 1}, {9000}};
  const auto check = [&](const auto& options) {
    const auto plan = slamb::plan::plan_traffic(shapes, options, {.ranks = 3});
    const slamb::traffic_counts second = plan.step(2), seventh = plan.step(7), twelfth = plan.step(12);
    CHECK(plan.step(7) == seventh);
    CHECK(plan.step(2) == second);
    CHECK(plan.step(12) == twelfth);
    CHECK(plan.total(12) - plan.total(11) == twelfth);
    CHECK(plan.total(0) == slamb::traffic_counts{});
    constexpr std::uint64_t far = 30'001;  // farther than steps are taken one by one
    const slamb::traffic_counts before = plan.total(far - 1);
    CHECK(plan.step(far) == plan.total(far) - before);
    for (std::uint64_t t = far + 1; t <= far + 4; ++t) CHECK(plan.step(t) == plan.total(t) - plan.total(t - 1));
    CHECK_THROWS_AS(plan.step(0), std::invalid_argument);
    CHECK_THROWS_WITH_AS(plan.step((std::uint64_t{1} << 53U) + 1),
                         "slamb: the number of a planned step = 9007199254740993, but it must be at most "
                         "9007199254740992",
                         std::invalid_argument);
  };
  check(slamb::slamb<slamb::top_k>::options_type{.local_steps = 5});
  check(slamb::one_bit_lamb<>::options_type{.warm_up = {7}});
  for (const std::uint64_t last_of_variance : {0U, 1U, 9U})
    check(
        slamb::zero_one_adam<>::options_type{.variance_schedule = {.freeze_step = last_of_variance, .update_scaler = 2},
                                             .local_schedule = {.scaler = 4, .clipper = 4}});
}

// Selects more at step 3 than it has said.
struct false_promise {
  struct selection {
    std::uint64_t step;
    SLAMB_HOST_DEVICE bool selects(slamb::coordinate c) const { return c.index < (step == 3 ? 500 : 100); }
  };
  static selection at(std::uint64_t step) { return {step}; }
  static std::uint64_t largest_payload(std::uint64_t size) { return std::min<std::uint64_t>(size, 100); }
};

TEST_CASE("plan: after a step that fails, other steps have their own traffic") {
  const std::vector<slamb::plan::tensor_shape> shapes{{1000}};
  const auto plan = slamb::plan::plan_traffic<slamb::slamb<false_promise>>(shapes, {.dense_below = 0}, {.ranks = 2});
  const slamb::traffic_counts first = plan.step(1), second = plan.step(2);
  CHECK(first != second);  // step 1 averages the parameters too
  CHECK(plan.step(1) == first);
  CHECK_THROWS_AS(plan.step(5), slamb::error);
  CHECK_THROWS_AS(plan.step(5), slamb::error);
  CHECK(plan.step(2) == second);
  CHECK_THROWS_AS(plan.total(5), slamb::error);
  CHECK_THROWS_AS(plan.total(5), slamb::error);
  CHECK(plan.total(2) - plan.total(1) == second);
}

TEST_CASE("plan: the memory by purpose is that of the optimizer") {
  const auto check = [](auto type, const auto& options) {
    using optimizer_type = typename decltype(type)::type;
    std::vector<model> all = odd_models();
    for (model& tensors : all) {
      for (tensor_spec& tensor : tensors) tensor.options.group = 0;
      const auto plan = slamb::plan::plan_traffic(shapes_of(tensors), options, {.ranks = 2});
      const experiment e = test_support::make_experiment(tensors, 400, 2, 0);
      slamb::run_ranks(2, [&](thread_communicator communicator) {
        const bool is_first = communicator.rank() == 0;
        replica mine(e.tensors, e.start);
        const slamb::memory_report its =
            optimizer_type(mine.parameters(), options, std::move(communicator), test_support::one_thread()).memory();
        if (!is_first) return;
        const slamb::memory_report planned = plan.memory();
        CHECK(planned.total_bytes == its.total_bytes);
        REQUIRE(planned.uses.size() == its.uses.size());
        for (std::size_t i = 0; i < its.uses.size(); ++i) {
          CHECK(planned.uses[i].purpose == its.uses[i].purpose);
          CHECK(planned.uses[i].bytes == its.uses[i].bytes);
        }
      });
    }
  };
  check(std::type_identity<slamb::lamb<thread_communicator>>{}, slamb::lamb<>::options_type{});
  check(std::type_identity<lamb_in_parts<slamb::sync::partition<>, slamb::no_compressor>>{},
        lamb_in_parts<slamb::sync::partition<>, slamb::no_compressor>::options_type{});
  check(std::type_identity<lamb_in_parts<slamb::sync::partition<slamb::sign>, slamb::int8>>{},
        lamb_in_parts<slamb::sync::partition<slamb::sign>, slamb::int8>::options_type{});
  check(std::type_identity<slamb_with<slamb::random_k<>>>{}, slamb::slamb<>::options_type{});
  check(std::type_identity<slamb::one_bit_adam<thread_communicator>>{}, slamb::one_bit_adam<>::options_type{});
  check(std::type_identity<one_bit_adam_with<slamb::sign>>{},
        slamb::one_bit_adam<>::options_type{.compressor = {slamb::scale_sharing::per_tensor}});
  check(std::type_identity<slamb_with<slamb::chain<slamb::random_k<>, slamb::int8>>>{},
        slamb_with<slamb::chain<slamb::random_k<>, slamb::int8>>::options_type{});
  check(std::type_identity<slamb::zero_one_adam<thread_communicator>>{}, slamb::zero_one_adam<>::options_type{});
}

TEST_CASE("plan: the optimizer's type says more than its options: the Backend, and a warm-up that gradients may end") {
  const std::vector<slamb::plan::tensor_shape> shapes{{100'000}};
  using masters = slamb::precision::mixed<>;
  const auto bytes_of_copies = [&](double data) {
    const auto plan = slamb::plan::plan_traffic<slamb::adamw<masters>>(shapes, {}, {.stored = {.data = data}});
    for (const slamb::memory_report::use& use : plan.memory().uses)
      if (use.purpose == "master copies") return use.bytes;
    return std::size_t{0};
  };
  CHECK(bytes_of_copies(2.0) == 400'000);
  CHECK(bytes_of_copies(4.0) == 0);
  using optimizer = slamb::one_bit_adam<slamb::automatic_warm_up>;
  const auto plan = slamb::plan::plan_traffic<optimizer>(shapes, {.warm_up = {.most_steps = 3}}, {.ranks = 2});
  CHECK(plan.step(3)[slamb::collective::all_reduce].rounds == 1);
  CHECK(plan.step(4)[slamb::collective::all_to_all].rounds == 1);
}

TEST_CASE("plan: 175 billion parameters on 1024 ranks take no memory") {
  constexpr std::uint64_t width = 12288;
  std::vector<slamb::plan::tensor_shape> shapes{{50257 * width}, {2048 * width}};
  for (int layer = 0; layer < 96; ++layer)
    for (const std::uint64_t inputs : {3 * width, width, 4 * width, 4 * width}) {
      shapes.push_back({inputs * width});
      shapes.push_back({inputs, 1});
    }
  const auto check = [&](const auto& options, double least_traffic = 30.0, double least_memory = 8.0) {
    const auto plan = slamb::plan::plan_traffic(shapes, options, {.ranks = 1024});
    CHECK(plan.step(2).total().sent_bytes > 20'000'000'000);
    CHECK(plan.memory_bytes(2) > least_traffic);
    CHECK(plan.memory().bytes_per_parameter > least_memory);
  };
  check(slamb::lamb<>::options_type{});
  check(slamb::slamb<slamb::chain<slamb::top_k, slamb::int8>>::options_type{});
  check(slamb::slamb_by_differences<>::options_type{});
  check(slamb::one_bit_lamb<>::options_type{.warm_up = {1}});
  check(slamb::lamb<slamb::sync::partition<>>::options_type{}, 16.0, 8.0);  // the buffers of the exchange
  check(slamb::lamb<slamb::sync::partition<slamb::int8>, slamb::int8>::options_type{}, 16.0, 5.0);
}

TEST_CASE("plan: the comparison finds a difference of one byte") {
  slamb::traffic_counts a, b;
  a.record(slamb::collective::all_reduce, 10, 4, 3);
  b.record(slamb::collective::all_reduce, 10, 4, 3);
  CHECK(a == b);
  b.record(slamb::collective::all_to_all, 0, 1, 3);
  CHECK_FALSE(a == b);
}

TEST_CASE("plan: bytes per value multiply only the sums") {
  const std::vector<slamb::plan::tensor_shape> shapes{{1000}, {24}};
  const auto sent = [&](const auto& options, std::uint64_t value_bytes, std::uint64_t t) {
    return slamb::plan::plan_traffic(shapes, options, {4, value_bytes}).step(t);
  };
  using slamb::collective;
  CHECK(sent(slamb::lamb<>::options_type{}, 4, 1).total().payload_bytes == 4096);
  CHECK(sent(slamb::lamb<>::options_type{}, 2, 1).total().payload_bytes == 2048);
  CHECK(sent(slamb::slamb<>::options_type{}, 2, 2).total().payload_bytes == 2048);  // small tensors are dense
  const slamb::one_bit_adam<>::options_type one_bit{.warm_up = {1}};
  CHECK(sent(one_bit, 2, 1).total().payload_bytes == 2048);
  CHECK(sent(one_bit, 2, 2) == sent(one_bit, 4, 2));
}

TEST_CASE("plan: impossible world sizes and settings are rejected") {
  const std::vector<slamb::plan::tensor_shape> shapes{{1000}};
  const slamb::lamb<>::options_type dense;
  CHECK_THROWS_WITH_AS(slamb::plan::plan_traffic(shapes, dense, {0, 4}),
                       "slamb: plan::world's ranks = 0, but it must be >= 1", std::invalid_argument);
  CHECK_THROWS_WITH_AS(slamb::plan::plan_traffic(shapes, dense, {2, 0}),
                       "slamb: plan::world's value_bytes = 0, but it must be in [1, 8]", std::invalid_argument);
  CHECK_THROWS_WITH_AS(slamb::plan::plan_traffic(shapes, dense, {.ranks = 2, .stored = {.gradient = -2.0}}),
                       "slamb: plan::world's stored.gradient = -2, but it must be in [0, 8]", std::invalid_argument);
  const slamb::plan::array_bytes wrong[] = {{"momentum", 2.0}, {"variance", std::numeric_limits<double>::quiet_NaN()}};
  CHECK_THROWS_WITH_AS(slamb::plan::plan_traffic(shapes, dense, {.ranks = 2, .stored = {.arrays = wrong}}),
                       "slamb: plan::world's stored bytes of the variance = nan, but it must be in [0, 8]",
                       std::invalid_argument);
  slamb::slamb<>::options_type sparse;
  sparse.compressor.k = 0.0;
  CHECK_THROWS_AS(slamb::plan::plan_traffic(shapes, sparse, {2, 4}), std::invalid_argument);
  sparse = {.local_steps = -1};
  CHECK_THROWS_AS(slamb::plan::plan_traffic(shapes, sparse, {2, 4}), std::invalid_argument);
  slamb::one_bit_adam<>::options_type one_bit{.warm_up = {0}};
  CHECK_THROWS_AS(slamb::plan::plan_traffic(shapes, one_bit, {2, 4}), std::invalid_argument);
}

}  // namespace plan_traffic_tests
