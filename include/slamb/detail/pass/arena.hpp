// An optimizer's one allocation, planned and reported by purpose.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <limits>
#include <new>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "slamb/core/allocator.hpp"
#include "slamb/core/config.hpp"
#include "slamb/core/error.hpp"
#include "slamb/core/statistics.hpp"

namespace slamb::detail {

/// A planned region of an arena. Its memory exists once the arena is allocated.
template <class T>
struct region {
  std::size_t offset = 0;  ///< bytes
  std::size_t count = 0;   ///< elements of T
};

/// A region whose size is known later than the others, but before the memory is allocated: `arena::plan_later`.
template <class T>
struct late_region {
  std::size_t number = 0;  ///< among these
};

/// An optimizer's memory: regions are planned first, then allocated at once. An arena can be moved; its memory keeps its address.
class arena {
 public:
  static constexpr std::size_t alignment = allocator::alignment;

  arena() = default;
  arena(arena&& other) noexcept { swap(other); }
  arena& operator=(arena&& other) noexcept {
    swap(other);
    return *this;
  }
  arena(const arena&) = delete;
  arena& operator=(const arena&) = delete;
  ~arena() {
    if (memory_ != nullptr) allocator_.deallocate(memory_, bytes_);
  }

  /// @throws out_of_memory if the bytes do not fit the address space.
  template <class T>
  region<T> plan(const char* purpose, std::uint64_t count) {
    return {plan_elements(purpose, count, sizeof(T)), static_cast<std::size_t>(count)};
  }
  /// Plans elements of a size that only the caller knows. @throws as `plan`
  region<std::byte> plan(const char* purpose, std::uint64_t count, std::size_t element_bytes) {
    return {plan_elements(purpose, count, element_bytes), static_cast<std::size_t>(count) * element_bytes};
  }

  /// Announces a region, which is empty until it is planned.
  template <class T>
  late_region<T> plan_later() {
    late_.emplace_back();
    return {late_.size() - 1};
  }
  /// Plans it. @throws as `plan`
  template <class T>
  void plan(late_region<T> announced, const char* purpose, std::uint64_t count) {
    late_[announced.number] = plan(purpose, count, sizeof(T));
  }

  /// @throws std::invalid_argument if `from` is incomplete or its memory is not aligned; out_of_memory if it has no
  ///         memory; its other exceptions.
  void allocate(allocator from);

  template <class T>
  std::span<T> view(region<T> planned) const noexcept {
    return {reinterpret_cast<T*>(memory_ + planned.offset), planned.count};
  }
  template <class T>
  std::span<T> view(late_region<T> planned) const noexcept {
    const region<std::byte>& its = late_[planned.number];
    return {reinterpret_cast<T*>(memory_ + its.offset), its.count / sizeof(T)};
  }

  std::span<std::byte> bytes() const noexcept { return {memory_, memory_ == nullptr ? 0 : bytes_}; }

  memory_report report(std::uint64_t parameters) const;

 private:
  // Returns the offset of the region.
  std::size_t plan_elements(const char* purpose, std::uint64_t count, std::size_t element_bytes);

  void* memory_of_allocator() const;

  std::vector<memory_report::use> all_uses() const;

  // As "momentum 400, variance 400, padding 224": the largest first, padding last, without those of no bytes.
  std::string text_of_uses() const;

  void swap(arena& other) noexcept;

  std::byte* memory_ = nullptr;
  std::size_t bytes_ = 0;
  std::vector<region<std::byte>> late_;
  std::vector<memory_report::use> uses_;
  allocator allocator_;
};

}  // namespace slamb::detail

#if !defined(SLAMB_SEPARATE_COMPILATION)
#include "slamb/impl/detail/pass/arena.ipp"
#endif
