// Construction with Communicators that do not do what they should: all ranks throw, and name the fault.
#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "instances/emulated.hpp"
#include "slamb/detail/ranks/probe.hpp"
#include "slamb/slamb.hpp"
#include "support/faulty_training.hpp"
#include "support/thread_nodes.hpp"
#include "support/wrong_communicators.hpp"

namespace ranks_probe_tests {
namespace {

using slamb::thread_communicator;
using test_support::mistake;
using test_support::replica;
using test_support::wrong_communicator;

using ranks = slamb::any_communicator<>;
using lamb = slamb::lamb<ranks>;
using one_bit = slamb::one_bit_adam<ranks>;
using choosing_lamb = slamb::lamb<slamb::top_k, ranks>;

/// [rank] the message of the communicator_error that each rank's construction throws; empty if it throws none.
template <class Optimizer, class Backend>
std::vector<std::string> refusals(mistake what, int size, const Backend& backend) {
  std::vector<std::string> said(static_cast<std::size_t>(size));
  slamb::run_ranks(size, [&](thread_communicator communicator) {
    std::string& mine = said[static_cast<std::size_t>(communicator.rank())];
    replica some({{20}, {17, 1}}, std::vector<float>(37, 1.0F));
    try {
      const Optimizer run(some.parameters(), {}, ranks(wrong_communicator(std::move(communicator), what)), backend);
    } catch (const slamb::communicator_error& failure) {
      mine = failure.what();
    }
  });
  return said;
}
template <class Optimizer>
std::vector<std::string> refusals(mistake what, int size) {
  return refusals<Optimizer>(what, size, test_support::one_thread());
}

std::vector<std::string> on_all(std::size_t size, const std::string& sentence) {
  return std::vector<std::string>(size, sentence);
}

const std::string start = "slamb: a collective of this Communicator is wrong: ";

std::string rank_of(int rank, int size) { return "rank " + std::to_string(rank) + " of " + std::to_string(size); }

/// The message for a wrong sum.
/// @param is  "60, but the ranks' values add up to 120"
std::string wrong_sum(int element, const std::string& is, int rank, int size) {
  return start + rank_of(rank, size) + ": all_reduce_sum of " + std::to_string(4 * size + 3) + " floats: element " +
         std::to_string(element) + " is " + is + "; every rank's `values` must become their sum over ranks";
}
std::string adds_up(float found, float wanted) {
  return slamb::detail::to_text(found) + ", but the ranks' values add up to " + slamb::detail::to_text(wanted);
}

/// The sum that a constructor tries first, on this rank.
slamb::detail::probe tried_sum(int rank, int size) {
  return slamb::detail::probes({.rank = rank, .size = size}, 1)
      .add(slamb::detail::sums_on_trial({.rank = rank, .size = size}).front());
}
float tried_value(int rank, int size, std::size_t i) {
  return static_cast<float>(slamb::detail::term_of(tried_sum(rank, size), rank, i));
}
float first_sum(int size) {
  float sum = 0.0F;
  for (int rank = 0; rank < size; ++rank) sum += tried_value(rank, size, 0);
  return sum;
}

}  // namespace

TEST_CASE("probe: every optimizer accepts a correct Communicator, and nothing is counted") {
  for (const int size : {1, 2, 3, 5}) {
    CAPTURE(size);
    const auto nothing = std::vector<std::string>(static_cast<std::size_t>(size));
    CHECK(refusals<lamb>(mistake::none, size) == nothing);
    CHECK(refusals<one_bit>(mistake::none, size) == nothing);
    CHECK(refusals<choosing_lamb>(mistake::none, size) == nothing);
  }
  slamb::run_ranks(2, [](thread_communicator communicator) {
    replica some({{20}}, std::vector<float>(20, 1.0F));
    const one_bit run(some.parameters(), {}, ranks(std::move(communicator)), test_support::one_thread());
    CHECK(run.statistics().traffic.total() == slamb::traffic{});
  });
}

TEST_CASE("probe: each is called once, with two sums that report faults and two that compare settings") {
  CHECK(test_support::rounds_at_construction<lamb>() == 4);
  CHECK(test_support::rounds_at_construction<one_bit>() == 4 + 3);
  CHECK(test_support::rounds_at_construction<choosing_lamb>() == 4 + 2);
}

TEST_CASE("probe: sums that are means are found on all ranks") {
  for (const int size : {2, 4}) {
    const std::vector<std::string> said = refusals<lamb>(mistake::sum_is_mean, size);
    for (int rank = 0; rank < size; ++rank) {
      const float mean = first_sum(size) / static_cast<float>(size);
      CHECK(said[static_cast<std::size_t>(rank)] ==
            wrong_sum(0, adds_up(mean, first_sum(size)) + " (" + slamb::detail::to_text(mean) + " is their mean)", rank,
                      size));
    }
  }
}

TEST_CASE("probe: sums that lack ranks, elements or NaN are found on all ranks") {
  const std::vector<std::string> own = refusals<lamb>(mistake::sum_is_own, 3);
  for (int rank = 0; rank < 3; ++rank)
    CHECK(own[static_cast<std::size_t>(rank)] == wrong_sum(0, adds_up(tried_value(rank, 3, 0), first_sum(3)), rank, 3));

  // Rank 0 finds the fault, and the others learn it from rank 0.
  const float without_last = first_sum(3) - tried_value(2, 3, 0);
  CHECK(refusals<lamb>(mistake::sum_lacks_last_rank, 3) ==
        on_all(3, wrong_sum(0, adds_up(without_last, first_sum(3)), 0, 3)));

  const std::string nan =
      "0, but rank 1's value is NaN, so the sum must be NaN on all ranks, because a NaN makes all ranks skip a step "
      "that "
      "has overflowed";
  CHECK(refusals<lamb>(mistake::sum_turns_nan_to_zero, 2) ==
        std::vector{wrong_sum(5, nan, 0, 2), wrong_sum(5, nan, 1, 2)});

  for (const std::string& said : refusals<lamb>(mistake::sum_lacks_last_if_odd, 3))
    CHECK(said.find(": all_reduce_sum of 15 floats: element ") != std::string::npos);
}

TEST_CASE("probe: sums of fewer bits than settings and fingerprints have are found on all ranks") {
  const std::string exact = " (sums of such integers must be exact)";
  const auto check = [&](mistake what, int size, const std::string& found, int element, const std::string& wanted) {
    const std::vector<std::string> said = refusals<lamb>(what, size);
    for (int rank = 0; rank < size; ++rank)
      CHECK(said[static_cast<std::size_t>(rank)] ==
            wrong_sum(element, found + ", but the ranks' values add up to " + wanted, rank, size));
  };
  check(mistake::sum_in_bfloat16, 3, "568", 0, "570" + exact);
  check(mistake::sum_in_bfloat16, 5, "972", 0, "973" + exact);
  check(mistake::sum_in_float16, 2, "inf", 2, "65535");
  check(mistake::sum_is_clamped, 2, "60000", 2, "65535");
  for (const int size : {2, 3, 4, 5, 8, 16})
    for (const mistake what : {mistake::sum_in_bfloat16, mistake::sum_in_float16, mistake::sum_is_clamped}) {
      CAPTURE(size);
      for (const std::string& said : refusals<one_bit>(what, size))
        CHECK(said.find(": all_reduce_sum of " + std::to_string(4 * size + 3) + " floats: element ") !=
              std::string::npos);
    }
}

TEST_CASE("probe: the test integers add up exactly in any order, and use all bits that comparisons need") {
  for (const int size : {2, 3, 64, 300, 1000}) {
    CAPTURE(size);
    const std::size_t elements = tried_sum(0, size).call.count;
    std::uint64_t most = 0;
    std::vector<bool> has_told(static_cast<std::size_t>(size), false);  // a value of each rank has 16 significant bits
    bool is_integer = true;
    for (std::size_t i = 0; i < elements; ++i) {
      if (i == elements / 2) continue;  // NaN
      std::uint64_t sum = 0;
      for (int rank = 0; rank < size; ++rank) {
        const float x = tried_value(rank, size, i);
        is_integer &= x >= 0.0F && x == std::floor(x);
        sum += static_cast<std::uint64_t>(x);
        if (x > 32767.0F && static_cast<std::uint64_t>(x) % 2 == 1) has_told[static_cast<std::size_t>(rank)] = true;
      }
      most = std::max(most, sum);
    }
    CHECK(is_integer);
    CHECK(most <= std::uint64_t{1} << 24U);
    CHECK(most >= std::max(std::uint64_t{65281}, 255 * static_cast<std::uint64_t>(size)));
    CHECK(std::ranges::all_of(has_told, std::identity{}));
  }
  // Beyond the number of ranks whose headers are compared, sums are still exact.
  constexpr int many = 100'000;
  CHECK(tried_value(7, many, 1) <= 8.0F);
}

TEST_CASE("probe: an all_gather that is out of order or lacks ranks is found on all ranks") {
  const std::string rule = "; `all` must be every rank's `mine`, in rank order";
  CHECK(refusals<one_bit>(mistake::gather_reversed, 4) ==
        on_all(4, start + "rank 0 of 4: all_gather of 384 bytes: the place of rank 0 has rank 3's values" + rule));
  slamb::detail::probe gather = slamb::detail::bytes_on_trial({.rank = 0, .size = 2}, true, false)[1];
  gather.number = 1;
  const std::uint64_t sent = slamb::detail::value_of(gather, 1, 0);
  CHECK(refusals<one_bit>(mistake::gather_keeps_its_own_alone, 2) ==
        on_all(2, start + "rank 0 of 2: all_gather of 384 bytes: element 0 of the place of rank 1 is 0, but " +
                      std::to_string(sent) + " was sent" + rule));
  CHECK(refusals<one_bit>(mistake::gather_writes_its_source, 2) ==
        on_all(2, start + "rank 0 of 2: all_gather of 384 bytes: it has written to `mine`, which it may only read"));
  CHECK(refusals<lamb>(mistake::gather_reversed, 4) == std::vector<std::string>(4));  // this recipe does not call it
}

TEST_CASE("probe: an all_to_all that is transposed or swaps ranks is found on all ranks") {
  const std::string rule = "; chunk j of `receive` must be this rank's chunk of rank j's `send`";
  CHECK(refusals<one_bit>(mistake::exchange_keeps_its_own, 3) ==
        on_all(3, start +
                      "rank 0 of 3: all_to_all of 3 times 384 bytes: the place of rank 1 has rank 0's chunk 1 instead "
                      "of rank 1's chunk 0" +
                      rule));
  CHECK(refusals<one_bit>(mistake::exchange_swaps_ranks, 3) ==
        on_all(3, start +
                      "rank 0 of 3: all_to_all of 3 times 384 bytes: the place of rank 0 has rank 1's chunk 0 instead "
                      "of rank 0's chunk 0" +
                      rule));
  CHECK(refusals<choosing_lamb>(mistake::exchange_swaps_ranks, 3) == std::vector<std::string>(3));
}

TEST_CASE("probe: a broadcast that ignores its root, or does not reach all, is found on all ranks") {
  const std::string rule = "; every rank's `values` must become the `values` of `root`";
  CHECK(refusals<choosing_lamb>(mistake::broadcast_from_rank_0, 3) ==
        on_all(3, start + "rank 0 of 3: broadcast of 384 bytes from root 2: `values` has rank 0's values" + rule));
  CHECK(refusals<one_bit>(mistake::broadcast_from_rank_0, 3) == std::vector<std::string>(3));
}

TEST_CASE("probe: a fault on one rank is reported on ranks whose own results are right") {
  // It loses the last byte only in odd sizes, which messages of codes never have.
  CHECK(refusals<one_bit>(mistake::gather_lacks_last_byte_if_odd, 3) == std::vector<std::string>(3));

  std::vector<std::string> said(3);
  slamb::run_ranks(3, [&](thread_communicator communicator) {
    const int rank = communicator.rank();
    replica some({{20}}, std::vector<float>(20, 1.0F));
    const mistake what = rank == 1 ? mistake::gather_reversed : mistake::none;
    try {
      const one_bit run(some.parameters(), {}, ranks(wrong_communicator(std::move(communicator), what)),
                        test_support::one_thread());
    } catch (const slamb::communicator_error& failure) {
      said[static_cast<std::size_t>(rank)] = failure.what();
    }
  });
  CHECK(said ==
        on_all(3, start + "rank 1 of 3: all_gather of 384 bytes: the place of rank 0 has rank 2's values; `all` must "
                          "be every rank's `mine`, in rank order"));
}

TEST_CASE("probe: a rank whose sums are wrong leaves no other rank waiting") {
  // Rank 1 finds its sums wrong and leaves; rank 0 would wait for messages that never come.
  std::vector<std::string> said(2);
  const auto begin = std::chrono::steady_clock::now();
  slamb::run_ranks(2, [&](thread_communicator communicator) {
    const int rank = communicator.rank();
    replica some({{20}}, std::vector<float>(20, 1.0F));
    const mistake what = rank == 1 ? mistake::sum_is_own : mistake::none;
    try {
      const lamb run(some.parameters(), {}, ranks(wrong_communicator(std::move(communicator), what)),
                     test_support::one_thread());
    } catch (const slamb::communicator_error& failure) {
      said[static_cast<std::size_t>(rank)] = failure.what();
    }
  });
  for (const std::string& sentence : said)
    CHECK(sentence.find(start + "rank 1 of 2: all_reduce_sum of 11 floats: ") != std::string::npos);
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(25));  // below the timeout of 30 s
}

