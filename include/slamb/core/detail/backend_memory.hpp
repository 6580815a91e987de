// Access of host code to the memory of any backend.
#pragma once

#include <cstddef>
#include <span>

#include "slamb/core/detail/stream_waiter.hpp"

namespace slamb::detail {

/// Copies between host memory and a backend's memory, in the order of the backend's work.
class backend_memory {
 public:
  /// Copies from host memory, which may change once the call has returned.
  virtual void upload_bytes(std::span<const std::byte> from, std::span<std::byte> to) const = 0;
  /// Copies to host memory. Waits.
  virtual void download(std::span<const std::byte> from, std::span<std::byte> to, const stream_waiter& ranks) const = 0;
  /// Waits for all work. @throws the exceptions of `ranks`, for example if a peer has failed
  virtual void wait(const stream_waiter& ranks) const = 0;

 protected:
  ~backend_memory() = default;
};

}  // namespace slamb::detail
