// slamb's optimizers as torch::optim::Optimizer: against torch::optim::AdamW and LAMB's equations, in sixteen bits, resumed, on two and
// three ranks, and errors.
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>
#include <torch/optim/schedulers/step_lr.h>
#include <torch/serialize.h>
#include <slamb/slamb.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "../slamb_optimizer.hpp"

#undef CHECK  // glog's, of libtorch
#undef CHECK_EQ
#undef CHECK_NE
#undef CHECK_GT
#undef CHECK_GE
#undef CHECK_LT
#undef CHECK_LE
#include <doctest/doctest.h>

#include "support/said.hpp"

namespace libtorch_optimizer_tests {
namespace {

using slamb_libtorch::group_options;
using slamb_libtorch::parameter_groups;
using test_support::contains;
using test_support::said_by;
using torch::Tensor;
using torch::nn::Sequential;

constexpr double rate = 0.02;

Sequential network() {
  static std::mutex one_at_a_time;  // ranks that are threads share the generator
  const std::lock_guard lock(one_at_a_time);
  torch::manual_seed(1);
  return Sequential(torch::nn::Linear(6, 16), torch::nn::Tanh(), torch::nn::Linear(16, 1));
}

/// [32, 6] the inputs of a step, other ones in each step and on each rank.
Tensor inputs(int step, int rank = 0) {
  Tensor all = torch::empty({32, 6});
  for (std::int64_t i = 0; i < all.numel(); ++i)
    all.data_ptr<float>()[i] = static_cast<float>((37 * i + 101 * step + 53 * rank) % 23 - 11) / 11.0F;
  return all;
}

Tensor loss_on(Sequential& model, const Tensor& x) {
  return torch::nn::functional::mse_loss(model->forward(x), x.sum(1, true));
}

void compute_gradients(Sequential& model, torch::optim::Optimizer& optimizer, const Tensor& x) {
  optimizer.zero_grad();
  loss_on(model, x).backward();
}

void train(Sequential& model, torch::optim::Optimizer& optimizer, int first, int last, int rank = 0) {
  for (int step = first; step <= last; ++step) {
    compute_gradients(model, optimizer, inputs(step, rank));
    optimizer.step();
  }
}

std::vector<Tensor> copy_of(const std::vector<Tensor>& tensors) {
  std::vector<Tensor> all;
  for (const Tensor& tensor : tensors) all.push_back(tensor.detach().clone());
  return all;
}

/// The largest |a − b|.
double distance(const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
  double largest = a.size() == b.size() && !a.empty() ? 0.0 : INFINITY;
  for (std::size_t l = 0; l < std::min(a.size(), b.size()); ++l)
    largest =
        std::max(largest, (a[l].detach().to(at::kDouble) - b[l].detach().to(at::kDouble)).abs().max().item<double>());
  return largest;
}

bool same_bits(const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
  bool same = a.size() == b.size() && !a.empty();
  for (std::size_t l = 0; l < a.size() && same; ++l) same = torch::equal(a[l], b[l]);
  return same;
}

/// One group of `Options` for each parameter, each with options of its own.
template <class Options>
std::vector<torch::optim::OptimizerParamGroup> group_each(const std::vector<Tensor>& tensors) {
  std::vector<torch::optim::OptimizerParamGroup> groups;
  for (std::size_t l = 0; l < tensors.size(); ++l) {
    Options own(rate / static_cast<double>(l + 1));
    own.weight_decay(0.1 * static_cast<double>(l));
    groups.emplace_back(std::vector<Tensor>{tensors[l]}, std::make_unique<Options>(own));
  }
  return groups;
}

TEST_CASE("libtorch: adamw ends with the parameters of torch::optim::AdamW") {
  Sequential mine = network(), theirs = network();
  slamb_libtorch::optimizer<slamb::adamw<>> optimizer(group_each<group_options>(mine->parameters()));
  torch::optim::AdamW reference(group_each<torch::optim::AdamWOptions>(theirs->parameters()));
  torch::optim::StepLR schedule(optimizer, 10, 0.5), schedule_of_reference(reference, 10, 0.5);
  for (int step = 1; step <= 50; ++step) {
    train(mine, optimizer, step, step);
    train(theirs, reference, step, step);
    schedule.step();
    schedule_of_reference.step();
  }
  CHECK(distance(mine->parameters(), network()->parameters()) > 0.1);
  CHECK(distance(mine->parameters(), theirs->parameters()) < 1e-5);
}

TEST_CASE("libtorch: weight decay follows the options of the groups, or those of the optimizer") {
  Sequential mine = network(), theirs = network();
  slamb_libtorch::optimizer<slamb::adamw<>> optimizer(mine->parameters(), group_options(rate), {.weight_decay = 0.3});
  torch::optim::AdamW reference(theirs->parameters(), torch::optim::AdamWOptions(rate).weight_decay(0.3));
  train(mine, optimizer, 1, 10);
  train(theirs, reference, 1, 10);
  CHECK(distance(mine->parameters(), theirs->parameters()) < 1e-5);
  static_cast<group_options&>(optimizer.param_groups()[0].options()).weight_decay(2.0);
  train(mine, optimizer, 11, 20);
  train(theirs, reference, 11, 20);
  CHECK(distance(mine->parameters(), theirs->parameters()) > 1e-3);
  Sequential changing = network();
  torch::optim::AdamW changed(changing->parameters(), torch::optim::AdamWOptions(rate).weight_decay(0.3));
  train(changing, changed, 1, 10);
  static_cast<torch::optim::AdamWOptions&>(changed.param_groups()[0].options()).weight_decay(2.0);
  train(changing, changed, 11, 20);
  CHECK(distance(mine->parameters(), changing->parameters()) < 1e-5);
}

/// LAMB in double precision: docs/algorithms/lamb.md, with a trust ratio of 1 and no decay for tensors of one dimension.
struct lamb_oracle {
  std::vector<Tensor> p, m, v;
  int t = 0;

