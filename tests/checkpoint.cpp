// States in pieces and in files: equal bytes to a state in memory, files that are either complete or absent, and sources that
// are checked before anything changes.
#include "slamb/checkpoint.hpp"

#include <doctest/doctest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "slamb/slamb.hpp"
#include "support/every_recipe.hpp"
#include "support/files.hpp"
#include "support/said.hpp"
#include "support/saved_training.hpp"

namespace checkpoint_tests {
namespace {

using slamb::byte_sink;
using slamb::byte_source;
using slamb::load_checkpoint;
using slamb::save_checkpoint;
using slamb::thread_communicator;
using slamb::detail::state_piece_bytes;
using slamb::detail::state_text_bytes;
using test_support::checkpoint;
using test_support::checkpoints;
using test_support::contains;
using test_support::lonely_rank;
using test_support::made_optimizer;
using test_support::make_one;
using test_support::maker_of;
using test_support::model;
using test_support::names_in;
using test_support::read_file;
using test_support::replica;
using test_support::said_by;
using test_support::temporary_folder;
using test_support::write_file;

using lamb = slamb::lamb<thread_communicator>;
using sparse = slamb::slamb<thread_communicator>;
using zero_one = slamb::zero_one_adam<thread_communicator>;

using bytes = std::vector<std::byte>;

/// Collects the pieces of a state.
struct collected {
  bytes all{};
  std::vector<std::size_t> pieces{};

