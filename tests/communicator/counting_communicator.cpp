// counting_communicator: its counts, and that it otherwise behaves like its base.
#include "slamb/communicator/counting_communicator.hpp"

#include <doctest/doctest.h>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "slamb/communicator/run_ranks.hpp"
#include "support/archetype_communicators.hpp"

namespace communicator_counting_communicator_tests {
namespace {

using slamb::collective;
using slamb::host_stream;
using slamb::traffic;
using slamb::traffic_counts;
using test_support::one_way_communicator;
using test_support::postal_communicator;
using test_support::ticket;

template <class C>
using counting = slamb::counting_communicator<C>;

// It models exactly the concepts of its base: the same collectives, element types and streams.
static_assert(slamb::capability::has_all_to_all<counting<one_way_communicator>, double, ticket>);
static_assert(!slamb::capability::has_all_to_all<counting<one_way_communicator>, float, ticket>);
static_assert(!slamb::capability::has_all_to_all<counting<one_way_communicator>, double, host_stream>);
static_assert(!slamb::capability::has_all_reduce_sum<counting<one_way_communicator>, double, ticket>);
static_assert(!slamb::capability::has_all_gather<counting<one_way_communicator>, double, ticket>);
static_assert(!slamb::capability::has_broadcast<counting<one_way_communicator>, double, ticket>);
static_assert(slamb::capability::has_all_reduce_sum<counting<postal_communicator>, float>);
static_assert(slamb::capability::has_broadcast<counting<postal_communicator>, float>);
static_assert(!slamb::capability::has_all_reduce_sum<counting<postal_communicator>, double>);
static_assert(!slamb::capability::has_all_gather<counting<postal_communicator>, float>);
static_assert(!slamb::capability::has_all_reduce_sum<counting<slamb::thread_communicator>, bool>);

// It can be constructed and moved as its base can.
static_assert(std::default_initializable<counting<slamb::self_communicator>>);
static_assert(!std::default_initializable<counting<slamb::thread_communicator>>);
static_assert(std::movable<counting<postal_communicator>> && !std::copyable<counting<postal_communicator>>);
static_assert(slamb::communicator<counting<counting<slamb::thread_communicator>>>);

/// One collective of each kind, with 12 floats a rank, but 5 in the broadcast.
template <class C>
void call_each_once(C& communicator) {
  const auto ranks = static_cast<std::size_t>(communicator.size());
  std::vector<float> values(12);
  std::vector<float> all(12 * ranks);
  communicator.all_reduce_sum(std::span<float>(values), host_stream{});
  communicator.broadcast(std::span<float>(values).first(5), 0, host_stream{});
  communicator.all_gather(std::span<const float>(values), std::span<float>(all), host_stream{});
  communicator.all_to_all(std::span<const float>(values), std::span<float>(values).first(12), host_stream{});
}

}  // namespace

TEST_CASE("counting_communicator: counts rounds, elements, payload and bytes sent by kind") {
  std::vector<traffic_counts> counts(4);
  slamb::run_ranks(4, [&](slamb::thread_communicator base) {
    counting<slamb::thread_communicator> communicator(std::move(base));
    std::vector<float> values(12);
    std::vector<double> sent(8);
    std::vector<double> received(8);
    std::vector<std::uint8_t> byte(1);
    std::vector<std::uint8_t> bytes(4);
    communicator.all_reduce_sum(std::span<float>(values), host_stream{});
    communicator.all_reduce_sum(std::span<double>(sent), host_stream{});
    communicator.broadcast(std::span<float>(values), 3, host_stream{});
    communicator.all_gather(std::span<const std::uint8_t>(byte), std::span<std::uint8_t>(bytes), host_stream{});
    communicator.all_to_all(std::span<const double>(sent), std::span<double>(received), host_stream{});
    communicator.all_to_all(std::span<const double>(sent), std::span<double>(received), host_stream{});
    counts[static_cast<std::size_t>(communicator.rank())] = communicator.counts();
  });
  for (const traffic_counts& count : counts) {
    CHECK(count[collective::all_reduce] == traffic{2, 12 + 8, 48 + 64, 2 * 36 + 2 * 48});
    CHECK(count[collective::broadcast] == traffic{1, 12, 48, 36});
    CHECK(count[collective::all_gather] == traffic{1, 4, 4, 3});
    CHECK(count[collective::all_to_all] == traffic{2, 16, 128, 96});
    CHECK(count.total() == traffic{6, 52, 292, 303});
  }
}

TEST_CASE("counting_communicator: a single rank sends nothing, but its payloads are counted") {
  counting<slamb::self_communicator> communicator;
  std::vector<float> values(12);
  communicator.all_reduce_sum(std::span<float>(values), host_stream{});
  CHECK(communicator.counts().total() == traffic{1, 12, 48, 0});
}

TEST_CASE("counting_communicator: empty payloads are rounds") {
  counting<slamb::self_communicator> communicator;
  communicator.all_reduce_sum(std::span<float>{}, host_stream{});
  CHECK(communicator.counts()[collective::all_reduce] == traffic{1, 0, 0, 0});
}

TEST_CASE("counting_communicator: reset sets all counts to zero") {
  counting<slamb::self_communicator> communicator;
  call_each_once(communicator);
  CHECK(communicator.counts().total().rounds == 4);
  communicator.reset();
  CHECK(communicator.counts().total() == traffic{});
  for (const auto kind :
       {collective::all_reduce, collective::all_gather, collective::all_to_all, collective::broadcast}) {
    CHECK(communicator.counts()[kind] == traffic{});
  }
}

TEST_CASE("counting_communicator: a move keeps the counts") {
  counting<slamb::self_communicator> communicator;
  call_each_once(communicator);
  const auto before = communicator.counts().total();
  const counting<slamb::self_communicator> moved(std::move(communicator));
  CHECK(moved.counts().total() == before);
}

TEST_CASE("counting_communicator: passes on the base's own stream, and wrapped() is the base") {
  counting<one_way_communicator> communicator;
  const std::vector<double> send{1.0, 2.0};
  std::vector<double> receive(2);
  communicator.all_to_all(std::span<const double>(send), std::span<double>(receive), ticket{7});
  CHECK(receive == send);
  CHECK(communicator.wrapped().last_ticket == 7);
  CHECK(std::as_const(communicator).wrapped().last_ticket == 7);
  communicator.wrapped().all_to_all(send, receive, ticket{8});
  CHECK(communicator.counts()[collective::all_to_all] == traffic{1, 2, 16, 0});
}

TEST_CASE("counting_communicator: a collective that throws is not counted") {
  slamb::thread_group group(2);
  group.inject({.rank = 1, .round = 2, .kind = slamb::thread_group::fault::kind_type::throws});
  std::vector<traffic_counts> counts(2);
  std::vector<int> failures(2);
  slamb::run_ranks(group, [&](slamb::thread_communicator base) {
    counting<slamb::thread_communicator> communicator(std::move(base));
    const auto me = static_cast<std::size_t>(communicator.rank());
    std::vector<float> values(6);
    for (int round = 0; round < 4; ++round) {
      try {
        communicator.all_reduce_sum(std::span<float>(values), host_stream{});
      } catch (const slamb::communicator_error&) {
        ++failures[me];
      }
    }
    counts[me] = communicator.counts();
  });
  for (std::size_t rank = 0; rank < 2; ++rank) {
    CHECK(failures[rank] == 2);
    CHECK(counts[rank].total() == traffic{2, 12, 48, 48});
  }
}

TEST_CASE("counting_communicator: works over a move-only communicator with facts of unusual types") {
  std::vector<traffic> totals(3);
  test_support::run_postal_ranks(3, [&](postal_communicator base) {
    counting<postal_communicator> communicator(std::move(base));
    std::vector<float> values(9, 1.0F);
    communicator.all_reduce_sum(std::span<float>(values), host_stream{});
    if (values == std::vector<float>(9, 3.0F)) {
      totals[static_cast<std::size_t>(communicator.rank())] = communicator.counts().total();
    }
  });
  for (const traffic& total : totals) CHECK(total == traffic{1, 9, 36, 48});
}

TEST_CASE("counting_communicator: nested ones count alike") {
  counting<counting<slamb::self_communicator>> communicator;
  call_each_once(communicator);
  CHECK(communicator.counts().total() == communicator.wrapped().counts().total());
  CHECK(communicator.counts().total().elements == 12 + 5 + 12 + 12);
}

}  // namespace communicator_counting_communicator_tests
