#pragma once

#include <algorithm>
#include <exception>
#include <limits>
#include <new>
#include <stdexcept>

#include "slamb/core/error.hpp"
#include "slamb/detail/pass/arena.hpp"

namespace slamb::detail {

SLAMB_DECL void arena::allocate(allocator from) {
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

SLAMB_DECL memory_report arena::report(std::uint64_t parameters) const {
  const double per = parameters == 0 ? 0.0 : 1.0 / static_cast<double>(parameters);
  memory_report all{all_uses(), bytes_, static_cast<double>(bytes_) * per};
  for (memory_report::use& use : all.uses) use.bytes_per_parameter = static_cast<double>(use.bytes) * per;
  return all;
}

SLAMB_DECL std::size_t arena::plan_elements(const char* purpose, std::uint64_t count, std::size_t element_bytes) {
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

SLAMB_DECL void* arena::memory_of_allocator() const {
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

SLAMB_DECL std::vector<memory_report::use> arena::all_uses() const {
  std::vector<memory_report::use> all = uses_;
  memory_report::use padding{"padding", bytes_, 0.0};
  for (const memory_report::use& use : uses_) padding.bytes -= use.bytes;
  all.push_back(std::move(padding));
  return all;
}

SLAMB_DECL std::string arena::text_of_uses() const {
  std::vector<memory_report::use> all = all_uses();
  std::stable_sort(all.begin(), all.end() - 1,
                   [](const memory_report::use& a, const memory_report::use& b) { return a.bytes > b.bytes; });
  std::string text;
  for (const memory_report::use& use : all)
    if (use.bytes > 0) text += (text.empty() ? "" : ", ") + use.purpose + " " + std::to_string(use.bytes);
  return text.empty() ? "nothing" : text;
}

SLAMB_DECL void arena::swap(arena& other) noexcept {
  std::swap(memory_, other.memory_);
  std::swap(bytes_, other.bytes_);
  std::swap(late_, other.late_);
  std::swap(uses_, other.uses_);
  std::swap(allocator_, other.allocator_);
}

}  // namespace slamb::detail
