// What a backend does: it launches kernels and moves memory, in the order of the calls.
#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "slamb/core/concepts.hpp"
#include "slamb/core/detail/questions.hpp"
#include "slamb/core/detail/stream_waiter.hpp"
#include "slamb/detail/kernel/segments.hpp"
#include "slamb/detail/pass/step_state.hpp"
#include "slamb/detail/runtime/late_read.hpp"

namespace slamb::detail {

/// Does work in the order of its calls: at once (`is_synchronous`), or on a stream. Pointers and spans are in the backend's
/// memory, but for the source of an upload and the target of a download. `download` and `wait` wait for all work, through
/// `ranks`.
template <class L>
concept synchronous_launcher = requires(const L& on, const add_up& kernel, std::span<std::byte> bytes,
                                        std::span<const std::byte> from, const stream_waiter& ranks) {
  { L::is_synchronous } -> converts_to<bool>;
  on.launch(kernel);
  on.invoke(nothing_to_do{}, nothing_to_do{});
  on.clear(bytes);
  on.upload(from, bytes);
  on.download(from, bytes, ranks);
  on.wait(ranks);
  on.require_memory(static_cast<const void*>(from.data()), "name");
  on.stream();
};

template <class L>
using stream_of = decltype(std::declval<const L&>().stream());

/// The launcher of a backend.
template <class L>
concept backend_launcher = synchronous_launcher<L> &&
    (bool(L::is_synchronous) ||
     requires(const L& on, const std::uint64_t* value, late_read<stream_of<L>, std::uint64_t>& late) {
       { on.is_capturing() } -> std::same_as<bool>;
       on.read_later(value, late);
     });

/// What launchers have in common that work at once, in the memory of the host.
struct launches_at_once {
  /// The results of a step can be read without waiting.
  static constexpr bool is_synchronous = true;

  static host_stream stream() noexcept { return {}; }
  static void upload(std::span<const std::byte> from, std::span<std::byte> to) noexcept {
    std::copy(from.begin(), from.end(), to.begin());
  }
  static void download(std::span<const std::byte> from, std::span<std::byte> to,
                       const stream_waiter& /*ranks*/) noexcept {
    std::copy(from.begin(), from.end(), to.begin());
  }
  /// All work is done.
  static void wait(const stream_waiter& /*ranks*/) noexcept {}
  /// @throws std::invalid_argument if `memory` is not the backend's, as far as it can be known: not on the host
  static void require_memory(const void* /*memory*/, const char* /*what*/) noexcept {}
};

/// Copies a table of the host to the backend's memory.
template <class L, class T>
void upload(const L& on, std::span<const T> from, std::span<T> to) {
  on.upload(std::as_bytes(from), std::as_writable_bytes(to).first(from.size_bytes()));
}

/// Reads one value of the backend's memory. Waits.
template <class L, class T>
T read(const L& on, const T* from, const stream_waiter& ranks) {
  T value;
  on.download(std::as_bytes(std::span(from, 1)), std::as_writable_bytes(std::span(&value, 1)), ranks);
  return value;
}

/// Writes one value.
template <class L, class T>
void write(const L& on, T* to, T value) {
  upload(on, std::span<const T>(&value, 1), std::span<T>(to, 1));
}

}  // namespace slamb::detail
