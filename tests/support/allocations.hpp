// How often the program has allocated memory: tests/support/allocations.cpp replaces the global functions.
#pragma once

#include <cstddef>

namespace test_support {

/// Calls of operator new, of all threads, since the program started.
std::size_t allocations() noexcept;

}  // namespace test_support
