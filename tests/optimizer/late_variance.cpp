// Elements whose first gradient comes after the variance has stopped: compared with the oracle, on both backends, with every
// quantizer, with masks, and after a restart.
#include <doctest/doctest.h>

#include <algorithm>
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
#include "support/one_bit_cluster.hpp"
#include "support/rank_memory.hpp"

namespace optimizer_late_variance_tests {
namespace {

using slamb::scale_sharing;
using test_support::error_of_one_bit;
using test_support::experiment;
using test_support::make_structured_experiment;
using test_support::rank_memory;
using test_support::replica;
using test_support::trajectory;

using ranks = slamb::thread_communicator;
using adam = slamb::one_bit_adam<ranks>;
using lamb = slamb::one_bit_lamb<ranks>;
using zero_one = slamb::zero_one_adam<ranks>;

constexpr double off = std::numeric_limits<double>::infinity();
constexpr double tolerance = 2e-6;
constexpr double wrong = 1e-4;

/// True for elements without a gradient at first: every seventh, and tensor `whole`.
std::vector<bool> late_ones(const experiment& e, std::size_t whole) {
  std::vector<bool> late;
  for (std::size_t l = 0; l < e.tensors.size(); ++l)
    for (std::size_t i = 0; i < e.tensors[l].size; ++i) late.push_back(l == whole || late.size() % 7 == 3);
  return late;
}

/// Gradients of late elements are 0 in steps 1 … first − 1. In step `first` only one rank has those of a third of them.
experiment with_late_elements(test_support::model tensors, std::uint64_t seed, int world, std::size_t steps,
                              std::size_t first, std::size_t whole) {
  experiment e = make_structured_experiment(std::move(tensors), seed, world, steps);
  const std::vector<bool> late = late_ones(e, whole);
  for (std::size_t t = 0; t < steps; ++t)
    for (std::size_t rank = 0; rank < e.gradients[t].size(); ++rank)
      for (std::size_t j = 0; j < late.size(); ++j)
        if (late[j] && (t + 1 < first || (t + 1 == first && j % 3 == 0 && rank != j % e.gradients[t].size())))
          e.gradients[t][rank][j] = 0.0F;
  return e;
}

template <class Optimizer>
void check_against_oracle(std::vector<typename Optimizer::options_type> all) {
  for (const int world : {1, 2, 3}) {
    const auto seed = static_cast<std::uint64_t>(90 + world);
    const experiment e = with_late_elements({{300}, {129}, {40}, {257}}, seed, world, 14, 7, 1);
    for (auto& options : all)
      for (const bool zero_aware : {false, true}) {
        options.compressor.zero_aware = zero_aware;
        CAPTURE(world);
        CAPTURE(zero_aware);
        CAPTURE(&options - all.data());
        CHECK(error_of_one_bit<Optimizer>(e, options) <= tolerance);
      }
  }
}

/// Parameters of each rank after each step, on any backend.
template <class Optimizer, class Backend>
trajectory train_on(const experiment& e, const typename Optimizer::options_type& options) {
  trajectory reached = test_support::place_of(e);
  rank_memory<Backend>::run(e.world, [&](auto communicator) {
    const auto rank = static_cast<std::size_t>(communicator.rank());
    rank_memory<Backend> memory;
    const std::span<float> parameters = memory.hold(std::span<const float>(e.start));
    const std::span<float> gradients = memory.hold(std::span<const float>(e.start));
    std::vector<slamb::parameter> tensors;
    std::size_t first = 0;
    for (const test_support::tensor_spec& l : e.tensors) {
      tensors.push_back({.data = parameters.data() + first,
                         .gradient = gradients.data() + first,
                         .size = l.size,
                         .dimensions = l.dimensions,
                         .options = l.options});
      first += l.size;
    }
    Optimizer optimizer(tensors, options, std::move(communicator), memory.backend());
    for (std::size_t t = 0; t < e.steps(); ++t) {
      memory.write(std::span<const float>(e.gradients[t][rank]), gradients);
      optimizer.step(e.rates[t]);
      reached[t][rank] = memory.read(parameters);
    }
  });
  return reached;
}

template <template <class...> class Optimizer>
void check_backends(const auto& set_phases) {
  using on_host = Optimizer<ranks, slamb::sign, slamb::host_backend>;
  using on_kernels =
      Optimizer<typename rank_memory<slamb::emulated_backend>::communicator, slamb::sign, slamb::emulated_backend>;
  const experiment e = with_late_elements({{300}, {9000}, {40}}, 5, 2, 14, 7, 2);
  for (const bool zero_aware : {false, true}) {
    typename on_host::options_type options;
    typename on_kernels::options_type same;
    set_phases(options);
    set_phases(same);
    options.compressor.zero_aware = same.compressor.zero_aware = zero_aware;
    CHECK(train_on<on_host, slamb::host_backend>(e, options) == train_on<on_kernels, slamb::emulated_backend>(e, same));
  }
}

/// + with probability (1 + x/s)/2: the code of a negative number may be of a positive one.
struct random_sign {
  slamb::scale_sharing scales = slamb::scale_sharing::fused;
  bool zero_aware = false;
  std::uint64_t seed = 1;

