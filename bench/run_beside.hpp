// Runs another program of this project with the same arguments.
#pragma once

namespace bench {

/// Replaces this program by `slamb_bench_gpu`, if it was built in the same folder, with all arguments but --gpu.
///
/// @return 2 if it cannot: the reason and how to build it are on the standard error
int run_gpu_benchmarks(int count, char** arguments);

}  // namespace bench
