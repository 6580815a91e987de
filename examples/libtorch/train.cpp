// A training with libtorch and LAMB, of which the gradients travel in four bits: alone, or on several ranks over MPI.
//
//     cmake --preset release -DSLAMB_TORCH=ON && cmake --build --preset release --target example_libtorch
//     build/release/bin/example_libtorch
//     mpirun -n 4 build/release/bin/example_libtorch
//
// The first argument is a number of steps, 300 if there is none. With the name of a folder behind it, the program writes a
// checkpoint there at the end. With `resume` behind that, it begins with the one that is there.
#include <ATen/Parallel.h>
#include <c10/util/Exception.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/schedulers/step_lr.h>
#include <torch/serialize.h>
#include <slamb/compressed_lamb.hpp>
#include <slamb/mpi.hpp>

#include <charconv>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include "slamb_optimizer.hpp"

namespace {

using lamb = slamb::lamb<slamb::int4>;

/// The squared error on made-up data: inputs, and the sum of their squares.
torch::Tensor loss_on(torch::nn::Sequential& model, const torch::Tensor& inputs) {
  return torch::nn::functional::mse_loss(model->forward(inputs), inputs.square().sum(1, true));
}

void train(slamb::mpi_communicator communicator, std::uint64_t steps, const std::string& folder, bool resumes) {
  const int rank = communicator.rank();
  const int ranks = communicator.size();
  at::set_num_threads(1);  // several ranks share the cores
  torch::manual_seed(1);   // the same parameters on all ranks
  torch::nn::Sequential model(torch::nn::Linear(20, 128), torch::nn::ReLU(), torch::nn::Linear(128, 1));
  const torch::Tensor validation = torch::randn({1000, 20});

  using slamb_libtorch::group_options, slamb_libtorch::parameter_groups;
  slamb_libtorch::optimizer<lamb> optimizer(
      parameter_groups::split_by_dimensions(model->named_parameters(), group_options(0.03)), group_options(),
      {.weight_decay = 0.01}, std::move(communicator), {.threads = 1});
  torch::optim::StepLR schedule(optimizer, 100, 0.5);

  const std::string state = folder + "/optimizer-" + std::to_string(rank) + ".pt";  // each rank has its own state
  const std::string parameters = folder + "/model-" + std::to_string(rank) + ".pt";
  std::uint64_t done = 0;  // steps of the whole training
  if (resumes) {
    torch::load(model, parameters);
    torch::load(optimizer, state);
    const slamb::statistics saved = optimizer.wrapped().statistics();
    done = saved.step + saved.skipped_steps;
    for (std::uint64_t step = 0; step < done; ++step) schedule.step();  // counts, and changes the learning rates
    torch::load(optimizer, state);                                      // which become those that were saved
  }

  for (const std::uint64_t last = done + steps; done < last; ++done) {
    torch::manual_seed(1000 * done + 100 + static_cast<std::uint64_t>(rank));  // another batch in each step and rank
    const torch::Tensor inputs = torch::randn({64, 20});
    optimizer.step([&] {
      optimizer.zero_grad();
      torch::Tensor loss = loss_on(model, inputs);
      loss.backward();  // of this rank's batch: the optimizer averages the gradients
      return loss;
    });
    schedule.step();
  }

  if (!folder.empty()) {
    std::filesystem::create_directories(folder);
    torch::save(model, parameters);
    torch::save(optimizer, state);
  }
  const at::NoGradGuard no_gradients;
  const auto sent = static_cast<double>(optimizer.wrapped().statistics().traffic.total().sent_bytes);
  if (rank == 0)
    std::printf("%d ranks, %s steps: loss %.6f, learning rate %.4f, sent %.3f MB\n", ranks,
                std::to_string(done).c_str(), loss_on(model, validation).item<double>(),
                optimizer.param_groups()[0].options().get_lr(), 1e-6 * sent);
}

}  // namespace

int main(int argc, char** argv) {
  slamb::mpi_environment mpi(argc, argv);
  try {
    const std::string_view number = argc > 1 ? argv[1] : "300";
    std::uint64_t steps = 0;
    const std::from_chars_result parsed = std::from_chars(number.data(), number.data() + number.size(), steps);
    const bool is_number = parsed.ec == std::errc() && parsed.ptr == number.data() + number.size();
    const bool resumes = argc == 4 && std::string_view(argv[3]) == "resume";
    if (!is_number || argc > 4 || (argc == 4 && !resumes))
      throw std::invalid_argument("usage: example_libtorch [STEPS [FOLDER [resume]]]");
    train(slamb::mpi_communicator(), steps, argc > 2 ? argv[2] : "", resumes);
  } catch (const c10::Error& failure) {
    std::fprintf(stderr, "example_libtorch: %s\n", failure.what_without_backtrace());
    return 1;
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "example_libtorch: %s\n", failure.what());
    return 1;
  }
}
