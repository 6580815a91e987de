// An optimizer's state in a file, with the parameters: written whole or not at all, checked whole before anything is restored.
// For systems with POSIX files; slamb.hpp does not include it.
#pragma once

#include "slamb/core/config.hpp"  // first: it says what the compiler must be told

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <system_error>
#include <utility>

#include "slamb/core/error.hpp"
#include "slamb/detail/state/saved_state.hpp"
#include "slamb/detail/state/state_bytes.hpp"

namespace slamb {

namespace detail {

/// A file that is open, until this is destroyed.
class open_file {
 public:
  /// @param shown  the name of it, or of what it is for, as messages say it
  /// @throws file_error
  open_file(const char* call, std::string shown, const std::string& path, int flags)
      : open_file(call, std::move(shown), ::open(path.c_str(), flags | O_CLOEXEC)) {}
  /// @param handle  of ::open, which has just been called
  open_file(const char* call, std::string shown, int handle) : call_(call), shown_(std::move(shown)), handle_(handle) {
    if (handle_ < 0) fail();
  }
  open_file(const open_file&) = delete;
  open_file& operator=(const open_file&) = delete;
  ~open_file() {
    if (handle_ >= 0) ::close(handle_);
  }

  /// @throws file_error
  void write(std::span<const std::byte> bytes) const {
    while (!bytes.empty()) {
      const ::ssize_t written = ::write(handle_, bytes.data(), bytes.size());
      if (written < 0 && errno != EINTR) fail();
      if (written > 0) bytes = bytes.subspan(static_cast<std::size_t>(written));
    }
  }

  /// @throws file_error, also where the file ends before
  void read(std::uint64_t first, std::span<std::byte> to) const {
    while (!to.empty()) {
      const ::ssize_t got = ::pread(handle_, to.data(), to.size(), static_cast<::off_t>(first));
      if (got < 0 && errno != EINTR) fail();
      if (got == 0) fail("it has become shorter while it was read");
      if (got < 0) continue;
      first += static_cast<std::uint64_t>(got);
      to = to.subspan(static_cast<std::size_t>(got));
    }
  }

  /// Who may read and write it, whatever the mask of the process is.
  /// @throws file_error
  void set_mode(::mode_t mode) const {
    struct ::stat about {};
    if (::fstat(handle_, &about) != 0) fail();
    if ((about.st_mode & 0777U) != mode && ::fchmod(handle_, mode) != 0) fail();
  }

  /// Waits until what was written is on the disk.
  /// @throws file_error
  void flush() const {
    while (::fsync(handle_) != 0) {
      if (errno == EINVAL || errno == ENOTSUP) return;  // a file system that has nothing to wait for
      if (errno != EINTR) fail();
    }
  }

  /// Some file systems say only now that a write has failed.
  /// @throws file_error
  void close() {
    if (::close(std::exchange(handle_, -1)) != 0 && errno != EINTR) fail();
  }

  /// @throws file_error; where it is no plain file, too
  std::uint64_t bytes() const {
    struct ::stat about {};
    if (::fstat(handle_, &about) != 0) fail();
    if (!S_ISREG(about.st_mode)) fail("it is not a regular file");
    return static_cast<std::uint64_t>(about.st_size);
  }

 private:
  [[noreturn]] void fail() const { fail(std::generic_category().message(errno)); }
  [[noreturn]] void fail(const std::string& why) const {
    throw file_error("slamb: " + std::string(call_) + " " + shown_ + ": " + why);
  }

  const char* call_;
  std::string shown_;
  int handle_;
};

/// Where a file is that is named by a link, or by a link to one; others are where their name says. It need not be there.
/// @throws std::system_error for links that lead nowhere, as in a circle
inline std::string target_of_links(std::string path) {
  constexpr int most_links = 40;  // as the kernel follows
  for (int links = 0;; ++links) {
    struct ::stat about {};
    if (::lstat(path.c_str(), &about) != 0 || !S_ISLNK(about.st_mode)) return path;
    if (links == most_links) throw std::system_error(ELOOP, std::generic_category());
    std::string named(4096, '\0');
    const ::ssize_t size = ::readlink(path.c_str(), named.data(), named.size());
    if (size < 0) throw std::system_error(errno, std::generic_category());
    named.resize(static_cast<std::size_t>(size));
    path.resize(named.starts_with('/') ? 0 : path.rfind('/') + 1);  // to the link's folder; of none, npos + 1 = 0
    path += named;
  }
}

/// A name beside the file that is to be written; what has it is removed, unless it has been renamed. Each has a name of its own, in
/// whatever thread or process.
class temporary_file {
 public:
  static constexpr const char* call = "save_checkpoint() cannot write";

