// The threads on which an optimizer calls its Communicator, and that calls never overlap, as docs/extend/communicator.md
// promises.
#include <doctest/doctest.h>

#include <atomic>
#include <cstddef>
#include <memory>
#include <set>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "slamb/slamb.hpp"
#include "support/cluster.hpp"

namespace properties_calling_threads_tests {
namespace {

using slamb::thread_communicator;
using test_support::one_thread;
using test_support::replica;

/// A log of the calls of one rank's collectives. It has no lock: calls must come one after another, and each must see the writes
/// of the one before, which ThreadSanitizer checks.
struct call_log {
  struct entry {
    slamb::collective kind;
    std::thread::id thread;
  };
  std::vector<entry> entries;
  std::atomic<int> under_way{0};
  std::atomic<int> overlaps{0};

  std::set<std::thread::id> threads() const {
    std::set<std::thread::id> all;
    for (const entry& e : entries) all.insert(e.thread);
    return all;
  }
};

/// Logs the calls of another communicator.
template <class Base>
class logging_communicator {
 public:
  logging_communicator(Base base, std::shared_ptr<call_log> log) : base_(std::move(base)), log_(std::move(log)) {}

  int rank() const { return base_.rank(); }
  int size() const { return base_.size(); }
  void all_reduce_sum(std::span<float> values, slamb::host_stream stream) {
    log(slamb::collective::all_reduce, [&] { base_.all_reduce_sum(values, stream); });
  }
  void all_gather(std::span<const std::byte> mine, std::span<std::byte> all, slamb::host_stream stream) {
    log(slamb::collective::all_gather, [&] { base_.all_gather(mine, all, stream); });
  }
  void all_to_all(std::span<const std::byte> send, std::span<std::byte> receive, slamb::host_stream stream) {
    log(slamb::collective::all_to_all, [&] { base_.all_to_all(send, receive, stream); });
  }
  void broadcast(std::span<std::byte> values, int root, slamb::host_stream stream) {
    log(slamb::collective::broadcast, [&] { base_.broadcast(values, root, stream); });
  }

 private:
  template <class Call>
  void log(slamb::collective kind, const Call& call) {
    if (log_->under_way.fetch_add(1, std::memory_order_relaxed) != 0) ++log_->overlaps;
    log_->entries.push_back({kind, std::this_thread::get_id()});
    call();
    log_->under_way.fetch_sub(1, std::memory_order_relaxed);
  }

  Base base_;
  std::shared_ptr<call_log> log_;
};

using logging = logging_communicator<thread_communicator>;

constexpr int ranks = 2;
const test_support::model tensors{{300}, {9000}, {17, 1}, {9100}};

/// Calls body(optimizer, log, step_in_parts) on each rank. step_in_parts(optimizer) marks all gradients ready before it finishes
/// the step.
template <class Optimizer, class Body>
void run_logged(const typename Optimizer::options_type& options, const Body& body) {
  slamb::run_ranks(ranks, [&](thread_communicator communicator) {
    const auto log = std::make_shared<call_log>();
    replica mine(tensors, std::vector<float>(test_support::total_size(tensors), 0.5F));
    mine.set_gradient(std::vector<float>(test_support::total_size(tensors), 0.25F));
    Optimizer run(mine.parameters(), options, logging(std::move(communicator), log), one_thread());
    CHECK(log->threads() == std::set{std::this_thread::get_id()});  // the calls of the construction
    log->entries.clear();
    body(run, *log);
    CHECK(log->overlaps == 0);
  });
}

template <class Optimizer>
void step_in_parts(Optimizer& run) {
  run.begin_step(0.01);
  for (std::size_t i = tensors.size(); i-- > 0;) run.gradient_ready(i, 1);
  run.finish_step();
}

/// Checks that the caller's thread calls the collectives of whole steps, and that steps in parts use it and one more thread.
template <class Optimizer>
void check_threads(const typename Optimizer::options_type& options) {
  run_logged<Optimizer>(options, [](Optimizer& run, call_log& log) {
    const auto me = std::this_thread::get_id();
    for (int t = 0; t < 3; ++t) run.step(0.01);
    run.synchronize_parameters();
    CHECK(log.threads() == std::set{me});
    log.entries.clear();

    std::set<std::thread::id> of_parts;
    for (int t = 0; t < 3; ++t) {
      step_in_parts(run);
      for (const call_log::entry& call : log.entries)
        if (call.thread != me) CHECK(call.kind == slamb::collective::all_reduce);
      of_parts.merge(log.threads());
      log.entries.clear();
    }
    CHECK(of_parts.size() == 2);
    CHECK(of_parts.count(me) == 1);
  });
}

}  // namespace

TEST_CASE("calling threads: step() calls collectives on its caller's thread, steps in parts also on the optimizer's") {
  check_threads<slamb::lamb<logging>>({.ranks = {.bucket_bytes = 1000}});
  check_threads<slamb::adamw<logging>>({.ranks = {.bucket_bytes = 1000}});
  check_threads<slamb::slamb<logging>>({.local_steps = 2, .ranks = {.bucket_bytes = 1000}});
  check_threads<slamb::one_bit_adam<logging>>({.ranks = {.bucket_bytes = 1000}, .warm_up = {100}});
}

TEST_CASE("calling threads: exchanges of codes call only on the caller's thread, also in parts") {
  run_logged<slamb::one_bit_adam<logging>>(
      {.ranks = {.bucket_bytes = 1000}, .warm_up = {1}}, [](slamb::one_bit_adam<logging>& run, call_log& log) {
        run.step(0.01);
        step_in_parts(run);
        CHECK(log.threads() == std::set{std::this_thread::get_id()});
        CHECK(log.entries.size() == 4);  // one of them is the comparison before the first step
      });
}

TEST_CASE("calling threads: an optimizer that another thread steps calls on that thread") {
  run_logged<slamb::lamb<logging>>({.ranks = {.bucket_bytes = 1000}}, [](slamb::lamb<logging>& run, call_log& log) {
    std::thread::id other;
    std::thread recipe_base([&] {
      other = std::this_thread::get_id();
      run.step(0.01);
    });
    recipe_base.join();
    CHECK(log.threads() == std::set{other});
  });
}

TEST_CASE("calling threads: the test finds calls that overlap") {
  const auto log = std::make_shared<call_log>();
  log->under_way = 1;  // as while another thread is in a collective
  logging_communicator<slamb::self_communicator> one({}, log);
  one.all_reduce_sum({}, {});
  CHECK(log->overlaps == 1);
}

}  // namespace properties_calling_threads_tests
