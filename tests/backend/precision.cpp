// Parameters and gradients of sixteen bits. With master copies an optimizer must have the bits of one on floats whose start and
// gradients are the same numbers; rounding is checked with the definition in double precision.
#include "slamb/backend/precision.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "instances/emulated.hpp"
#include "slamb/slamb.hpp"
#include "support/draws.hpp"
#include "support/generate.hpp"
#include "support/said.hpp"
#include "support/sixteen_bits.hpp"

namespace backend_precision_tests {
namespace {

using slamb::emulated_backend;
using slamb::host_backend;
using slamb::precision::master_copies;
using slamb::precision::mixed;
using slamb::precision::stochastic_rounding;
using test_support::element_type;
using test_support::typed_memory;

/// A tensor of a model with types.
struct typed_tensor {
  std::size_t size;
  element_type data, gradient;
  bool has_master;  // the caller's
  int dimensions = 2;
};

constexpr auto f32 = element_type::float32, bf16 = element_type::bfloat16, f16 = element_type::float16;
const std::vector<typed_tensor> all_types{
    {8192 + 5, bf16, bf16, false}, {17, f32, bf16, false, 1},   {640, bf16, f32, true},   {33, f16, f16, false},
    {128, f32, f32, false},        {8192 * 2, f16, bf16, true}, {1, bf16, f16, false, 1}, {777, bf16, bf16, false}};

/// The numbers that each rank holds after each step: parameters as floats, and as they are stored.
struct history {
  std::vector<std::vector<float>> parameters;               // [steps × ranks], tensors end to end
  std::vector<std::vector<std::vector<std::byte>>> stored;  // [steps × ranks][tensors]
  std::vector<std::byte> state;                             // of rank 0 at the end, without parameters
};

/// Values that all three types have exactly: multiples of `unit` with seven bits.
std::vector<float> exact_values(std::size_t size, std::uint64_t seed, float unit) {
  test_support::random_source source(seed);
  std::vector<float> all(size);
  for (float& x : all) x = unit * (static_cast<float>(source.below(255)) - 127.0F);
  return all;
}

constexpr int world = 2;
constexpr std::size_t steps = 12;

/// The gradients of a step: some tensors have none.
std::vector<slamb::parameter::gradient_pointer> some_gradients(std::vector<typed_memory>& gradients, std::size_t step) {
  std::vector<slamb::parameter::gradient_pointer> all;
  for (std::size_t l = 0; l < gradients.size(); ++l)
    all.push_back(step > 0 && (l + step) % 4 == 0 ? slamb::parameter::gradient_pointer() : gradients[l].pointer());
  return all;
}

/// Trains on threads. With `typed` tensors have their types, else all are floats.
/// @param shift  elements by which arrays of sixteen bits are off their alignment
template <class Optimizer>
history trained(const typename Optimizer::options_type& options, const typename Optimizer::backend_type& backend,
                bool typed, bool callers_masters = true, std::size_t shift = 1) {
  history all;
  all.parameters.resize(steps * world);
  all.stored.resize(steps * world);
  slamb::run_ranks(world, [&](slamb::thread_communicator communicator) {
    const auto rank = static_cast<std::size_t>(communicator.rank());
    std::vector<typed_memory> data, gradients;
    std::vector<std::vector<float>> masters;
    for (std::size_t l = 0; l < all_types.size(); ++l) {
      const typed_tensor& t = all_types[l];
      const std::vector<float> start = exact_values(t.size, 10 + l, 0x1p-7F);
      data.emplace_back(start, typed ? t.data : f32, shift);
      gradients.emplace_back(start, typed ? t.gradient : f32, shift);
      masters.push_back(start);
    }
    std::vector<slamb::parameter> tensors;
    for (std::size_t l = 0; l < all_types.size(); ++l) {
      const typed_tensor& t = all_types[l];
      tensors.push_back({.data = data[l].pointer(),
                         .gradient = gradients[l].pointer(),
                         .size = t.size,
                         .dimensions = t.dimensions,
                         .master = typed && t.has_master && callers_masters ? masters[l].data() : nullptr});
    }
    Optimizer optimizer(tensors, options, std::move(communicator), backend);
    for (std::size_t step = 0; step < steps; ++step) {
      for (std::size_t l = 0; l < all_types.size(); ++l)
        gradients[l].write(exact_values(all_types[l].size, 1000 + 100 * step + 10 * rank + l, 0x1p-9F));
      optimizer.set_gradients(some_gradients(gradients, step));
      optimizer.step(0.01);
      auto& parameters = all.parameters[step * world + rank];
      for (std::size_t l = 0; l < all_types.size(); ++l) {
        const std::vector<float> own = tensors[l].master != nullptr ? masters[l] : data[l].values();
        parameters.insert(parameters.end(), own.begin(), own.end());
        all.stored[step * world + rank].push_back(data[l].bytes());
      }
    }
    std::vector<std::byte> saved = optimizer.save_state();
    if (rank == 0) all.state = std::move(saved);
  });
  return all;
}

/// The number of elements, over all steps and ranks, that are not the float parameters rounded by the definition.
std::size_t wrongly_rounded(const history& typed, const history& floats) {
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < typed.stored.size(); ++i) {
    std::size_t first = 0;
    for (std::size_t l = 0; l < all_types.size(); ++l) {
      const std::span<const float> own = std::span(floats.parameters[i]).subspan(first, all_types[l].size);
      wrong += test_support::differences(typed.stored[i][l], test_support::rounded_bytes(own, all_types[l].data));
      first += own.size();
    }
  }
  return wrong;
}

bool has_equal_masters(const history& typed, const history& floats) {
  for (std::size_t i = 0; i < typed.parameters.size(); ++i) {
    std::size_t first = 0;
    for (const typed_tensor& t : all_types) {
      if ((t.has_master || t.data == f32) &&
          std::memcmp(typed.parameters[i].data() + first, floats.parameters[i].data() + first, 4 * t.size) != 0)
        return false;
      first += t.size;
    }
  }
  return true;
}

template <class B>
using adamw_on = slamb::adamw<slamb::thread_communicator, B>;
template <class B>
using lamb_on = slamb::lamb<slamb::thread_communicator, B>;
template <class B>
using slamb_on = slamb::slamb<slamb::thread_communicator, slamb::random_k<>, slamb::rescaled_trust_ratio<>, B>;
template <class B>
using one_bit_adam_on = slamb::one_bit_adam<slamb::thread_communicator, slamb::sign, B>;
template <class B>
using one_bit_lamb_on = slamb::one_bit_lamb<slamb::thread_communicator, slamb::sign, B>;
template <class B>
using zero_one_adam_on = slamb::zero_one_adam<slamb::thread_communicator, slamb::sign, B>;
template <class B>
using one_bit_lamb_in_16_bits_on = slamb::one_bit_lamb<slamb::dense_in<slamb::bf16>, slamb::thread_communicator, B>;
template <class B>
using zero_one_adam_in_16_bits_on = slamb::zero_one_adam<slamb::dense_in<slamb::fp16>, slamb::thread_communicator, B>;

const auto of_lamb = [](auto& o) { o.max_gradient_norm = 0.3; };
const auto of_slamb = [](auto& o) {
  o.local_steps = 4;
  o.dense_below = 20;
  o.compressor.k = 0.25;
};
const auto of_one_bit = [](auto& o) { o.warm_up.steps = 4; };
const auto of_zero_one = [](auto& o) {
  o.variance_schedule = {.freeze_step = 4, .update_scaler = 2};
  o.local_schedule = {.scaler = 2, .clipper = 4};
};

template <class Optimizer, class Set>
typename Optimizer::options_type options_with(const Set& set) {
  typename Optimizer::options_type options{};
  set(options);
  return options;
}

/// Checks that an optimizer with master copies has the bits of its twin on floats.
template <template <class> class On, class Backend, class Set>
void check_against_floats(const Set& set, const Backend& backend = {}) {
  const auto options = options_with<On<Backend>>(set);
  const history floats = trained<On<Backend>>(options, backend, false);
  using optimizer = On<mixed<Backend>>;
  const history typed = trained<optimizer>(options_with<optimizer>(set), {backend}, true);
  CHECK(has_equal_masters(typed, floats));
  CHECK(wrongly_rounded(typed, floats) == 0);
  const history own = trained<optimizer>(options_with<optimizer>(set), {backend}, true, false, 0);
  CHECK(own.stored == typed.stored);  // whoever has the master copies, and wherever arrays begin
}

/// Checks that an optimizer that rounds by chance stores the same bytes on the host, on any number of threads, as the emulated
/// kernels in any order, and that another seed gives other bytes.
template <template <class> class On, class Rounding = stochastic_rounding,
          class Moments = slamb::precision::float_moments, class Set>
void check_chance_on_all_backends(const Set& set) {
  using on_host = On<mixed<host_backend, Rounding, Moments>>;
  using emulated = On<mixed<emulated_backend, Rounding, Moments>>;
  const auto options = options_with<on_host>(set);
  const auto of_emulated = options_with<emulated>(set);
  const history one = trained<on_host>(options, {{.threads = 1}, {.seed = 5}}, true);
  CHECK(trained<on_host>(options, {{.threads = 3}, {.seed = 5}}, true, true, 0).stored == one.stored);
  CHECK(trained<emulated>(of_emulated, {{}, {.seed = 5}}, true).stored == one.stored);
  const auto backwards = slamb::detail::cuda::thread_order::backwards;
  const history other = trained<emulated>(of_emulated, {{.most_blocks = 2, .order = backwards}, {.seed = 5}}, true,
                                          std::is_same_v<Rounding, stochastic_rounding>, 3);
  CHECK(other.stored == one.stored);
  CHECK(trained<on_host>(options, {{.threads = 1}, {.seed = 6}}, true).stored != one.stored);
}

/// x rounded to sixteen bits by a draw r of sixteen bits, from the definition: up in magnitude with probability of the distance
/// from the lower neighbour, in units of their difference.
std::uint16_t rounded_by(element_type type, float x, std::uint32_t r) {
  const auto& format = type == f16 ? test_support::binary16_format : test_support::bfloat16_format;
  const double magnitude = std::abs(static_cast<double>(x));
  int exponent = 0;
  std::frexp(magnitude, &exponent);
  const int least = std::max(exponent - 1, format.least_exponent);
  const double scaled = std::ldexp(magnitude, format.precision - 1 - least), whole = std::floor(scaled);
  // Normal halves use the upper thirteen bits of the draw, as many as a float has below them.
  const bool is_subnormal = type == f16 && exponent - 1 < format.least_exponent;
  const double uniform = type == f16 ? static_cast<double>(r >> 3) / 8192.0 : static_cast<double>(r) / 65536.0;
  const bool moves_up = is_subnormal ? (r + 0.5) / 65536.0 < scaled - whole : scaled - whole + uniform >= 1.0;
  const double chosen = moves_up ? whole + 1.0 : whole;
  return test_support::bits_of_exact(
      type, std::copysign(std::ldexp(chosen, least - (format.precision - 1)), static_cast<double>(x)));
}

}  // namespace

