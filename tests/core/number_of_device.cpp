// A number of a device is found once, and each device has its own.
#include "slamb/core/detail/number_of_device.hpp"

#include <doctest/doctest.h>

#include <stdexcept>
#include <thread>
#include <vector>

namespace core_number_of_device_tests {
namespace {

using slamb::detail::number_of_device;

constexpr int devices = static_cast<int>(number_of_device::devices);

}  // namespace

TEST_CASE("number_of_device: it is found once for each device, which has its own") {
  static number_of_device number;
  int searches = 0;
  const auto of = [&](int device) { return number(device, [&] { return ++searches, 10 + device; }); };
  for (int turn = 0; turn < 3; ++turn)
    for (int device = 0; device < devices; ++device) CHECK(of(device) == 10 + device);
  CHECK(searches == devices);
  CHECK(of(devices) == 10 + devices);
  CHECK(of(devices) == 10 + devices);
  CHECK(searches == devices + 2);
}

TEST_CASE("number_of_device: a search that fails is repeated") {
  static number_of_device number;
  CHECK_THROWS_AS(number(1, []() -> int { throw std::runtime_error("no device"); }), std::runtime_error);
  CHECK(number(1, [] { return 7; }) == 7);
  CHECK(number(1, [] { return 8; }) == 7);
}

TEST_CASE("number_of_device: threads that search at the same time find the same") {
  static number_of_device number;
  std::vector<int> found(4);
  std::vector<std::thread> threads;
  for (int& own : found)
    threads.emplace_back([&own] {
      for (int device = 0; device < devices; ++device) own += number(device, [device] { return 1 + device; });
    });
  for (std::thread& thread : threads) thread.join();
  CHECK(found == std::vector<int>(4, devices * (devices + 1) / 2));
}

}  // namespace core_number_of_device_tests