TEST_CASE("probe: a report that wrong sums have altered is no report, and its rank is named") {
  using slamb::detail::probe_finding;
  slamb::detail::probes mine({.rank = 0, .size = 4}, 1);
  for (const slamb::detail::probe& next : slamb::detail::bytes_on_trial({.rank = 0, .size = 4}, true, true))
    mine.add(next);
  constexpr probe_finding fault{.kind = probe_finding::other_chunk, .call = 0, .slot = 2, .first = 1, .second = 0};
  // The sentence of rank 3, if the numbers of its finding have become those that `alter` returns.
  const auto said = [&](auto alter) {
    const auto sum = [&](std::span<float> table) {
      for (std::size_t i = 0; i < probe_finding::numbers; ++i)
        table[3 * probe_finding::numbers + i] = alter(static_cast<float>(slamb::detail::to_numbers(fault)[i]));
    };
    return mine.of_all({0, 4, sum})[3];
  };
  CHECK(
      said([](float x) { return x; }) ==
      std::vector<std::string>{
          "rank 3 of 4: all_to_all of 4 times 384 bytes: the place of rank 2 has rank 1's chunk 0 instead of rank 2's "
          "chunk 3; chunk j of `receive` must be this rank's chunk of rank j's `send`"});
  const std::vector<std::string> unclear{
      "rank 3 of 4: has found mistakes, but cannot report them because sums are wrong"};
  CHECK(said([](float x) { return x / 4.0F; }) == unclear);
  CHECK(said([](float x) { return 2.0F * x; }) == unclear);
  CHECK(said([](float x) { return x + 1.0F; }) == unclear);
  CHECK(said([](float) { return std::numeric_limits<float>::quiet_NaN(); }) == unclear);
  CHECK(said([](float) { return 0.0F; }).empty());
}

