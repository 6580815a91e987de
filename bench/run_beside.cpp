#include "run_beside.hpp"

#include <cstdio>
#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#if defined(__unix__) || defined(__APPLE__)
#include <unistd.h>
#endif

namespace bench {

int run_gpu_benchmarks(int count, char** arguments) {
  std::error_code unknown;
  std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", unknown);
  if (unknown) self = arguments[0];
  const std::string program = (self.parent_path() / "slamb_bench_gpu").string();
#if defined(__unix__) || defined(__APPLE__)
  std::vector<char*> handed_on;
  for (int i = 0; i < count; ++i)
    if (std::string_view(arguments[i]) != "--gpu") handed_on.push_back(arguments[i]);
  handed_on.push_back(nullptr);
  execv(program.c_str(), handed_on.data());
#endif
  std::fprintf(
      stderr,
      "slamb_bench: --gpu runs %s, which is not there. To build it: cmake --preset cuda && cmake --build --preset "
      "cuda --target slamb_bench_gpu, which puts it into build/cuda/bin; or configure with -DSLAMB_CUDA=ON to have "
      "it here\n",
      program.c_str());
  return 2;
}

}  // namespace bench
