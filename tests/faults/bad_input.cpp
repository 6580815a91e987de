// Invalid input: each error names the parameter, its value and its range, and changes nothing.
#include <doctest/doctest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <new>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "slamb/slamb.hpp"
#include "support/cluster.hpp"
#include "support/said.hpp"
#include "support/watching_communicators.hpp"

namespace faults_bad_input_tests {
namespace {

using slamb::thread_communicator;
using test_support::contains;
using test_support::maker_of;
using test_support::model;
using test_support::optimizer_maker;
using test_support::replica;

constexpr double not_a_number = std::numeric_limits<double>::quiet_NaN();
constexpr double infinity = std::numeric_limits<double>::infinity();

model small_model() { return {{20}, {17, 1}, {300}}; }

std::vector<float> small_start() { return test_support::random_parameters(1, 337); }

/// The type and message of the exception of `body`; empty if it throws none.
std::string refusal_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const std::invalid_argument& failure) {
    return std::string("invalid_argument: ") + failure.what();
  } catch (const slamb::rank_mismatch_error& failure) {
    return std::string("disagreement: ") + failure.what();
  } catch (const slamb::communicator_error& failure) {
    return std::string("communicator: ") + failure.what();
  } catch (const slamb::error& failure) {
    return std::string("error: ") + failure.what();
  } catch (const std::bad_alloc&) {
    return "bad_alloc";
  }
  return "";
}

/// A setting that is out of range.
template <class Options>
struct wrong_setting {
  std::string refusal;  // without the type and "slamb: "
  std::function<void(Options&)> change;
};

/// Sets `member` to this value.
template <class Options>
std::function<void(Options&)> with(double Options::*member, double value) {
  return [member, value](Options& o) { o.*member = value; };
}

using constructor = std::function<void(std::span<const slamb::parameter>)>;

void check_refusal(const std::string& refusal, const constructor& construct) {
  const std::vector<float> start = small_start();
  replica mine(small_model(), start);
  CHECK(refusal_of([&] { construct(mine.parameters()); }) == "invalid_argument: slamb: " + refusal);
  CHECK(test_support::same_bits(mine.values(), start));
  CHECK(mine.intact());
}

template <class Optimizer, class Options = typename Optimizer::options_type>
void check_refused(const std::vector<wrong_setting<Options>>& wrong) {
  for (const auto& setting : wrong) {
    Options options;
    setting.change(options);
    check_refusal(setting.refusal,
                  [&](std::span<const slamb::parameter> parameters) { Optimizer(parameters, options); });
  }
}

/// Settings of Adam, common to all optimizers.
template <class Options>
std::vector<wrong_setting<Options>> wrong_adam_settings() {
  return {
      {"beta1 = -0.1, but it must be in [0, 1)", with(&Options::beta1, -0.1)},
      {"beta1 = 1, but it must be in [0, 1)", with(&Options::beta1, 1.0)},
      {"beta1 = nan, but it must be in [0, 1)", with(&Options::beta1, not_a_number)},
      {"beta1 = inf, but it must be in [0, 1)", with(&Options::beta1, infinity)},
      {"beta2 = -0.5, but it must be in [0, 1)", with(&Options::beta2, -0.5)},
      {"beta2 = 1, but it must be in [0, 1)", with(&Options::beta2, 1.0)},
      {"beta2 = nan, but it must be in [0, 1)", with(&Options::beta2, not_a_number)},
      {"epsilon = 0, but it must be in [1.2e-38, 3.4e38]", with(&Options::epsilon, 0.0)},
      {"epsilon = -1e-06, but it must be in [1.2e-38, 3.4e38]", with(&Options::epsilon, -1e-6)},
      {"epsilon = nan, but it must be in [1.2e-38, 3.4e38]", with(&Options::epsilon, not_a_number)},
      {"epsilon = inf, but it must be in [1.2e-38, 3.4e38]", with(&Options::epsilon, infinity)},
      {"weight_decay = -0.01, but it must be in [0, 3.4e38]", with(&Options::weight_decay, -0.01)},
      {"weight_decay = nan, but it must be in [0, 3.4e38]", with(&Options::weight_decay, not_a_number)},
      {"weight_decay = inf, but it must be in [0, 3.4e38]", with(&Options::weight_decay, infinity)},
  };
}

template <class Options>
std::vector<wrong_setting<Options>> wrong_clamps(const std::string& policy) {
  return {
      {policy + "'s lower = -1, but it must be in [0, 3.4e38]", [](Options& o) { o.trust_ratio.lower = -1.0; }},
      {policy + "'s lower = nan, but it must be in [0, 3.4e38]",
       [](Options& o) { o.trust_ratio.lower = not_a_number; }},
      {policy + "'s lower = inf, but it must be in [0, 3.4e38]", [](Options& o) { o.trust_ratio.lower = infinity; }},
      {policy + "'s upper = 0.25, but it must be at least lower = 0.5",
       [](Options& o) {
         o.trust_ratio.lower = 0.5;
         o.trust_ratio.upper = 0.25;
       }},
      {policy + "'s upper = nan, but it must be at least lower = 0.5",
       [](Options& o) {
         o.trust_ratio.lower = 0.5;
         o.trust_ratio.upper = not_a_number;
       }},
  };
}

