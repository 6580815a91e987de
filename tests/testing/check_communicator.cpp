// The conformance suite for users: it accepts correct communicators, and finds each mistake on every rank and names it.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <set>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "slamb/backend/cuda/emulated_backend.hpp"
#include "slamb/backend/host/host_backend.hpp"
#include "slamb/communicator/any_communicator.hpp"
#include "slamb/communicator/counting_communicator.hpp"
#include "slamb/communicator/hierarchical_communicator.hpp"
#include "slamb/communicator/run_ranks.hpp"
#include "slamb/communicator/self_communicator.hpp"
#include "slamb/communicator/sharded_communicator.hpp"
#include "slamb/testing/check_communicator.hpp"
#include "support/archetype_communicators.hpp"
#include "support/deferred_backend.hpp"
#include "support/thread_nodes.hpp"
#include "support/wrong_communicators.hpp"

namespace testing_check_communicator_tests {
namespace {

using slamb::check_communicator;
using slamb::communicator_check;
using slamb::thread_communicator;
using test_support::mistake;
using test_support::wrong_communicator;

constexpr communicator_check small{.large = 3001};

/// The message of the communicator_error that a check throws; empty if it throws none.
template <class C>
std::string complaint_of(C& communicator, const communicator_check& how = small) {
  try {
    check_communicator(communicator, how);
  } catch (const slamb::communicator_error& failure) {
    return failure.what();
  }
  return {};
}

/// [rank] the messages of ranks whose communicators are made by make(thread_communicator).
template <class Make>
std::vector<std::string> complaints(int size, const Make& make, const communicator_check& how = small) {
  std::vector<std::string> said(static_cast<std::size_t>(size));
  slamb::run_ranks(size, [&](thread_communicator base) {
    const auto rank = static_cast<std::size_t>(base.rank());
    auto communicator = make(std::move(base));
    said[rank] = complaint_of(communicator, how);
  });
  return said;
}
std::vector<std::string> complaints(mistake what, int size, const communicator_check& how = small) {
  return complaints(
      size, [what](thread_communicator base) { return wrong_communicator(std::move(base), what); }, how);
}

/// Its sums have 16 bits besides the exponent, as a wire format may.
class narrow_communicator {
 public:
  explicit narrow_communicator(thread_communicator base) : base_(std::move(base)) {}

  int rank() const { return base_.rank(); }
  int size() const { return base_.size(); }
  void all_reduce_sum(std::span<float> values, slamb::host_stream stream) {
    base_.all_reduce_sum(values, stream);
    for (float& x : values) x = std::bit_cast<float>((std::bit_cast<std::uint32_t>(x) + 0x80U) & 0xFFFFFF00U);
  }

