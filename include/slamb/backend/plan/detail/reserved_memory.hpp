// Memory for plans: addresses without pages. A page comes into being when something is written to it, so arrays that nothing
// touches cost nothing, whatever their size.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <new>

#include "slamb/core/allocator.hpp"

namespace slamb::detail {

/// Reserves addresses. Their memory reads as 0.
/// @throws std::bad_alloc if the system refuses them, as with a limit of the address space (ulimit -v)
inline allocator reserving_allocator() {
  return {.allocate =
              [](std::size_t bytes) {
                void* const memory =
                    mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
                if (memory == MAP_FAILED) throw std::bad_alloc();
#if defined(MADV_NOHUGEPAGE)
                madvise(memory, bytes, MADV_NOHUGEPAGE);  // a table of a few bytes must not take a large page
#endif
                return memory;
              },
          .deallocate = [](void* memory, std::size_t bytes) { munmap(memory, bytes); }};
}

}  // namespace slamb::detail
