// A user's optimizer with arrays of its own in sixteen and eight bits: what it stores must be what an oracle in double precision
// stores, which reads the numbers back from saved states.
#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <set>
#include <span>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "instances/emulated.hpp"
#include "slamb/kit.hpp"
#include "slamb/slamb.hpp"
#include "support/draws.hpp"
#include "support/stored_numbers.hpp"

namespace properties_own_arrays_tests {
namespace {

namespace kit = slamb::kit;
namespace precision = slamb::precision;

using namespace test_support::stored_numbers;
using slamb::host_backend;

constexpr double rate = 0.01;

struct fast : kit::state_array {
  static constexpr const char* name = "fast mean";
  template <class T>
  struct field {
    T fast;
  };
};
struct slow : kit::state_array {
  static constexpr const char* name = "slow mean";
  template <class T>
  struct field {
    T slow;
  };
};
struct square : kit::state_array {
  static constexpr const char* name = "square";
  static constexpr bool is_signed = false;
  template <class T>
  struct field {
    T square;
  };
};
struct last : kit::state_array {
  static constexpr const char* name = "last gradient";
  template <class T>
  struct field {
    T last;
  };
};
struct total : kit::state_array {
  static constexpr const char* name = "total";
  template <class T>
  struct field {
    T total;
  };
};

struct own_options {
  double weight_decay = 0.0;
  slamb::rank_options ranks{};
  slamb::no_compressor compressor{};
};

/// f ← (f + g)/2;  s ← 0.9 s + 0.1 g;  q ← 0.9 q + 0.1 g²;  T ← T + g;  p ← p − γ ((f + s − l)/(1 + √q) + T);  l ← g
struct own_pass {
  using reads = kit::arrays<kit::gradient, fast, slow, square, last, total, kit::parameter>;
  using writes = kit::arrays<fast, slow, square, last, total, kit::parameter>;
  static constexpr int sums = 0;

  kit::rate_tables tensors;

  SLAMB_HOST_DEVICE kit::tensor_rate constants(std::uint32_t tensor) const { return tensors[tensor]; }
  template <class Element, class Sums>
  SLAMB_ELEMENT void operator()(Element& e, const kit::tensor_rate& tensor, Sums& /*sums*/) const {
    using ::slamb::square_root;  // for a float; others are found by their types
    using Real = typename Element::real;
    e.fast = kit::moved_towards(e.fast, e.gradient, 0.5F);
    e.slow = kit::moved_towards(e.slow, e.gradient, 0.1F);
    e.square = kit::moved_towards(e.square, e.gradient * e.gradient, 0.1F);
    e.total = e.total + e.gradient;
    const Real step = (e.fast + e.slow - e.last) / (Real(1.0F) + square_root(e.square)) + e.total;
    e.parameter = e.parameter - Real(tensor.rate) * step;
    e.last = e.gradient;
  }
};

template <class Backend>
class own_recipe final : public kit::recipe_with_state<Backend, own_options, fast, slow, square, last, total> {
  using base = kit::recipe_with_state<Backend, own_options, fast, slow, square, last, total>;
  using base::context_;

 public:
  static constexpr const char* recipe_name = "own_arrays";

  own_recipe(std::span<const slamb::parameter> parameters, const own_options& options, typename base::ranks_type ranks,
             Backend backend)
      : base(parameters, options, std::move(ranks), std::move(backend)) {
    context_.allocate(kit::consistency_of(recipe_name, options, parameters.size()));
    context_.enter_phase("dense");
  }
  slamb::statistics report(bool /*with_norms*/) override { return context_.report(); }