template <class Optimizer, class Options = typename Optimizer::options_type>
void check_wrong_compressor(const std::string& range_of_k) {
  const auto change_k = [](double k) { return [k](Options& o) { o.compressor.k = k; }; };
  check_refused<Optimizer>(std::vector<wrong_setting<Options>>{
      {"random_k's k = 0, but it must be " + range_of_k, change_k(0.0)},
      {"random_k's k = -0.1, but it must be " + range_of_k, change_k(-0.1)},
      {"random_k's k = 1.5, but it must be " + range_of_k, change_k(1.5)},
      {"random_k's k = nan, but it must be " + range_of_k, change_k(not_a_number)},
      {"random_k's block = 0, but it must be in [1, 2^20]", [](Options& o) { o.compressor.block = 0; }},
      {"random_k's block = 1048577, but it must be in [1, 2^20]", [](Options& o) { o.compressor.block = 1'048'577; }},
  });
}

/// The error of `parameters` in each optimizer; all must be equal.
std::string refusal_of_parameters(std::span<const slamb::parameter> parameters) {
  const std::string by_lamb = refusal_of([&] { slamb::lamb<> run(parameters); });
  CHECK(refusal_of([&] { slamb::adamw<> run(parameters); }) == by_lamb);
  CHECK(refusal_of([&] { slamb::slamb<> run(parameters); }) == by_lamb);
  return by_lamb;
}

/// [rank] the exceptions of `body(rank, communicator)`. No rank may wait until its timeout.
std::vector<std::string> refusals_of_ranks(int world, const std::function<void(int, thread_communicator)>& body) {
  std::vector<std::string> refusals(static_cast<std::size_t>(world));
  const auto begin = std::chrono::steady_clock::now();
  slamb::run_ranks(world, [&](thread_communicator communicator) {
    const int rank = communicator.rank();
    refusals[static_cast<std::size_t>(rank)] = refusal_of([&] { body(rank, std::move(communicator)); });
  });
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(25));  // the timeout is 30 s
  return refusals;
}

/// Ranks, the last of which has other tensors or settings: all must throw and name `expected`.
void check_disagreement(const std::string& expected, const optimizer_maker& make, const model& other_tensors,
                        const optimizer_maker& make_other) {
  for (const int world : {2, 3}) {
    const std::vector<float> start = small_start();
    std::atomic<bool> unchanged{true};
    const auto refusals = refusals_of_ranks(world, [&](int rank, thread_communicator communicator) {
      const bool is_other = rank == world - 1;
      const model tensors = is_other ? other_tensors : small_model();
      std::vector<float> mine_start = start;
      mine_start.resize(test_support::total_size(tensors), 1.0F);
      replica mine(tensors, mine_start);
      const std::string refusal = refusal_of([&] {
        (is_other ? make_other : make)(mine.parameters(), slamb::any_communicator<>(std::move(communicator)),
                                       test_support::one_thread());
      });
      if (!test_support::same_bits(mine.values(), mine_start) || !mine.intact()) unchanged = false;
      if (!refusal.empty()) throw slamb::error(refusal);
    });
    for (const std::string& refusal : refusals) {
      CAPTURE(refusal);
      CHECK(contains(refusal, "disagreement: slamb: ranks differ in " + expected));
      CHECK(contains(refusal, "rank " + std::to_string(world - 1)));
    }
    CHECK(unchanged);
  }
}

template <class Optimizer, class Change>
void check_disagreement(const std::string& expected, Change change) {
  model tensors = small_model();
  typename Optimizer::options_type options;
  change(tensors, options);
  check_disagreement(expected, test_support::maker_of<Optimizer>({}), tensors,
                     test_support::maker_of<Optimizer>(options));
}

/// Reports a smaller payload than it selects.
struct understating_compressor : slamb::no_compressor {
  std::uint64_t largest_payload(std::uint64_t /*size*/) const { return 3; }
};

/// A communicator with a wrong rank or size.
struct misplaced_communicator {
  int its_rank = 0;
  int its_size = 1;
  int rank() const { return its_rank; }
  int size() const { return its_size; }
  void all_reduce_sum(std::span<float> values, slamb::host_stream /*stream*/) {
    for (float& x : values) x = sum_of_all;
  }
  float sum_of_all = std::numeric_limits<float>::quiet_NaN();
};

/// Becomes wrong only after the trial at construction.
struct spoiled_communicator {
  test_support::imagined_peers peers{2, test_support::imagined_peers::habit::send_zeros};
  int calls = 0;
  float sum_of_all = 0.0F;

  static int rank() { return 0; }
  static int size() { return 2; }
  void all_reduce_sum(std::span<float> values, slamb::host_stream stream) {
    if (calls++ < 2) return peers.all_reduce_sum(values, stream);
    for (float& x : values) x = sum_of_all;
  }
};

}  // namespace

// ------------------------------------------------------------------------------------------------------------ settings

