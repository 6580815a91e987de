// Construction with Communicators that do not do what they should: all ranks throw, and name the fault.
#include <doctest/doctest.h>

#include <algorithm>
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
#include "slamb/slamb.hpp"
#include "support/faulty_training.hpp"
#include "support/thread_nodes.hpp"
#include "support/wrong_communicators.hpp"

namespace exchange_tried_collectives_tests {
namespace {

using slamb::thread_communicator;
using test_support::mistake;
using test_support::replica;
using test_support::wrong_communicator;

using ranks = slamb::any_communicator<>;
using lamb = slamb::lamb<ranks>;
using one_bit = slamb::one_bit_adam<ranks>;
using choosing_lamb =
    slamb::basic_lamb<slamb::top_k, slamb::residual<>, slamb::layerwise_trust_ratio, ranks, slamb::host_backend>;

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

/// The message for a wrong sum, of the first element.
std::string wrong_sum(const std::string& found, int rank, int size, const std::string& wanted) {
  return "slamb: the Communicator's all_reduce_sum returned " + found + " as element 0 on rank " +
         std::to_string(rank) + " of " + std::to_string(size) + ", where the ranks' values add up to " + wanted +
         "; every rank's `values` must become their sum over ranks";
}

std::string text(float x) { return slamb::detail::float_to_text(x); }

float tried_sum(int size) {
  float sum = 0.0F;
  for (int rank = 0; rank < size; ++rank) sum += slamb::detail::tried_value(rank, size, 0);
  return sum;
}

}  // namespace

TEST_CASE("tried_collectives: every optimizer accepts a correct Communicator, and nothing is counted") {
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

TEST_CASE("tried_collectives: each is called once, with two sums that report faults and two that compare settings") {
  CHECK(test_support::rounds_at_construction<lamb>() == 4);
  CHECK(test_support::rounds_at_construction<one_bit>() == 4 + 3);
  CHECK(test_support::rounds_at_construction<choosing_lamb>() == 4 + 2);
}

TEST_CASE("tried_collectives: sums that are means are found on all ranks") {
  for (const int size : {2, 4}) {
    const std::vector<std::string> said = refusals<lamb>(mistake::sum_is_mean, size);
    for (int rank = 0; rank < size; ++rank) {
      const std::string mean = text(tried_sum(size) / static_cast<float>(size));
      CHECK(said[static_cast<std::size_t>(rank)] ==
            wrong_sum(mean, rank, size, text(tried_sum(size)) + " (" + mean + " is their mean)"));
    }
  }
}

TEST_CASE("tried_collectives: sums that lack ranks, elements or NaN are found on all ranks") {
  const std::vector<std::string> own = refusals<lamb>(mistake::sum_is_own, 3);
  for (int rank = 0; rank < 3; ++rank)
    CHECK(own[static_cast<std::size_t>(rank)] ==
          wrong_sum(text(slamb::detail::tried_value(rank, 3, 0)), rank, 3, text(tried_sum(3))));

  // Rank 0 finds the fault, and the others learn it from rank 0.
  const float without_last = tried_sum(3) - slamb::detail::tried_value(2, 3, 0);
  CHECK(refusals<lamb>(mistake::sum_lacks_last_rank, 3) ==
        on_all(3, wrong_sum(text(without_last), 0, 3, text(tried_sum(3)))));

  const std::string nan =
      " of 2, where one rank's value is NaN; the sum must then be NaN on all ranks, because a NaN makes all ranks skip "
      "a step that has overflowed";
  CHECK(refusals<lamb>(mistake::sum_turns_nan_to_zero, 2) ==
        std::vector{"slamb: the Communicator's all_reduce_sum returned 0 as element 5 on rank 0" + nan,
                    "slamb: the Communicator's all_reduce_sum returned 0 as element 5 on rank 1" + nan});

  for (const std::string& said : refusals<lamb>(mistake::sum_lacks_last_if_odd, 3))
    CHECK(said.find("slamb: the Communicator's all_reduce_sum returned ") == 0);
}

TEST_CASE("tried_collectives: sums of fewer bits than settings and fingerprints have are found on all ranks") {
  const auto sentence = [](const std::string& found, int element, int rank, int size, const std::string& wanted) {
    return "slamb: the Communicator's all_reduce_sum returned " + found + " as element " + std::to_string(element) +
           " on rank " + std::to_string(rank) + " of " + std::to_string(size) + ", where the ranks' values add up to " +
           wanted + "; every rank's `values` must become their sum over ranks";
  };
  const std::string exact = " (sums of such integers must be exact)";
  const auto check = [&](mistake what, int size, const std::string& found, int element, const std::string& wanted) {
    const std::vector<std::string> said = refusals<lamb>(what, size);
    for (int rank = 0; rank < size; ++rank)
      CHECK(said[static_cast<std::size_t>(rank)] == sentence(found, element, rank, size, wanted));
  };
  check(mistake::sum_in_bfloat16, 3, "568", 0, "570" + exact);
  check(mistake::sum_in_bfloat16, 5, "972", 0, "973" + exact);
  check(mistake::sum_in_float16, 2, "inf", 2, "65535");
  check(mistake::sum_is_clamped, 2, "60000", 2, "65535");
  for (const int size : {2, 3, 4, 5, 8, 16})
    for (const mistake what : {mistake::sum_in_bfloat16, mistake::sum_in_float16, mistake::sum_is_clamped}) {
      CAPTURE(size);
      for (const std::string& said : refusals<one_bit>(what, size))
        CHECK(said.find("slamb: the Communicator's all_reduce_sum returned ") == 0);
    }
}

TEST_CASE("tried_collectives: the test integers add up exactly in any order, and use all bits that comparisons need") {
  for (const int size : {2, 3, 64, 300, 1000}) {
    CAPTURE(size);
    const std::size_t elements = slamb::detail::tried_elements(size);
    std::uint64_t most = 0;
    std::vector<bool> has_told(static_cast<std::size_t>(size), false);  // a value of each rank has 16 significant bits
    bool is_integer = true;
    for (std::size_t i = 0; i < elements; ++i) {
      if (i == slamb::detail::tried_nan(size)) continue;
      std::uint64_t sum = 0;
      for (int rank = 0; rank < size; ++rank) {
        const float x = slamb::detail::tried_value(rank, size, i);
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
  CHECK(slamb::detail::tried_value(7, many, 1) <= 8.0F);
}

TEST_CASE("tried_collectives: an all_gather that is out of order or lacks ranks is found on all ranks") {
  const std::string rule = "; `all` must be every rank's `mine`, in rank order";
  CHECK(refusals<one_bit>(mistake::gather_reversed, 4) ==
        on_all(4,
               "slamb: the Communicator's all_gather returned rank 3's `mine` in the place of rank 0's `mine` on "
               "rank 0 of 4" +
                   rule));
  CHECK(refusals<one_bit>(mistake::gather_keeps_its_own_alone, 2) ==
        on_all(2,
               "slamb: the Communicator's all_gather returned rank 1's `mine` with a wrong byte 0 on "
               "rank 0 of 2" +
                   rule));
  CHECK(refusals<lamb>(mistake::gather_reversed, 4) == std::vector<std::string>(4));  // this recipe does not call it
}

TEST_CASE("tried_collectives: an all_to_all that is transposed or swaps ranks is found on all ranks") {
  const std::string rule = "; chunk j of `receive` must be this rank's chunk of rank j's `send`";
  CHECK(refusals<one_bit>(mistake::exchange_keeps_its_own, 3) ==
        on_all(3,
               "slamb: the Communicator's all_to_all returned rank 0's chunk 1 in the place of rank 1's chunk 0 on "
               "rank 0 of 3" +
                   rule));
  CHECK(refusals<one_bit>(mistake::exchange_swaps_ranks, 3) ==
        on_all(3,
               "slamb: the Communicator's all_to_all returned rank 1's chunk 0 in the place of rank 0's chunk 0 on "
               "rank 0 of 3" +
                   rule));
  CHECK(refusals<choosing_lamb>(mistake::exchange_swaps_ranks, 3) == std::vector<std::string>(3));
}

TEST_CASE("tried_collectives: a broadcast that ignores its root, or does not reach all, is found on all ranks") {
  const std::string rule = "; every rank's `values` must become the `values` of `root`";
  CHECK(refusals<choosing_lamb>(mistake::broadcast_from_rank_0, 3) ==
        on_all(3, "slamb: the Communicator's broadcast from root 2 left rank 0's `values` on rank 0 of 3" + rule));
  CHECK(refusals<one_bit>(mistake::broadcast_from_rank_0, 3) == std::vector<std::string>(3));
}

TEST_CASE("tried_collectives: a fault on one rank is reported on ranks whose own results are right") {
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
  CHECK(said == on_all(3,
                       "slamb: the Communicator's all_gather returned rank 2's `mine` in the place of rank 0's "
                       "`mine` on rank 1 of 3; `all` must be every rank's `mine`, in rank order"));
}

TEST_CASE("tried_collectives: a rank whose sums are wrong leaves no other rank waiting") {
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
  for (const std::string& sentence : said) CHECK(sentence.find(" on rank 1 of 2, where ") != std::string::npos);
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(25));  // below the timeout of 30 s
}

TEST_CASE("tried_collectives: a report that wrong sums have altered counts as a fault of the sums") {
  using slamb::detail::collective_fault;
  const collective_fault fault{
      .of = collective_fault::all_to_all, .rank = 3, .size = 4, .place = 2, .from = 1, .chunk = 1};
  const auto said = [](const collective_fault& f) { return slamb::detail::to_text(f); };
  auto numbers = fault.to_numbers();
  CHECK(said(collective_fault::of_numbers(numbers, 3, 4)) == said(fault));
  const std::string unclear =
      "slamb: the Communicator's all_reduce_sum returned wrong sums on rank 3 of 4; every rank's `values` must become "
      "their sum over ranks";
  for (float& x : numbers) x /= 4.0F;
  CHECK(said(collective_fault::of_numbers(numbers, 3, 4)) == unclear);
  numbers.fill(std::numeric_limits<float>::quiet_NaN());
  CHECK(said(collective_fault::of_numbers(numbers, 3, 4)) == unclear);
}

TEST_CASE("tried_collectives: on a device they use the backend's memory") {
  using backend = slamb::emulated_backend;
  using device_one_bit = slamb::one_bit_adam<ranks, slamb::sign, backend>;
  CHECK(refusals<device_one_bit>(mistake::none, 2, backend{}) == std::vector<std::string>(2));
  CHECK(refusals<device_one_bit>(mistake::gather_reversed, 2, backend{}) ==
        on_all(2,
               "slamb: the Communicator's all_gather returned rank 1's `mine` in the place of rank 0's `mine` on "
               "rank 0 of 2; `all` must be every rank's `mine`, in rank order"));
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

TEST_CASE("tried_collectives: ranks that are nodes test both of their parts") {
  using nodes_lamb = slamb::lamb<wrong_nodes>;
  using nodes_one_bit = slamb::one_bit_adam<wrong_nodes>;
  CHECK(refusals_of_nodes<nodes_lamb>(mistake::none, mistake::none) == std::vector<std::string>(4));
  CHECK(refusals_of_nodes<nodes_one_bit>(mistake::none, mistake::none) == std::vector<std::string>(4));
  for (const std::string& said : refusals_of_nodes<nodes_lamb>(mistake::sum_lacks_last_if_odd, mistake::none)) {
    CHECK(said.find("slamb: the Communicator's all_reduce_in_node returned ") == 0);
    CHECK(said.find("in its node, where the ranks' values add up to ") != std::string::npos);
  }
  for (const std::string& said : refusals_of_nodes<nodes_lamb>(mistake::none, mistake::sum_lacks_last_if_odd))
    CHECK(said.find("slamb: the Communicator's all_reduce_sum returned ") == 0);
  CHECK(refusals_of_nodes<nodes_one_bit>(mistake::none, mistake::gather_reversed) ==
        on_all(4,
               "slamb: the Communicator's all_gather returned rank 1's `mine` in the place of rank 0's `mine` on "
               "rank 0 of 2; `all` must be every rank's `mine`, in rank order"));
  // Sums that are means do not count ranks, so nodes cannot be compared.
  for (const std::string& said : refusals_of_nodes<nodes_lamb>(mistake::sum_is_mean, mistake::none))
    CHECK(said.find("and check that collectives within a node and between nodes sum over all their ranks") !=
          std::string::npos);
}

}  // namespace exchange_tried_collectives_tests
