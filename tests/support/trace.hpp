// Reads traces. A trace is one run of one optimizer on made-up gradients, with the parameters that every rank must reach.
//
// A trace is a folder of
//   trace.txt      the settings and the tensors' shapes; see trace_text.hpp
//   params0.f32    [n]                 the start, the same at every rank; little-endian float32, tensors end to end
//   grads.f32      [steps][world][n]   each rank's own gradient
//   params.f32     [steps][world][n]   each rank's parameters after each step
//   masks.u8       [steps][n]          slamb only: 1 where the compressor selects the element, else 0
// If a file is missing or malformed, the error names it, with the line or with its actual and expected size.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <span>
#include <string>
#include <system_error>
#include <vector>

#include "trace_text.hpp"

namespace test_support {

/// One trace.
struct trace {
  std::string name;  ///< see `trace_name`
  trace_settings settings;
  std::vector<float> start;         ///< [n]
  std::vector<float> gradients;     ///< [steps][world][n]
  std::vector<float> expected;      ///< [steps][world][n]
  std::vector<std::uint8_t> masks;  ///< [steps][n]; empty unless the algorithm is slamb

  /// Gradient, or parameters afterwards, of one rank at one step (0, 1, …).
  std::span<const float> gradient(std::size_t step, int rank) const { return row(gradients, step, rank); }
  std::span<const float> after(std::size_t step, int rank) const { return row(expected, step, rank); }
  std::span<const std::uint8_t> mask(std::size_t step) const {
    return std::span(masks).subspan(step * start.size(), start.size());
  }

 private:
  std::span<const float> row(const std::vector<float>& all, std::size_t step, int rank) const {
    const std::size_t number = step * static_cast<std::size_t>(settings.world) + static_cast<std::size_t>(rank);
    return std::span(all).subspan(number * start.size(), start.size());
  }
};

namespace detail {

// The bytes of a file that must hold an array of this shape with elements of `width` bytes.
inline std::vector<char> read_bytes(const std::filesystem::path& path, std::initializer_list<std::size_t> shape,
                                    std::size_t width, std::string what) {
  what += " = ";
  std::size_t bytes = width;
  bool fits = true;
  for (const std::size_t extent : shape) {
    what += "[" + std::to_string(extent) + "]";
    fits = multiply(bytes, extent) && fits;
  }
  what += " elements of " + std::to_string(width) + (width == 1 ? " byte" : " bytes");
  if (!fits) throw trace_error(path.string() + ": " + what + " are more than can be counted");
  std::error_code status;
  if (!std::filesystem::is_regular_file(path, status)) throw trace_error(path.string() + ": no such file");
  const std::uintmax_t found = std::filesystem::file_size(path, status);
  if (status) throw trace_error(path.string() + ": " + status.message());
  if (found != bytes)
    throw trace_error(path.string() + ": has " + std::to_string(found) + " bytes, but must have " +
                      std::to_string(bytes) + ": " + what);
  std::vector<char> data(bytes);
  std::ifstream file(path, std::ios::binary);
  if (!file.read(data.data(), static_cast<std::streamsize>(bytes)))
    throw trace_error(path.string() + ": could not be read to its end");
  return data;
}

inline std::vector<float> read_floats(const std::filesystem::path& path, std::initializer_list<std::size_t> shape,
                                      const std::string& what) {
  const std::vector<char> bytes = read_bytes(path, shape, sizeof(float), what);
  std::vector<float> values(bytes.size() / sizeof(float));
  for (std::size_t i = 0; i < values.size(); ++i) {
    std::uint32_t word = 0;
    for (std::size_t b = sizeof(float); b-- > 0;) {  // little-endian on every machine
      word = word << 8 | static_cast<unsigned char>(bytes[sizeof(float) * i + b]);
    }
    values[i] = std::bit_cast<float>(word);
    if (!std::isfinite(values[i]))
      throw trace_error(path.string() + ": element " + std::to_string(i) + " is not finite");
  }
  return values;
}

inline std::vector<std::uint8_t> read_masks(const std::filesystem::path& path,
                                            std::initializer_list<std::size_t> shape) {
  const std::vector<char> bytes = read_bytes(path, shape, 1, "[steps][n]");
  std::vector<std::uint8_t> masks(bytes.size());
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    masks[i] = static_cast<std::uint8_t>(bytes[i]);
    if (masks[i] > 1)
      throw trace_error(path.string() + ": byte " + std::to_string(i) + " is " + std::to_string(masks[i]) +
                        ", but it must be 0 or 1");
  }
  return masks;
}

}  // namespace detail

/// The last component of the folder's path, with or without a trailing slash; the path itself if it has none.
inline std::string trace_name(const std::filesystem::path& folder) {
  std::error_code error;
  const std::filesystem::path whole = std::filesystem::absolute(folder, error).lexically_normal();
  if (error) return folder.string();
  const std::string last = (whole.has_filename() ? whole : whole.parent_path()).filename().string();
  return last.empty() ? folder.string() : last;
}

/// Reads the trace in `folder`.
///
/// @throws trace_error if anything is missing, malformed or of the wrong size.
inline trace read_trace(const std::filesystem::path& folder) {
  if (folder.empty()) throw trace_error("the name of a trace's folder is empty");
  trace result;
  result.name = trace_name(folder);
  result.settings = read_trace_settings(folder / "trace.txt");
  const std::size_t steps = result.settings.steps;
  const auto world = static_cast<std::size_t>(result.settings.world);
  const std::size_t n = result.settings.elements;
  result.start = detail::read_floats(folder / "params0.f32", {n}, "[n]");
  result.gradients = detail::read_floats(folder / "grads.f32", {steps, world, n}, "[steps][world][n]");
  result.expected = detail::read_floats(folder / "params.f32", {steps, world, n}, "[steps][world][n]");
  if (result.settings.algorithm == "slamb") result.masks = detail::read_masks(folder / "masks.u8", {steps, n});
  return result;
}

}  // namespace test_support
