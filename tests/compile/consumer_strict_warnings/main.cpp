// Every recipe, compiled with the warnings of a strict project, which includes the library's headers.
#include <slamb/checkpoint.hpp>
#include <slamb/slamb.hpp>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <span>
#include <utility>
#include <vector>

namespace {

using ranks = slamb::thread_communicator;

template <class Compressor, class ErrorFeedback>
using lamb_with = slamb::lamb<Compressor, ErrorFeedback, ranks>;

/// One rank's tensors: two matrices and a bias.
struct model {
  std::vector<float> weights = std::vector<float>(10'000, 1.0F), gradients = std::vector<float>(10'000, 0.5F);

  std::vector<slamb::parameter> parameters() {
    return {{.data = weights.data(), .gradient = gradients.data(), .size = 9500},
            {.data = weights.data() + 9500, .gradient = gradients.data() + 9500, .size = 400},
            {.data = weights.data() + 9900,
             .gradient = gradients.data() + 9900,
             .size = 100,
             .dimensions = 1,
             .options = {.weight_decay = 0.0}}};
  }
};

/// The calls of a training: steps of an optimizer, and a checkpoint.
bool trains(slamb::optimizer& optimizer, const model& tensors) {
  const std::vector<std::byte> saved = optimizer.save_state();
  optimizer.step(0.01);
  optimizer.load_state(saved);
  optimizer.step(0.01);
  optimizer.begin_step(0.01);
  optimizer.gradient_ready(1, 2);
  optimizer.finish_step();
  optimizer.synchronize_parameters();
  const slamb::statistics now = optimizer.statistics(true);
  return now.step == 2 && optimizer.memory().total_bytes > 0 && tensors.weights.front() < 1.0F;
}

template <class Optimizer>
bool trains(const typename Optimizer::options_type& options, ranks communicator) {
  model tensors;
  Optimizer optimizer(tensors.parameters(), options, std::move(communicator), {.threads = 1});
  if constexpr (requires { optimizer.measure_next_step(); }) optimizer.measure_next_step();
  return trains(optimizer, tensors);
}

template <class Optimizer>
int failures_of(const typename Optimizer::options_type& options = {}) {
  int failures = 0;
  slamb::run_ranks(2, [&](ranks communicator) {
    const bool counts = communicator.rank() == 0;
    const bool good = trains<Optimizer>(options, std::move(communicator));
    if (counts && !good) ++failures;
  });
  return failures;
}

int failures_of_choice() {
  int failures = 0;
  slamb::run_ranks(2, [&](ranks communicator) {
    model tensors;
    const bool counts = communicator.rank() == 0;
    auto chosen = slamb::choose<slamb::lamb<ranks>, slamb::slamb<ranks>>(
        tensors.parameters(), {}, {}, std::move(communicator), {.steps = 1, .rounds = 1}, {.threads = 1});
    chosen.step(0.01);
    chosen.load_state(chosen.save_state());
    if (counts && chosen.statistics().step != 1) ++failures;
  });
  return failures;
}

int failures_of_any() {
  model tensors;
  slamb::optimizer optimizer = slamb::lamb<slamb::any_communicator<>>(
      tensors.parameters(), {}, slamb::any_communicator<>(slamb::self_communicator{}));
  slamb::optimizer other = std::move(optimizer);
  return trains(other, tensors) ? 0 : 1;
}

int failures_of_plan() {
  const std::vector<slamb::plan::tensor_shape> shapes = {{.size = 10'000}, {.size = 100, .dimensions = 1}};
  const std::uint64_t sent =
      slamb::plan::plan_traffic(shapes, slamb::slamb<>::options_type{}, {.ranks = 4}).total(10).total().sent_bytes +
      slamb::plan::plan_traffic(shapes, slamb::lamb<>::options_type{}, {.ranks = 4}).total(10).total().sent_bytes +
      slamb::plan::plan_traffic(shapes, slamb::one_bit_lamb<>::options_type{}, {.ranks = 4})
          .total(10)
          .total()
          .sent_bytes +
      slamb::plan::plan_traffic(shapes, slamb::zero_one_adam<>::options_type{}, {.ranks = 4})
          .total(10)
          .total()
          .sent_bytes;
  return sent > 0 ? 0 : 1;
}

}  // namespace

int main() {
  using slamb::chain, slamb::random_k, slamb::residual, slamb::two_sided;
  using random_chain = chain<random_k<>, slamb::int8>;
  const slamb::learning_rate::linear_warmup schedule{2, slamb::learning_rate::cosine_decay{.peak = 0.01, .steps = 8}};
  int failures = schedule(1) > 0.0 ? 0 : 1;
  failures += failures_of<slamb::adamw<ranks>>();
  failures += failures_of<slamb::lamb<ranks>>({.max_gradient_norm = 1.0});
  failures += failures_of<lamb_with<slamb::sign, two_sided<slamb::bfloat16>>>();
  failures += failures_of<lamb_with<slamb::natural, residual<>>>();
  failures += failures_of<lamb_with<slamb::bf16, residual<>>>();
  failures += failures_of<lamb_with<slamb::top_k, residual<>>>({.compressor = {.k = 0.1}});
  failures += failures_of<lamb_with<random_chain, residual<>>>();
  failures += failures_of<slamb::slamb<ranks>>({.local_steps = 2, .dense_below = 500});
  failures += failures_of<slamb::slamb<ranks, slamb::top_k>>();
  failures += failures_of<slamb::slamb<ranks, chain<random_k<slamb::sampling::bernoulli>, slamb::int4>>>();
  failures += failures_of<slamb::one_bit_adam<ranks>>({.warm_up = {1}});
  failures += failures_of<slamb::one_bit_lamb<ranks, slamb::int8>>({.warm_up = {1}});
  failures += failures_of<slamb::zero_one_adam<ranks>>({.variance_schedule = {.freeze_step = 1}});
  failures += failures_of_choice();
  failures += failures_of_any();
  failures += failures_of_plan();
  std::printf("%d failures\n", failures);
  return failures;
}
