// A value of one of a few trivially copyable types, for host and device.
#pragma once

#include <cstddef>
#include <cstring>
#include <type_traits>

#include "slamb/core/config.hpp"

namespace slamb::detail {

/// Holds a value of one of `Ts`, and can be copied to a device byte by byte. Empty by default.
template <class... Ts>
class one_of {
  static_assert((std::is_trivially_copyable_v<Ts> && ...));

 public:
  template <class T>
  static constexpr bool takes = (std::is_same_v<T, Ts> || ...);

  one_of() = default;
  template <class T, class = std::enable_if_t<takes<T>>>
  one_of(const T& value) noexcept : which_(number_of<T>()) {  // NOLINT(google-explicit-constructor): one of them
    std::memcpy(bytes_, &value, sizeof(T));
  }

  /// Calls visit(value), unless it is empty.
  SLAMB_NO_EXEC_CHECK
  template <class Visit>
  SLAMB_HOST_DEVICE void visit(const Visit& visit) const {
    int number = 0;
    ((which_ == number++ ? visit(*reinterpret_cast<const Ts*>(bytes_)) : void()), ...);
  }

 private:
  template <class T>
  static constexpr int number_of() noexcept {
    int number = 0;
    int found = -1;
    ((std::is_same_v<T, Ts> ? void(found = number++) : void(++number)), ...);
    return found;
  }
  static constexpr std::size_t largest() noexcept {
    std::size_t most = 0;
    ((most = sizeof(Ts) > most ? sizeof(Ts) : most), ...);
    return most;
  }

  int which_ = -1;
  alignas(8) unsigned char bytes_[largest()] = {};
};

}  // namespace slamb::detail
