// Memory that is not available: the error names the bytes and their use, and comes before anything large is constructed.
#include <doctest/doctest.h>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <new>
#include <span>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "slamb/detail/pass/arena.hpp"
#include "slamb/slamb.hpp"
#include "support/replica.hpp"
#include "support/said.hpp"

namespace faults_out_of_memory_tests {
namespace {

using test_support::contains;
using test_support::replica;

static_assert(std::is_base_of_v<std::bad_alloc, slamb::out_of_memory>);
static_assert(std::is_nothrow_copy_constructible_v<slamb::out_of_memory>);
static_assert(std::is_nothrow_copy_assignable_v<slamb::out_of_memory>);
static_assert(std::is_nothrow_move_constructible_v<slamb::out_of_memory>);
static_assert(std::is_nothrow_move_assignable_v<slamb::out_of_memory>);

/// The message of out_of_memory; empty if nothing is thrown.
std::string refusal_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const slamb::out_of_memory& failure) {
    return failure.what();
  }
  return "";
}

/// Never has memory; records the requested sizes.
slamb::allocator empty_allocator(std::vector<std::size_t>& asked) {
  return {.allocate = [&asked](std::size_t bytes) -> void* {
            asked.push_back(bytes);
            throw std::bad_alloc();
          },
          .deallocate = [](void*, std::size_t) {}};
}

/// A tensor at an address without memory, so that nothing may read it.
slamb::parameter unreal(std::uint64_t first_byte, std::uint64_t size) {
  return {.data = std::bit_cast<float*>(first_byte),
          .gradient = std::bit_cast<const float*>((std::uint64_t{1} << 63U) + first_byte),
          .size = size};
}

}  // namespace

TEST_CASE("out of memory: the message has the requested bytes, the largest use first and the padding last") {
  std::vector<std::size_t> asked;
  slamb::detail::arena memory;
  static_cast<void>(memory.plan<double>("sums", 10));
  static_cast<void>(memory.plan<float>("momentum", 100));
  static_cast<void>(memory.plan<float>("residual", 0));
  static_cast<void>(memory.plan<float>("variance", 100));
  static_cast<void>(memory.plan<float>("momentum", 1));
  CHECK(refusal_of([&] { memory.allocate(empty_allocator(asked)); }) ==
        "slamb: 1536 bytes could not be allocated: momentum 404, variance 400, sums 80, padding 652");
  CHECK(asked == std::vector<std::size_t>{1536});
}

TEST_CASE("out of memory: more elements than the address space holds are rejected in planning") {
  slamb::detail::arena memory;
  CHECK(refusal_of([&] { static_cast<void>(memory.plan<float>("momentum", std::uint64_t{1} << 62U)); }) ==
        "slamb: 4611686018427387904 elements of 4 bytes were requested as momentum, but they do not fit the address "
        "space together with earlier requests: nothing");
  static_cast<void>(memory.plan<float>("momentum", std::uint64_t{1} << 60U));
  CHECK(refusal_of([&] { static_cast<void>(memory.plan<float>("variance", std::uint64_t{1} << 60U)); }) ==
        "slamb: 1152921504606846976 elements of 4 bytes were requested as variance, but they do not fit the address "
        "space together with earlier requests: momentum 4611686018427387904");
}

TEST_CASE("out of memory: an allocator's std::bad_alloc is nested, and its other exceptions pass through") {
  struct own_error : std::bad_alloc {
    const char* what() const noexcept override { return "the pool is empty"; }
  };
  const auto planned = [] {
    slamb::detail::arena memory;
    static_cast<void>(memory.plan<float>("momentum", 64));
    return memory;
  };
  const auto free_nothing = [](void*, std::size_t) {};
  std::string nested;
  try {
    planned().allocate({.allocate = [](std::size_t) -> void* { throw own_error(); }, .deallocate = free_nothing});
  } catch (const slamb::out_of_memory& failure) {
    CHECK(std::string(failure.what()) == "slamb: 256 bytes could not be allocated: momentum 256");
    try {
      std::rethrow_if_nested(failure);
    } catch (const own_error& cause) {
      nested = cause.what();
    }
  }
  CHECK(nested == "the pool is empty");

  CHECK(refusal_of([&] {
          planned().allocate({.allocate = [](std::size_t) -> void* { return nullptr; }, .deallocate = free_nothing});
        }) == "slamb: 256 bytes could not be allocated: momentum 256");
  CHECK_THROWS_WITH_AS(planned().allocate({.allocate = [](std::size_t) -> void* { throw std::runtime_error("mine"); },
                                           .deallocate = free_nothing}),
                       "mine", std::runtime_error);
}

