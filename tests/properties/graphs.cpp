// Steps captured into a graph and launched repeatedly: equal bit for bit to steps called one by one, and an error if a step
// cannot be captured. Here a stand-in records the stream's work; tests/device does the same on a GPU.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "instances/emulated.hpp"
#include "slamb/communicator/run_ranks.hpp"
#include "slamb/slamb.hpp"
#include "support/generate.hpp"
#include "support/made_optimizer.hpp"
#include "support/recorded_backend.hpp"

namespace properties_graphs_tests {
namespace {

using test_support::maker_of;
using test_support::recorded_backend;
using test_support::recorded_communicator;
using test_support::recording;

using adamw = slamb::adamw<slamb::any_communicator<>, recorded_backend>;
using lamb = slamb::lamb<slamb::any_communicator<>, recorded_backend>;
template <class Compressor>
using sparse = slamb::slamb<slamb::any_communicator<>, Compressor, slamb::rescaled_trust_ratio<>, recorded_backend>;
using one_bit_adam = slamb::one_bit_adam<slamb::any_communicator<>, slamb::sign, recorded_backend>;
using one_bit_lamb = slamb::one_bit_lamb<slamb::any_communicator<>, slamb::sign, recorded_backend>;
using zero_one_adam = slamb::zero_one_adam<slamb::any_communicator<>, slamb::sign, recorded_backend>;

using recorded_maker = test_support::maker_on<recorded_backend>;

/// A rank's model in two groups, with new gradients in each step, and its optimizer.
class model_on_graph {
 public:
  model_on_graph(const recorded_maker& make, slamb::thread_communicator communicator)
      : rank_(communicator.rank()),
        size_(communicator.size()),
        data_(make_data(1)),
        gradient_(make_data(0)),
        optimizer_(make(parameters(), slamb::any_communicator<>(recorded_communicator(std::move(communicator), graph_)),
                        recorded_backend{.to = &graph_})) {}

  /// Makes the gradients and rates of step t. In every 97th step, one rank's gradient is NaN.
  void prepare(std::uint64_t t) {
    test_support::random_source random(17, t, static_cast<std::uint64_t>(rank_));
    for (auto& tensor : gradient_)
      for (float& g : tensor) g = static_cast<float>(random.uniform() - 0.5);
    if (t % 97 == 0 && rank_ == static_cast<int>(t / 97) % size_) gradient_[1][3] = std::nanf("");
    rates_[0] = 0.01 / std::sqrt(static_cast<double>(t));
    rates_[1] = 0.5 * rates_[0];
  }
  /// Scales the prepared gradients, and divides by the scale in the step; in some steps one rank reports an overflow.
  void scale_gradients(std::uint64_t t) {
    if (t == 1) optimizer_.set_gradient_scaling({.loss_scale = &loss_scale_, .found_inf = &found_inf_});
    loss_scale_ = std::ldexp(1.0F, static_cast<int>(t % 7));
    for (auto& tensor : gradient_)
      for (float& g : tensor) g *= loss_scale_;
    found_inf_ = t % 11 == 0 && rank_ == 0 ? 1.0F : 0.0F;
  }
  float found_inf() const noexcept { return found_inf_; }
  /// Moves all memory, and leaves a tensor without a gradient.
  void move_memory(std::uint64_t t) {
    old_.push_back(std::exchange(data_, std::vector<std::vector<float>>(data_)));
    old_.push_back(std::exchange(gradient_, std::vector<std::vector<float>>(gradient_)));
    std::vector<slamb::parameter::data_pointer> data;
    std::vector<const float*> gradients;
    for (std::size_t i = 0; i < data_.size(); ++i) {
      data.emplace_back(data_[i].data());
      gradients.push_back((i + t) % 3 == 0 ? nullptr : gradient_[i].data());
    }
    optimizer_.set_parameters(data);
    optimizer_.set_gradients(gradients);
  }
  /// Gives tensors gradients in the memory with this number: 0 is that of the construction. Then `prepare` writes there.
  void take_gradients_from(std::size_t number) {
    while (memories_.size() <= number) memories_.push_back(make_data(0));
    std::swap(gradient_, memories_[current_]);
    std::swap(gradient_, memories_[current_ = number]);
  }
  /// Poisons the memory of all other gradients, so that a step that reads there is noticed.
  void poison_others() {
    for (std::size_t i = 0; i < memories_.size(); ++i)
      for (auto& tensor : memories_[i])
        if (i != current_) std::ranges::fill(tensor, 1e3F);
  }
  void pass_gradients(std::size_t absent = 99) {
    std::vector<const float*> all;
    for (std::size_t i = 0; i < gradient_.size(); ++i) all.push_back(i == absent ? nullptr : gradient_[i].data());
    optimizer_.set_gradients(all);
  }
  /// Captures a step that reads the present gradients.
  recording captured_with_gradients(std::size_t absent = 99) {
    graph_.begin();
    try {
      pass_gradients(absent);
      step();
    } catch (...) {
      graph_.end();
      throw;
    }
    graph_.end();
    return graph_;
  }
  /// Changes the rate of group 1 in the prepared step.
  void change_rate() { rates_[1] *= 2.0; }
  void step() { optimizer_.step(slamb::device_learning_rates{rates_}); }
  void step_with_own_rates() { optimizer_.step(std::span<const double>(rates_)); }
  void capture() {
    graph_.begin();
    try {
      step();
    } catch (...) {
      graph_.end();
      throw;
    }
    graph_.end();
  }
  void replay() const { graph_.replay(); }

