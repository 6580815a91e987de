// An optimizer takes one call at a time: a second one, from another thread or from a Communicator within the first, throws.
#include <doctest/doctest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <latch>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "slamb/slamb.hpp"
#include "support/generate.hpp"
#include "support/replica.hpp"
#include "support/watching_communicators.hpp"

namespace faults_calls_tests {
namespace {

using slamb::optimizer;
using test_support::imagined_peers;
using test_support::replica;

const test_support::model tensors{{300}, {17, 1}, {9100}};

std::vector<float> start() { return test_support::random_parameters(3, test_support::total_size(tensors)); }

/// Rank 0 of two. It calls `in_collective` once, before its next collective.
class interrupting_communicator {
 public:
  interrupting_communicator(imagined_peers ranks, std::function<void()>& in_collective)
      : ranks_(ranks), in_collective_(&in_collective) {}

  static int rank() { return 0; }
  int size() const { return ranks_.size(); }
  void all_reduce_sum(std::span<float> values, slamb::host_stream stream) {
    if (const auto interrupt = std::exchange(*in_collective_, nullptr)) interrupt();
    ranks_.all_reduce_sum(values, stream);
  }

 private:
  imagined_peers ranks_;
  std::function<void()>* in_collective_;
};

using lamb = slamb::lamb<interrupting_communicator>;
using sparse = slamb::slamb<interrupting_communicator>;

/// A call with its name.
struct named_call {
  std::string name;
  std::function<void(optimizer&)> make;
};

const std::vector<const float*> gradients(tensors.size(), nullptr);

/// All calls of an optimizer that a second caller may make. The first test case checks that the list is complete.
const std::vector<named_call>& every_call() {
  static const double rates[] = {0.1};
  static const std::vector<named_call> all{
      {"step()", [](optimizer& o) { o.step(0.1); }},
      {"step()", [](optimizer& o) { o.step(std::span<const double>(rates)); }},
      {"step()", [](optimizer& o) { o.step(slamb::device_learning_rates{rates}); }},
      {"begin_step()", [](optimizer& o) { o.begin_step(0.1); }},
      {"begin_step()", [](optimizer& o) { o.begin_step(std::span<const double>(rates)); }},
      {"begin_step()", [](optimizer& o) { o.begin_step(slamb::device_learning_rates{rates}); }},
      {"gradient_ready()", [](optimizer& o) { o.gradient_ready(0, 1); }},
      {"finish_step()", [](optimizer& o) { o.finish_step(); }},
      {"synchronize_parameters()", [](optimizer& o) { o.synchronize_parameters(); }},
      {"broadcast_parameters()", [](optimizer& o) { o.broadcast_parameters(); }},
      {"compare_ranks()", [](optimizer& o) { o.compare_ranks(); }},
      {"with_averaged_parameters()", [](optimizer& o) { o.with_averaged_parameters([] {}); }},
      {"statistics()", [](optimizer& o) { static_cast<void>(std::as_const(o).statistics()); }},
      {"memory()", [](optimizer& o) { static_cast<void>(std::as_const(o).memory()); }},
      {"save_state()", [](optimizer& o) { static_cast<void>(std::as_const(o).save_state()); }},
      {"save_state()", [](optimizer& o) { std::as_const(o).save_state([](std::span<const std::byte> /*piece*/) {}); }},
      {"load_state()", [](optimizer& o) { o.load_state({}); }},
      {"load_state()", [](optimizer& o) { o.load_state(slamb::detail::source_in({})); }},
      {"set_gradient_scaling()", [](optimizer& o) { o.set_gradient_scaling({}); }},
      {"moments()", [](optimizer& o) { o.moments(0); }},
      {"set_steps()", [](optimizer& o) { o.set_steps(0); }},
      {"set_options()", [](optimizer& o) { o.set_options({}); }},
      {"reload_parameters()", [](optimizer& o) { o.reload_parameters(); }},
      {"set_parameters()", [](optimizer& o) { o.set_parameters({}); }},
      {"set_gradient()", [](optimizer& o) { o.set_gradient(0, nullptr); }},
      {"set_gradients()", [](optimizer& o) { o.set_gradients(gradients); }}};
  return all;
}

/// Notes the functions that were called. Each call of an optimizer is a function of its recipe: a new one causes a compiler
/// error here, and then a failing test until it is in every_call().
class noting_recipe final : public slamb::detail::recipe {
 public:
  enum call {
    step_with_rates,
    step_with_rates_at,
    begin_with_rates,
    begin_with_rates_at,
    ready,
    finish,
    synchronize,
    broadcast,
    compare,
    average,
    statistics_of,
    memory_of,
    save,
    load,
    scale_gradients,
    moments_of,
    replace_steps,
    change_options,
    reload,
    set_all_parameters,
    set_one_gradient,
    set_all_gradients,
    calls
  };
  using noted = std::array<int, calls>;  ///< number of calls

