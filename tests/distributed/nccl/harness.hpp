// Runs ranks of the stand-in, a thread each, and collects their exceptions.
#pragma once

#include <doctest/doctest.h>

#include <chrono>
#include <cstddef>
#include <exception>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "slamb/nccl.hpp"
#include "stand_in.hpp"

namespace nccl_tests {

/// Options for waits that end: no timeout cuts them short.
inline slamb::nccl_options patient() {
  return {.timeout = std::chrono::hours(24), .poll_interval = std::chrono::microseconds(0)};
}

/// Options for waits that never end: they time out after `polls` polls.
inline slamb::nccl_options limited_to(std::uint64_t polls) {
  slamb::nccl_options options = patient();
  options.max_polls = polls;
  return options;
}

/// Calls `body(rank)` for all ranks at once. Returns each rank's exception, null if there was none. [rank]
template <class F>
std::vector<std::exception_ptr> run_ranks(nccl_stand_in::library& library, int ranks, F body) {
  std::vector<std::exception_ptr> thrown(static_cast<std::size_t>(ranks));
  {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < ranks; ++rank) {
      threads.emplace_back([&, rank] {
        library.enter(rank);
        try {
          body(rank);
        } catch (...) {
          thrown[static_cast<std::size_t>(rank)] = std::current_exception();
        }
      });
    }
  }
  return thrown;
}

/// The message of an exception; "" if there is none.
inline std::string text_of(const std::exception_ptr& thrown) {
  if (!thrown) return "";
  try {
    std::rethrow_exception(thrown);
  } catch (const std::exception& error) {
    return error.what();
  } catch (...) {
    return "no std::exception";
  }
}

/// The exception that `body` throws.
template <class F>
std::exception_ptr thrown_by(F body) {
  try {
    body();
    return nullptr;
  } catch (...) {
    return std::current_exception();
  }
}

/// The exception as an nccl_error; the test case fails if it is another.
inline slamb::nccl_error nccl_error_of(const std::exception_ptr& thrown) {
  REQUIRE(thrown != nullptr);
  try {
    std::rethrow_exception(thrown);
  } catch (const slamb::nccl_error& error) {
    return error;
  } catch (...) {
  }
  FAIL("no nccl_error: " << text_of(thrown));
  return {ncclSuccess, "", "", ""};
}

/// Checks that nothing forbidden by NCCL was done, no group is open, and exactly `living` communicators remain.
inline void check_clean(const nccl_stand_in::library& library, int living = 0) {
  CHECK(library.misuses() == std::vector<std::string>{});
  CHECK(library.open_groups() == 0);
  CHECK(library.living_communicators() == living);
}

}  // namespace nccl_tests
