// Partitioned states of parameters of sixteen bits, of moments of eight bits, and on the kernels of a device.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "slamb/backend/cuda/emulated_backend.hpp"
#include "slamb/slamb.hpp"
#include "support/cluster.hpp"
#include "support/said.hpp"
#include "support/sixteen_bits.hpp"
#include "support/thread_nodes.hpp"

namespace optimizer_partitioned_lamb_precision_tests {
namespace {

using slamb::emulated_backend;
using slamb::host_backend;
using slamb::thread_communicator;
using slamb::precision::master_copies;
using slamb::precision::mixed;
using slamb::precision::stochastic_rounding;
using slamb::sync::partition;
using test_support::element_type;
using test_support::experiment;
using test_support::make_experiment;
using test_support::model;
using test_support::replica;
using test_support::trajectory;
using test_support::typed_memory;

constexpr auto f32 = element_type::float32, bf16 = element_type::bfloat16, f16 = element_type::float16;

struct typed_tensor {
  std::size_t size;
  element_type data, gradient;
  bool compress = true;
};
const std::vector<typed_tensor> some_types{{8192 + 5, bf16, bf16}, {17, f32, bf16},      {640, bf16, f32},
                                           {33, f16, f16},         {128, f32, f32},      {300, bf16, bf16, false},
                                           {0, bf16, bf16},        {40, f32, f32, false}};

/// Values that all types have exactly, and whose sums are exact.
std::vector<float> exact_values(std::size_t size, std::uint64_t seed, float unit) {
  test_support::random_source source(seed);
  std::vector<float> all(size);
  for (float& x : all) x = unit * (static_cast<float>(source.below(255)) - 127.0F);
  return all;
}

/// The stored parameters of each rank after each step, [step][rank][tensor].
using history = std::vector<std::vector<std::vector<std::vector<std::byte>>>>;

constexpr std::size_t steps = 6;

constexpr auto nothing = [](auto& /*optimizer*/) {};

/// @param typed   false: all tensors are floats
/// @param rounds  false: the floats; true: each rounded to the type that its tensor would have
/// @param after   called with the optimizer after each step
template <class Optimizer, class After = decltype(nothing)>
history trained(int world, const typename Optimizer::options_type& options,
                const typename Optimizer::backend_type& backend, bool typed, bool rounds = false, After after = {}) {
  history all(steps, std::vector<std::vector<std::vector<std::byte>>>(static_cast<std::size_t>(world)));
  slamb::run_ranks(world, [&](thread_communicator communicator) {
    const auto rank = static_cast<std::size_t>(communicator.rank());
    std::vector<typed_memory> data, gradients;
    std::vector<slamb::parameter> tensors;
    for (std::size_t l = 0; l < some_types.size(); ++l) {
      const typed_tensor& t = some_types[l];
      const std::vector<float> start = exact_values(t.size, 10 + l, 0x1p-7F);
      data.emplace_back(start, typed ? t.data : f32, 1);
      gradients.emplace_back(start, typed ? t.gradient : f32, 1);
    }
    for (std::size_t l = 0; l < some_types.size(); ++l)
      tensors.push_back({.data = data[l].pointer(),
                         .gradient = gradients[l].pointer(),
                         .size = some_types[l].size,
                         .dimensions = 2,
                         .options = {.compress = some_types[l].compress}});
    Optimizer optimizer(tensors, options, std::move(communicator), backend);
    for (std::size_t step = 0; step < steps; ++step) {
      for (std::size_t l = 0; l < some_types.size(); ++l)
        gradients[l].write(exact_values(some_types[l].size, 1000 + 100 * step + 10 * rank + l, 0x1p-9F));
      optimizer.step(0.01);
      after(optimizer);
      for (std::size_t l = 0; l < some_types.size(); ++l)
        all[step][rank].push_back(rounds ? test_support::rounded_bytes(data[l].values(), some_types[l].data)
                                         : data[l].bytes());
    }
  });
  return all;
}

bool ranks_are_equal(const history& all) {
  return std::ranges::all_of(all, [](const auto& ranks) {
    return std::ranges::all_of(ranks, [&ranks](const auto& one) { return one == ranks[0]; });
  });
}

template <class... Policies>
using adamw = slamb::adamw<thread_communicator, Policies...>;
template <class... Policies>
using lamb = slamb::lamb<thread_communicator, Policies...>;

}  // namespace

TEST_CASE("partitioned adamw: parameters of sixteen bits are the rounded ones of the same steps on floats") {
  for (const int world : {1, 2, 3}) {
    CAPTURE(world);
    const history floats = trained<adamw<>>(world, {}, {.threads = 1}, false, true);
    CHECK(trained<adamw<partition<>, mixed<>>>(world, {}, {{.threads = 1}}, true) == floats);
    CHECK(trained<adamw<partition<>, mixed<emulated_backend>>>(world, {}, {}, true) == floats);
  }
}

TEST_CASE("partitioned lamb: ranks have equal parameters of sixteen bits, whatever is sent in codes") {
  for (const int world : {2, 3}) {
    CAPTURE(world);
    const history dense = trained<lamb<partition<>, mixed<>>>(world, {}, {{.threads = 1}}, true);
    CHECK(ranks_are_equal(dense));
    const history codes = trained<lamb<partition<slamb::bf16>, mixed<>>>(world, {}, {{.threads = 1}}, true);
    CHECK(ranks_are_equal(codes));
    CHECK(ranks_are_equal(
        trained<lamb<partition<slamb::int8>, slamb::int8, mixed<>>>(world, {}, {{.threads = 1}}, true)));
    using by_chance = mixed<host_backend, stochastic_rounding>;
    CHECK(ranks_are_equal(trained<lamb<partition<>, by_chance>>(world, {}, {{.threads = 1}}, true)));
    CHECK(ranks_are_equal(trained<lamb<partition<slamb::int8>, by_chance>>(world, {}, {{.threads = 1}}, true)));
    std::size_t apart = 0, all = 0;  // a code and the rounding differ from the rounded exact parameter in few elements
    for (std::size_t l = 0; l < some_types.size(); ++l) {
      if (some_types[l].data != bf16) continue;
      apart += test_support::differences(codes.back()[0][l], dense.back()[0][l]);
      all += some_types[l].size;
    }
    CHECK(apart < all / 10);
  }
}

TEST_CASE("partitioned lamb: broadcast parameters of sixteen bits are those of the root, and exact") {
  slamb::run_ranks(3, [](thread_communicator communicator) {
    const auto rank = static_cast<std::size_t>(communicator.rank());
    const std::vector<float> start = exact_values(1000, 5, 0x1p-7F), other = exact_values(1000, 6 + rank, 0x1p-7F);
    typed_memory data(start, bf16), gradient(start, bf16), of_root(exact_values(1000, 7, 0x1p-7F), bf16);
    const std::vector<slamb::parameter> tensors{{.data = data.pointer(), .gradient = gradient.pointer(), .size = 1000}};
    slamb::lamb<partition<slamb::int8>, mixed<>> optimizer(tensors, {}, std::move(communicator), {{.threads = 1}});
    optimizer.step(0.01);
    CHECK(data.values() != start);
    data.write(other);
    optimizer.broadcast_parameters(1);
    CHECK(data.bytes() == of_root.bytes());
    optimizer.step(0.0);
    CHECK(data.bytes() == of_root.bytes());
  });
}

TEST_CASE(
    "partitioned adamw: exact parameters stay when parameters are reloaded or broadcast that nobody has written") {
  const auto reload = [](auto& optimizer) { optimizer.reload_parameters(); };
  const auto broadcast = [](auto& optimizer) { optimizer.broadcast_parameters(1); };
  const auto restore = [](auto& optimizer) {
    optimizer.load_state(optimizer.save_state());
    optimizer.reload_parameters();
  };
  using dense = adamw<partition<>, mixed<>>;
  using on_kernels = adamw<partition<>, mixed<emulated_backend>>;
  using codes_of_gradients = adamw<partition<>, slamb::int8, mixed<>>;  // some tensors are not cut
  for (const int world : {2, 3}) {
    CAPTURE(world);
    const history expected = trained<dense>(world, {}, {{.threads = 1}}, true);
    CHECK(trained<dense>(world, {}, {{.threads = 1}}, true, false, reload) == expected);
    CHECK(trained<dense>(world, {}, {{.threads = 1}}, true, false, broadcast) == expected);
    CHECK(trained<dense>(world, {}, {{.threads = 1}}, true, false, restore) == expected);
    CHECK(trained<on_kernels>(world, {}, {}, true, false, reload) == expected);
    const history of_codes = trained<codes_of_gradients>(world, {}, {{.threads = 1}}, true);
    CHECK(trained<codes_of_gradients>(world, {}, {{.threads = 1}}, true, false, reload) == of_codes);
    CHECK(trained<codes_of_gradients>(world, {}, {{.threads = 1}}, true, false, restore) == of_codes);
  }
}

namespace {

/// Two ranks with one tensor that starts at 1, and the gradient 0.1.
template <class Optimizer, class Body>
void with_one_tensor(element_type type, bool compress, const Body& body) {
  slamb::run_ranks(2, [&](thread_communicator communicator) {
    const int rank = communicator.rank();
    typed_memory data(std::vector<float>(600, 1.0F), type), gradient(std::vector<float>(600, 0.1F), f32);
    const std::vector<slamb::parameter> tensors{
        {.data = data.pointer(), .gradient = gradient.pointer(), .size = 600, .options = {.compress = compress}}};
    Optimizer optimizer(tensors, {.weight_decay = 0.0}, std::move(communicator));
    body(optimizer, data, rank);
  });
}

/// The element that has moved least after 100 steps of 1e-4 with a reload after each.
template <class Optimizer>
float moved_with_reloads() {
  float least = 1.0F;
  with_one_tensor<Optimizer>(bf16, true, [&](auto& optimizer, typed_memory& data, int rank) {
    for (int t = 0; t < 100; ++t) {
      optimizer.step(1e-4);
      optimizer.reload_parameters();
    }
    if (rank == 0) least = 1.0F - std::ranges::max(data.values());
  });
  return least;
}

}  // namespace

TEST_CASE("partitioned adamw: steps below the spacing of sixteen bits add up with reloads between them") {
  constexpr float spacing = 0x1p-8F;
  CHECK(std::abs(moved_with_reloads<adamw<partition<>, mixed<>>>() - 0.01F) <= spacing);
  CHECK(std::abs(moved_with_reloads<adamw<partition<slamb::int8>, slamb::int8, mixed<>>>() - 0.01F) <= spacing);
}

TEST_CASE("partitioned adamw: reload_parameters takes over what was written, and nothing is unsent then") {
  const auto check = []<class Optimizer>(Optimizer* /*type*/, element_type type, bool compress) {
    with_one_tensor<Optimizer>(type, compress, [](auto& optimizer, typed_memory& data, int /*rank*/) {
      for (int t = 0; t < 3; ++t) optimizer.step(0.01);
      data.write(exact_values(600, 8, 0x1p-8F));  // none is the old one
      const std::vector<std::byte> written = data.bytes();
      optimizer.reload_parameters();
      for (const double drift : optimizer.statistics(true).parameter_drift) CHECK(drift == 0.0);
      optimizer.step(0.0);
      CHECK(data.bytes() == written);
    });
  };
  check(static_cast<adamw<partition<>, mixed<>>*>(nullptr), bf16, true);
  check(static_cast<adamw<partition<>, mixed<>>*>(nullptr), f16, true);
  check(static_cast<adamw<partition<>, slamb::int8, mixed<>>*>(nullptr), bf16, false);
  check(static_cast<adamw<partition<slamb::int8>, mixed<>>*>(nullptr), bf16, true);
  check(static_cast<adamw<partition<slamb::int8>, mixed<>>*>(nullptr), f32, true);
  check(static_cast<adamw<partition<slamb::int8>, slamb::int8>*>(nullptr), f32, true);
}

TEST_CASE("partitioned adamw: after a broadcast all ranks have the same exact parameters of a tensor that is not cut") {
  std::vector<std::vector<std::vector<std::byte>>> reached(2);
  using optimizer_type = adamw<partition<>, slamb::int8, mixed<>>;
  with_one_tensor<optimizer_type>(bf16, false, [&](auto& optimizer, typed_memory& data, int rank) {
    for (int t = 0; t < 10; ++t) optimizer.step(1e-4);
    if (rank == 0) {  // the exact parameters become the rounded ones here
      const std::vector<float> values = data.values();
      data.write(std::vector<float>(600, 3.0F));
      optimizer.reload_parameters();
      data.write(values);
      optimizer.reload_parameters();
    }
    optimizer.broadcast_parameters();
    for (int t = 0; t < 40; ++t) {
      optimizer.step(1e-4);
      reached[static_cast<std::size_t>(rank)].push_back(data.bytes());
    }
  });
  CHECK(reached[0].front() != reached[0].back());
  CHECK(reached[0] == reached[1]);
}

TEST_CASE("partitioned adamw: moments of eight bits have their blocks in the parts") {
  using moments = mixed<host_backend, master_copies, slamb::precision::eight_bit_moments>;
  const history whole = trained<adamw<moments>>(1, {}, {{.threads = 1}}, true);
  CHECK(trained<adamw<partition<>, moments>>(1, {}, {{.threads = 1}}, true) == whole);
  for (const int world : {2, 3}) {
    CHECK(ranks_are_equal(trained<adamw<partition<>, moments>>(world, {}, {{.threads = 1}}, true)));
    CHECK(ranks_are_equal(
        trained<adamw<partition<slamb::int8>, slamb::int8, moments>>(world, {}, {{.threads = 1}}, true)));
  }
}

TEST_CASE("partitioned lamb: a caller's master copy is rejected") {
  slamb::run_ranks(2, [&](thread_communicator communicator) {
    typed_memory data(std::vector<float>(100, 1.0F), bf16, 0), gradient(std::vector<float>(100, 1.0F), bf16, 0);
    std::vector<float> master(100, 1.0F);
    const std::vector<slamb::parameter> tensors{{.data = data.pointer(),
                                                 .gradient = gradient.pointer(),
                                                 .size = 100,
                                                 .dimensions = 2,
                                                 .master = master.data()}};
    const std::string said = test_support::said_by<std::invalid_argument>(
        [&] { lamb<partition<>, mixed<>> optimizer(tensors, {}, std::move(communicator)); });
    CHECK(said.find("master must be null") != std::string::npos);
  });
}

namespace {

template <template <class...> class Optimizer, class... Policies, class Options>
void check_kernels(const Options& set) {
  for (const int world : {1, 2, 3}) {
    CAPTURE(world);
    using on_host = Optimizer<thread_communicator, Policies...>;
    using on_kernels = Optimizer<thread_communicator, emulated_backend, Policies...>;
    const experiment e = make_experiment(test_support::random_model(90, 7), 90, world, 4);
    typename on_host::options_type options;
    typename on_kernels::options_type same;
    set(options);
    set(same);
    const trajectory host = test_support::train<on_host>(e, options);
    trajectory kernels = test_support::place_of(e);
    slamb::run_ranks(world, [&](thread_communicator communicator) {
      const auto rank = static_cast<std::size_t>(communicator.rank());
      CHECK(test_support::train_rank<on_kernels>(e, rank, same, std::move(communicator), emulated_backend{}, kernels));
    });
    CHECK(test_support::same_bits(host, kernels));
  }
}

}  // namespace

TEST_CASE("partitioned adamw: kernels of a device have the host's bits") {
  check_kernels<slamb::adamw, partition<>>([](auto& o) { o.max_gradient_norm = 1e9; });
  check_kernels<slamb::adamw, partition<slamb::int8>, slamb::sign>([](auto& o) { o.weight_decay = 0.1; });
  check_kernels<slamb::adamw, partition<slamb::sign>, slamb::int4>([](auto& o) { o.compressor.block = 64; });
  check_kernels<slamb::adamw, partition<slamb::four_levels>>([](auto& o) { o.skip_non_finite = false; });
}

TEST_CASE("partitioned lamb: a node is one rank, whose ranks have the same part") {
  const experiment e = make_experiment(test_support::random_model(91, 7), 91, 4, 4);
  for (const bool codes : {false, true}) {
    CAPTURE(codes);
    trajectory reached = test_support::place_of(e);
    test_support::thread_nodes nodes({2, 2});
    nodes.run([&](test_support::nodes_of_threads ranks, std::size_t rank) {
      using in_codes = slamb::lamb<slamb::int8, partition<slamb::int8>, test_support::nodes_of_threads>;
      using dense = slamb::lamb<partition<>, test_support::nodes_of_threads>;
      if (codes)
        test_support::train_rank<in_codes>(e, rank, {}, std::move(ranks), test_support::one_thread(), reached);
      else
        test_support::train_rank<dense>(e, rank, {}, std::move(ranks), test_support::one_thread(), reached);
    });
    for (std::size_t t = 0; t < e.steps(); ++t) CHECK(test_support::ranks_agree(reached, t));
    if (codes) continue;
    const oracle::adam_family run(test_support::oracle_tensors(e.tensors, 0.01), test_support::widened(e.start),
                                  test_support::oracle_settings(slamb::lamb<>::options_type{}));
    CHECK(test_support::worst_error(e, reached, run) <= 4e-6);
  }
}

namespace {

/// Ranks whose next collectives can be made to fail, on all of them.
class failing_ranks {
 public:
  failing_ranks(thread_communicator base, std::shared_ptr<std::string> failing)
      : base_(std::move(base)), failing_(std::move(failing)) {}

