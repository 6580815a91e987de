// The data: images of handwritten digits from a CSV file, split into a training set, a test set, and the ranks' shards.
#pragma once

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <istream>
#include <numeric>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "random.hpp"

namespace train {

constexpr std::size_t pixels_per_image = 64;  // 8 × 8
constexpr int largest_pixel = 16;
constexpr std::size_t classes = 10;

/// An unusable data file. The message names the file, the line, and the expected content.
class data_error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Images with their labels.
struct digits {
  std::vector<float> pixels;  ///< [rows × 64], one image after another, 0 … 1
  std::vector<int> labels;    ///< [rows], 0 … 9

  std::size_t rows() const { return labels.size(); }
  std::span<const float> image(std::size_t row) const {
    return std::span(pixels).subspan(row * pixels_per_image, pixels_per_image);
  }
  void append(std::span<const float> image, int label) {
    pixels.insert(pixels.end(), image.begin(), image.end());
    labels.push_back(label);
  }
};

namespace detail {

/// The position of the reader in a file, for its messages.
struct place {
  std::string_view file;
  std::size_t line;

  [[noreturn]] void refuse(const std::string& what) const {
    throw data_error(std::string(file) + ":" + std::to_string(line) + ": " + what);
  }
};

/// The text of a field for a message: short, and without control characters.
inline std::string shown(std::string_view field) {
  constexpr std::size_t longest = 24;
  std::string text;
  for (const char c : field.substr(0, longest)) text += c >= ' ' && c <= '~' ? c : '?';
  return "'" + text + (field.size() > longest ? "...'" : "'");
}

inline int parse_field(std::string_view field, std::size_t column, const place& here) {
  const bool is_label = column == pixels_per_image;
  const int largest = is_label ? static_cast<int>(classes) - 1 : largest_pixel;
  int value = -1;
  const auto [end, error] = std::from_chars(field.data(), field.data() + field.size(), value);
  if (error != std::errc{} || end != field.data() + field.size() || value < 0 || value > largest) {
    here.refuse("column " + std::to_string(column + 1) + ": expected " + (is_label ? "the label" : "a pixel") +
                ", an integer in 0..." + std::to_string(largest) + ", found " + shown(field));
  }
  return value;
}

inline void parse_row(std::string_view line, const place& here, digits& into) {
  const auto fields = static_cast<std::size_t>(std::count(line.begin(), line.end(), ',')) + 1;
  if (line.empty() || fields != pixels_per_image + 1) {
    here.refuse("expected 65 comma-separated integers (64 pixels, 0...16, then the label, 0...9), found " +
                (line.empty() ? "an empty line" : std::to_string(fields) + (fields == 1 ? " field" : " fields")));
  }
  for (std::size_t column = 0; column <= pixels_per_image; ++column) {
    const std::size_t length = std::min(line.find(','), line.size());
    const int value = parse_field(line.substr(0, length), column, here);
    if (column < pixels_per_image) {
      into.pixels.push_back(static_cast<float>(value) / static_cast<float>(largest_pixel));
    } else {
      into.labels.push_back(value);
    }
    line.remove_prefix(std::min(length + 1, line.size()));
  }
}

}  // namespace detail

/// Reads rows of 65 integers, without a header, from `file`. Messages call the file `name`.
///
/// @throws data_error at the first value that is not as expected
inline digits read_digits(std::istream& file, std::string_view name) {
  digits all;
  std::string line;
  std::size_t number = 0;
  while (std::getline(file, line)) {
    if (!line.empty() && line.back() == '\r') line.pop_back();
    detail::parse_row(line, {name, ++number}, all);
  }
  if (file.bad()) detail::place{name, number + 1}.refuse("could not be read");
  if (all.rows() == 0) detail::place{name, 1}.refuse("expected 65 comma-separated integers, found an empty file");
  return all;
}

/// @throws data_error as above, and if `path` is a directory or cannot be opened
inline digits read_digits(const std::filesystem::path& path) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) {
    throw data_error(path.string() + ": expected a CSV file, found a directory");
  }
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  if (!file) throw data_error(path.string() + ": could not be opened: " + std::strerror(errno));
  return read_digits(file, path.string());
}

/// A training set and a test set without a common row.
struct split_digits {
  digits training;
  digits test;
};

/// Every fifth row is for testing, in an order that depends only on the row numbers: the same split for every seed.
inline split_digits split(const digits& all) {
  std::vector<std::size_t> order(all.rows());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(),
            [](std::size_t a, std::size_t b) { return std::pair(mix(a), a) < std::pair(mix(b), b); });
  split_digits parts;
  for (std::size_t i = 0; i < order.size(); ++i) {
    (i % 5 == 0 ? parts.test : parts.training).append(all.image(order[i]), all.labels[order[i]]);
  }
  return parts;
}

/// Divides `count` items among `ranks` as evenly as possible. Returns the number of the first item of `rank`; the items of
/// `rank` end before the first item of rank + 1.
constexpr std::size_t first_of_rank(std::size_t count, std::size_t rank, std::size_t ranks) {
  return count / ranks * rank + std::min(rank, count % ranks);
}

/// The rows of one rank's shard in random order; each row comes once before any row repeats.
class batch_sampler {
 public:
  /// Draws from the rows first … last − 1, at least one row.
  batch_sampler(std::size_t first, std::size_t last, std::mt19937_64 engine)
      : rows_(last - first), next_(rows_.size()), engine_(std::move(engine)) {
    std::iota(rows_.begin(), rows_.end(), first);
  }

  std::size_t next() {
    if (next_ == rows_.size()) {
      shuffle(std::span(rows_), engine_);
      next_ = 0;
    }
    return rows_[next_++];
  }

 private:
  std::vector<std::size_t> rows_;
  std::size_t next_;
  std::mt19937_64 engine_;
};

}  // namespace train
