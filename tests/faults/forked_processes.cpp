// A process that is forked from the one that constructed an optimizer: its copy ends at once, and says so when it is called.
#if __has_include(<unistd.h>)
#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "slamb/slamb.hpp"
#include "support/generate.hpp"
#include "support/replica.hpp"
#include "support/said.hpp"
#include "support/watching_communicators.hpp"

namespace faults_forked_processes_tests {
namespace {

using test_support::imagined_peers;
using test_support::replica;

const test_support::model tensors{{300}, {150'000}, {17, 1}, {9100}};  // enough for three threads

std::vector<float> start() { return test_support::random_parameters(3, test_support::total_size(tensors)); }

/// Runs `body` in a child process, which is killed if it hangs.
/// @return its status; 1000 + the signal if a signal has ended it
int status_of_child(const std::function<int()>& body) {
  std::cout.flush();
  std::fflush(nullptr);  // else the child would write it too
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    ::alarm(20);
    int status = 99;
    try {
      status = body();
    } catch (...) {
      status = 98;
    }
    ::_exit(status);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

/// True if the call throws the error of a forked process.
bool is_refused(const std::string& name, const std::function<void()>& call) {
  return test_support::said_by<std::logic_error>(call) ==
         "slamb: " + name +
             " was called in a process that was forked from the one that constructed the optimizer; the optimizer's "
             "threads and connections belong to that one: construct an optimizer in this process, or start processes "
             "by spawn or exec";
}

/// How far an optimizer has come before the fork.
enum class progress { constructed, stepped, stepped_in_parts, in_open_step };

/// An optimizer with its model.
struct trained {
  replica memory{tensors, start()};
  std::unique_ptr<slamb::optimizer> optimizer;

  trained(unsigned threads, progress how_far) {
    optimizer = std::make_unique<slamb::lamb<>>(memory.parameters(),
                                                slamb::lamb<>::options_type{.ranks = {.bucket_bytes = 1000}},
                                                slamb::self_communicator{}, slamb::host_backend{.threads = threads});
    memory.set_gradient(start());
    if (how_far == progress::stepped) optimizer->step(0.01);
    if (how_far == progress::stepped_in_parts || how_far == progress::in_open_step) {
      optimizer->begin_step(0.01);
      optimizer->gradient_ready(2, 2);
      if (how_far == progress::stepped_in_parts) optimizer->finish_step();
    }
  }
  /// Goes on in the process of the construction.
  std::vector<float> values_after_step() {
    optimizer->statistics();
    optimizer->step(0.01);
    return memory.values();
  }
};

template <class Body>
void for_all_beginnings(const Body& body) {
  for (const unsigned threads : {1U, 2U, 3U})
    for (const progress how_far :
         {progress::constructed, progress::stepped, progress::stepped_in_parts, progress::in_open_step}) {
      CAPTURE(threads);
      CAPTURE(static_cast<int>(how_far));
      trained mine(threads, how_far);
      body(mine);
      if (how_far != progress::in_open_step) CHECK(mine.values_after_step() == trained(1, how_far).values_after_step());
    }
}

/// Optimizers that live until the process ends.
std::optional<trained>& of_program() {
  static std::optional<trained> all;
  return all;
}

}  // namespace

TEST_CASE("forked processes: the test finds a child that hangs, fails or throws") {
  CHECK(status_of_child([] { return 0; }) == 0);
  CHECK(status_of_child([] { return 3; }) == 3);
  CHECK(status_of_child([]() -> int { throw std::runtime_error("it fails"); }) == 98);
  CHECK(status_of_child([] {
          ::alarm(1);
          for (;;) ::pause();
          return 0;
        }) == 1000 + SIGALRM);
}

TEST_CASE("forked processes: a copy of an optimizer is destroyed at once") {
  for_all_beginnings([](trained& mine) {
    CHECK(status_of_child([&] {
            mine.optimizer.reset();
            return 0;
          }) == 0);
  });
}

TEST_CASE("forked processes: a copy that lives until the end of the program does not keep the process from its end") {
  for (const progress how_far : {progress::constructed, progress::stepped, progress::in_open_step}) {
    CAPTURE(static_cast<int>(how_far));
    of_program().emplace(3U, how_far);
    CHECK(status_of_child([]() -> int {
            const trained on_stack(1, progress::stepped);
            std::exit(0);
          }) == 0);
    of_program().reset();
  }
}

TEST_CASE("forked processes: every call of a copy throws, and names the remedy") {
  const double rates[] = {0.1};
  for_all_beginnings([&](trained& mine) {
    slamb::optimizer& o = *mine.optimizer;
    const std::vector<std::pair<std::string, std::function<void()>>> calls{
        {"step()", [&] { o.step(0.1); }},
        {"step()", [&] { o.step(slamb::device_learning_rates{rates}); }},
        {"begin_step()", [&] { o.begin_step(0.1); }},
        {"gradient_ready()", [&] { o.gradient_ready(0, 1); }},
        {"finish_step()", [&] { o.finish_step(); }},
        {"synchronize_parameters()", [&] { o.synchronize_parameters(); }},
        {"broadcast_parameters()", [&] { o.broadcast_parameters(); }},
        {"compare_ranks()", [&] { o.compare_ranks(); }},
        {"with_averaged_parameters()", [&] { o.with_averaged_parameters([] {}); }},
        {"statistics()", [&] { static_cast<void>(o.statistics()); }},
        {"memory()", [&] { static_cast<void>(o.memory()); }},
        {"save_state()", [&] { static_cast<void>(o.save_state()); }},
        {"load_state()", [&] { o.load_state({}); }},
        {"moments()", [&] { o.moments(0); }},
        {"set_steps()", [&] { o.set_steps(3); }},
        {"set_gradient_scaling()", [&] { o.set_gradient_scaling({}); }},
        {"set_options()", [&] { o.set_options({}); }},
        {"reload_parameters()", [&] { o.reload_parameters(); }},
        {"set_parameters()", [&] { o.set_parameters({}); }},
        {"set_gradient()", [&] { o.set_gradient(0, nullptr); }},
        {"options()", [&] { static_cast<void>(static_cast<slamb::lamb<>&>(o).options()); }},
        {"communicator()", [&] { static_cast<void>(static_cast<slamb::lamb<>&>(o).communicator()); }}};
    const int status = status_of_child([&] {
      for (std::size_t i = 0; i < calls.size(); ++i)
        if (!is_refused(calls[i].first, calls[i].second)) return 1 + static_cast<int>(i);
      return 0;
    });
    CHECK(status == 0);
    for (const auto& call : calls) CHECK(!is_refused(call.first, [] { throw std::logic_error("another"); }));
  });
}

TEST_CASE("forked processes: a copy is moved and assigned to, and a new optimizer takes its place") {
  for_all_beginnings([](trained& mine) {
    const int status = status_of_child([&] {
      slamb::optimizer moved = std::move(*mine.optimizer);
      if (!is_refused("step()", [&] { moved.step(0.1); })) return 1;
      slamb::optimizer& itself = moved;
      moved = std::move(itself);
      *mine.optimizer = std::move(moved);
      if (!is_refused("step()", [&] { mine.optimizer->step(0.1); })) return 2;
      trained own(1, progress::stepped);  // one thread: a sanitizer forbids new ones here
      *mine.optimizer = std::move(*own.optimizer);
      mine.optimizer->step(0.01);
      if (mine.optimizer->statistics().step != 2) return 3;
      const std::vector<float> reached = own.memory.values();
      return reached == trained(1, progress::stepped).values_after_step() ? 0 : 4;
    });
    CHECK(status == 0);
  });
}

TEST_CASE("forked processes: a copy that was forked within a call refuses calls for the fork, and can be destroyed") {
  class forking_communicator {
   public:
    forking_communicator(imagined_peers ranks, std::function<void()>& in_collective)
        : ranks_(ranks), in_collective_(&in_collective) {}
    static int rank() { return 0; }
    int size() const { return ranks_.size(); }
    void all_reduce_sum(std::span<float> values, slamb::host_stream stream) {
      if (const auto once = std::exchange(*in_collective_, nullptr)) once();
      ranks_.all_reduce_sum(values, stream);
    }

   private:
    imagined_peers ranks_;
    std::function<void()>* in_collective_;
  };
  using lamb = slamb::lamb<forking_communicator>;
  replica memory(tensors, start());
  memory.set_gradient(start());
  std::function<void()> in_collective;
  auto optimizer = std::make_unique<lamb>(
      memory.parameters(), lamb::options_type{.ranks = {.bucket_bytes = 1000}},
      forking_communicator(imagined_peers(2, imagined_peers::habit::send_the_same), in_collective),
      slamb::host_backend{.threads = 3});
  optimizer->step(0.01);
  std::vector<int> found;
  const auto fork_in_call = [&] {
    in_collective = [&] {
      found.push_back(status_of_child([&] {
        if (!is_refused("statistics()", [&] { static_cast<void>(optimizer->statistics()); })) return 1;
        optimizer.reset();
        return 0;
      }));
    };
  };
  fork_in_call();
  optimizer->step(0.01);
  fork_in_call();
  optimizer->begin_step(0.01);
  optimizer->gradient_ready(2, 2);  // the second thread makes the collective, and forks
  optimizer->finish_step();
  CHECK(found == std::vector<int>{0, 0});
  CHECK(optimizer->statistics().step == 3);
}

TEST_CASE("forked processes: a launcher alone is destroyed at once") {
  for (const unsigned threads : {1U, 2U, 4U}) {
    std::optional<slamb::detail::host::thread_launcher> launcher;
    launcher.emplace(threads, std::uint64_t{1} << 20U);
    std::vector<std::byte> memory(std::size_t{8} << 20U, std::byte{1});
    launcher->clear(memory);
    CHECK(status_of_child([&] {
            launcher.reset();
            return 0;
          }) == 0);
    launcher->clear(memory);
    CHECK(memory == std::vector<std::byte>(memory.size()));
  }
}

}  // namespace faults_forked_processes_tests
#endif
