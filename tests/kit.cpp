// slamb/kit.hpp: optimizers as docs/extend/optimizer.md describes them, with dense gradients and with error feedback.
#include "slamb/kit.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "instances/emulated.hpp"
#include "slamb/slamb.hpp"

namespace kit_tests {
namespace {

namespace kit = slamb::kit;
using ranks = slamb::thread_communicator;

/// No option of Adam, and one of its own.
template <class Compressor, class ErrorFeedback>
struct heavy_ball_options {
  double decay = 0.9, weight_decay = 0.0;
  slamb::rank_options ranks{};
  Compressor compressor{};
  ErrorFeedback error_feedback{};
};

struct velocity : kit::state_array {
  static constexpr const char* name = "velocity";
  template <class T>
  struct field {
    T velocity;
  };
};

/// u ← β u + g;  p ← p − γ (u + λ p)
struct heavy_ball_pass {
  using signal_reads = kit::arrays<kit::gradient>;
  using reads = kit::arrays<velocity, kit::parameter>;
  using writes = kit::arrays<velocity, kit::parameter>;
  static constexpr int sums = 0;

  kit::rate_tables tensors;
  float decay;

  SLAMB_HOST_DEVICE kit::tensor_rate constants(std::uint32_t tensor) const { return tensors[tensor]; }

  template <class Element, class Sums>
  SLAMB_ELEMENT auto signal(const Element& e, const kit::tensor_rate& /*tensor*/, Sums& results) const {
    results.check_finite(e.gradient);
    return e.gradient;
  }
  template <class Element, class Sums>
  SLAMB_ELEMENT void operator()(Element& e, const kit::tensor_rate& tensor, Sums& /*sums*/) const {
    move(e, tensor, e.exchanged);
  }
  template <class Element, class Real>
  SLAMB_ELEMENT void move(Element& e, const kit::tensor_rate& tensor, const Real& mean) const {
    e.velocity = Real(decay) * e.velocity + mean;
    e.parameter = e.parameter - Real(tensor.rate) * (e.velocity + Real(tensor.weight_decay) * e.parameter);
  }
};

/// The same after a dense exchange.
struct dense_heavy_ball_pass : heavy_ball_pass {
  using reads = kit::arrays<kit::gradient, velocity, kit::parameter>;

  float per_rank;  ///< 1/N

  template <class Element, class Sums>
  SLAMB_ELEMENT void operator()(Element& e, const kit::tensor_rate& tensor, Sums& /*sums*/) const {
    this->move(e, tensor, e.gradient * typename Element::real(per_rank));
  }
};

template <class Backend, class Compressor, class ErrorFeedback>
using heavy_ball_base = kit::recipe_with_state<Backend, heavy_ball_options<Compressor, ErrorFeedback>, velocity>;

template <class Backend>
class dense_heavy_ball final : public heavy_ball_base<Backend, slamb::no_compressor, slamb::no_error_feedback> {
  using base = heavy_ball_base<Backend, slamb::no_compressor, slamb::no_error_feedback>;
  using base::context_, base::options_;

 public:
  using typename base::options_type;
  static constexpr const char* recipe_name = "dense heavy ball";

  dense_heavy_ball(std::span<const slamb::parameter> parameters, const options_type& options,
                   typename base::ranks_type communicator, Backend backend)
      : base(parameters, options, std::move(communicator), std::move(backend)) {
    buffer_ = context_.plan_buffer(0);
    context_.allocate(kit::consistency_of(recipe_name, options, parameters.size()));
    context_.enter_phase("dense");
  }

 private:
  void begin() override { context_.begin_step(1.0 / context_.ranks.size()); }
  bool exchange(const kit::gradient_bucket& bucket) override {
    return kit::exchange_dense_gradient(context_, context_.floats_of(buffer_), true, bucket);
  }
  void finish() override {
    if (!context_.is_skipped_on_host()) {
      const auto sum = kit::dense_mean(context_, context_.floats_of(buffer_));
      const dense_heavy_ball_pass pass{{context_.tables(), static_cast<float>(options_.decay)},
                                       1.0F / static_cast<float>(context_.ranks.size())};
      context_.run(pass, this->state_.over(sum, context_.memory), context_.all_tiles());
    }
    context_.end_step();
  }
  kit::state_kind kind() const noexcept override { return kit::kind_of<dense_heavy_ball>(); }

  kit::region<std::byte> buffer_;
};

template <class Backend, class Compressor, class ErrorFeedback>
class quantized_heavy_ball final : public heavy_ball_base<Backend, Compressor, ErrorFeedback> {
  using base = heavy_ball_base<Backend, Compressor, ErrorFeedback>;
  using base::context_, base::options_, base::view;

 public:
  using typename base::options_type;
  static constexpr const char* recipe_name = "quantized heavy ball";

