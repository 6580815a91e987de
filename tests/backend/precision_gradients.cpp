// Gradients whose types change between steps, against an oracle in double precision and against gradients that stay floats.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "instances/emulated.hpp"
#include "slamb/backend/precision.hpp"
#include "slamb/slamb.hpp"
#include "support/generate.hpp"
#include "support/oracle.hpp"
#include "support/said.hpp"
#include "support/sixteen_bits.hpp"
#include "support/thread_nodes.hpp"

namespace backend_precision_gradients_tests {
namespace {

using slamb::emulated_backend;
using slamb::host_backend;
using slamb::thread_communicator;
using slamb::precision::mixed;
using test_support::element_type;
using test_support::said_by;
using test_support::typed_memory;
using gradient_pointers = std::vector<slamb::parameter::gradient_pointer>;

constexpr auto f32 = element_type::float32, bf16 = element_type::bfloat16, f16 = element_type::float16;
constexpr element_type types[] = {f32, bf16, f16};

constexpr std::size_t steps = 9;
const std::vector<std::size_t> sizes{8192 + 5, 17, 640, 0, 1, 333};
constexpr double rate = 0.01, tolerance = 2e-6;

/// The type of a gradient: another one in each step, on each rank and for each tensor.
element_type type_at(std::size_t step, std::size_t rank, std::size_t tensor) {
  return types[(2 * step + rank + tensor) % std::size(types)];
}

/// Values that all three types have exactly: multiples of 1/512 with seven bits.
std::vector<float> exact_values(std::size_t size, std::uint64_t seed) {
  test_support::random_source source(seed);
  std::vector<float> all(size);
  for (float& x : all) x = 0x1p-9F * (static_cast<float>(source.below(255)) - 127.0F);
  return all;
}

/// Values that float16 does not have: up to 7e4, and down to 1e-8.
std::vector<float> float_values(std::size_t size, std::uint64_t seed) {
  std::vector<float> all = exact_values(size, seed);
  for (std::size_t i = 0; i < size; ++i) all[i] *= i % 3 == 0 ? 3e5F : i % 3 == 1 ? 1e-6F : 1.0F;
  return all;
}

/// The gradient of a step: floats of any size where its type is float.
std::vector<float> values_at(std::size_t step, std::size_t rank, std::size_t tensor, bool any_size) {
  const std::uint64_t seed = 1000 * step + 100 * rank + tensor;
  if (any_size && type_at(step, rank, tensor) == f32) return float_values(sizes[tensor], seed);
  return exact_values(sizes[tensor], seed);
}

/// A rank's tensors of float16, with gradients whose memory is new in each step.
struct typed_model {
  std::vector<typed_memory> data, gradients;
  std::vector<std::vector<float>> masters;
  std::vector<slamb::parameter> tensors;

  typed_model() {
    for (std::size_t l = 0; l < sizes.size(); ++l) {
      masters.push_back(exact_values(sizes[l], 10 + l));
      data.emplace_back(masters[l], f16, l % 2);
      gradients.emplace_back(std::vector<float>(sizes[l], 0.0F), f16);
    }
    for (std::size_t l = 0; l < sizes.size(); ++l)
      tensors.push_back({.data = data[l].pointer(),
                         .gradient = gradients[l].pointer(),
                         .size = sizes[l],
                         .master = masters[l].data()});
  }

  /// Makes the gradients of a step.
  /// @param changes  false: all are floats
  gradient_pointers make_gradients(std::size_t step, std::size_t rank, bool any_size, bool changes = true) {
    gradient_pointers all;
    std::vector<typed_memory> next;
    for (std::size_t l = 0; l < sizes.size(); ++l)
      next.emplace_back(values_at(step, rank, l, any_size), changes ? type_at(step, rank, l) : f32, step % 3);
    gradients = std::move(next);
    for (typed_memory& gradient : gradients) all.push_back(gradient.pointer());
    return all;
  }

