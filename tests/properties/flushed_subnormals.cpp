// A program may let its thread treat subnormal numbers as 0, as torch.set_flush_denormal(True) does. All threads of an optimizer
// then do so too: bits do not depend on their number.
#include "support/flushed_subnormals.hpp"

#include <doctest/doctest.h>

#include <atomic>
#include <barrier>
#include <cmath>
#include <cstddef>
#include <optional>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "slamb/slamb.hpp"
#include "support/cluster.hpp"
#include "support/replica.hpp"

namespace properties_flushed_subnormals_tests {
namespace {

using slamb::thread_communicator;
using test_support::flushed_subnormals;
using test_support::replica;
using test_support::same_bits;
using test_support::train;

constexpr auto exist = flushed_subnormals::exist;

/// Enough tiles that each of three threads gets some.
const test_support::model tensors{{150'001}, {17, 1}, {9000}, {120'000}};

constexpr std::size_t steps = 6;

/// Gradients in one step, whose squares are subnormal or close to it, and almost none in the steps after it.
std::vector<float> gradient_at(std::size_t step) {
  std::vector<float> all = test_support::random_gradients(12, 0, 1, test_support::total_size(tensors))[0];
  for (std::size_t i = 0; i < all.size(); ++i) {
    const double size = step > 0 ? 1e-38 : std::pow(10.0, -17.0 - static_cast<double>(i % 5));
    all[i] = static_cast<float>(static_cast<double>(all[i]) * size);
  }
  return all;
}

/// The parameters and the state after some steps. The mode is set after the construction.
template <class Optimizer>
std::pair<std::vector<float>, std::vector<std::byte>> trained(const typename Optimizer::options_type& options,
                                                              unsigned threads, bool flushes, bool in_parts = false) {
  replica mine(tensors, test_support::random_parameters(11, test_support::total_size(tensors)));
  Optimizer optimizer(mine.parameters(), options, {}, {.threads = threads});
  std::optional<flushed_subnormals> mode;
  if (flushes) mode.emplace();
  for (std::size_t step = 0; step < steps; ++step) {
    mine.set_gradient(gradient_at(step));
    if (in_parts) {
      optimizer.begin_step(0.01);
      for (std::size_t l = tensors.size(); l-- > 0;) optimizer.gradient_ready(l, 1);
      optimizer.finish_step();
    } else {
      optimizer.step(0.01);
    }
  }
  mode.reset();
  return {mine.values(), optimizer.save_state()};
}

template <class Optimizer>
void check_threads(const typename Optimizer::options_type& options) {
  const auto flushed = trained<Optimizer>(options, 1, true), kept = trained<Optimizer>(options, 1, false);
  CHECK(!same_bits(flushed.first, kept.first));  // else this test could not fail
  for (const unsigned threads : {1U, 2U, 3U})
    for (int time = 0; time < 2; ++time) {
      CAPTURE(threads);
      CHECK(trained<Optimizer>(options, threads, true) == flushed);
      CHECK(trained<Optimizer>(options, threads, false) == kept);
      CHECK(trained<Optimizer>(options, threads, true, true) == flushed);
    }
}

/// Notes of each sum of gradients if it is made in the mode.
class looking_communicator {
 public:
  looking_communicator(thread_communicator base, std::vector<bool>& seen) : base_(std::move(base)), seen_(&seen) {}

  int rank() const { return base_.rank(); }
  int size() const { return base_.size(); }
  void all_reduce_sum(std::span<float> values, slamb::host_stream stream) {
    constexpr std::size_t of_comparisons = 100;
    if (values.size() > of_comparisons) seen_->push_back(flushed_subnormals::are_on());
    base_.all_reduce_sum(values, stream);
  }

