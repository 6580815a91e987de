// Moments in fewer bits: what an optimizer stores must be what an oracle in double precision stores, which reads the codes back
// from saved states and knows the maps from their construction in the paper.
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
#include "slamb/kit.hpp"
#include "slamb/slamb.hpp"
#include "support/draws.hpp"
#include "support/said.hpp"
#include "support/stored_numbers.hpp"

namespace properties_moments_tests {
namespace {

namespace kit = slamb::kit;

using namespace test_support::stored_numbers;

using slamb::host_backend;
using slamb::precision::bfloat16_momentum;
using slamb::precision::eight_bit_moments;
using slamb::precision::float_moments;
using slamb::precision::master_copies;
using slamb::precision::mixed;

template <class Moments, class Backend = host_backend>
using adamw_with = slamb::adamw<slamb::self_communicator, mixed<Backend, master_copies, Moments>>;

constexpr double beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8, decay = 0.01, rate = 0.01;
/// Replays AdamW with moments in eight bits: after each step the oracle goes on from the stored codes.
template <class Backend>
void check_adamw_in_eight_bits(const Backend& backend) {
  using optimizer = adamw_with<eight_bit_moments, Backend>;
  constexpr std::uint64_t seed = 0xFEDCBA9876543210U;
  model m;
  optimizer own(m.tensors, {.weight_decay = decay}, {}, {backend, {.seed = seed}});
  std::vector<std::vector<double>> momentum, variance;
  for (const std::size_t size : sizes) {
    momentum.emplace_back(size, 0.0);
    variance.emplace_back(size, 0.0);
  }
  for (std::uint64_t t = 1; t <= 4; ++t) {
    m.set_gradients(t);
    const std::vector<std::vector<float>> before = m.data;
    own.step(rate);
    const std::vector<std::byte> state = own.save_state();
    for (std::size_t l = 0; l < sizes.size(); ++l) {
      const double of_m = 1.0 - std::pow(beta1, t), of_v = 1.0 - std::pow(beta2, t);
      std::vector<double> of_momentum(sizes[l]), of_variance(sizes[l]);  // errors
      for (std::size_t i = 0; i < sizes[l]; ++i) {
        const auto g = static_cast<double>(m.gradients[l][i]);
        of_momentum[i] = float_error(momentum[l][i], g);
        of_variance[i] = float_error(variance[l][i], g * g);
        momentum[l][i] = beta1 * momentum[l][i] + (1.0 - beta1) * g;
        variance[l][i] = beta2 * variance[l][i] + (1.0 - beta2) * g * g;
        const double u = momentum[l][i] / of_m / (std::sqrt(variance[l][i] / of_v) + epsilon);
        const auto p = static_cast<double>(before[l][i]);
        REQUIRE(std::abs(static_cast<double>(m.data[l][i]) - (p - rate * (u + decay * p))) <=
                1e-6 * std::abs(p) + 1e-4 * rate * std::abs(u) +
                    rate * of_momentum[i] / of_m / (std::sqrt(variance[l][i] / of_v) + epsilon) + 1e-9);
      }
      const auto uniform = [&](std::size_t number) {
        return [=](std::size_t i) { return uniform_of_array(number, test_support::rounding_draw(seed, t, l, i)); };
      };
      momentum[l] = checked_blocks(blocks_of(state, "momentum", l), momentum[l], of_momentum, true, uniform(0));
      variance[l] = checked_blocks(blocks_of(state, "variance", l), variance[l], of_variance, false, uniform(1));
    }
  }
}

// A user's optimizer of momentum alone, on the base of all recipes, which saves its array by itself.

struct heavy_ball_options {
  double weight_decay = 0.0;
  slamb::rank_options ranks{};
  slamb::no_compressor compressor{};
};

/// m ← 0.9 m + 0.1 g;  p ← p − γ m
struct heavy_ball_pass {
  using reads = kit::arrays<kit::gradient, kit::momentum, kit::parameter>;
  using writes = kit::arrays<kit::momentum, kit::parameter>;
  static constexpr int sums = 0;

  kit::rate_tables tensors;

  SLAMB_HOST_DEVICE kit::tensor_rate constants(std::uint32_t tensor) const { return tensors[tensor]; }
  template <class Element, class Sums>
  SLAMB_ELEMENT void operator()(Element& e, const kit::tensor_rate& tensor, Sums& /*sums*/) const {
    using Real = typename Element::real;
    e.momentum = kit::moved_towards(e.momentum, e.gradient, 0.1F);
    e.parameter = e.parameter - Real(tensor.rate) * e.momentum;
  }
};

template <class Backend>
class heavy_ball_recipe final : public kit::recipe_base<Backend> {
  using base = kit::recipe_base<Backend>;
  using base::context_;
  using state_type = kit::state_arrays<kit::momentum>;
  using precision = typename kit::optimizer_context<Backend>::precision;