  /// The parameters as floats, end to end.
  std::vector<float> parameters() const {
    std::vector<float> all;
    for (const std::vector<float>& master : masters) all.insert(all.end(), master.begin(), master.end());
    return all;
  }
};

enum class algorithm { adamw, lamb };

/// The parameters of the oracle after each step.
std::vector<oracle::vector> expected(algorithm of, int world) {
  std::vector<oracle::tensor> tensors;
  for (const std::size_t size : sizes) tensors.push_back({.size = size});
  oracle::vector start;
  for (std::size_t l = 0; l < sizes.size(); ++l)
    for (const float p : exact_values(sizes[l], 10 + l)) start.push_back(static_cast<double>(p));
  oracle::adam_family run(
      tensors, start,
      {.algorithm = of == algorithm::adamw ? oracle::method::adamw : oracle::method::lamb, .epsilon = 1e-11});
  std::vector<oracle::vector> reached;
  for (std::size_t step = 0; step < steps; ++step) {
    std::vector<oracle::vector> gradients(static_cast<std::size_t>(world));
    for (std::size_t rank = 0; rank < gradients.size(); ++rank)
      for (std::size_t l = 0; l < sizes.size(); ++l)
        for (const float g : values_at(step, rank, l, true)) gradients[rank].push_back(static_cast<double>(g));
    run.step(rate, gradients);
    reached.push_back(run.parameters());
  }
  return reached;
}

/// How a step is taken with new gradients.
enum class manner { set_gradients, set_each, with_parameters, in_parts };

template <class Optimizer>
void take_step(Optimizer& optimizer, typed_model& model, const gradient_pointers& gradients, manner how) {
  if (how == manner::set_gradients) optimizer.set_gradients(gradients);
  if (how == manner::set_each)
    for (std::size_t l = 0; l < gradients.size(); ++l) optimizer.set_gradient(l, gradients[l]);
  if (how == manner::with_parameters) {
    std::vector<slamb::parameter::data_pointer> data;
    for (const slamb::parameter& p : model.tensors) data.push_back(p.data);
    optimizer.set_parameters(data, gradients);
  }
  if (how != manner::in_parts) return optimizer.step(rate);
  optimizer.begin_step(rate);
  for (std::size_t l = gradients.size(); l-- > 0;) {
    optimizer.set_gradient(l, gradients[l]);
    optimizer.gradient_ready(l, 1);
  }
  optimizer.finish_step();
}

template <class Optimizer>
using options_of = typename Optimizer::options_type;

/// Trains a rank with floats of any size, and compares it with the oracle after each step.
template <class Optimizer, class Communicator>
void check_rank(Communicator ranks, std::size_t rank, const std::vector<oracle::vector>& reached, manner how) {
  typed_model model;
  Optimizer optimizer(model.tensors, {.epsilon = 1e-11, .ranks = {.bucket_bytes = 2000}}, std::move(ranks));
  for (std::size_t step = 0; step < steps; ++step) {
    take_step(optimizer, model, model.make_gradients(step, rank, true), how);
    CHECK(test_support::max_relative_error(model.parameters(), reached[step]) < tolerance);
  }
  CHECK(optimizer.statistics().step == steps);
  CHECK(optimizer.statistics().skipped_steps == 0);
  for (const typed_memory& memory : model.data) CHECK(memory.is_intact());
}

template <class Optimizer>
void check_against_oracle(algorithm of, const std::vector<manner>& manners) {
  for (const int world : {1, 3}) {
    const std::vector<oracle::vector> reached = expected(of, world);
    for (const manner how : manners) {
      CAPTURE(world);
      CAPTURE(static_cast<int>(how));
      slamb::run_ranks(world, [&](thread_communicator ranks) {
        const auto rank = static_cast<std::size_t>(ranks.rank());
        check_rank<Optimizer>(std::move(ranks), rank, reached, how);
      });
    }
  }
}

/// The parameters of each rank after each step.
template <class Optimizer>
std::vector<std::vector<std::vector<float>>> trained(options_of<Optimizer> options, bool changes, manner how) {
  std::vector<std::vector<std::vector<float>>> all(2);
  options.ranks.bucket_bytes = 2000;
  slamb::run_ranks(2, [&](thread_communicator ranks) {
    const auto rank = static_cast<std::size_t>(ranks.rank());
    typed_model model;
    Optimizer optimizer(model.tensors, options, std::move(ranks));
    for (std::size_t step = 0; step < steps; ++step) {
      take_step(optimizer, model, model.make_gradients(step, rank, false, changes), how);
      all[rank].push_back(model.parameters());
    }
  });
  return all;
}

template <class Optimizer>
void check_same_bits(const options_of<Optimizer>& options) {
  const auto floats = trained<Optimizer>(options, false, manner::set_gradients);
  CHECK(floats[0].front() != floats[0].back());
  CHECK(trained<Optimizer>(options, true, manner::set_gradients) == floats);
  CHECK(trained<Optimizer>(options, true, manner::in_parts) == floats);
}

}  // namespace

TEST_CASE(
    "precision: gradients whose types change from step to step follow the oracle, also beyond the range of float16") {
  const std::vector<manner> all{manner::set_gradients, manner::set_each, manner::with_parameters, manner::in_parts};
  check_against_oracle<slamb::adamw<thread_communicator, mixed<>>>(algorithm::adamw, all);
  check_against_oracle<slamb::lamb<thread_communicator, mixed<>>>(algorithm::lamb, all);
}

TEST_CASE("precision: kernels read gradients whose types change") {
  check_against_oracle<slamb::adamw<thread_communicator, mixed<emulated_backend>>>(
      algorithm::adamw, {manner::set_gradients, manner::in_parts});
}

TEST_CASE("precision: nodes sum gradients whose types differ between their ranks and change") {
  const std::vector<oracle::vector> reached = expected(algorithm::lamb, 4);
  using nodes_of_threads = test_support::nodes_of_threads;
  for (const manner how : {manner::set_gradients, manner::set_each, manner::with_parameters, manner::in_parts}) {
    CAPTURE(static_cast<int>(how));
    test_support::thread_nodes nodes({2, 2});
    nodes.run([&](nodes_of_threads ranks, std::size_t rank) {
      check_rank<slamb::lamb<nodes_of_threads, mixed<>>>(std::move(ranks), rank, reached, how);
    });
  }
}

TEST_CASE("precision: in every optimizer equal numbers of other types give the same bits, in parts too") {
  check_same_bits<slamb::adamw<thread_communicator, mixed<>>>({});
  check_same_bits<slamb::lamb<thread_communicator, mixed<>>>({.max_gradient_norm = 0.5});
  check_same_bits<slamb::slamb<thread_communicator, slamb::random_k<>, slamb::rescaled_trust_ratio<>, mixed<>>>(
      {.local_steps = 2, .dense_below = 20});
  check_same_bits<slamb::one_bit_adam<thread_communicator, slamb::sign, mixed<>>>({.warm_up = {4}});
  check_same_bits<slamb::one_bit_lamb<thread_communicator, slamb::sign, mixed<>>>({.warm_up = {4}});
  check_same_bits<slamb::zero_one_adam<thread_communicator, slamb::sign, mixed<>>>(
      {.variance_schedule = {.freeze_step = 4, .update_scaler = 1}, .local_schedule = {.scaler = 1, .clipper = 2}});
}

TEST_CASE("precision: a float gradient of a float16 tensor is neither infinite at 7e4 nor 0 at 1e-8") {
  typed_memory p(std::vector<float>(2, 1.0F), f16), g(std::vector<float>(2, 0.0F), f16);
  slamb::adamw<slamb::self_communicator, mixed<>> run(std::vector<slamb::parameter>{{p.pointer(), g.pointer(), 2}},
                                                      {.epsilon = 1e-12, .weight_decay = 0.0});
  const std::vector<float> large_and_small{7e4F, 1e-8F};
  typed_memory wide(large_and_small, f32), narrow(large_and_small, f16);
  run.set_gradients(gradient_pointers{narrow.pointer()});  // infinite
  run.step(0.25);
  CHECK(run.statistics().skipped_steps == 1);
  CHECK(p.values() == std::vector<float>{1.0F, 1.0F});
  run.set_gradients(gradient_pointers{wide.pointer()});
  run.step(0.25);
  CHECK(run.statistics().skipped_steps == 1);
  CHECK(p.values() == std::vector<float>{0.75F, 0.75F});
}

TEST_CASE("precision: a tensor that has no gradient at first takes one of any type") {
  for (const element_type type : types) {
    typed_memory p(std::vector<float>(40, 1.0F), bf16), g(std::vector<float>(40, 0.5F), type);
    slamb::adamw<slamb::self_communicator, mixed<>> run(
        std::vector<slamb::parameter>{{.data = p.pointer(), .size = 40}}, {.weight_decay = 0.0});
    run.step(0.25);
    CHECK(p.values() == std::vector<float>(40, 1.0F));
    run.set_gradient(0, g.pointer());
    run.step(0.25);
    CHECK(p.values()[0] < 1.0F);
    run.set_gradient(0, nullptr);
    const std::vector<float> before = p.values();
    run.step(0.25);
    CHECK(p.values() == before);
  }
}

TEST_CASE(
    "precision: gradients of a new type are rejected if they overlap, are misaligned, or the optimizer takes floats") {
  alignas(16) std::uint16_t bits[64] = {};
  slamb::adamw<slamb::self_communicator, mixed<>> run(
      std::vector<slamb::parameter>{{.data = {bits + 8, bf16}, .gradient = {bits, bf16}, .size = 8}});
  const auto said = [](const auto& call) { return said_by<std::invalid_argument>(call); };
  // Eight numbers of two bytes end where the parameters begin, and eight floats end behind that.
  constexpr const char* overlap =
      "slamb: the gradient of tensor 0 overlaps the data of tensor 0; parameters must not share memory";
  CHECK(said([&] { run.set_gradient(0, {bits, f32}); }) == overlap);
  CHECK(said([&] { run.set_gradients(gradient_pointers{{bits, f32}}); }) == overlap);
  const std::vector<slamb::parameter::data_pointer> data{{bits + 8, bf16}};
  CHECK(said([&] { run.set_parameters(data, gradient_pointers{{bits, f32}}); }).find("overlaps") != std::string::npos);
  CHECK(test_support::contains(said([&] {
                                 run.set_gradient(0, {bits + 17, f32});
                               }),
                               "tensor 0 has a gradient pointer to float32, whose address is"));
  CHECK_NOTHROW(run.set_gradient(0, {bits + 18, f32}));
  CHECK_NOTHROW(run.set_gradient(0, {bits, f16}));
  CHECK_NOTHROW(run.step(0.1));

  std::vector<float> p(8, 1.0F), g(8, 1.0F);
  slamb::adamw<> floats(std::vector<slamb::parameter>{{p.data(), g.data(), 8}});
  constexpr const char* alone =
      "slamb: tensor 0 has float16 gradients, but this optimizer takes float32 alone; give it the Backend "
      "slamb::precision::mixed<...>, which takes float32, bfloat16 and float16";
  const gradient_pointers halves{{bits, f16}};
  CHECK(said([&] { floats.set_gradient(0, halves[0]); }) == alone);
  CHECK(said([&] { floats.set_gradients(halves); }) == alone);
  CHECK(said([&] { floats.set_parameters(std::vector<slamb::parameter::data_pointer>{p.data()}, halves); }) == alone);
  floats.step(0.1);
  CHECK(p[0] < 1.0F);
}

}  // namespace backend_precision_gradients_tests