  /// @throws file_error
  explicit temporary_file(const std::string& path) : shown_(path) {
    try {
      target_ = target_of_links(path);  // a link stays one
    } catch (const std::system_error& failure) {
      fail(failure.code().message());
    }
    struct ::stat about {};
    if (::stat(target_.c_str(), &about) != 0) return;
    if (!S_ISREG(about.st_mode)) fail("it is not a regular file");
    mode_ = about.st_mode & 0777U;
  }
  temporary_file(const temporary_file&) = delete;
  temporary_file& operator=(const temporary_file&) = delete;
  ~temporary_file() {
    if (is_made_) ::unlink(name_.c_str());
  }

  /// @throws file_error
  open_file& make() {
    const std::size_t slash = target_.rfind('/');
    folder_.emplace(call, shown_, slash == std::string::npos ? "." : target_.substr(0, slash + 1),
                    O_RDONLY | O_DIRECTORY);  // now, while all is as it was, if it cannot be opened
    file_.emplace(call, shown_, open_new());
    is_made_ = true;
    if (mode_) file_->set_mode(*mode_);
    return *file_;
  }

  /// Takes the place of the file, once all of it is on the disk.
  /// @throws file_error
  void replace_target() {
    file_->flush();
    file_->close();
    if (::rename(name_.c_str(), target_.c_str()) != 0) fail(std::generic_category().message(errno));
    is_made_ = false;
    folder_->flush();
  }

 private:
  // Under a name that nobody has, not even a process of this number that was killed, or one of another machine with this disk. Nobody
  // may read it who may not read the file that it replaces.
  int open_new() {
    static std::atomic<std::uint64_t> calls{0};
    constexpr int most_tries = 10'000;
    const std::string stem = target_ + ".partial-" + std::to_string(::getpid()) + "-";
    for (int i = 0; i < most_tries; ++i) {
      name_ = stem + std::to_string(calls.fetch_add(1, std::memory_order_relaxed));
      const int handle =
          ::open(name_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode_ ? *mode_ & 0700U : ::mode_t{0666});
      if (handle >= 0 || (errno != EEXIST && errno != EINTR)) return handle;
    }
    return -1;
  }

  [[noreturn]] void fail(const std::string& why) const {
    throw file_error("slamb: " + std::string(call) + " " + shown_ + ": " + why);
  }

  std::string shown_;
  std::string target_{};
  std::string name_{};
  std::optional<::mode_t> mode_{};  // of the file that is there
  std::optional<open_file> folder_{};
  std::optional<open_file> file_{};
  bool is_made_ = false;
};

}  // namespace detail

/// Writes all that this rank needs to go on in a new process: the state, and the parameters. Each rank needs a path of its own:
/// where two save to one, in whatever threads or processes, each file is whole and the last one stays. The first 512 bytes are text
/// (`head -c 512 file`).
///
/// The file is written under another name beside `path`, flushed to the disk, and renamed: whatever happens, there is the old file
/// or the new one at `path`. A process that is killed in between leaves `path.partial-…`, which can be deleted. A link stays a link:
/// the file that it names is written, also where that is not there yet. A file that is replaced hands its permissions on.
///
/// @param from     an `optimizer` or a `chosen_optimizer`
/// @param options  `{.with_parameters = false}` leaves the parameters out: then save and restore them yourself
/// @throws file_error naming the path and the reason; what `save_state` throws. What was at `path` is still there then, unless all
///         has been written but the folder cannot be flushed: then the new file is there, and may be lost with the power
/// *Memory*: 4 MiB for the time of the call.
template <class Optimizer>
void save_checkpoint(const Optimizer& from, const std::string& path,
                     const save_options& options = {.with_parameters = true}) {
  detail::temporary_file temporary(path);
  detail::open_file& file = temporary.make();
  from.save_state([&file](std::span<const std::byte> piece) { file.write(piece); }, options);
  temporary.replace_target();
}

/// Goes on from a file of `save_checkpoint`, parameters and all.
///
/// The file is read twice, to check all of it before anything changes, and stays open in between: one that is replaced meanwhile
/// does no harm.
///
/// @param to       an `optimizer` or a `chosen_optimizer`
/// @param options  `{.parameters = false}` leaves the parameters as they are, as it must where the file has none
/// @throws std::invalid_argument that says what does not fit, and file_error if the file cannot be read, both naming the path;
///         nothing has changed then. Else what `load_state` throws
/// *Memory*: 4 MiB for the time of the call.
template <class Optimizer>
void load_checkpoint(Optimizer& to, const std::string& path, const restore_options& options = {}) {
  const detail::open_file file("load_checkpoint() cannot read", path, path,
                               O_RDONLY | O_NONBLOCK);  // a pipe has nothing to wait for
  const byte_source from(
      file.bytes(), [&file](std::uint64_t first, std::span<std::byte> some) { file.read(first, some); },
      "load_checkpoint() was given " + path + ", which holds");
  if (options.parameters && detail::has_no_parameters(from))
    throw std::invalid_argument(
        "slamb: " + from.given_as +
        " a state without the parameters; restore them yourself, and say restore_options{.parameters "
        "= false}");
  to.load_state(from, options);
}

}  // namespace slamb
