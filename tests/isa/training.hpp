// The interface of the small training that is compiled for several instruction sets.
//
// It has only plain types. So a program can call the training of an instruction set that exists without running code compiled
// for one that does not.
#pragma once

#include <cstdint>
#include <cstring>

/// Hashes of the bits of all parameters after the training, for several optimizers.
struct isa_hashes {
  static constexpr int count = 10;
  std::uint64_t of[count];
};

// Each compilation of training.cpp defines one of these.
extern "C" isa_hashes isa_training_baseline(std::uint64_t seed);
extern "C" isa_hashes isa_training_avx2(std::uint64_t seed);
extern "C" isa_hashes isa_training_avx512f(std::uint64_t seed);
extern "C" isa_hashes isa_training_aarch64(std::uint64_t seed);

/// The mangled names of the optimizers' types. They must differ from one instruction set to the next: the linker keeps one function
/// of a name, and one table of virtual functions.
struct isa_types {
  static constexpr int count = 6;
  const char* of[count];
};
extern "C" isa_types isa_types_baseline();
extern "C" isa_types isa_types_avx2();
extern "C" isa_types isa_types_avx512f();

/// The name by which ranks compare what they give to `choose`. It must be equal, since ranks may have different instruction sets.
extern "C" const char* isa_choice_baseline();
extern "C" const char* isa_choice_avx2();
extern "C" const char* isa_choice_avx512f();

/// The exit status, and the message, where the processor lacks an instruction set.
inline constexpr int isa_skipped = 77;

/// True if this processor has the instruction set that a training was compiled for.
inline bool isa_runs_here(const char* name) {
#if defined(__x86_64__)
  if (std::strcmp(name, "avx2") == 0) return __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0;
  if (std::strcmp(name, "avx512f") == 0)
    return __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("fma") != 0;
  return std::strcmp(name, "baseline") == 0;
#else
  return std::strcmp(name, "aarch64") == 0;
#endif
}
