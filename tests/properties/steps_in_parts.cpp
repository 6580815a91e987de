// Steps in parts while gradients are still being computed: equal bit for bit to whole steps, and exchanges begin before the last
// gradient is ready.
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <mutex>
#include <numeric>
#include <set>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "slamb/slamb.hpp"
#include "support/cluster.hpp"
#include "support/watching_communicators.hpp"

namespace properties_steps_in_parts_tests {
namespace {

using slamb::thread_communicator;
using test_support::experiment;
using test_support::one_thread;
using test_support::replica;

using lamb = slamb::lamb<thread_communicator>;
template <class Compressor>
using sparse = slamb::slamb<thread_communicator, Compressor>;

// Buckets of one tensor and of a few, with an empty tensor at each end.
constexpr std::uint64_t small_bucket = 1000;
const test_support::model tensors{{0}, {300}, {9000}, {0}, {17, 1}, {33, 1}, {9100}, {64}, {0}};

// The order differs by rank and by step.
std::vector<std::size_t> order_of_gradients(std::uint64_t step, int rank) {
  std::vector<std::size_t> order(tensors.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  test_support::random_source random(7, step, static_cast<std::uint64_t>(rank));
  for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random.below(i)]);
  return order;
}

template <class Optimizer>
void step_in_parts(Optimizer& run, double rate, std::uint64_t step, int rank) {
  run.begin_step(rate);
  const std::vector<std::size_t> order = order_of_gradients(step, rank);
  const std::size_t said = order.size() - step % 3;  // finish_step() implies the others
  for (std::size_t i = 0; i < said; ++i) run.gradient_ready(order[i], 1);
  run.finish_step();
}

struct outcome {
  std::vector<std::vector<float>> parameters;  // [step]
  std::vector<std::vector<std::byte>> states;  // [step]
  std::uint64_t rounds = 0;
};

// On every rank: trains, with a gradient that is not finite in two steps, in the first and in the last tensors.
template <class Optimizer>
std::vector<outcome> train(const experiment& e, const typename Optimizer::options_type& options, bool in_parts) {
  std::vector<outcome> all(static_cast<std::size_t>(e.world));
  slamb::run_ranks(e.world, [&](thread_communicator communicator) {
    const int rank = communicator.rank();
    outcome& mine = all[static_cast<std::size_t>(rank)];
    replica copy(e.tensors, e.start);
    Optimizer run(copy.parameters(), options, std::move(communicator), one_thread());
    for (std::size_t t = 0; t < e.steps(); ++t) {
      std::vector<float> gradient = e.gradients[t][static_cast<std::size_t>(rank)];
      if (rank == 1 && t == 2) gradient.back() = std::numeric_limits<float>::infinity();
      if (rank == 0 && t == 3) gradient.front() = std::numeric_limits<float>::quiet_NaN();
      copy.set_gradient(gradient);
      if (in_parts)
        step_in_parts(run, e.rates[t][0], t, rank);
      else
        run.step(e.rates[t][0]);
      mine.parameters.push_back(copy.values());
      mine.states.push_back(run.save_state());
    }
    mine.rounds = run.statistics().traffic.total().rounds;
  });
  return all;
}

// `more`: the number of buckets beyond one that the steps in parts exchange.
template <class Optimizer>
void check_same(typename Optimizer::options_type options, std::uint64_t more) {
  options.ranks.bucket_bytes = small_bucket;
  const experiment e = test_support::make_experiment(tensors, 31, 3, 7);
  const std::vector<outcome> expected = train<Optimizer>(e, options, false);
  const std::vector<outcome> reached = train<Optimizer>(e, options, true);
  for (std::size_t rank = 0; rank < expected.size(); ++rank) {
    for (std::size_t t = 0; t < e.steps(); ++t) {
      CAPTURE(rank);
      CAPTURE(t);
      CHECK(test_support::same_bits(reached[rank].parameters[t], expected[rank].parameters[t]));
      CHECK(reached[rank].states[t] == expected[rank].states[t]);
    }
    CHECK(reached[rank].rounds - expected[rank].rounds == more);
  }
}

}  // namespace

TEST_CASE("steps in parts: dense gradients have the bits of the steps of LAMB, AdamW and warm-ups") {
  // {64, 0}, {9100}, {33, 17, 0, 9000}, and the bucket of the first tensors
  constexpr std::uint64_t buckets = 2;
  check_same<lamb>({}, 7 * buckets);
  check_same<lamb>({.max_gradient_norm = 0.5}, 7 * buckets);
  check_same<slamb::adamw<thread_communicator>>({.skip_non_finite = false}, 7 * buckets);
  check_same<slamb::one_bit_lamb<thread_communicator>>({.warm_up = {.steps = 3}}, 5 * buckets);
  check_same<slamb::zero_one_adam<thread_communicator>>({}, 7 * buckets);
}

