// The modes in which a thread computes with floats. Each thread has its own, so a thread that works for another one takes them over.
#pragma once

#include <cstdint>

namespace slamb::detail {

/// The floating-point modes of a thread: its rounding, and if it treats subnormal numbers as 0, as torch.set_flush_denormal(True) asks it to. Results have the same
/// bits on two threads only if their modes are equal. On processors other than x86-64 and 64-bit ARM it is empty: threads keep the
/// modes that they began with.
class float_modes {
 public:
  /// Those of the calling thread.
  static float_modes current() noexcept {
    float_modes modes;
#if defined(__x86_64__)
    std::uint32_t word = 0;
    asm volatile("stmxcsr %0" : "=m"(word));
    constexpr std::uint32_t flags = 0x3F;  // note what has happened in earlier operations, and change no result
    modes.word_ = word & ~flags;
#elif defined(__aarch64__)
    asm volatile("mrs %0, fpcr" : "=r"(modes.word_));
#endif
    return modes;
  }

  /// Makes them the modes of the calling thread.
  void apply() const noexcept {
#if defined(__x86_64__)
    const auto word = static_cast<std::uint32_t>(word_);
    asm volatile("ldmxcsr %0" : : "m"(word));
#elif defined(__aarch64__)
    asm volatile("msr fpcr, %0" : : "r"(word_));
#endif
  }

  friend bool operator==(const float_modes&, const float_modes&) noexcept = default;

 private:
  std::uint64_t word_ = 0;  // of the control register
};

}  // namespace slamb::detail
