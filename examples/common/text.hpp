// Text for people: numbers, and tables whose columns never run together.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

namespace programs {

/// Formats as printf does, up to 255 characters.
std::string formatted(const char* format, auto... values) {
  std::array<char, 256> text{};
  std::snprintf(text.data(), text.size(), format, values...);
  return text.data();
}

/// "336,232,258"
inline std::string grouped(std::uint64_t value) {
  std::string text = std::to_string(value);
  for (std::size_t at = text.size(); at > 3;) text.insert(at -= 3, ",");
  return text;
}

/// Rows of cells: the first column is aligned left, the others right, with at least one blank before each.
template <std::size_t Columns>
class text_table {
 public:
  using row = std::array<std::string, Columns>;

  /// @param widths  of the columns, in characters, including the blanks before; a longer cell widens its column
  explicit text_table(const std::array<std::size_t, Columns>& widths) : widths_(widths) {}

  void add(row cells) {
    for (std::size_t i = 0; i < Columns; ++i) widths_[i] = std::max(widths_[i], width_of(cells[i]) + (i == 0 ? 0 : 1));
    rows_.push_back(std::move(cells));
  }

  void write(std::ostream& to) const {
    for (const row& cells : rows_) {
      for (std::size_t i = 0; i < Columns; ++i) {
        const std::string blanks(widths_[i] - width_of(cells[i]), ' ');
        to << (i == 0 ? cells[i] + blanks : blanks + cells[i]);
      }
      to << '\n';
    }
  }

 private:
  /// In characters: of a UTF-8 character of several bytes, only the first byte counts.
  static std::size_t width_of(const std::string& text) {
    return static_cast<std::size_t>(std::ranges::count_if(text, [](char c) { return (c & 0xC0) != 0x80; }));
  }

  std::array<std::size_t, Columns> widths_;
  std::vector<row> rows_;
};

}  // namespace programs