 private:
  thread_communicator base_;
};

}  // namespace

TEST_CASE("check_communicator: correct communicators pass, with all optional functions") {
  slamb::self_communicator alone;
  CHECK(complaint_of(alone) == "");
  for (const int size : {1, 2, 3, 5}) {
    CAPTURE(size);
    const std::vector<std::string> nothing(static_cast<std::size_t>(size));
    CHECK(complaints(size, [](thread_communicator base) { return base; }) == nothing);
    CHECK(complaints(mistake::none, size) == nothing);
    CHECK(complaints(size, [](thread_communicator base) { return slamb::any_communicator<>(std::move(base)); }) ==
          nothing);
  }
  slamb::run_ranks(3, [](thread_communicator communicator) {
    CHECK_NOTHROW(check_communicator<double, std::int32_t, std::uint8_t>(communicator, small));
  });
  // The suite checks all collectives: sums, exchanges, gathers and broadcasts were called.
  slamb::run_ranks(2, [](thread_communicator base) {
    slamb::counting_communicator<thread_communicator> counted(std::move(base));
    CHECK_NOTHROW(check_communicator(counted, small));
    for (const slamb::collective kind : {slamb::collective::all_reduce, slamb::collective::all_gather,
                                         slamb::collective::all_to_all, slamb::collective::broadcast})
      CHECK(counted.counts()[kind].rounds >= 15);
  });
  test_support::run_postal_ranks(3, [](test_support::postal_communicator communicator) {
    CHECK(complaint_of(communicator) == "");
    slamb::any_communicator<> holding(std::move(communicator));  // it has no collective of bytes
    CHECK(complaint_of(holding) == "");
  });
}

TEST_CASE("check_communicator: ranks that are nodes pass, but not with a wrong part") {
  test_support::thread_nodes({2, 2}).run([](test_support::nodes_of_threads communicator, std::size_t /*rank*/) {
    CHECK(complaint_of(communicator) == "");
  });

  using wrong_nodes = slamb::hierarchical_communicator<wrong_communicator, wrong_communicator>;
  const auto said_by = [](mistake in_node, mistake inter_node) {
    std::array<slamb::thread_group, 2> node{slamb::thread_group(2), slamb::thread_group(2)};
    std::array<slamb::thread_group, 2> others{slamb::thread_group(2), slamb::thread_group(2)};
    std::vector<std::string> said(4);
    slamb::run_ranks(4, [&](const thread_communicator& thread) {
      const int at = thread.rank() / 2, local = thread.rank() % 2;
      wrong_nodes communicator({node[static_cast<std::size_t>(at)].communicator(local), in_node},
                               {others[static_cast<std::size_t>(local)].communicator(at), inter_node});
      said[static_cast<std::size_t>(thread.rank())] = complaint_of(communicator);
    });
    return said;
  };
  for (const std::string& said : said_by(mistake::sum_lacks_last_if_odd, mistake::none))
    CHECK(said.find("all_reduce_in_node of 15 floats: element 14 is ") != std::string::npos);
  for (const std::string& said : said_by(mistake::none, mistake::gather_reversed))
    CHECK(
        said.find("rank 1 of 2, local rank 1 of 2: all_gather of 15 bytes: the place of rank 0 has rank 1's values") !=
        std::string::npos);
}

TEST_CASE("check_communicator: shard groups pass, but not with a wrong part") {
  using wrong_shards = slamb::sharded_communicator<wrong_communicator, wrong_communicator>;
  const auto said_by = [](mistake in_exchange, mistake in_shards) {
    std::array<slamb::thread_group, 2> shards{slamb::thread_group(3), slamb::thread_group(3)};
    std::array<slamb::thread_group, 3> exchange{slamb::thread_group(2), slamb::thread_group(2), slamb::thread_group(2)};
    std::vector<std::string> said(6);
    slamb::run_ranks(6, [&](const thread_communicator& thread) {
      const int group = thread.rank() / 3, shard = thread.rank() % 3;
      wrong_shards communicator({exchange[static_cast<std::size_t>(shard)].communicator(group), in_exchange},
                                {shards[static_cast<std::size_t>(group)].communicator(shard), in_shards});
      said[static_cast<std::size_t>(thread.rank())] = complaint_of(communicator);
    });
    return said;
  };
  CHECK(said_by(mistake::none, mistake::none) == std::vector<std::string>(6));
  for (const std::string& said : said_by(mistake::sum_lacks_last_if_odd, mistake::none))
    CHECK(said.find("all_reduce_sum of 15 floats: element 14 is ") != std::string::npos);
  for (const std::string& said : said_by(mistake::none, mistake::sum_lacks_last_if_odd))
    CHECK(said.find(" of 3: all_reduce_sum of 15 floats: element 14 is ") != std::string::npos);
  for (const std::string& said : said_by(mistake::none, mistake::gather_reversed))
    CHECK(said.find("shard rank 1 of 3: all_gather of 15 bytes: the place of rank 0 has rank 2's values") !=
          std::string::npos);

  // Groups of different sizes.
  std::array<slamb::thread_group, 2> shards{slamb::thread_group(1), slamb::thread_group(2)};
  std::array<slamb::thread_group, 2> exchange{slamb::thread_group(2), slamb::thread_group(1)};
  slamb::run_ranks(3, [&](const thread_communicator& thread) {
    const int group = thread.rank() == 0 ? 0 : 1, shard = thread.rank() == 2 ? 1 : 0;
    wrong_shards communicator(
        {exchange[static_cast<std::size_t>(shard)].communicator(shard == 1 ? 0 : group), mistake::none},
        {shards[static_cast<std::size_t>(group)].communicator(shard), mistake::none});
    if (shard == 1) return;
    const std::string said = complaint_of(communicator);
    CHECK(said.find("shard_size() is " + std::to_string(group + 1) + " here, but another rank has another value") !=
          std::string::npos);
  });
}

TEST_CASE("check_communicator: finds and names each mistake, on every rank") {
  struct expected {
    mistake what;
    std::string says;
    bool says_all_the_same = true;  ///< false: each rank whose own sums are wrong has a message of its own
  };
  const std::vector<expected> all{
      {mistake::sum_is_mean, "all_reduce_sum of 1 float: element 0 is ", false},
      {mistake::sum_is_own, "all_reduce_sum of 1 float: element 0 is ", false},
      {mistake::sum_lacks_last_rank, "rank 0 of 3: all_reduce_sum of 1 float: element 0 is ", false},
      {mistake::sum_lacks_last_if_odd, "all_reduce_sum of 15 floats: element 14 is ", false},
      {mistake::sum_lacks_last_if_many, "all_reduce_sum of 1000 floats: element 999 is ", false},
      {mistake::sum_turns_nan_to_zero,
       "rank 2 of 3: all_reduce_sum of 1 float: element 0 is 0, but rank 0's value is NaN, so the sum must be NaN"},
      {mistake::sum_turns_infinity_to_largest,
       "rank 1 of 3: all_reduce_sum of 1 float: element 0 is 3e+38, but rank 0's value is infinite, so the sum must be "
       "infinite or NaN"},
      {mistake::sum_has_bits_of_its_own,
       "rank 2 of 3: all_reduce_sum of 1 float: the sums have other bits than on rank 0"},
      {mistake::sum_writes_past_end,
       "rank 0 of 3: all_reduce_sum of 1000 floats: it has written behind the last element of `values`"},
      {mistake::sum_is_stale, "all_reduce_sum of 100 floats: element 0 is "},
      {mistake::gather_reversed, "rank 0 of 3: all_gather of 15 bytes: the place of rank 0 has rank 2's values"},
      {mistake::gather_lacks_last_byte_if_odd,
       "rank 1 of 3: all_gather of 15 bytes: element 14 of the place of rank 2 is 0, but "},
      {mistake::gather_writes_its_source,
       "rank 1 of 3: all_gather of 15 bytes: it has written to `mine`, which it may only read"},
      {mistake::gather_keeps_its_own_alone,
       "rank 2 of 3: all_gather of 15 bytes: element 0 of the place of rank 0 is 0, but "},
      {mistake::gather_is_stale,
       "rank 0 of 3: all_gather of 384 bytes: the place of rank 0 has the values of an earlier call"},
      {mistake::exchange_keeps_its_own,
       "rank 0 of 3: all_to_all of 3 times 15 bytes: the place of rank 1 has rank 0's chunk 1"},
      {mistake::exchange_swaps_ranks,
       "rank 2 of 3: all_to_all of 3 times 15 bytes: the place of rank 0 has rank 1's chunk 2"},
      {mistake::exchange_writes_before_start,
       "rank 0 of 3: all_to_all of 3 times 1 byte: it has written before the first element of `receive`"},
      {mistake::exchange_writes_late,
       "rank 0 of 3: all_to_all of 3 times 384 bytes: it has written to `receive` after it had returned"},
      {mistake::exchange_of_one_thread,
       "rank 0 of 3: all_to_all of 3 times 17 bytes: element 0 of the place of rank 0 is 165, but "},
      {mistake::broadcast_from_rank_0, "rank 1 of 3: broadcast of 15 bytes from root 2: `values` has rank 0's values"},
      {mistake::broadcast_lacks_last_from_rank_0,
       "rank 1 of 3: broadcast of 1000 bytes from root 0: element 999 of `values` is 0, but "},
      {mistake::broadcast_not_to_last_rank,
       "rank 2 of 3: broadcast of 15 bytes from root 0: `values` has rank 2's values"},
  };
  for (const expected& one : all) {
    CAPTURE(one.says);
    const std::vector<std::string> said = complaints(one.what, 3);
    for (const std::string& sentence : said) {
      CAPTURE(sentence);
      CHECK(sentence.find("slamb: check_communicator has found mistakes in this Communicator:\n  rank ") == 0);
      CHECK(sentence.find(one.says) != std::string::npos);
    }
    if (one.says_all_the_same) CHECK((said[0] == said[1] && said[1] == said[2]));
  }
}

TEST_CASE("check_communicator: a mistake of one rank is reported on all ranks, with every mistake that it found") {
  const std::vector<std::string> own = complaints(3, [](thread_communicator base) {
    const mistake what = base.rank() == 1 ? mistake::gather_reversed : mistake::none;
    return wrong_communicator(std::move(base), what);
  });
  CHECK(own[0] == own[1]);
  CHECK(own[0] == own[2]);
  CHECK(own[0].find("\n  rank 1 of 3: all_gather of 15 bytes: ") != std::string::npos);
  CHECK(own[0].find("\n  rank 1 of 3: and ") != std::string::npos);  // not on all of them
  CHECK(own[0].find("rank 0 of 3") == std::string::npos);
}

TEST_CASE("check_communicator: a rank reports when wrong sums prevent it from naming its mistakes") {
  for (const std::string& sentence : complaints(mistake::sum_is_mean, 2))
    CHECK(sentence.find(": has found mistakes, but cannot report them because sums are wrong") != std::string::npos);
}

TEST_CASE("check_communicator: tests sizes up to the largest") {
  const communicator_check without_many{.large = 5};
  // Sums of 1000 and 1001 elements are tried with any options.
  CHECK(complaints(mistake::sum_lacks_last_if_many, 2, without_many)[0].find("1000 floats") != std::string::npos);
  slamb::run_ranks(2, [](thread_communicator base) {
    slamb::counting_communicator<thread_communicator> counted(std::move(base));
    check_communicator(counted, {.large = 20'001});
    CHECK(counted.counts()[slamb::collective::all_to_all].payload_bytes > 2 * 20'001);
  });
}

TEST_CASE("check_communicator: a wire format of fewer bits passes only if it is declared") {
  const auto narrow = [](thread_communicator base) { return narrow_communicator(std::move(base)); };
  CHECK(complaints(2, narrow)[0].find(", but the ranks' values add up to ") != std::string::npos);
  CHECK(complaints(2, narrow, {.large = 3001, .wire_error = 1e-4}) == std::vector<std::string>(2));
  slamb::self_communicator alone;
  for (const double wrong : {-0.1, 0.2})
    CHECK_THROWS_AS(check_communicator(alone, {.wire_error = wrong}), std::invalid_argument);
}

namespace {

struct misplaced {
  static int rank() { return 2; }
  static int size() { return 2; }
  void all_reduce_sum(std::span<float> /*values*/, slamb::host_stream /*stream*/) {}
};

struct throwing_sum {
  static int rank() { return 0; }
  static int size() { return 1; }
  void all_reduce_sum(std::span<float> values, slamb::host_stream /*stream*/) {
    if (values.size() == 64) throw std::runtime_error("out of luck");
  }
};

/// Notes the calling threads.
struct noted {
  std::shared_ptr<std::set<std::thread::id>> callers = std::make_shared<std::set<std::thread::id>>();
  static int rank() { return 0; }
  static int size() { return 1; }
  void all_reduce_sum(std::span<float> /*values*/, slamb::host_stream /*stream*/) {
    callers->insert(std::this_thread::get_id());
  }
};

}  // namespace

TEST_CASE("check_communicator: a rank out of range, or a collective that throws, ends the check with one message") {
  misplaced wrong;
  CHECK(complaint_of(wrong) ==
        "slamb: check_communicator: the Communicator says it is rank 2 of 2; ranks must be 0 … size − 1");
  throwing_sum throwing;
  CHECK(complaint_of(throwing) ==
        "slamb: check_communicator: rank 0 of 1: all_reduce_sum of 64 floats threw: out of luck");
}

namespace {

/// Reports a rank and a size other than its own.
class lying_communicator {
 public:
  lying_communicator(thread_communicator base, int rank, int size) : base_(std::move(base)), rank_(rank), size_(size) {}

  int rank() const { return rank_; }
  int size() const { return size_; }
  void all_reduce_sum(std::span<float> values, slamb::host_stream stream) { base_.all_reduce_sum(values, stream); }
  void all_gather(std::span<const std::byte> mine, std::span<std::byte> all, slamb::host_stream stream) {
    base_.all_gather(mine, all, stream);
  }
  void abort(const std::string& reason) { base_.abort(reason); }

 private:
  thread_communicator base_;
  int rank_, size_;
};

/// The messages of all ranks if rank 1 reports this rank and size.
std::vector<std::string> said_of_rank_1(int size, int its_rank, int its_size) {
  return complaints(size, [=](thread_communicator base) {
    const int rank = base.rank();
    return rank == 1 ? lying_communicator(std::move(base), its_rank, its_size)
                     : lying_communicator(std::move(base), rank, size);
  });
}

}  // namespace

TEST_CASE("check_communicator: disagreement on the world size or the ranks is reported on all ranks") {
  const auto differs = [](int rank, int size) {
    const std::string number = std::to_string(size);
    return "slamb: check_communicator: rank " + std::to_string(rank) + " of " + number + ": size() is " + number +
           " here, but another rank has another value; it must be the number of ranks on all ranks";
  };
  for (const int other : {2, 4, 300})
    CHECK(said_of_rank_1(3, 1, other) == std::vector{differs(0, 3), differs(1, other), differs(2, 3)});

  const auto twice = [](int rank) {
    return "slamb: check_communicator: rank " + std::to_string(rank) +
           " of 3: 2 ranks report that they are rank 2 of 3, and no rank reports that it is rank 1 of 3; rank() must "
           "be different on every rank";
  };
  CHECK(said_of_rank_1(3, 2, 3) == std::vector{twice(0), twice(2), twice(2)});
}

TEST_CASE("check_communicator: a rank out of range aborts the others, if there is an abort") {
  const std::string wrong =
      "slamb: check_communicator: the Communicator says it is rank 7 of 2; ranks must be 0 … size − 1";
  const std::vector<std::string> said = said_of_rank_1(2, 7, 2);
  CHECK(said[1] == wrong);
  CHECK(said[0] ==
        "slamb: check_communicator: rank 0 of 2: all_reduce_sum of size() and of the communicator_check threw: slamb: "
        "the thread_group failed because rank 1 was aborted: " +
            wrong);
}

TEST_CASE("check_communicator: different options on different ranks are reported on all ranks") {
  const auto said_with = [](const communicator_check& of_rank_1) {
    std::vector<std::string> said(2);
    slamb::run_ranks(2, [&](thread_communicator communicator) {
      const int rank = communicator.rank();
      try {
        check_communicator(communicator, rank == 1 ? of_rank_1 : small);
      } catch (const slamb::rank_mismatch_error& failure) {
        said[static_cast<std::size_t>(rank)] = failure.what();
      }
    });
    return said;
  };
  const auto expected = [](const std::string& name, const std::string& at_0, const std::string& at_1) {
    const auto sentence = [&name](int rank, const std::string& value) {
      return "slamb: check_communicator: rank " + std::to_string(rank) + " of 2: communicator_check::" + name + " is " +
             value + " here, but another rank has another value; all ranks must be given the same communicator_check";
    };
    return std::vector{sentence(0, at_0), sentence(1, at_1)};
  };
  CHECK(said_with({.large = 17}) == expected("large", "3001", "17"));
  CHECK(said_with({.large = std::numeric_limits<std::size_t>::max()}) ==
        expected("large", "3001", "18446744073709551615"));
  CHECK(said_with({.large = 3001, .wire_error = 0.25}) == expected("wire_error", "0", "0.25"));
  CHECK(said_with({.large = 3001, .from_second_thread = false}) == expected("from_second_thread", "true", "false"));
}

TEST_CASE("check_communicator: sizes beyond any memory are rejected, and the message has the largest size") {
  // (2^63 − 1)/4 floats without the margins of 6; a third of them.
  const auto refused = [](std::size_t large, std::size_t most) {
    return "slamb: communicator_check::large = " + std::to_string(large) + ", but it must be in [0, " +
           std::to_string(most) + "]: the elements of 3 ranks must fit in memory";
  };
  constexpr std::size_t all = std::numeric_limits<std::size_t>::max();
  constexpr std::size_t floats = ((all >> 1U) / 4 - 6) / 3, doubles = ((all >> 1U) / 8 - 6) / 3;
  slamb::run_ranks(3, [&](thread_communicator communicator) {
    for (const std::size_t large : {all, all / 3 + 1, floats + 1})  // three times the second is 2 in 64 bits
      CHECK_THROWS_WITH_AS(check_communicator(communicator, {.large = large}), refused(large, floats).c_str(),
                           std::invalid_argument);
    CHECK_THROWS_WITH_AS(check_communicator<double>(communicator, {.large = doubles + 1}),
                         refused(doubles + 1, doubles).c_str(), std::invalid_argument);
  });
}

namespace {

/// Sums of which only one term is not 0 are exact. Others have 8 significant bits, as partial sums in bfloat16 have.
class partly_exact_communicator {
 public:
  explicit partly_exact_communicator(thread_communicator base) : base_(std::move(base)) {}

  int rank() const { return base_.rank(); }
  int size() const { return base_.size(); }
  void all_reduce_sum(std::span<float> values, slamb::host_stream stream) {
    std::vector<float> terms(values.size());
    for (std::size_t i = 0; i < values.size(); ++i) terms[i] = values[i] != 0.0F ? 1.0F : 0.0F;
    base_.all_reduce_sum(values, stream);
    base_.all_reduce_sum(std::span(terms), stream);
    for (std::size_t i = 0; i < values.size(); ++i)
      if (terms[i] > 1.0F && std::isfinite(values[i]))
        values[i] = std::bit_cast<float>((std::bit_cast<std::uint32_t>(values[i]) + 0x8000U) & 0xFFFF0000U);
  }

 private:
  thread_communicator base_;
};

}  // namespace

TEST_CASE("check_communicator: sums of a byte of every rank must be exact, for any wire error") {
  const auto partly = [](thread_communicator base) { return partly_exact_communicator(std::move(base)); };
  for (const int size : {2, 3, 5})
    for (const std::string& said : complaints(size, partly, {.large = 3001, .wire_error = 0.01})) {
      CAPTURE(said);
      CHECK(said.find(" (sums of such integers must be exact)") != std::string::npos);
      CHECK(said.find("floats: element ") != std::string::npos);
    }
}

TEST_CASE("check_communicator: also calls from a second thread, if requested") {
  noted both;
  check_communicator(both, small);
  CHECK(both.callers->size() == 2);
  noted one;
  check_communicator(one, {.large = 10, .from_second_thread = false});
  CHECK(*one.callers == std::set{std::this_thread::get_id()});
}

namespace {

using test_support::deferred_backend;
using test_support::deferred_communicator;
using test_support::deferred_stream;
using test_support::work_queue;

/// [rank] the messages of ranks over a stream, whose communicators are made by make(deferred_communicator).
template <class Make>
std::vector<std::string> complaints_on_streams(int size, const Make& make) {
  std::vector<std::string> said(static_cast<std::size_t>(size));
  slamb::run_ranks(size, [&](thread_communicator base) {
    work_queue queue;
    const auto rank = static_cast<std::size_t>(base.rank());
    auto communicator = make(deferred_communicator(std::move(base)), queue);
    try {
      check_communicator(communicator, deferred_backend{.queue = &queue}, small);
    } catch (const slamb::communicator_error& failure) {
      said[rank] = failure.what();
    }
  });
  return said;
}

/// It has two mistakes, one at a time: a gather that does not wait for the work on its stream, and an exchange that writes to
/// what an earlier one has received, behind work that was enqueued after that.
class disorderly_communicator : public deferred_communicator {
 public:
  enum class disorder { none, hasty_gather, late_exchange };

  disorderly_communicator(deferred_communicator base, disorder what)
      : deferred_communicator(std::move(base)), what_(what) {}

  void all_gather(std::span<const std::byte> mine, std::span<std::byte> all, deferred_stream on) {
    deferred_communicator::all_gather(mine, all, on);
    if (what_ == disorder::hasty_gather) on.queue->run_last();
  }
  void all_to_all(std::span<const std::byte> send, std::span<std::byte> receive, deferred_stream on) {
    deferred_communicator::all_to_all(send, receive, on);
    if (what_ != disorder::late_exchange || send.size() != 384 * static_cast<std::size_t>(size())) return;
    if (exchanges_++ % 3 != 0) on.queue->add([to = last_received_] { to[0] = std::byte{0}; });
    last_received_ = receive;
  }

 private:
  disorder what_;
  std::span<std::byte> last_received_;
  int exchanges_ = 0;
};

}  // namespace

TEST_CASE("check_communicator: on a stream, correct ones pass, and calls in a row are not waited for") {
  for (const int size : {1, 2, 3})
    CHECK(complaints_on_streams(size, [](deferred_communicator base, work_queue&) { return base; }) ==
          std::vector<std::string>(static_cast<std::size_t>(size)));
  slamb::run_ranks(2, [](thread_communicator base) {
    work_queue queue;
    deferred_communicator communicator(std::move(base));
    check_communicator(communicator, deferred_backend{.queue = &queue}, {.large = 5});
    // Three kinds of collectives, three times; each has two uploads and a copy around it.
    CHECK(queue.longest == 3 * 3 * 4);
  });
}

TEST_CASE("check_communicator: on a stream, finds calls that are out of order on every rank") {
  using disorder = disorderly_communicator::disorder;
  const auto said = [](disorder what) {
    return complaints_on_streams(
        2, [what](deferred_communicator base, work_queue&) { return disorderly_communicator(std::move(base), what); });
  };
  CHECK(said(disorder::none) == std::vector<std::string>(2));
  for (const std::string& sentence : said(disorder::hasty_gather))
    CHECK(sentence.find("rank 1 of 2: all_gather of 15 bytes: element 0 of the place of rank 0 is 165, but ") !=
          std::string::npos);
  for (const std::string& sentence : said(disorder::late_exchange))
    CHECK(sentence.find(
              "rank 0 of 2: all_to_all of 2 times 384 bytes: it has written to `receive` after it had returned") !=
          std::string::npos);
}

TEST_CASE("check_communicator: on a stream, a wait that fails ends the check") {
  const auto said = complaints_on_streams(1, [](deferred_communicator base, work_queue& queue) {
    queue.peers_are_gone = true;
    return base;
  });
  CHECK(
      said[0] ==
      "slamb: check_communicator: rank 0 of 1: all_reduce_sum of size() and of the communicator_check threw: the peers "
      "are gone");
}

TEST_CASE("check_communicator: takes any Backend, and finds the same in its memory") {
  const auto in_memory_of = [](const auto& backend) {
    std::vector<std::string> said(2);
    slamb::run_ranks(2, [&](thread_communicator base) {
      const auto rank = static_cast<std::size_t>(base.rank());
      wrong_communicator communicator(std::move(base), mistake::gather_reversed);
      try {
        check_communicator(communicator, backend, small);
      } catch (const slamb::communicator_error& failure) {
        said[rank] = failure.what();
      }
    });
    return said;
  };
  CHECK(in_memory_of(slamb::host_backend{.threads = 1}) == complaints(mistake::gather_reversed, 2));
  CHECK(in_memory_of(slamb::emulated_backend{}) == complaints(mistake::gather_reversed, 2));
}

}  // namespace testing_check_communicator_tests
