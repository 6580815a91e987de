// A table of text, for people or in Markdown.
#pragma once

#include <algorithm>
#include <cstddef>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

namespace bench {

/// Rows of cells. The first column has names, the others numbers.
class table {
 public:
  explicit table(std::vector<std::string> heads) : rows_{std::move(heads)} {}

  /// @param cells  as many as there are heads
  void add(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }

  void write(std::ostream& to, bool markdown) const {
    for (std::size_t row = 0; row < rows_.size(); ++row) {
      if (markdown)
        write_markdown(to, row);
      else
        write_aligned(to, row);
    }
  }

 private:
  void write_markdown(std::ostream& to, std::size_t row) const {
    to << '|';
    for (const std::string& cell : rows_[row]) to << ' ' << cell << " |";
    to << '\n';
    if (row != 0) return;
    to << "| --- |";
    for (std::size_t i = 1; i < rows_[0].size(); ++i) to << " --: |";
    to << '\n';
  }

  void write_aligned(std::ostream& to, std::size_t row) const {
    for (std::size_t column = 0; column < rows_[row].size(); ++column) {
      std::size_t width = 0;
      for (const auto& each : rows_) width = std::max(width, each[column].size());
      const std::string& cell = rows_[row][column];
      const std::string blanks(width - cell.size(), ' ');
      to << (column == 0 ? cell + blanks : "  " + blanks + cell);
    }
    to << '\n';
  }

  std::vector<std::vector<std::string>> rows_;
};

}  // namespace bench