  static constexpr int bits_per_element = 1;
  static constexpr slamb::segment_scale scale = slamb::segment_scale::max;
  static constexpr bool is_stochastic = true;

  template <class Real>
  slamb::word_of<Real> encode(const Real& x, const Real& s, const Real& uniform) const {
    using slamb::select;
    using word = slamb::word_of<Real>;
    return select(uniform * Real(2.0F) * s < x + s, word(0U), word(1U));
  }
  template <class Real>
  Real decode(const slamb::word_of<Real>& code, const Real& s) const {
    using slamb::select;
    return select(code == slamb::word_of<Real>(0U), s, -s);
  }
};

constexpr auto in_warm_up_of_4 = [](auto& o) { o.warm_up.steps = 4; };

/// Trains with late elements, and requires that they move by at most B in each step, that they do move, and that ranks stay equal.
template <class Optimizer>
void check_moves(const std::string& name, typename Optimizer::options_type options, bool compress = true) {
  // Plain signs send a zero as the scale, from the first compressed step on.
  constexpr bool is_sign = requires { options.compressor.scales; };
  bool sends_zero = true;
  if constexpr (is_sign) sends_zero = options.compressor.zero_aware || !compress;
  CAPTURE(name);
  options.weight_decay = 0.0;
  for (const int world : {1, 2, 4}) {
    CAPTURE(world);
    experiment e = with_late_elements({{300}, {129}, {2000}}, 33, world, 40, 12, 1);
    for (auto& l : e.tensors) l.options.compress = compress;
    test_support::use_one_rate(e, 1e-3);
    const trajectory reached = test_support::train<Optimizer>(e, options);
    const std::vector<bool> late = late_ones(e, 1);
    double longest = 0.0, mean = 0.0;
    bool ranks_are_equal = true, stays = true;
    for (std::size_t t = 0; t < e.steps(); ++t) {
      for (const auto& of_rank : reached[t]) ranks_are_equal = ranks_are_equal && of_rank == reached[t][0];
      for (std::size_t j = 0; j < late.size() && t > 0; ++j) {
        const double moved =
            std::abs(static_cast<double>(reached[t][0][j]) - static_cast<double>(reached[t - 1][0][j]));
        if (late[j]) longest = std::max(longest, moved);
        stays = stays && (!late[j] || t >= 11 || moved == 0.0);
      }
    }
    for (std::size_t j = 0, number = 0; j < late.size(); ++j)
      if (late[j]) {
        const double moved = std::abs(static_cast<double>(reached.back()[0][j]) - static_cast<double>(e.start[j]));
        mean += (moved - mean) / static_cast<double>(++number);
      }
    CHECK(ranks_are_equal);
    CHECK((stays || (!sends_zero && world > 1)));
    CHECK(longest <= 7.2706 * 1e-3 * 1.0001 + 1e-6);
    CHECK(longest > 1e-3);
    CHECK(mean > 5e-3);  // 28 steps at a rate of 1e-3
  }
}

template <class Quantizer>
using adam_with = slamb::one_bit_adam<ranks, Quantizer>;

/// How far an element moves on average from `first` on, in units of the rate.
double mean_move(const trajectory& reached, std::size_t first, std::size_t from, std::size_t to) {
  double sum = 0.0;
  for (std::size_t j = from; j < to; ++j)
    sum += std::abs(static_cast<double>(reached.back()[0][j]) - static_cast<double>(reached[first][0][j]));
  return sum / static_cast<double>(to - from) / 1e-3;
}

/// 0/1 Adam in local steps, with 64 elements whose first 8 begin at step 30. `change` may take gradients of the other tensor away.
double late_move_in_local_steps(bool zero_aware, std::uint64_t interval, double other_factor,
                                const std::function<bool(std::size_t tensor, std::size_t step)>& has_gradient) {
  constexpr std::size_t n = 64, steps = 120;
  experiment e =
      make_structured_experiment({{n}, {.size = n, .options = {.learning_rate_factor = other_factor}}}, 3, 2, steps);
  test_support::use_one_rate(e, 1e-3);
  trajectory reached = test_support::place_of(e);
  slamb::run_ranks(e.world, [&](ranks communicator) {
    const auto rank = static_cast<std::size_t>(communicator.rank());
    replica mine(e.tensors, e.start);
    zero_one optimizer(mine.parameters(),
                       {.weight_decay = 0.0,
                        .variance_schedule = {.freeze_step = 10, .update_scaler = 4},
                        .local_schedule = {.scaler = interval == 1 ? steps : 1, .clipper = interval},
                        .compressor = {.zero_aware = zero_aware}},
                       std::move(communicator), test_support::one_thread());
    for (std::size_t t = 0; t < steps; ++t) {
      auto gradient = e.gradients[t][rank];
      for (std::size_t j = 0; j < gradient.size(); ++j) gradient[j] = j < 8 && t < 30 ? 0.0F : gradient[j] + 0.5F;
      mine.set_gradient(gradient);
      std::vector<slamb::parameter::gradient_pointer> where;
      for (std::size_t l = 0; l < 2; ++l)
        where.push_back(has_gradient(l, t + 1) ? mine.parameters()[l].gradient : nullptr);
      optimizer.set_gradients(where);
      optimizer.step(1e-3);
      reached[t][rank] = mine.values();
    }
  });
  return mean_move(reached, 29, 0, 8);
}

}  // namespace

TEST_CASE("late variance: 1-bit Adam and 1-bit LAMB follow the oracle") {
  constexpr auto per_tensor = scale_sharing::per_tensor;
  check_against_oracle<adam>({{.warm_up = {3}},
                              {.beta1 = 0.7, .beta2 = 0.9, .warm_up = {3}, .compressor = {.scales = per_tensor}},
                              {.update_bound = 1.5, .warm_up = {3}},
                              {.update_bound = off, .warm_up = {3}}});
  check_against_oracle<lamb>(
      {{.warm_up = {3}}, {.weight_decay = 0.0, .warm_up = {4}}, {.update_bound = 3.0, .warm_up = {3}}});
}

TEST_CASE("late variance: 0/1 Adam follows the oracle, between refreshes and in local steps") {
  check_against_oracle<zero_one>(
      {{.variance_schedule = {.freeze_step = 100, .update_scaler = 1}},
       {.variance_schedule = {.freeze_step = 4, .update_scaler = 2}},
       {.weight_decay = 0.0, .variance_schedule = {.freeze_step = 4}, .local_schedule = {.scaler = 2, .clipper = 4}}});
}

TEST_CASE("late variance: the comparison with the oracle can fail") {
  experiment e = with_late_elements({{300}, {129}}, 91, 2, 14, 7, 1);
  const adam::options_type given{.warm_up = {3}};
  test_support::settle(e, test_support::oracle_at_start(e, given));
  const trajectory reached = test_support::train<adam>(e, given);
  const auto error_with = [&](auto change) {
    auto other = given;
    change(other);
    return test_support::worst_one_bit_error(e, reached, test_support::oracle_at_start(e, other));
  };
  CHECK(error_with([](auto&) {}) <= tolerance);
  CHECK(error_with([](auto& o) { o.update_bound = off; }) > wrong);  // nothing begins late
  CHECK(error_with([](auto& o) { o.compressor.zero_aware = true; }) > wrong);
  CHECK(error_with([](auto& o) { o.beta2 = 0.9985; }) > wrong);
}

TEST_CASE("late variance: kernels have the host's bits") {
  check_backends<slamb::one_bit_adam>(in_warm_up_of_4);
  check_backends<slamb::one_bit_lamb>(in_warm_up_of_4);
  check_backends<slamb::zero_one_adam>([](auto& o) {
    o.variance_schedule = {.freeze_step = 9, .update_scaler = 2};
    o.local_schedule.scaler = 3;
  });
}

TEST_CASE("late variance: elements move by at most Adam's bound, with every quantizer, and dense") {
  check_moves<adam_with<slamb::sign>>("sign", {.warm_up = {5}});
  check_moves<adam_with<slamb::sign>>("zero-aware sign", {.warm_up = {5}, .compressor = {.zero_aware = true}});
  check_moves<adam_with<slamb::four_levels>>("zero-aware four_levels",
                                             {.warm_up = {5}, .compressor = {.zero_aware = true}});
  check_moves<adam_with<slamb::int8>>("int8", {.warm_up = {5}});
  check_moves<adam_with<slamb::int4>>("int4", {.warm_up = {5}});
  check_moves<adam_with<slamb::natural>>("natural", {.warm_up = {5}});
  check_moves<adam_with<slamb::bf16>>("bf16", {.warm_up = {5}});
  check_moves<adam_with<slamb::sign>>("dense", {.warm_up = {5}}, false);
}

TEST_CASE("late variance: a tensor that does not move keeps no other from beginning, in local steps") {
  const auto always = [](std::size_t, std::size_t) { return true; };
  for (const bool zero_aware : {false, true}) {
    CAPTURE(zero_aware);
    CHECK(late_move_in_local_steps(zero_aware, 1, 1.0, always) > 20.0);
    CHECK(late_move_in_local_steps(zero_aware, 1, 0.0, always) > 20.0);
    CHECK(late_move_in_local_steps(zero_aware, 1, 1.0, [](std::size_t l, std::size_t) { return l == 0; }) > 20.0);
    // Of each two steps the tensor has a gradient in one: that with an exchange, or the other.
    for (const std::size_t parity : {0U, 1U})
      CHECK(late_move_in_local_steps(zero_aware, 2, 1.0, [&](std::size_t l, std::size_t t) {
              return l == 1 || t < 12 || t % 2 == parity;
            }) > 10.0);
  }
}

TEST_CASE("late variance: in 1-bit LAMB a late element does not change the rate of its tensor") {
  // 256 elements; the first has a constant gradient from step 60 on, or none.
  const auto move_of_others = [](bool has_late, bool compress) {
    constexpr std::size_t n = 256, steps = 150;
    experiment e = make_structured_experiment({{.size = n, .options = {.compress = compress}}}, 4, 2, steps);
    for (std::size_t t = 0; t < steps; ++t)
      for (auto& of_rank : e.gradients[t]) of_rank[0] = has_late && t >= 60 ? 0.1F : 0.0F;
    test_support::use_one_rate(e, 1e-3);
    const trajectory reached =
        test_support::train<slamb::one_bit_lamb<ranks, slamb::int8>>(e, {.weight_decay = 0.0, .warm_up = {30}});
    return mean_move(reached, 100, 1, n);
  };
  for (const bool compress : {false, true})
    CHECK(move_of_others(true, compress) == doctest::Approx(move_of_others(false, compress)).epsilon(0.05));
}

TEST_CASE("late variance: a zero-aware quantizer that does not say that it keeps signs announces nothing") {
  const auto elements_that_moved = []<class Quantizer>(Quantizer compressor) {
    experiment e = with_late_elements({{128}}, 6, 2, 20, 100, 7);  // every seventh has no gradient at all
    const trajectory reached =
        test_support::train<adam_with<Quantizer>>(e, {.weight_decay = 0.0, .warm_up = {4}, .compressor = compressor});
    std::vector<bool> moved;
    for (std::size_t j = 0; j < e.start.size(); ++j) moved.push_back(reached.back()[0][j] != e.start[j]);
    return moved;
  };
  std::vector<bool> expected = late_ones(make_structured_experiment({{128}}, 6, 2, 20), 7);
  expected.flip();
  CHECK(elements_that_moved(slamb::sign{.zero_aware = true}) == expected);
  CHECK(elements_that_moved(random_sign{.zero_aware = true}) == expected);
}

TEST_CASE("late variance: more tensors with late elements than ranges, with others between them") {
  test_support::model tensors;
  for (std::size_t l = 0; l < 14; ++l) tensors.push_back({l == 3 ? std::size_t{0} : 40 + l});
  experiment e = make_structured_experiment(std::move(tensors), 12, 2, 14);
  std::size_t first = 0;
  for (std::size_t l = 0; l < e.tensors.size(); first += e.tensors[l++].size)
    for (std::size_t t = 0; t < 7 && l % 2 == 0 && l > 0; ++t)
      for (auto& of_rank : e.gradients[t]) std::fill_n(of_rank.begin() + static_cast<std::ptrdiff_t>(first), 5, 0.0F);
  CHECK(error_of_one_bit<adam>(e, {.warm_up = {3}, .compressor = {.zero_aware = true}}) <= tolerance);
}

TEST_CASE("late variance: a row mask keeps its rows out for good, and others of the tensor begin") {
  constexpr std::size_t row = 16, rows = 20;
  std::vector<std::uint8_t> takes_part(rows, 1);
  takes_part[3] = takes_part[19] = 0;
  experiment e = with_late_elements({{row * rows}}, 44, 3, 20, 8, 0);
  e.tensors[0].options.rows = takes_part;
  const trajectory reached =
      test_support::train<adam>(e, {.weight_decay = 0.0, .warm_up = {4}, .compressor = {.zero_aware = true}});
  for (std::size_t j = 0; j < row * rows; ++j) {
    CAPTURE(j);
    CHECK((reached.back()[0][j] == e.start[j]) == (takes_part[j / row] == 0));
  }
}

TEST_CASE("late variance: a training that continues from a saved state has the same bits") {
  const experiment e = with_late_elements({{300}, {129}}, 7, 2, 16, 7, 1);
  const adam::options_type options{.warm_up = {3}, .compressor = {.zero_aware = true}};
  const trajectory whole = test_support::train<adam>(e, options);
  for (const std::size_t stop : {6U, 7U, 8U, 12U}) {  // before, at and after the announcement
    trajectory reached = test_support::place_of(e);
    std::vector<std::vector<std::byte>> saved(2);
    const auto train = [&](std::size_t first, std::size_t last) {
      slamb::run_ranks(e.world, [&](ranks communicator) {
        const auto rank = static_cast<std::size_t>(communicator.rank());
        replica mine(e.tensors, first == 0 ? e.start : reached[first - 1][rank]);
        adam optimizer(mine.parameters(), options, std::move(communicator), test_support::one_thread());
        if (first > 0) optimizer.load_state(saved[rank]);
        for (std::size_t t = first; t < last; ++t) {
          mine.set_gradient(e.gradients[t][rank]);
          optimizer.step(e.rates[t]);
          reached[t][rank] = mine.values();
        }
        saved[rank] = optimizer.save_state();
      });
    };
    train(0, stop);
    train(stop, e.steps());
    CAPTURE(stop);
    CHECK(reached == whole);
  }
}

// Five elements have gradients from step `first` on. Stops after step 12, and goes on from the saved state without a bound.
template <class Optimizer>
void check_that_late_elements_end(typename Optimizer::options_type options, std::size_t first) {
  constexpr std::size_t n = 40;
  replica mine({{n}}, std::vector<float>(n, 1.0F));
  std::vector<slamb::parameter> parameters = mine.parameters();
  parameters[0].options.compress = false;
  Optimizer before(parameters, options);
  for (std::size_t t = 1; t <= 12; ++t) {
    std::vector<float> gradient(n, 1.0F);
    if (t < first) std::fill_n(gradient.begin(), 5, 0.0F);
    mine.set_gradient(gradient);
    before.step(1e-3);
  }
  CHECK(before.statistics(true).late_elements == 5);

  options.update_bound = off;
  Optimizer after(parameters, options);
  after.load_state(before.save_state());
  CHECK(after.statistics(true).late_elements == 0);
  for (int t = 0; t < 3; ++t) {
    const std::vector<float> last = mine.values();
    after.step(1e-3);
    const std::vector<float> now = mine.values();
    for (std::size_t i = 0; i < n; ++i) CHECK(now[i] < last[i]);  // not if one is NaN
  }
  CHECK(after.statistics(true).late_elements == 0);
}

TEST_CASE("late variance: late elements of a saved state end where the bound is switched off") {
  check_that_late_elements_end<slamb::one_bit_adam<>>({.warm_up = {3}}, 7);
  check_that_late_elements_end<slamb::one_bit_lamb<>>({.warm_up = {3}}, 7);
  check_that_late_elements_end<slamb::zero_one_adam<>>({.variance_schedule = {.freeze_step = 4}}, 7);
  check_that_late_elements_end<slamb::zero_one_adam<>>(
      {.compress_single_rank = true, .variance_schedule = {.freeze_step = 10000, .update_scaler = 1}}, 9);
}

TEST_CASE("late variance: statistics count late elements, and those at the bound") {
  // Of 100 elements the first 5 have gradients that grow from 1e-3 to 1 after the warm-up, and the next 10 have none before step 7.
  constexpr std::size_t n = 100;
  replica mine({{n}}, std::vector<float>(n, 1.0F));
  slamb::one_bit_adam<> optimizer(mine.parameters(), {.weight_decay = 0.0, .warm_up = {3}});
  for (std::size_t t = 1; t <= 12; ++t) {
    std::vector<float> gradient(n, 1.0F);
    if (t <= 3) std::fill_n(gradient.begin(), 5, 1e-3F);
    if (t < 7) std::fill_n(gradient.begin() + 5, 10, 0.0F);
    mine.set_gradient(gradient);
    optimizer.step(1e-3);
    const slamb::statistics now = optimizer.statistics(true);
    CAPTURE(t);
    CHECK(now.bounded_elements == (t > 3 ? 5 : 0));
    CHECK(now.late_elements == (t >= 7 ? 10 : 0));
    CHECK(optimizer.statistics().bounded_elements == 0);  // not without norms
  }
  slamb::one_bit_adam<> close(mine.parameters(), {.update_bound = 0.5, .warm_up = {3}});
  CHECK(close.statistics(true).bounded_elements == 0);  // before the first step
  close.step(1e-3);
  CHECK(close.statistics(true).bounded_elements == n);
}

}  // namespace optimizer_late_variance_tests
