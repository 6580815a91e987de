// Launchers that run the same kernels: the host's launcher on one thread, and kernels on the emulator.
#pragma once

#include <cstddef>

#include "slamb/backend/cuda/detail/emulator.hpp"
#include "slamb/backend/cuda/detail/stream_launcher.hpp"
#include "slamb/backend/host/detail/thread_launcher.hpp"

namespace test_support {

/// Runs kernels on the calling thread.
inline slamb::detail::host::thread_launcher host_launcher() { return {1, 1}; }

/// Emulates kernels.
using emulated = slamb::detail::cuda::stream_launcher<slamb::detail::cuda::emulator>;
inline emulated emulated_on(std::size_t most_blocks = 5,
                            slamb::detail::cuda::thread_order order = slamb::detail::cuda::thread_order::forwards) {
  return emulated(slamb::detail::cuda::emulator(most_blocks, order));
}

/// Calls body(launcher) for grids of several sizes and every order of threads.
template <class Body>
void for_every_launch(const Body& body) {
  using slamb::detail::cuda::thread_order;
  for (const std::size_t blocks : {1U, 2U, 5U, 1000U})
    for (const thread_order order : {thread_order::forwards, thread_order::backwards, thread_order::interleaved})
      body(emulated_on(blocks, order));
}

}  // namespace test_support
