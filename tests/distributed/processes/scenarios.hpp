// Scenarios of ranks that are processes, for a World of Communicators and memory: sockets and host memory in main.cpp, NCCL and a
// GPU in tests/device/nccl. Trainings must have the parameters of the same trainings by threads, skip a step together, continue from
// a saved state, and end with an error when a rank is lost at any collective.
//
// A World has
//
//   stream_type                   of its Communicators
//   ranks_type                    the ranks of an optimizer; made from a thread_communicator or an any_communicator<stream_type>
//   ranks_of_shards(e, s)         likewise from two thread_communicators: of ranks with the same shard, and of a shard group
//   recipes                       [] of recipe<World>
//   limits                        the waits of its Communicators
//   prepare(rank)                 called first by each process
//   place                         memory and a stream of a rank: stream(), floats(values)
//   meeting(ranks)                made before processes are forked: introduce(rank) tells the ranks where they meet, then
//                                 join(rank, timeout) returns an any_communicator<stream_type>
//   joined(communicator)          the Communicator for optimizers, from what `join` has returned
//   check(communicator, place)    calls check_communicator
//   refusal(exception)            why ranks cannot meet on this machine at all; empty if that is not what it says
//   names_the_cause(text)         true for the message of a Communicator that has lost a peer
//   compare_graph(recipe, …)      a captured step against plain ones; empty if they have the same bits
//   has_graphs
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <deque>
#include <exception>
#include <memory>
#include <numeric>
#include <optional>
#include <slamb/communicator/run_ranks.hpp>
#include <slamb/communicator/sharded_communicator.hpp>
#include <slamb/core/error.hpp>
#include <slamb/core/parameter.hpp>
#include <slamb/optimizer/optimizer.hpp>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "../../support/generate.hpp"
#include "accident_communicator.hpp"
#include "rank_processes.hpp"

namespace rank_tests {

/// An optimizer with settings by which a few steps reach every phase.
template <class World>
struct recipe {
  const char* name;
  std::shared_ptr<slamb::optimizer> (*make)(std::span<const slamb::parameter>, typename World::ranks_type,
                                            typename World::place&, bool is_captured);
  /// Every sum of floats is exact, because gradients have few bits: parameters do not depend on the order in which ranks are
  /// added. All else is sent as codes.
  bool has_exact_sums = false;
  bool can_be_captured = false;
  int loses_one_of = 0;          ///< groups of at most so many ranks lose one, at every collective of a step in turn
  bool has_local_steps = false;  ///< its last steps exchange nothing, and a rank skips one alone
};

/// How long the Communicators of a World wait.
struct limits {
  milliseconds timeout;           ///< for ranks that are well
  milliseconds accident_timeout;  ///< for a lost rank
  milliseconds abort_timeout;     ///< that it may take in addition
};

inline constexpr milliseconds slack{20000};  ///< of a busy machine

// ------------------------------------------------------------------------------------------------------------ trainings

inline constexpr std::size_t steps = 12;
inline constexpr std::array<test_support::tensor_shape, 5> shapes{{{3000, 2}, {30, 1}, {1003, 2}, {1, 1}, {170, 2}}};
inline constexpr std::size_t elements = 3000 + 30 + 1003 + 1 + 170;
inline constexpr double learning_rate = 0.01;

inline std::vector<float> first_parameters() {
  test_support::random_source source(7);
  std::vector<float> values(elements);
  for (float& x : values) x = static_cast<float>(0.5 * source.bell());
  return values;
}

/// Multiples of 2^-8 in (-3, 3): their sums over up to 2^14 ranks are exact. A part is common to all ranks.
inline std::vector<float> gradients(std::size_t step, int rank) {
  test_support::random_source common(1000 + step);
  test_support::random_source own(1000 + step, 1 + static_cast<std::uint64_t>(rank));
  std::vector<float> values(elements);
  for (float& x : values)
    x = static_cast<float>(static_cast<int>(common.below(1024)) + static_cast<int>(own.below(512)) - 768) / 256.0F;
  return values;
}

inline bool same_bits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

/// max |a − b| / max |b|; infinite if anything is NaN.
inline double distance(std::span<const float> a, std::span<const float> b) {
  double apart = 0.0;
  double largest = 0.0;
  for (std::size_t i = 0; i < b.size(); ++i) {
    const double difference = std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i]));
    if (!(difference <= 1e30)) return INFINITY;
    apart = std::max(apart, difference);
    largest = std::max(largest, std::abs(static_cast<double>(b[i])));
  }
  return apart / largest;
}

