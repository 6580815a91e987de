// Tests of the data of slamb_train: values that its reader accepts and rejects, the split, the shards, the batches.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "../digits.hpp"

namespace {

std::string row(const std::string& pixel, const std::string& label) {
  std::string text;
  for (int i = 0; i < 64; ++i) text += pixel + ",";
  return text + label;
}

// The message of the data_error for a file with that text.
std::string complaint(const std::string& text) {
  std::istringstream file(text);
  try {
    train::read_digits(file, "some.csv");
  } catch (const train::data_error& error) {
    return error.what();
  }
  return "nothing was thrown";
}

void check_has(const std::string& message, const std::string& part) {
  CAPTURE(message);
  CAPTURE(part);
  CHECK(message.find(part) != std::string::npos);
}

train::digits numbered(std::size_t rows) {
  train::digits all;
  const std::vector<float> image(train::pixels_per_image);
  for (std::size_t i = 0; i < rows; ++i) {
    all.append(image, static_cast<int>(i));
    all.pixels.back() = static_cast<float>(i);
  }
  return all;
}

}  // namespace

TEST_CASE("read_digits: scales pixels to 0...1 and keeps labels") {
  std::istringstream file(row("16", "9") + "\r\n" +
                          row("4", "0"));  // both kinds of line ends; none after the last line
  const train::digits all = train::read_digits(file, "some.csv");
  REQUIRE(all.rows() == 2);
  CHECK(all.labels == std::vector<int>{9, 0});
  CHECK(std::ranges::all_of(all.image(0), [](float x) { return x == 1.0F; }));
  CHECK(std::ranges::all_of(all.image(1), [](float x) { return x == 0.25F; }));
  CHECK(all.image(1).size() == 64);
}

TEST_CASE("read_digits: an error names the file, the line and the expected content") {
  const std::string good = row("0", "1") + "\n";
  CHECK(complaint(good) == "nothing was thrown");
  check_has(complaint(""), "some.csv:1: expected 65 comma-separated integers, found an empty file");
  check_has(complaint(good + "\n"), "some.csv:2: expected 65 comma-separated integers");
  check_has(complaint(good + "\n"), "found an empty line");
  check_has(complaint(good + good + "1,2,3\n"), "some.csv:3: ");
  check_has(complaint(good + "1,2,3\n"), "found 3 fields");
  check_has(complaint("7\n"), "found 1 field");
  check_has(complaint(row("0", "1") + ",\n"), "found 66 fields");
  check_has(complaint(row("0", "10")), "some.csv:1: column 65: expected the label, an integer in 0...9, found '10'");
  check_has(complaint(row("0", "")), "column 65: expected the label, an integer in 0...9, found ''");
  check_has(complaint(row("17", "1")), "column 1: expected a pixel, an integer in 0...16, found '17'");
  check_has(complaint(row("-1", "1")), "found '-1'");
  check_has(complaint(row("1.5", "1")), "found '1.5'");
  check_has(complaint(row(" 1", "1")), "found ' 1'");
  check_has(complaint(row("99999999999999999999", "1")), "found '99999999999999999999'");
  check_has(complaint(row("pixel", "label")), "column 1: expected a pixel, an integer in 0...16, found 'pixel'");
  check_has(complaint(row(std::string("\x01\xFF"), "1")), "found '\?\?'");
  check_has(complaint(row(std::string(100, 'x'), "1")), "'xxxxxxxxxxxxxxxxxxxxxxxx...'");
}

TEST_CASE("read_digits: a folder and a missing file are rejected") {
  const auto complaint_about = [](const std::filesystem::path& path) -> std::string {
    try {
      train::read_digits(path);
    } catch (const train::data_error& error) {
      return error.what();
    }
    return "nothing was thrown";
  };
  check_has(complaint_about(std::filesystem::temp_directory_path()), "expected a CSV file, found a directory");
  check_has(complaint_about("/there/is/no/such.csv"), "/there/is/no/such.csv: could not be opened: No such file");
}

