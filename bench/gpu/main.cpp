// slamb_bench_gpu: how long a step and its passes take on the GPU at hand, and which part of the bandwidth of a copy they
// reach. `slamb_bench --gpu` runs it.
#include <cuda_runtime_api.h>

#include <exception>
#include <iostream>
#include <string>
#include <string_view>
#include <vector>

#include "../shapes.hpp"
#include "device_step.hpp"

namespace {

constexpr int skipped = 77;  // which ctest shows as such

struct command_line {
  bool help = false;
  bool list = false;
  bool markdown = false;
  bool quick = false;
  std::string filter{};
  std::string wrong{};  ///< an argument that is not known; empty: all are
};

command_line read_arguments(int count, char** arguments) {
  constexpr std::string_view filter = "--filter=";
  command_line line;
  for (int i = 1; i < count; ++i) {
    const std::string_view argument(arguments[i]);
    if (argument == "--help")
      line.help = true;
    else if (argument == "--list")
      line.list = true;
    else if (argument == "--markdown")
      line.markdown = true;
    else if (argument == "--quick")
      line.quick = true;
    else if (argument.starts_with(filter))
      line.filter = argument.substr(filter.size());
    else if (argument != "--gpu")
      line.wrong = argument;
  }
  return line;
}

std::vector<bench::step_benchmark> benchmarks() {
  std::vector<bench::step_benchmark> all;
  for (const std::size_t ranks : {1U, 2U}) {
    const std::string end = ranks == 1 ? "" : "/ranks:" + std::to_string(ranks);
    all.push_back({"adamw" + end, bench::adamw_stepper, 1, ranks});
    all.push_back({"lamb" + end, bench::lamb_stepper, 1, ranks});
    all.push_back({"slamb/block:1" + end, bench::slamb_stepper, 1, ranks});
    all.push_back({"slamb/block:16" + end, bench::slamb_stepper, 16, ranks});
    all.push_back({"one_bit_adam" + end, bench::one_bit_adam_stepper, 1, ranks});
    all.push_back({"one_bit_lamb" + end, bench::one_bit_lamb_stepper, 1, ranks});
  }
  return all;
}

std::vector<bench::step_benchmark> chosen(const std::string& filter) {
  std::vector<bench::step_benchmark> all;
  for (const bench::step_benchmark& each : benchmarks())
    if (each.name.find(filter) != std::string::npos) all.push_back(each);
  return all;
}

bench::shape_set small_shapes() { return {"small", {{512, 1024}, {1024}, {300, 70}, {17}}}; }

void describe_gpu(bool markdown) {
  int device = 0, driver = 0, runtime = 0;
  cudaDeviceProp about{};
  slamb::check_cuda(cudaGetDevice(&device), "cudaGetDevice");
  slamb::check_cuda(cudaGetDeviceProperties(&about, device), "cudaGetDeviceProperties");
  slamb::check_cuda(cudaDriverGetVersion(&driver), "cudaDriverGetVersion");
  slamb::check_cuda(cudaRuntimeGetVersion(&runtime), "cudaRuntimeGetVersion");
  if (markdown) std::cout << "\n";
  std::cout << about.name << ", " << about.multiProcessorCount << " processors, " << (about.l2CacheSize >> 20)
            << " MiB of L2 cache; CUDA driver " << driver << ", runtime " << runtime << "\n\n";
}

// Bytes of the GPU's memory that nothing holds, once what was freed has been given back.
std::size_t free_memory() {
  std::size_t free = 0, total = 0;
  int device = 0;
  cudaMemPool_t pool = nullptr;
  slamb::check_cuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  slamb::check_cuda(cudaGetDevice(&device), "cudaGetDevice");
  slamb::check_cuda(cudaDeviceGetDefaultMemPool(&pool, device), "cudaDeviceGetDefaultMemPool");
  slamb::check_cuda(cudaMemPoolTrimTo(pool, 0), "cudaMemPoolTrimTo");
  slamb::check_cuda(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
  return free;
}

// How many failed.
int run(const std::vector<bench::step_benchmark>& all, const command_line& line) {
  describe_gpu(line.markdown);
  const bench::shape_set shapes = line.quick ? small_shapes() : bench::bert_large();
  const bench::effort how_long =
      line.quick ? bench::effort{.batches = 1, .steps_of_batch = 3, .samples_of_passes = 1} : bench::effort{};
  bench::copy_meter copy(std::size_t{line.quick ? 32U : 1024U} << 20U);
  std::vector<bench::step_result> results;
  int failed = 0;
  for (const bench::step_benchmark& each : all) {
    try {
      const std::size_t needed = bench::bytes_needed(each, shapes), free = free_memory();
      if (free < needed) {
        std::cout << each.name << " is left out: it needs " << (needed >> 20U) << " MiB of the GPU's memory, and "
                  << (free >> 20U) << " MiB are free\n\n";
        continue;
      }
      results.push_back(bench::time_step(each, shapes, how_long, copy));
    } catch (const std::exception& failure) {
      std::cerr << "slamb_bench_gpu: " << each.name << ": " << failure.what() << std::endl;
      ++failed;
    }
  }
  bench::write_report(std::cout, results, line.markdown);
  return failed;
}

// 0: there is one.
int status_without_gpu() {
  int devices = 0;
  const cudaError_t found = cudaGetDeviceCount(&devices);
  if (found == cudaErrorNoDevice || found == cudaErrorInsufficientDriver || (found == cudaSuccess && devices == 0)) {
    std::cout << "slamb_bench_gpu: skipped: no GPU (" << cudaGetErrorString(found) << ")" << std::endl;
    return skipped;
  }
  if (found == cudaSuccess) return 0;
  std::cerr << "slamb_bench_gpu: cudaGetDeviceCount failed: " << cudaGetErrorString(found) << std::endl;
  return 1;
}

int run_all(const command_line& line) {
  if (line.help) {
    std::cout
        << "slamb_bench_gpu [--filter=SUBSTRING] [--markdown] [--quick] [--list]\n"
           "--filter: the benchmarks whose names contain it; --markdown: the tables for a report; --quick: few steps "
           "of a small model, which say nothing about speed; --list: the names. Exit: 0; 1 if a benchmark failed; 2 "
           "for a wrong option; 77 without a GPU.\n";
    return 0;
  }
  if (!line.wrong.empty()) {
    std::cerr << "slamb_bench_gpu: unknown option '" << line.wrong
              << "'; expected --filter=SUBSTRING, --markdown, --quick, --list or --help\n";
    return 2;
  }
  const std::vector<bench::step_benchmark> all = chosen(line.filter);
  if (all.empty()) {
    std::cerr << "slamb_bench_gpu: no benchmark's name contains '" << line.filter << "'; --list prints them\n";
    return 2;
  }
  if (line.list) {
    for (const bench::step_benchmark& each : all) std::cout << each.name << '\n';
    return 0;
  }
  if (const int status = status_without_gpu(); status != 0) return status;
  return run(all, line) == 0 ? 0 : 1;
}

}  // namespace

int main(int count, char** arguments) {
  int status = 1;
  try {
    status = run_all(read_arguments(count, arguments));
  } catch (const std::exception& failure) {
    std::cerr << "slamb_bench_gpu: " << failure.what() << std::endl;
  }
  std::cout.flush();
  if (std::cout) return status;
  std::cerr << "slamb_bench_gpu: the output could not be written" << std::endl;
  return 1;
}
