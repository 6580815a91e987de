// A team of one thread: the host runs kernels by it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "slamb/backend/host/detail/simd.hpp"

namespace slamb::detail::host {
inline namespace SLAMB_SIMD_NAMESPACE {

/// One thread, as a team of a kernel: detail/kernel/kernel.hpp.
class worker {
 public:
  worker(std::size_t index, std::size_t count) noexcept : index_(index), count_(count) {}

  static constexpr unsigned threads = 1;
  std::size_t index() const noexcept { return index_; }
  std::size_t count() const noexcept { return count_; }

  template <class T>
  class registers {
   public:
    T& operator[](unsigned /*thread*/) noexcept { return own_; }
    const T& operator[](unsigned /*thread*/) const noexcept { return own_; }

   private:
    T own_{};
  };

  /// Memory of the stack, uninitialised.
  template <class T>
  T& shared() noexcept {
    static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= sizeof(shared_) && alignof(T) <= 64);
    return *reinterpret_cast<T*>(shared_);
  }

  template <class Body>
  static SLAMB_ALWAYS_INLINE void each(const Body& body) {
    body(0U);
  }
  template <class Body>
  static SLAMB_ALWAYS_INLINE void first(const Body& body) {
    body();
  }
  template <class Value>
  static double sum(const Value& value) {
    return value(0U);
  }
  template <int Count, class Value>
  static void sums(const Value& value, double (&total)[Count]) {
    value(0U, total);
  }
  template <class Value>
  static float maximum(const Value& value) {
    return value(0U);
  }
  template <class Predicate>
  static bool any(const Predicate& predicate) {
    return predicate(0U);
  }
  template <class Value>
  static std::uint32_t exclusive_sum(const Value& value, registers<std::uint32_t>& before) {
    before[0] = 0;
    return value(0U);
  }

 private:
  std::size_t index_;
  std::size_t count_;
  alignas(64) std::byte shared_[std::size_t{48} * 1024];
};

}  // namespace SLAMB_SIMD_NAMESPACE
}  // namespace slamb::detail::host