TEST_CASE("precision: with master copies every recipe has the bits of its twin on floats") {
  const host_backend host{.threads = 1};
  check_against_floats<adamw_on>([](auto&) {}, host);
  check_against_floats<lamb_on>(of_lamb, host);
  check_against_floats<slamb_on>(of_slamb, host);
  check_against_floats<one_bit_adam_on>(of_one_bit, host);
  check_against_floats<one_bit_lamb_on>(of_one_bit, host);
  check_against_floats<zero_one_adam_on>(of_zero_one, host);
  check_against_floats<zero_one_adam_in_16_bits_on>(of_zero_one, host);
}

TEST_CASE("precision: with master copies emulated kernels have the bits of their twins on floats") {
  check_against_floats<lamb_on, emulated_backend>(of_lamb);
  check_against_floats<slamb_on, emulated_backend>(of_slamb);
  check_against_floats<one_bit_lamb_on, emulated_backend>(of_one_bit);
  check_against_floats<one_bit_lamb_in_16_bits_on, emulated_backend>(of_one_bit);
}

// Each recipe once or twice, in one of these tests. Rounding and storage belong to an array, not to a recipe.
TEST_CASE("precision: without master copies recipes store the same bytes on all backends") {
  check_chance_on_all_backends<lamb_on>(of_lamb);
  check_chance_on_all_backends<one_bit_adam_on>(of_one_bit);
}