/// A rank of a run: rank r has shard r mod `shards` of the model that group r / `shards` holds together.
struct rank_of_run {
  int rank = 0;
  int shards = 1;

  int group() const { return rank / shards; }
  int shard() const { return rank % shards; }
  /// The first element of its part of n elements; of the next shard, the end.
  std::size_t first_of(std::size_t n, int of_shard) const {
    return n * static_cast<std::size_t>(of_shard) / static_cast<std::size_t>(shards);
  }
  std::size_t size_of(std::size_t n) const { return first_of(n, shard() + 1) - first_of(n, shard()); }
  /// Its elements of all tensors.
  std::size_t size() const {
    std::size_t all = 0;
    for (const auto& shape : shapes) all += size_of(shape.size);
    return all;
  }
  /// Its parts of values of all tensors.
  std::vector<float> part_of(std::span<const float> whole) const {
    std::vector<float> own;
    for (const auto& shape : shapes) {
      const auto its = whole.subspan(first_of(shape.size, shard()), size_of(shape.size));
      own.insert(own.end(), its.begin(), its.end());
      whole = whole.subspan(shape.size);
    }
    return own;
  }
};

/// One rank's tensors and optimizer.
template <class World>
class training {
 public:
  using place = typename World::place;

  /// @param start  the rank's parameters; empty: the first
  training(const recipe<World>& of, typename World::ranks_type ranks, const rank_of_run& rank, place& at,
           bool is_captured = false, std::span<const float> start = {})
      : rank_(rank), parameters_(at.floats(rank.size())), gradients_(at.floats(rank.size())) {
    parameters_.write(start.empty() ? rank.part_of(first_parameters()) : std::vector(start.begin(), start.end()));
    std::vector<slamb::parameter> tensors;
    std::size_t first = 0;
    for (const auto& shape : shapes) {
      const std::size_t size = rank.size_of(shape.size);
      tensors.push_back({.data = parameters_.data() + first,
                         .gradient = gradients_.data() + first,
                         .size = size,
                         .dimensions = shape.dimensions,
                         .whole_size = shape.size});
      first += size;
    }
    optimizer_ = of.make(tensors, std::move(ranks), at, is_captured);
  }

  void prepare(std::size_t step, bool has_nan = false) {
    std::vector<float> values = rank_.part_of(gradients(step, rank_.group()));
    if (has_nan) values[17] = NAN;
    gradients_.write(values);
  }
  void step(std::size_t number, bool has_nan = false) {
    prepare(number, has_nan);
    optimizer_->step(learning_rate);
  }
  std::vector<float> parameters() const {
    optimizer_->statistics();  // waits, and finds lost peers
    return parameters_.read();
  }
  slamb::optimizer& optimizer() { return *optimizer_; }

 private:
  rank_of_run rank_;
  typename place::array parameters_;
  typename place::array gradients_;
  std::shared_ptr<slamb::optimizer> optimizer_;  // destroyed first
};

// -------------------------------------------------------------------------------------------------------------- results

/// What all processes of a run with `ranks` ranks find. A finding is empty until it is known, "ok", or says what is wrong.
template <class World>
struct findings {
  enum scenario { trains, resumes, skips, launches, scenarios };
  static constexpr std::size_t recipes = std::size(World::recipes);

  findings(int ranks, int shards)
      : ranks_(static_cast<std::size_t>(ranks)),
        shards(shards),
        by_threads(recipes * ranks_ * elements),
        by_processes(recipes * ranks_ * elements),
        collectives(recipes * (steps + 1)),
        of_check(ranks_),
        of_recipe(recipes * scenarios * ranks_),
        refusal(1) {}

  std::span<float> parameters(const shared_values<float>& of, std::size_t r, int rank) const {
    return of.all().subspan((r * ranks_ + static_cast<std::size_t>(rank)) * elements, elements);
  }
  short_text& finding(std::size_t r, scenario of, int rank) const {
    return of_recipe[(r * scenarios + of) * ranks_ + static_cast<std::size_t>(rank)];
  }
  /// After the construction, and after each step.
  std::span<std::uint64_t> collectives_of(std::size_t r) const {
    return collectives.all().subspan(r * (steps + 1), steps + 1);
  }