  explicit lamb_oracle(const std::vector<Tensor>& start) {
    for (const Tensor& tensor : start) {
      p.push_back(tensor.detach().to(at::kDouble).clone());
      m.push_back(torch::zeros_like(p.back()));
      v.push_back(torch::zeros_like(p.back()));
    }
  }
  void step(const std::vector<Tensor>& gradients, double decay) {
    ++t;
    for (std::size_t l = 0; l < p.size(); ++l) {
      const Tensor g = gradients[l].to(at::kDouble);
      const bool is_matrix = p[l].dim() >= 2;
      m[l] = 0.9 * m[l] + 0.1 * g;
      v[l] = 0.999 * v[l] + 0.001 * g * g;
      Tensor u = (m[l] / (1 - std::pow(0.9, t))) / ((v[l] / (1 - std::pow(0.999, t))).sqrt() + 1e-6);
      if (is_matrix) u = u + decay * p[l];
      const double ratio = is_matrix ? (p[l].norm() / u.norm()).item<double>() : 1.0;
      p[l] = p[l] - rate * ratio * u;
    }
  }
};

TEST_CASE("libtorch: lamb follows its equations, with the groups of split_by_dimensions") {
  Sequential model = network();
  slamb_libtorch::optimizer<slamb::lamb<>> optimizer(
      parameter_groups::split_by_dimensions(model->named_parameters(), group_options(rate)), group_options(),
      {.weight_decay = 0.1});
  CHECK(optimizer.param_groups()[0].params().size() == 2);
  CHECK(optimizer.param_groups()[1].params().size() == 2);
  lamb_oracle oracle(model->parameters());
  const double first = loss_on(model, inputs(1)).item<double>();
  for (int step = 1; step <= 60; ++step) {
    compute_gradients(model, optimizer, inputs(step));
    std::vector<Tensor> gradients;
    for (const Tensor& tensor : model->parameters()) gradients.push_back(tensor.grad().clone());
    oracle.step(gradients, 0.1);
    optimizer.step();
  }
  CHECK(distance(model->parameters(), oracle.p) < 1e-5);
  CHECK(loss_on(model, inputs(1)).item<double>() < 0.2 * first);
}

TEST_CASE("libtorch: tensors and learning rates can be given as to torch::optim's optimizers") {
  using adamw = slamb_libtorch::optimizer<slamb::adamw<>>;
  using group = torch::optim::OptimizerParamGroup;
  const auto after_a_step = [](const auto& make) {
    const Tensor w = torch::ones({3, 2}).requires_grad_(true), x = torch::ones({4}).requires_grad_(true);
    adamw optimizer = make(w, x);
    for (const Tensor& tensor : {w, x}) tensor.mutable_grad() = torch::ones_like(tensor);
    optimizer.step();
    return std::vector<Tensor>{w, x};
  };
  const auto as_vector = [](const Tensor& w, const Tensor& x) {
    return adamw(std::vector<Tensor>{w, x}, group_options(rate));
  };
  const auto as_list = [](const Tensor& w, const Tensor& x) { return adamw({w, x}, rate); };
  const auto as_named_list = [](const Tensor& w, const Tensor& x) {
    const std::vector<Tensor> tensors = {w, x};
    adamw optimizer(tensors, rate, {.weight_decay = 0.01});
    return optimizer;
  };
  const auto as_groups = [](const Tensor& w, const Tensor& x) {
    return adamw({group({w}), group({x}, std::make_unique<group_options>(rate))}, rate);
  };
  const auto at_default_rate = [](const Tensor& w, const Tensor& x) { return adamw({w, x}); };
  const std::vector<Tensor> expected = after_a_step(as_vector);
  CHECK(same_bits(after_a_step(as_list), expected));
  CHECK(same_bits(after_a_step(as_named_list), expected));
  CHECK(same_bits(after_a_step(as_groups), expected));
  CHECK_FALSE(same_bits(after_a_step(at_default_rate), expected));
}

TEST_CASE("libtorch: tensors of sixteen bits are those of float32, rounded") {
  using mixed_lamb = slamb_libtorch::optimizer<slamb::lamb<slamb::precision::mixed<>>>;
  for (const at::ScalarType type : {at::kBFloat16, at::kHalf}) {
    const Tensor full = torch::arange(1, 13).view({3, 4}).to(at::kFloat).requires_grad_(true);
    const Tensor small = full.detach().to(type).requires_grad_(true);
    const Tensor bias = torch::ones({4}).requires_grad_(true), its = bias.detach().clone().requires_grad_(true);
    slamb_libtorch::optimizer<slamb::lamb<>> reference({full, bias}, rate);
    mixed_lamb optimizer({small, its}, rate);
    for (int step = 1; step <= 5; ++step) {
      full.mutable_grad() = inputs(step).narrow(0, 0, 2).reshape({3, 4}).to(type).to(at::kFloat);
      small.mutable_grad() = full.grad().to(type);
      bias.mutable_grad() = torch::full({4}, 0.1 * step);
      its.mutable_grad() = bias.grad();
      reference.step();
      optimizer.step();
      CHECK(torch::equal(small, full.detach().to(type)));
      CHECK(torch::equal(its, bias));
    }
    CHECK(distance({small}, {torch::arange(1, 13).view({3, 4})}) > 0.1);
    std::stringstream state;
    torch::save(optimizer, state);
    const Tensor loaded = small.detach().clone().requires_grad_(true), its_too = its.detach().clone();
    mixed_lamb resumed({loaded, its_too}, 1.0);
    torch::load(resumed, state);
    loaded.mutable_grad() = small.grad();
    its_too.mutable_grad() = its.grad();
    reference.step();
    resumed.step();
    CHECK(torch::equal(loaded, full.detach().to(type)));
    CHECK_FALSE(torch::equal(loaded, small));
    small.set_data(full.detach().clone());
    small.mutable_grad() = Tensor();
    CHECK(contains(said_by<c10::Error>([&] { optimizer.step(); }), "parameter 0 is now of type Float"));
  }
}

TEST_CASE("libtorch: a closure is called once, with gradients, and its loss is returned") {
  Sequential mine = network(), theirs = network();
  slamb_libtorch::optimizer<slamb::lamb<>> optimizer(mine->parameters(), group_options(rate));
  slamb_libtorch::optimizer<slamb::lamb<>> reference(theirs->parameters(), group_options(rate));
  const double expected = loss_on(mine, inputs(1)).item<double>();
  int calls = 0;
  {
    const at::NoGradGuard no_gradients;
    const Tensor loss = optimizer.step([&] {
      ++calls;
      optimizer.zero_grad();
      Tensor result = loss_on(mine, inputs(1));
      result.backward();
      return result;
    });
    CHECK(loss.item<double>() == expected);
  }
  compute_gradients(theirs, reference, inputs(1));
  CHECK_FALSE(reference.step().defined());
  CHECK(calls == 1);
  CHECK(same_bits(mine->parameters(), theirs->parameters()));
}

/// Trains `half` steps, saves, and trains as many again; a second model and optimizer load, and do the latter too. Whether both end with
/// the same bits, and at the same learning rate, below the first.
template <class Slamb, class Ranks>
bool resumes(const typename Slamb::options_type& options, Ranks first_ranks, Ranks second_ranks) {
  constexpr int half = 12;
  const int rank = first_ranks.rank();
  std::stringstream parameters, state;
  Sequential model = network();
  slamb_libtorch::optimizer<Slamb> optimizer(model->parameters(), group_options(rate), options, std::move(first_ranks),
                                             {.threads = 1});
  torch::optim::StepLR schedule(optimizer, 5, 0.5);
  const auto train_on = [rank](Sequential& its, torch::optim::Optimizer& with, torch::optim::StepLR& rates, int first) {
    for (int step = first; step < first + half; ++step) {
      train(its, with, step, step, rank);
      rates.step();
    }
  };
  train_on(model, optimizer, schedule, 1);
  torch::save(model, parameters);
  torch::save(optimizer, state);
  train_on(model, optimizer, schedule, 1 + half);

  Sequential resumed = network();
  slamb_libtorch::optimizer<Slamb> other(resumed->parameters(), group_options(1.0), options, std::move(second_ranks),
                                         {.threads = 1});
  torch::optim::StepLR other_schedule(other, 5, 0.5);
  for (int step = 1; step <= half; ++step) other_schedule.step();  // counts, before the rates are loaded
  torch::load(resumed, parameters);
  torch::load(other, state);
  train_on(resumed, other, other_schedule, 1 + half);
  const double last = optimizer.param_groups()[0].options().get_lr();
  return same_bits(model->parameters(), resumed->parameters()) && last < 0.2 * rate &&
         other.param_groups()[0].options().get_lr() == last;
}

template <class Slamb>
bool resumes_on_two_ranks(const typename Slamb::options_type& options) {
  slamb::thread_group first(2), second(2);
  bool all[2] = {false, false};
  slamb::run_ranks(2, [&](slamb::thread_communicator ranks) {
    const int rank = ranks.rank();
    all[rank] = resumes<Slamb>(options, first.communicator(rank), second.communicator(rank));
  });
  return all[0] && all[1];
}

TEST_CASE("libtorch: a resumed training ends with the same bits") {
  CHECK(resumes<slamb::lamb<>>({}, slamb::self_communicator(), slamb::self_communicator()));
  CHECK(resumes_on_two_ranks<slamb::one_bit_lamb<>>({.warm_up = {.steps = 6}}));
  CHECK(resumes_on_two_ranks<slamb::slamb<>>({.local_steps = 7, .dense_below = 10}));  // saved between averagings
}

TEST_CASE("libtorch: a state of three ranks continues on two, if the restore options allow it") {
  using one_bit = slamb_libtorch::optimizer<slamb::one_bit_lamb<>>;
  const slamb::one_bit_lamb<>::options_type options{.warm_up = {.steps = 4}};
  std::string state, parameters;  // of rank 0
  slamb::run_ranks(3, [&](slamb::thread_communicator ranks) {
    const int rank = ranks.rank();
    Sequential model = network();
    one_bit optimizer(model->parameters(), rate, options, std::move(ranks), {.threads = 1});
    train(model, optimizer, 1, 10, rank);
    if (rank != 0) return;
    std::stringstream of_optimizer, of_model;
    torch::save(optimizer, of_optimizer);
    torch::save(model, of_model);
    state = of_optimizer.str();
    parameters = of_model.str();
  });
  std::vector<Tensor> loaded[2], ends[2];
  std::string said[2];
  double rates[2] = {};
  slamb::run_ranks(2, [&](slamb::thread_communicator ranks) {
    const int rank = ranks.rank();
    Sequential model = network();
    one_bit optimizer(model->parameters(), 1.0, options, std::move(ranks), {.threads = 1});
    std::stringstream refused(state), accepted(state), of_model(parameters);
    torch::load(model, of_model);
    said[rank] = said_by<std::invalid_argument>([&] { torch::load(optimizer, refused); });
    optimizer.set_restore_options({.from_other_ranks = true});
    torch::load(optimizer, accepted);
    rates[rank] = optimizer.param_groups()[0].options().get_lr();
    loaded[rank] = copy_of(model->parameters());
    train(model, optimizer, 11, 20, rank);
    ends[rank] = copy_of(model->parameters());
    said[rank] += optimizer.wrapped().statistics().step == 20 ? "" : "; another number of steps";
  });
  CHECK(contains(said[0], "the state of rank 0 of 3, but this is rank 0 of 2"));
  CHECK(contains(said[1], "the state of rank 0 of 3, but this is rank 1 of 2"));
  for (int rank = 0; rank < 2; ++rank) {
    CHECK_FALSE(contains(said[rank], "another number of steps"));
    CHECK(rates[rank] == rate);
    CHECK(same_bits(ends[rank], ends[0]));
    CHECK(distance(ends[rank], loaded[rank]) > 0.01);
  }
}

TEST_CASE("libtorch: two ranks end with equal parameters, those of one rank with both batches") {
  std::vector<Tensor> ends[2];
  slamb::run_ranks(2, [&](slamb::thread_communicator ranks) {
    const int rank = ranks.rank();
    Sequential model = network();
    slamb_libtorch::optimizer<slamb::lamb<>> optimizer(model->parameters(), group_options(rate), {}, std::move(ranks),
                                                       {.threads = 1});
    train(model, optimizer, 1, 30, rank);
    ends[rank] = copy_of(model->parameters());
  });
  CHECK(same_bits(ends[0], ends[1]));

  Sequential alone = network();
  slamb_libtorch::optimizer<slamb::lamb<>> optimizer(alone->parameters(), group_options(rate));
  for (int step = 1; step <= 30; ++step) {
    compute_gradients(alone, optimizer, torch::cat({inputs(step, 0), inputs(step, 1)}));
    optimizer.step();
  }
  CHECK(distance(alone->parameters(), ends[0]) < 1e-5);
  CHECK(distance(alone->parameters(), network()->parameters()) > 0.1);
}

TEST_CASE("libtorch: a parameter without a gradient is left as it is") {
  Sequential model = network();
  const std::vector<Tensor> start = copy_of(model->parameters());
  slamb_libtorch::optimizer<slamb::lamb<>> optimizer(model->parameters(), group_options(rate), {.weight_decay = 0.5});
  model[2]->as<torch::nn::Linear>()->weight.requires_grad_(false);
  train(model, optimizer, 1, 3);
  CHECK(torch::equal(model->parameters()[2], start[2]));
  CHECK_FALSE(torch::equal(model->parameters()[0], start[0]));
  model[2]->as<torch::nn::Linear>()->weight.requires_grad_(true);
  train(model, optimizer, 4, 5);
  CHECK_FALSE(torch::equal(model->parameters()[2], start[2]));

  // Frozen after a backward pass: zero_grad() writes zeros, so momentum and weight decay still move it.
  const Tensor weight = model->parameters()[2];
  weight.requires_grad_(false);
  Tensor last = weight.clone();
  train(model, optimizer, 6, 6);
  CHECK_FALSE(torch::equal(weight, last));
  weight.mutable_grad() = Tensor();
  last = weight.clone();
  train(model, optimizer, 7, 8);
  CHECK(torch::equal(weight, last));
}

TEST_CASE("libtorch: parameters and gradients may move between steps") {
  Sequential moving = network(), staying = network();
  slamb_libtorch::optimizer<slamb::lamb<>> optimizer(moving->parameters(), group_options(rate));
  slamb_libtorch::optimizer<slamb::lamb<>> reference(staying->parameters(), group_options(rate));
  for (int step = 1; step <= 4; ++step) {
    train(staying, reference, step, step);
    for (Tensor& tensor : moving->parameters()) {
      tensor.set_data(tensor.detach().clone());
      tensor.mutable_grad() = Tensor();
    }
    train(moving, optimizer, step, step);
    CHECK(same_bits(moving->parameters(), staying->parameters()));
  }
}

TEST_CASE("libtorch: autograd detects that a step has changed a saved parameter") {
  const Tensor w = torch::ones({3, 3}).requires_grad_(true);
  slamb_libtorch::optimizer<slamb::lamb<>> optimizer(std::vector<Tensor>{w}, group_options(rate));
  const Tensor loss = w.square().sum();
  loss.backward({}, true);
  optimizer.step();
  CHECK(contains(said_by<c10::Error>([&] { loss.backward(); }), "modified by an inplace operation"));
}

/// What one call of `spoil` breaks; it returns the function that mends it.
using spoiler = std::function<std::function<void()>(Sequential&, torch::optim::Optimizer&)>;

/// The message of a step after `spoil`. When the mistake is mended, the training must go on as one that never had it.
std::string rejected(const spoiler& spoil) {
  Sequential model = network(), twin = network();
  slamb_libtorch::optimizer<slamb::lamb<>> optimizer(
      parameter_groups::split_by_dimensions(model->named_parameters(), group_options(rate)));
  slamb_libtorch::optimizer<slamb::lamb<>> reference(
      parameter_groups::split_by_dimensions(twin->named_parameters(), group_options(rate)));
  train(model, optimizer, 1, 2);
  train(twin, reference, 1, 3);
  compute_gradients(model, optimizer, inputs(3));
  const std::vector<Tensor> before = copy_of(model->parameters());
  const std::vector<std::byte> state = optimizer.wrapped().save_state();
  const std::function<void()> mend = spoil(model, optimizer);
  const std::string said = said_by<c10::Error>([&] { optimizer.step(); });
  mend();
  CHECK(same_bits(model->parameters(), before));
  CHECK((optimizer.wrapped().save_state() == state));  // without the values, which have no text
  optimizer.step();
  CHECK(same_bits(model->parameters(), twin->parameters()));
  return said;
}

/// Replaces the gradient of 2.weight by `of` it.
spoiler with_gradient(const std::function<Tensor(const Tensor&)>& of) {
  return [of](Sequential& model, torch::optim::Optimizer&) {
    const Tensor weight = model->parameters()[2], gradient = weight.grad();
    weight.mutable_grad() = of(gradient);
    return [weight, gradient] { weight.mutable_grad() = gradient; };
  };
}

/// Replaces the values of 0.weight by `of` them.
spoiler with_values(const std::function<Tensor(const Tensor&)>& of) {
  return [of](Sequential& model, torch::optim::Optimizer&) {
    const Tensor weight = model->parameters()[0], values = weight.detach();
    weight.set_data(of(values));
    return [weight, values] { weight.set_data(values); };
  };
}

/// Changes a copy of the options of group 1 by `change`.
spoiler with_options(const std::function<void(group_options&)>& change) {
  return [change](Sequential&, torch::optim::Optimizer& optimizer) {
    auto& own = static_cast<group_options&>(optimizer.param_groups()[1].options());
    const group_options right = own;
    change(own);
    return [&own, right] { own = right; };
  };
}

TEST_CASE("libtorch: a step names the tensor that it cannot read, and changes nothing") {
  const auto transposed = [](const Tensor& t) { return t.t().contiguous().t(); };
  const auto in_double = [](const Tensor& t) { return t.to(at::kDouble); };
  CHECK(contains(rejected(with_gradient([](const Tensor& t) { return t.to_sparse(); })),
                 "the gradient of parameter '2.weight' is not dense"));
  CHECK(contains(rejected(with_gradient([](const Tensor& t) { return torch::empty_like(t, at::kMeta); })),
                 "the gradient of parameter '2.weight' is on meta; it must be in host memory"));
  CHECK(contains(rejected(with_gradient(in_double)),
                 "the gradient of parameter '2.weight' is of type Double; it must be Float"));
  CHECK(contains(rejected(with_gradient([](const Tensor& t) { return torch::_efficientzerotensor(t.sizes()); })),
                 "the gradient of parameter '2.weight' is a zero tensor, which has no memory; call clone() first"));
  CHECK(contains(
      rejected(with_gradient([](const Tensor& t) { return t.flatten(); })),
      "the gradient of parameter '2.weight' has the sizes [16]; it must have those of the parameter, [1, 16]"));
  CHECK(contains(rejected(with_values(transposed)), "slamb: parameter '0.weight' is not contiguous"));
  CHECK(contains(rejected(with_values(in_double)), "slamb: parameter '0.weight' is of type Double"));
  CHECK(contains(rejected([&](Sequential&, torch::optim::Optimizer& optimizer) {
                   Tensor& last = optimizer.param_groups()[1].params()[1];
                   const Tensor right = std::exchange(last, Tensor());
                   return [&last, right] { last = right; };
                 }),
                 "slamb: parameter '2.bias' is undefined"));
  CHECK(contains(rejected([&](Sequential&, torch::optim::Optimizer& optimizer) {
                   Tensor& last = optimizer.param_groups()[1].params()[1];
                   const Tensor right = last;
                   const c10::InferenceMode mode;
                   last = right.clone();
                   last.mutable_grad() = right.grad().clone();
                   return [&last, right] { last = right; };
                 }),
                 "slamb: parameter '2.bias' was created under c10::InferenceMode; create it, or a clone"));
  CHECK(contains(rejected([&](Sequential& model, torch::optim::Optimizer&) {
                   const Tensor weight = model->parameters()[0], gradient = weight.grad();
                   weight.mutable_grad() = transposed(gradient);
                   return [weight, gradient] { weight.mutable_grad() = gradient; };
                 }),
                 "the gradient of parameter '0.weight' is not contiguous; call contiguous() first"));
}

TEST_CASE("libtorch: a step rejects options and groups that it cannot take, and changes nothing") {
  CHECK(contains(rejected(with_options([](group_options& o) { o.lr(-1.0); })), "lr = -1 in parameter group 1"));
  CHECK(contains(rejected(with_options([](group_options& o) { o.lr(NAN); })), "lr = nan in parameter group 1"));
  CHECK(contains(rejected(with_options([](group_options& o) { o.weight_decay(-0.5); })), "weight_decay = -0.5"));
  CHECK(contains(rejected(with_options([](group_options& o) { o.adapt(true); })), "adapt or compress of group 1"));
  CHECK(contains(rejected(with_options([](group_options& o) { o.compress(false); })), "adapt or compress of group 1"));
  CHECK(contains(rejected([](Sequential&, torch::optim::Optimizer& optimizer) {
                   auto& group = optimizer.param_groups()[0];
                   const auto right = std::make_shared<group_options>(static_cast<group_options&>(group.options()));
                   group.set_options(std::make_unique<torch::optim::AdamWOptions>(rate));
                   return [&group, right] { group.set_options(std::make_unique<group_options>(*right)); };
                 }),
                 "the options of parameter group 0 are of another optimizer"));
  CHECK(contains(rejected([](Sequential&, torch::optim::Optimizer& optimizer) {
                   optimizer.add_param_group({{torch::ones({2, 2}).requires_grad_(true)}});
                   return [&optimizer] { optimizer.param_groups().pop_back(); };
                 }),
                 "parameter 4 is not the one of the construction"));
  CHECK(contains(rejected([](Sequential&, torch::optim::Optimizer& optimizer) {
                   std::vector<Tensor>& tensors = optimizer.param_groups()[1].params();
                   const Tensor last = tensors.back();
                   tensors.pop_back();
                   return [&tensors, last] { tensors.push_back(last); };
                 }),
                 "there are 3 parameters, but 4 when the optimizer was constructed"));
  CHECK(contains(rejected([](Sequential&, torch::optim::Optimizer& optimizer) {
                   const auto groups = std::make_shared<std::vector<torch::optim::OptimizerParamGroup>>();
                   groups->swap(optimizer.param_groups());
                   return [groups, &optimizer] { groups->swap(optimizer.param_groups()); };
                 }),
                 "the optimizer has 0 parameter groups, but had at least 2 when it was constructed"));
}

TEST_CASE("libtorch: an optimizer without groups takes no calls") {
  using lamb = slamb_libtorch::optimizer<slamb::lamb<>>;
  CHECK(contains(said_by<c10::Error>([] { lamb optimizer(std::vector<torch::optim::OptimizerParamGroup>{}); }),
                 "there is no parameter group"));
  lamb empty(std::vector<Tensor>{});  // one group, without tensors
  empty.step();
  CHECK(empty.wrapped().statistics().step == 1);
  std::stringstream state;
  torch::save(empty, state);
  const auto check_rejects_calls = [&state](lamb& optimizer, const std::string& reason) {
    std::stringstream from(state.str()), to;
    CHECK(contains(said_by<c10::Error>([&] { optimizer.step(); }), reason));
    CHECK(contains(said_by<c10::Error>([&] { optimizer.wrapped(); }), reason));
    CHECK(contains(said_by<c10::Error>([&] { torch::save(optimizer, to); }), reason));
    CHECK(contains(said_by<c10::Error>([&] { torch::load(optimizer, from); }), reason));
  };
  empty.param_groups().clear();
  check_rejects_calls(empty, "the optimizer has 0 parameter groups, but had at least 1 when it was constructed");

  Sequential model = network(), twin = network();
  lamb first(model->parameters(), rate), reference(twin->parameters(), rate);
  train(model, first, 1, 2);
  lamb second(std::move(first));
  check_rejects_calls(first, "call the optimizer that it was moved to");  // NOLINT(bugprone-use-after-move)
  train(model, second, 3, 4);
  train(twin, reference, 1, 4);
  CHECK(same_bits(model->parameters(), twin->parameters()));
}

TEST_CASE("libtorch: no call reads tensors that have been added, or are of another size") {
  Sequential model = network();
  slamb_libtorch::optimizer<slamb::lamb<>> optimizer(model->parameters(), group_options(rate));
  std::stringstream stream;
  optimizer.add_param_group({{torch::ones({2, 2}).requires_grad_(true)}});
  CHECK(contains(said_by<c10::Error>([&] { optimizer.wrapped(); }), "parameter 4 is not the one of the construction"));
  CHECK(contains(said_by<c10::Error>([&] { torch::save(optimizer, stream); }), "parameter 4 is not the one"));
  optimizer.param_groups().pop_back();
  CHECK(optimizer.wrapped().statistics().step == 0);
  model->parameters()[2].set_data(torch::ones({1, 15}));
  CHECK(contains(said_by<c10::Error>([&] { optimizer.wrapped(); }), "parameter 2 is not the one of the construction"));
}

TEST_CASE("libtorch: the constructor names the tensor or the option that it cannot take") {
  const auto said = [](std::vector<Tensor> tensors) {
    return said_by<c10::Error>([&] { slamb_libtorch::optimizer<slamb::lamb<>> optimizer(std::move(tensors)); });
  };
  const Tensor right = torch::ones({4, 3});
  CHECK(said({right}) == "nothing was thrown");
  CHECK(contains(said({right, torch::ones({4, 3}, at::kDouble)}),
                 "slamb: parameter 1 is of type Double; it must be Float"));
  CHECK(contains(said({torch::ones({4, 3}).t()}), "slamb: parameter 0 is not contiguous"));
  CHECK(contains(said({torch::ones({4, 3}, at::kMeta)}), "slamb: parameter 0 is on meta"));
  CHECK(contains(said({torch::ones({4, 3}).to_sparse()}), "slamb: parameter 0 is not dense"));
  CHECK(contains(said({right, Tensor()}), "slamb: parameter 1 is undefined"));
  CHECK(contains(said({torch::_efficientzerotensor({4, 3})}), "slamb: parameter 0 is a zero tensor"));
  CHECK(
      contains(said({right, torch::ones({3}), right}), "slamb: parameter 2 has the memory of parameter 0; give each"));
  CHECK(said({torch::ones({0}), torch::ones({0, 3})}) == "nothing was thrown");
  Tensor of_inference;
  {
    const c10::InferenceMode mode;
    of_inference = torch::ones({4, 3});
    CHECK(said({of_inference}) == "nothing was thrown");
  }
  CHECK(contains(said({of_inference}), "slamb: parameter 0 was created under c10::InferenceMode"));
  Sequential tied(torch::nn::Linear(3, 3), torch::nn::Linear(3, 3));
  tied[1]->as<torch::nn::Linear>()->register_parameter("same", tied[0]->as<torch::nn::Linear>()->weight);
  CHECK(contains(said_by<c10::Error>([&] {
                   slamb_libtorch::optimizer<slamb::lamb<>> optimizer(
                       parameter_groups::split_by_dimensions(tied->named_parameters(), group_options()));
                 }),
                 "slamb: parameter '1.same' has the memory of parameter '0.weight'; give each tensor once"));
  CHECK(contains(said_by<c10::Error>([&] {
                   slamb_libtorch::optimizer<slamb::lamb<>> optimizer(group_each<torch::optim::AdamWOptions>({right}));
                 }),
                 "the options of parameter group 0 are of another optimizer"));
  CHECK(contains(said_by<std::invalid_argument>([&] {
                   slamb_libtorch::optimizer<slamb::lamb<>> optimizer(std::vector<Tensor>{right}, group_options(),
                                                                      {.beta1 = 1.5});
                 }),
                 "beta1 = 1.5"));
}

TEST_CASE("libtorch: a state that does not fit is rejected, and changes nothing") {
  Sequential model = network(), twin = network();
  slamb_libtorch::optimizer<slamb::lamb<>> optimizer(model->parameters(), group_options(rate));
  slamb_libtorch::optimizer<slamb::lamb<>> reference(twin->parameters(), group_options(rate));
  train(model, optimizer, 1, 2);
  train(twin, reference, 1, 3);

  Sequential of_others = network();
  const auto saved = [&](torch::optim::Optimizer&& other) {
    train(of_others, other, 1, 1);
    auto stream = std::make_unique<std::stringstream>();
    torch::save(other, *stream);
    return stream;
  };
  const auto said = [&](torch::optim::Optimizer&& other) {
    return said_by<std::exception>([&] { torch::load(optimizer, *saved(std::move(other))); });
  };
  const std::vector<Tensor> tensors = of_others->parameters();
  CHECK(contains(said(torch::optim::AdamW(tensors)), "the archive has no 'slamb_state'"));
  CHECK(contains(said(slamb_libtorch::optimizer<slamb::lamb<>>(group_each<group_options>(tensors))),
                 "the archive has 4 parameter groups, but the optimizer has 1"));
  CHECK(contains(said(slamb_libtorch::optimizer<slamb::one_bit_lamb<>>(tensors)), "slamb:"));
  CHECK(contains(said(slamb_libtorch::optimizer<slamb::lamb<>>(std::vector<Tensor>{tensors[0], tensors[1], tensors[2]},
                                                               group_options(1.0))),
                 "slamb:"));
  std::vector<Tensor> flat = copy_of(tensors);
  flat[0] = flat[0].flatten();
  for (Tensor& tensor : flat) tensor.mutable_grad() = torch::zeros_like(tensor);
  CHECK(contains(said(slamb_libtorch::optimizer<slamb::lamb<>>(flat)),
                 "slamb: load: parameter 0 has the sizes [16, 6], but those of the state are [96]"));
  std::stringstream stream;
  torch::save(optimizer, stream);
  torch::serialize::InputArchive whole;
  whole.load_from(stream);
  Tensor state;
  whole.read("slamb_state", state);
  torch::serialize::OutputArchive older, same_options(older.compilation_unit());  // without sizes
  group_options(rate).serialize(same_options);
  older.write("slamb_state", state);
  older.write("groups", c10::IValue(1));
  older.write("group_0", same_options);
  std::stringstream of_older;
  older.save_to(of_older);
  torch::load(optimizer, of_older);
  state.data_ptr<std::uint8_t>()[state.numel() / 2] ^= 1;
  torch::serialize::OutputArchive damaged, options(damaged.compilation_unit());
  group_options(1.0).serialize(options);
  damaged.write("slamb_state", state);
  damaged.write("groups", c10::IValue(1));
  damaged.write("group_0", options);
  std::stringstream of_damaged;
  damaged.save_to(of_damaged);
  CHECK(contains(said_by<std::invalid_argument>([&] { torch::load(optimizer, of_damaged); }), "slamb:"));
  CHECK(optimizer.param_groups()[0].options().get_lr() == rate);
  train(model, optimizer, 3, 3);
  CHECK(same_bits(model->parameters(), twin->parameters()));
}

}  // namespace
}  // namespace libtorch_optimizer_tests