TEST_CASE("precision: with moments in fewer bits every recipe stores the same bytes on all backends") {
  using slamb::precision::bfloat16_momentum;
  using slamb::precision::eight_bit_moments;
  check_chance_on_all_backends<adamw_on, stochastic_rounding, eight_bit_moments>([](auto&) {});
  check_chance_on_all_backends<lamb_on, master_copies, eight_bit_moments>(of_lamb);
  check_chance_on_all_backends<slamb_on, stochastic_rounding, eight_bit_moments>(of_slamb);
  check_chance_on_all_backends<one_bit_lamb_on, stochastic_rounding, eight_bit_moments>(of_one_bit);
  check_chance_on_all_backends<one_bit_adam_on, master_copies, bfloat16_momentum>(of_one_bit);
  check_chance_on_all_backends<zero_one_adam_on, stochastic_rounding, eight_bit_moments>(of_zero_one);
}

TEST_CASE("precision: without master copies each update is rounded by the draw of its step, tensor and element") {
  // The twin on floats begins each step with the rounded parameters. Then its parameters are those before they are rounded.
  using optimizer = slamb::lamb<slamb::self_communicator, mixed<host_backend, stochastic_rounding>>;
  constexpr std::uint64_t seed = 0x1234567890ABCDEFU;
  std::vector<typed_memory> data, gradients;
  std::vector<std::vector<float>> twins;
  std::vector<slamb::parameter> tensors, twin_tensors;
  for (std::size_t l = 0; l < all_types.size(); ++l) {
    const std::vector<float> start = exact_values(all_types[l].size, 10 + l, 0x1p-7F);
    data.emplace_back(start, all_types[l].data, 1);
    gradients.emplace_back(start, f32);
    twins.push_back(start);
  }
  for (std::size_t l = 0; l < all_types.size(); ++l) {
    tensors.push_back({.data = data[l].pointer(), .gradient = gradients[l].pointer(), .size = data[l].size()});
    twin_tensors.push_back({.data = twins[l].data(), .gradient = gradients[l].pointer(), .size = data[l].size()});
  }
  optimizer own(tensors, {}, {}, {{.threads = 2}, {seed}});
  slamb::lamb<> twin(twin_tensors);
  std::size_t rounded_up = 0, rounded = 0;
  for (std::uint64_t t = 1; t <= 4; ++t) {
    for (std::size_t l = 0; l < data.size(); ++l) {
      gradients[l].write(exact_values(data[l].size(), 100 * t + l, 0x1p-9F));
      std::ranges::copy(data[l].values(), twins[l].begin());
    }
    own.step(0.01);
    twin.step(0.01);
    for (std::size_t l = 0; l < data.size(); ++l) {
      if (all_types[l].data == f32) {
        CHECK(data[l].values() == twins[l]);
        continue;
      }
      const std::vector<std::byte> got = data[l].bytes();
      for (std::size_t i = 0; i < data[l].size(); ++i) {
        std::uint16_t bits = 0;
        std::memcpy(&bits, got.data() + 2 * i, 2);
        REQUIRE(bits == rounded_by(all_types[l].data, twins[l][i], test_support::rounding_draw(seed, t, l, i)));
        rounded += 1;
        rounded_up +=
            std::abs(test_support::value_of_bits(all_types[l].data, bits)) > std::abs(static_cast<double>(twins[l][i]))
                ? 1
                : 0;
      }
      CHECK(data[l].is_intact());
    }
  }
  CHECK(rounded_up > rounded / 3);
  CHECK(rounded_up < 2 * rounded / 3);
}

