// Learning-rate schedules compared with values worked out by hand.
#include <slamb/schedule/learning_rate.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <stdexcept>
#include <string>

namespace schedule_learning_rate_tests {
namespace {

using doctest::Approx;

// The message of the std::invalid_argument that `call` throws. If it throws none, a text that no test expects.
std::string complaint(const std::function<double()>& call) {
  try {
    call();
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "nothing was thrown";
}

constexpr double not_a_number = std::numeric_limits<double>::quiet_NaN();
constexpr double infinity = std::numeric_limits<double>::infinity();

}  // namespace

TEST_CASE("constant: is the same at every step") {
  static_assert(slamb::learning_rate::constant{0.25}(1) == 0.25);
  CHECK(slamb::learning_rate::constant{0.25}(1'000'000) == 0.25);
}

TEST_CASE("polynomial_decay: falls from the peak to the end and stays there") {
  const slamb::learning_rate::polynomial_decay linear{.peak = 1.0, .end = 0.2, .steps = 4};
  CHECK(linear(1) == 1.0);
  CHECK(linear(2) == Approx(0.8));
  CHECK(linear(3) == Approx(0.6));
  CHECK(linear(4) == Approx(0.4));
  CHECK(linear(5) == 0.2);
  CHECK(linear(6) == 0.2);
  CHECK(linear(std::numeric_limits<std::uint64_t>::max()) == 0.2);
}

TEST_CASE("polynomial_decay: raises to the power") {
  const slamb::learning_rate::polynomial_decay square{.peak = 2.0, .end = 0.0, .steps = 4, .power = 2.0};
  CHECK(square(1) == 2.0);
  CHECK(square(2) == Approx(1.125));  // 2 (3/4)²
  CHECK(square(3) == Approx(0.5));    // 2 (1/2)²
  CHECK(square(4) == Approx(0.125));  // 2 (1/4)²
  CHECK(square(5) == 0.0);
  const slamb::learning_rate::polynomial_decay root{.peak = 2.0, .end = 0.0, .steps = 4, .power = 0.5};
  CHECK(root(4) == Approx(1.0));  // 2 (1/4)^½
}

TEST_CASE("polynomial_decay: may rise, and one step is enough") {
  const slamb::learning_rate::polynomial_decay rising{.peak = 0.0, .end = 1.0, .steps = 2};
  CHECK(rising(2) == Approx(0.5));
  const slamb::learning_rate::polynomial_decay single{.peak = 3.0, .end = 1.0, .steps = 1};
  CHECK(single(1) == 3.0);
  CHECK(single(2) == 1.0);
}

TEST_CASE("cosine_decay: is half a cosine") {
  const slamb::learning_rate::cosine_decay schedule{.peak = 1.0, .end = 0.0, .steps = 6};
  CHECK(schedule(1) == 1.0);
  CHECK(schedule(2) == Approx(0.5 + std::sqrt(3.0) / 4.0));  // cos 30°
  CHECK(schedule(3) == Approx(0.75));                        // cos 60°
  CHECK(schedule(4) == Approx(0.5));                         // cos 90°
  CHECK(schedule(5) == Approx(0.25));                        // cos 120°
  CHECK(schedule(7) == 0.0);
  CHECK(schedule(700) == 0.0);
  CHECK(slamb::learning_rate::cosine_decay{.peak = 1.0, .end = 0.5, .steps = 6}(4) == Approx(0.75));
}

TEST_CASE("step_decay: multiplies after every so many steps") {
  constexpr slamb::learning_rate::step_decay schedule{.initial = 8.0, .factor = 0.5, .every = 3};
  static_assert(schedule(1) == 8.0 && schedule(3) == 8.0 && schedule(4) == 4.0);
  CHECK(schedule(6) == 4.0);
  CHECK(schedule(7) == 2.0);
  CHECK(schedule(19) == 0.125);  // after 6 halvings
  CHECK(slamb::learning_rate::step_decay{.initial = 8.0, .factor = 0.0, .every = 3}(4) == 0.0);
}

TEST_CASE("linear_warmup: rises to the first value of the next schedule") {
  constexpr slamb::learning_rate::linear_warmup schedule{3, slamb::learning_rate::constant{0.8}};
  static_assert(schedule(4) == 0.8);
  CHECK(schedule(1) == Approx(0.2));
  CHECK(schedule(2) == Approx(0.4));
  CHECK(schedule(3) == Approx(0.6));
  CHECK(schedule(5) == 0.8);
}

TEST_CASE("linear_warmup: the next schedule counts steps from the end of the warm-up") {
  const slamb::learning_rate::linear_warmup schedule{
      1, slamb::learning_rate::polynomial_decay{.peak = 1.0, .end = 0.0, .steps = 4}};
  CHECK(schedule(1) == Approx(0.5));
  CHECK(schedule(2) == 1.0);
  CHECK(schedule(3) == Approx(0.75));
  CHECK(schedule(6) == 0.0);
  const slamb::learning_rate::linear_warmup none{
      0, slamb::learning_rate::polynomial_decay{.peak = 1.0, .end = 0.0, .steps = 4}};
  CHECK(none(1) == 1.0);
  CHECK(none(2) == Approx(0.75));
}

TEST_CASE("linear_warmup: wraps any callable, also another warm-up") {
  const slamb::learning_rate::linear_warmup inner{1, [](std::uint64_t step) { return static_cast<double>(step); }};
  CHECK(inner(1) == Approx(0.5));
  CHECK(inner(4) == 3.0);
  const slamb::learning_rate::linear_warmup<slamb::learning_rate::linear_warmup<slamb::learning_rate::constant>> nested{
      1, {1, {1.0}}};
  CHECK(nested(1) == Approx(0.25));
  CHECK(nested(2) == Approx(0.5));
  CHECK(nested(3) == 1.0);
}

TEST_CASE("learning_rate: name the value that is out of range") {
  const auto holds = [](const std::string& message, const std::string& part) {
    CAPTURE(message);
    CHECK(message.find(part) != std::string::npos);
  };
  holds(complaint([] { return slamb::learning_rate::constant{-1.0}(1); }),
        "constant::rate = -1, but it must be finite and >= 0");
  holds(complaint([] { return slamb::learning_rate::constant{not_a_number}(1); }), "constant::rate = nan");
  holds(complaint([] { return slamb::learning_rate::constant{1.0}(0); }), "step = 0, but it must be >= 1");
  holds(complaint([] { return slamb::learning_rate::polynomial_decay{.peak = infinity, .steps = 2}(1); }),
        "polynomial_decay::peak");
  holds(complaint([] { return slamb::learning_rate::polynomial_decay{.peak = 1.0, .end = -2.0, .steps = 2}(1); }),
        "::end = -2");
  holds(complaint([] { return slamb::learning_rate::polynomial_decay{.peak = 1.0, .steps = 0}(1); }),
        "polynomial_decay::steps = 0");
  holds(complaint([] { return slamb::learning_rate::polynomial_decay{.peak = 1.0, .power = 0.0}(1); }),
        "polynomial_decay::power = 0");
  holds(complaint([] { return slamb::learning_rate::polynomial_decay{.peak = 1.0}(0); }), "polynomial_decay: step = 0");
  holds(complaint([] { return slamb::learning_rate::cosine_decay{.peak = -1.0}(1); }), "cosine_decay::peak = -1");
  holds(complaint([] { return slamb::learning_rate::cosine_decay{.peak = 1.0, .end = not_a_number}(1); }),
        "cosine_decay::end = nan");
  holds(complaint([] { return slamb::learning_rate::cosine_decay{.peak = 1.0, .steps = 0}(1); }),
        "cosine_decay::steps = 0");
  holds(complaint([] { return slamb::learning_rate::step_decay{.initial = -1.0}(1); }), "step_decay::initial = -1");
  holds(complaint([] { return slamb::learning_rate::step_decay{.initial = 1.0, .factor = -0.5}(1); }),
        "step_decay::factor = -0.5");
  holds(complaint([] { return slamb::learning_rate::step_decay{.initial = 1.0, .every = 0}(1); }),
        "step_decay::every = 0");
  holds(complaint([] {
          return slamb::learning_rate::linear_warmup{2, slamb::learning_rate::constant{1.0}}(0);
        }),
        "linear_warmup: step = 0");
  holds(complaint([] {
          return slamb::learning_rate::linear_warmup{2, slamb::learning_rate::constant{-1.0}}(1);
        }),
        "constant::rate = -1");
  CHECK(complaint([] { return slamb::learning_rate::constant{1.0}(1); }) == "nothing was thrown");
}

}  // namespace schedule_learning_rate_tests