  static void validate(const options_type& o) {
    kit::validate_settings(o);
    kit::require_in(o.decay >= 0.0 && o.decay < 1.0, "decay", o.decay, "in [0, 1)");
  }

  quantized_heavy_ball(std::span<const slamb::parameter> parameters, const options_type& options,
                       typename base::ranks_type communicator, Backend backend)
      : base(parameters, options, std::move(communicator), std::move(backend)), exchange_(options.compressor, false) {
    exchange_.plan(context_);
    buffer_ = context_.plan_buffer(exchange_.buffer_bytes());
    kit::consistency_check fields = kit::consistency_of(recipe_name, options, parameters.size());
    fields.add("decay", options.decay);
    context_.allocate(fields, kit::byte_collectives_of<Compressor>);
    exchange_.start(context_);
    context_.enter_phase("quantized");
  }

  slamb::statistics report(bool with_norms) override {
    slamb::statistics all = base::report(with_norms);
    if (with_norms) all.worker_error = exchange_.worker_error(context_);
    return all;
  }

 private:
  void begin() override { context_.begin_step(1.0, exchange_.message_initializer(context_, buffer())); }
  bool exchange(const kit::gradient_bucket& bucket) override {
    if (bucket.is_last) exchange_.send(pass(), context_, view(), buffer());
    return bucket.is_last;
  }
  void finish() override {
    if (!context_.is_skipped_on_host()) exchange_.receive(pass(), context_, view(), buffer(), context_.all_tiles());
    context_.end_step();
  }
  kit::state_kind kind() const noexcept override { return kit::kind_of<quantized_heavy_ball>(); }
  void visit_state(const kit::state_visitor& part) override {
    base::visit_state(part);
    exchange_.visit_state(context_, part);
  }

  heavy_ball_pass pass() const { return {context_.tables(), static_cast<float>(options_.decay)}; }
  std::span<std::byte> buffer() const { return context_.memory.view(buffer_); }

  kit::quantized_exchange<Compressor, ErrorFeedback, kit::optimizer_context<Backend>> exchange_;
  kit::region<std::byte> buffer_;
};

template <class Backend>
using dense = kit::optimizer_over<dense_heavy_ball<Backend>, ranks>;
template <class Backend, class Compressor = slamb::int8, class ErrorFeedback = slamb::two_sided<>>
using quantized = kit::optimizer_over<quantized_heavy_ball<Backend, Compressor, ErrorFeedback>, ranks>;

constexpr std::size_t sizes[] = {7, 8195, 100};
constexpr double rate = 0.01;

float gradient_at(int rank, std::size_t t, std::size_t i) {
  const std::uint32_t word = slamb::philox(static_cast<std::uint64_t>(rank), t, i).word[0];
  return static_cast<float>(word >> 8U) * 0x1p-23F - 1.0F;
}

/// The tensors of one rank, end to end.
struct replica {
  std::vector<float> data, gradient;
  std::vector<slamb::parameter> tensors;