  explicit noting_recipe(noted& to) : noted_(&to) {}

  slamb::detail::call_scope enter() const noexcept override { return {}; }
  void abandon_step() noexcept override {}  // not called by users

  void step(std::span<const double> /*rates*/) override { note(step_with_rates); }
  void step(const slamb::device_learning_rates& /*rates*/) override { note(step_with_rates_at); }
  void begin_step(std::span<const double> /*rates*/) override { note(begin_with_rates); }
  void begin_step(const slamb::device_learning_rates& /*rates*/) override { note(begin_with_rates_at); }
  void gradient_ready(std::size_t /*first*/, std::size_t /*count*/) override { note(ready); }
  void finish_step() override { note(finish); }
  void synchronize_parameters() override { note(synchronize); }
  void broadcast_parameters(int /*root*/) override { note(broadcast); }
  void compare_ranks() override { note(compare); }
  void with_averaged_parameters(const std::function<void()>& /*evaluate*/) override { note(average); }
  slamb::statistics report(bool /*with_norms*/) override { return note(statistics_of), slamb::statistics{}; }
  slamb::memory_report memory() const override { return note(memory_of), slamb::memory_report{}; }
  void save_state(const slamb::byte_sink& /*to*/, const slamb::save_options& /*options*/) override { note(save); }
  void load_state(const slamb::byte_source& /*from*/, const slamb::restore_options& /*options*/) override {
    note(load);
  }
  void set_gradient_scaling(const slamb::optimizer::gradient_scaling& /*scaling*/) override { note(scale_gradients); }
  slamb::optimizer::tensor_moments moments(std::size_t /*tensor*/) const override {
    return note(moments_of), slamb::optimizer::tensor_moments{};
  }
  void set_steps(const slamb::optimizer::past_steps& /*past*/) override { note(replace_steps); }
  void set_options(const slamb::optimizer::option_changes& /*changes*/) override { note(change_options); }
  void reload_parameters() override { note(reload); }
  void set_parameters(std::span<const slamb::parameter::data_pointer> /*data*/,
                      std::optional<std::span<const slamb::parameter::gradient_pointer>> /*gradients*/) override {
    note(set_all_parameters);
  }
  void set_gradient(std::size_t /*tensor*/, const slamb::parameter::gradient_pointer& /*gradient*/) override {
    note(set_one_gradient);
  }
  void set_gradients(std::span<const slamb::parameter::gradient_pointer> /*gradients*/) override {
    note(set_all_gradients);
  }

 private:
  void note(call made) const { ++(*noted_)[made]; }

