// Waits for the work of a stream, through the Communicator.
#pragma once

#include "slamb/core/detail/any_stream.hpp"

namespace slamb::detail {

/// Waits for the work on a stream. A backend waits through it, because a collective with a dead peer keeps a stream busy for
/// ever, and only a Communicator detects that.
class stream_waiter {
 public:
  /// Waits until all work on `stream` is done. @throws the Communicator's exceptions, for example if a peer has failed
  virtual void wait(any_stream stream) const = 0;

 protected:
  ~stream_waiter() = default;
};

}  // namespace slamb::detail
