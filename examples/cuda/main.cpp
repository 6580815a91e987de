// slamb_cuda_example: the training of slamb_train with optimizers on the GPU. Two ranks, threads of this process, share
// one device; the network stays on the CPU. device_optimizer.cuh is the part to read.
//
// Exit status: 0; 1 for what went wrong at work, or a network that has not learned; 2 for a wrong command line; 77
// without a GPU.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <slamb/core/cuda_error.hpp>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "../train/digits.hpp"
#include "../train/settings.hpp"
#include "../train/training.hpp"
#include "optimizers.hpp"

namespace {

using cuda_example::device_recipe;
using cuda_example::device_recipes;

constexpr int skipped = 77;
constexpr double least_accuracy = 0.95;

class usage_error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

std::string known_names() {
  std::string names;
  for (const device_recipe& recipe : device_recipes()) names += (names.empty() ? "" : ", ") + std::string(recipe.name);
  return names;
}

const device_recipe& recipe_named(std::string_view name) {
  const auto found = std::ranges::find(device_recipes(), name, &device_recipe::name);
  if (found == device_recipes().end())
    throw usage_error("--optimizer: '" + std::string(name) + "' is not one of " + known_names());
  return *found;
}

std::string usage() {
  return "usage: slamb_cuda_example [--optimizer NAME]...    NAME: one of " + known_names() + " [slamb]";
}

/// The optimizers that were named, slamb if none was.
std::vector<device_recipe> parse_command_line(int count, char** arguments) {
  std::vector<device_recipe> chosen;
  for (int i = 1; i < count; ++i) {
    const std::string option = arguments[i];
    if (option != "--optimizer") throw usage_error("'" + option + "' is no option");
    if (++i == count) throw usage_error("--optimizer: expected one of " + known_names());
    chosen.push_back(recipe_named(arguments[i]));
  }
  if (chosen.empty()) chosen.push_back(recipe_named("slamb"));
  return chosen;
}

/// Whether there is a GPU; says so if not.
bool has_device() {
  int devices = 0;
  const cudaError_t found = cudaGetDeviceCount(&devices);
  if (found != cudaErrorNoDevice && found != cudaErrorInsufficientDriver)
    slamb::detail::check_cuda(found, "cudaGetDeviceCount");
  if (found == cudaSuccess && devices > 0) return true;
  std::printf("skipped: no GPU (%s)\n", cudaGetErrorString(found));
  return false;
}

void train_all(const std::vector<device_recipe>& recipes) {
  train::settings chosen;
  chosen.ranks = 2;
  const train::split_digits data = train::split(train::read_digits(std::filesystem::path(chosen.data)));
  std::printf("%-14s%12s%16s%17s\n", "optimizer", "final loss", "test accuracy", "MB sent a rank");
  for (const device_recipe& recipe : recipes) {
    const train::outcome result = train::train(
        {.chosen = chosen, .data = data, .learning_rate = recipe.learning_rate, .progress = [](std::uint64_t) {}},
        recipe.maker(chosen));
    std::printf("%-14s%12.5f%14.2f %%%17.2f\n", recipe.name.data(), result.final_loss, 100.0 * result.test_accuracy,
                static_cast<double>(result.statistics.traffic.total().sent_bytes) / 1e6);
    if (!(result.test_accuracy >= least_accuracy))
      throw std::runtime_error("the test accuracy of " + std::string(recipe.name) + " is less than 95 %");
  }
}

}  // namespace

int main(int count, char** arguments) {
  try {
    if (count == 2 && std::string_view(arguments[1]) == "--help") {
      std::puts(usage().c_str());
      return 0;
    }
    const std::vector<device_recipe> recipes = parse_command_line(count, arguments);
    if (!has_device()) return skipped;
    train_all(recipes);
    return 0;
  } catch (const usage_error& error) {
    std::fprintf(stderr, "slamb_cuda_example: %s\n%s\n", error.what(), usage().c_str());
    return 2;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "slamb_cuda_example: %s\n", error.what());
    return 1;
  }
}