TEST_CASE("bad input: settings of LAMB and AdamW out of range are rejected, each by name, value and range") {
  using options = slamb::lamb<>::options_type;
  check_refused<slamb::lamb<>>(wrong_adam_settings<options>());
  check_refused<slamb::lamb<>>(wrong_clamps<options>("layerwise_trust_ratio"));
  check_refused<slamb::adamw<>>(wrong_adam_settings<slamb::adamw<>::options_type>());
  check_refused<slamb::lamb<>>(std::vector<wrong_setting<options>>{
      {"max_gradient_norm = -1, but it must be > 0 (inf: off)", [](options& o) { o.max_gradient_norm = -1.0; }},
      {"max_gradient_norm = 0, but it must be > 0 (inf: off)", [](options& o) { o.max_gradient_norm = 0.0; }},
      {"max_gradient_norm = nan, but it must be > 0 (inf: off)",
       [](options& o) { o.max_gradient_norm = not_a_number; }},
  });
}

TEST_CASE("bad input: settings of SLAMB out of range are rejected, each by name, value and range") {
  using options = slamb::slamb<>::options_type;
  using bernoulli = slamb::slamb<slamb::self_communicator, slamb::random_k<slamb::sampling::bernoulli>>;
  check_refused<slamb::slamb<>>(wrong_adam_settings<options>());
  check_refused<slamb::slamb<>>(wrong_clamps<options>("rescaled_trust_ratio"));
  check_refused<slamb::slamb<>>(std::vector<wrong_setting<options>>{
      {"beta3 = -0.1, but it must be in [0, 1]", [](options& o) { o.beta3 = -0.1; }},
      {"beta3 = 1.1, but it must be in [0, 1]", [](options& o) { o.beta3 = 1.1; }},
      {"beta3 = nan, but it must be in [0, 1]", [](options& o) { o.beta3 = not_a_number; }},
      {"local_steps = -1, but it must be >= 0 (0: parameters are averaged only by synchronize_parameters())",
       [](options& o) { o.local_steps = -1; }},
      {"local_steps = -5, but it must be >= 0 (0: parameters are averaged only by synchronize_parameters())",
       [](options& o) { o.local_steps = -5; }},
      {"random_k's k = 1e-05, but it must be in [1/65535, 1]", [](options& o) { o.compressor.k = 1e-5; }},
  });
  check_wrong_compressor<slamb::slamb<>>("in [1/65535, 1]");
  check_wrong_compressor<bernoulli>("in [2^-32, 1]");
}

TEST_CASE("bad input: settings at the ends of their ranges are accepted") {
  const std::vector<float> start = small_start();
  replica mine(small_model(), start);
  CHECK(
      refusal_of([&] { slamb::lamb<>(mine.parameters(), {.beta1 = 0.0, .beta2 = 0.0, .weight_decay = 0.0}); }).empty());
  CHECK(refusal_of([&] { slamb::lamb<>(mine.parameters(), {.max_gradient_norm = infinity}); }).empty());
  CHECK(refusal_of([&] { slamb::lamb<>(mine.parameters(), {.trust_ratio = {.lower = 2.0, .upper = 2.0}}); }).empty());
  CHECK(refusal_of([&] { slamb::slamb<>(mine.parameters(), {.beta3 = 0.0, .local_steps = 1}); }).empty());
  CHECK(refusal_of([&] { slamb::slamb<>(mine.parameters(), {.beta3 = 1.0}); }).empty());
  CHECK(refusal_of([&] { slamb::slamb<>(mine.parameters(), {.compressor = {.k = 1.0, .block = 1U << 20U}}); }).empty());
  CHECK(refusal_of([&] { slamb::slamb<>(mine.parameters(), {.compressor = {.k = 1.0 / 65535.0}}); }).empty());
}

TEST_CASE("bad input: settings that a float cannot hold are rejected") {
  using options = slamb::slamb<>::options_type;
  const std::vector<float> start = small_start();
  const auto refused = [&start](const options& o) {
    replica mine(small_model(), start);
    return contains(refusal_of([&] { slamb::slamb<> run(mine.parameters(), o); }), "invalid_argument: slamb: ");
  };
  CHECK(refused({.epsilon = 1e-50}));  // becomes 0 as float, and then the update of an element without gradient is 0/0
  CHECK(refused({.weight_decay = 1e39}));
  replica mine(small_model(), start);
  slamb::slamb<> run(mine.parameters());
  CHECK(contains(refusal_of([&] { run.step(1e39); }), "invalid_argument: slamb: the learning rate = 1e+39"));
  CHECK(test_support::same_bits(mine.values(), start));
}

TEST_CASE("bad input: a number of threads out of range is rejected") {
  const std::vector<float> start = small_start();
  replica mine(small_model(), start);
  CHECK(refusal_of([&] { slamb::lamb<>(mine.parameters(), {}, {}, {.threads = 4097}); }) ==
        "invalid_argument: slamb: host_backend's threads = 4097, but it must be in [0, 4096]");
}

// ------------------------------------------------------------------------------------------------------------- tensors