namespace {

/// One rank with tensors of all types, whose optimizer can be saved and loaded.
template <class Backend>
class saved_model {
 public:
  using optimizer_type = slamb::lamb<slamb::self_communicator, Backend>;

  explicit saved_model(bool typed, float unit = 0x1p-7F) {
    for (std::size_t l = 0; l < all_types.size(); ++l) {
      const std::vector<float> start = exact_values(all_types[l].size, 10 + l, unit);
      data.emplace_back(start, typed ? all_types[l].data : f32);
      gradients.emplace_back(start, typed ? all_types[l].gradient : f32);
    }
    for (std::size_t l = 0; l < all_types.size(); ++l)
      tensors.push_back({.data = data[l].pointer(), .gradient = gradients[l].pointer(), .size = data[l].size()});
  }

  static void step(saved_model& model, optimizer_type& run, std::size_t t) {
    for (std::size_t l = 0; l < all_types.size(); ++l)
      model.gradients[l].write(exact_values(all_types[l].size, 500 + 10 * t + l, 0x1p-9F));
    run.step(0.01);
  }
  std::vector<std::vector<std::byte>> stored() const {
    std::vector<std::vector<std::byte>> all;
    for (const typed_memory& d : data) all.push_back(d.bytes());
    return all;
  }

  std::vector<typed_memory> data, gradients;
  std::vector<slamb::parameter> tensors;
};

using float_model = saved_model<host_backend>;
using mixed_model = saved_model<mixed<>>;

/// The float parameters, each rounded to the type of its tensor.
std::vector<std::vector<std::byte>> rounded(const float_model& floats) {
  std::vector<std::vector<std::byte>> all;
  for (std::size_t l = 0; l < all_types.size(); ++l)
    all.push_back(test_support::rounded_bytes(floats.data[l].values(), all_types[l].data));
  return all;
}

std::vector<std::byte> saved(const slamb::optimizer& run, bool with_parameters) {
  std::vector<std::byte> all;
  run.save_state([&all](std::span<const std::byte> piece) { all.insert(all.end(), piece.begin(), piece.end()); },
                 {.with_parameters = with_parameters});
  return all;
}

}  // namespace