 private:
  std::size_t ranks_;

 public:
  const int shards;                   // of each model
  shared_values<float> by_threads;    // [recipes][ranks][elements], of which a rank has its part
  shared_values<float> by_processes;  // the same
  shared_values<std::uint64_t> collectives;
  shared_values<short_text> of_check;  // [ranks]
  shared_values<short_text> of_recipe;
  shared_values<short_text> refusal;  ///< why ranks cannot meet on this machine
};

/// Counts and prints the results.
class results {
 public:
  /// @param wrong  empty: it is right
  void add(const std::string& what, const std::string& wrong) {
    (wrong.empty() ? right_ : wrong_) += 1;
    std::printf("%s %s%s%s\n", wrong.empty() ? "ok" : "WRONG", what.c_str(), wrong.empty() ? "" : ": ", wrong.c_str());
    std::fflush(stdout);
  }
  int print_counts() const {
    std::printf("%d ok, %d wrong\n", right_, wrong_);
    return wrong_ == 0 && right_ > 0 ? 0 : 1;
  }

 private:
  int right_ = 0;
  int wrong_ = 0;
};

// ------------------------------------------------------------------------------------------------ ranks that are well

/// All trainings, by threads of this process.
template <class World>
void train_by_threads(int ranks, const findings<World>& found) {
  World::prepare(0);
  for (std::size_t r = 0; r < std::size(World::recipes); ++r) {
    std::deque<slamb::thread_group> groups, with_same_shard;
    for (int g = 0; g < ranks / found.shards; ++g) groups.emplace_back(found.shards);
    for (int s = 0; s < found.shards; ++s) with_same_shard.emplace_back(ranks / found.shards);
    slamb::run_ranks(ranks, [&](const slamb::thread_communicator& mine) {
      const rank_of_run rank{mine.rank(), found.shards};
      slamb::thread_communicator exchange =
          with_same_shard[static_cast<std::size_t>(rank.shard())].communicator(rank.group());
      typename World::place at;
      training<World> run(
          World::recipes[r],
          found.shards == 1
              ? typename World::ranks_type(std::move(exchange))
              : World::ranks_of_shards(std::move(exchange),
                                       groups[static_cast<std::size_t>(rank.group())].communicator(rank.shard())),
          rank, at);
      for (std::size_t t = 0; t < steps; ++t) run.step(t);
      run.optimizer().synchronize_parameters();
      std::ranges::copy(run.parameters(), found.parameters(found.by_threads, r, rank.rank).begin());
    });
  }
}

/// What a process has joined: the ranks with which it exchanges, and its shard group if there are several shards. Optimizers use them
/// one after another.
template <class World>
class joined_ranks {
 public:
  using stream_type = typename World::stream_type;
  using any = slamb::any_communicator<stream_type>;

  joined_ranks(any exchange, std::optional<any> shards) : exchange_(std::make_shared<any>(std::move(exchange))) {
    if (shards) shards_ = std::make_shared<any>(std::move(*shards));
  }

  void check(typename World::place& at) {
    World::check(*exchange_, at);
    if (shards_ != nullptr) World::check(*shards_, at);
  }
  /// Ranks for an optimizer, whose collectives `log` counts.
  /// @param changed  World::joined, or what it is given
  template <class Changed>
  typename World::ranks_type ranks(const std::shared_ptr<collective_log>& log, const Changed& changed) {
    using counted = accident_communicator<stream_type>;
    counted exchange(changed(exchange_), log);
    if (shards_ == nullptr) return typename World::ranks_type(any(std::move(exchange)));
    return typename World::ranks_type(
        any(slamb::sharded_communicator<counted, counted>(std::move(exchange), counted(shards_, log))));
  }

 private:
  std::shared_ptr<any> exchange_;
  std::shared_ptr<any> shards_;
};

/// Where processes meet, made before they are forked.
template <class World>
class meetings {
 public:
  meetings(int ranks, int shards) : shards_(shards) {
    for (int s = 0; s < shards; ++s) with_same_shard_.emplace_back(ranks / shards);
    for (int g = 0; shards > 1 && g < ranks / shards; ++g) groups_.emplace_back(shards);
  }

