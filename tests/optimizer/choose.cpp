// choose: it keeps the right optimizer by the given clock, and the trial has no other effect.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "instances/emulated.hpp"
#include "slamb/slamb.hpp"
#include "support/cluster.hpp"

namespace optimizer_choose_tests {
namespace {

using slamb::choose_options;
using keep_rule = slamb::choose_options::keep_rule;
using test_support::experiment;
using test_support::model;
using test_support::replica;

/// The bytes sent by one rank's collectives; a clock that reads it counts bytes.
using sent_bytes = std::shared_ptr<double>;

class metered_communicator {
 public:
  metered_communicator(slamb::thread_communicator base, sent_bytes sent)
      : base_(std::move(base)), sent_(std::move(sent)) {}

  int rank() const { return base_.rank(); }
  int size() const { return base_.size(); }
  void all_reduce_sum(std::span<float> values, slamb::host_stream stream) {
    base_.all_reduce_sum(values, stream);
    add(slamb::collective::all_reduce, values.size_bytes());
  }
  void all_gather(std::span<const std::byte> mine, std::span<std::byte> all, slamb::host_stream stream) {
    base_.all_gather(mine, all, stream);
    add(slamb::collective::all_gather, all.size());
  }
  void all_to_all(std::span<const std::byte> send, std::span<std::byte> receive, slamb::host_stream stream) {
    base_.all_to_all(send, receive, stream);
    add(slamb::collective::all_to_all, send.size());
  }

 private:
  void add(slamb::collective kind, std::size_t bytes) {
    *sent_ += static_cast<double>(slamb::traffic::bytes_sent_by(kind, bytes, size()));
  }

  slamb::thread_communicator base_;
  sent_bytes sent_;
};

using dense_type = slamb::lamb<metered_communicator>;
using sparse_type = slamb::slamb<metered_communicator>;
using chosen_type = slamb::chosen_optimizer<dense_type, sparse_type>;

const model& tensors() {
  static const model all{{20'000}, {100, 1}, {12'000}, {0}, {17}};
  return all;
}

const sparse_type::options_type sparse_options{.local_steps = 10, .compressor = {.k = 0.1}};

/// A clock with given intervals: every second reading is one interval later than the reading before.
struct scripted_clock {
  std::vector<double> intervals;
  std::size_t readings = 0;
  double now = 0.0;

  double operator()() {
    if (readings++ % 2 == 1) now += intervals.at(readings / 2 - 1);
    return now;
  }
  bool is_at_end() const { return readings == 2 * intervals.size(); }
};

/// Durations of steps: [step of a round], the same in both rounds.
struct script {
  std::vector<double> dense{};
  std::vector<double> sparse{};
  double average = 0.0;  ///< duration of SLAMB's averaging of parameters, after its first step

