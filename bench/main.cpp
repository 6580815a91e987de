// slamb_bench: the time of a step, the bytes it counts, and the bandwidth it reaches as a fraction of the machine's.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <string>
#include <string_view>
#include <thread>

#include "comparison.hpp"
#include "compressors.hpp"
#include "run_beside.hpp"
#include "shapes.hpp"
#include "slamb/backend/host/detail/simd.hpp"
#include "step.hpp"
#include "workbench.hpp"

namespace {

constexpr std::string_view option = "--threads=";

// Removes --threads=N from the arguments and returns N; the default is the number of hardware threads. 0: N is wrong.
unsigned take_threads(int& count, char** arguments) {
  unsigned threads = std::max(1U, std::thread::hardware_concurrency());
  char** const last = std::remove_if(arguments + 1, arguments + count, [&threads](const char* argument) {
    const std::string_view text(argument);
    if (!text.starts_with(option)) return false;
    const std::string_view number = text.substr(option.size());
    const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), threads);
    if (error != std::errc{} || end != number.data() + number.size() || threads > 4096) threads = 0;
    return true;
  });
  count = static_cast<int>(last - arguments);
  return threads;
}

}  // namespace

int main(int count, char** arguments) {
  if (std::find(arguments + 1, arguments + count, std::string_view("--gpu")) != arguments + count)
    return bench::run_gpu_benchmarks(count, arguments);
  const unsigned threads = take_threads(count, arguments);
  if (threads == 0) {
    std::fputs("slamb_bench: --threads=N needs N in [1, 4096]\n", stderr);
    return 2;
  }
  if (std::find(arguments, arguments + count, std::string_view("--help")) != arguments + count)
    std::puts(
        "slamb_bench [--threads=N]  of one step, the copy and the triad (default: one for each core)\n"
        "slamb_bench --gpu [--filter=SUBSTRING] [--markdown]  steps on a GPU, by slamb_bench_gpu");

  bench::register_steps(bench::bert_25m(), threads);
  bench::register_typed_steps(bench::bert_25m(), threads);
  bench::register_one_bit_steps(bench::bert_25m(), threads);
  bench::register_compressors(bench::bert_25m(), threads);
  bench::register_comparisons(bench::bert_25m(), threads);
  bench::register_steps_of_two_ranks(bench::bert_25m());
  bench::register_one_bit_steps_of_two_ranks(bench::bert_25m());
  bench::register_steps(bench::bert_large(), threads);
  bench::register_typed_steps(bench::bert_large(), threads);

  benchmark::Initialize(&count, arguments);
  if (benchmark::ReportUnrecognizedArguments(count, arguments)) return 2;
  benchmark::AddCustomContext("threads", std::to_string(threads));
  benchmark::AddCustomContext("simd_bytes", std::to_string(SLAMB_SIMD_BYTES));
#if defined(__VERSION__)
  benchmark::AddCustomContext("compiler", __VERSION__);
#endif
  benchmark::RunSpecifiedBenchmarks();
  bench::workbench::release();
  benchmark::Shutdown();
}