TEST_CASE("precision: a float state with parameters continues with master copies, and the other way round") {
  float_model floats(false), to_floats(false, 0x1p-6F);
  mixed_model types(true), to_types(true, 0x1p-6F);
  float_model::optimizer_type of_floats(floats.tensors), of_loaded_floats(to_floats.tensors);
  mixed_model::optimizer_type of_types(types.tensors), of_loaded_types(to_types.tensors);
  for (std::size_t t = 0; t < 4; ++t) {
    float_model::step(floats, of_floats, t);
    mixed_model::step(types, of_types, t);
  }
  CHECK(saved(of_floats, true) == saved(of_types, true));
  of_loaded_types.load_state(saved(of_floats, true));
  of_loaded_floats.load_state(saved(of_types, true));
  CHECK(to_types.stored() == rounded(floats));
  for (std::size_t t = 4; t < 8; ++t) {
    float_model::step(floats, of_floats, t);
    mixed_model::step(to_types, of_loaded_types, t);
    float_model::step(to_floats, of_loaded_floats, t);
    CHECK(to_types.stored() == rounded(floats));
    CHECK(to_floats.stored() == floats.stored());
  }
}

TEST_CASE("precision: without parameters a state has the master copies, which continue where they fit the parameters") {
  mixed_model whole(true), resumed(true), other(true, 0x1p-6F);
  mixed_model::optimizer_type of_whole(whole.tensors);
  for (std::size_t t = 0; t < 4; ++t) mixed_model::step(whole, of_whole, t);
  const std::vector<std::byte> state = saved(of_whole, false);
  mixed_model::optimizer_type of_resumed(resumed.tensors), of_other(other.tensors);
  for (std::size_t l = 0; l < all_types.size(); ++l) resumed.data[l].write(whole.data[l].values());
  of_resumed.load_state(state, {.parameters = false});
  const auto others = other.stored();
  of_other.load_state(state, {.parameters = false});
  CHECK(other.stored() == others);  // parameters are the caller's, and the copies have followed them
  for (std::size_t t = 4; t < 8; ++t) {
    mixed_model::step(whole, of_whole, t);
    mixed_model::step(resumed, of_resumed, t);
    CHECK(resumed.stored() == whole.stored());
  }
  // A float optimizer has no copies to restore.
  float_model floats(false);
  float_model::optimizer_type of_floats(floats.tensors);
  CHECK_THROWS_WITH_AS(of_floats.load_state(state, {.parameters = false}),
                       doctest::Contains("but with the optimizer's master copies, which this optimizer does not have"),
                       std::invalid_argument);
  // The other way round they start from the parameters.
  const std::vector<std::byte> of_float_state = saved(of_floats, false);
  CHECK_NOTHROW(of_resumed.load_state(of_float_state, {.parameters = false}));
}