TEST_CASE("probe: findings of any place, element and bits are whole after a sum") {
  using slamb::detail::probe_finding;
  constexpr std::uint64_t all = std::numeric_limits<std::uint64_t>::max();
  for (const probe_finding& one :
       {probe_finding{}, probe_finding{probe_finding::wrong_element, 65535, 99'999, all, all},
        probe_finding{probe_finding::others, 0, 0, 1, 0}, probe_finding{probe_finding::wrong_element, 3, 0, 0, 1}}) {
    const auto numbers = slamb::detail::to_numbers(one);
    CHECK(*std::ranges::max_element(numbers) < std::uint64_t{1} << 24U);
    const auto same = slamb::detail::finding_of(numbers, 65536);
    REQUIRE(same.has_value());
    CHECK(same->kind == one.kind);
    CHECK(slamb::detail::to_numbers(*same) == numbers);
    CHECK(same->first == one.first);
    CHECK(same->second == one.second);
  }
  const probe_finding of_no_call{.kind = probe_finding::wrong_element, .call = 7};
  CHECK(!slamb::detail::finding_of(slamb::detail::to_numbers(of_no_call), 7).has_value());
}

TEST_CASE("probe: elements of all types, as they lie in memory") {
  const auto tried = [](const slamb::detail::collective_call& call) {
    slamb::detail::probes mine({.rank = 1, .size = 2}, 1);
    const slamb::detail::probe p = mine.add({.call = call, .margin = 3});
    std::vector<std::byte> memory(p.bytes());
    slamb::detail::fill(p, memory);
    const std::span<std::byte> sent = p.sent_in(std::span(memory));
    CHECK(slamb::detail::first_altered(p, sent, 1, 0) == p.call.count);
    sent[0] ^= std::byte{1};
    CHECK(slamb::detail::first_altered(p, sent, 1, 0) == 0);
    return slamb::detail::value_of(p, 1, 0);
  };
  constexpr auto gather = slamb::collective::all_gather;
  CHECK(std::fabs(std::bit_cast<double>(tried(slamb::detail::call_of<double>(gather, 5)))) >= 1.0);
  CHECK(tried(slamb::detail::call_of<std::uint8_t>(gather, 5)) < 256);
  CHECK(tried(slamb::detail::call_of<std::int16_t>(gather, 5)) < 65536);
  CHECK(tried(slamb::detail::call_of<std::uint64_t>(gather, 5)) > 0xFFFFFFFFU);
}

TEST_CASE("probe: on a device they use the backend's memory") {
  using backend = slamb::emulated_backend;
  using device_one_bit = slamb::one_bit_adam<ranks, slamb::sign, backend>;
  CHECK(refusals<device_one_bit>(mistake::none, 2, backend{}) == std::vector<std::string>(2));
  CHECK(refusals<device_one_bit>(mistake::gather_reversed, 2, backend{}) ==
        on_all(2, start +
                      "rank 0 of 2: all_gather of 384 bytes: the place of rank 0 has rank 1's values; `all` must be "
                      "every rank's `mine`, in rank order"));
  const std::vector<std::string> said = refusals<device_one_bit>(mistake::sum_is_mean, 2, backend{});
  CHECK(said[0].find(" is their mean)") != std::string::npos);
  CHECK(said[1].find(" is their mean)") != std::string::npos);
}

namespace {

using wrong_nodes = slamb::hierarchical_communicator<wrong_communicator, wrong_communicator>;

/// [rank] the exceptions on two nodes of two ranks.
template <class Optimizer>
std::vector<std::string> refusals_of_nodes(mistake in_node, mistake between) {
  std::vector<std::string> said(4);
  slamb::thread_group node[2] = {slamb::thread_group(2), slamb::thread_group(2)};
  slamb::thread_group others[2] = {slamb::thread_group(2), slamb::thread_group(2)};
  slamb::run_ranks(4, [&](const thread_communicator& thread) {
    const int at = thread.rank() / 2, local = thread.rank() % 2;
    replica some({{20}}, std::vector<float>(20, 1.0F));
    try {
      const Optimizer run(
          some.parameters(), {},
          wrong_nodes({node[at].communicator(local), in_node}, {others[local].communicator(at), between}),
          test_support::one_thread());
    } catch (const slamb::error& failure) {
      said[static_cast<std::size_t>(thread.rank())] = failure.what();
    }
  });
  return said;
}

}  // namespace

TEST_CASE("probe: ranks that are nodes test both of their parts") {
  using nodes_lamb = slamb::lamb<wrong_nodes>;
  using nodes_one_bit = slamb::one_bit_adam<wrong_nodes>;
  CHECK(refusals_of_nodes<nodes_lamb>(mistake::none, mistake::none) == std::vector<std::string>(4));
  CHECK(refusals_of_nodes<nodes_one_bit>(mistake::none, mistake::none) == std::vector<std::string>(4));
  for (const std::string& said : refusals_of_nodes<nodes_lamb>(mistake::sum_lacks_last_if_odd, mistake::none)) {
    CHECK(said.find(": all_reduce_in_node of 11 floats: element ") != std::string::npos);
    CHECK(said.find("; every rank's `values` must become their sum over the ranks of its node") != std::string::npos);
  }
  for (const std::string& said : refusals_of_nodes<nodes_lamb>(mistake::none, mistake::sum_lacks_last_if_odd))
    CHECK(said.find(": all_reduce_sum of 11 floats: element ") != std::string::npos);
  CHECK(refusals_of_nodes<nodes_one_bit>(mistake::none, mistake::gather_reversed) ==
        on_all(4, start + "rank 0 of 2, local rank 0 of 2: all_gather of 384 bytes: the place of rank 0 has rank 1's "
                          "values; `all` must be every rank's `mine`, in rank order"));
  // Sums that are means do not count ranks, so nodes cannot be compared.
  for (const std::string& said : refusals_of_nodes<nodes_lamb>(mistake::sum_is_mean, mistake::none))
    CHECK(said.find("and check that collectives within a node and between nodes sum over all their ranks") !=
          std::string::npos);
}

}  // namespace ranks_probe_tests
