// step() allocates nothing.
#include <doctest/doctest.h>

#include <barrier>
#include <cstddef>
#include <new>
#include <utility>
#include <vector>

#include "slamb/slamb.hpp"
#include "support/allocations.hpp"
#include "support/thread_nodes.hpp"

namespace properties_allocation_tests {
namespace {

struct model {
  std::vector<float> weight = std::vector<float>(300000, 0.5F);
  std::vector<float> gradient = std::vector<float>(300000, 0.1F);
  std::vector<slamb::parameter> parameters{
      {.data = weight.data(), .gradient = gradient.data(), .size = 250000},
      {.data = weight.data() + 250000, .gradient = gradient.data(), .size = 50000}};
};

template <class Optimizer>
std::size_t allocations_of_steps(Optimizer& optimizer) {
  const std::size_t before = test_support::allocations();
  for (int t = 0; t < 5; ++t) optimizer.step(0.01);
  return test_support::allocations() - before;
}

}  // namespace

TEST_CASE("step: allocates nothing") {
  model m;
  slamb::adamw<> adamw(m.parameters, {}, {}, {.threads = 2});
  slamb::lamb<> lamb(m.parameters, {.max_gradient_norm = 1.0}, {}, {.threads = 2});
  slamb::slamb<> slamb(m.parameters, {.local_steps = 2}, {}, {.threads = 2});
  slamb::slamb<slamb::self_communicator, slamb::random_k<slamb::sampling::bernoulli>> bernoulli(m.parameters);
  CHECK(allocations_of_steps(adamw) == 0);
  CHECK(allocations_of_steps(lamb) == 0);
  CHECK(allocations_of_steps(slamb) == 0);
  CHECK(allocations_of_steps(bernoulli) == 0);
}

TEST_CASE("set_gradients: allocates nothing after its first call, and steps read the gradients that were set") {
  model m;
  std::vector<float> other(300000, -0.2F);
  slamb::adamw<> optimizer(m.parameters, {.weight_decay = 0.0}, {}, {.threads = 1});
  const std::vector<slamb::parameter::gradient_pointer> own{m.gradient.data(), m.gradient.data()},
      one_other{m.gradient.data(), other.data()}, others{other.data(), other.data() + 250000};
  optimizer.set_gradients(others);
  const std::size_t before = test_support::allocations();
  optimizer.set_gradients(own);
  optimizer.set_gradients(own);
  optimizer.set_gradients(one_other);
  optimizer.step(0.01);
  CHECK(test_support::allocations() == before);
  CHECK(m.weight.front() < 0.5F);
  CHECK(m.weight.back() > 0.5F);
  optimizer.set_gradient(1, m.gradient.data());
  for (int t = 0; t < 20; ++t) optimizer.step(0.01);
  CHECK(test_support::allocations() == before);
  CHECK(m.weight.back() < 0.5F);
}

TEST_CASE("step: allocates nothing with several ranks") {
  slamb::run_ranks(3, [](slamb::thread_communicator communicator) {
    model m;
    const int rank = communicator.rank();
    slamb::slamb<slamb::thread_communicator> optimizer(
        m.parameters, {.local_steps = 2, .ranks = {.bucket_bytes = 1000}}, std::move(communicator), {.threads = 1});
    const auto step_in_parts = [&optimizer] {
      optimizer.begin_step(0.01);
      optimizer.gradient_ready(1, 1);
      optimizer.finish_step();
    };
    optimizer.step(0.01);
    step_in_parts();  // when it returns, all ranks are past their constructions
    optimizer.synchronize_parameters();
    const std::size_t before = test_support::allocations();
    for (int t = 0; t < 5; ++t) t % 2 == 0 ? optimizer.step(0.01) : step_in_parts();
    optimizer.synchronize_parameters();  // all ranks are past their steps, and none is past its check
    const std::size_t after = test_support::allocations();
    optimizer.synchronize_parameters();
    if (rank == 0) CHECK(after == before);
  });
}

TEST_CASE("step: allocates nothing in nodes of several ranks") {
  std::barrier all(4);
  test_support::thread_nodes({2, 2}).run([&](test_support::nodes_of_threads communicator, std::size_t rank) {
    model m;
    slamb::lamb<test_support::nodes_of_threads> optimizer(m.parameters, {}, std::move(communicator), {.threads = 1});
    all.arrive_and_wait();
    const std::size_t before = test_support::allocations();
    all.arrive_and_wait();
    for (int t = 0; t < 5; ++t) optimizer.step(0.01);
    all.arrive_and_wait();
    if (rank == 3) CHECK(test_support::allocations() == before);
    all.arrive_and_wait();
  });
}

TEST_CASE("step: the count of allocations can fail") {
  const std::size_t before = test_support::allocations();
  ::operator delete(::operator new(100));  // compilers may not remove this call, as they may a new-expression
  CHECK(test_support::allocations() > before);
}

}  // namespace properties_allocation_tests
