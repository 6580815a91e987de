// The calls that a hierarchical_communicator makes of its parts, and the ranks that learn of a failure. The parts write the
// calls down.
#include <doctest/doctest.h>

#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "slamb/communicator/hierarchical_communicator.hpp"
#include "slamb/communicator/self_communicator.hpp"

namespace communicator_hierarchical_communicator_tests {
namespace {

using slamb::host_stream;
using log_of_calls = std::shared_ptr<std::vector<std::string>>;

/// One of two ranks. It writes calls down and does nothing else, except that it throws where told to.
struct writing_part {
  std::string name;
  int number = 0;
  log_of_calls calls{};
  std::string fails_in{};

  int rank() const { return number; }
  static int size() { return 2; }
  void all_reduce_sum(std::span<float> /*values*/, host_stream /*stream*/) { write("sum"); }
  void broadcast(std::span<float> /*values*/, int root, host_stream /*stream*/) {
    write("broadcast" + std::to_string(root));
  }
  void check() { write("check"); }
  void wait(host_stream /*stream*/) { write("wait"); }
  void abort(const std::string& reason) { write("abort (" + reason + ")"); }

 private:
  void write(const std::string& what) {
    calls->push_back(name + " " + what);
    if (what == fails_in) throw std::runtime_error("lost");
    if ("odd " + what == fails_in) throw 17;
  }
};

using hierarchy = slamb::hierarchical_communicator<writing_part, writing_part>;
using list = std::vector<std::string>;

struct made {
  log_of_calls calls = std::make_shared<list>();
  hierarchy all;

  explicit made(int local, const std::string& local_fails = {}, const std::string& between_fails = {})
      : all({"local", local, calls, local_fails}, {"between", 1, calls, between_fails}) {}
};

std::vector<float> values(3);
const std::span<float> all_values(values);

/// Has no optional member, and no sums of a node.
struct bare_part {
  static int rank() { return 0; }
  static int size() { return 1; }
  void broadcast(std::span<float> /*values*/, int /*root*/, host_stream /*stream*/) {}
};
using bare = slamb::hierarchical_communicator<bare_part, bare_part>;

template <class C>
concept can_abort = requires(C& c) {
  c.abort("for no reason");
};
template <class C>
concept can_check = requires(C& c) {
  c.check();
};
template <class C>
concept can_wait = requires(C& c) {
  c.wait(host_stream{});
};

}  // namespace

TEST_CASE("hierarchical_communicator: has the collectives of its parts") {
  static_assert(slamb::capability::has_all_reduce_in_node<hierarchy> && can_abort<hierarchy> && can_check<hierarchy> &&
                can_wait<hierarchy>);
  static_assert(slamb::capability::has_all_reduce_sum<hierarchy, float> &&
                !slamb::capability::has_all_reduce_sum<hierarchy, double>);
  static_assert(!slamb::capability::has_all_gather<hierarchy, float> &&
                !slamb::capability::has_all_to_all<hierarchy, float>);
  static_assert(slamb::capability::has_broadcast<bare, float> && !slamb::capability::has_all_reduce_sum<bare, float>);
  static_assert(!slamb::capability::has_all_reduce_in_node<bare> && !can_abort<bare> && !can_check<bare> &&
                !can_wait<bare>);
  static_assert(can_abort<slamb::hierarchical_communicator<slamb::self_communicator, writing_part>>);
  static_assert(can_wait<slamb::hierarchical_communicator<writing_part, slamb::self_communicator>>);
  const made leader(0);
  CHECK(leader.all.rank() == 1);
  CHECK(leader.all.size() == 2);
  CHECK(leader.all.local_rank() == 0);
  CHECK(leader.all.local_size() == 2);
}

TEST_CASE("hierarchical_communicator: the leader exchanges, and then broadcasts to the node") {
  made leader(0);
  leader.all.all_reduce_in_node(all_values, host_stream{});
  leader.all.all_reduce_sum(all_values, host_stream{});
  leader.all.broadcast(all_values, 1, host_stream{});
  leader.all.check();
  leader.all.wait(host_stream{});
  CHECK(*leader.calls == list{"local sum", "between sum", "local broadcast0", "between broadcast1", "local broadcast0",
                              "local check", "between check", "between wait", "local wait"});
  made other(1);
  other.all.all_reduce_in_node(all_values, host_stream{});
  other.all.all_reduce_sum(all_values, host_stream{});
  other.all.wait(host_stream{});
  CHECK(*other.calls == list{"local sum", "local broadcast0", "local wait"});
}

TEST_CASE("hierarchical_communicator: an exception of one part aborts both, and is rethrown") {
  made inter_node(0, "", "sum");
  CHECK_THROWS_WITH_AS(inter_node.all.all_reduce_sum(all_values, host_stream{}), "lost", std::runtime_error);
  CHECK(*inter_node.calls ==
        list{"between sum", "local abort (between nodes: lost)", "between abort (between nodes: lost)"});

  made local(1, "broadcast0");
  CHECK_THROWS_WITH_AS(local.all.broadcast(all_values, 0, host_stream{}), "lost", std::runtime_error);
  CHECK(*local.calls == list{"local broadcast0", "local abort (in node 1: lost)", "between abort (in node 1: lost)"});

  made waits(0, "", "odd wait");
  CHECK_THROWS_AS(waits.all.wait(host_stream{}), int);
  CHECK(waits.calls->size() == 3);
  CHECK(waits.calls->back().starts_with("between abort (between nodes: "));

  made asked(0);
  asked.all.abort("its disk is full");
  CHECK(*asked.calls == list{"local abort (its disk is full)", "between abort (its disk is full)"});
}

}  // namespace communicator_hierarchical_communicator_tests
