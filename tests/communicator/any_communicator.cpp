// Type-erased communicators: they behave like the Communicator that they hold, and name the collective that it lacks.
#include <doctest/doctest.h>

#include <array>
#include <cstddef>
#include <span>
#include <stdexcept>
#include <string>
#include <typeinfo>
#include <utility>
#include <vector>

#include "slamb/slamb.hpp"
#include "support/cluster.hpp"

namespace communicator_any_communicator_tests {
namespace {

using slamb::any_communicator;
using slamb::collective;
using slamb::host_stream;
using slamb::thread_communicator;

constexpr int world = 3;

/// Has sums only.
struct summing_communicator {
  static int rank() { return 0; }
  static int size() { return 1; }
  void all_reduce_sum(std::span<float> /*values*/, host_stream /*stream*/) {}
};

/// Notes the calls other than collectives.
struct noting_communicator : summing_communicator {
  std::vector<std::string>* notes;

  explicit noting_communicator(std::vector<std::string>& to) : notes(&to) {}
  int local_rank() const { return 2; }
  int local_size() const { return 3; }
  void all_reduce_in_node(std::span<float> values, host_stream /*stream*/) {
    notes->push_back("all_reduce_in_node of " + std::to_string(values.size()));
  }
  void wait(host_stream /*stream*/) { notes->push_back("wait"); }
  void check() { notes->push_back("check"); }
  void abort(const std::string& reason) { notes->push_back("abort: " + reason); }
};

}  // namespace

TEST_CASE("any_communicator: get() returns the wrapped communicator, only by its own type") {
  any_communicator<> ranks(summing_communicator{});
  CHECK_NOTHROW(ranks.get<summing_communicator>());
  CHECK(&ranks.get<any_communicator<>>() == &ranks);
  CHECK_THROWS_AS(ranks.get<slamb::self_communicator>(), std::bad_cast);
  const summing_communicator* const before = &ranks.get<summing_communicator>();
  any_communicator<> moved(std::move(ranks));
  CHECK(&moved.get<summing_communicator>() == before);
}

TEST_CASE("any_communicator: forwards nodes, waits and failures, or acts as a node of one rank") {
  std::vector<std::string> notes;
  any_communicator<> ranks{noting_communicator(notes)};
  CHECK(ranks.joins_nodes());
  CHECK(ranks.local_rank() == 2);
  CHECK(ranks.local_size() == 3);
  std::array<float, 5> values{};
  ranks.all_reduce_in_node(values, {});
  ranks.wait({});
  ranks.check();
  ranks.abort("no reason");
  CHECK(notes == std::vector<std::string>{"all_reduce_in_node of 5", "wait", "check", "abort: no reason"});

  any_communicator<> plain(summing_communicator{});
  CHECK_FALSE(plain.joins_nodes());
  CHECK(plain.local_rank() == 0);
  CHECK(plain.local_size() == 1);
  CHECK_NOTHROW(plain.wait({}));
  CHECK_NOTHROW(plain.check());
  CHECK_NOTHROW(plain.abort("no reason"));
}

TEST_CASE("any_communicator: an optimizer names a missing collective before it does anything") {
  any_communicator<> ranks(summing_communicator{});
  CHECK(ranks.has(collective::all_reduce));
  for (const collective kind : {collective::all_gather, collective::all_to_all, collective::broadcast})
    CHECK_FALSE(ranks.has(kind));
  std::array<std::byte, 2> bytes{};
  CHECK_THROWS_WITH_AS(ranks.all_gather(bytes, bytes, {}), doctest::Contains("has no all_gather("), std::logic_error);
  CHECK_THROWS_WITH_AS(ranks.all_to_all(bytes, bytes, {}), doctest::Contains("has no all_to_all("), std::logic_error);
  CHECK_THROWS_WITH_AS(ranks.broadcast(bytes, 0, {}), doctest::Contains("has no broadcast("), std::logic_error);

  std::vector<float> p(100, 1.0F), g(100, 0.5F);
  const std::vector<slamb::parameter> tensors{{.data = p.data(), .gradient = g.data(), .size = p.size()}};
  using slamb::slamb;
  const auto summing = [] { return any_communicator<>(summing_communicator{}); };
  CHECK_NOTHROW(::slamb::lamb<any_communicator<>>(tensors, {}, summing()));
  CHECK_NOTHROW(slamb<any_communicator<>>(tensors, {}, summing()));
  CHECK_THROWS_WITH_AS(::slamb::one_bit_adam<any_communicator<>>(tensors, {}, summing()),
                       doctest::Contains("needs a Communicator with all_to_all of bytes"), std::invalid_argument);
  using byte_chain = ::slamb::chain<::slamb::random_k<>, ::slamb::int8>;
  CHECK_THROWS_WITH_AS((slamb<any_communicator<>, byte_chain>(tensors, {}, summing())),
                       doctest::Contains("needs a Communicator with all_to_all of bytes"), std::invalid_argument);
  CHECK_THROWS_WITH_AS((slamb<any_communicator<>, ::slamb::top_k>(tensors, {}, summing())),
                       doctest::Contains("needs a Communicator with broadcast of bytes"), std::invalid_argument);
}

TEST_CASE("any_communicator: wrappers report its collectives, and forward wait, check and abort") {
  const auto summing = [] { return any_communicator<>(summing_communicator{}); };
  using counted = slamb::counting_communicator<any_communicator<>>;
  using nodes = slamb::hierarchical_communicator<slamb::self_communicator, any_communicator<>>;
  for (any_communicator<>& wrapped : std::array{any_communicator<>(counted(summing())),
                                                any_communicator<>(nodes(slamb::self_communicator{}, summing()))}) {
    CHECK(wrapped.has(collective::all_reduce));
    for (const collective kind : {collective::all_gather, collective::all_to_all, collective::broadcast})
      CHECK_FALSE(wrapped.has(kind));
  }
  CHECK_FALSE(nodes(slamb::self_communicator{}, summing()).has(collective::all_gather));
  std::vector<float> p(100, 1.0F), g(100, 0.5F);
  const std::vector<slamb::parameter> tensors{{.data = p.data(), .gradient = g.data(), .size = p.size()}};
  CHECK_THROWS_WITH_AS(slamb::one_bit_adam<counted>(tensors, {}, counted(summing())),
                       doctest::Contains("needs a Communicator with all_to_all of bytes"), std::invalid_argument);

  std::vector<std::string> notes;
  slamb::counting_communicator<noting_communicator> noting{noting_communicator(notes)};
  noting.wait(host_stream{});
  noting.check();
  noting.abort("no reason");
  CHECK(notes == std::vector<std::string>{"wait", "check", "abort: no reason"});
}

TEST_CASE("any_communicator: names the mistake when it is used after a move, also by an optimizer") {
  any_communicator<> first(summing_communicator{});
  const any_communicator<> second(std::move(first));
  CHECK(second.size() == 1);
  CHECK(second.get<summing_communicator>().size() == 1);
  CHECK_THROWS_WITH_AS(first.size(), doctest::Contains("any_communicator was used after it was moved from"),
                       std::logic_error);
  std::vector<float> p(100, 1.0F), g(100, 0.5F);
  const std::vector<slamb::parameter> tensors{{.data = p.data(), .gradient = g.data(), .size = p.size()}};
  CHECK_THROWS_AS(slamb::lamb<any_communicator<>>(tensors, {}, std::move(first)), std::logic_error);
}

TEST_CASE("any_communicator: training has the bits of training over the wrapped communicator") {
  const test_support::experiment e = test_support::make_experiment({{300}, {9100}, {17, 1}}, 91, world, 6);
  const auto train = [&e]<class Communicator>(std::in_place_type_t<Communicator>) {
    test_support::trajectory reached = test_support::place_of(e);
    slamb::run_ranks(e.world, [&](thread_communicator held) {
      const auto rank = static_cast<std::size_t>(held.rank());
      test_support::replica mine(e.tensors, e.start);
      slamb::slamb<Communicator> run(mine.parameters(), {.local_steps = 4}, Communicator(std::move(held)),
                                     test_support::one_thread());
      for (std::size_t t = 0; t < e.steps(); ++t) {
        mine.set_gradient(e.gradients[t][rank]);
        run.step(e.rates[t]);
        reached[t][rank] = mine.values();
      }
      CHECK(run.communicator().size() == e.world);
    });
    return reached;
  };
  CHECK(test_support::same_bits(train(std::in_place_type<thread_communicator>),
                                train(std::in_place_type<any_communicator<>>)));
}

}  // namespace communicator_any_communicator_tests
