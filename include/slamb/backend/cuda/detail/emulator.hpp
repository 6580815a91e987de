// The kernel emulator: the CPU runs the kernels that nvcc compiles for a GPU, thread by thread, so that tests need no GPU.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "slamb/backend/cuda/detail/team.hpp"
#include "slamb/backend/cuda/detail/tuning.hpp"
#include "slamb/core/concepts.hpp"
#include "slamb/detail/runtime/late_read.hpp"

namespace slamb::detail::cuda {

/// The order in which the threads of a phase run.
enum class thread_order { forwards, backwards, interleaved };

/// One block of an emulated kernel.
template <unsigned Threads>
class emulated_block : public block_team<Threads> {
 public:
  static_assert(Threads % 32 == 0 && Threads <= 1024, "slamb: a block has a multiple of 32 threads, at most 1024");

  emulated_block(std::size_t index, std::size_t count, thread_order order)
      : index_(index), count_(count), order_(order) {}

  std::size_t index() const noexcept { return index_; }  ///< the number of this block: 0 … count() − 1
  std::size_t count() const noexcept { return count_; }  ///< the number of blocks of the grid

  /// A T for each thread, value-initialised.
  template <class T>
  class registers {
   public:
    T& operator[](unsigned thread) { return of_thread_[thread]; }
    const T& operator[](unsigned thread) const { return of_thread_[thread]; }

   private:
    std::vector<T> of_thread_ = std::vector<T>(Threads);
  };

  /// Memory that the threads of the block share. A kernel uses one type for it. Its initial content is undefined.
  template <class T>
  T& shared() {
    static_assert(std::is_trivially_copyable_v<T> && alignof(T) <= alignof(std::max_align_t));
    if (shared_.size() < sizeof(T)) shared_.assign(sizeof(T), std::byte{0xFF});
    return *reinterpret_cast<T*>(shared_.data());
  }

  static void add_one(std::uint32_t& shared_counter) noexcept { ++shared_counter; }

  template <class Body>
  void each(Body&& body) {
    in_order([&](unsigned thread) { body(thread); });
  }
  template <class Body>
  void first(Body&& body) {
    body();
  }

  /// Σ value(thread), in a fixed order.
  template <class Value>
  double sum(Value&& value) {
    double total[1];
    sums([&](unsigned thread, double(&own)[1]) { own[0] = value(thread); }, total);
    return total[0];
  }
  /// total[k] ← Σ own[k], in the order of `sum`. value(thread, own) sets the terms of a thread. Has as few barriers as `sum`.
  template <std::size_t Count, class Value>
  void sums(Value&& value, double (&total)[Count]) {
    double of_thread[Threads][Count];
    in_order([&](unsigned thread) { value(thread, of_thread[thread]); });
    for (unsigned width = 1; width < Threads; width *= 2)
      for (unsigned i = 0; i + width < Threads; i += 2 * width)
        for (std::size_t k = 0; k < Count; ++k) of_thread[i][k] += of_thread[i + width][k];
    std::copy_n(of_thread[0], Count, total);
  }
  /// The largest value(thread).
  template <class Value>
  float maximum(Value&& value) {
    float of_thread[Threads];
    in_order([&](unsigned thread) { of_thread[thread] = value(thread); });
    float largest = of_thread[0];
    for (const float x : of_thread) largest = x > largest ? x : largest;
    return largest;
  }
  /// result[thread] ← the largest value of the `Group` threads around it: those whose number / Group is the same. A power of two
  /// from 32 on.
  template <unsigned Group, class Value>
  void maxima(Value&& value, registers<std::uint32_t>& result) {
    static_assert(Group % 32 == 0 && (Group & (Group - 1)) == 0 && Threads % Group == 0);
    std::uint32_t largest[Threads / Group] = {};
    in_order([&](unsigned thread) {
      std::uint32_t& of_group = largest[thread / Group];
      of_group = std::max(of_group, static_cast<std::uint32_t>(value(thread)));
    });
    for (unsigned thread = 0; thread < Threads; ++thread) result[thread] = largest[thread / Group];
  }
  /// True if predicate(thread) is true for any thread.
  template <class Predicate>
  bool any(Predicate&& predicate) {
    bool found = false;
    in_order([&](unsigned thread) { found = predicate(thread) || found; });
    return found;
  }
  /// before[thread] ← Σ value(i) for all i < thread. Returns the sum over all threads.
  template <class Value>
  std::uint32_t exclusive_sum(Value&& value, registers<std::uint32_t>& before) {
    in_order([&](unsigned thread) { before[thread] = value(thread); });
    std::uint32_t sum = 0;
    for (unsigned thread = 0; thread < Threads; ++thread) sum += std::exchange(before[thread], sum);
    return sum;
  }

 private:
  template <class Body>
  void in_order(const Body& body) const {
    for (unsigned i = 0; i < Threads; ++i) body(thread_at(i));  // the only call, because bodies are large and inlined
  }

  /// The thread that runs after i others.
  unsigned thread_at(unsigned i) const {
    switch (order_) {
      case thread_order::backwards:
        return Threads - 1 - i;
      case thread_order::interleaved:
        return i % 32 * (Threads / 32) + i / 32;  // consecutive threads are Threads/32 apart
      default:
        return i;
    }
  }

  std::size_t index_;
  std::size_t count_;
  thread_order order_;
  std::vector<std::byte> shared_;
};

/// Launches kernels on the CPU, in host memory. All work is done when a call returns.
class emulator {
 public:
  /// @param most_blocks  the most blocks of a grid, for any amount of work, as on a GPU
  explicit emulator(std::size_t most_blocks = 5, thread_order order = thread_order::forwards)
      : most_blocks_(most_blocks), order_(order) {}

  static host_stream stream() noexcept { return {}; }
  static bool is_capturing() noexcept { return false; }
  static void require_memory(const void* /*memory*/, const char* /*what*/) noexcept {}
  static void clear(std::span<std::byte> memory) noexcept { std::memset(memory.data(), 0, memory.size()); }
  static void upload(std::span<const std::byte> from, std::span<std::byte> to) noexcept {
    std::copy(from.begin(), from.end(), to.begin());
  }
  static void download(std::span<const std::byte> from, std::span<std::byte> to) noexcept { upload(from, to); }
  template <class T>
  static void read_later(const T* from, late_read<host_stream, T>& late) noexcept {
    late.start(from);
  }

  /// Runs `kernel` with `work` blocks, but at most `most_blocks`: a block may then have several pieces of work.
  template <class Kernel>
  void launch(const Kernel& kernel, std::size_t work) const {
    static_assert(std::is_trivially_copyable_v<Kernel>,
                  "slamb: a kernel must be trivially copyable, because it is copied to the device byte by byte");
    const std::size_t blocks = work < most_blocks_ ? work : most_blocks_;
    for (std::size_t i = 0; i < blocks; ++i) {
      emulated_block<tuning<Kernel>::threads> block(i, blocks, order_);
      kernel(block);
    }
  }

 private:
  std::size_t most_blocks_;
  thread_order order_;
};

}  // namespace slamb::detail::cuda
