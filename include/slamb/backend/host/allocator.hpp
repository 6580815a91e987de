// Where the host backend's memory comes from.
#pragma once

#include <cstddef>
#include <new>

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include "slamb/core/arena.hpp"

namespace slamb::host {

/// Memory in large pages where the system has them: an optimizer walks all of it at every step.
inline allocator default_allocator() {
  static constexpr std::size_t large_page = std::size_t{1} << 21U;
  const auto alignment_of = [](std::size_t bytes) {
    return std::align_val_t{bytes >= large_page ? large_page : arena::alignment};
  };
  return {.allocate =
              [alignment_of](std::size_t bytes) {
                void* memory = ::operator new(bytes, alignment_of(bytes));
#if defined(__linux__)
                if (bytes >= large_page) madvise(memory, bytes, MADV_HUGEPAGE);
#endif
                return memory;
              },
          .deallocate = [alignment_of](void* memory,
                                       std::size_t bytes) { ::operator delete(memory, alignment_of(bytes)); }};
}

}  // namespace slamb::host