TEST_CASE("digits.csv: is the data set its README describes") {
  const train::digits all = train::read_digits(SLAMB_TRAIN_DATA);
  CHECK(all.rows() == 1797);
  std::map<int, int> of_label;
  for (const int label : all.labels) ++of_label[label];
  CHECK(of_label ==
        std::map<int, int>{
            {0, 178}, {1, 182}, {2, 177}, {3, 183}, {4, 181}, {5, 182}, {6, 181}, {7, 179}, {8, 174}, {9, 180}});
  const train::split_digits parts = train::split(all);
  CHECK(parts.training.rows() == 1437);
  CHECK(parts.test.rows() == 360);
}

TEST_CASE("split: takes each row once, a fifth of them for testing, in shuffled order") {
  const train::split_digits parts = train::split(numbered(101));
  CHECK(parts.training.rows() == 80);
  CHECK(parts.test.rows() == 21);
  std::set<int> seen(parts.training.labels.begin(), parts.training.labels.end());
  seen.insert(parts.test.labels.begin(), parts.test.labels.end());
  CHECK(seen.size() == 101);
  CHECK_FALSE(std::ranges::is_sorted(parts.training.labels));
  for (std::size_t i = 0; i < parts.test.rows(); ++i) {  // pixels stay with their label
    CHECK(parts.test.image(i).back() == static_cast<float>(parts.test.labels[i]));
  }
  CHECK(train::split(numbered(101)).test.labels == parts.test.labels);
}

TEST_CASE("first_of_rank: gives out all rows, and shares differ by at most one") {
  for (const std::size_t count : {0U, 1U, 6U, 7U, 8U, 1437U}) {
    for (const std::size_t ranks : {1U, 2U, 3U, 7U, 8U}) {
      CHECK(train::first_of_rank(count, 0, ranks) == 0);
      CHECK(train::first_of_rank(count, ranks, ranks) == count);
      for (std::size_t rank = 0; rank < ranks; ++rank) {
        const std::size_t share =
            train::first_of_rank(count, rank + 1, ranks) - train::first_of_rank(count, rank, ranks);
        CHECK(share >= count / ranks);
        CHECK(share <= (count + ranks - 1) / ranks);
      }
    }
  }
}

TEST_CASE("batch_sampler: takes each row of its shard once per epoch, each time in a new order") {
  train::batch_sampler sampler(10, 30, train::engine_for(1, 1));
  std::vector<std::vector<std::size_t>> rounds(2);
  for (auto& round : rounds) {
    for (int i = 0; i < 20; ++i) round.push_back(sampler.next());
    const std::set<std::size_t> rows(round.begin(), round.end());
    CHECK(rows.size() == 20);
    CHECK(*rows.begin() == 10);
    CHECK(*rows.rbegin() == 29);
  }
  CHECK(rounds[0] != rounds[1]);
}

TEST_CASE("random numbers of the main job: are pinned, and differ by seed and purpose") {
  std::mt19937_64 standard;  // the C++ standard fixes its 10000th value
  standard.discard(9999);
  CHECK(standard() == 9981545732273789042U);
  CHECK(train::mix(0) == 0xE220A8397B1DCDAFU);  // the first value of SplitMix64 from 0
  CHECK(train::engine_for(1, 0)() != train::engine_for(1, 1)());
  CHECK(train::engine_for(1, 0)() != train::engine_for(2, 0)());
  std::mt19937_64 engine = train::engine_for(3, 0);
  std::vector<int> counts(3);
  for (int i = 0; i < 3000; ++i) ++counts[static_cast<std::size_t>(train::uniform_below(engine, 3))];
  for (const int count : counts) CHECK(std::abs(count - 1000) < 130);  // 5 standard deviations
  for (int i = 0; i < 1000; ++i) CHECK(std::abs(train::uniform_within(engine, 0.5)) <= 0.5);
}
