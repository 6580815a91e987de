// Traces replayed by processes, and equality with threads bit for bit.
#include <doctest/doctest.h>

#include <cstddef>
#include <slamb/slamb.hpp>
#include <string>
#include <type_traits>
#include <vector>

#include "support/rank_memory.hpp"
#include "world.hpp"

namespace {

/// The host backend, with processes as ranks.
struct process_backend : slamb::host_backend {};

}  // namespace

/// Processes beyond the world's size have no rank in it.
template <>
class test_support::rank_memory<process_backend> : public test_support::rank_memory<slamb::host_backend> {
 public:
  using communicator = slamb::mpi_communicator;

  static process_backend backend() { return {{.threads = 1}}; }
  template <class F>
  static void run(int world, F body) {
    const mpi_tests::processes ranks(world);
    if (ranks.has_this()) body(slamb::mpi_communicator(ranks.get()));
  }
};

#include "support/replay.hpp"

namespace mpi_recipes_tests {
namespace {

const std::vector<std::string> names{"adamw",        "lamb",        "one-bit-adam-fused", "one-bit-adam-per-tensor",
                                     "one-bit-lamb", "slamb-blend", "slamb-product",      "zero-one-adam"};

// This rank's parameters after some steps with gradients that differ by rank. There are two tensors, one of a few elements.
// Processes take every second step in parts, with a bucket for each tensor.
template <class Optimizer, class Communicator, class Settings>
std::vector<float> trained(Communicator communicator, const Settings& set) {
  constexpr std::size_t size = 5003;
  constexpr std::uint32_t steps = 12;
  const auto rank = static_cast<std::uint32_t>(communicator.rank());
  std::vector<float> parameters(size);
  std::vector<float> gradient(size);
  for (std::size_t i = 0; i < size; ++i) parameters[i] = static_cast<float>(i % 17) / 16.0F - 0.5F;
  const slamb::parameter tensors[]{
      {.data = parameters.data(), .gradient = gradient.data(), .size = 5000, .dimensions = 2},
      {.data = parameters.data() + 5000, .gradient = gradient.data() + 5000, .size = 3, .dimensions = 1}};
  typename Optimizer::options_type options{.ranks = {.bucket_bytes = 4}};
  set(options);
  Optimizer optimizer(tensors, options, std::move(communicator), {.threads = 1});
  for (std::uint32_t step = 0; step < steps; ++step) {
    for (std::uint32_t i = 0; i < size; ++i) {
      const std::uint32_t x = (i + 1) * 2654435761U + rank * 97U + step * 31U;
      gradient[i] = static_cast<float>(x % 4096U) / 4096.0F - 0.5F + parameters[i];
    }
    if (std::is_same_v<Communicator, slamb::mpi_communicator> && step % 2 == 1) {
      optimizer.begin_step(0.01);
      optimizer.gradient_ready(1, 1);
      optimizer.gradient_ready(0, 1);
      optimizer.finish_step();
    } else {
      optimizer.step(0.01);
    }
  }
  return parameters;
}

template <class OfProcesses, class OfThreads, class Settings>
void check_same_bits(const Settings& set) {
  const int rank = slamb::mpi_communicator().rank();
  const std::vector<float> by_processes = trained<OfProcesses>(slamb::mpi_communicator(), set);
  std::vector<float> by_threads;
  slamb::run_ranks(mpi_tests::processes::all(), [&](slamb::thread_communicator communicator) {
    const bool is_this = communicator.rank() == rank;
    std::vector<float> result = trained<OfThreads>(std::move(communicator), set);
    if (is_this) by_threads = std::move(result);
  });
  CHECK(by_processes == by_threads);
}

constexpr auto defaults = [](auto& /*options*/) {};

}  // namespace

TEST_CASE("mpi_communicator: processes replay the traces") {
  for (const std::string& name : names) {
    CAPTURE(name);
    const test_support::trace given = test_support::read_trace(std::string(SLAMB_TEST_DATA "/") + name);
    if (given.settings.world > mpi_tests::processes::all()) continue;
    CHECK(test_support::replay<process_backend>(given) <= 1e-5);
  }
}

TEST_CASE("mpi_communicator: every recipe has the bits of threads") {
  using processes = slamb::mpi_communicator;
  using threads = slamb::thread_communicator;
  check_same_bits<slamb::adamw<processes>, slamb::adamw<threads>>(defaults);
  check_same_bits<slamb::lamb<processes>, slamb::lamb<threads>>(defaults);
  check_same_bits<slamb::slamb<processes>, slamb::slamb<threads>>([](auto& o) { o.local_steps = 5; });
  const auto warm_up = [](auto& o) { o.warm_up.steps = 4; };
  check_same_bits<slamb::one_bit_adam<processes>, slamb::one_bit_adam<threads>>(warm_up);
  check_same_bits<slamb::one_bit_lamb<processes>, slamb::one_bit_lamb<threads>>(warm_up);
  check_same_bits<slamb::zero_one_adam<processes>, slamb::zero_one_adam<threads>>(
      [](auto& o) { o.variance_schedule.freeze_step = 6; });
}

}  // namespace mpi_recipes_tests
