// A program compiled for a single instruction set, SLAMB_ISA: prints the hashes of its training, or that it is skipped. It shows
// how the compiler translates functions that all instruction sets share, because no other code is linked.
//
// isa_alone_<instruction set> [seed]
#include <cstdio>
#include <cstdlib>

#include "isa/training.hpp"

#define SLAMB_ISA_JOIN_(a, b) a##b
#define SLAMB_ISA_JOIN(a, b) SLAMB_ISA_JOIN_(a, b)
#define SLAMB_ISA_TEXT_(a) #a
#define SLAMB_ISA_TEXT(a) SLAMB_ISA_TEXT_(a)

int main(int count, char** arguments) {
  const char* const name = SLAMB_ISA_TEXT(SLAMB_ISA);
  if (!isa_runs_here(name)) {
    std::printf("skipped: this processor has no %s\n", name);
    return isa_skipped;
  }
  const std::uint64_t seed = count == 2 ? std::strtoull(arguments[1], nullptr, 10) : 1;
  const isa_hashes hashes = SLAMB_ISA_JOIN(isa_training_, SLAMB_ISA)(seed);
  for (const std::uint64_t h : hashes.of) std::printf("%016llx\n", static_cast<unsigned long long>(h));
  return 0;
}
