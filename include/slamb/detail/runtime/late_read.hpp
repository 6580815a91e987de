// A value of the backend's memory that is read at one point of a stream, and returned to the host later.
#pragma once

#include "slamb/core/concepts.hpp"

namespace slamb::detail {

/// Reads a T of the backend's memory after all work enqueued on a stream so far. `finish` waits until the value has been read,
/// but not for work enqueued later. An asynchronous backend specialises this template for its streams.
template <class Stream, class T>
class late_read;

/// Reads the value at once.
template <class T>
class late_read<host_stream, T> {
 public:
  explicit late_read(host_stream /*beside*/) noexcept {}

  void start(const T* from) noexcept { value_ = *from; }
  static host_stream stream() noexcept { return {}; }
  T finish() const noexcept { return value_; }

 private:
  T value_{};
};

}  // namespace slamb::detail
