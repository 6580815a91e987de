// One program of translation units compiled for different instruction sets. They link, each runs its own code by types of its own, and all
// give equal bits.
//
// isa_together <instruction set>      0: equal to the baseline, 1: different, 77: skipped
#include <cstdio>
#include <cstring>

#include "isa/training.hpp"

namespace {

bool same(const isa_hashes& a, const isa_hashes& b) { return std::memcmp(a.of, b.of, sizeof(a.of)) == 0; }

void print(const char* name, const isa_hashes& hashes) {
  std::printf("%-9s", name);
  for (const std::uint64_t h : hashes.of) std::printf(" %016llx", static_cast<unsigned long long>(h));
  std::printf("\n");
}

bool own_types(const char* name, const isa_types& types) {
  const isa_types baseline = isa_types_baseline();
  for (int i = 0; i < isa_types::count; ++i)
    if (std::strcmp(baseline.of[i], types.of[i]) == 0) {
      std::printf("one type in both, baseline and %s: %s\n", name, types.of[i]);
      return false;
    }
  return true;
}

int compare(const char* name, isa_hashes (*training)(std::uint64_t), isa_types (*types)(), const char* (*choice)()) {
  if (!isa_runs_here(name)) {
    std::printf("skipped: this processor has no %s\n", name);
    return isa_skipped;
  }
  if (!own_types(name, types())) return 1;
  if (std::strcmp(isa_choice_baseline(), choice()) != 0) {
    std::printf("choose has two names, baseline's and %s': %s, %s\n", name, isa_choice_baseline(), choice());
    return 1;
  }
  const isa_hashes expected = isa_training_baseline(1);
  const isa_hashes got = training(1);
  print("baseline", expected);
  print(name, got);
  if (same(expected, isa_training_baseline(2))) {
    std::printf("the comparison finds no difference between two seeds\n");
    return 1;
  }
  std::printf("%s: %s bits\n", name, same(expected, got) ? "the same" : "OTHER");
  return same(expected, got) ? 0 : 1;
}

}  // namespace

int main(int count, char** arguments) {
  const char* const name = count == 2 ? arguments[1] : "";
  if (std::strcmp(name, "avx2") == 0) return compare(name, isa_training_avx2, isa_types_avx2, isa_choice_avx2);
  if (std::strcmp(name, "avx512f") == 0)
    return compare(name, isa_training_avx512f, isa_types_avx512f, isa_choice_avx512f);
  std::fprintf(stderr, "usage: isa_together avx2|avx512f\n");
  return 2;
}
