// Tests of the table that slamb_plan and slamb_bench_mpi print.
#include "../../common/text.hpp"

#include <doctest/doctest.h>

#include <sstream>
#include <string>

namespace {

using programs::text_table;

std::string written(const text_table<3>& table) {
  std::ostringstream text;
  table.write(text);
  return text.str();
}

}  // namespace

TEST_CASE("text_table: aligns names to the left and numbers to the right") {
  text_table<3> table({5, 4, 6});
  table.add({"name", "a", "b"});
  table.add({"x", "1.0", "+2 %"});
  CHECK(written(table) ==
        "name    a     b\n"
        "x     1.0  +2 %\n");
}

TEST_CASE("text_table: columns never run together, however long a cell is") {
  text_table<3> table({5, 4, 6});
  table.add({"a longer name", "12.345", "+1801.8 %"});
  table.add({"x", "1.0", "+2 %"});
  CHECK(written(table) ==
        "a longer name 12.345 +1801.8 %\n"
        "x                1.0      +2 %\n");
}
