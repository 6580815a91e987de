// slamb_bench_shards: what a shard group adds to a step, with a thread for each shard. Exit status: 0; 1 for an error at work; 2
// for a wrong command line.
#include <barrier>
#include <cstddef>
#include <iostream>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "../../examples/common/program.hpp"
#include "../meeting.hpp"
#include "../workbench.hpp"
#include "measurement.hpp"
#include "report.hpp"
#include "settings.hpp"
#include "slamb/threads.hpp"

namespace {

using namespace bench::shards;

// The threads of a shard group, as one of them sees them. Each communicator joins a group of its own.
class threads {
 public:
  using communicator_type = slamb::thread_communicator;

  threads(std::vector<slamb::thread_group>& groups, std::barrier<>& barrier, int rank)
      : groups_(groups), meeting_(barrier), rank_(rank) {}

  void meet() { meeting_.wait(); }
  communicator_type communicator() { return groups_[next_++].communicator(rank_); }

 private:
  std::vector<slamb::thread_group>& groups_;
  bench::meeting meeting_;
  int rank_;
  std::size_t next_ = 0;
};

results measure_threads(const settings& chosen) {
  constexpr std::size_t communicators = 4;
  std::vector<slamb::thread_group> groups;
  for (std::size_t i = 0; i < communicators; ++i) groups.emplace_back(chosen.shards);
  std::barrier<> barrier(chosen.shards);
  results of_first;
  slamb::run_ranks(chosen.shards, [&](const slamb::thread_communicator& thread) {
    threads ranks(groups, barrier, thread.rank());
    results own = measure(chosen, ranks);
    if (thread.rank() == 0) of_first = std::move(own);
  });
  return of_first;
}

int run(int argc, char** argv) {
  if (const std::optional<settings> chosen = parse_command_line(argc, argv, "slamb_bench_shards", 0)) {
    const double load = load_average();
    constexpr std::size_t bytes = 4 * (2 + 3 * 2);  // p and g, and m and v of three optimizers
    bench::workbench::require_memory(bench::detail::elements_of(bench::bert_large_tensors()) / chosen->smaller * bytes);
    print(std::cout, *chosen, "threads", load, measure_threads(*chosen));
  }
  programs::require_written();
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return programs::exit_status("slamb_bench_shards", [&] { return run(argc, argv); });
}