 public:
  using options_type = heavy_ball_options;
  static constexpr const char* recipe_name = "heavy_ball";
  static void validate(const heavy_ball_options& /*options*/) {}

  heavy_ball_recipe(std::span<const slamb::parameter> parameters, const heavy_ball_options& options,
                    typename base::ranks_type ranks, Backend backend)
      : base(parameters, options, std::move(ranks), std::move(backend), state_type::template stored<precision>) {
    state_.plan(context_);
    context_.allocate(kit::consistency_of(recipe_name, options, parameters.size()));
    context_.enter_phase("dense");
  }
  slamb::statistics report(bool /*with_norms*/) override { return context_.report(); }

 private:
  void begin() override { context_.begin_step(); }
  bool exchange(const kit::gradient_bucket& /*bucket*/) override { return true; }
  void finish() override {
    context_.run(heavy_ball_pass{context_.tables()}, state_.over(context_.view(), context_.memory),
                 context_.all_tiles());
    context_.end_step();
  }
  kit::state_kind kind() const noexcept override { return kit::kind_of<heavy_ball_recipe>(); }
  void visit_state(const kit::state_visitor& part) override {
    context_.visit_state(part);
    state_.visit(part, context_.memory);
  }
  void on_state_loaded(const slamb::restore_options& /*options*/) override { context_.start_in_phase("dense"); }