  void introduce(int rank) const {
    const rank_of_run its{rank, shards_};
    with_same_shard_[static_cast<std::size_t>(its.shard())].introduce(its.group());
    if (shards_ > 1) groups_[static_cast<std::size_t>(its.group())].introduce(its.shard());
  }
  joined_ranks<World> join(int rank, milliseconds timeout) const {
    using any = typename joined_ranks<World>::any;
    const rank_of_run its{rank, shards_};
    any exchange = with_same_shard_[static_cast<std::size_t>(its.shard())].join(its.group(), timeout);
    std::optional<any> shards;
    if (shards_ > 1) shards.emplace(groups_[static_cast<std::size_t>(its.group())].join(its.shard(), timeout));
    return {std::move(exchange), std::move(shards)};
  }

 private:
  int shards_;
  std::deque<typename World::meeting> with_same_shard_;
  std::deque<typename World::meeting> groups_;
};

/// The scenarios of one rank, by its process.
template <class World>
class rank_of_processes {
 public:
  using stream_type = typename World::stream_type;

  rank_of_processes(int rank, int ranks, joined_ranks<World> joined, const findings<World>& found)
      : rank_(rank), of_run_{rank, found.shards}, ranks_(ranks), found_(found), joined_(std::move(joined)) {}

  void run_all() {
    record(found_.of_check[static_cast<std::size_t>(rank_)], [&] {
      joined_.check(at_);
      return std::string();
    });
    for (std::size_t r = 0; r < std::size(World::recipes); ++r) run_one(r);
  }

 private:
  using scenario = typename findings<World>::scenario;

  typename World::ranks_type new_ranks() {
    log_ = std::make_shared<collective_log>();
    return joined_.ranks(log_, [](const auto& exchange) { return World::joined(exchange); });
  }

  /// The scenarios of a recipe. An exception ends the process: the other ranks cannot go on either.
  void run_one(std::size_t r) {
    const recipe<World>& of = World::recipes[r];
    const auto finding = [&](scenario which) -> short_text& { return found_.finding(r, which, rank_); };
    training<World> run(of, new_ranks(), of_run_, at_);
    std::vector<float> half;
    std::vector<std::byte> saved;
    record(finding(findings<World>::trains), [&] {
      const auto collectives = found_.collectives_of(r);
      if (rank_ == 0) collectives[0] = log_->count;
      for (std::size_t t = 0; t < steps; ++t) {
        if (t == steps / 2) {
          half = run.parameters();
          saved = run.optimizer().save_state();
        }
        run.step(t);
        if (rank_ == 0) collectives[t + 1] = log_->count;
      }
      own_ = run.parameters();
      run.optimizer().synchronize_parameters();
      std::ranges::copy(run.parameters(), found_.parameters(found_.by_processes, r, rank_).begin());
      return std::string();
    });
    record(finding(findings<World>::skips), [&] {
      training<World> fresh(of, new_ranks(), of_run_, at_);
      fresh.step(0);
      std::string wrong = skip(fresh, 1);
      if (wrong.empty() && !of.has_local_steps) wrong = skip(run, steps);
      return wrong;
    });
    record(finding(findings<World>::resumes), [&] {
      training<World> resumed(of, new_ranks(), of_run_, at_, false, half);
      resumed.optimizer().load_state(saved);
      for (std::size_t t = steps / 2; t < steps; ++t) resumed.step(t);
      return same_bits(resumed.parameters(), own_) ? "" : "other parameters than without the interruption";
    });
    if constexpr (World::has_graphs) {
      if (!of.can_be_captured) return;
      record(finding(findings<World>::launches), [&] {
        return World::compare_graph(
            of, [this] { return new_ranks(); }, of_run_, at_);
      });
    }
  }

  /// A step in which the last rank's gradient is NaN, and one in which all are well.
  std::string skip(training<World>& run, std::size_t number) {
    const std::vector<float> before = run.parameters();
    const std::uint64_t skipped = run.optimizer().statistics().skipped_steps;
    run.step(number, rank_ == ranks_ - 1);
    if (!same_bits(run.parameters(), before)) return "parameters have changed";
    if (run.optimizer().statistics().skipped_steps != skipped + 1) return "the step is not counted as skipped";
    run.step(number);
    if (run.optimizer().statistics().skipped_steps != skipped + 1) return "the next step was skipped too";
    const std::vector<float> after = run.parameters();
    if (same_bits(after, before)) return "the next step has changed nothing";
    return distance(after, before) < 1.0 ? "" : "the next step has gone too far";
  }