TEST_CASE("precision: reload_parameters takes over what was written, and keeps the rest of the copies") {
  mixed_model whole(true), touched(true), same(true);
  mixed_model::optimizer_type of_whole(whole.tensors), of_touched(touched.tensors), of_same(same.tensors);
  for (std::size_t t = 0; t < 3; ++t) {
    mixed_model::step(whole, of_whole, t);
    mixed_model::step(touched, of_touched, t);
    mixed_model::step(same, of_same, t);
  }
  of_same.reload_parameters();
  touched.data[0].write(exact_values(all_types[0].size, 99, 0x1p-5F));
  of_touched.reload_parameters();
  const std::vector<float> written = touched.data[0].values();
  for (std::size_t t = 3; t < 5; ++t) {
    mixed_model::step(whole, of_whole, t);
    mixed_model::step(same, of_same, t);
    mixed_model::step(touched, of_touched, t);
  }
  CHECK(same.stored() == whole.stored());
  CHECK(touched.stored()[1] == whole.stored()[1]);
  CHECK(touched.stored()[0] != whole.stored()[0]);
  double most = 0.0;
  for (std::size_t i = 0; i < written.size(); ++i)
    most = std::max(most, std::abs(static_cast<double>(touched.data[0].values()[i]) - static_cast<double>(written[i])));
  CHECK(most < 0.2);  // two steps from what was written
}

TEST_CASE(
    "precision: parameters that a framework loads later, on one rank or before a state's copies, are taken over") {
  // After construction, as models are loaded after their optimizer.
  mixed_model late(true, 0x1p-6F), early(true);
  mixed_model::optimizer_type of_late(late.tensors), of_early(early.tensors);
  for (std::size_t l = 0; l < all_types.size(); ++l) late.data[l].write(early.data[l].values());
  for (std::size_t t = 0; t < 3; ++t) {
    mixed_model::step(late, of_late, t);
    mixed_model::step(early, of_early, t);
  }
  CHECK(late.stored() == early.stored());
  // After a state without parameters, but with the copies.
  mixed_model resumed(true, 0x1p-6F);
  mixed_model::optimizer_type of_resumed(resumed.tensors);
  of_resumed.load_state(saved(of_early, false), {.parameters = false});
  for (std::size_t l = 0; l < all_types.size(); ++l) resumed.data[l].write(early.data[l].values());
  for (std::size_t t = 3; t < 6; ++t) {
    mixed_model::step(resumed, of_resumed, t);
    mixed_model::step(early, of_early, t);
  }
  CHECK(resumed.stored() == early.stored());
  // On the root of a broadcast.
  slamb::run_ranks(2, [&](slamb::thread_communicator communicator) {
    const bool is_root = communicator.rank() == 0;
    typed_memory p(std::vector<float>(100, 1.0F), bf16), g(std::vector<float>(100, 0.5F), bf16);
    slamb::adamw<slamb::thread_communicator, mixed<>> run(
        std::vector<slamb::parameter>{{p.pointer(), g.pointer(), 100}}, {}, std::move(communicator), {{.threads = 1}});
    run.step(0.01);
    if (is_root) p.write(std::vector<float>(100, 5.0F));
    run.broadcast_parameters(0);
    CHECK(p.values() == std::vector<float>(100, 5.0F));
    CHECK_NOTHROW(run.step(0.01));
  });
}

TEST_CASE("precision: parameters and gradients may exchange their memory in one call") {
  typed_memory one(std::vector<float>(50, 1.0F), bf16), other(std::vector<float>(50, 0.5F), bf16);
  slamb::adamw<slamb::self_communicator, mixed<>> run(
      std::vector<slamb::parameter>{{one.pointer(), other.pointer(), 50}});
  const std::vector<slamb::parameter::data_pointer> data{other.pointer()};
  const std::vector<slamb::parameter::gradient_pointer> gradients{one.pointer()};
  CHECK_THROWS_AS(run.set_parameters(data), std::invalid_argument);
  CHECK_NOTHROW(run.set_parameters(data, gradients));
  const std::vector<float> before = one.values();
  run.step(0.1);
  CHECK(one.values() == before);
  CHECK(other.values()[0] < 0.5F);
}

