// Tests of the order in which files reach the disk: a checkpoint must never be there without the files that belong to it, at
// any power failure.
#include <dlfcn.h>
#include <doctest/doctest.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <mutex>
#include <slamb/checkpoint.hpp>
#include <span>
#include <string>
#include <vector>

#include "../checkpoints.hpp"
#include "../training.hpp"
#include "support/files.hpp"

namespace {

namespace fs = std::filesystem;

// Recorded flushes and renames, if a test is recording.
std::vector<std::string>* events = nullptr;
std::mutex one_at_a_time;

void note(const char* what, const std::string& path) {
  const std::lock_guard lock(one_at_a_time);
  if (events != nullptr) events->push_back(what + fs::path(path).filename().string());
}

template <class Function>
Function* of_system(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

}  // namespace

// Replace the system's functions: they record the call, then call the system's function.
extern "C" int fsync(int handle) {
  static int (*const real)(int) = of_system<int(int)>("fsync");
  std::array<char, 4096> path{};
  const ssize_t size = readlink(("/proc/self/fd/" + std::to_string(handle)).c_str(), path.data(), path.size());
  note("flush ", {path.data(), size < 0 ? 0U : static_cast<std::size_t>(size)});
  return real(handle);
}
extern "C" int rename(const char* from, const char* to) noexcept {
  static int (*const real)(const char*, const char*) = of_system<int(const char*, const char*)>("rename");
  note("rename to ", to);
  return real(from, to);
}

namespace {

// An optimizer with a state of a few bytes.
class small_optimizer final : public train::rank_optimizer {
 public:
  void step(double /*learning_rate*/) override {}
  void set_loss_scale(const float* /*scale*/) override {}
  void with_averaged_parameters(const std::function<void()>& evaluate) override { evaluate(); }
  slamb::statistics statistics() const override { return {}; }
  void save(const std::string& path) const override { note("state ", path); }
  void sum_over_ranks(std::span<float> /*values*/) override { note("ranks meet", ""); }
};

// The events recorded during body(), without the numbers in temporary names.
template <class Body>
std::vector<std::string> events_of(const Body& body) {
  std::vector<std::string> all;
  events = &all;
  body();
  events = nullptr;
  for (std::string& event : all)
    if (const std::size_t at = event.find(".partial-"); at != std::string::npos) event.resize(at + 8);
  return all;
}

}  // namespace

TEST_CASE(
    "slamb_train: a rank's progress is on the disk before its state is written, and the folder before the progress") {
  const test_support::temporary_folder root;
  const fs::path parent = root.path() / "run", folder = parent / "slamb-seed1";
  small_optimizer optimizer;
  const std::vector<std::string> made = events_of([&] { const train::rank_checkpoints kept(folder, 0, 1); });
  CHECK(made == std::vector<std::string>{"flush run", "flush " + root.path().filename().string()});
  train::rank_checkpoints kept(folder, 0, 1);
  CHECK(events_of([&] { kept.keep(7, optimizer, {}); }) ==
        std::vector<std::string>{"flush rank0-step7.progress.partial", "rename to rank0-step7.progress",
                                 "flush slamb-seed1", "state rank0-step7.slamb", "ranks meet"});
}

TEST_CASE("save_checkpoint: bytes are on the disk before they get their name, and the name before the call ends") {
  struct few_bytes {
    void save_state(const slamb::byte_sink& to, const slamb::save_options& /*options*/) const {
      to(std::vector<std::byte>(8));
      note("state", "");
    }
  };
  const test_support::temporary_folder root;
  CHECK(events_of([&] { slamb::save_checkpoint(few_bytes{}, (root.path() / "one.slamb").string()); }) ==
        std::vector<std::string>{"state", "flush one.slamb.partial", "rename to one.slamb",
                                 "flush " + root.path().filename().string()});
}

TEST_CASE("slamb_train: the options of a run are on the disk before the run begins") {
  const test_support::temporary_folder root;
  train::settings chosen;
  chosen.checkpoint = (root.path() / "run").string();
  CHECK(events_of([&] { train::prepare_checkpoints(chosen, {}); }) ==
        std::vector<std::string>{"flush " + root.path().filename().string(), "flush settings.txt.partial",
                                 "rename to settings.txt", "flush run"});
}