  /// Stores "ok", or what body() returns. An exception is stored, and thrown again.
  template <class Body>
  static void record(short_text& into, const Body& body) {
    try {
      const std::string wrong = body();
      into.set(wrong.empty() ? "ok" : wrong);
    } catch (const std::exception& failure) {
      into.set(failure.what());
      throw;
    }
  }

  int rank_;
  rank_of_run of_run_;
  int ranks_;
  const findings<World>& found_;
  typename World::place at_;  // destroyed last
  joined_ranks<World> joined_;
  std::shared_ptr<collective_log> log_;
  std::vector<float> own_;
};

inline constexpr int status_of_refusal = 77;

/// What is wrong with the parameters of all ranks, compared with those of threads.
template <class World>
std::string wrong_parameters(const findings<World>& found, std::size_t r, int ranks) {
  for (int rank = found.shards; rank < ranks; ++rank)
    if (const int first = rank % found.shards;
        !same_bits(found.parameters(found.by_processes, r, rank), found.parameters(found.by_processes, r, first)))
      return "ranks " + std::to_string(first) + " and " + std::to_string(rank) + " have different parameters";
  for (int shard = 0; shard < found.shards; ++shard) {
    const auto ours = found.parameters(found.by_processes, r, shard);
    const auto theirs = found.parameters(found.by_threads, r, shard);
    const double apart = distance(ours, theirs);
    const bool needs_bits = ranks / found.shards == 2 || World::recipes[r].has_exact_sums;
    if (needs_bits ? same_bits(ours, theirs) : apart <= 1e-5) continue;
    std::size_t count = 0;
    for (std::size_t i = 0; i < elements; ++i) count += ours[i] != theirs[i] ? 1 : 0;
    return std::to_string(count) + " of " + std::to_string(elements) +
           " parameters differ from those of threads, by up to " + std::to_string(1e6 * apart) + "e-6 of the largest";
  }
  return "";
}

/// "4 ranks: ", "2 x 2 ranks: "
template <class World>
std::string name_of(int ranks, const findings<World>& found) {
  const std::string groups = std::to_string(ranks / found.shards);
  return groups + (found.shards == 1 ? "" : " x " + std::to_string(found.shards)) + " ranks: ";
}

/// check_communicator, and all scenarios without a lost rank. Returns false if ranks cannot meet on this machine.
template <class World>
bool run_well(int ranks, const findings<World>& found, results& all) {
  const std::string who = name_of(ranks, found);
  const ending by_threads = run_ranks(1, no_rank, std::chrono::minutes(5), [&](int) {
    train_by_threads<World>(ranks, found);
    return 0;
  })[0];
  if (!by_threads.is(ending::exited, 0))
    all.add(who + "the trainings by threads", "their process " + by_threads.text());

  const meetings<World> there(ranks, found.shards);
  const std::vector<ending> ends = run_ranks(ranks, no_rank, std::chrono::minutes(10), [&](int rank) {
    World::prepare(rank);
    std::optional<joined_ranks<World>> joined;
    try {
      there.introduce(rank);
      joined.emplace(there.join(rank, World::waits.timeout));
    } catch (const std::exception& failure) {
      const std::string why = World::refusal(failure);
      if (why.empty()) throw;
      found.refusal[0].set(why);
      return status_of_refusal;
    }
    rank_of_processes<World>(rank, ranks, std::move(*joined), found).run_all();
    return 0;
  });
  if (!found.refusal[0].empty()) return false;

  const auto wrong_on_a_rank = [&](const auto& finding_of) {
    for (int rank = 0; rank < ranks; ++rank) {
      const short_text& finding = finding_of(rank);
      if (finding.get() == "ok") continue;
      const std::string text = finding.empty() ? "it " + ends[static_cast<std::size_t>(rank)].text() : finding.get();
      return "rank " + std::to_string(rank) + ": " + text;
    }
    return std::string();
  };
  all.add(who + "check_communicator", wrong_on_a_rank([&](int rank) -> const short_text& {
            return found.of_check[static_cast<std::size_t>(rank)];
          }));
  for (std::size_t r = 0; r < std::size(World::recipes); ++r) {
    const recipe<World>& of = World::recipes[r];
    const auto wrong_in = [&](typename findings<World>::scenario which) {
      return wrong_on_a_rank([&](int rank) -> const short_text& { return found.finding(r, which, rank); });
    };
    const std::string what = who + of.name + ": ";
    std::string wrong = wrong_in(findings<World>::trains);
    if (wrong.empty() && by_threads.is(ending::exited, 0)) wrong = wrong_parameters(found, r, ranks);
    const bool by_bits = ranks / found.shards == 2 || of.has_exact_sums;
    all.add(what + (by_bits ? "trains as threads do, to the bit" : "trains as threads do, to 1e-5"), wrong);
    all.add(what + "all ranks skip a step that one must skip", wrong_in(findings<World>::skips));
    all.add(what + "a resumed training has the bits of an uninterrupted one", wrong_in(findings<World>::resumes));
    if (World::has_graphs && of.can_be_captured)
      all.add(what + "launches of a captured step have the bits of steps", wrong_in(findings<World>::launches));
  }
  return true;
}