  noted* noted_;
};

struct noting_optimizer : optimizer {
  explicit noting_optimizer(noting_recipe::noted& to) : optimizer(std::make_unique<noting_recipe>(to)) {}
};

/// The message of the std::logic_error of the call; empty if it throws nothing.
std::string refusal_of(const named_call& call, optimizer& of) {
  try {
    call.make(of);
  } catch (const std::invalid_argument& failure) {
    return std::string("invalid_argument: ") + failure.what();
  } catch (const std::logic_error& failure) {
    return failure.what();
  }
  return "";
}

std::string from_another_thread(const std::string& call, const std::string& running) {
  return "slamb: " + call + " was called while " + running +
         " of the same optimizer was running in another thread; an optimizer takes one call at a time: wait until " +
         running + " has returned";
}
std::string from_within(const std::string& call, const std::string& running) {
  return "slamb: " + call + " was called within " + running +
         " of the same optimizer, by a function that it calls, such as a collective of its Communicator; call it "
         "when " +
         running + " has returned";
}

/// Two optimizers of the same kind. During a collective of one, all calls are made again and must throw. Both must end with the
/// same state.
template <class Optimizer>
struct interrupted {
  explicit interrupted(const typename Optimizer::options_type& options)
      : mine(tensors, start()),
        others(tensors, start()),
        run(mine.parameters(), options, {imagined_peers(2, imagined_peers::habit::send_the_same), in_collective}),
        undisturbed(others.parameters(), options,
                    {imagined_peers(2, imagined_peers::habit::send_the_same), in_no_collective}) {}

  /// Makes the call `outer` on both, and every call within the first's.
  void check(const named_call& outer, bool in_another_thread) {
    CAPTURE(outer.name);
    std::vector<std::string> refusals;
    const auto call_all = [&] {
      for (const named_call& call : every_call()) refusals.push_back(refusal_of(call, run));
      static_cast<void>(run.options());  // references, which are always available
      static_cast<void>(run.communicator());
    };
    in_collective = [&] {
      if (!in_another_thread) return call_all();
      const std::jthread another(call_all);
    };
    mine.set_gradient(mine.values());
    others.set_gradient(others.values());
    outer.make(run);
    outer.make(undisturbed);
    REQUIRE(refusals.size() == every_call().size());  // the collective was called
    for (std::size_t i = 0; i < refusals.size(); ++i) {
      const std::string& name = every_call()[i].name;
      CHECK(refusals[i] == (in_another_thread ? from_another_thread(name, outer.name) : from_within(name, outer.name)));
    }
    check_equal();
  }

  void check_equal() {
    CHECK(test_support::same_bits(mine.values(), others.values()));
    CHECK(run.save_state() == undisturbed.save_state());
    CHECK(run.statistics().step == undisturbed.statistics().step);
  }

