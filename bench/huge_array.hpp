// Arrays in large pages, and threads that share a loop over them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <span>
#include <thread>
#include <vector>

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include "made_up.hpp"

namespace bench {

/// Calls body(begin, end) for `threads` parts of [0, count) at once, the last on the caller's thread. Parts start at multiples
/// of 16 elements.
template <class Body>
void for_parts(unsigned threads, std::size_t count, const Body& body) {
  const std::size_t part = (count / threads + 15) / 16 * 16;
  std::vector<std::jthread> others;
  std::size_t begin = 0;
  for (unsigned i = 1; i < threads && begin + part < count; ++i, begin += part)
    others.emplace_back([&body, begin, part] { body(begin, begin + part); });
  body(begin, count);
}

/// Floats in pages of 2 MiB if the system has them; not initialised.
class huge_array {
 public:
  explicit huge_array(std::size_t count)
      : memory_(static_cast<float*>(::operator new(count * sizeof(float), page))), count_(count) {
#if defined(__linux__)
    madvise(memory_.get(), count * sizeof(float), MADV_HUGEPAGE);
#endif
  }

  float* data() const noexcept { return memory_.get(); }
  std::size_t size() const noexcept { return count_; }

  /// Sets element i to a number in [−scale, scale) that depends only on (seed, i).
  void fill(float scale, std::uint32_t seed, unsigned threads) {
    for_parts(threads, count_, [this, scale, seed](std::size_t begin, std::size_t end) {
      float* const to = data();
      for (std::size_t i = begin; i < end; ++i) to[i] = made_up(static_cast<std::uint32_t>(i), seed, scale);
    });
  }

 private:
  static constexpr std::align_val_t page{std::size_t{1} << 21U};

  struct release {
    void operator()(float* memory) const noexcept { ::operator delete(memory, page); }
  };

  std::unique_ptr<float, release> memory_;
  std::size_t count_;
};

}  // namespace bench