 private:
  void begin() override { context_.begin_step(); }
  bool exchange(const kit::gradient_bucket& /*bucket*/) override { return true; }
  void finish() override {
    context_.run(own_pass{context_.tables()}, this->view(), context_.all_tiles());
    context_.end_step();
  }
  kit::state_kind kind() const noexcept override { return kit::kind_of<own_recipe>(); }
};

using fewer_bits = precision::storage<
    precision::stored_as<fast, precision::as_bfloat16>, precision::stored_as<slow, precision::as_eight_bits>,
    precision::stored_as<square, precision::as_eight_bits>, precision::stored_as<last, precision::as_bfloat16>>;
template <class Storage, class Backend = host_backend>
using backend_with = precision::mixed<Backend, precision::master_copies, Storage>;
template <class Storage, class Backend = host_backend>
using optimizer_with = kit::optimizer_over<own_recipe<backend_with<Storage, Backend>>, slamb::self_communicator>;

/// The bfloat16 numbers of tensor l in a state.
std::vector<std::uint16_t> halves_of(const std::vector<std::byte>& state, const char* array, std::size_t l) {
  const std::vector<std::uint16_t> all = values_of<std::uint16_t>(state, array);
  std::size_t first = 0;
  for (std::size_t k = 0; k < l; ++k) first += padded_size(sizes[k]);
  const auto of_tensor = std::span(all).subspan(first, sizes[l]);
  return {of_tensor.begin(), of_tensor.end()};
}

/// Takes steps. After each of them, the oracle goes on from what is stored.
template <class Backend>
void check_against_the_oracle(const Backend& backend) {
  constexpr std::uint64_t seed = 0x0123456789ABCDEFU;
  struct state_of_tensor {
    std::vector<double> fast, slow, square, last, total;
  };
  model m;
  optimizer_with<fewer_bits, Backend> own(m.tensors, {}, {}, {backend, {.seed = seed}});
  std::vector<state_of_tensor> oracle;
  for (const std::size_t size : sizes) {
    const std::vector<double> zeros(size, 0.0);
    oracle.push_back({zeros, zeros, zeros, zeros, zeros});
  }
  for (std::uint64_t t = 1; t <= 4; ++t) {
    m.set_gradients(t);
    const std::vector<std::vector<float>> before = m.data;
    own.step(rate);
    const std::vector<std::byte> state = own.save_state();
    for (std::size_t l = 0; l < sizes.size(); ++l) {
      state_of_tensor& o = oracle[l];
      const auto uniform = [&](std::size_t number) {
        return [=](std::size_t i) { return uniform_of_array(number, test_support::rounding_draw(seed, t, l, i)); };
      };
      std::vector<double> of_slow(sizes[l]), of_square(sizes[l]);  // errors
      const std::vector<std::uint16_t> fast_bits = halves_of(state, "fast mean", l),
                                       last_bits = halves_of(state, "last gradient", l);
      for (std::size_t i = 0; i < sizes[l]; ++i) {
        const auto g = static_cast<double>(m.gradients[l][i]), p = static_cast<double>(before[l][i]);
        const double of_fast = float_error(o.fast[i], g);
        of_slow[i] = float_error(o.slow[i], g);
        of_square[i] = float_error(o.square[i], g * g);
        o.fast[i] = 0.5 * (o.fast[i] + g);
        o.slow[i] = 0.9 * o.slow[i] + 0.1 * g;
        o.square[i] = 0.9 * o.square[i] + 0.1 * g * g;
        o.total[i] += g;
        const double step = (o.fast[i] + o.slow[i] - o.last[i]) / (1.0 + std::sqrt(o.square[i])) + o.total[i];
        REQUIRE(static_cast<double>(m.data[l][i]) == doctest::Approx(p - rate * step).epsilon(1e-6));
        o.fast[i] = checked_bfloat16(fast_bits[i], o.fast[i], of_fast, uniform(0)(i));
        o.last[i] = checked_bfloat16(last_bits[i], g, 0.0, uniform(3)(i));
      }
      o.slow = checked_blocks(blocks_of(state, "slow mean", l), o.slow, of_slow, true, uniform(1));
      o.square = checked_blocks(blocks_of(state, "square", l), o.square, of_square, false, uniform(2));
    }
  }
}

}  // namespace

TEST_CASE("own arrays: an optimizer of a user's stores them in the bits of an oracle in double precision") {
  check_against_the_oracle(host_backend{.threads = 2});
  check_against_the_oracle(slamb::emulated_backend{});
}

TEST_CASE("own arrays: memory, plans and saved states are those of their storage") {
  std::vector<float> data(1U << 20U), gradient(1U << 20U);
  const std::vector<slamb::parameter> tensors{{data.data(), gradient.data(), data.size()}};
  const optimizer_with<fewer_bits> own(tensors, {}, {}, {{.threads = 1}});
  const auto taken_by = [&](const char* array) {
    for (const auto& use : own.memory().uses)
      if (use.purpose == array) return use.bytes_per_parameter;
    return 0.0;
  };
  CHECK(taken_by("fast mean") == 2.0);
  CHECK(taken_by("slow mean") == 1.0 + 1.0 / 64);
  CHECK(taken_by("square") == 1.0 + 1.0 / 64);
  CHECK(taken_by("last gradient") == 2.0);
  CHECK(taken_by("total") == 4.0);
  const std::vector<slamb::plan::tensor_shape> shapes{{.size = 1U << 20U}};
  const auto planned = [&]<class Optimizer>(std::type_identity<Optimizer> /*optimizer*/) {
    return slamb::plan::plan_traffic<Optimizer>(shapes, {}, {});
  };
  CHECK(planned(std::type_identity<optimizer_with<precision::storage<>>>()).memory_bytes(1) == 12 + 10 * 4.0);
  const auto plan = planned(std::type_identity<optimizer_with<fewer_bits>>());
  CHECK(plan.memory_bytes(1) == 12 + 2 * (2.0 + 2 * (1.0 + 1.0 / 64) + 2.0 + 4.0));
  CHECK(plan.memory().total_bytes == own.memory().total_bytes);

  const std::vector<std::byte> state = check_resumed_training<optimizer_with<fewer_bits>>();
  model other;
  optimizer_with<precision::storage<>> of_floats(other.tensors);
  CHECK_THROWS_AS(of_floats.load_state(state), std::invalid_argument);
}

TEST_CASE("own arrays: the upper eight bits of the draws of any two arrays are independent") {
  constexpr std::size_t arrays = 6;
  std::array<std::array<std::uint32_t, arrays>, 65536> upper;  // the parameter's, then those of arrays 0, 1, …
  for (std::uint32_t r = 0; r < upper.size(); ++r)
    upper[r] = {r >> 8,
                slamb::detail::draw_of_array<0>(r) >> 8,
                slamb::detail::draw_of_array<1>(r) >> 8,
                slamb::detail::draw_of_array<2>(r) >> 8,
                slamb::detail::draw_of_array<3>(r) >> 8,
                slamb::detail::draw_of_array<254>(r) >> 8};
  for (std::size_t j = 0; j < arrays; ++j)
    for (std::size_t k = 0; k < j; ++k) {
      std::set<std::pair<std::uint32_t, std::uint32_t>> pairs;
      for (const auto& of_draw : upper) pairs.emplace(of_draw[j], of_draw[k]);
      CAPTURE(j);
      CAPTURE(k);
      CHECK(pairs.size() == 65536);
    }
  for (const std::uint32_t r : {0x0001U, 0x80FFU, 0xFF80U, 0x1234U, 0xFFFFU}) {
    CHECK(slamb::detail::draw_of_array<0>(r) / 65536.0 == uniform_of_array(0, r));
    CHECK(slamb::detail::draw_of_array<1>(r) / 65536.0 == uniform_of_array(1, r));
    CHECK(slamb::detail::draw_of_array<9>(r) / 65536.0 == uniform_of_array(9, r));
  }
}

}  // namespace properties_own_arrays_tests
