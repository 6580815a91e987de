// Where a backend's memory comes from.
#pragma once

#include <cstddef>
#include <functional>
#include <new>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace slamb {

/// Where a backend's memory comes from; replace both functions to use a framework's caching allocator.
struct allocator {
  static constexpr std::size_t alignment = 256;  ///< bytes

  /// Returns memory aligned to 256 bytes. Where there is none it throws, or returns null; a std::bad_alloc becomes an
  /// out_of_memory that says what for, and other exceptions are passed on as they are.
  std::function<void*(std::size_t bytes)> allocate{};
  std::function<void(void* memory, std::size_t bytes)> deallocate{};
};

namespace detail {

/// Memory in large pages where the system has them: an optimizer walks all of it at every step.
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