TEST_CASE("out of memory: an error that was moved from keeps its message, as copies do") {
  const std::string text = "slamb: 256 bytes could not be allocated: momentum 256";
  slamb::out_of_memory first(text);
  slamb::out_of_memory moved = std::move(first);
  CHECK(moved.what() == text);
  CHECK(first.what() == text);  // NOLINT(bugprone-use-after-move): the test looks at the moved-from object
  slamb::out_of_memory assigned("another");
  assigned = std::move(moved);
  CHECK(assigned.what() == text);
  CHECK(moved.what() == text);  // NOLINT(bugprone-use-after-move)
  const slamb::out_of_memory& same = assigned;
  assigned = same;
  CHECK(assigned.what() == text);
}

TEST_CASE("out of memory: an optimizer names every use of its memory") {
  replica mine({{300}, {9100}}, std::vector<float>(9400, 0.5F));
  const auto check = [&]<class Optimizer>(std::type_identity<Optimizer>) {
    std::vector<std::size_t> asked;
    const slamb::memory_report needed = Optimizer(mine.parameters()).memory();
    const std::string refusal =
        refusal_of([&] { Optimizer(mine.parameters(), {}, {}, {.threads = 1, .memory = empty_allocator(asked)}); });
    CHECK(
        contains(refusal, "slamb: " + std::to_string(needed.total_bytes) + " bytes could not be allocated: momentum "));
    for (const slamb::memory_report::use& use : needed.uses)
      CHECK(contains(refusal + ",", " " + use.purpose + " " + std::to_string(use.bytes) + ",") == (use.bytes > 0));
    CHECK(asked == std::vector<std::size_t>{needed.total_bytes});
  };
  check(std::type_identity<slamb::lamb<>>());
  check(std::type_identity<slamb::slamb<>>());
}

TEST_CASE("out of memory: a model too large for any machine is rejected before its tables are made, and is not read") {
  const std::uint64_t size = std::uint64_t{1} << 50U;  // its tiles alone would take 2 TiB
  const slamb::parameter one = unreal(std::uint64_t{1} << 40U, size);
  const std::string expected =
      "slamb: 9007199254740992 bytes could not be allocated: momentum 4503599627370496, variance 4503599627370496";
  std::vector<std::size_t> asked;
  const slamb::host_backend backend{.threads = 1, .memory = empty_allocator(asked)};
  const std::span<const slamb::parameter> tensors(&one, 1);
  CHECK(refusal_of([&] { slamb::lamb<>(tensors, {}, {}, backend); }) == expected);
  CHECK(refusal_of([&] { slamb::slamb<>(tensors, {}, {}, backend); }) == expected);
  CHECK(refusal_of([&] { slamb::choose<slamb::adamw<>, slamb::slamb<>>(tensors, {}, {}, {}, {}, backend); }) ==
        expected);
  CHECK(asked == std::vector<std::size_t>(3, 8 * size));

  asked.clear();
  const std::vector<slamb::parameter> most{unreal(64, std::uint64_t{1} << 59U),
                                           unreal((std::uint64_t{1} << 62U), std::uint64_t{1} << 58U)};
  CHECK(refusal_of([&] { slamb::lamb<>(most, {}, {}, backend); }) ==
        "slamb: 6917529027641081856 bytes could not be allocated: momentum 3458764513820540928, variance "
        "3458764513820540928");
  CHECK(asked.size() == 1);
  const std::vector<slamb::parameter> more{unreal(64, std::uint64_t{1} << 59U),
                                           unreal((std::uint64_t{1} << 62U), (std::uint64_t{1} << 59U) - 16)};
  CHECK(contains(refusal_of([&] { slamb::lamb<>(more, {}, {}, backend); }),
                 "elements of 4 bytes were requested as variance, but they do not fit the address space"));
  CHECK(asked.size() == 1);
}

}  // namespace faults_out_of_memory_tests
