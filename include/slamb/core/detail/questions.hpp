// Requirements on types that the library's concepts use.
#pragma once

#include <type_traits>

namespace slamb::detail {

// These are cheap to compile. The standard library's std::copyable and std::convertible_to each check several other concepts, for
// every policy, in every source.
template <class T>
concept copyable = std::is_copy_constructible_v<T>;
template <class From, class To>
concept converts_to = requires(From (&from)(), void (&take)(To)) {
  take(from());
};

}  // namespace slamb::detail