TEST_CASE("bad input: tensors with null pointers, or options out of range, are rejected by number") {
  std::vector<float> data(10);
  const std::vector<float> gradient(10);
  const auto refusal = [&](const slamb::parameter& wrong) {
    const std::vector<float> other_gradient(4);
    std::vector<float> other(4);
    const std::vector<slamb::parameter> all{{other.data(), other_gradient.data(), 4}, wrong};
    return refusal_of_parameters(all);
  };
  const auto with = [&](const slamb::tensor_options& options) {
    return refusal({data.data(), gradient.data(), 10, 2, options});
  };
  const std::string is = "invalid_argument: slamb: tensor 1";
  CHECK(refusal({nullptr, gradient.data(), 10}) == is + " has null data; it must point to size elements");
  CHECK(refusal({data.data(), nullptr, 10}) == "");  // it has no gradient yet
  CHECK(refusal({data.data(), gradient.data(), 10, -1}) == is + " has dimensions = -1, but it must be >= 0");
  CHECK(with({.group = -1}) == is + " has group = -1, but it must be in [0, 65535]");
  CHECK(with({.group = 65'536}) == is + " has group = 65536, but it must be in [0, 65535]");
  CHECK(with({.weight_decay = -1.0}) == is + "'s weight_decay = -1, but it must be in [0, 3.4e38]");
  CHECK(with({.weight_decay = not_a_number}) == is + "'s weight_decay = nan, but it must be in [0, 3.4e38]");
  CHECK(with({.learning_rate_factor = -2.0}) == is + "'s learning_rate_factor = -2, but it must be in [0, 3.4e38]");
  CHECK(with({.learning_rate_factor = infinity}) ==
        is + "'s learning_rate_factor = inf, but it must be in [0, 3.4e38]");
  CHECK(refusal({nullptr, nullptr, 0}) == "");
}

TEST_CASE("bad input: sizes that overflow are rejected before anything is touched") {
  float data = 1.0F;
  const float gradient = 0.0F;
  constexpr std::size_t most = std::numeric_limits<std::size_t>::max();
  for (const std::size_t size : {most, most / 2, most / 4, std::size_t{1} << 60U}) {
    const std::vector<slamb::parameter> one{{&data, &gradient, size}};
    const std::string refusal = refusal_of_parameters(one);
    CAPTURE(refusal);
    CHECK(contains(refusal, "invalid_argument: slamb: tensor 0 "));
    CHECK(contains(refusal, "size " + std::to_string(size)));
  }
  std::vector<float> first(100);
  const std::vector<float> first_gradient(100);
  const std::vector<slamb::parameter> sum{{first.data(), first_gradient.data(), 100}, {&data, &gradient, most - 50}};
  CHECK(contains(refusal_of_parameters(sum), "invalid_argument: slamb: tensor 1 has size " + std::to_string(most - 50) +
                                                 ", and the sizes so far add up to 100; their sum must be at most"));
  CHECK(data == 1.0F);
}

TEST_CASE("bad input: a span that reaches past the end of memory is rejected") {
  float data = 1.0F;
  const float gradient = 0.0F;
  auto* const near_the_end = reinterpret_cast<float*>(std::numeric_limits<std::uintptr_t>::max() - 63);
  CHECK(refusal_of_parameters(std::vector<slamb::parameter>{{near_the_end, &gradient, 100}}) ==
        "invalid_argument: slamb: tensor 0 has data that reaches past the end of memory");
  CHECK(refusal_of_parameters(std::vector<slamb::parameter>{{&data, near_the_end, 100}}) ==
        "invalid_argument: slamb: tensor 0 has a gradient that reaches past the end of memory");
}

TEST_CASE("bad input: parameters that share memory with anything are rejected by number") {
  std::vector<float> data(100);
  std::vector<float> more(100);
  const auto refusal = [](const std::vector<slamb::parameter>& all) { return refusal_of_parameters(all); };
  const std::string is = "invalid_argument: slamb: the ";
  const std::string must = "; parameters must not share memory";
  CHECK(refusal({{data.data(), more.data(), 50}, {data.data() + 49, more.data() + 50, 50}}) ==
        is + "data of tensor 1 overlaps the data of tensor 0" + must);
  CHECK(refusal({{data.data() + 10, more.data(), 50}, {data.data(), more.data() + 50, 11}}) ==
        is + "data of tensor 0 overlaps the data of tensor 1" + must);
  CHECK(refusal({{data.data(), data.data() + 49, 50}}) ==
        is + "gradient of tensor 0 overlaps the data of tensor 0" + must);
  CHECK(refusal({{data.data() + 1, data.data(), 50}}) ==
        is + "data of tensor 0 overlaps the gradient of tensor 0" + must);
  // Overlaps far behind the start of a long tensor, with short ones between.
  CHECK(refusal({{data.data(), more.data(), 100}, {more.data() + 99, data.data() + 99, 1}}) != "");
  CHECK(refusal(
            {{data.data(), more.data(), 100}, {data.data() + 5, more.data(), 1}, {data.data() + 90, more.data(), 1}}) !=
        "");
  // One tensor given twice.
  CHECK(contains(refusal({{data.data(), more.data(), 9}, {data.data(), more.data(), 9}}),
                 " overlaps the data of tensor "));
  // Gradients may share.
  CHECK(refusal({{data.data(), more.data(), 50}, {data.data() + 50, more.data(), 50}}) == "");
}

// --------------------------------------------------------------------------------------------------------------- steps

TEST_CASE("bad input: wrong learning rates are rejected, and nothing changes") {
  const std::vector<float> start = small_start();
  model tensors = small_model();
  tensors[1].options.group = 2;
  replica mine(tensors, start);
  mine.set_gradient(start);
  slamb::lamb<> lamb(mine.parameters());
  slamb::slamb<> slamb(mine.parameters());
  const auto check = [&](slamb::optimizer& run) {
    const auto refusal = [&run](const std::vector<double>& rates) {
      return refusal_of([&] { run.step(std::span<const double>(rates)); });
    };
    const std::string must = ", but it must be in [0, 3.4e38]";
    CHECK(refusal_of([&] { run.step(not_a_number); }) == "invalid_argument: slamb: the learning rate = nan" + must);
    CHECK(refusal_of([&] { run.step(-0.5); }) == "invalid_argument: slamb: the learning rate = -0.5" + must);
    CHECK(refusal_of([&] { run.step(infinity); }) == "invalid_argument: slamb: the learning rate = inf" + must);
    CHECK(refusal({0.1, 0.1, -1.0}) == "invalid_argument: slamb: the learning rate = -1" + must);
    const std::string groups = " learning rates, but there are 3 groups";
    CHECK(refusal({}) == "invalid_argument: slamb: step() was given 0" + groups);
    CHECK(refusal({0.1, 0.1}) == "invalid_argument: slamb: step() was given 2" + groups);
    CHECK(refusal({0.1, 0.1, 0.1, 0.1}) == "invalid_argument: slamb: step() was given 4" + groups);
    CHECK(test_support::same_bits(mine.values(), start));
    CHECK(run.statistics(true).step == 0);
    CHECK(run.statistics().skipped_steps == 0);
    CHECK(run.statistics(true).norm.momentum == 0.0);
  };
  check(lamb);
  check(slamb);
}

TEST_CASE("bad input: wrong gradients are rejected by set_gradient") {
  const std::vector<float> start = small_start();
  replica mine(small_model(), start);
  slamb::lamb<> run(mine.parameters());
  CHECK(refusal_of([&] { run.set_gradient(3, start.data()); }) ==
        "invalid_argument: slamb: set_gradient() was given tensor 3, but there are 3");
  CHECK(contains(refusal_of([&] { run.set_gradient(1, mine.parameters()[0].data); }),
                 "invalid_argument: slamb: the gradient of tensor 1 overlaps the data of tensor 0"));
}

TEST_CASE("bad input: wrong gradients are rejected by set_gradients, which then changes nothing") {
  const std::vector<float> start = small_start(), others(start.size(), -0.5F);
  replica mine(small_model(), start), untouched(small_model(), start);
  mine.set_gradient(start), untouched.set_gradient(start);
  slamb::lamb<> run(mine.parameters()), undisturbed(untouched.parameters());
  const auto refusal_with = [&](std::vector<const float*> gradients) {
    return refusal_of([&] { run.set_gradients(gradients); });
  };
  const float* const first = others.data();
  for (const std::size_t count : {0U, 2U, 4U})
    CHECK(refusal_with(std::vector<const float*>(count, first)) ==
          "invalid_argument: slamb: set_gradients() was given " + std::to_string(count) +
              " gradients, but there are 3 tensors");
  for (const std::size_t overlapped : {0U, 1U, 2U})
    for (const std::size_t element : {std::size_t{0}, mine.parameters()[overlapped].size - 1})
      CHECK(contains(refusal_with({first, first, mine.parameters()[overlapped].data.as<float>() + element}),
                     "invalid_argument: slamb: the gradient of tensor 2 overlaps the data of tensor " +
                         std::to_string(overlapped)));
  run.step(0.1), undisturbed.step(0.1);
  CHECK(test_support::same_bits(mine.values(), untouched.values()));
  CHECK(refusal_with({first, first, first}) == "");
  run.step(0.1), undisturbed.step(0.1);
  CHECK_FALSE(test_support::same_bits(mine.values(), untouched.values()));
}

TEST_CASE("bad input: a missing mask or one of another size is rejected, and the right one is accepted") {
  const std::vector<float> start = small_start();
  replica mine(small_model(), start);
  mine.set_gradient(start);
  slamb::slamb<slamb::self_communicator, slamb::explicit_mask> run(mine.parameters(), {.dense_below = 0});
  CHECK(refusal_of([&] { run.step(0.1); }) ==
        "invalid_argument: slamb: explicit_mask has no mask; call compressor().set(mask) before step()");
  for (const std::size_t size : {std::size_t{0}, std::size_t{336}, std::size_t{338}}) {
    const std::vector<std::uint8_t> mask(size, 1);
    run.compressor().set(mask);
    CHECK(refusal_of([&] { run.step(0.1); }) == "invalid_argument: slamb: explicit_mask was given a mask of " +
                                                    std::to_string(size) +
                                                    " bytes, but it must have one for each of the 337 elements");
  }
  CHECK(test_support::same_bits(mine.values(), start));
  CHECK(run.statistics().step == 0);
  const std::vector<std::uint8_t> mask(337, 1);
  run.compressor().set(mask);
  CHECK(refusal_of([&] { run.step(0.1); }) == "");
  CHECK(run.statistics().step == 1);
}

TEST_CASE("bad input: masks that select different numbers on different ranks throw on all") {
  const std::vector<float> start = small_start();
  std::atomic<bool> unchanged{true};
  const auto refusals = refusals_of_ranks(3, [&](int rank, thread_communicator communicator) {
    replica mine(small_model(), start);
    mine.set_gradient(start);
    slamb::slamb<thread_communicator, slamb::explicit_mask> run(mine.parameters(), {.dense_below = 0},
                                                                std::move(communicator), test_support::one_thread());
    std::vector<std::uint8_t> mask(337, 1);
    if (rank == 1) mask[50] = 0;
    run.compressor().set(mask);
    const std::string refusal = refusal_of([&] { run.step(0.1); });
    if (!test_support::same_bits(mine.values(), start)) unchanged = false;
    throw slamb::error(refusal);
  });
  for (const std::string& refusal : refusals) CHECK(contains(refusal, "ranks called different collectives"));
  CHECK(unchanged);
}

TEST_CASE("bad input: a compressor that selects more than declared is rejected before anything is sent") {
  const model tensors{{50}};
  const std::vector<float> start = test_support::random_parameters(2, 50);
  replica mine(tensors, start);
  mine.set_gradient(start);
  slamb::slamb<slamb::self_communicator, understating_compressor> run(mine.parameters(), {.dense_below = 0});
  const std::string refusal = refusal_of([&] { run.step(0.1); });
  CHECK(contains(refusal, "error: slamb: the compressor selected 50 elements, but said that at most "));
  CHECK(test_support::same_bits(mine.values(), start));
  CHECK(mine.intact());
}

// -------------------------------------------------------------------------------------------------------------- memory

TEST_CASE("bad input: an allocator that fails, or returns unusable memory, leaks nothing") {
  const std::vector<float> start = small_start();
  int allocated = 0;
  int freed = 0;
  const auto refusal = [&](slamb::allocator from) {
    replica mine(small_model(), start);
    const slamb::host_backend backend{.threads = 1, .memory = std::move(from)};
    const std::string by_lamb = refusal_of([&] { slamb::lamb<>(mine.parameters(), {}, {}, backend); });
    CHECK(refusal_of([&] { slamb::slamb<>(mine.parameters(), {}, {}, backend); }) == by_lamb);
    CHECK(test_support::same_bits(mine.values(), start));
    return by_lamb;
  };
  alignas(256) static std::byte memory[1U << 20U];
  const auto count_freed = [&freed](void*, std::size_t) { ++freed; };
  CHECK(refusal({.allocate = [](std::size_t) -> void* { throw std::bad_alloc(); }, .deallocate = count_freed}) ==
        "bad_alloc");
  CHECK(refusal({.allocate = [](std::size_t) -> void* { return nullptr; }, .deallocate = count_freed}) == "bad_alloc");
  CHECK(freed == 0);
  const auto misaligned = [&allocated](std::size_t) -> void* {
    ++allocated;
    return memory + 64;
  };
  CHECK(refusal({.allocate = misaligned, .deallocate = count_freed}) ==
        "invalid_argument: slamb: the allocator returned memory that is not aligned to 256 bytes");
  CHECK(allocated == 2);
  CHECK(freed == 2);
  const std::string incomplete =
      "invalid_argument: slamb: an allocator needs both allocate and deallocate; one of them is empty";
  CHECK(refusal({}) == incomplete);
  CHECK(refusal({.allocate = {}, .deallocate = count_freed}) == incomplete);
  CHECK(refusal({.allocate = misaligned, .deallocate = {}}) == incomplete);
  CHECK(allocated == 2);
}

TEST_CASE("bad input: memory that is not zero at first makes no difference") {
  const test_support::experiment e = test_support::make_experiment({{300}, {9000}}, 3, 1, 3);
  const auto expected = test_support::train<slamb::slamb<thread_communicator>>(e, {});
  slamb::host_backend dirty = test_support::one_thread();
  const slamb::allocator from = dirty.memory;
  dirty.memory.allocate = [from](std::size_t bytes) {
    void* memory = from.allocate(bytes);
    std::memset(memory, 0xFF, bytes);
    return memory;
  };
  CHECK(test_support::same_bits(test_support::train<slamb::slamb<thread_communicator>>(e, {}, dirty), expected));
}

// --------------------------------------------------------------------------------------------------------------- ranks

TEST_CASE("bad input: a communicator with a rank out of range is rejected") {
  const std::vector<float> start = small_start();
  const auto refusal = [&start](int rank, int size) {
    replica mine(small_model(), start);
    return refusal_of([&] { slamb::lamb<misplaced_communicator>(mine.parameters(), {}, {rank, size}); });
  };
  const std::string says = "invalid_argument: slamb: the communicator says it is rank ";
  CHECK(refusal(2, 2) == says + "2 of 2; ranks must be 0 … size − 1");
  CHECK(refusal(-1, 2) == says + "-1 of 2; ranks must be 0 … size − 1");
  CHECK(refusal(0, 0) == says + "0 of 0; ranks must be 0 … size − 1");
}

TEST_CASE("bad input: a communicator with wrong sums is rejected") {
  const std::vector<float> start = small_start();
  for (const auto& [sum, text] : std::vector<std::pair<float, std::string>>{
           {std::numeric_limits<float>::quiet_NaN(), "nan"}, {-1.0F, "-1"}, {65536.0F, "65536"}}) {
    replica mine(small_model(), start);
    const misplaced_communicator wrong{0, 2, sum};
    CHECK(
        refusal_of([&] { slamb::lamb<misplaced_communicator>(mine.parameters(), {}, wrong); })
            .find("communicator: slamb: a collective of this Communicator is wrong: rank 0 of 2: all_reduce_sum of 11 "
                  "floats: element 0 is " +
                  text + ", but the ranks' values add up to ") == 0);
    CHECK(refusal_of([&, sum = sum] {
            slamb::lamb<spoiled_communicator>(mine.parameters(), {}, spoiled_communicator{.sum_of_all = sum});
          }) == "communicator: slamb: the communicator's all_reduce_sum returned sums that no rank can have sent");
  }
}

TEST_CASE("bad input: different tensors are rejected on all ranks, and the message names the difference") {
  using lamb = slamb::lamb<thread_communicator>;
  using sparse = slamb::slamb<thread_communicator>;
  const auto check = [](const std::string& expected, auto change) {
    const auto change_tensors = [change](model& tensors, auto& /*options*/) { change(tensors); };
    check_disagreement<lamb>(expected, change_tensors);
    check_disagreement<sparse>(expected, change_tensors);
  };
  check("the number of tensors: 3 on rank 0, 4 on rank ", [](model& l) { l.push_back({5}); });
  check("the number of tensors: 3 on rank 0, 2 on rank ", [](model& l) { l.pop_back(); });
  check("the size of tensor 1: 17 on rank 0, 18 on rank ", [](model& l) { l[1].size = 18; });
  check("the weight decay of tensor 0: ", [](model& l) { l[0].options.weight_decay = 0.5; });
  check("the learning-rate factor of tensor 2: 1 on rank 0, 2 on rank ",
        [](model& l) { l[2].options.learning_rate_factor = 2.0; });
  check("the option adapt of tensor 2: 1 on rank 0, 0 on rank ", [](model& l) { l[2].options.adapt = false; });
  check("the group of tensor 2: 0 on rank 0, 1 on rank ", [](model& l) { l[2].options.group = 1; });
  check("whether tensor 2 has at most one dimension: 0 on rank 0, 1 on rank ", [](model& l) { l[2].dimensions = 1; });
  check_disagreement<lamb>("the option compress of tensor 2: 1 on rank 0, 0 on rank ",
                           [](model& l, auto&) { l[2].options.compress = false; });
}

TEST_CASE("bad input: different rows are rejected on all ranks, and the message names the tensor") {
  using lamb = slamb::lamb<thread_communicator>;
  using sparse = slamb::slamb<thread_communicator>;
  static constexpr std::array<std::uint8_t, 4> rows = {1, 0, 1, 1};
  static constexpr std::array<std::uint8_t, 4> other_rows = {1, 1, 0, 1};
  const std::string number = "the number of rows of tensor 0: 0 on rank 0, 4 on rank ";  // only one rank has rows
  check_disagreement<lamb>(number, [](model& l, auto&) { l[0].options.rows = rows; });
  check_disagreement<sparse>(number, [](model& l, auto&) { l[0].options.rows = rows; });

  const auto refusals = refusals_of_ranks(2, [](int rank, thread_communicator communicator) {
    model tensors = small_model();
    tensors[2].options.rows = rank == 0 ? rows : other_rows;
    replica mine(tensors, small_start());
    slamb::one_bit_adam<thread_communicator>(mine.parameters(), {}, std::move(communicator));
  });
  for (const std::string& refusal : refusals)
    CHECK(refusal ==
          "disagreement: slamb: ranks differ in the rows of tensor 2 that take part (rank 0 and rank 1); construct the "
          "optimizer with the same arguments on all ranks");
}

namespace {

/// Says nothing of its options, so that only the library compares them.
struct silent_quantizer : slamb::int8 {
  template <class Fields>
  void describe(Fields& /*fields*/) const {}
};

}  // namespace

TEST_CASE("bad input: members of a quantizer that messages depend on are compared, also if it does not describe them") {
  using lamb = slamb::lamb<thread_communicator, silent_quantizer>;
  using chained = slamb::slamb<thread_communicator, slamb::chain<slamb::random_k<>, silent_quantizer>>;
  using differences = slamb::slamb<thread_communicator, slamb::sync::quantized_difference<silent_quantizer>>;
  check_disagreement<lamb>("the block of a quantizer: 128 on rank 0, 64 on rank ",
                           [](model&, auto& o) { o.compressor.block = 64; });
  check_disagreement<lamb>("the seed of a quantizer: 0 on rank 0, 7 on rank ",
                           [](model&, auto& o) { o.compressor.seed = 7; });
  check_disagreement<chained>("the block of a quantizer: 128 on rank 0, 64 on rank ",
                              [](model&, auto& o) { o.compressor.quantizer.block = 64; });
  check_disagreement<differences>("the block of a quantizer: 128 on rank 0, 64 on rank ",
                                  [](model&, auto& o) { o.parameter_sync.mean_quantizer.block = 64; });
}

TEST_CASE("bad input: different settings are rejected on all ranks, and the message names the difference") {
  using lamb = slamb::lamb<thread_communicator>;
  using sparse = slamb::slamb<thread_communicator>;
  check_disagreement<lamb>("beta1: 0.9 on rank 0, 0.8 on rank ", [](model&, auto& o) { o.beta1 = 0.8; });
  check_disagreement<lamb>("beta2: 0.999 on rank 0, 0.99 on rank ", [](model&, auto& o) { o.beta2 = 0.99; });
  check_disagreement<lamb>("epsilon: 1e-06 on rank 0, 1e-08 on rank ", [](model&, auto& o) { o.epsilon = 1e-8; });
  check_disagreement<lamb>("the weight decay of tensor 0: ", [](model&, auto& o) { o.weight_decay = 0.1; });
  check_disagreement<lamb>("bias_correction: 1 on rank 0, 0 on rank ",
                           [](model&, auto& o) { o.bias_correction = false; });
  check_disagreement<lamb>("max_gradient_norm: inf on rank 0, 1 on rank ",
                           [](model&, auto& o) { o.max_gradient_norm = 1.0; });
  check_disagreement<lamb>("skip_non_finite: 1 on rank 0, 0 on rank ",
                           [](model&, auto& o) { o.skip_non_finite = false; });
  check_disagreement<lamb>("layerwise_trust_ratio's upper: inf on rank 0, 10 on rank ",
                           [](model&, auto& o) { o.trust_ratio.upper = 10.0; });
  check_disagreement<lamb>("layerwise_trust_ratio's adapt_without_weight_decay: 1 on rank 0, 0 on rank ",
                           [](model&, auto& o) { o.trust_ratio.adapt_without_weight_decay = false; });
  check_disagreement<sparse>("beta1: 0.9 on rank 0, 0.8 on rank ", [](model&, auto& o) { o.beta1 = 0.8; });
  check_disagreement<sparse>("beta3: 0.93 on rank 0, 0.95 on rank ", [](model&, auto& o) { o.beta3 = 0.95; });
  check_disagreement<sparse>("local_steps: 100 on rank 0, 50 on rank ", [](model&, auto& o) { o.local_steps = 50; });
  check_disagreement<sparse>("dense_below: 9000 on rank 0, 0 on rank ", [](model&, auto& o) { o.dense_below = 0; });
  check_disagreement<sparse>("random_k's k: 0.1 on rank 0, 0.2 on rank ",
                             [](model&, auto& o) { o.compressor.k = 0.2; });
  check_disagreement<sparse>("random_k's block: 1 on rank 0, 16 on rank ",
                             [](model&, auto& o) { o.compressor.block = 16; });
  check_disagreement<sparse>("random_k's seed: 0 on rank 0, 18446744073709551615 on rank ",
                             [](model&, auto& o) { o.compressor.seed = ~std::uint64_t{0}; });
  check_disagreement<sparse>("rescaled_trust_ratio's lower: 0.01 on rank 0, 0.1 on rank ",
                             [](model&, auto& o) { o.trust_ratio.lower = 0.1; });
}

TEST_CASE("bad input: different optimizers or policies are rejected on all ranks") {
  const std::vector<float> start = small_start();
  const auto check = [&start](const optimizer_maker& first, const optimizer_maker& second) {
    const auto refusals = refusals_of_ranks(2, [&](int rank, thread_communicator communicator) {
      replica mine(small_model(), start);
      (rank == 0 ? first : second)(mine.parameters(), slamb::any_communicator<>(std::move(communicator)),
                                   test_support::one_thread());
    });
    for (const std::string& refusal : refusals)
      CHECK(refusal ==
            "disagreement: slamb: ranks differ in the optimizer or its policies (rank 0 and rank 1); construct the "
            "optimizer with the same arguments on all ranks");
  };
  using lamb = slamb::lamb<thread_communicator>;
  using adamw = slamb::adamw<thread_communicator>;
  using sparse = slamb::slamb<thread_communicator>;
  using bernoulli = slamb::slamb<thread_communicator, slamb::random_k<slamb::sampling::bernoulli>>;
  using blend =
      slamb::slamb<thread_communicator, slamb::random_k<>, slamb::rescaled_trust_ratio<slamb::rescaling::blend>>;
  check(maker_of<lamb>({}), maker_of<adamw>({}));
  check(maker_of<adamw>({}), maker_of<sparse>({}));
  check(maker_of<sparse>({}), maker_of<lamb>({}));
  check(maker_of<sparse>({}), maker_of<bernoulli>({}));
  check(maker_of<sparse>({}), maker_of<blend>({}));
}

TEST_CASE("bad input: a rank with wrong arguments or without memory ends its peers at once") {
  const std::vector<float> start = small_start();
  const auto wrong_setting = refusals_of_ranks(3, [&](int rank, thread_communicator communicator) {
    replica mine(small_model(), start);
    slamb::lamb<thread_communicator>(mine.parameters(), {.beta1 = rank == 1 ? 2.0 : 0.9}, std::move(communicator),
                                     test_support::one_thread());
  });
  CHECK(wrong_setting[1] == "invalid_argument: slamb: beta1 = 2, but it must be in [0, 1)");
  CHECK(contains(wrong_setting[0], "communicator: slamb: the thread_group failed because rank 1 left"));
  CHECK(contains(wrong_setting[2], "communicator: slamb: the thread_group failed because rank 1 left"));

  const auto no_memory = refusals_of_ranks(2, [&](int rank, thread_communicator communicator) {
    replica mine(small_model(), start);
    slamb::host_backend backend = test_support::one_thread();
    if (rank == 1) backend.memory.allocate = [](std::size_t) -> void* { throw std::bad_alloc(); };
    slamb::lamb<thread_communicator> run(mine.parameters(), {}, std::move(communicator), backend);
    run.step(0.1);
  });
  CHECK(no_memory[1] == "bad_alloc");
  CHECK(contains(no_memory[0], "communicator: slamb: the thread_group failed because rank 1 left"));
}

}  // namespace faults_bad_input_tests
