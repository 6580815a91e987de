// slamb_bench_gpu: the time of a step and of its passes on this GPU, and the bandwidth they reach as a fraction of a copy's.
// `slamb_bench --gpu` runs it.
#include <cuda_runtime_api.h>

#include <exception>
#include <iostream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "../shapes.hpp"
#include "device_step.hpp"

namespace {

constexpr int skipped = 77;  // ctest shows this exit status as skipped

struct command_line {
  bool help = false;
  bool list = false;
  bool markdown = false;
  bool quick = false;
  std::string filter{};
  std::string shapes{};  ///< the model whose tensors are listed
  std::string wrong{};   ///< the first unknown argument; empty: none
};

command_line read_arguments(int count, char** arguments) {
  constexpr std::string_view filter = "--filter=", shapes = "--shapes=";
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
    else if (argument.starts_with(shapes))
      line.shapes = argument.substr(shapes.size());
    else if (argument != "--gpu")
      line.wrong = argument;
  }
  return line;
}

std::vector<bench::step_benchmark> benchmarks() {
  using bench::step_settings;
  using bench::zero_one_step;
  std::vector<bench::step_benchmark> all;
  const auto add = [&all](bench::step_benchmark each) {
    if (each.ranks > 1) each.name += "/ranks:" + std::to_string(each.ranks);
    all.push_back(std::move(each));
  };
  constexpr step_settings sixteen{.block = 16};
  for (const std::size_t ranks : {1U, 2U}) {
    add({"adamw", bench::adamw_stepper, ranks});
    if (ranks == 1) add({"adamw/unchecked", bench::adamw_stepper, ranks, {.skip_non_finite = false}});
    add({"lamb", bench::lamb_stepper, ranks});
    add({"slamb/block:1", bench::slamb_stepper, ranks});
    add({"slamb/block:16", bench::slamb_stepper, ranks, sixteen});
    if (ranks > 1) {  // with one rank: the same as slamb
      add({"slamb/block:16/int8", bench::slamb_int8_stepper, ranks, sixteen});
      add({"slamb_by_differences/local", bench::slamb_by_differences_stepper, ranks, sixteen});
      add({"slamb_by_differences/exchange",
           bench::slamb_by_differences_stepper,
           ranks,
           {.block = 16, .exchanges_parameters = true}});
    }
    add({"slamb/top_k", bench::slamb_top_k_stepper, ranks});
    add({"one_bit_adam", bench::one_bit_adam_stepper, ranks});
    add({"one_bit_lamb", bench::one_bit_lamb_stepper, ranks});
    add({"zero_one_adam/refresh", bench::zero_one_adam_stepper, ranks, {.zero_one = zero_one_step::refresh}});
    add({"zero_one_adam/variance", bench::zero_one_adam_stepper, ranks, {.zero_one = zero_one_step::variance}});
    add({"zero_one_adam/local", bench::zero_one_adam_stepper, ranks, {.zero_one = zero_one_step::local}});
    add({"zero_one_adam/exchange", bench::zero_one_adam_stepper, ranks, {.zero_one = zero_one_step::exchange}});
  }
  for (const bool is_captured : {false, true}) {
    const std::string end = is_captured ? "/1m/graph" : "/1m";
    add({"adamw" + end, bench::adamw_stepper, 1, {.is_captured = is_captured}, bench::small_model});
    add({"lamb" + end, bench::lamb_stepper, 1, {.is_captured = is_captured}, bench::small_model});
    add({"slamb/block:16" + end, bench::slamb_stepper, 1, {16, is_captured}, bench::small_model});
    add({"one_bit_lamb" + end, bench::one_bit_lamb_stepper, 1, {.is_captured = is_captured}, bench::small_model});
  }
  add({"adamw/misaligned", bench::adamw_stepper, 1, {}, bench::bert_large, false});
  add({"lamb/misaligned", bench::lamb_stepper, 1, {}, bench::bert_large, false});
  add({"slamb/block:16/misaligned", bench::slamb_stepper, 1, sixteen, bench::bert_large, false});
  add({"one_bit_lamb/misaligned", bench::one_bit_lamb_stepper, 1, {}, bench::bert_large, false});
  return all;
}