TEST_CASE("steps in parts: SLAMB's selected momentum has the same bits") {
  check_same<sparse<slamb::random_k<>>>({.local_steps = 2, .dense_below = 20}, 7 * 2);
  check_same<sparse<slamb::random_k<slamb::sampling::bernoulli>>>({.dense_below = 0, .compressor = {.k = 0.3}}, 7 * 2);
}

TEST_CASE("steps in parts: exchanges that need all gradients run at the end") {
  check_same<sparse<slamb::chain<slamb::random_k<>, slamb::int8>>>({}, 0);
  check_same<sparse<slamb::top_k>>({.dense_below = 20}, 0);
  check_same<slamb::lamb<slamb::int8, slamb::residual<>, thread_communicator>>({}, 0);
}

namespace {

// The sums so far, for other threads to wait for.
class sums_so_far {
 public:
  void add(std::size_t elements) {
    {
      const std::lock_guard lock(mutex_);
      sums_.insert(elements);
    }
    changed_.notify_all();
  }
  // True if there is such a sum, now or soon.
  bool have(std::size_t elements) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::minutes(2), [&] { return sums_.count(elements) != 0; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::multiset<std::size_t> sums_;
};

class telling_communicator {
 public:
  explicit telling_communicator(std::shared_ptr<sums_so_far> sums) : sums_(std::move(sums)) {}

  int rank() const { return peers_.rank(); }
  int size() const { return peers_.size(); }
  void all_reduce_sum(std::span<float> values, slamb::host_stream stream) {
    peers_.all_reduce_sum(values, stream);
    sums_->add(values.size());
  }

 private:
  test_support::imagined_peers peers_{2, test_support::imagined_peers::habit::send_the_same};
  std::shared_ptr<sums_so_far> sums_;
};

constexpr std::size_t header_floats = 16;  // before the first tensors' bucket, which goes last

struct small_model {
  std::vector<float> first = std::vector<float>(40, 0.5F);
  std::vector<float> last = std::vector<float>(50, -0.25F);
  std::vector<float> first_gradient = std::vector<float>(40, std::numeric_limits<float>::quiet_NaN());
  std::vector<float> last_gradient = std::vector<float>(50, 0.125F);

