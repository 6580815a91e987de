// The allocator of a backend's memory: the user's, or the host's own.
#pragma once

#include <cstddef>
#include <functional>
#include <new>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace slamb {

/// Allocates a backend's memory. Replace both functions to use a framework's caching allocator.
struct allocator {
  static constexpr std::size_t alignment = 256;  ///< bytes

  /// Returns memory aligned to 256 bytes. Without memory it throws or returns null. A std::bad_alloc becomes an out_of_memory
  /// with the purpose; other exceptions pass unchanged.
  std::function<void*(std::size_t bytes)> allocate{};
  std::function<void(void* memory, std::size_t bytes)> deallocate{};
};

namespace detail {

/// Allocates large pages if the system has them, because an optimizer walks all its memory at every step.
inline allocator host_allocator() {
  static constexpr std::size_t large_page = std::size_t{1} << 21U;
  const auto alignment_of = [](std::size_t bytes) {
    return std::align_val_t{bytes >= large_page ? large_page : allocator::alignment};
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

}  // namespace detail
}  // namespace slamb
