// The tensors that a framework gives to an optimizer, with options.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <type_traits>

#include "slamb/core/bfloat16.hpp"
#include "slamb/core/half.hpp"

namespace slamb {

/// Options of one tensor. The defaults keep the optimizer's options.
struct tensor_options {
  std::optional<double> weight_decay{};  ///< λ of this tensor; unset: the optimizer's
  double learning_rate_factor = 1.0;     ///< multiplies the learning rate
  bool adapt = true;                     ///< false: trust ratio 1, as usual for biases and normalisation layers
  bool compress = true;                  ///< false: always exchanged dense (by a chain: quantized)
  int group = 0;                         ///< index of its learning rate among those given to `step()`
  /// [rows] of 0 or 1, in host memory, copied by the constructor. The tensor consists of that many rows of equal size. Rows with
  /// 0 are inactive in a quantized exchange, because their gradient is always zero. Empty: all rows are active.
  std::span<const std::uint8_t> rows{};
};

namespace detail {

/// The type of the numbers in an array.
enum class element_type : std::uint8_t { float32, bfloat16, float16 };

constexpr std::size_t size_of(element_type type) noexcept { return type == element_type::float32 ? 4 : 2; }
constexpr const char* name_of(element_type type) noexcept {
  return type == element_type::float32 ? "float32" : type == element_type::bfloat16 ? "bfloat16" : "float16";
}

/// The type of a `T`, if an array may consist of them.
template <class T>
struct type_of_element {};
template <>
struct type_of_element<float> : std::integral_constant<element_type, element_type::float32> {};
template <>
struct type_of_element<bfloat16> : std::integral_constant<element_type, element_type::bfloat16> {};
template <>
struct type_of_element<half> : std::integral_constant<element_type, element_type::float16> {};

/// A pointer to numbers of a type that is known at run time. A pointer to float, bfloat16 or half converts to it; a framework's
/// own types come with a tag: `{pointer, slamb::parameter::bfloat16}`.
/// @tparam Void  void or const void
template <class Void>
class typed_pointer {
 public:
  constexpr typed_pointer() = default;
  // NOLINTBEGIN(google-explicit-constructor): it is made as a pointer is
  constexpr typed_pointer(std::nullptr_t /*null*/) noexcept {}
  template <class T>
  requires(requires { type_of_element<std::remove_const_t<T>>::value; } &&
           std::convertible_to<T*, Void*>) constexpr typed_pointer(T* address) noexcept
      : address_(address), type_(type_of_element<std::remove_const_t<T>>::value) {}
  template <class Other>
  requires(!std::same_as<Other, Void> &&
           std::convertible_to<Other*, Void*>) constexpr typed_pointer(const typed_pointer<Other>& other) noexcept
      : address_(other.address()), type_(other.type()) {}
  // NOLINTEND(google-explicit-constructor)
  constexpr typed_pointer(Void* address, element_type type) noexcept : address_(address), type_(type) {}

  constexpr Void* address() const noexcept { return address_; }
  constexpr element_type type() const noexcept { return type_; }

  /// The pointer, if the numbers are of type T.
  /// @throws std::logic_error for another type
  template <class T>
  T* as() const {
    if (type_ != type_of_element<std::remove_const_t<T>>::value)
      throw std::logic_error("slamb: an array of " + std::string(name_of(type_)) + " was asked for as one of " +
                             name_of(type_of_element<std::remove_const_t<T>>::value));
    return static_cast<T*>(address_);
  }

  friend constexpr bool operator==(const typed_pointer&, const typed_pointer&) noexcept = default;

 private:
  Void* address_ = nullptr;
  element_type type_ = element_type::float32;
};

}  // namespace detail

/// One tensor: its parameters and its gradient, `size` elements each, in the backend's memory, aligned as their type.
///
/// Both must outlive the optimizer. `step()` reads `gradient` and updates `data`. A tensor whose gradient is null, on all ranks,
/// is left as it is: no update, no decay, and its state does not change. Each is float, bfloat16 or half; with a
/// framework's own type, a pointer with a tag: `.data = {pointer, slamb::parameter::bfloat16}`. Types other than float need an
/// optimizer with the Backend `precision::mixed`. There the type of a gradient may change between steps; `data` keeps its type.
struct parameter {
  using element_type = detail::element_type;
  /// @cond  docs/reference/optimizers.md has a table of the tags
  // Not `using enum`: g++ 12 fails with an internal error where a function template uses it.
  static constexpr element_type float32 = element_type::float32;
  static constexpr element_type bfloat16 = element_type::bfloat16;
  static constexpr element_type float16 = element_type::float16;
  /// @endcond
  using data_pointer = detail::typed_pointer<void>;
  using gradient_pointer = detail::typed_pointer<const void>;

  data_pointer data = nullptr;          ///< [size]  the parameters, updated in place
  gradient_pointer gradient = nullptr;  ///< [size]  this rank's own gradient, never written; null: none yet
  std::size_t size = 0;                 ///< elements; 0 is allowed, and then all pointers may be null
  int dimensions = 2;  ///< dimensions of the whole tensor; SLAMB never compresses tensors of one dimension
  tensor_options options{};
  /// [size]  float copy of 16-bit `data`, in the backend's memory. It holds the parameters to start from, and the optimizer
  /// updates it; `data` receives it rounded. Null: the optimizer keeps a copy of its own, which starts from `data`. With a shard group,
  /// all ranks that have elements of the tensor give one, or none does.
  float* master = nullptr;
  /// With a sharded_communicator: the number of the part of the whole tensor that these elements are, in [0, S). Ranks of a shard group
  /// with the same number hold equal elements, which count once in sums over the tensor; such a tensor is never exchanged in codes. 0 on
  /// all ranks: each of them has the whole tensor, as of a bias under tensor parallelism. Negative: a part that no other rank has.
  int shard = -1;
  /// Elements of the whole tensor, if these are a shard of it. It is compared with the sum over the shard group. 0: that sum.
  std::size_t whole_size = 0;
};

}  // namespace slamb
