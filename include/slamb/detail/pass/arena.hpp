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
#include "slamb/core/error.hpp"
#include "slamb/core/statistics.hpp"

namespace slamb::detail {

/// A planned region of an arena. Its memory exists once the arena is allocated.
template <class T>
struct region {
  std::size_t offset = 0;  ///< bytes
  std::size_t count = 0;   ///< elements of T
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

  /// @throws std::invalid_argument if `from` is incomplete or its memory is not aligned; out_of_memory if it has no
  ///         memory; its other exceptions.
  void allocate(allocator from) {
    if (!from.allocate || !from.deallocate)
      throw std::invalid_argument("slamb: an allocator needs both allocate and deallocate; one of them is empty");
    allocator_ = std::move(from);
    if (bytes_ == 0) return;
    void* const memory = memory_of_allocator();
    if (reinterpret_cast<std::uintptr_t>(memory) % alignment != 0) {
      allocator_.deallocate(memory, bytes_);
      throw std::invalid_argument("slamb: the allocator returned memory that is not aligned to 256 bytes");
    }
    memory_ = static_cast<std::byte*>(memory);
  }

  template <class T>
  std::span<T> view(region<T> planned) const noexcept {
    return {reinterpret_cast<T*>(memory_ + planned.offset), planned.count};
  }

  std::span<std::byte> bytes() const noexcept { return {memory_, memory_ == nullptr ? 0 : bytes_}; }

  memory_report report(std::uint64_t parameters) const {
    const double per = parameters == 0 ? 0.0 : 1.0 / static_cast<double>(parameters);
    memory_report all{all_uses(), bytes_, static_cast<double>(bytes_) * per};
    for (memory_report::use& use : all.uses) use.bytes_per_parameter = static_cast<double>(use.bytes) * per;
    return all;
  }

 private:
  // Returns the offset of the region.
  std::size_t plan_elements(const char* purpose, std::uint64_t count, std::size_t element_bytes) {
    constexpr std::size_t most = std::numeric_limits<std::ptrdiff_t>::max();
    if (count > (most - bytes_ - alignment) / element_bytes)
      throw out_of_memory("slamb: " + std::to_string(count) + " elements of " + std::to_string(element_bytes) +
                          " bytes were requested as " + purpose +
                          ", but they do not fit the address space together with " +
                          "earlier requests: " + text_of_uses());
    const std::size_t first = bytes_, bytes = static_cast<std::size_t>(count) * element_bytes;
    bytes_ += (bytes + alignment - 1) / alignment * alignment;
    for (memory_report::use& use : uses_) {
      if (use.purpose != purpose) continue;
      use.bytes += bytes;
      return first;
    }
    uses_.push_back({purpose, bytes, 0.0});
    return first;
  }

  void* memory_of_allocator() const {
    const auto too_large = [this] {
      return out_of_memory("slamb: " + std::to_string(bytes_) + " bytes could not be allocated: " + text_of_uses());
    };
    void* memory = nullptr;
    try {
      memory = allocator_.allocate(bytes_);
    } catch (const std::bad_alloc&) {
      std::throw_with_nested(too_large());
    }
    if (memory == nullptr) throw too_large();
    return memory;
  }

  std::vector<memory_report::use> all_uses() const {
    std::vector<memory_report::use> all = uses_;
    memory_report::use padding{"padding", bytes_, 0.0};
    for (const memory_report::use& use : uses_) padding.bytes -= use.bytes;
    all.push_back(std::move(padding));
    return all;
  }

  // As "momentum 400, variance 400, padding 224": the largest first, padding last, without those of no bytes.
  std::string text_of_uses() const {
    std::vector<memory_report::use> all = all_uses();
    std::stable_sort(all.begin(), all.end() - 1,
                     [](const memory_report::use& a, const memory_report::use& b) { return a.bytes > b.bytes; });
    std::string text;
    for (const memory_report::use& use : all)
      if (use.bytes > 0) text += (text.empty() ? "" : ", ") + use.purpose + " " + std::to_string(use.bytes);
    return text.empty() ? "nothing" : text;
  }

  void swap(arena& other) noexcept {
    std::swap(memory_, other.memory_);
    std::swap(bytes_, other.bytes_);
    std::swap(uses_, other.uses_);
    std::swap(allocator_, other.allocator_);
  }

  std::byte* memory_ = nullptr;
  std::size_t bytes_ = 0;
  std::vector<memory_report::use> uses_;
  allocator allocator_;
};

}  // namespace slamb::detail