  replica mine, others;
  std::function<void()> in_collective, in_no_collective;
  Optimizer run, undisturbed;
};

template <class Optimizer>
void check_interrupted(const typename Optimizer::options_type& options) {
  interrupted<Optimizer> both(options);
  for (const bool in_another_thread : {true, false}) {
    both.check(every_call()[0], in_another_thread);
    both.run.begin_step(0.1);
    both.undisturbed.begin_step(0.1);
    both.check({"finish_step()", [](optimizer& o) { o.finish_step(); }}, in_another_thread);
  }
  both.run.step(0.1);
  both.undisturbed.step(0.1);
  both.check_equal();
  CHECK(both.run.statistics().step == 5);
}

}  // namespace

TEST_CASE("calls: the list of this test has every call of an optimizer, and each reaches the recipe once") {
  noting_recipe::noted all{};
  noting_optimizer run(all);
  for (const named_call& call : every_call()) {
    CAPTURE(call.name);
    const noting_recipe::noted before = all;
    call.make(run);
    int made = 0;
    for (std::size_t i = 0; i < all.size(); ++i) made += all[i] - before[i];
    CHECK(made == 1);
  }
  for (std::size_t i = 0; i < all.size(); ++i)
    if (all[i] == 0) FAIL_CHECK("every_call() lacks call " << i << " of noting_recipe");
}

TEST_CASE("calls: all calls during a step are rejected, and this and later steps have the same bits") {
  check_interrupted<lamb>({.max_gradient_norm = 1.0});
  check_interrupted<sparse>({.local_steps = 2});
}

TEST_CASE("calls: all calls while parameters are averaged are rejected") {
  interrupted<sparse> both({.local_steps = 0});
  both.run.step(0.1);
  both.undisturbed.step(0.1);
  const named_call average{"synchronize_parameters()", [](optimizer& o) { o.synchronize_parameters(); }};
  both.check(average, true);
  both.check(average, false);
}

TEST_CASE("calls: a call that a Communicator makes and does not catch fails the step, and the next step runs") {
  interrupted<lamb> both({});
  both.in_collective = [&both] { static_cast<void>(both.run.statistics()); };
  CHECK_THROWS_WITH_AS(both.run.step(0.1), from_within("statistics()", "step()").c_str(), std::logic_error);
  both.check_equal();
  both.run.step(0.1);
  both.undisturbed.step(0.1);
  both.check_equal();
}

TEST_CASE("calls: after one that throws, the next call may be made from any thread") {
  replica mine(tensors, start());
  slamb::lamb<> run(mine.parameters());
  for (int t = 1; t <= 3; ++t) {
    CHECK_THROWS_AS(run.step(-1.0), std::invalid_argument);
    CHECK_THROWS_AS(run.finish_step(), std::logic_error);
    std::jthread([&run] { run.step(0.1); }).join();
    CHECK(run.statistics().step == static_cast<std::uint64_t>(t));
  }
}

TEST_CASE("calls: measure_next_step counts as a call") {
  replica mine(tensors, start());
  slamb::lamb<slamb::int8, slamb::residual<>> measured(mine.parameters(), {.compress_single_rank = true});
  const auto check = [](auto& run, const std::function<void()>& make) {
    struct opened : std::remove_reference_t<decltype(run)> {
      static slamb::detail::recipe_call begin(const std::remove_reference_t<decltype(run)>& of) {
        return (of.*&opened::lock_call)("step()");
      }
    };
    {
      const slamb::detail::recipe_call running = opened::begin(run);
      CHECK_THROWS_WITH_AS(make(), from_within("measure_next_step()", "step()").c_str(), std::logic_error);
    }
    CHECK_NOTHROW(make());
  };
  check(measured, [&] { measured.measure_next_step(); });
  slamb::one_bit_adam<> one_bit(mine.parameters());
  check(one_bit, [&] { one_bit.measure_next_step(); });
  slamb::zero_one_adam<> zero_one(mine.parameters());
  check(zero_one, [&] { zero_one.measure_next_step(); });
}

TEST_CASE("calls: each concurrent call runs or is rejected, and the steps that ran are counted") {
  replica mine(tensors, start());
  std::function<void()> in_collective;
  lamb run(mine.parameters(), {}, {imagined_peers(2, imagined_peers::habit::send_the_same), in_collective},
           {.threads = 1});
  constexpr int threads = 4, calls = 200;
  std::latch all(threads);
  std::atomic<std::uint64_t> taken{0}, looked{0}, refused{0};
  std::atomic<int> inside{0}, met{0};
  // In each step: checks that no other thread is in a step, and waits until some call has thrown, in this step or an earlier
  // one.
  const std::function<void()> watch = [&] {
    in_collective = watch;
    if (inside.fetch_add(1) != 0) ++met;
    const auto latest = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (refused == 0 && met == 0 && std::chrono::steady_clock::now() < latest) std::this_thread::yield();
    inside.fetch_sub(1);
  };
  run.step(0.001);  // makes the comparison, which has its own collective
  in_collective = watch;
  ++taken;
  {
    std::vector<std::jthread> callers;
    callers.reserve(threads);
    for (int i = 0; i < threads; ++i)
      callers.emplace_back([&, i] {
        all.arrive_and_wait();
        for (int call = 0; call < calls; ++call) {
          try {
            if ((call + i) % 4 == 0) {
              static_cast<void>(run.statistics(true));
              ++looked;
            } else {
              run.step(0.001);
              ++taken;
            }
          } catch (const std::logic_error&) {
            ++refused;
          }
        }
      });
  }
  in_collective = nullptr;
  CHECK(met == 0);
  CHECK(refused > 0);
  CHECK(taken > 1);
  CHECK(run.statistics().step == taken);
  CHECK(taken + looked + refused == 1 + threads * calls);
  run.step(0.001);
  CHECK(run.statistics().step == taken + 1);
}

}  // namespace faults_calls_tests
