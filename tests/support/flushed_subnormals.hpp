// The mode in which a thread treats subnormal numbers as 0, set as torch.set_flush_denormal() sets it, without the library.
#pragma once

#include <cstdint>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace test_support {

/// Sets the mode of the calling thread, and restores the former one at its end.
class flushed_subnormals {
 public:
#if defined(__x86_64__)
  static constexpr bool exist = true;

  flushed_subnormals() : before_(_mm_getcsr()) { _mm_setcsr(static_cast<unsigned>(before_) | to_zero | are_zero); }
  ~flushed_subnormals() { _mm_setcsr(static_cast<unsigned>(before_)); }
  /// True if the calling thread is in this mode.
  static bool are_on() { return (_mm_getcsr() & (to_zero | are_zero)) == (to_zero | are_zero); }

 private:
  static constexpr unsigned to_zero = 0x8000, are_zero = 0x0040;
#elif defined(__aarch64__)
  static constexpr bool exist = true;

  flushed_subnormals() : before_(word()) { set(before_ | to_zero); }
  ~flushed_subnormals() { set(before_); }
  static bool are_on() { return (word() & to_zero) != 0; }

 private:
  static constexpr std::uint64_t to_zero = std::uint64_t{1} << 24U;
  static std::uint64_t word() {
    std::uint64_t all = 0;
    asm volatile("mrs %0, fpcr" : "=r"(all));
    return all;
  }
  static void set(std::uint64_t all) { asm volatile("msr fpcr, %0" : : "r"(all)); }
#else
  static constexpr bool exist = false;

  flushed_subnormals() = default;
  static bool are_on() { return false; }

 private:
#endif
  flushed_subnormals(const flushed_subnormals&) = delete;
  flushed_subnormals& operator=(const flushed_subnormals&) = delete;

  std::uint64_t before_ = 0;
};

}  // namespace test_support