  byte_sink sink() {
    return [this](std::span<const std::byte> piece) {
      all.insert(all.end(), piece.begin(), piece.end());
      pieces.push_back(piece.size());
    };
  }
};

std::string text_of(std::span<const std::byte> state) {
  const std::span<const std::byte> text = state.first(state_text_bytes);
  return {reinterpret_cast<const char*>(text.data()), text.size()};
}

/// Calls it in a child process. Returns its result, or 100 plus the signal that killed the child.
template <class Call>
int in_a_child(const Call& call) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(call());
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  return WIFSIGNALED(status) ? 100 + WTERMSIG(status) : WEXITSTATUS(status);
}

/// Permissions from a mode of chmod.
std::filesystem::perms mode_of(unsigned mode) { return static_cast<std::filesystem::perms>(mode); }

/// A rank whose state has several pieces.
lonely_rank large_rank(std::uint64_t steps) {
  lonely_rank run({{700'000}, {33}}, maker_of<lamb>({}));
  for (std::uint64_t t = 0; t < steps; ++t) run.step(t);
  return run;
}

/// Bytes in memory that change, or are missing, at the second reading.
byte_source unreliable(bytes& saved, std::uint64_t spoiled, const std::function<void()>& spoil) {
  return {saved.size(), [&saved, spoiled, spoil, readings = 0](std::uint64_t first, std::span<std::byte> to) mutable {
            if (first == 0) ++readings;
            if (readings == 2 && first <= spoiled && spoiled < first + to.size()) spoil();
            std::copy_n(saved.begin() + static_cast<std::ptrdiff_t>(first), to.size(), to.begin());
          }};
}

}  // namespace

TEST_CASE("checkpoint: a state in pieces has the bytes of save_state(), for every recipe") {
  for (const test_support::recipe& m : test_support::every_recipe()) {
    CAPTURE(m.name);
    lonely_rank run({{5}, {9000}, {0}}, m.make);
    for (std::uint64_t t = 0; t < 7; ++t) run.step(t);
    collected state;
    run.optimizer().save_state(state.sink());
    CHECK(state.all == run.optimizer().save_state());
    CHECK(state.pieces == std::vector<std::size_t>{state.all.size()});

    lonely_rank other({{5}, {9000}, {0}}, m.make);
    other.optimizer().load_state(slamb::detail::source_in(state.all));
    CHECK(other.now().state == state.all);
    CHECK(other.now().values != run.now().values);  // parameters belong to the user; load_state does not restore them
  }
}

TEST_CASE("checkpoint: pieces are 4 MiB except the last, and no read is larger") {
  lonely_rank run = large_rank(2);
  collected state;
  run.optimizer().save_state(state.sink());
  CHECK(state.all == run.optimizer().save_state());
  REQUIRE(state.pieces.size() == 2);
  CHECK(state.pieces[0] == state_piece_bytes);
  CHECK(state.pieces[1] < state_piece_bytes);

  std::size_t largest = 0;
  byte_source from = slamb::detail::source_in(state.all);
  from.read = [&largest, read = from.read](std::uint64_t first, std::span<std::byte> to) {
    largest = std::max(largest, to.size());
    read(first, to);
  };
  lonely_rank other = large_rank(0);
  other.optimizer().load_state(from);
  CHECK(other.now().state == state.all);
  CHECK(largest == state_piece_bytes);
}

TEST_CASE("checkpoint: a sink that throws ends the saving, and training continues unchanged") {
  lonely_rank run = large_rank(2), undisturbed = large_rank(2);
  for (const std::size_t pieces : {0U, 1U}) {
    CAPTURE(pieces);
    std::size_t taken = 0;
    const byte_sink sink = [&](std::span<const std::byte> /*piece*/) {
      if (taken++ == pieces) throw std::runtime_error("the sink is full");
    };
    CHECK(said_by<std::runtime_error>([&] { run.optimizer().save_state(sink); }) == "the sink is full");
    CHECK(taken == pieces + 1);
  }
  run.step(2);
  undisturbed.step(2);
  CHECK(run.now() == undisturbed.now());
}

TEST_CASE("checkpoint: a state with parameters contains the state without them, and they are restored or ignored") {
  const model tensors{{5}, {0}, {9000}};
  lonely_rank run(tensors, maker_of<lamb>({}));
  for (std::uint64_t t = 0; t < 3; ++t) run.step(t);
  collected state;
  run.optimizer().save_state(state.sink(), {.with_parameters = true});
  CHECK(state.all.size() == run.now().state.size() + 3 * sizeof(slamb::detail::part_header) + 24 + 36000);
  CHECK(contains(text_of(state.all), "parameters  saved\n"));
  CHECK(contains(text_of(run.now().state), "parameters  not saved\n"));

  lonely_rank other(tensors, maker_of<lamb>({}));
  const std::vector<float> own = other.now().values;
  REQUIRE(own != run.now().values);
  CHECK(other.load(state.all, {.parameters = false}).empty());
  CHECK(other.now().state == run.now().state);
  CHECK(other.now().values == own);
  CHECK(other.load(state.all).empty());
  CHECK(other.now() == run.now());

  lonely_rank others({{5}, {9000}, {0}}, maker_of<lamb>({}));
  CHECK(contains(others.refusal(state.all), "other sizes of tensors"));
  for (std::size_t at = 0; at < state.all.size(); at += 89) {
    bytes flipped = state.all;
    flipped[at] ^= std::byte{1};
    if (!contains(other.refusal(flipped), "slamb: load_state() was given ")) FAIL_CHECK("byte " << at);
  }
}

TEST_CASE("checkpoint: begins with text that names the optimizer and the rank") {
  const model tensors{{5}, {33}};
  lonely_rank run(tensors, maker_of<lamb>({}));
  for (std::uint64_t t = 0; t < 3; ++t) run.step(t);
  const bytes state = run.now().state;
  const std::string text = text_of(state);
  const std::string expected =
      "slamb saved state, format 2\n"
      "optimizer   basic_lamb\n"
      "policies    lamb_options<no_compressor, no_error_feedback, layerwise_trust_ratio>\n"
      "rank        0 of 1\n"
      "step        3\n"
      "tensors     2, of 38 elements\n"
      "parameters  not saved\n"
      "bytes       " +
      std::to_string(state.size()) +
      ", of which these 512 are text\n"
      "saved by    slamb " +
      std::to_string(SLAMB_VERSION_MAJOR) + "." + std::to_string(SLAMB_VERSION_MINOR) + "." +
      std::to_string(SLAMB_VERSION_PATCH) + "\n";
  CHECK(text.substr(0, expected.size()) == expected);
  CHECK(text.substr(expected.size()) == std::string(state_text_bytes - expected.size() - 1, ' ') + '\n');

  const std::string long_name(600, 'x');
  const std::string cut = slamb::detail::text_of_state({"basic_lamb", long_name}, {}, {});
  CHECK(cut.size() == state_text_bytes);
  CHECK(contains(cut, "xxx...\nrank "));
  CHECK(contains(cut, "\nsaved by    slamb "));
  CHECK(cut.back() == '\n');
}

TEST_CASE("checkpoint: after a source changes or fails in the second reading, the optimizer takes no step") {
  const model tensors{{5}, {9000}};
  lonely_rank run(tensors, maker_of<lamb>({}));
  for (std::uint64_t t = 0; t < 5; ++t) run.step(t);
  const bytes whole = run.now().state;
  for (const bool fails : {false, true}) {
    for (const std::size_t at : {std::size_t{3}, state_text_bytes + 9, state_text_bytes + 60, whole.size() / 2}) {
      CAPTURE(fails);
      CAPTURE(at);
      lonely_rank other(tensors, maker_of<lamb>({}));
      other.step(1);
      bytes saved = whole;
      const byte_source from = unreliable(saved, at, [&] {
        if (fails) throw slamb::file_error("the file is gone");
        saved[at] ^= std::byte{1};
      });
      const std::string said = said_by<slamb::error>([&] { other.optimizer().load_state(from); });
      CHECK(contains(said, fails ? "the file is gone"
                                 : "slamb: load_state() was given a state that was changed while it was read"));
      for (const auto& [name, call] : std::vector<std::pair<std::string, std::function<void()>>>{
               {"step()", [&] { other.step(0); }},
               {"begin_step()", [&] { other.optimizer().begin_step(0.1); }},
               {"synchronize_parameters()", [&] { other.optimizer().synchronize_parameters(); }},
               {"broadcast_parameters()", [&] { other.optimizer().broadcast_parameters(); }},
               {"with_averaged_parameters()", [&] { other.optimizer().with_averaged_parameters([] {}); }},
               {"set_steps()", [&] { other.optimizer().set_steps(3); }},
               {"save_state()", [&] { static_cast<void>(other.optimizer().save_state()); }}})
        CHECK(said_by<std::logic_error>(call) == "slamb: " + name +
                                                     " was called after a load_state() that failed halfway, so a part "
                                                     "of the state belongs to another step; load a state first");
      CHECK(other.load(std::span(whole).first(whole.size() - 8)) != "");  // another failed load does not help
      CHECK(other.load(whole).empty());
      CHECK(other.now().state == whole);
      other.step(5);
    }
  }
}

TEST_CASE("checkpoint: a source that fails in the first reading changes nothing") {
  lonely_rank run({{5}, {9000}}, maker_of<lamb>({}));
  run.step(0);
  const bytes state = run.now().state;
  lonely_rank other({{5}, {9000}}, maker_of<lamb>({}));
  const checkpoint before = other.now();
  byte_source from = slamb::detail::source_in(state);
  from.read = [](std::uint64_t, std::span<std::byte>) { throw slamb::file_error("no disk"); };
  CHECK(said_by<slamb::error>([&] { other.optimizer().load_state(from); }) == "no disk");
  CHECK(other.now() == before);
  CHECK_NOTHROW(other.step(0));
}

TEST_CASE("checkpoint: every recipe resumes from a file with the same bits, including parameters") {
  const model tensors{{17}, {9000}, {0}, {300}};
  const test_support::experiment e = test_support::make_experiment(tensors, 77, 3, 12);
  for (const test_support::recipe& m : test_support::every_recipe()) {
    CAPTURE(m.name);
    const test_support::course whole = test_support::train_saving(e, m.make);
    for (const std::size_t when : {0U, 4U, 9U}) {
      CAPTURE(when);
      const temporary_folder folder;
      const auto path = [&](std::size_t rank) { return (folder.path() / ("rank" + std::to_string(rank))).string(); };
      slamb::run_ranks(3, [&, when = when](thread_communicator communicator) {
        const auto rank = static_cast<std::size_t>(communicator.rank());
        replica mine(e.tensors, e.start);
        made_optimizer run = make_one(m.make, mine.parameters(), std::move(communicator));
        for (std::size_t t = 0; t < when; ++t) {
          mine.set_gradient(e.gradients[t][rank]);
          run.step(e.rates[t]);
        }
        save_checkpoint(run, path(rank));
      });
      checkpoints resumed(3);
      slamb::run_ranks(3, [&, when = when](thread_communicator communicator) {
        const auto rank = static_cast<std::size_t>(communicator.rank());
        replica mine(e.tensors, std::vector<float>(e.start.size(), 9.0F));
        made_optimizer run = make_one(m.make, mine.parameters(), std::move(communicator));
        load_checkpoint(run, path(rank));
        for (std::size_t t = when; t < e.steps(); ++t) {
          mine.set_gradient(e.gradients[t][rank]);
          run.step(e.rates[t]);
        }
        resumed[rank] = {run.save_state(), mine.values()};
      });
      CHECK(resumed == whole.at.back());
      CHECK(names_in(folder.path()) == std::vector<std::string>{"rank0", "rank1", "rank2"});
    }
  }
}

TEST_CASE("checkpoint: a file has the bytes of save_state with the same options, and replaces an older file") {
  const temporary_folder folder;
  const std::string path = (folder.path() / "one.slamb").string();
  lonely_rank run({{5}, {33}}, maker_of<lamb>({}));
  write_file(path, bytes(100'000, std::byte{7}));
  for (const bool with_parameters : {true, false}) {
    run.step(1);
    collected expected;
    run.optimizer().save_state(expected.sink(), {.with_parameters = with_parameters});
    if (with_parameters)
      save_checkpoint(run.optimizer(), path);
    else
      save_checkpoint(run.optimizer(), path, {.with_parameters = false});
    CHECK(read_file(path) == expected.all);
    CHECK(names_in(folder.path()) == std::vector<std::string>{"one.slamb"});
  }
  const std::string link = (folder.path() / "latest").string();
  std::filesystem::create_symlink("one.slamb", link);
  run.step(2);
  save_checkpoint(run.optimizer(), link);
  CHECK(std::filesystem::is_symlink(link));
  lonely_rank other({{5}, {33}}, maker_of<lamb>({}));
  load_checkpoint(other.optimizer(), path);
  CHECK(other.now() == run.now());
}

TEST_CASE("checkpoint: an error names the file that cannot be written and the reason, and the old file stays") {
  const temporary_folder folder;
  const std::string path = (folder.path() / "one.slamb").string();
  lonely_rank run({{5}, {33}}, maker_of<lamb>({}));
  const auto said = [&run](const std::string& where) {
    return said_by<slamb::file_error>([&] { save_checkpoint(run.optimizer(), where); });
  };
  const std::string no_folder = (folder.path() / "none" / "one.slamb").string();
  CHECK(said(no_folder) == "slamb: save_checkpoint() cannot write " + no_folder + ": No such file or directory");
  const std::string of_folder = folder.path().string();
  CHECK(said(of_folder) == "slamb: save_checkpoint() cannot write " + of_folder + ": it is not a regular file");
  CHECK(said("/dev/full") == "slamb: save_checkpoint() cannot write /dev/full: it is not a regular file");
  CHECK(said("") == "slamb: save_checkpoint() cannot write : No such file or directory");
  CHECK(names_in(folder.path()).empty());
  CHECK(said(path) == "nothing was thrown");

  const bytes old = read_file(path);
  run.step(0);
  std::filesystem::permissions(folder.path(), mode_of(0555));  // readable by all, writable by none
  CHECK(in_a_child([&] {
          if (::geteuid() == 0 && ::seteuid(65534) != 0) return 2;  // because root may write everywhere
          if (!std::filesystem::exists(path)) return 3;
          return said(path) == "slamb: save_checkpoint() cannot write " + path + ": Permission denied" ? 0 : 1;
        }) == 0);
  std::filesystem::permissions(folder.path(), mode_of(0700));
  CHECK(read_file(path) == old);
  CHECK(names_in(folder.path()) == std::vector<std::string>{"one.slamb"});
  CHECK(said(path) == "nothing was thrown");
  CHECK(read_file(path) != old);
}

TEST_CASE("checkpoint: a link is followed to its target, existing or not") {
  const temporary_folder folder;
  const auto path = [&folder](const char* name) { return (folder.path() / name).string(); };
  lonely_rank run({{5}, {33}}, maker_of<lamb>({})), other({{5}, {33}}, maker_of<lamb>({}));
  std::filesystem::create_directory(path("disk"));
  std::filesystem::create_symlink("disk/one.slamb", path("latest"));
  std::filesystem::create_symlink("latest", path("first"));
  std::filesystem::create_symlink(path("disk/far.slamb"), path("disk/absolute"));
  for (const auto& named : std::vector<std::pair<const char*, const char*>>{
           {"first", "disk/one.slamb"}, {"latest", "disk/one.slamb"}, {"disk/absolute", "disk/far.slamb"}}) {
    const char *const link = named.first, *const target = named.second;
    CAPTURE(link);
    run.step(1);
    save_checkpoint(run.optimizer(), path(link));
    CHECK(std::filesystem::is_symlink(path(link)));
    CHECK(std::filesystem::symlink_status(path(target)).type() == std::filesystem::file_type::regular);
    load_checkpoint(other.optimizer(), path(target));
    CHECK(other.now() == run.now());
  }
  CHECK(names_in(path("disk")) == std::vector<std::string>{"absolute", "far.slamb", "one.slamb"});
  CHECK(names_in(folder.path()) == std::vector<std::string>{"disk", "first", "latest"});

  const auto said = [&](const char* name) {
    return said_by<slamb::file_error>([&] { save_checkpoint(run.optimizer(), path(name)); });
  };
  std::filesystem::create_symlink("circle", path("circle"));
  std::filesystem::create_symlink("none/one.slamb", path("astray"));
  CHECK(said("circle") ==
        "slamb: save_checkpoint() cannot write " + path("circle") + ": Too many levels of symbolic links");
  CHECK(said("astray") == "slamb: save_checkpoint() cannot write " + path("astray") + ": No such file or directory");
  CHECK(std::filesystem::is_symlink(path("astray")));
}

TEST_CASE("checkpoint: a new file has the permissions of the file that it replaces, from the first byte on") {
  const temporary_folder folder;
  const std::string path = (folder.path() / "one.slamb").string();
  const auto modes = [&folder] {
    std::vector<std::filesystem::perms> all;
    for (const std::string& name : names_in(folder.path()))
      all.push_back(std::filesystem::status(folder.path() / name).permissions());
    return all;
  };
  struct looking {
    std::function<void()> look;
    void save_state(const byte_sink& to, const slamb::save_options& /*options*/) const {
      look();
      to(bytes(1000));
    }
  };
  const ::mode_t mask = ::umask(022);
  save_checkpoint(looking{[] {}}, path);
  CHECK(modes() == std::vector{mode_of(0644)});  // the default mode of new files
  for (const unsigned mode : {0600U, 0660U, 0400U, 0644U}) {
    CAPTURE(mode);
    std::filesystem::permissions(path, mode_of(mode));
    std::vector<std::filesystem::perms> then;
    save_checkpoint(looking{[&] { then = modes(); }}, path);
    CHECK(then == std::vector{mode_of(mode), mode_of(mode)});  // the old file, and the one being written
    CHECK(modes() == std::vector{mode_of(mode)});
  }
  ::umask(mask);
}

TEST_CASE("checkpoint: threads that save to one path at once leave one complete file") {
  struct numbered {
    std::byte number;
    void save_state(const byte_sink& to, const slamb::save_options& /*options*/) const {
      for (int piece = 0; piece < 8; ++piece) to(bytes(500, number));
    }
  };
  const temporary_folder folder;
  const std::string path = (folder.path() / "one.slamb").string();
  constexpr int threads = 4, times = 100;
  std::barrier all(threads);
  std::atomic<int> failed{0}, mixed{0};
  {
    std::vector<std::jthread> savers;
    for (int i = 1; i <= threads; ++i)
      savers.emplace_back([&, i] {
        for (int time = 0; time < times; ++time) {
          all.arrive_and_wait();
          if (said_by<std::exception>([&] { save_checkpoint(numbered{std::byte(i)}, path); }) != "nothing was thrown")
            ++failed;
          const bytes now = read_file(path);
          if (now.size() != 4000 || now != bytes(4000, now[0])) ++mixed;
        }
      });
  }
  CHECK(failed == 0);
  CHECK(mixed == 0);
  CHECK(names_in(folder.path()) == std::vector<std::string>{"one.slamb"});
}

TEST_CASE("checkpoint: files left by another process with the same number are not touched") {
  const temporary_folder folder;
  const std::string path = (folder.path() / "one.slamb").string();
  const auto left = [&](int i) { return path + ".partial-" + std::to_string(::getpid()) + "-" + std::to_string(i); };
  constexpr int all = 3000;
  for (int i = 0; i < all; ++i) write_file(left(i), bytes(1, std::byte{9}));
  lonely_rank run({{5}}, maker_of<lamb>({}));
  save_checkpoint(run.optimizer(), path);
  CHECK(names_in(folder.path()).size() == all + 1);
  for (int i = 0; i < all; ++i)
    if (read_file(left(i)) != bytes(1, std::byte{9})) FAIL_CHECK("left over " << i);
  CHECK_NOTHROW(load_checkpoint(run.optimizer(), path));
}

// A limit on the size of the process's files stands in for a full disk, and its signal for a process that is killed.
TEST_CASE("checkpoint: a full disk or a process that is killed while it writes leaves the old file unchanged") {
  const temporary_folder folder;
  const std::string path = (folder.path() / "one.slamb").string();
  const model tensors{{5}, {9000}};
  lonely_rank run(tensors, maker_of<lamb>({}));
  run.step(0);
  save_checkpoint(run.optimizer(), path);
  const bytes old = read_file(path);
  // Writes in a process that may write at most that many bytes of a file.
  const auto write_at_most = [&](std::uint64_t most, bool is_killed) {
    return in_a_child([&] {
      lonely_rank own(tensors, maker_of<lamb>({}));  // an optimizer belongs to its process
      own.step(0);
      own.step(1);
      const rlimit limit{most, most}, no_core{0, 0};
      ::setrlimit(RLIMIT_CORE, &no_core);
      ::setrlimit(RLIMIT_FSIZE, &limit);
      ::signal(SIGXFSZ, is_killed ? SIG_DFL : SIG_IGN);
      const std::string said = said_by<slamb::file_error>([&] { save_checkpoint(own.optimizer(), path); });
      if (said == "nothing was thrown") return 0;
      return said == "slamb: save_checkpoint() cannot write " + path + ": File too large" ? 1 : 2;
    });
  };
  for (const std::uint64_t most :
       {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{512}, std::uint64_t{40'000}, std::uint64_t{old.size() - 1}}) {
    CAPTURE(most);
    CHECK(write_at_most(most, false) == 1);
    CHECK(read_file(path) == old);
    CHECK(names_in(folder.path()) == std::vector<std::string>{"one.slamb"});
    CHECK(write_at_most(most, true) == 100 + SIGXFSZ);
    CHECK(read_file(path) == old);
    const std::vector<std::string> left = names_in(folder.path());
    REQUIRE(left.size() == 2);
    CHECK(left[1].starts_with("one.slamb.partial-"));
    std::filesystem::remove(folder.path() / left[1]);
    lonely_rank other(tensors, maker_of<lamb>({}));
    CHECK_NOTHROW(load_checkpoint(other.optimizer(), path));
  }
  CHECK(write_at_most(old.size(), true) == 0);
  CHECK(read_file(path) != old);
  CHECK(names_in(folder.path()) == std::vector<std::string>{"one.slamb"});
}

TEST_CASE("checkpoint: if saving the optimizer fails, the old file stays") {
  struct failing {
    void save_state(const byte_sink& to, const slamb::save_options& /*options*/) const {
      to(bytes(1000));
      throw slamb::communicator_error("a peer is gone");
    }
  };
  const temporary_folder folder;
  const std::string path = (folder.path() / "one.slamb").string();
  write_file(path, bytes(10, std::byte{3}));
  CHECK(said_by<slamb::communicator_error>([&] { save_checkpoint(failing{}, path); }) == "a peer is gone");
  CHECK(read_file(path) == bytes(10, std::byte{3}));
  CHECK(names_in(folder.path()) == std::vector<std::string>{"one.slamb"});
}

TEST_CASE("checkpoint: a file of another optimizer is rejected by name, and nothing changes") {
  const temporary_folder folder;
  const std::string path = (folder.path() / "one.slamb").string();
  const model tensors{{5}, {33}};
  lonely_rank run(tensors, maker_of<lamb>({}));
  run.step(0);
  save_checkpoint(run.optimizer(), path);
  const bytes whole = read_file(path);
  lonely_rank other(tensors, maker_of<lamb>({}));
  const checkpoint before = other.now();
  const auto said = [&](made_optimizer& by, const slamb::restore_options& options = {}) {
    return said_by<std::invalid_argument>([&] { load_checkpoint(by, path, options); });
  };
  const std::string given = "slamb: load_checkpoint() was given " + path + ", which holds ";
  for (std::size_t size = 0; size < whole.size(); size += 41) {
    write_file(path, std::span(whole).first(size));
    if (!said(other.optimizer()).starts_with(given)) FAIL_CHECK("size " << size);
  }
  for (std::size_t at = 0; at < whole.size(); at += 13) {
    bytes flipped = whole;
    flipped[at] ^= std::byte{16};
    write_file(path, flipped);
    if (!said(other.optimizer()).starts_with(given)) FAIL_CHECK("byte " << at);
  }
  CHECK(said(other.optimizer()).starts_with(given + "a state whose bytes have changed since it was saved"));
  CHECK(other.now() == before);
  write_file(path, whole);
  lonely_rank adam(tensors, maker_of<zero_one>({}));
  CHECK(said(adam.optimizer()) ==
        given + "the state of another optimizer; it must be a state of basic_zero_one_adam with the same policies");
  save_checkpoint(run.optimizer(), path, {.with_parameters = false});
  CHECK(said(other.optimizer()) ==
        given + "a state without the parameters; restore them yourself, and pass restore_options{.parameters = false}");
  CHECK(other.now() == before);
  CHECK(said(other.optimizer(), {.parameters = false}) == "nothing was thrown");
  CHECK(other.now().state == run.now().state);
  CHECK(other.now().values == before.values);
}

TEST_CASE("checkpoint: an error names the file that cannot be read and the reason") {
  const temporary_folder folder;
  lonely_rank run({{5}, {33}}, maker_of<lamb>({}));
  const auto said = [&run](const std::string& path) {
    return said_by<slamb::file_error>([&] { load_checkpoint(run.optimizer(), path); });
  };
  const std::string none = (folder.path() / "none").string(), of_folder = folder.path().string();
  CHECK(said(none) == "slamb: load_checkpoint() cannot read " + none + ": No such file or directory");
  CHECK(said(of_folder) == "slamb: load_checkpoint() cannot read " + of_folder + ": it is not a regular file");
}

TEST_CASE("checkpoint: a file of another rank is rejected, or loaded without errors if requested") {
  const temporary_folder folder;
  const std::string path = (folder.path() / "rank1").string();
  const model tensors{{300}};
  std::vector<float> saved;
  slamb::run_ranks(2, [&](thread_communicator communicator) {
    const int rank = communicator.rank();
    replica mine(tensors, std::vector<float>(300, 0.5F + static_cast<float>(rank)));
    const auto make =
        maker_of<sparse>({.local_steps = 0, .ranks = {.compare_every = 0}});  // because ranks have different parameters
    made_optimizer run = make_one(make, mine.parameters(), std::move(communicator));
    run.step(0.01);
    if (rank != 1) return;
    save_checkpoint(run, path);
    saved = mine.values();
  });
  lonely_rank alone(tensors, maker_of<sparse>({.local_steps = 0}));
  CHECK(said_by<std::invalid_argument>([&] { load_checkpoint(alone.optimizer(), path); }) ==
        "slamb: load_checkpoint() was given " + path +
            ", which holds the state of rank 1 of 2, but this is rank 0 of 1; to load it without its compression "
            "errors, pass restore_options{.from_other_ranks = true}");
  load_checkpoint(alone.optimizer(), path, {.from_other_ranks = true});
  CHECK(alone.now().values == saved);
  CHECK(alone.optimizer().statistics().step == 1);
}

TEST_CASE("checkpoint: a file that is replaced during reading is read to its end") {
  const temporary_folder folder;
  const std::string path = (folder.path() / "one.slamb").string();
  const model tensors{{5}, {9000}};
  lonely_rank run(tensors, maker_of<lamb>({})), other(tensors, maker_of<lamb>({}));
  run.step(0);
  save_checkpoint(run.optimizer(), path);
  const checkpoint first = run.now();
  run.step(1);
  struct replacing {
    made_optimizer& to;
    std::function<void()> replace;
    void load_state(byte_source from, const slamb::restore_options& options) {
      from.read = [this, read = from.read, reads = 0](std::uint64_t at, std::span<std::byte> some) mutable {
        if (++reads == 3) replace();
        read(at, some);
      };
      to.load_state(from, options);
    }
  } through{other.optimizer(), [&] { save_checkpoint(run.optimizer(), path); }};
  load_checkpoint(through, path);
  CHECK(other.now() == first);
  load_checkpoint(other.optimizer(), path);
  CHECK(other.now() == run.now());
}

TEST_CASE("checkpoint: is rejected in an open step") {
  const temporary_folder folder;
  const std::string path = (folder.path() / "one.slamb").string();
  lonely_rank run({{5}, {33}}, maker_of<lamb>({}));
  save_checkpoint(run.optimizer(), path);
  const bytes before = read_file(path);
  run.optimizer().begin_step(0.1);
  CHECK(contains(said_by<std::logic_error>([&] { save_checkpoint(run.optimizer(), path); }),
                 "save_state() was called between"));
  CHECK(contains(said_by<std::logic_error>([&] { load_checkpoint(run.optimizer(), path); }),
                 "load_state() was called between"));
  run.optimizer().finish_step();
  CHECK(read_file(path) == before);
}

TEST_CASE("checkpoint: a chosen optimizer can be saved, and the file names which of the two it is") {
  const temporary_folder folder;
  const std::string path = (folder.path() / "one.slamb").string();
  using chosen = slamb::chosen_optimizer<lamb, sparse>;
  std::vector<float> weight(200, 1.0F), gradient(200, 0.5F);
  const std::vector<slamb::parameter> parameters{{weight.data(), gradient.data(), weight.size()}};
  const auto make = [&](bool is_compressed) {
    return chosen({.is_compressed = is_compressed}, parameters, {}, {}, slamb::thread_group(1).communicator(0),
                  test_support::one_thread());
  };
  chosen dense = make(false);
  dense.step(0.1);
  save_checkpoint(dense, path);
  const std::vector<float> saved = weight;
  dense.step(0.1);
  REQUIRE(weight != saved);
  load_checkpoint(dense, path);
  CHECK(weight == saved);
  chosen compressed = make(true);
  CHECK(
      contains(said_by<std::invalid_argument>([&] { load_checkpoint(compressed, path); }),
               path + ", which holds the state of the dense optimizer, basic_lamb, but the compressed one was chosen"));
}

}  // namespace checkpoint_tests
