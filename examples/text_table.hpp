// A table of text for people, of which the columns never run together.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

/// Rows of cells: the first column is aligned to the left, the others to the right, with a blank at least before each.
template <std::size_t Columns>
class text_table {
 public:
  using row = std::array<std::string, Columns>;

  /// @param widths  of the columns, in characters with the blanks before; a longer cell makes its column wider
  explicit text_table(const std::array<std::size_t, Columns>& widths) : widths_(widths) {}

  void add(row cells) {
    for (std::size_t i = 0; i < Columns; ++i) widths_[i] = std::max(widths_[i], cells[i].size() + (i == 0 ? 0 : 1));
    rows_.push_back(std::move(cells));
  }

  void write(std::ostream& to) const {
    for (const row& cells : rows_) {
      for (std::size_t i = 0; i < Columns; ++i) {
        const std::string blanks(widths_[i] - cells[i].size(), ' ');
        to << (i == 0 ? cells[i] + blanks : blanks + cells[i]);
      }
      to << '\n';
    }
  }

 private:
  std::array<std::size_t, Columns> widths_;
  std::vector<row> rows_;
};
