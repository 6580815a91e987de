// Questions that the library's concepts ask of types.
#pragma once

#include <type_traits>

namespace slamb::detail {

// What the concepts ask of types, by questions that take a compiler little time: the standard library's std::copyable and
// std::convertible_to ask several others each, of every policy, in every source that includes the library.
template <class T>
concept copyable = std::is_copy_constructible_v<T>;
template <class From, class To>
concept converts_to = requires(From (&from)(), void (&take)(To)) {
  take(from());
};

}  // namespace slamb::detail
