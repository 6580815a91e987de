// A function that is passed on, as C++26's std::function_ref.
#pragma once

#include <memory>
#include <type_traits>
#include <utility>

namespace slamb::detail {

/// Refers to a function, which must live as long. Never allocates.
template <class Signature>
class function_ref;
template <class Result, class... Arguments>
class function_ref<Result(Arguments...)> {
 public:
  template <class Function, class = std::enable_if_t<!std::is_same_v<std::remove_cvref_t<Function>, function_ref>>>
  function_ref(Function&& function) noexcept  // NOLINT(google-explicit-constructor): stands for any of them
      : to_(const_cast<void*>(static_cast<const void*>(std::addressof(function)))),
        call_([](void* to, Arguments... arguments) -> Result {
          return (*static_cast<std::remove_reference_t<Function>*>(to))(std::forward<Arguments>(arguments)...);
        }) {}

  Result operator()(Arguments... arguments) const { return call_(to_, std::forward<Arguments>(arguments)...); }

 private:
  void* to_;
  Result (*call_)(void* to, Arguments... arguments);
};

}  // namespace slamb::detail