  replica() {
    std::size_t all = 0;
    for (const std::size_t size : sizes) all += size;
    data.assign(all, 0.5F), gradient.assign(all, 0.0F);
    std::size_t first = 0;
    for (const std::size_t size : sizes) {
      tensors.push_back({.data = data.data() + first, .gradient = gradient.data() + first, .size = size});
      first += size;
    }
  }
  template <class Optimizer>
  void step(Optimizer& optimizer, int rank, std::size_t t, bool in_parts = false) {
    for (std::size_t i = 0; i < gradient.size(); ++i) gradient[i] = gradient_at(rank, t, i);
    if (!in_parts) return optimizer.step(rate);
    optimizer.begin_step(rate);
    for (std::size_t n = tensors.size(); n-- > 0;) optimizer.gradient_ready(n, 1);
    optimizer.finish_step();
  }
};

template <class Backend>
Backend one_thread() {
  if constexpr (requires(Backend b) { b.threads; })
    return {.threads = 1};
  else
    return {};
}

/// The parameters after `last` steps, of rank 0; all ranks have the same.
template <template <class> class Optimizer, class Backend>
std::vector<float> trained(int world, std::size_t last, bool in_parts, double decay = 0.9) {
  std::vector<float> reached;
  slamb::run_ranks(world, [&](ranks mine) {
    const int rank = mine.rank();
    replica memory;
    Optimizer<Backend> optimizer(
        memory.tensors, {.decay = decay, .weight_decay = 0.1, .ranks = {.bucket_bytes = in_parts ? 1U : 16'777'216U}},
        std::move(mine), one_thread<Backend>());
    for (std::size_t t = 1; t <= last; ++t) memory.step(optimizer, rank, t, in_parts);
    optimizer.compare_ranks();
    if (rank == 0) reached = memory.data;
  });
  return reached;
}

/// The largest distance to the equations in double precision.
double distance_to_oracle(const std::vector<float>& reached, int world, std::size_t last, double decay,
                          double mean_factor = 1.0) {
  double worst = 0.0;
  for (std::size_t i = 0; i < reached.size(); ++i) {
    double p = 0.5, u = 0.0;
    for (std::size_t t = 1; t <= last; ++t) {
      double g = 0.0;
      for (int r = 0; r < world; ++r) g += static_cast<double>(gradient_at(r, t, i)) / world;
      u = decay * u + mean_factor * g;
      p -= rate * (u + 0.1 * p);
    }
    worst = std::max(worst, std::abs(p - static_cast<double>(reached[i])));
  }
  return worst;
}

template <class Backend>
using quantized_of = quantized<Backend>;
template <class Backend>
using forgetful = quantized<Backend, slamb::int8, slamb::no_error_feedback>;  ///< drops its compression errors

}  // namespace

TEST_CASE("kit: an optimizer over dense gradients computes its equations, at once and in parts, on both backends") {
  for (const int world : {1, 2, 3}) {
    const auto reached = trained<dense, slamb::host_backend>(world, 5, false);
    CHECK(distance_to_oracle(reached, world, 5, 0.9) < 1e-6);
    CHECK(distance_to_oracle(reached, world, 5, 0.8) > 1e-3);
    CHECK((distance_to_oracle(reached, world, 5, 0.9, world) > 1e-3) == (world > 1));  // the sum in place of the mean
    CHECK(trained<dense, slamb::host_backend>(world, 5, true) == reached);
    CHECK(trained<dense, slamb::emulated_backend>(world, 5, false) == reached);
    CHECK(trained<dense, slamb::emulated_backend>(world, 5, true) == reached);
  }
}

TEST_CASE("kit: an optimizer with error feedback stays near its equations, with the same bits on both backends") {
  const auto reached = trained<quantized_of, slamb::host_backend>(3, 20, false);
  CHECK(distance_to_oracle(reached, 3, 20, 0.9) < 0.0005);  // the errors of the last step, and no more after 60
  CHECK(distance_to_oracle(trained<quantized_of, slamb::host_backend>(3, 60, false), 3, 60, 0.9) < 0.0005);
  CHECK(distance_to_oracle(trained<forgetful, slamb::host_backend>(3, 60, false), 3, 60, 0.9) > 0.005);
  CHECK(distance_to_oracle(reached, 3, 20, 0.5) > 0.01);
  CHECK(trained<quantized_of, slamb::emulated_backend>(3, 20, false) == reached);
}

TEST_CASE("kit: the errors of an exchange are saved with the state, and reported") {
  const auto reached = trained<quantized_of, slamb::host_backend>(2, 6, false);
  slamb::run_ranks(2, [&](ranks mine) {
    const int rank = mine.rank();
    replica memory;
    const quantized<slamb::host_backend>::options_type o{.weight_decay = 0.1};
    std::vector<std::byte> state;
    {
      quantized<slamb::host_backend> first(memory.tensors, o, std::move(mine), {.threads = 1});
      for (std::size_t t = 1; t <= 3; ++t) memory.step(first, rank, t);
      state = first.save_state();
      const slamb::statistics seen = first.statistics(true);
      REQUIRE(seen.worker_error.size() == 1);
      CHECK(seen.worker_error[0] > 0.0);
      mine = std::move(first.communicator());
    }
    quantized<slamb::host_backend> second(memory.tensors, o, std::move(mine), {.threads = 1});
    second.load_state(state);
    for (std::size_t t = 4; t <= 6; ++t) memory.step(second, rank, t);
    CHECK(memory.data == reached);
  });
}

TEST_CASE("kit: user-defined options are validated, and a zero-aware quantizer needs a variance") {
  const auto refusal = [](const auto& make) {
    try {
      make();
    } catch (const std::invalid_argument& refused) {
      return std::string(refused.what());
    }
    return std::string("nothing was thrown");
  };
  replica memory;
  using with_signs = kit::optimizer_over<quantized_heavy_ball<slamb::host_backend, slamb::sign, slamb::two_sided<>>,
                                         slamb::self_communicator>;
  CHECK(refusal([&] { with_signs(memory.tensors, {}); }) == "nothing was thrown");
  CHECK(refusal([&] { with_signs(memory.tensors, {.decay = 1.0}); }) == "slamb: decay = 1, but it must be in [0, 1)");
  CHECK(refusal([&] { with_signs({}, {.compressor = {.zero_aware = true}}); }) == "nothing was thrown");  // no elements
  CHECK(refusal([&] { with_signs(memory.tensors, {.compressor = {.zero_aware = true}}); }) ==
        "slamb: the compressor has zero_aware = true, but this optimizer has no variance for it; it must be false");
}

}  // namespace kit_tests
