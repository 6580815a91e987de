// Tests of the reader of traces: its results, and its error messages.
#include "support/trace.hpp"

#include <doctest/doctest.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include "support/files.hpp"
#include "support/record.hpp"
#include "support/said.hpp"

namespace support_tests_trace_tests {
namespace {

using test_support::contains;
using test_support::read_trace;
using test_support::record_trace;
using test_support::temporary_folder;
using test_support::trace;
using test_support::trace_error;

const std::string slamb_text =
    "algorithm slamb\nworld 2\nsteps 3\nlr 0.01\nbeta1 0.9\nbeta2 0.999\neps 1e-06\nweight_decay 0.01\n"
    "rescaling product\nbeta3 0.93\nlocal_steps 2\ndense_below 4\ntrust_min 0.01\ntrust_max 1000.0\n"
    "tensor 3 2\ntensor 5\n";
constexpr std::size_t n = 11;

/// The message of the reader's exception for a folder; empty if it reads the trace.
std::string complaint(const std::filesystem::path& folder) {
  try {
    read_trace(folder);
    return "";
  } catch (const trace_error& error) {
    return error.what();
  }
}

/// The message for a good trace whose text is replaced by this one.
std::string complaint_about(const std::string& text) {
  const temporary_folder folder;
  record_trace(folder.path(), slamb_text, 1);
  test_support::write_file(folder.path() / "trace.txt", text);
  return complaint(folder.path());
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const std::size_t at = text.find(from);
  REQUIRE(at != std::string::npos);
  return text.replace(at, from.size(), to);
}

}  // namespace

TEST_CASE("trace: reads settings, shapes and arrays") {
  const temporary_folder folder;
  record_trace(folder.path(), slamb_text, 1);
  const trace given = read_trace(folder.path());
  CHECK(given.settings.algorithm == "slamb");
  CHECK(given.settings.world == 2);
  CHECK(given.settings.steps == 3);
  CHECK(given.settings.elements == n);
  CHECK(given.settings.shapes == std::vector<std::vector<std::size_t>>{{3, 2}, {5}});
  CHECK(given.settings.size(0) == 6);
  CHECK(given.settings.number("beta3") == 0.93);
  CHECK(given.settings.number("trust_max") == 1000.0);
  CHECK(given.settings.word("rescaling") == "product");
  CHECK(given.settings.number("bias_correction", 7.0) == 7.0);
  CHECK_THROWS_AS(given.settings.number("bias_correction"), trace_error);
  CHECK(given.start == test_support::random_parameters(1, n));
  for (std::size_t step = 0; step < 3; ++step) {
    for (int rank = 0; rank < 2; ++rank) {
      const auto expected = test_support::random_gradient(1, step, rank, n);
      CHECK(test_support::same_bits(given.gradient(step, rank), expected));
    }
    const auto mask = given.mask(step);
    CHECK(std::vector<std::uint8_t>(mask.begin(), mask.end()) == test_support::random_mask(1, step, n, 0.3));
  }
  CHECK(given.after(2, 1).data() == given.expected.data() + 5 * n);
}

TEST_CASE("trace: floats are little-endian") {
  const temporary_folder folder;
  record_trace(folder.path(), slamb_text, 1);
  std::string bytes(n * 4, '\0');
  bytes[2] = static_cast<char>(0x80);
  bytes[3] = static_cast<char>(0x3F);  // 1.0F = 0x3F800000
  test_support::write_file(folder.path() / "params0.f32", bytes);
  CHECK(read_trace(folder.path()).start[0] == 1.0F);
}

TEST_CASE("trace: a tensor may have no dimensions, and a dimension may be 0") {
  const temporary_folder folder;
  record_trace(folder.path(), replaced(slamb_text, "tensor 5\n", "tensor\ntensor 4 0\ntensor 5\n"), 1);
  const trace given = read_trace(folder.path());
  CHECK(given.settings.shapes == std::vector<std::vector<std::size_t>>{{3, 2}, {}, {4, 0}, {5}});
  CHECK(given.settings.size(1) == 1);
  CHECK(given.settings.size(2) == 0);
  CHECK(given.settings.elements == n + 1);
  CHECK(given.start.size() == n + 1);
}

TEST_CASE("trace: the name is the last component of the path") {
  CHECK(test_support::trace_name("a/b/lamb") == "lamb");
  CHECK(test_support::trace_name("a/b/lamb/") == "lamb");
  CHECK(test_support::trace_name("a/b/lamb//") == "lamb");
  CHECK(test_support::trace_name("a/b/./lamb/.") == "lamb");
  CHECK(test_support::trace_name("a/b/x/../lamb/") == "lamb");
  CHECK(test_support::trace_name("lamb") == "lamb");
  CHECK(test_support::trace_name(".") == std::filesystem::current_path().filename().string());
  CHECK(test_support::trace_name("/") == "/");
  CHECK(test_support::trace_name("") == "");
}

TEST_CASE("trace: blank lines, comments, tabs, carriage returns and a missing last newline are tolerated") {
  CHECK(complaint_about("\n# made up\n" + replaced(slamb_text, "world 2\n", "  world\t2  \r\n\r\n")) == "");
  CHECK(complaint_about(slamb_text.substr(0, slamb_text.size() - 1)) == "");
  CHECK(complaint_about(replaced(slamb_text, "trust_max 1000.0", "trust_max inf")) == "");
  CHECK(complaint_about(slamb_text + "bias_correction 0\n") == "");
  CHECK(complaint_about(slamb_text + "warmup_steps 3\n") == "");  // documented, but not used by slamb
}

TEST_CASE("trace: a malformed line is rejected with the file and the line") {
  struct wrong {
    std::string from, to, part;
  };
  const std::vector<wrong> cases{
      {"world 2", "word 2", "trace.txt:2: unknown key `word`"},
      {"world 2", "World 2", "trace.txt:2: unknown key"},
      {"steps 3", "world 2", "trace.txt:3: a second `world`; the first is in line 2"},
      {"lr 0.01", "lr 0.01x", "trace.txt:4: `lr` is `0.01x`, but it must be a number in [0, 3.4e38]"},
      {"lr 0.01", "lr", "trace.txt:4: `lr` has no value"},
      {"lr 0.01", "lr 0.01 0.02", "trace.txt:4: text after the value of `lr`: `0.02`"},
      {"lr 0.01", "lr 0.01 # rate", "trace.txt:4: text after the value of `lr`"},
      {"lr 0.01", "lr 0,01", "trace.txt:4: `lr` is `0,01`, but it must be a number"},
      {"lr 0.01", "lr nan", "trace.txt:4: `lr` is `nan`, but it must be a number"},
      {"lr 0.01", "lr inf", "trace.txt:4: `lr` is `inf`, but it must be a number in [0, 3.4e38]"},
      {"lr 0.01", "lr 1e999", "trace.txt:4: `lr` is `1e999`, but it must be a number"},
      {"lr 0.01", "lr -0.01", "trace.txt:4: `lr` is `-0.01`, but it must be a number in [0, 3.4e38]"},
      {"lr 0.01", "lr 1e39", "trace.txt:4: `lr` is `1e39`, but it must be a number in [0, 3.4e38]"},
      {"beta1 0.9", "beta1 1", "trace.txt:5: `beta1` is `1`, but it must be a number in [0, 1)"},
      {"beta2 0.999", "beta2 -0.1", "trace.txt:6: `beta2` is `-0.1`, but it must be a number in [0, 1)"},
      {"eps 1e-06", "eps 0", "trace.txt:7: `eps` is `0`, but it must be a number in [1.2e-38, 3.4e38]"},
      {"eps 1e-06", "eps 1e-39", "trace.txt:7: `eps` is `1e-39`, but it must be a number in [1.2e-38, 3.4e38]"},
      {"weight_decay 0.01", "weight_decay -1", "trace.txt:8: `weight_decay` is `-1`, but it must be a number in [0, "},
      {"beta3 0.93", "beta3 1.01", "trace.txt:10: `beta3` is `1.01`, but it must be a number in [0, 1]"},
      {"trust_min 0.01", "trust_min inf", "trace.txt:13: `trust_min` is `inf`, but it must be a number in [0, 3.4e38]"},
      {"trust_max 1000.0", "trust_max -1", "trace.txt:14: `trust_max` is `-1`, but it must be a number in [0, inf]"},
      {"trust_max 1000.0", "trust_max 0.001",
       "trace.txt:14: `trust_max` is `0.001`, but it must be a number in [0.01, inf], for `trust_min` is 0.01"},
      {"world 2", "world 0", "trace.txt:2: `world` is `0`, but it must be an integer in [1, 64]"},
      {"world 2", "world -2", "trace.txt:2: `world` is `-2`"},
      {"world 2", "world 2.0", "trace.txt:2: `world` is `2.0`"},
      {"world 2", "world 65",
       "trace.txt:2: `world` is `65`, but it must be an integer in [1, 64], for slamb_replay runs"},
      {"steps 3", "steps 0", "trace.txt:3: `steps` is `0`, but it must be an integer in [1, 2^53]"},
      {"steps 3", "steps 99999999999999999999999", "trace.txt:3: `steps` is `99999999999999999999999`, but it must"},
      {"local_steps 2", "local_steps 0", "trace.txt:11: `local_steps` is `0`, but it must be an integer in [1, 2^53]"},
      {"dense_below 4", "dense_below -1",
       "trace.txt:12: `dense_below` is `-1`, but it must be an integer in [0, 2^53]"},
      {"rescaling product", "rescaling sum", "trace.txt:9: `rescaling` is `sum`, but it must be one of product blend"},
      {"algorithm slamb", "algorithm sgd", "trace.txt:1: `algorithm` is `sgd`, but it must be one of adamw lamb"},
      {"algorithm slamb", "algorithm slam", "trace.txt:1: `algorithm` is `slam`"},
      {"tensor 3 2", "tensor -3 2", "trace.txt:15: `tensor` has `-3`, but a dimension must be an integer in [0, 2^64)"},
      {"tensor 3 2", "tensor 3x2", "trace.txt:15: `tensor` has `3x2`"},
      {"tensor 3 2", "tensor 4294967296 4294967296", "trace.txt:15: the product of the tensor's dimensions overflows"},
      {"tensor 5", "tensor 18446744073709551615", "trace.txt:16: the sum of the tensors' sizes overflows"},
      {"tensor 3 2", "tensors 3 2", "trace.txt:15: unknown key `tensors`"},
      {"world 2", "world 2\nbias_correction yes", "trace.txt:3: `bias_correction` is `yes`, but it must be 0 or 1"},
  };
  for (const wrong& w : cases) {
    const std::string said = complaint_about(replaced(slamb_text, w.from, w.to));
    CAPTURE(w.to);
    CAPTURE(said);
    CHECK(contains(said, w.part));
  }
}

TEST_CASE("trace: a missing line is rejected by its key") {
  for (const std::string key : {"algorithm", "world", "steps", "lr", "beta1", "beta2", "eps", "weight_decay",
                                "rescaling", "beta3", "local_steps", "dense_below", "trust_min", "trust_max"}) {
    std::string text = "\n" + slamb_text;  // every key after a newline: `steps` is not `local_steps`
    const std::size_t at = text.find("\n" + key + " ");
    text.erase(at, text.find('\n', at + 1) - at);
    const std::string said = complaint_about(text);
    CAPTURE(said);
    CHECK(contains(said, "trace.txt:16: ends without a line `" + key + "`"));
  }
  CHECK(contains(complaint_about(slamb_text.substr(0, slamb_text.find("tensor"))), "ends without a line `tensor`"));
  CHECK(contains(complaint_about(""), "trace.txt:1: ends without a line `algorithm`"));
  CHECK(contains(complaint_about(replaced(slamb_text, "slamb", "lamb")), "`bias_correction`, which lamb needs"));
  CHECK(contains(complaint_about(replaced(slamb_text, "slamb", "one_bit_lamb")), "`warmup_steps`"));
  CHECK(contains(complaint_about(replaced(slamb_text, "slamb", "zero_one_adam")), "`scales`"));
}

TEST_CASE("trace: settings beyond the limits are rejected") {
  CHECK(contains(complaint_about(replaced(slamb_text, "tensor 5", "tensor 4611686018427387904")),
                 "params0.f32: [n] = [4611686018427387910] elements of 4 bytes are more than can be counted"));
  const std::string many = replaced(slamb_text, "world 2", "world 64");
  CHECK(contains(complaint_about(replaced(many, "steps 3", "steps 9007199254740992")),
                 "grads.f32: [steps][world][n] = [9007199254740992][64][11] elements of 4 bytes"));
}

TEST_CASE("trace: a missing file or one of another size is rejected by name") {
  const temporary_folder folder;
  record_trace(folder.path(), slamb_text, 1);
  for (const std::string name : {"params0.f32", "grads.f32", "params.f32", "masks.u8"}) {
    const auto path = folder.path() / name;
    const auto kept = folder.path() / "kept";
    const std::uintmax_t size = std::filesystem::file_size(path);
    std::filesystem::copy_file(path, kept);

    std::filesystem::resize_file(path, size - 1);
    CHECK(contains(complaint(folder.path()),
                   name + ": has " + std::to_string(size - 1) + " bytes, but must have " + std::to_string(size)));
    std::filesystem::resize_file(path, size + 4);
    CHECK(contains(complaint(folder.path()), name + ": has " + std::to_string(size + 4) + " bytes"));
    std::filesystem::remove(path);
    CHECK(contains(complaint(folder.path()), name + ": no such file"));
    std::filesystem::create_directory(path);
    CHECK(contains(complaint(folder.path()), name + ": no such file"));
    std::filesystem::remove(path);
    std::filesystem::rename(kept, path);
    CHECK(complaint(folder.path()) == "");
  }
  CHECK(complaint("") == "the name of a trace's folder is empty");
  CHECK(contains(complaint(folder.path() / "nowhere"), "trace.txt: cannot be read"));
  CHECK(contains(complaint(folder.path() / "masks.u8"), "trace.txt: cannot be read"));
}

TEST_CASE("trace: numbers that are not finite and bytes that are not 0 or 1 are rejected by place") {
  const temporary_folder folder;
  record_trace(folder.path(), slamb_text, 1);
  for (const std::string name : {"params0.f32", "grads.f32", "params.f32"}) {
    const trace given = read_trace(folder.path());
    std::vector<float> values = name == "params0.f32" ? given.start
                                : name == "grads.f32" ? given.gradients
                                                      : given.expected;
    const std::vector<float> good = values;
    for (const float bad : {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
      values = good;
      values[7] = bad;
      test_support::write_floats(folder.path() / name, values);
      CHECK(contains(complaint(folder.path()), name + ": element 7 is not finite"));
    }
    test_support::write_floats(folder.path() / name, good);
  }
  std::string mask(3 * n, '\1');
  mask[20] = '\2';
  test_support::write_file(folder.path() / "masks.u8", mask);
  CHECK(contains(complaint(folder.path()), "masks.u8: byte 20 is 2, but it must be 0 or 1"));
  mask[20] = static_cast<char>(0xFF);
  test_support::write_file(folder.path() / "masks.u8", mask);
  CHECK(contains(complaint(folder.path()), "masks.u8: byte 20 is 255"));
}

TEST_CASE("trace: only SLAMB has masks") {
  const temporary_folder folder;
  const std::string text = replaced(slamb_text, "algorithm slamb", "algorithm lamb\nbias_correction 1");
  record_trace(folder.path(), text, 1);
  CHECK_FALSE(std::filesystem::exists(folder.path() / "masks.u8"));
  CHECK(read_trace(folder.path()).masks.empty());
}

}  // namespace support_tests_trace_tests