  test_support::made_optimizer& optimizer() noexcept { return optimizer_; }
  recording& graph() noexcept { return graph_; }
  const std::vector<std::vector<float>>& data() const noexcept { return data_; }

 private:
  static std::vector<std::vector<float>> make_data(std::uint64_t seed) {
    test_support::random_source random(seed, 5);
    std::vector<std::vector<float>> all;
    for (const std::size_t size : {40U, 7U, 0U, 100U}) {
      all.emplace_back(size);
      for (float& x : all.back()) x = static_cast<float>(random.uniform() - 0.5);
    }
    return all;
  }
  std::vector<slamb::parameter> parameters() {
    std::vector<slamb::parameter> parameters;
    for (std::size_t i = 0; i < data_.size(); ++i)
      parameters.push_back({.data = data_[i].data(),
                            .gradient = gradient_[i].data(),
                            .size = data_[i].size(),
                            .options = {.group = static_cast<int>(i % 2)}});
    return parameters;
  }

  int rank_;
  int size_;
  recording graph_;
  std::vector<std::vector<float>> data_, gradient_;
  std::vector<std::vector<std::vector<float>>> memories_{1};
  std::size_t current_ = 0;
  std::vector<std::vector<std::vector<float>>> old_;  // freed at the end, so that a step on old memory does not fault
  double rates_[2] = {};
  float loss_scale_ = 1.0F;
  float found_inf_ = 0.0F;
  test_support::made_optimizer optimizer_;
};

/// Trains twice: with `first` + `replays` steps, and with `first` steps and one that is captured and replayed.
void compare_replays(const recorded_maker& make, std::uint64_t first, std::uint64_t replays, int ranks) {
  std::vector<std::vector<float>> parameters[2][2];
  std::vector<std::byte> states[2][2];
  std::uint64_t steps[2][2] = {}, skipped[2][2] = {};
  for (const bool captures : {false, true})
    slamb::run_ranks(ranks, [&](slamb::thread_communicator communicator) {
      const int rank = communicator.rank();
      model_on_graph model(make, std::move(communicator));
      for (std::uint64_t t = 1; t <= first + replays; ++t) {
        model.prepare(t);
        if (t == first + 1 && captures) model.capture();
        if (t > first && captures)
          model.replay();
        else
          t % 2 == 0 ? model.step() : model.step_with_own_rates();
      }
      parameters[captures][rank] = model.data();
      states[captures][rank] = model.optimizer().save_state();
      const slamb::statistics all = model.optimizer().statistics();
      steps[captures][rank] = all.step, skipped[captures][rank] = all.skipped_steps;
    });
  for (int rank = 0; rank < ranks; ++rank) {
    CAPTURE(rank);
    CHECK(parameters[1][rank] == parameters[0][rank]);
    CHECK(states[1][rank] == states[0][rank]);
    CHECK(steps[1][rank] == first + replays - (first + replays) / 97);
    CHECK(skipped[1][rank] == (first + replays) / 97);
    CHECK(steps[0][rank] == steps[1][rank]);
  }
}

template <class Optimizer>
void compare_replays(const typename Optimizer::options_type& options, std::uint64_t first, std::uint64_t replays,
                     int ranks = 2) {
  compare_replays(test_support::maker_of<Optimizer>(options), first, replays, ranks);
}

/// The message of the exception of a capture after `first` steps; checks that the capture has no other effect.
std::string refusal_of_capture(const recorded_maker& make, std::uint64_t first) {
  std::string message;
  std::vector<std::vector<float>> parameters[2];
  for (const bool captures : {false, true})
    slamb::run_ranks(2, [&](slamb::thread_communicator communicator) {
      const int rank = communicator.rank();
      model_on_graph model(make, std::move(communicator));
      for (std::uint64_t t = 1; t <= first + 2; ++t) {
        model.prepare(t);
        if (t == first + 1 && captures) {
          std::string mine = "nothing was thrown";
          try {
            model.capture();
          } catch (const std::logic_error& refusal) {
            mine = refusal.what();
          }
          if (rank == 0) message = mine;
        }
        model.step_with_own_rates();
      }
      if (rank == 0) parameters[captures] = model.data();
    });
  CHECK(parameters[0] == parameters[1]);
  return message;
}
template <class Optimizer>
std::string refusal_of_capture(const typename Optimizer::options_type& options, std::uint64_t first) {
  return refusal_of_capture(test_support::maker_of<Optimizer>(options), first);
}

bool says(const std::string& message, const std::string& part) { return message.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("graphs: 1000 replays equal 1000 steps of AdamW and LAMB") {
  compare_replays<adamw>({}, 1, 1000);
  compare_replays<lamb>({.max_gradient_norm = 2.0}, 1, 1000);
}

TEST_CASE("graphs: 1000 replays equal 1000 steps of SLAMB") {
  compare_replays<sparse<slamb::random_k<>>>({.local_steps = 0, .dense_below = 20, .compressor = {.k = 0.2}}, 1, 1000);
}

TEST_CASE("graphs: 1000 replays equal 1000 steps of the 1-bit optimizers, after the warm-up") {
  compare_replays<one_bit_adam>({.warm_up = {.steps = 5}}, 6, 1000);
  compare_replays<one_bit_lamb>({.warm_up = {.steps = 5}}, 5, 1000);
}

TEST_CASE("graphs: replays equal steps on a single rank too") {
  compare_replays<lamb>({}, 1, 100, 1);
  compare_replays<sparse<slamb::random_k<>>>({.local_steps = 0, .dense_below = 20}, 1, 100, 1);
  for (const bool alone : {false, true}) {
    compare_replays<one_bit_adam>({.compress_single_rank = alone, .warm_up = {.steps = 2}}, 3, 100, 1);
    compare_replays<one_bit_lamb>({.compress_single_rank = alone, .warm_up = {.steps = 2}}, 3, 100, 1);
  }
}

TEST_CASE(
    "graphs: replays read scales and overflow flags, and find memory that has moved and gradients that are gone") {
  const auto check = [](const recorded_maker& make) {
    constexpr std::uint64_t first = 3, steps = 40;
    std::vector<std::vector<float>> parameters[2][2];
    std::vector<std::byte> states[2][2];
    std::uint64_t skipped[2] = {};
    for (const bool captures : {false, true})
      slamb::run_ranks(2, [&](slamb::thread_communicator communicator) {
        const int rank = communicator.rank();
        model_on_graph model(make, std::move(communicator));
        for (std::uint64_t t = 1; t <= steps; ++t) {
          model.prepare(t);
          model.scale_gradients(t);
          if (t == first + 1 && captures) model.capture();
          if (t % 4 == 0) model.move_memory(t);
          if (t > first && captures)
            model.replay();
          else
            model.step();
          CHECK(model.found_inf() == (t % 11 == 0 ? 1.0F : 0.0F));  // on both ranks
        }
        parameters[captures][rank] = model.data();
        states[captures][rank] = model.optimizer().save_state();
        skipped[captures] = model.optimizer().statistics().skipped_steps;
      });
    for (int rank = 0; rank < 2; ++rank) {
      CHECK(parameters[1][rank] == parameters[0][rank]);
      CHECK(states[1][rank] == states[0][rank]);
    }
    CHECK(skipped[0] == 3);
    CHECK(skipped[1] == 3);
  };
  check(maker_of<lamb>({.max_gradient_norm = 0.5}));
  check(maker_of<sparse<slamb::random_k<>>>({.max_gradient_norm = 0.5, .local_steps = 0}));
  check(maker_of<one_bit_lamb>({.warm_up = {.steps = 2}}));
}

TEST_CASE("graphs: steps of two graphs and steps that are not captured each read their own gradients") {
  const auto check = [](const recorded_maker& make) {
    constexpr std::uint64_t first = 3, steps = 40;
    std::vector<std::vector<float>> parameters[2][2];
    std::vector<std::byte> states[2][2];
    for (const bool captures : {false, true})
      slamb::run_ranks(2, [&](slamb::thread_communicator communicator) {
        const int rank = communicator.rank();
        model_on_graph model(make, std::move(communicator));
        std::vector<recording> graphs;
        for (std::uint64_t t = 1; t <= steps; ++t) {
          if (t == first + 1 && captures)
            for (const std::size_t memory : {1U, 2U}) {
              model.take_gradients_from(memory);
              graphs.push_back(model.captured_with_gradients());
            }
          // Step t: by a graph, with gradients that it has set, or with those that the step before has set.
          const std::size_t memory = t <= first ? 0 : t % 4 == 3 ? 0 : t % 4 == 0 ? 0 : t % 4;
          model.take_gradients_from(memory);
          model.prepare(t);
          model.poison_others();
          if (captures && memory > 0) {
            graphs[memory - 1].replay();
          } else {
            if (t == first + 1 || t % 4 != 0) model.pass_gradients();
            model.step();
          }
        }
        parameters[captures][rank] = model.data();
        states[captures][rank] = model.optimizer().save_state();
      });
    for (int rank = 0; rank < 2; ++rank) {
      CHECK(parameters[1][rank] == parameters[0][rank]);
      CHECK(states[1][rank] == states[0][rank]);
    }
  };
  check(maker_of<adamw>({}));
  check(maker_of<lamb>({.max_gradient_norm = 0.5}));
  check(maker_of<sparse<slamb::random_k<>>>({.max_gradient_norm = 0.5, .local_steps = 0}));
  check(maker_of<one_bit_lamb>({.warm_up = {.steps = 2}}));
}

TEST_CASE("graphs: a captured step writes the pointers of many tensors, and of tensors without a gradient") {
  for (const std::size_t tensors : {1U, 17U, 18U, 19U, 72U, 73U, 200U}) {
    CAPTURE(tensors);
    const auto absent = [tensors](std::size_t i) { return tensors > 1 && i % 5 == 1; };
    recording graph;
    std::vector<float> data(tensors, 1.0F), gradient(tensors, 0.25F), other(tensors, -0.5F), expected;
    std::vector<slamb::parameter> parameters;
    std::vector<const float*> own, others, all_others;
    for (std::size_t i = 0; i < tensors; ++i) {
      parameters.push_back({.data = &data[i], .gradient = absent(i) ? nullptr : &gradient[i], .size = 1});
      own.push_back(absent(i) ? nullptr : &gradient[i]);
      others.push_back(absent(i) ? nullptr : &other[i]);
      all_others.push_back(&other[i]);
    }
    slamb::adamw<slamb::self_communicator, recorded_backend> optimizer(
        parameters, {.beta1 = 0.0, .beta2 = 0.0, .epsilon = 1e-30, .weight_decay = 0.0}, {},
        recorded_backend{.to = &graph});
    const double rate = 0.25;
    const auto step = [&] { optimizer.step(slamb::device_learning_rates{&rate}); };  // moves by rate * sign
    step();
    graph.begin();
    optimizer.set_gradients(own);
    step();
    graph.end();
    optimizer.set_gradients(others);
    step();
    graph.replay();
    optimizer.set_gradients(all_others);
    graph.replay();
    step();
    for (std::size_t i = 0; i < tensors; ++i) expected.push_back(absent(i) ? 1.25F : 0.75F);
    CHECK(data == expected);
    CHECK(optimizer.statistics().step == 5);
  }
}

TEST_CASE("graphs: a step cannot be captured with gradients for other tensors than before") {
  slamb::run_ranks(2, [](slamb::thread_communicator communicator) {
    const bool is_first = communicator.rank() == 0;
    model_on_graph model(maker_of<lamb>({}), std::move(communicator));
    model.prepare(1);
    model.step();
    const auto before = model.data();
    std::string said;
    try {
      static_cast<void>(model.captured_with_gradients(1));
    } catch (const std::logic_error& error) {
      said = error.what();
    }
    if (is_first)
      CHECK(said ==
            "slamb: set_gradients() was given null for tensor 1 while steps are captured into a graph, but the tensor "
            "had one before; take a step with the same gradients before the capture");
    CHECK(model.data() == before);
    model.prepare(2);
    model.step();
    CHECK(model.optimizer().statistics().step == 2);
  });
}

TEST_CASE("graphs: SLAMB's parameters are averaged by a separate graph") {
  std::vector<std::vector<float>> parameters[2][2];
  for (const bool captures : {false, true})
    slamb::run_ranks(2, [&](slamb::thread_communicator communicator) {
      const int rank = communicator.rank();
      model_on_graph model(maker_of<sparse<slamb::random_k<>>>({.local_steps = 0, .dense_below = 20}),
                           std::move(communicator));
      for (std::uint64_t t = 1; t <= 12; ++t) {
        model.prepare(t);
        model.step();
        if (t % 4 != 0) continue;
        if (!captures) {
          model.optimizer().synchronize_parameters();
          continue;
        }
        model.graph().begin();
        model.optimizer().synchronize_parameters();
        model.graph().end();
        model.replay();
      }
      parameters[captures][rank] = model.data();
    });
  CHECK(parameters[0][0] == parameters[1][0]);
  CHECK(parameters[1][0] == parameters[1][1]);
}

TEST_CASE("graphs: an evaluation on averaged parameters is rejected during capture, and otherwise changes no bits") {
  std::vector<std::vector<float>> parameters[2][2];
  for (const bool evaluates : {false, true})
    slamb::run_ranks(2, [&](slamb::thread_communicator communicator) {
      const int rank = communicator.rank();
      model_on_graph model(maker_of<sparse<slamb::random_k<>>>({.local_steps = 0, .dense_below = 20}),
                           std::move(communicator));
      for (std::uint64_t t = 1; t <= 6; ++t) {
        model.prepare(t);
        model.step();
        if (!evaluates) continue;
        const std::vector<std::vector<float>> own = model.data();
        std::vector<std::vector<float>> seen;
        model.optimizer().with_averaged_parameters([&] { seen = model.data(); });
        CHECK(seen != own);
        CHECK(model.data() == own);
        std::string said;
        model.graph().begin();
        try {
          model.optimizer().with_averaged_parameters([] {});
        } catch (const std::logic_error& error) {
          said = error.what();
        }
        model.graph().end();
        CHECK(says(said, "with_averaged_parameters() was called while steps are captured into a graph"));
        CHECK(model.graph().size() == 0);
        CHECK(model.data() == own);
      }
      parameters[evaluates][rank] = model.data();
    });
  CHECK(parameters[0][0] == parameters[1][0]);
  CHECK(parameters[0][1] == parameters[1][1]);
}

namespace {

/// Rank 1 gets another rate in replay 5 of 8. Returns the messages of all ranks after it, or a fault before it.
std::vector<std::string> said_after_replays(const recorded_maker& make, std::uint64_t first) {
  std::vector<std::string> said(2);
  slamb::run_ranks(2, [&](slamb::thread_communicator communicator) {
    const auto rank = static_cast<std::size_t>(communicator.rank());
    model_on_graph model(make, std::move(communicator));
    std::vector<std::vector<float>> before;
    for (std::uint64_t t = 1; t <= first + 8; ++t) {
      model.prepare(t);
      if (t == first + 1) model.capture();
      if (t == first + 5) before = model.data();
      if (t == first + 5 && rank == 1) model.change_rate();
      t <= first ? model.step() : model.replay();
      if (model.optimizer().statistics().has_diverged != (t >= first + 5)) said[rank] += "has_diverged is wrong; ";
    }
    if (model.data() != before) said[rank] += "moved; ";
    model.prepare(first + 9);
    try {
      while (said[rank].empty() && model.optimizer().statistics().step < 100) model.step();
    } catch (const slamb::rank_mismatch_error& error) {
      said[rank] += error.what();
    }
  });
  return said;
}

}  // namespace

TEST_CASE("graphs: replays in which ranks differ change nothing, and the next query throws") {
  const std::string message =
      "slamb: ranks differ in the learning rates or the parameters of step 7, which has not been taken (rank 0 and "
      "rank 1); step() must be given the same learning rates on all ranks";
  const std::vector<std::string> expected(2, message);
  CHECK(said_after_replays(maker_of<lamb>({}), 2) == expected);
  CHECK(said_after_replays(maker_of<one_bit_lamb>({.warm_up = {.steps = 2}}), 2) == expected);
  CHECK(said_after_replays(maker_of<sparse<slamb::random_k<>>>({.local_steps = 0}), 2) == expected);
}

TEST_CASE("graphs: calls that cannot be captured throw with the reason, and the optimizer continues") {
  const std::string averages = refusal_of_capture<sparse<slamb::random_k<>>>({.local_steps = 4}, 2);
  CHECK(says(averages, "cannot be captured into a graph"));
  CHECK(says(averages, "local_steps = 0"));
  CHECK(says(averages, "synchronize_parameters()"));
  CHECK(says(refusal_of_capture<one_bit_lamb>({.warm_up = {.steps = 5}}, 2), "warm-up"));
  CHECK(says(refusal_of_capture<zero_one_adam>({}, 2), "schedules"));
  CHECK(says(refusal_of_capture<sparse<slamb::top_k>>({.local_steps = 0}, 2), "the rank that chooses"));
  CHECK(says(refusal_of_capture<sparse<slamb::random_k<slamb::sampling::bernoulli>>>({.local_steps = 0}, 2),
             "waits for the device's work"));
}

TEST_CASE("graphs: calls that would wait for the device throw during capture") {
  slamb::run_ranks(1, [](slamb::thread_communicator communicator) {
    model_on_graph model(maker_of<lamb>({}), std::move(communicator));
    model.prepare(1);
    model.step();
    model.graph().begin();
    CHECK_THROWS_AS(model.optimizer().statistics(), std::logic_error);
    CHECK_THROWS_AS(model.optimizer().save_state(), std::logic_error);
    CHECK_THROWS_AS(model.optimizer().set_steps(1), std::logic_error);
    CHECK(model.graph().size() == 0);
    model.graph().end();
    CHECK(model.optimizer().statistics().step == 1);
  });
  slamb::run_ranks(1, [](slamb::thread_communicator communicator) {
    model_on_graph model(maker_of<zero_one_adam>({}), std::move(communicator));
    model.prepare(1);
    model.step_with_own_rates();  // the host does not know whether this step was taken
    model.graph().waits = 0;
    model.graph().begin();
    CHECK_THROWS_AS(model.step_with_own_rates(), std::logic_error);
    CHECK_THROWS_AS(model.optimizer().statistics(), std::logic_error);
    CHECK_THROWS_AS(model.optimizer().save_state(), std::logic_error);
    CHECK_THROWS_AS(model.optimizer().synchronize_parameters(), std::logic_error);
    CHECK(model.graph().waits == 0);
    CHECK(model.graph().size() == 0);
    model.graph().end();
    model.step_with_own_rates();
    CHECK(model.optimizer().statistics().step == 2);
  });
  slamb::run_ranks(2, [](slamb::thread_communicator communicator) {
    model_on_graph model(maker_of<one_bit_adam>({.warm_up = {.steps = 1}}), std::move(communicator));
    for (std::uint64_t t = 1; t <= 2; ++t) model.prepare(t), model.step();
    model.optimizer().measure_next_step();
    model.capture();
    model.replay();
    CHECK(model.optimizer().statistics().compression.empty());
    model.step();
    CHECK(model.optimizer().statistics().compression.size() == 2);
    CHECK(model.optimizer().statistics().step == 4);
  });
}

TEST_CASE("devices: a step waits through the communicator, which detects missing ranks") {
  slamb::run_ranks(2, [](slamb::thread_communicator communicator) {
    model_on_graph model(maker_of<sparse<slamb::random_k<>>>({.local_steps = 3}), std::move(communicator));
    model.graph().waits = 0;  // without the waits of the construction
    std::vector<std::size_t> waits;
    for (std::uint64_t t = 1; t <= 7; ++t) {
      model.prepare(t);
      model.step();
      waits.push_back(std::exchange(model.graph().waits, 0));
    }
    // Waits before an averaging and after it, because a possible skip decides which step comes next. Before the first step the
    // ranks compare their states.
    const bool twice_in_three = waits == std::vector<std::size_t>{2, 1, 0, 1, 1, 0, 1};
    CHECK(twice_in_three);
    model.prepare(8);
    const auto state = model.optimizer().save_state();
    model.graph().peers_are_gone = true;
    const auto before = model.data();
    CHECK_THROWS_WITH_AS(model.step(), "the peers are gone", slamb::communicator_error);
    CHECK(model.data() == before);
    model.graph().peers_are_gone = false;
    CHECK(model.optimizer().save_state() == state);
  });
}

TEST_CASE("devices: every read on the host first waits through the communicator for collectives") {
  for (const recorded_maker& make : {
           maker_of<lamb>({}),
           maker_of<sparse<slamb::random_k<>>>({.local_steps = 3, .dense_below = 20}),
           maker_of<sparse<slamb::random_k<slamb::sampling::bernoulli>>>({.local_steps = 3, .dense_below = 20}),
           maker_of<sparse<slamb::top_k>>({.local_steps = 3, .dense_below = 20}),
           maker_of<one_bit_lamb>({.warm_up = {.steps = 2}}),
           maker_of<zero_one_adam>({}),
       })
    slamb::run_ranks(2, [&](slamb::thread_communicator communicator) {
      model_on_graph model(make, std::move(communicator));
      const recording& graph = model.graph();
      CHECK(graph.reads > 0);  // the read of the ranks' agreement at construction
      std::size_t reads = graph.reads;
      const auto has_read = [&] { return std::exchange(reads, graph.reads) < graph.reads; };
      for (std::uint64_t t = 1; t <= 7; ++t) {
        model.optimizer().measure_next_step();
        model.prepare(t);
        model.step_with_own_rates();
      }
      has_read();
      const auto after_a_step = [&](const auto& ask) {
        model.prepare(8);
        model.step_with_own_rates();
        has_read();
        ask();
        CHECK(has_read());
      };
      after_a_step([&] { CHECK(model.optimizer().statistics().step == 8); });
      after_a_step([&] { CHECK(model.optimizer().statistics(true).norm.parameters > 0.0); });
      after_a_step([&] { model.optimizer().load_state(model.optimizer().save_state()); });
      CHECK(graph.unwatched_reads == 0);
    });
}

TEST_CASE("devices: a query of an optimizer whose peers are gone throws instead of waiting") {
  slamb::run_ranks(2, [](slamb::thread_communicator communicator) {
    model_on_graph model(maker_of<one_bit_adam>({.warm_up = {.steps = 1}}), std::move(communicator));
    for (std::uint64_t t = 1; t <= 2; ++t) model.prepare(t), model.step();
    const std::vector<std::byte> state = model.optimizer().save_state();
    const std::vector<std::vector<float>> before = model.data();
    model.graph().peers_are_gone = true;
    const auto is_told = [&](const auto& ask) {
      CHECK_THROWS_WITH_AS(ask(), "the peers are gone", slamb::communicator_error);
    };
    is_told([&] { model.optimizer().statistics(); });
    is_told([&] { model.optimizer().save_state(); });
    is_told([&] { model.optimizer().load_state(state); });
    model.optimizer().measure_next_step();
    model.prepare(3);
    is_told([&] { model.step(); });
    CHECK(model.data() == before);
  });
}

TEST_CASE("learning rates in memory: an invalid rate skips the step on all ranks") {
  for (const double wrong : {-0.1, 1e39, std::numeric_limits<double>::infinity(), std::nan("")})
    slamb::run_ranks(2, [&](slamb::thread_communicator communicator) {
      const bool is_first = communicator.rank() == 0;
      model_on_graph model(maker_of<lamb>({}), std::move(communicator));
      model.prepare(1);
      const auto before = model.data();
      const double rates[] = {0.1, is_first ? wrong : 0.1};
      model.optimizer().step(slamb::device_learning_rates{rates});
      CHECK(model.optimizer().statistics().skipped_steps == 1);
      CHECK(model.data() == before);
      CHECK_THROWS_WITH_AS(model.optimizer().step(slamb::device_learning_rates{}),
                           "slamb: step() was given device_learning_rates with a null pointer, but it must point to a "
                           "rate for each group",
                           std::invalid_argument);
    });
}

TEST_CASE("learning rates in memory: the factors of tensors apply, and groups without tensors are ignored") {
  std::vector<float> data(2, 1.0F), gradient(2, 0.5F);
  const std::vector<slamb::parameter> parameters = {
      {.data = &data[0], .gradient = &gradient[0], .size = 1, .options = {.learning_rate_factor = 10.0}},
      {.data = &data[1], .gradient = &gradient[1], .size = 1, .options = {.group = 2}}};
  using optimizer_type = slamb::adamw<slamb::self_communicator, slamb::emulated_backend>;
  optimizer_type optimizer(parameters, {});
  const double with_hole[] = {0.1, std::nan(""), 0.1}, too_large[] = {1e38, 0.0, 0.1};
  optimizer.step(slamb::device_learning_rates{with_hole});
  CHECK(optimizer.statistics().step == 1);
  const std::vector<float> before = data;
  optimizer.step(slamb::device_learning_rates{too_large});
  CHECK(optimizer.statistics().skipped_steps == 1);
  CHECK(data == before);
  optimizer_type unchecked(parameters, {.skip_non_finite = false});
  unchecked.step(slamb::device_learning_rates{too_large});  // takes it, as it does not check
  CHECK(unchecked.statistics().step == 1);
}

TEST_CASE("learning rates: more groups than are sent at once, and more than can be sent") {
  for (const std::size_t groups : {37U, 64U, 65U, 300U}) {
    std::vector<float> data(groups, 1.0F), gradient(groups, 0.5F), expected;
    std::vector<slamb::parameter> parameters;
    std::vector<double> rates;
    for (std::size_t i = 0; i < groups; ++i) {
      parameters.push_back(
          {.data = &data[i], .gradient = &gradient[i], .size = 1, .options = {.group = static_cast<int>(i)}});
      rates.push_back(0.25 / static_cast<double>(1U << i % 8));
      expected.push_back(1.0F - static_cast<float>(rates.back()));
    }
    slamb::adamw<slamb::self_communicator, slamb::emulated_backend> optimizer(
        parameters, {.beta1 = 0.0, .beta2 = 0.0, .epsilon = 1e-30, .weight_decay = 0.0});
    optimizer.step(rates);  // u = g/|g| = 1
    CHECK(data == expected);
  }
}

}  // namespace properties_graphs_tests