TEST_CASE("precision: ranks with other seeds or other sizes of parameters are told so at construction") {
  const auto said = [](auto backend_of, auto type_of) {
    std::vector<std::string> all(2);
    slamb::run_ranks(2, [&](slamb::thread_communicator communicator) {
      const int rank = communicator.rank();
      typed_memory p(std::vector<float>(10, 1.0F), type_of(rank)), g(std::vector<float>(10, 1.0F), f32);
      const auto backend = backend_of(rank);
      try {
        slamb::adamw<slamb::thread_communicator, std::remove_const_t<decltype(backend)>>(
            std::vector<slamb::parameter>{{p.pointer(), g.pointer(), 10}}, {}, std::move(communicator), backend);
      } catch (const slamb::rank_mismatch_error& differs) {
        all[static_cast<std::size_t>(rank)] = differs.what();
      }
    });
    CHECK(all[0] == all[1]);
    return all[0];
  };
  using drawn = mixed<host_backend, stochastic_rounding>;
  CHECK(test_support::contains(said(
                                   [](int rank) {
                                     return drawn{{}, {.seed = static_cast<std::uint64_t>(rank)}};
                                   },
                                   [](int) { return bf16; }),
                               "the seed of stochastic_rounding"));
  CHECK(test_support::contains(said([](int) { return mixed<>{}; }, [](int rank) { return rank == 0 ? bf16 : f32; }),
                               "the bytes of a parameter of tensor 0"));
}

TEST_CASE("precision: without master copies a state resumes with the same bytes") {
  using model = saved_model<mixed<host_backend, stochastic_rounding>>;
  model whole(true), resumed(true, 0x1p-6F);
  model::optimizer_type of_whole(whole.tensors), of_resumed(resumed.tensors);
  for (std::size_t t = 0; t < 4; ++t) model::step(whole, of_whole, t);
  of_resumed.load_state(saved(of_whole, true));
  CHECK(resumed.stored() == whole.stored());
  for (std::size_t t = 4; t < 8; ++t) {
    model::step(whole, of_whole, t);
    model::step(resumed, of_resumed, t);
    CHECK(resumed.stored() == whole.stored());
  }
}

TEST_CASE("precision: types, masters and pointers that do not fit are rejected before anything is done") {
  alignas(16) std::uint16_t bits[20] = {};
  float floats[20] = {}, gradient[20] = {};
  const auto refusal = [](const slamb::parameter& wrong, auto backend) -> std::string {
    using optimizer = slamb::adamw<slamb::self_communicator, decltype(backend)>;
    try {
      optimizer(std::vector<slamb::parameter>{wrong}, {}, {}, backend);
    } catch (const std::invalid_argument& rejected) {
      return rejected.what();
    }
    return "";
  };
  const auto data_16 = slamb::parameter::data_pointer(bits, bf16);
  CHECK(refusal({data_16, gradient, 8}, host_backend{}) ==
        "slamb: tensor 0 has bfloat16 data, but this optimizer takes float32 alone; give it the Backend "
        "slamb::precision::mixed<...>, which takes float32, bfloat16 and float16");
  CHECK(
      test_support::contains(refusal({floats, {bits, f16}, 8}, host_backend{}), "tensor 0 has float16 gradients, but"));
  CHECK(refusal({data_16, gradient, 8}, mixed<>{}) == "");
  CHECK(
      refusal({.data = floats, .gradient = gradient, .size = 8, .master = floats + 8}, mixed<>{}) ==
      "slamb: tensor 0 has a master copy, but its data is float32; only bfloat16 and float16 data have one, so master "
      "must be null");
  const auto odd = slamb::parameter::data_pointer(reinterpret_cast<std::byte*>(bits) + 1, f16);
  CHECK(test_support::contains(refusal({odd, gradient, 4}, mixed<>{}),
                               "tensor 0 has a data pointer to float16, whose address is"));
  CHECK(test_support::contains(refusal({odd, gradient, 4}, mixed<>{}), "; it must be a multiple of 2"));
  auto* const two_off = reinterpret_cast<float*>(reinterpret_cast<std::byte*>(floats) + 2);
  CHECK(test_support::contains(refusal({{two_off, f32}, gradient, 4}, mixed<>{}), "it must be a multiple of 4"));
  CHECK(
      test_support::contains(refusal({.data = data_16, .gradient = gradient, .size = 8, .master = two_off}, mixed<>{}),
                             "tensor 0 has a master pointer to float32"));
  CHECK(test_support::contains(refusal({.data = data_16, .gradient = {bits + 7, bf16}, .size = 8}, mixed<>{}),
                               "overlaps"));
  CHECK(refusal({.data = data_16, .gradient = {bits + 8, bf16}, .size = 8}, mixed<>{}) == "");
  CHECK(test_support::contains(
      refusal({.data = data_16, .gradient = gradient, .size = 8, .master = gradient + 4}, mixed<>{}), "overlaps"));

  slamb::adamw<slamb::self_communicator, mixed<>> run(
      std::vector<slamb::parameter>{{data_16, {bits + 8, bf16}, 8}, {floats, gradient, 20}});
  const auto said = [](const auto& call) -> std::string {
    try {
      call();
    } catch (const std::invalid_argument& rejected) {
      return rejected.what();
    }
    return "";
  };
  CHECK(said([&] {
          run.set_gradient(0, {bits + 6, bf16});
        }) == "slamb: the gradient of tensor 0 overlaps the data of tensor 0; parameters must not share memory");
  CHECK(said([&] { run.set_parameters(std::vector<slamb::parameter::data_pointer>{data_16}); }) ==
        "slamb: set_parameters() was given 1 pointers, but there are 2 tensors");
  CHECK(said([&] {
          run.set_parameters(std::vector<slamb::parameter::data_pointer>{{bits, f16}, floats});
        }) ==
        "slamb: tensor 0 has float16 data now, but it was constructed with bfloat16; the types of parameters cannot "
        "change");
  CHECK(said([&] {
          run.set_parameters(std::vector<slamb::parameter::data_pointer>{nullptr, floats});
        }) == "slamb: tensor 0 has null data; it must point to size elements");
  CHECK(test_support::contains(said([&] {
                                 run.set_parameters(std::vector<slamb::parameter::data_pointer>{data_16, gradient});
                               }),
                               "overlaps"));
  CHECK(said([&] { run.set_parameters(std::vector<slamb::parameter::data_pointer>{data_16, floats}); }) == "");
}

