// Tests that output files of slamb_train are complete or absent.
#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>

#include "../../common/output_file.hpp"
#include "support/files.hpp"

namespace {

namespace fs = std::filesystem;

using test_support::names_in;
using test_support::temporary_folder;
using test_support::text_of_file;

std::string complaint(const fs::path& target) {
  try {
    const programs::output_file file("--json", target);
  } catch (const programs::output_error& error) {
    return error.what();
  }
  return "nothing was thrown";
}

}  // namespace

TEST_CASE("output_file: creates no file before it is written") {
  const temporary_folder folder;
  const programs::output_file file("--json", folder.path() / "a.json");
  CHECK(names_in(folder.path()).empty());
}

TEST_CASE("output_file: appears complete, in one step") {
  const temporary_folder folder;
  const fs::path target = folder.path() / "a.json";
  std::ofstream(target) << "old";
  const programs::output_file file("--json", target);
  file.write([&](std::ostream& out) {
    out << "new" << std::flush;
    CHECK(text_of_file(target) == "old");
    CHECK(names_in(folder.path()).size() == 2);
  });
  CHECK(text_of_file(target) == "new");
  CHECK(names_in(folder.path()).size() == 1);
}

TEST_CASE("output_file: a failure keeps the old file and leaves no other") {
  const temporary_folder folder;
  const fs::path target = folder.path() / "a.json";
  std::ofstream(target) << "old";
  const programs::output_file file("--json", target);
  CHECK_THROWS_WITH(file.write([](std::ostream& out) {
    out << "half" << std::flush;
    throw std::runtime_error("no more");
  }),
                    "no more");
  CHECK_THROWS_AS(file.write([](std::ostream& out) { out.setstate(std::ios::badbit); }), programs::output_error);
  CHECK(text_of_file(target) == "old");
  CHECK(names_in(folder.path()).size() == 1);
}

TEST_CASE("output_file: follows a link to its target") {
  const temporary_folder folder;
  std::ofstream(folder.path() / "real") << "old";
  fs::create_symlink("real", folder.path() / "link");
  programs::output_file("--csv", folder.path() / "link").write([](std::ostream& out) { out << "new"; });
  CHECK(fs::is_symlink(folder.path() / "link"));
  CHECK(text_of_file(folder.path() / "real") == "new");

  fs::create_symlink("later", folder.path() / "first");  // a link to a link to a file that does not exist yet
  fs::create_symlink("made", folder.path() / "later");
  programs::output_file("--csv", folder.path() / "first").write([](std::ostream& out) { out << "new"; });
  CHECK(fs::is_symlink(folder.path() / "first"));
  CHECK(fs::is_symlink(folder.path() / "later"));
  CHECK(text_of_file(folder.path() / "made") == "new");

  fs::create_symlink("circle", folder.path() / "circle");
  CHECK(complaint(folder.path() / "circle").find("cannot be written") != std::string::npos);
}

TEST_CASE("output_file: an error names the option, the file and the reason") {
  const temporary_folder folder;
  CHECK(complaint(folder.path() / "a") == "nothing was thrown");
  CHECK(complaint(folder.path()) == "--json: " + folder.path().string() + " cannot be written: is a directory");
  CHECK(complaint("/dev/null") == "--json: /dev/null cannot be written: is not a regular file");
  const fs::path nowhere = folder.path() / "none" / "a";
  CHECK(complaint(nowhere) == "--json: " + nowhere.string() + " cannot be written: No such file or directory");
  CHECK(names_in(folder.path()).empty());
}