  state_type state_;
};

}  // namespace

TEST_CASE("moments: a state of a user's optimizer on the base of recipes has the scales") {
  using optimizer = kit::optimizer_over<heavy_ball_recipe<mixed<host_backend, master_copies, eight_bit_moments>>,
                                        slamb::self_communicator>;
  check_resumed_training<optimizer>();
}

TEST_CASE("moments: AdamW in eight bits stores the numbers of an oracle in double precision") {
  check_adamw_in_eight_bits(host_backend{.threads = 2});
  check_adamw_in_eight_bits(slamb::emulated_backend{});
}

TEST_CASE("moments: a momentum in bfloat16 is rounded by its draw to one of its neighbours") {
  constexpr std::uint64_t seed = 77;
  model m;
  adamw_with<bfloat16_momentum> own(m.tensors, {}, {}, {{.threads = 2}, {.seed = seed}});
  std::vector<double> momentum;
  std::size_t up = 0, all = 0;
  for (std::uint64_t t = 1; t <= 3; ++t) {
    m.set_gradients(t);
    own.step(rate);
    const std::vector<std::uint16_t> stored = values_of<std::uint16_t>(own.save_state(), "momentum");
    momentum.resize(stored.size());
    std::size_t place = 0;
    for (std::size_t l = 0; l < sizes.size(); ++l) {
      for (std::size_t i = 0; i < sizes[l]; ++i) {
        double& own_m = momentum[place + i];
        const double error = float_error(own_m, static_cast<double>(m.gradients[l][i]));
        own_m = beta1 * own_m + (1.0 - beta1) * static_cast<double>(m.gradients[l][i]);
        const double number = checked_bfloat16(stored[place + i], own_m, error,
                                               uniform_of_array(0, test_support::rounding_draw(seed, t, l, i)));
        if (own_m != 0.0) up += std::abs(number) > std::abs(own_m) ? 1 : 0, ++all;
        own_m = number;
      }
      place += padded_size(sizes[l]);
    }
  }
  CHECK(up > all / 3);
  CHECK(up < 2 * all / 3);
}

TEST_CASE("moments: memory() shows what they take") {
  std::vector<float> data(1 << 20), gradient(1 << 20);
  const auto bytes = [&](auto moments, const char* what) {
    const adamw_with<decltype(moments)> own(std::vector<slamb::parameter>{{data.data(), gradient.data(), data.size()}},
                                            {}, {}, {{.threads = 1}});
    double found = 0.0;
    for (const auto& use : own.memory().uses)
      if (use.purpose == what) found = use.bytes_per_parameter;
    return found;
  };
  CHECK(bytes(float_moments(), "momentum") == 4.0);
  CHECK(bytes(float_moments(), "variance") == 4.0);
  CHECK(bytes(bfloat16_momentum(), "momentum") == 2.0);
  CHECK(bytes(bfloat16_momentum(), "variance") == 4.0);
  CHECK(bytes(eight_bit_moments(), "momentum") == 1.0 + 1.0 / 64);
  CHECK(bytes(eight_bit_moments(), "variance") == 1.0 + 1.0 / 64);
}

TEST_CASE_TEMPLATE("moments: a saved state resumes with the same bits, and fits no other storage", Moments,
                   bfloat16_momentum, eight_bit_moments) {
  const std::vector<std::byte> state = check_resumed_training<adamw_with<Moments>>();
  model other;
  adamw_with<float_moments> of_floats(other.tensors);
  const std::vector<std::vector<float>> untouched = other.data;
  const auto said = [&]() -> std::string {
    try {
      of_floats.load_state(state);
    } catch (const std::invalid_argument& rejected) {
      return rejected.what();
    }
    return "";
  };
  CHECK(test_support::contains(said(), "momentum"));
  CHECK(other.data == untouched);
}

TEST_CASE("moments: where ranks' chunks cut the blocks, a state in eight bits fits the same number of ranks") {
  using optimizer = slamb::one_bit_adam<slamb::thread_communicator, slamb::sign,
                                        mixed<host_backend, master_copies, eight_bit_moments>>;
  const auto with_ranks = [](int world, const auto& use) {
    slamb::run_ranks(world, [&](slamb::thread_communicator communicator) {
      const int rank = communicator.rank();
      std::vector<float> data(3000, 0.5F), gradient(3000, 1.0F);
      optimizer own(std::vector<slamb::parameter>{{data.data(), gradient.data(), data.size()}}, {},
                    std::move(communicator), {{.threads = 1}});
      use(own, rank);
    });
  };
  std::vector<std::byte> state;
  with_ranks(2, [&](optimizer& own, int rank) {
    own.step(rate);
    const std::vector<std::byte> saved = own.save_state();
    if (rank == 0) state = saved;
  });
  with_ranks(2, [&](optimizer& own, int) { CHECK_NOTHROW(own.load_state(state, {.from_other_ranks = true})); });
  std::vector<std::string> said(3);
  with_ranks(3, [&](optimizer& own, int rank) {
    try {
      own.load_state(state, {.from_other_ranks = true});
    } catch (const std::invalid_argument& rejected) {
      said[static_cast<std::size_t>(rank)] = rejected.what();
    }
  });
  for (const std::string& of_rank : said)
    CHECK(test_support::contains(of_rank, "other blocks of moments, which depend on the number of ranks"));
}

TEST_CASE("moments: a value that is not finite spoils its block, and no other") {
  std::vector<float> data(3 * block, 1.0F), gradient(3 * block, 0.5F);
  adamw_with<eight_bit_moments> own(std::vector<slamb::parameter>{{data.data(), gradient.data(), data.size()}},
                                    {.skip_non_finite = false});
  gradient[block + 5] = std::numeric_limits<float>::infinity();
  own.step(rate);
  gradient[block + 5] = 0.5F;
  own.step(rate);
  for (std::size_t i = 0; i < data.size(); ++i) CHECK(std::isfinite(data[i]) == (i / block != 1));
}

TEST_CASE("moments: elements without a gradient stay inactive, with a variance in eight bits too") {
  // The elements whose variance is 0 when it is frozen are not exchanged; those whose variance is small are.
  constexpr std::size_t size = 700;
  std::vector<std::vector<float>> ends(2);
  slamb::run_ranks(2, [&](slamb::thread_communicator communicator) {
    using optimizer = slamb::one_bit_adam<slamb::thread_communicator, slamb::sign,
                                          mixed<host_backend, master_copies, eight_bit_moments>>;
    const auto rank = static_cast<std::size_t>(communicator.rank());
    std::vector<float> data(size, 0.5F), gradient(size);
    for (std::size_t i = 0; i < size; ++i) gradient[i] = i % 3 == 0 ? 0.0F : i % 3 == 1 ? 1e-6F : 1.0F;
    typename optimizer::options_type options{.weight_decay = 0.0};
    options.warm_up.steps = 2;
    options.compressor.zero_aware = true;
    optimizer own(std::vector<slamb::parameter>{{data.data(), gradient.data(), size}}, options,
                  std::move(communicator));
    for (int t = 0; t < 6; ++t) own.step(1e-3);
    ends[rank] = data;
  });
  CHECK(ends[0] == ends[1]);
  for (std::size_t i = 0; i < size; ++i) CHECK((ends[0][i] == 0.5F) == (i % 3 == 0));
}

}  // namespace properties_moments_tests
