// Plans for well-known models: the published volumes, and the sizes of the models.
#include <doctest/doctest.h>

#include <cstdint>
#include <cstdio>
#include <span>
#include <sstream>
#include <string>
#include <vector>

#include "../../../examples/plan/forecast.hpp"
#include "../../../examples/plan/models.hpp"
#include "../../../examples/plan/optimizers.hpp"
#include "../../../examples/plan/settings.hpp"
#include "../../../examples/plan/shape_file.hpp"

namespace examples_plan_models_tests {
namespace {

using slamb::plan::tensor_shape;
using shapes = std::vector<tensor_shape>;

constexpr int ranks = 64;

/// Elements that SLAMB always exchanges dense.
std::uint64_t always_whole(const shapes& tensors) {
  std::uint64_t sum = 0;
  for (const tensor_shape& t : tensors) sum += t.dimensions == 1 || t.size < 9000 ? t.size : 0;
  return sum;
}

/// The traffic of `options` over `steps` in bytes of one rank, with dense values in fp16.
template <class Options>
double volume(const shapes& tensors, const Options& options, std::uint64_t steps) {
  return static_cast<double>(slamb::plan::plan_traffic(tensors, options, {ranks, 2}).total(steps).total().sent_bytes);
}

double dense_volume(const shapes& tensors, std::uint64_t steps) {
  return volume(tensors, slamb::lamb<>::options_type{}, steps);
}

double slamb_part(const shapes& tensors, std::int64_t local_steps) {
  const slamb::slamb<>::options_type options{.local_steps = local_steps, .compressor = {.k = 0.1}};
  return volume(tensors, options, 10'000) / dense_volume(tensors, 10'000);
}

/// 1-bit LAMB for BERT-Large, as in its paper.
constexpr std::uint64_t bert_steps = 5993;
const slamb::one_bit_lamb<>::options_type bert_one_bit{.warm_up = {1000}};

void check_unreadable(const std::string& text, const std::string& message) {
  std::istringstream in(text);
  std::string said = "nothing was thrown";
  try {
    plan::read_shapes(in, "shapes.txt");
  } catch (const plan::shape_error& error) {
    said = error.what();
  }
  CAPTURE(said);
  CHECK(said.find(message) != std::string::npos);
}

}  // namespace

TEST_CASE("models: have the tensors of their architectures") {
  struct expectation {
    const char* name;
    std::size_t tensors;
    std::uint64_t elements, whole;
  };
  for (const expectation& e : {expectation{"resnet-110", 329, 1'727'962, 96'730},
                               {"swin-b", 329, 87'768'224, 236'704},
                               {"bert-large", 398, 336'232'258, 360'258},
                               {"bert-xl", 398, 2'833'157'954, 1'019'714},
                               {"gpt2", 580, 1'557'611'200, 1'001'600},
                               {"llama-8b", 291, 8'030'261'248, 266'240}}) {
    CAPTURE(e.name);
    const shapes tensors = plan::tensors_of_model(e.name);
    CHECK(tensors.size() == e.tensors);
    CHECK(slamb::plan::elements_of(tensors) == e.elements);
    CHECK(always_whole(tensors) == e.whole);
  }
  CHECK(plan::model_names().size() == 6);
  CHECK_THROWS_AS(plan::tensors_of_model("bert"), std::invalid_argument);
}

TEST_CASE(
    "plan: SLAMB's part of the dense elements is 11.10 % of BERT-Large, 11.24 % of Swin-B, 17.0 % of ResNet-110") {
  CHECK(slamb_part(plan::tensors_of_model("bert-large"), 100) == doctest::Approx(0.1110).epsilon(0.0005));
  CHECK(slamb_part(plan::tensors_of_model("swin-b"), 100) == doctest::Approx(0.1124).epsilon(0.0005));
  CHECK(slamb_part(plan::tensors_of_model("resnet-110"), 50) == doctest::Approx(0.170).epsilon(0.003));
}

TEST_CASE("plan: 1-bit LAMB sends 4.57 times less than fp16 with 1000 of 5993 steps of warm-up") {
  const shapes tensors = plan::tensors_of_model("bert-large");
  CHECK(dense_volume(tensors, bert_steps) / volume(tensors, bert_one_bit, bert_steps) ==
        doctest::Approx(4.57).epsilon(0.001));
}

TEST_CASE("plan: 0/1 Adam sends 25.9 times less than fp16 over 118,000 steps, in 153 + 70,467 rounds") {
  const shapes tensors = plan::tensors_of_model("bert-large");
  const slamb::zero_one_adam<>::options_type options{.variance_schedule = {.freeze_step = 12'500, .update_scaler = 16},
                                                     .local_schedule = {.scaler = 32'678, .clipper = 16}};
  const auto all = slamb::plan::plan_traffic(tensors, options, {ranks, 2}).total(118'000);
  CHECK(all[slamb::collective::all_reduce].rounds == 153);
  CHECK(all[slamb::collective::all_to_all].rounds == 70'467);
  CHECK(dense_volume(tensors, 118'000) / volume(tensors, options, 118'000) == doctest::Approx(25.9).epsilon(0.001));
}

TEST_CASE("plan: SLAMB in fp16 sends 0.507 times the bytes of 1-bit LAMB") {
  const shapes tensors = plan::tensors_of_model("bert-large");
  const double one_bit = volume(tensors, bert_one_bit, bert_steps);
  CHECK(volume(tensors, slamb::slamb<>::options_type{}, bert_steps) / one_bit == doctest::Approx(0.507).epsilon(0.001));
}

TEST_CASE(
    "plan: SLAMB with an int8 payload sends less than SLAMB and 1-bit LAMB, and more than 0/1 Adam in the long run") {
  const shapes tensors = plan::tensors_of_model("bert-large");
  using optimizer = slamb::slamb<slamb::self_communicator, slamb::chain<slamb::random_k<>, slamb::int8>>;
  const optimizer::options_type options;
  const double sent = volume(tensors, options, bert_steps);
  const double of_dense = sent / dense_volume(tensors, bert_steps);
  const double of_slamb = sent / volume(tensors, slamb::slamb<>::options_type{}, bert_steps);
  const double of_one_bit = sent / volume(tensors, bert_one_bit, bert_steps);
  const double of_zero_one =
      volume(tensors, options, 118'000) / volume(tensors, slamb::zero_one_adam<>::options_type{}, 118'000);
  std::printf(
      "SLAMB with int8 sends %.4f of dense LAMB in fp16, %.3f of SLAMB in fp16, %.3f of 1-bit LAMB, %.2f of 0/1 "
      "Adam over 118,000 steps\n",
      of_dense, of_slamb, of_one_bit, of_zero_one);
  // Each of two phases sends (8 + 32/128) bits of 10.10 % of the elements; an all_reduce sends 16 bits of 1 %. Compared with 16
  // bits.
  CHECK(of_dense == doctest::Approx((0.10096 * 8.25 + 0.01001 * 16.0) / 16.0).epsilon(0.001));
  CHECK(of_slamb == doctest::Approx(0.559).epsilon(0.002));
  CHECK(of_one_bit == doctest::Approx(0.2835).epsilon(0.002));
  CHECK(of_zero_one == doctest::Approx(1.607).epsilon(0.002));
}

TEST_CASE("plan: totals over a million steps take no time, and equal the sum of the steps") {
  const shapes tensors = plan::tensors_of_model("bert-large");
  const slamb::slamb<>::options_type options{.local_steps = 7, .compressor = {.k = 0.03}};
  const auto plan = slamb::plan::plan_traffic(tensors, options, {ranks, 4});
  CHECK(plan.total(1'000'000).total().rounds > 1'000'000);
  slamb::traffic_counts sum;
  for (std::uint64_t t = 1; t <= 100; ++t) {
    const slamb::traffic_counts step = plan.step(t);
    sum[slamb::collective::all_reduce] = sum[slamb::collective::all_reduce] + step[slamb::collective::all_reduce];
  }
  CHECK(plan.total(100) == sum);
  CHECK(plan.total(0) == slamb::traffic_counts{});
}

TEST_CASE("forecast: times add up, and dense LAMB is the baseline") {
  plan::settings chosen;
  chosen.value_bytes = 2;
  chosen.optimizers = {"lamb", "adamw", "slamb", "one_bit_lamb"};
  const shapes tensors = plan::tensors_of_model("bert-large");
  const std::vector<plan::forecast> all = plan::forecast_all(tensors, chosen);
  REQUIRE(all.size() == 4);
  for (const plan::forecast& f : all) {
    CHECK(f.step_seconds == doctest::Approx(0.2 + f.memory_seconds + f.exchange_seconds));
    CHECK(f.efficiency == doctest::Approx(0.2 / f.step_seconds));
    CHECK(f.less_than_single == doctest::Approx(2.0 * f.less_than_half));
  }
  CHECK(all[0].less_than_half == 1.0);
  CHECK(all[0].beats_half.beats == slamb::plan::break_even::never);
  CHECK(all[0].beats_single.beats == slamb::plan::break_even::always);
  CHECK(all[1].beats_half.beats == slamb::plan::break_even::always);  // the same bytes on the wire, and fewer passes
  CHECK(all[2].less_than_half == doctest::Approx(9.01).epsilon(0.001));
  // One transfer around the ring; 48 bytes of memory a parameter at 1.5 TB/s.
  const double sent = 2.0 * 63.0 / 64.0 * 2.0 * 336'232'258.0;
  CHECK(all[0].exchange_seconds == doctest::Approx(sent / 3.125e9 + 14 * 20e-6));
  CHECK(all[0].memory_seconds == doctest::Approx(48.0 * 336'232'258.0 / 1.5e12));
}

TEST_CASE("forecast: every optimizer is planned for every model") {
  plan::settings chosen;
  chosen.steps = 300;
  for (const std::string_view name : plan::optimizer_names()) chosen.optimizers.emplace_back(name);
  for (const std::string_view model : plan::model_names()) {
    CAPTURE(model);
    for (const plan::forecast& f : plan::forecast_all(plan::tensors_of_model(model), chosen)) {
      CAPTURE(f.optimizer);
      CHECK(f.moved.traffic.total().sent_bytes > 0);
      CHECK(f.efficiency > 0.0);
      CHECK(f.efficiency < 1.0);
    }
  }
  CHECK_THROWS_AS(plan::plan_optimizer("sgd", {}, chosen, {2, 4}), std::invalid_argument);
}

TEST_CASE("shape_file: a line is a name and its dimensions") {
  std::istringstream in("# a small network\nweight 20 30  # rows columns\n\n  bias 20\nkernel 16 3 3 3\n");
  const shapes tensors = plan::read_shapes(in, "shapes.txt");
  REQUIRE(tensors.size() == 3);
  CHECK(tensors[0].size == 600);
  CHECK(tensors[0].dimensions == 2);
  CHECK(tensors[1].size == 20);
  CHECK(tensors[1].dimensions == 1);
  CHECK(tensors[2].size == 432);
  CHECK(tensors[2].dimensions == 4);
}

TEST_CASE("shape_file: an error names the file and the line") {
  check_unreadable("a 1\nb 2\n", "nothing was thrown");
  check_unreadable("a 1\nb\n", "shapes.txt:2: 'b' has no dimensions");
  check_unreadable("a 3 x\n", "shapes.txt:1: 'x' is not a dimension");
  check_unreadable("a 3 0\n", "shapes.txt:1: '0' is not a dimension: expected an integer in [1, 2^40]");
  check_unreadable("a -3\n", "shapes.txt:1: '-3' is not a dimension");
  check_unreadable("a 3.5\n", "shapes.txt:1: '3.5' is not a dimension");
  check_unreadable("a 18446744073709551616\n", "shapes.txt:1: '18446744073709551616' is not a dimension");
  check_unreadable("a 1\n\na 2\n", "shapes.txt:3: 'a' is listed twice");
  check_unreadable("a 2000000 2000000\n", "shapes.txt:1: 'a' has more than 2^40 elements");
  check_unreadable("a 1000000 1000000\nb 1000000 1000000\n", "shapes.txt:2: the tensors have more than 2^40 elements");
  check_unreadable("# nothing\n", "shapes.txt: expected at least one line");
  check_unreadable("", "shapes.txt: expected at least one line");
  CHECK_THROWS_WITH_AS(plan::read_shapes(std::filesystem::path("no such file")),
                       "no such file: No such file or directory", plan::shape_error);
  CHECK_THROWS_AS(plan::read_shapes(std::filesystem::path(".")), plan::shape_error);
}

}  // namespace examples_plan_models_tests