  std::vector<slamb::parameter> parameters() {
    return {{.data = first.data(), .gradient = first_gradient.data(), .size = first.size(), .dimensions = 2},
            {.data = last.data(), .gradient = last_gradient.data(), .size = last.size(), .dimensions = 2}};
  }
};

}  // namespace

TEST_CASE("steps in parts: ready gradients are exchanged before the others are computed") {
  using watched = slamb::lamb<telling_communicator>;
  const auto sums = std::make_shared<sums_so_far>();
  small_model model;
  watched run(model.parameters(), {.ranks = {.bucket_bytes = 1}}, telling_communicator(sums));
  run.begin_step(0.1);
  run.gradient_ready(1, 1);
  REQUIRE(sums->have(50));
  std::fill(model.first_gradient.begin(), model.first_gradient.end(), 0.25F);  // computed only now
  run.gradient_ready(0, 1);
  run.finish_step();
  CHECK(sums->have(header_floats + 40));
  CHECK(run.statistics().step == 1);

  small_model whole;
  std::fill(whole.first_gradient.begin(), whole.first_gradient.end(), 0.25F);
  watched at_once(whole.parameters(), {}, telling_communicator(std::make_shared<sums_so_far>()));
  at_once.step(0.1);
  CHECK(model.first == whole.first);
  CHECK(model.last == whole.last);
}

TEST_CASE("steps in parts: an error names the wrong call, which changes nothing") {
  small_model model;
  std::fill(model.first_gradient.begin(), model.first_gradient.end(), 0.25F);
  slamb::lamb<> run(model.parameters());
  CHECK_THROWS_WITH_AS(run.gradient_ready(0, 1),
                       "slamb: gradient_ready() was called without a step; call begin_step() first", std::logic_error);
  CHECK_THROWS_WITH_AS(run.finish_step(), "slamb: finish_step() was called without a step; call begin_step() first",
                       std::logic_error);
  CHECK_THROWS_AS(run.begin_step(-1.0), std::invalid_argument);
  CHECK_THROWS_AS(run.finish_step(), std::logic_error);
  run.begin_step(0.1);
  const std::vector<const float*> gradients{model.first_gradient.data(), model.last_gradient.data()};
  run.set_gradients(gradients);  // none was ready
  CHECK_THROWS_WITH_AS(run.gradient_ready(1, 2),
                       "slamb: gradient_ready() was given 2 tensors from tensor 1 on, but there are 2",
                       std::invalid_argument);
  run.gradient_ready(1, 1);
  CHECK_THROWS_WITH_AS(run.gradient_ready(0, 2),
                       "slamb: gradient_ready() was given tensor 1 for the second time in this step",
                       std::invalid_argument);
  const std::string between = " was called between begin_step() and finish_step(); finish the step first";
  CHECK_THROWS_WITH_AS(run.step(0.1), ("slamb: step()" + between).c_str(), std::logic_error);
  CHECK_THROWS_WITH_AS(run.begin_step(0.1), ("slamb: begin_step()" + between).c_str(), std::logic_error);
  CHECK_THROWS_WITH_AS(run.save_state(), ("slamb: save_state()" + between).c_str(), std::logic_error);
  CHECK_THROWS_WITH_AS(run.load_state({}), ("slamb: load_state()" + between).c_str(), std::logic_error);
  CHECK_THROWS_WITH_AS(static_cast<void>(run.statistics()), ("slamb: statistics()" + between).c_str(),
                       std::logic_error);
  CHECK_THROWS_AS(run.set_gradient(1, model.last_gradient.data()), std::logic_error);
  CHECK_THROWS_WITH_AS(run.set_gradients(gradients), ("slamb: set_gradients() with tensor 1 ready" + between).c_str(),
                       std::logic_error);
  run.set_gradient(0, model.first_gradient.data());  // it was not ready
  run.gradient_ready(0, 1);
  run.finish_step();
  CHECK(run.statistics().step == 1);

  small_model whole;
  std::fill(whole.first_gradient.begin(), whole.first_gradient.end(), 0.25F);
  slamb::lamb<> at_once(whole.parameters());
  at_once.step(0.1);
  CHECK(model.first == whole.first);

  slamb::slamb<> sparse_run(model.parameters());
  sparse_run.begin_step(0.1);
  CHECK_THROWS_WITH_AS(sparse_run.synchronize_parameters(), ("slamb: synchronize_parameters()" + between).c_str(),
                       std::logic_error);
  CHECK_THROWS_WITH_AS(slamb::lamb<>(model.parameters(), {.ranks = {.bucket_bytes = 0}}),
                       doctest::Contains("bucket_bytes = 0, but it must be >= 1"), std::invalid_argument);
}

namespace {

// Rank 0 of two, with sums that take long once `are_slow` is set.
struct slow_sums {
  std::atomic<bool> are_slow{false};
  std::atomic<int> begun{0}, ended{0};
};
class slow_communicator {
 public:
  explicit slow_communicator(std::shared_ptr<slow_sums> sums) : sums_(std::move(sums)) {}

  int rank() const { return peers_.rank(); }
  int size() const { return peers_.size(); }
  void all_reduce_sum(std::span<float> values, slamb::host_stream stream) {
    ++sums_->begun;
    if (sums_->are_slow) std::this_thread::sleep_for(std::chrono::milliseconds(100));
    peers_.all_reduce_sum(values, stream);
    ++sums_->ended;
  }

 private:
  test_support::imagined_peers peers_{2, test_support::imagined_peers::habit::send_the_same};
  std::shared_ptr<slow_sums> sums_;
};

}  // namespace

TEST_CASE("steps in parts: destroying or moving an optimizer in an open step waits for its collectives") {
  using slow = slamb::lamb<slow_communicator>;
  const auto sums = std::make_shared<slow_sums>();
  small_model model;
  const auto begin = [&](slow& run) {
    sums->are_slow = true;
    const int before = sums->begun;
    run.begin_step(0.1);
    run.gradient_ready(1, 1);
    while (sums->begun == before) std::this_thread::yield();
  };
  {
    slow run(model.parameters(), {.ranks = {.bucket_bytes = 1}}, slow_communicator(sums));
    begin(run);
  }
  CHECK(sums->begun == sums->ended);

  sums->are_slow = false;
  slow first(model.parameters(), {.ranks = {.bucket_bytes = 1}}, slow_communicator(sums));
  begin(first);
  slow second(std::move(first));
  CHECK(sums->begun == sums->ended);
  CHECK_THROWS_AS(second.finish_step(), std::logic_error);
  CHECK(model.last == std::vector<float>(50, -0.25F));
  sums->are_slow = false;
  std::fill(model.first_gradient.begin(), model.first_gradient.end(), 0.25F);
  second.step(0.1);
  CHECK(second.statistics().step == 1);
}

}  // namespace properties_steps_in_parts_tests