  int rank() const { return base_.rank(); }
  int size() const { return base_.size(); }
  void all_reduce_sum(std::span<float> values, slamb::host_stream stream) {
    fail_in("all_reduce_sum");
    base_.all_reduce_sum(values, stream);
  }
  void all_to_all(std::span<const std::byte> send, std::span<std::byte> receive, slamb::host_stream stream) {
    fail_in("all_to_all");
    base_.all_to_all(send, receive, stream);
  }
  void all_gather(std::span<const std::byte> mine, std::span<std::byte> all, slamb::host_stream stream) {
    fail_in("all_gather");
    base_.all_gather(mine, all, stream);
  }

 private:
  void fail_in(const char* call) const {
    if (*failing_ == call) throw slamb::communicator_error("a cable was pulled");
  }

  thread_communicator base_;
  std::shared_ptr<std::string> failing_;
};

}  // namespace

TEST_CASE("partitioned lamb: a step that fails in its first phase can be repeated, and a later one needs a state") {
  experiment e = make_experiment({{700}, {300}, {40, 1}}, 92, 2, 2);
  e.tensors[2].options.compress = false;
  const auto expected = test_support::train<adamw<partition<slamb::int8>, slamb::int8>>(e, {});
  slamb::run_ranks(2, [&](thread_communicator communicator) {
    const auto rank = static_cast<std::size_t>(communicator.rank());
    const auto failing = std::make_shared<std::string>();
    replica mine(e.tensors, e.start);
    slamb::adamw<slamb::int8, partition<slamb::int8>> optimizer(mine.parameters(), {},
                                                                failing_ranks(std::move(communicator), failing));
    mine.set_gradient(e.gradients[0][rank]);
    optimizer.step(e.rates[0]);
    const std::vector<std::byte> state = optimizer.save_state();
    const std::vector<float> values = mine.values();
    mine.set_gradient(e.gradients[1][rank]);
    for (const char* const call : {"all_to_all", "all_reduce_sum"}) {
      CAPTURE(call);
      *failing = call;
      CHECK_THROWS_AS(optimizer.step(e.rates[1]), slamb::communicator_error);
      failing->clear();
      CHECK(optimizer.save_state() == state);
      CHECK(test_support::same_bits(mine.values(), values));
    }
    *failing = "all_gather";
    CHECK_THROWS_AS(optimizer.step(e.rates[1]), slamb::communicator_error);
    failing->clear();
    const auto check_refused = [](const std::string& said) {
      CHECK(test_support::contains(said, "after a step that failed halfway"));
      CHECK(test_support::contains(said, "load a state first"));
    };
    using error = std::logic_error;
    check_refused(test_support::said_by<error>([&] { optimizer.step(e.rates[1]); }));
    check_refused(test_support::said_by<error>([&] { static_cast<void>(optimizer.save_state()); }));
    check_refused(test_support::said_by<error>([&] { optimizer.broadcast_parameters(); }));
    check_refused(test_support::said_by<error>([&] { optimizer.reload_parameters(); }));
    check_refused(test_support::said_by<error>([&] { optimizer.set_steps(1); }));
    optimizer.set_options({.beta1 = 0.9});
    check_refused(test_support::said_by<error>([&] { optimizer.begin_step(e.rates[1]); }));
    mine.set_values(values);  // the tensor that is not cut has moved
    mine.set_gradient(e.gradients[1][rank]);
    optimizer.load_state(state);
    optimizer.step(e.rates[1]);
    CHECK(test_support::same_bits(mine.values(), expected[1][rank]));
  });
}

TEST_CASE("partitioned lamb: a step that fails in the sums of its update needs a state, as errors have changed") {
  const experiment e = make_experiment({{700}, {300}}, 93, 2, 1);
  slamb::run_ranks(2, [&](thread_communicator communicator) {
    const auto rank = static_cast<std::size_t>(communicator.rank());
    const auto failing = std::make_shared<std::string>();
    replica mine(e.tensors, e.start);
    slamb::lamb<slamb::int8, partition<>> optimizer(mine.parameters(), {.max_gradient_norm = 1.0},
                                                    failing_ranks(std::move(communicator), failing));
    mine.set_gradient(e.gradients[0][rank]);
    *failing = "all_gather";  // of the norm by which gradients are clipped
    CHECK_THROWS_AS(optimizer.step(e.rates[0]), slamb::communicator_error);
    failing->clear();
    CHECK(test_support::contains(
        test_support::said_by<std::logic_error>([&] { static_cast<void>(optimizer.save_state()); }),
        "after a step that failed halfway"));
  });
}

}  // namespace optimizer_partitioned_lamb_precision_tests