// -------------------------------------------------------------------------------------------------- ranks that are lost

/// An accident, and what the other ranks found.
struct lost_rank {
  std::size_t recipe;
  accident what;
  std::uint64_t at;  ///< before the collective of this number, from 1; 0: before the Communicator is constructed
  int rank;
};

/// What a rank that was not lost has seen.
struct witness {
  std::int64_t thrown;  ///< when; 0: nothing
  std::int64_t gone;    ///< when its optimizer and Communicator were destroyed
  bool is_communicator_error;
  short_text text;
};

/// One rank of a training in which a rank is lost.
template <class World>
int meet_accident(const lost_rank& planned, const rank_of_run& of_run, const meetings<World>& there,
                  std::int64_t& happened, witness& seen) {
  const int rank = of_run.rank;
  World::prepare(rank);
  typename World::place at;
  const auto log = std::make_shared<collective_log>();
  if (rank == planned.rank) *log = {.accident_at = planned.at, .what = planned.what, .when = &happened};
  std::optional<training<World>> run;
  try {
    there.introduce(rank);
    if (rank == planned.rank && planned.at == 0) happen(planned.what, happened);
    joined_ranks<World> joined = there.join(rank, World::waits.accident_timeout);
    run.emplace(World::recipes[planned.recipe], joined.ranks(log, [](const auto& exchange) { return exchange; }),
                of_run, at);
    for (std::size_t t = 0; t < 1000; ++t) {
      run->step(t % steps);
      run->optimizer().statistics();  // waits
    }
  } catch (const std::exception& failure) {
    seen.thrown = now();
    seen.is_communicator_error = dynamic_cast<const slamb::communicator_error*>(&failure) != nullptr;
    seen.text.set(failure.what());
  }
  run.reset();
  seen.gone = now();
  return 0;
}

/// What is wrong with the ends of all ranks.
template <class World>
std::string wrong_ends(const lost_rank& planned, const std::vector<ending>& ends, std::int64_t happened,
                       std::span<const witness> seen) {
  const auto seconds = [](std::int64_t nanoseconds) { return static_cast<double>(nanoseconds) / 1e9; };
  const auto most = [](milliseconds limit) { return static_cast<double>((limit + slack).count()) / 1e3; };
  std::string wrong;
  for (std::size_t r = 0; r < ends.size(); ++r) {
    const auto complain = [&](const std::string& text) {
      wrong += (wrong.empty() ? "rank " : "; rank ") + std::to_string(r) + " " + text;
    };
    if (static_cast<int>(r) == planned.rank) {
      const bool as_planned = planned.what == accident::killed  ? ends[r].is(ending::killed, SIGKILL)
                              : planned.what == accident::exits ? ends[r].is(ending::exited, status_of_exit)
                                                                : ends[r].is(ending::stopped, SIGSTOP);
      if (!as_planned) complain(ends[r].text() + ", which is not what was planned for it; " + seen[r].text.get());
      continue;
    }
    if (!ends[r].is(ending::exited, 0)) {
      complain(ends[r].text() + (seen[r].thrown != 0 ? " after it had thrown: " + seen[r].text.get() : ""));
      continue;
    }
    const double until_thrown = seconds(seen[r].thrown - happened);
    const double until_gone = seconds(seen[r].gone - seen[r].thrown);
    if (seen[r].thrown == 0)
      complain("has not noticed it");
    else if (!seen[r].is_communicator_error || !World::names_the_cause(seen[r].text.get()))
      complain("has thrown, but not for this reason: " + seen[r].text.get());
    else if (until_thrown > most(World::waits.accident_timeout + World::waits.abort_timeout))
      complain("has noticed it only after " + std::to_string(until_thrown) + " s: " + seen[r].text.get());
    else if (until_gone > most(World::waits.abort_timeout))
      complain("took " + std::to_string(until_gone) + " s to destroy its optimizer");
  }
  return wrong;
}

