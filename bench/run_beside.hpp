// Hands the command line on to another program of this project.
#pragma once

namespace bench {

/// Runs `slamb_bench_gpu`, where it was built beside this program, in the place of this one, with the arguments but --gpu.
///
/// @return 2, if it cannot: the reason and how to build it are on the standard error
int run_gpu_benchmarks(int count, char** arguments);

}  // namespace bench
