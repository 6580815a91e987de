// Counts memory allocations of the whole program: tests/support/allocations.cpp replaces the global operator new.
#pragma once

#include <cstddef>

namespace test_support {

/// Calls of operator new, by all threads, since the program started.
std::size_t allocations() noexcept;

}  // namespace test_support