 private:
  thread_communicator base_;
  std::vector<bool>* seen_;
};

}  // namespace

TEST_CASE("flushed subnormals: the mode is of one thread, and ends with the object" * doctest::skip(!exist)) {
  CHECK(!flushed_subnormals::are_on());
  {
    const flushed_subnormals mode;
    CHECK(flushed_subnormals::are_on());
    volatile float small = 1e-38F;
    volatile float smaller = small * 0.01F;
    CHECK(smaller == 0.0F);
  }
  CHECK(!flushed_subnormals::are_on());
}

TEST_CASE("flushed subnormals: LAMB and AdamW have the same bits for every number of threads" * doctest::skip(!exist)) {
  check_threads<slamb::lamb<>>({.epsilon = 1e-22, .weight_decay = 0.0});
  check_threads<slamb::adamw<>>({.beta2 = 0.9, .epsilon = 1e-22, .max_gradient_norm = 1.0});
}

TEST_CASE("flushed subnormals: SLAMB and 1-bit Adam have the same bits for every number of threads" *
          doctest::skip(!exist)) {
  check_threads<slamb::slamb<>>({.epsilon = 1e-22, .weight_decay = 0.0});
  check_threads<slamb::one_bit_adam<>>({.epsilon = 1e-22, .compress_single_rank = true, .warm_up = {3}});
}

TEST_CASE("flushed subnormals: every thread of a pool takes over the mode of a loop's caller, and leaves it again" *
          doctest::skip(!exist)) {
  for (const unsigned threads : {2U, 4U}) {
    slamb::detail::host::thread_pool pool(threads);
    const auto threads_in_mode = [&] {
      std::atomic<unsigned> all{0};
      std::barrier<> everyone(static_cast<std::ptrdiff_t>(threads));  // so each thread gets one index
      pool.for_each(0, threads, 1, [&](std::size_t) {
        if (flushed_subnormals::are_on()) ++all;
        everyone.arrive_and_wait();
      });
      return all.load();
    };
    for (int time = 0; time < 3; ++time) {
      CHECK(threads_in_mode() == 0);
      const flushed_subnormals mode;
      CHECK(threads_in_mode() == threads);
    }
    // A thread that takes turns with this one.
    std::thread([&] {
      const flushed_subnormals mode;
      CHECK(threads_in_mode() == threads);
    }).join();
    CHECK(threads_in_mode() == 0);
  }
}

TEST_CASE("flushed subnormals: exceptions that a thread has raised before do not matter" * doctest::skip(!exist)) {
  const auto before = slamb::detail::float_modes::current();
  volatile float huge = 3e38F, zero = 0.0F;
  volatile float inexact = 1.0F / 3.0F * huge, infinite = huge * huge, none = zero / zero;
  static_cast<void>(inexact), static_cast<void>(infinite), static_cast<void>(none);
  CHECK(slamb::detail::float_modes::current() == before);
  const flushed_subnormals mode;
  CHECK(slamb::detail::float_modes::current() != before);
}

TEST_CASE("flushed subnormals: the thread of a step in parts sums in the mode of each call" * doctest::skip(!exist)) {
  slamb::run_ranks(2, [](thread_communicator ranks) {
    constexpr std::size_t size = 3000;
    std::vector<float> data(2 * size, 1.0F), gradient(2 * size, 1.0F);
    const std::vector<slamb::parameter> two{{data.data(), gradient.data(), size},
                                            {data.data() + size, gradient.data() + size, size}};
    std::vector<bool> seen, expected;
    slamb::adamw<looking_communicator> optimizer(two, {.ranks = {.bucket_bytes = 1000}},
                                                 looking_communicator(std::move(ranks), seen), {.threads = 1});
    seen.clear();  // of the construction
    for (const bool flushes : {false, true, true, false, true}) {
      optimizer.begin_step(0.01);  // the first one starts the thread
      std::optional<flushed_subnormals> mode;
      if (flushes) mode.emplace();
      optimizer.gradient_ready(1, 1);  // the thread sums tensor 1, and this one the rest
      optimizer.finish_step();
      expected.insert(expected.end(), 2, flushes);
    }
    CHECK(seen == expected);
  });
}

}  // namespace properties_flushed_subnormals_tests
