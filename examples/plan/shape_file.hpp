// Reads shapes of tensors from a text file: one line per tensor, its name and its dimensions.
#pragma once

#include <cerrno>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <istream>
#include <set>
#include <slamb/plan/traffic.hpp>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace plan {

/// An unusable file of shapes. The message names file and line.
class shape_error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

namespace detail {

// The limit for one tensor and for all together: beyond it the bytes over all steps would not fit 64 bits.
constexpr std::uint64_t most_elements = std::uint64_t{1} << 40U;

inline std::uint64_t dimension_of(const std::string& word, const std::string& place) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  if (error != std::errc{} || end != word.data() + word.size() || value < 1 || value > most_elements)
    throw shape_error(place + "'" + word + "' is not a dimension: expected an integer in [1, 2^40]");
  return value;
}

}  // namespace detail

/// Reads lines `name D0 D1 …`. Text after # is a comment; blank lines are ignored.
///
/// @param shown  the file's name, for messages
/// @throws shape_error
inline std::vector<slamb::plan::tensor_shape> read_shapes(std::istream& in, const std::string& shown) {
  std::vector<slamb::plan::tensor_shape> tensors;
  std::set<std::string> names;
  std::uint64_t all = 0;
  std::string line;
  for (std::size_t number = 1; std::getline(in, line); ++number) {
    const std::string place = shown + ":" + std::to_string(number) + ": ";
    std::istringstream words(line.substr(0, line.find('#')));
    std::string name, word;
    if (!(words >> name)) continue;
    if (!names.insert(name).second) throw shape_error(place + "'" + name + "' is listed twice");
    slamb::plan::tensor_shape shape{1, 0, true};
    for (; words >> word; ++shape.dimensions) {
      const std::uint64_t dimension = detail::dimension_of(word, place);
      if (dimension > detail::most_elements / shape.size)
        throw shape_error(place + "'" + name + "' has more than 2^40 elements");
      shape.size *= dimension;
    }
    if (shape.dimensions == 0) throw shape_error(place + "'" + name + "' has no dimensions: expected name D0 D1 ...");
    all += shape.size;
    if (all > detail::most_elements) throw shape_error(place + "the tensors have more than 2^40 elements");
    tensors.push_back(shape);
  }
  if (in.bad()) throw shape_error(shown + ": " + std::strerror(errno));
  if (tensors.empty()) throw shape_error(shown + ": expected at least one line of name D0 D1 ...");
  return tensors;
}

/// Reads the shapes from the file at a path.
inline std::vector<slamb::plan::tensor_shape> read_shapes(const std::filesystem::path& file) {
  if (std::filesystem::is_directory(file)) throw shape_error(file.string() + ": is a directory");
  errno = 0;
  std::ifstream in(file);
  if (!in) throw shape_error(file.string() + ": " + std::strerror(errno));
  return read_shapes(in, file.string());
}

}  // namespace plan