/// All accidents of the recipes that lose ranks: at each collective of the step that has most of them, at the first of an
/// optimizer's construction, and before the Communicator's.
template <class World>
std::vector<lost_rank> planned_accidents(int ranks, const findings<World>& found) {
  std::vector<lost_rank> all;
  const auto plan = [&](std::size_t recipe, accident what, std::uint64_t at) {
    all.push_back({recipe, what, at, static_cast<int>(all.size() + 1) % ranks});
  };
  std::size_t first = std::size(World::recipes);  // the recipe whose constructions are interrupted
  for (std::size_t r = 0; r < std::size(World::recipes); ++r) {
    if (World::recipes[r].loses_one_of < ranks / found.shards) continue;
    first = std::min(first, r);
    const auto count = found.collectives_of(r);
    std::size_t step = steps / 2;
    for (std::size_t t = step; t < steps; ++t)
      if (count[t + 1] - count[t] > count[step + 1] - count[step]) step = t;
    for (const accident what : all_accidents) {
      if (r == first) plan(r, what, 0), plan(r, what, 1);
      for (std::uint64_t at = count[step] + 1; at <= count[step + 1]; ++at) plan(r, what, at);
    }
  }
  return all;
}

/// "one_bit_lamb: rank 1 exits before collective 18"
template <class World>
std::string text_of(const lost_rank& one, const findings<World>& found) {
  const std::string at = one.at == 0 ? "before it constructs its Communicator"
                         : one.at <= found.collectives_of(one.recipe)[0]
                             ? "in the construction of its optimizer"
                             : "before collective " + std::to_string(one.at);
  return std::string(World::recipes[one.recipe].name) + ": rank " + std::to_string(one.rank) + " " + name_of(one.what) +
         " " + at;
}

/// @param jobs  groups of ranks at a time
template <class World>
void lose_ranks(int ranks, std::size_t jobs, const findings<World>& found, results& all) {
  const std::string who = name_of(ranks, found);
  const std::vector<lost_rank> planned = planned_accidents(ranks, found);
  const shared_values<short_text> verdicts(planned.size());
  std::vector<bool> is_told(planned.size(), false);
  const auto tell = [&](bool those_without_a_verdict) {
    for (std::size_t i = 0; i < planned.size(); ++i) {
      const std::string verdict = verdicts[i].get();
      if (is_told[i] || verdict.empty() != those_without_a_verdict) continue;
      is_told[i] = true;
      all.add(who + text_of(planned[i], found), verdict == "ok"   ? ""
                                                : verdict.empty() ? "its group was lost"
                                                                  : verdict);
    }
  };
  const auto lose_one = [&](std::size_t i) {
    const meetings<World> there(ranks, found.shards);
    const shared_values<witness> seen(static_cast<std::size_t>(ranks));
    const shared_values<std::int64_t> happened(1);
    const milliseconds limit = 3 * World::waits.accident_timeout + World::waits.abort_timeout + 2 * slack;
    const std::vector<ending> ends = run_ranks(ranks, planned[i].rank, limit, [&](int rank) {
      return meet_accident<World>(planned[i], {rank, found.shards}, there, happened[0],
                                  seen[static_cast<std::size_t>(rank)]);
    });
    const std::string wrong = wrong_ends<World>(planned[i], ends, happened[0], seen.all());
    verdicts[i].set(wrong.empty() ? "ok" : wrong);
  };
  in_parallel(jobs, planned.size(), lose_one, [&] { tell(false); });
  tell(true);
  all.add(who + "no process is left", any_process_is_left() ? "some are" : "");
}

}  // namespace rank_tests
