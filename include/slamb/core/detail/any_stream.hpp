// A stream of any backend, for code that only passes it on.
#pragma once

#include <cstddef>
#include <cstring>
#include <type_traits>

namespace slamb::detail {

/// Holds a stream of any type, by its bytes. Code that neither makes nor reads streams takes this one type.
class any_stream {
 public:
  template <class Stream, class = std::enable_if_t<!std::is_same_v<Stream, any_stream>>>
  any_stream(Stream stream) noexcept {  // NOLINT(google-explicit-constructor): stands for any of them
    static_assert(std::is_trivially_copyable_v<Stream> && sizeof(Stream) <= most_bytes,
                  "slamb: the stream_type of a Backend must be trivially copyable and have at most 16 bytes, as a "
                  "handle has");
    if constexpr (!std::is_empty_v<Stream>) std::memcpy(bytes_, &stream, sizeof(Stream));
  }

  /// The stream. `Stream` must be the type that it was made from.
  template <class Stream>
  Stream as() const noexcept {
    Stream stream{};
    if constexpr (!std::is_empty_v<Stream>) std::memcpy(&stream, bytes_, sizeof(Stream));
    return stream;
  }

 private:
  static constexpr std::size_t most_bytes = 16;

  alignas(std::max_align_t) std::byte bytes_[most_bytes] = {};
};

}  // namespace slamb::detail