  scripted_clock clock() const {
    scripted_clock all;
    for (int round = 0; round < 2; ++round) {
      all.intervals.insert(all.intervals.end(), dense.begin(), dense.end());
      all.intervals.insert(all.intervals.end(), sparse.begin(), sparse.end());
      all.intervals.insert(all.intervals.end() - static_cast<std::ptrdiff_t>(sparse.size()) + 1, average);
    }
    return all;
  }
};

struct rank_scene {
  std::vector<slamb::parameter> parameters;
  metered_communicator communicator;
  sent_bytes sent;
  std::size_t rank;
};

/// Calls body(rank_scene) on each of `world` ranks; fails if a gradient is written.
void on_ranks(int world, const std::function<void(rank_scene, replica&)>& body) {
  const experiment e = test_support::make_experiment(tensors(), 7, world, 1);
  slamb::run_ranks(world, [&](slamb::thread_communicator communicator) {
    const auto rank = static_cast<std::size_t>(communicator.rank());
    replica mine(e.tensors, e.start);
    mine.set_gradient(e.gradients[0][rank]);
    const auto sent = std::make_shared<double>(0.0);
    body({mine.parameters(), metered_communicator(std::move(communicator), sent), sent, rank}, mine);
    if (!mine.intact()) throw std::logic_error("a gradient was written, or memory beside the tensors");
  });
}

/// The choice of all ranks for these durations, one script for each rank.
slamb::statistics::choice_type chosen_by(const std::vector<script>& scripts,
                                         const sparse_type::options_type& options = sparse_options) {
  std::vector<slamb::statistics::choice_type> made(scripts.size());
  on_ranks(static_cast<int>(scripts.size()), [&](rank_scene scene, replica&) {
    scripted_clock clock = scripts[scene.rank].clock();
    const chosen_type optimizer = slamb::detail::choose_by<dense_type, sparse_type>(
        clock, scene.parameters, {}, options, std::move(scene.communicator),
        {.steps = scripts[scene.rank].dense.size()}, test_support::one_thread());
    made[scene.rank] = optimizer.statistics().chosen;
    if (!clock.is_at_end()) throw std::logic_error("another number of steps was timed");
    if (optimizer.is_compressed() != made[scene.rank].is_compressed) throw std::logic_error("it has not what it says");
  });
  for (const slamb::statistics::choice_type& each : made) {
    CHECK(each.is_compressed == made[0].is_compressed);
    CHECK(each.dense_seconds == made[0].dense_seconds);
    CHECK(each.compressed_seconds == made[0].compressed_seconds);
  }
  return made[0];
}

template <class F>
std::string complaint_of(F&& f) {
  try {
    f();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "nothing was thrown";
}

/// A single rank.
chosen_type choose_on_single_rank(replica& mine, const choose_options& how, const dense_type::options_type& dense = {},
                                  const sparse_type::options_type& sparse = sparse_options) {
  return slamb::choose<dense_type, sparse_type>(mine.parameters(), dense, sparse,
                                                {slamb::thread_group(1).communicator(0), std::make_shared<double>(0.0)},
                                                how, test_support::one_thread());
}

replica some_replica() { return {tensors(), test_support::random_parameters(3, test_support::total_size(tensors()))}; }

}  // namespace

TEST_CASE("choose: keeps the compressed optimizer if it is faster by more than the margin") {
  const slamb::statistics::choice_type faster =
      chosen_by({{{1.0, 1.0}, {0.5, 0.5}, 2.0}, {{1.0, 1.0}, {0.5, 0.5}, 2.0}});
  CHECK(faster.is_compressed);
  CHECK(faster.dense_seconds == doctest::Approx(1.0));
  CHECK(faster.compressed_seconds == doctest::Approx(0.5 + 2.0 / 10));  // H = 10
  CHECK(faster.trial_steps == 4);
  CHECK(faster.trial_elements == test_support::total_size(tensors()));
  const auto with = [](double dense, double sparse, double average) {
    const script s{{dense, dense}, {sparse, sparse}, average};
    return chosen_by({s, s}).is_compressed;
  };
  CHECK_FALSE(with(1.0, 2.0, 0.0));
  CHECK_FALSE(with(1.0, 1.0, 0.0));
  CHECK_FALSE(with(1.0, 0.96, 0.0));
  CHECK(with(1.0, 0.94, 0.0));
  CHECK_FALSE(with(1.0, 0.5, 5.0));  // 0.5 + 5/10
}

TEST_CASE("choose: an averaging that the caller requests is not counted") {
  const script s{{1.0}, {0.5}, 100.0};
  sparse_type::options_type options = sparse_options;
  options.local_steps = 0;
  CHECK(chosen_by({s, s}, options).is_compressed);
}

TEST_CASE("choose: one slow step changes nothing, and noisy times keep the dense optimizer") {
  const script outlier{{1.0, 1.0, 1.0, 9.0}, {0.8, 20.0, 0.8, 0.8}, 0.0};
  const slamb::statistics::choice_type made = chosen_by({outlier, outlier});
  CHECK(made.is_compressed);
  CHECK(made.dense_seconds == doctest::Approx(1.0));
  CHECK(made.compressed_seconds == doctest::Approx(0.8));
  const script varying{{0.7, 1.0, 1.0, 1.3}, {0.5, 0.8, 0.8, 1.1}, 0.0};  // equal medians, deviations of 0.15
  CHECK_FALSE(chosen_by({varying, varying}).is_compressed);
}

TEST_CASE("choose: ranks with different times decide alike, by the mean over ranks") {
  const script fast{{1.0}, {0.2}, 0.0};
  const script slow{{1.0}, {3.0}, 0.0};
  const slamb::statistics::choice_type apart = chosen_by({fast, slow});
  CHECK_FALSE(apart.is_compressed);
  CHECK(apart.compressed_seconds == doctest::Approx(1.6));
  CHECK(chosen_by({fast, {{1.0}, {1.2}, 0.0}, fast}).is_compressed);  // 1.6/3
}

TEST_CASE("choose: a single rank keeps the dense optimizer without a trial") {
  replica mine = some_replica();
  const slamb::statistics::choice_type made = choose_on_single_rank(mine, {}).statistics().chosen;
  CHECK_FALSE(made.is_compressed);
  CHECK(made.trial_steps == 0);
  CHECK(made.dense_seconds == 0.0);
}

// With a clock of bytes a step takes as long as it sends. The timed steps must be those of the training, whose traffic the
// planner knows.
template <class Compressed, class Mean>
void check_bytes(const typename Compressed::options_type& options, const choose_options& how, const Mean& mean) {
  std::vector<slamb::plan::tensor_shape> shapes;
  for (const test_support::tensor_spec& t : tensors()) shapes.push_back({t.size, t.dimensions});
  on_ranks(2, [&](rank_scene scene, replica&) {
    const auto optimizer = slamb::detail::choose_by<dense_type, Compressed>(
        [sent = scene.sent] { return *sent; }, scene.parameters, {}, options, std::move(scene.communicator), how,
        test_support::one_thread());
    const slamb::statistics::choice_type made = optimizer.statistics().chosen;
    const double elements = static_cast<double>(test_support::total_size(tensors()));
    constexpr double header =
        64.0;  // bytes before the trial's gradients; the trial has fewer elements than the training
    const double headers = header * elements / static_cast<double>(made.trial_elements);
    if (made.dense_seconds != doctest::Approx(4.0 * elements + headers)) throw std::logic_error("other bytes of LAMB");
    const double expected = mean(slamb::plan::plan_traffic(shapes, options, {.ranks = 2}));
    if (made.compressed_seconds != doctest::Approx(expected).epsilon(0.02))
      throw std::logic_error("a step is said to send " + std::to_string(made.compressed_seconds) +
                             " bytes, but it is " + std::to_string(expected));
    if (!made.is_compressed) throw std::logic_error("the dense one was kept, though it sends more");
    if (*scene.sent <= 0.0) throw std::logic_error("the clock stood still");
  });
}

TEST_CASE("choose: the trial of SLAMB sends the bytes of an average step of training, in full size or scaled down") {
  const auto mean = [](const auto& plan) { return static_cast<double>(plan.total(10).total().sent_bytes) / 10.0; };
  check_bytes<sparse_type>(sparse_options, {}, mean);
  sparse_type::options_type options = sparse_options;
  options.dense_below = 15'000;  // the tensor of 12'000 elements is dense, and so must be its part in the trial
  check_bytes<sparse_type>(options, {.most_elements = 8000}, mean);
}

TEST_CASE("choose: the 1-bit optimizers are tried in their compressed phase, for any warm-up") {
  using one_bit = slamb::one_bit_adam<metered_communicator>;
  const one_bit::options_type options{.warm_up = {.steps = 500}};
  check_bytes<one_bit>(options, {.steps = 1},
                       [](const auto& plan) { return static_cast<double>(plan.step(501).total().sent_bytes); });
}

TEST_CASE("choose: 0/1 Adam is tried in its local steps, with exchanges as often as its schedule has them") {
  using zero_one = slamb::zero_one_adam<metered_communicator>;
  const zero_one::options_type options{.variance_schedule = {.freeze_step = 2},
                                       .local_schedule = {.scaler = 1, .clipper = 8}};
  check_bytes<zero_one>(options, {.steps = 2, .training_steps = 8000}, [](const auto& plan) {
    return static_cast<double>((plan.total(1600) - plan.total(800)).total().sent_bytes) / 800.0;
  });
}

TEST_CASE("choose: a trial has all options of the training but the schedules") {
  const auto changed = [](auto o) {
    o.beta1 = 0.5;
    o.beta2 = 0.75;
    o.epsilon = 0.125;
    o.weight_decay = 0.25;
    o.update_bound = 3.0;
    o.max_gradient_norm = 5.0;
    o.clip_locally = o.compress_single_rank = true;
    o.ranks = {.bucket_bytes = 1234, .compare_every = 77};
    return o;
  };
  const auto check = [](const auto& o, const auto& its) {
    CHECK(its.beta1 == o.beta1);
    CHECK(its.beta2 == o.beta2);
    CHECK(its.epsilon == o.epsilon);
    CHECK(its.weight_decay == o.weight_decay);
    CHECK(its.update_bound == o.update_bound);
    CHECK(its.max_gradient_norm == o.max_gradient_norm);
    CHECK(its.clip_locally == o.clip_locally);
    CHECK(its.compress_single_rank == o.compress_single_rank);
    CHECK(its.ranks.compare_every == o.ranks.compare_every);
    CHECK(its.ranks.bucket_bytes == o.ranks.bucket_bytes);
  };
  using one_bit = slamb::one_bit_lamb<>;
  const auto options = changed(one_bit::options_type{});
  check(options, slamb::kit::trial_of<one_bit>::options(options, 1.0));
  using zero_one = slamb::zero_one_adam<>;
  const auto of_zero_one = changed(zero_one::options_type{});
  check(of_zero_one, slamb::kit::trial_of<zero_one>::options(of_zero_one, 1.0));
}

TEST_CASE("choose: the kept optimizer trains with the bits of that optimizer without a trial") {
  constexpr int steps = 12;
  for (const bool compressed : {false, true}) {
    CAPTURE(compressed);
    std::array<std::vector<float>, 2> chosen, plain;
    std::array<std::uint64_t, 2> traffic{};
    const auto train = [](auto& optimizer) {
      for (int t = 0; t < steps; ++t) {
        if (t % 3 != 2) {
          optimizer.step(0.01 * t);
          continue;
        }
        optimizer.begin_step(0.01 * t);
        optimizer.gradient_ready(1, 1);
        optimizer.finish_step();
      }
      return optimizer.statistics().traffic.total().sent_bytes;
    };
    on_ranks(2, [&](rank_scene scene, replica& mine) {
      const std::vector<float> before = mine.values();
      const script s{{1.0}, {compressed ? 0.1 : 10.0}, 0.0};
      chosen_type optimizer = slamb::detail::choose_by<dense_type, sparse_type>(
          s.clock(), scene.parameters, {}, sparse_options, std::move(scene.communicator), {.steps = 1},
          test_support::one_thread());
      const slamb::statistics fresh = optimizer.statistics();
      if (!test_support::same_bits(before, mine.values())) throw std::logic_error("parameters were touched");
      if (fresh.step != 0 || fresh.traffic != slamb::traffic_counts{} || fresh.chosen.is_compressed != compressed)
        throw std::logic_error("it is not as new");
      traffic[scene.rank] = train(optimizer);
      chosen[scene.rank] = mine.values();
    });
    on_ranks(2, [&](rank_scene scene, replica& mine) {
      const auto run = [&](auto optimizer_type, const auto& options) {
        typename decltype(optimizer_type)::type optimizer(scene.parameters, options, std::move(scene.communicator),
                                                          test_support::one_thread());
        if (train(optimizer) != traffic[scene.rank]) throw std::logic_error("other bytes were sent");
        plain[scene.rank] = mine.values();
      };
      if (compressed)
        run(std::type_identity<sparse_type>{}, sparse_options);
      else
        run(std::type_identity<dense_type>{}, dense_type::options_type{});
    });
    for (std::size_t rank = 0; rank < 2; ++rank) CHECK(test_support::same_bits(chosen[rank], plain[rank]));
  }
}

TEST_CASE("choose: all memory of the trial comes from the backend's allocator, and is free before the training") {
  on_ranks(2, [&](rank_scene scene, replica&) {
    std::size_t now = 0, most = 0;
    slamb::host_backend backend = test_support::one_thread();
    const slamb::allocator base = backend.memory;
    backend.memory = {.allocate =
                          [&, base](std::size_t bytes) {
                            most = std::max(most, now += bytes);
                            return base.allocate(bytes);
                          },
                      .deallocate =
                          [&, base](void* memory, std::size_t bytes) {
                            now -= bytes;
                            base.deallocate(memory, bytes);
                          }};
    for (const std::uint64_t limit : {std::uint64_t{1'000'000}, std::uint64_t{1000}}) {
      now = most = 0;
      const script s{{1.0}, {0.1}, 0.0};
      {
        chosen_type optimizer = slamb::detail::choose_by<dense_type, sparse_type>(
            s.clock(), scene.parameters, {}, sparse_options, std::move(scene.communicator),
            {.steps = 1, .most_elements = limit}, backend);
        const std::size_t own = optimizer.memory().total_bytes;
        const std::uint64_t elements = test_support::total_size(tensors());
        if (now != own) throw std::logic_error("more is held than the optimizer has");
        if (limit > elements && most < own + 8 * elements)
          throw std::logic_error("the scratch tensors are not the allocator's");
        if (limit < elements && most > own) throw std::logic_error("a trial of 1000 elements holds more than that");
        if (optimizer.statistics().chosen.trial_elements > limit + tensors().size())
          throw std::logic_error("the trial is too large");
        scene.communicator = std::move(optimizer.communicator());
      }
      if (now != 0) throw std::logic_error("something is still held");
    }
  });
}

TEST_CASE("choose: works on a deferred backend, with that backend's memory") {
  using adamw = slamb::adamw<metered_communicator, slamb::emulated_backend>;
  using lamb = slamb::lamb<metered_communicator, slamb::emulated_backend>;
  on_ranks(2, [](rank_scene scene, replica& mine) {
    const std::vector<float> before = mine.values();
    auto optimizer = slamb::detail::choose_by<adamw, lamb>(
        scripted_clock{{2.0, 1.0}}, scene.parameters, {}, {}, std::move(scene.communicator),
        {.steps = 1, .rounds = 1, .most_elements = 500}, slamb::emulated_backend{});
    if (!optimizer.is_compressed()) throw std::logic_error("the faster one was not kept");
    if (!test_support::same_bits(before, mine.values())) throw std::logic_error("parameters were touched");
    optimizer.step(0.01);
    if (optimizer.statistics().step != 1) throw std::logic_error("no step was taken");
  });
}

TEST_CASE("choose: wrong settings are named before any work") {
  replica mine = some_replica();
  const auto complaint = [&](const choose_options& how, const sparse_type::options_type& sparse = sparse_options) {
    return complaint_of([&] { choose_on_single_rank(mine, how, {}, sparse); });
  };
  CHECK(complaint({}) == "nothing was thrown");
  CHECK(complaint({.margin = 1.0}) == "slamb: choose_options's margin = 1, but it must be in [0, 1)");
  CHECK(complaint({.margin = -0.1}) == "slamb: choose_options's margin = -0.1, but it must be in [0, 1)");
  CHECK(complaint({.steps = 0}) == "slamb: choose_options's steps = 0, but it must be >= 1");
  CHECK(complaint({.rounds = 0}) == "slamb: choose_options's rounds = 0, but it must be >= 1");
  CHECK(complaint({.most_elements = 0}) == "slamb: choose_options's most_elements = 0, but it must be >= 1");
  CHECK(complaint({.training_steps = 0}) == "slamb: choose_options's training_steps = 0, but it must be >= 1");
  CHECK(complaint({.keep = static_cast<keep_rule>(7)}).find("measure, dense or compressed") != std::string::npos);
  CHECK(complaint({}, {.local_steps = -1}).find("local_steps = -1") !=
        std::string::npos);  // although the dense one is kept
  const std::vector<std::byte> nonsense(100);
  CHECK(complaint({.saved = nonsense}).find("of neither optimizer; it must be a state of basic_lamb or basic_slamb") !=
        std::string::npos);
}

TEST_CASE("choose: different arguments on different ranks are found before the trial") {
  CHECK(complaint_of([] {
          on_ranks(2, [](rank_scene scene, replica&) {
            slamb::choose<dense_type, sparse_type>(
                scene.parameters, {}, sparse_options, std::move(scene.communicator),
                {.keep = scene.rank == 0 ? keep_rule::measure : keep_rule::compressed}, test_support::one_thread());
          });
        }).find("ranks differ in the optimizer that is kept") != std::string::npos);
}

TEST_CASE("choose: resumes from a saved state with the optimizer of that state") {
  replica mine = some_replica();
  for (const keep_rule rule : {keep_rule::dense, keep_rule::compressed}) {
    chosen_type first = choose_on_single_rank(mine, {.keep = rule});
    CHECK(first.is_compressed() == (rule == keep_rule::compressed));
    first.step(0.01);
    const std::vector<std::byte> saved = first.save_state();
    chosen_type next = choose_on_single_rank(mine, {.saved = saved});
    CHECK(next.is_compressed() == first.is_compressed());
    CHECK(next.statistics().step == 1);
    CHECK(next.save_state() == saved);

    const keep_rule other = rule == keep_rule::dense ? keep_rule::compressed : keep_rule::dense;
    chosen_type wrong = choose_on_single_rank(mine, {.keep = other});
    const std::string said = complaint_of([&] { wrong.load_state(saved); });
    CHECK(said.find(other == keep_rule::dense
                        ? "of the compressed optimizer, basic_slamb, but the dense one was chosen"
                        : "of the dense optimizer, basic_lamb, but the compressed one was chosen") !=
          std::string::npos);
    CHECK(said.find("choose_options{.saved") != std::string::npos);
    CHECK(wrong.statistics().step == 0);
  }
}

TEST_CASE("choose: a communicator that fails in the trial fails on all ranks alike, and parameters do not change") {
  // The ranks try the communicator and compare settings and tensors in 4 rounds, at the start and for each optimizer; then come
  // the steps, and 3 sums of times.
  for (const std::uint64_t round : {0U, 2U, 7U, 9U, 11U, 15U, 18U, 20U, 21U}) {
    CAPTURE(round);
    slamb::thread_group group(3);
    group.inject({.rank = 1, .round = round});
    std::array<std::string, 3> said;
    std::array<bool, 3> untouched{};
    slamb::run_ranks(group, [&](slamb::thread_communicator communicator) {
      const auto rank = static_cast<std::size_t>(communicator.rank());
      replica mine = some_replica();
      const std::vector<float> before = mine.values();
      const script s{{1.0}, {0.1}, 0.0};
      try {
        slamb::detail::choose_by<dense_type, sparse_type>(s.clock(), mine.parameters(), {}, sparse_options,
                                                          {std::move(communicator), std::make_shared<double>(0.0)},
                                                          {.steps = 1, .rounds = 1}, test_support::one_thread());
      } catch (const slamb::communicator_error& error) {
        said[rank] = error.what();
      }
      untouched[rank] = mine.intact() && test_support::same_bits(before, mine.values());
    });
    for (std::size_t rank = 0; rank < 3; ++rank) {
      CHECK(said[rank].find("rank 1") != std::string::npos);
      CHECK(untouched[rank]);
    }
  }
}

}  // namespace optimizer_choose_tests
