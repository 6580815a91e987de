// A value that is read at one point of a stream and looked at later: on the host, at once.
#pragma once

#include "slamb/core/concepts.hpp"

namespace slamb::detail {

/// Reads a T of the backend's memory behind what a stream has been given so far. Who looks at it waits until it has been read,
/// and not for what the stream was given afterwards. A backend that runs behind the host specialises it for its streams.
template <class Stream, class T>
class late_read;

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