// Lists a model's tensors, one per line, for programs that time the same shapes elsewhere.
int list_shapes(const std::string& name) {
  for (const bench::shape_set& model : {bench::bert_large(), bench::small_model()}) {
    if (model.name != name) continue;
    for (const bench::tensor_shape& tensor : model.tensors) {
      std::cout << tensor.rows;
      if (tensor.columns != 0) std::cout << ' ' << tensor.columns;
      std::cout << '\n';
    }
    return 0;
  }
  std::cerr << "slamb_bench_gpu: unknown model '" << name << "'; expected bert-large or 1m\n";
  return 2;
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
  slamb::detail::check_cuda(cudaGetDevice(&device), "cudaGetDevice");
  slamb::detail::check_cuda(cudaGetDeviceProperties(&about, device), "cudaGetDeviceProperties");
  slamb::detail::check_cuda(cudaDriverGetVersion(&driver), "cudaDriverGetVersion");
  slamb::detail::check_cuda(cudaRuntimeGetVersion(&runtime), "cudaRuntimeGetVersion");
  if (markdown) std::cout << "\n";
  std::cout << about.name << ", " << about.multiProcessorCount << " processors, " << (about.l2CacheSize >> 20)
            << " MiB of L2 cache; CUDA driver " << driver << ", runtime " << runtime << "\n\n";
}

// Free bytes of the GPU's memory, after the memory pool has returned what it does not use.
std::size_t free_memory() {
  std::size_t free = 0, total = 0;
  int device = 0;
  cudaMemPool_t pool = nullptr;
  slamb::detail::check_cuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  slamb::detail::check_cuda(cudaGetDevice(&device), "cudaGetDevice");
  slamb::detail::check_cuda(cudaDeviceGetDefaultMemPool(&pool, device), "cudaDeviceGetDefaultMemPool");
  slamb::detail::check_cuda(cudaMemPoolTrimTo(pool, 0), "cudaMemPoolTrimTo");
  slamb::detail::check_cuda(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
  return free;
}

// Small models take many steps, because one step takes microseconds.
bench::effort effort_of(const bench::shape_set& shapes, bool is_quick) {
  if (is_quick) return {.batches = 1, .steps_of_batch = 3, .samples_of_passes = 1};
  return {.steps_of_batch = shapes.elements() < 10'000'000 ? 200U : 20U};
}

// Runs the benchmarks. Returns the number that failed.
int run(const std::vector<bench::step_benchmark>& all, const command_line& line) {
  describe_gpu(line.markdown);
  bench::copy_meter copy(std::size_t{line.quick ? 32U : 1024U} << 20U);
  std::vector<bench::step_result> results;
  int failed = 0;
  for (const bench::step_benchmark& each : all) {
    try {
      const bench::shape_set shapes = line.quick ? small_shapes() : each.shapes();
      const bench::effort how_long = effort_of(shapes, line.quick);
      const std::size_t needed = bench::bytes_needed(each, shapes), free = free_memory();
      if (free < needed) {
        std::cout << each.name << " is left out: it needs " << (needed >> 20U) << " MiB of the GPU's memory, and "
                  << (free >> 20U) << " MiB are free\n\n";
        continue;
      }
      results.push_back(bench::time_step(each, shapes, how_long, copy));
      std::cerr << each.name << ": " << results.back().seconds * 1e3 << " ms" << std::endl;
    } catch (const std::exception& failure) {
      std::cerr << "slamb_bench_gpu: " << each.name << ": " << failure.what() << std::endl;
      ++failed;
    }
  }
  bench::write_report(std::cout, results, line.markdown);
  return failed;
}

// Returns 0 if there is a GPU.
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
        << "slamb_bench_gpu [--filter=SUBSTRING] [--markdown] [--quick] [--list] [--shapes=MODEL]\n"
           "--filter: the benchmarks whose names contain it; --markdown: the tables for a report; --quick: few steps "
           "of a small model, which say nothing about speed; --list: the names; --shapes: the tensors of bert-large or "
           "1m, one a line. Exit: 0; 1 if a benchmark failed; 2 for a wrong option; 77 without a GPU.\n";
    return 0;
  }
  if (!line.wrong.empty()) {
    std::cerr << "slamb_bench_gpu: unknown option '" << line.wrong
              << "'; expected --filter=SUBSTRING, --markdown, --quick, --list, --shapes=MODEL or --help\n";
    return 2;
  }
  if (!line.shapes.empty()) return list_shapes(line.shapes);
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
