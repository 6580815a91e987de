// Steps captured into a CUDA graph: repeated launches give the same result as steps called one by one.
#include <doctest/doctest.h>

#include <array>
#include <cstddef>
#include <span>
#include <stdexcept>
#include <string_view>

#include "training.hpp"

namespace {

using device_tests::outcome;
using device_tests::plan;
using device_tests::rank_of_run;
using device_tests::recipe;
using device_tests::recipes;
using device_tests::side;

/// A graph of the stream's work between construction and `end`.
class captured_graph {
 public:
  explicit captured_graph(cudaStream_t on) : on_(on) {
    slamb::detail::check_cuda(cudaStreamBeginCapture(on_, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
  }
  captured_graph(captured_graph&&) = delete;
  ~captured_graph() {
    if (executable_ != nullptr) cudaGraphExecDestroy(executable_);
    if (graph_ != nullptr) cudaGraphDestroy(graph_);
  }

  void end() {
    slamb::detail::check_cuda(cudaStreamEndCapture(on_, &graph_), "cudaStreamEndCapture");
    slamb::detail::check_cuda(cudaGraphInstantiate(&executable_, graph_, 0), "cudaGraphInstantiate");
  }
  void launch() const { slamb::detail::check_cuda(cudaGraphLaunch(executable_, on_), "cudaGraphLaunch"); }

 private:
  cudaStream_t on_;
  cudaGraph_t graph_ = nullptr;
  cudaGraphExec_t executable_ = nullptr;
};

constexpr std::size_t first = 5;  // steps that are not captured, in which warm-ups end

/// @param captured  true: one of the steps after the first is captured and launched in place of all
outcome train(const recipe& of, const plan& given, std::size_t steps, bool captured) {
  slamb::thread_group alone(1);
  device_tests::stream on;
  rank_of_run run(of, side::device, given, alone.communicator(0), on);
  for (std::size_t i = 0; i < first; ++i) run.step(i);
  auto rate = device_tests::poisoned(sizeof(double));
  auto* const stored = reinterpret_cast<double*>(rate.data().get());
  const auto prepare = [&](std::size_t i) {
    run.prepare(i % 8);
    const std::array<double, 1> now{0.01 / (1.0 + static_cast<double>(i))};
    device_tests::upload(std::span<const double>(now), stored, on);
  };
  prepare(first);
  if (captured) {
    captured_graph graph(on);
    run.take({stored});
    graph.end();
    for (std::size_t i = first; i < first + steps; ++i) {
      prepare(i);
      graph.launch();
    }
    on.wait();
  } else {
    for (std::size_t i = first; i < first + steps; ++i) {
      prepare(i);
      run.take({stored});
    }
  }
  return run.result();
}

}  // namespace

TEST_CASE("device: 1000 launches of a captured step are 1000 steps") {
  for (const recipe& of : recipes) {
    if (!of.can_be_captured) continue;
    CAPTURE(of.name);
    const plan given{.shapes = test_support::random_shapes(9, 12), .nan_step = 7, .is_captured = true};
    const outcome expected = train(of, given, 1000, false);
    const outcome launched = train(of, given, 1000, true);
    CHECK(expected.skipped == 125);  // one in eight
    CHECK(launched.steps == expected.steps);
    CHECK(launched.skipped == expected.skipped);
    CHECK(launched.state == expected.state);
    CHECK(device_tests::same_bits(launched.parameters, expected.parameters));
  }
}

TEST_CASE("device: a step that cannot be captured throws, with the reason") {
  for (const recipe& of : recipes) {
    if (of.can_be_captured && !std::string_view(of.name).starts_with("slamb")) continue;
    CAPTURE(of.name);
    slamb::thread_group alone(1);
    device_tests::stream on;
    rank_of_run run(of, side::device, {.shapes = test_support::random_shapes(9, 12)}, alone.communicator(0), on);
    run.step(0);
    run.prepare(1);
    captured_graph graph(on);
    CHECK_THROWS_AS(run.take(), std::logic_error);
    graph.end();
    run.step(1);
    CHECK(run.result().steps == 2);
  }
}
