// A collective of one of several communicators that make up another: if it fails, peers must not wait in the others.
#pragma once

#include <exception>
#include <string>

#include "slamb/core/concepts.hpp"

namespace slamb::detail {

/// Calls `call`. On an exception aborts `all`, if it can, and throws it on.
/// @param all    the communicator of which `call` uses a part
/// @param where  where() is the beginning of the reason that peers get
template <class C, class Place, class Call>
void call_or_abort(C& all, const Place& where, const Call& call) {
  const auto abort = [&](const std::string& reason) {
    if constexpr (has_abort<C>) all.abort(where() + reason);
  };
  try {
    call();
  } catch (const std::exception& failure) {
    abort(failure.what());
    throw;
  } catch (...) {
    abort("an exception of unknown type");
    throw;
  }
}

}  // namespace slamb::detail