namespace {

/// A parameter of a framework's own type of sixteen bits.
template <class Own>
slamb::parameter tagged(std::vector<Own>& data, std::vector<Own>& gradient) {
  return {.data = {data.data(), slamb::parameter::bfloat16},
          .gradient = {gradient.data(), slamb::parameter::bfloat16},
          .size = data.size()};
}

}  // namespace

TEST_CASE("precision: a framework's own type comes as a pointer with a tag, also from a function template") {
  enum class own_bfloat16 : std::uint16_t {};
  std::vector<own_bfloat16> data(100, own_bfloat16{0x3F80}), gradient(100, own_bfloat16{0x3F80});
  const slamb::parameter tensor = tagged(data, gradient);
  slamb::adamw<slamb::self_communicator, mixed<>> optimizer({&tensor, 1}, {.weight_decay = 0.0});
  optimizer.step(0.25);
  for (const own_bfloat16 x : data) REQUIRE(static_cast<std::uint16_t>(x) == 0x3F40);  // 0.75
}

TEST_CASE("precision: halves that overflow become infinite, gradients that are infinite skip the step") {
  std::vector<typed_memory> data, gradients;
  data.emplace_back(std::vector<float>{65504.0F, -65504.0F, 0x1p-24F, 1.0F}, f16);
  gradients.emplace_back(std::vector<float>{-1.0F, 1.0F, 1.0F, -1.0F}, f32);
  slamb::adamw<slamb::self_communicator, mixed<>> run(
      std::vector<slamb::parameter>{{data[0].pointer(), gradients[0].pointer(), 4}}, {.weight_decay = 0.0});
  run.step(32.0);  // beyond 65504 + 16
  CHECK(data[0].values() == std::vector<float>{std::numeric_limits<float>::infinity(),
                                               -std::numeric_limits<float>::infinity(), -32.0F, 33.0F});
  for (const element_type type : {bf16, f16}) {
    typed_memory p(std::vector<float>(20, 1.0F), type), g(std::vector<float>(20, 1.0F), type);
    slamb::lamb<slamb::self_communicator, mixed<>> other(std::vector<slamb::parameter>{{p.pointer(), g.pointer(), 20}});
    std::vector<float> infinite(20, 1.0F);
    infinite[17] = std::numeric_limits<float>::infinity();
    g.write(infinite);
    other.step(0.1);
    CHECK(other.statistics().skipped_steps == 1);
    CHECK(p.values() == std::vector<float>(20, 1.0F));
  }
}

}  // namespace backend_precision_tests
