// Saves an optimizer's state and the parameters to a file, and restores them. A file is written completely or not at all, and is
// checked completely before anything is restored. Needs POSIX files. slamb.hpp does not include this header.
#pragma once

#include "slamb/core/config.hpp"  // first: checks the compiler's settings

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

/// An open file. The destructor closes it.
class open_file {
 public:
  /// @param call   literal: how messages begin, as "load_checkpoint() cannot read"
  /// @param shown  the path in messages; for a temporary file, the path of its target
  /// @throws file_error
  open_file(const char* call, std::string shown, const std::string& path, int flags)
      : open_file(call, std::move(shown), ::open(path.c_str(), flags | O_CLOEXEC)) {}
  /// @param handle  the result of ::open; if negative, errno must still be that call's
  /// @throws file_error
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

  /// Reads bytes first … first + to.size() − 1.
  /// @throws file_error, also if the file ends earlier
  void read(std::uint64_t first, std::span<std::byte> to) const {
    while (!to.empty()) {
      const ::ssize_t got = ::pread(handle_, to.data(), to.size(), static_cast<::off_t>(first));
      if (got < 0 && errno != EINTR) fail();
      if (got == 0) fail("the file became shorter while it was read");
      if (got < 0) continue;
      first += static_cast<std::uint64_t>(got);
      to = to.subspan(static_cast<std::size_t>(got));
    }
  }

  /// Sets the permissions, regardless of the process's umask.
  /// @throws file_error
  void set_mode(::mode_t mode) const {
    struct ::stat about {};
    if (::fstat(handle_, &about) != 0) fail();
    if ((about.st_mode & 0777U) != mode && ::fchmod(handle_, mode) != 0) fail();
  }

  /// Waits until all written bytes are on the disk.
  /// @throws file_error
  void flush() const {
    while (::fsync(handle_) != 0) {
      if (errno == EINVAL || errno == ENOTSUP) return;  // the file system has no fsync
      if (errno != EINTR) fail();
    }
  }

  /// Some file systems report a failed write only here.
  /// @throws file_error
  void close() {
    if (::close(std::exchange(handle_, -1)) != 0 && errno != EINTR) fail();
  }

  /// The size of the file.
  /// @throws file_error, also if it is not a regular file
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

/// Follows symbolic links. Returns `path` itself if it is not a link. The target need not exist.
/// @throws std::system_error if a link cannot be read, or after 40 links, as in a cycle
inline std::string target_of_links(std::string path) {
  constexpr int most_links = 40;  // Linux's limit
  for (int links = 0;; ++links) {
    struct ::stat about {};
    if (::lstat(path.c_str(), &about) != 0 || !S_ISLNK(about.st_mode)) return path;
    if (links == most_links) throw std::system_error(ELOOP, std::generic_category());
    std::string named(4096, '\0');
    const ::ssize_t size = ::readlink(path.c_str(), named.data(), named.size());
    if (size < 0) throw std::system_error(errno, std::generic_category());
    named.resize(static_cast<std::size_t>(size));
    path.resize(named.starts_with('/') ? 0 : path.rfind('/') + 1);  // to the link's folder; no slash: npos + 1 = 0
    path += named;
  }
}

/// A file under a unique temporary name in the target's folder. The destructor removes it, unless `replace_target` has renamed
/// it. Names are unique across threads and processes.
class temporary_file {
 public:
  static constexpr const char* call = "save_checkpoint() cannot write";

  /// @param path  the target; a link stays a link, and the file it names is replaced
  /// @throws file_error
  explicit temporary_file(const std::string& path) : shown_(path) {
    try {
      target_ = target_of_links(path);
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

  /// Creates the file.
  /// @throws file_error
  open_file& make() {
    const std::size_t slash = target_.rfind('/');
    folder_.emplace(call, shown_, slash == std::string::npos ? "." : target_.substr(0, slash + 1),
                    O_RDONLY | O_DIRECTORY);  // opened first: if this fails, nothing has changed
    file_.emplace(call, shown_, open_new());
    is_made_ = true;
    if (mode_) file_->set_mode(*mode_);
    return *file_;
  }

  /// Flushes the temporary file to the disk and renames it to the target.
  /// @throws file_error
  void replace_target() {
    file_->flush();
    file_->close();
    if (::rename(name_.c_str(), target_.c_str()) != 0) fail(std::generic_category().message(errno));
    is_made_ = false;
    folder_->flush();
  }

 private:
  // O_EXCL rejects a name that exists: left by a killed process with this id, or in use on another machine that shares the disk.
  // The mode grants no access that the replaced file denies.
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
  std::optional<::mode_t> mode_{};  // of the existing file, if there is one
  std::optional<open_file> folder_{};
  std::optional<open_file> file_{};
  bool is_made_ = false;
};

}  // namespace detail

/// Saves the state and the parameters of this rank, so that training can continue in a new process. Each rank needs its own path.
/// If two threads or processes save to one path, both files are written completely, and the last rename wins. The first 512 bytes
/// are text (`head -c 512 file`).
///
/// The file is written under another name in the same folder, flushed to the disk, and renamed. So `path` always holds the old
/// file or the new one. A process that is killed in between leaves `path.partial-…`, which can be deleted. A symbolic link stays
/// a link: the file that it names is written, and created if it does not exist. The new file has the permissions of the old one.
///
/// With `{.whole_tensors = true}` all ranks of a shard group call it together, and the first of them alone writes a file. The others
/// neither read nor change `path`, so all may pass the same one. They may return before the file is complete. Each shard group that saves
/// needs its own path.
///
/// @param from     an `optimizer` or a `chosen_optimizer`
/// @param options  `{.with_parameters = false}` leaves the parameters out: then save and restore them yourself
/// @throws file_error naming the path and the reason; the exceptions of `save_state`. The old file is then still at `path`, with
///         one exception: if only the flush of the folder fails, the new file is there but may be lost in a power failure. With
///         `whole_tensors`, the first rank throws a file_error when the group has taken all collectives, and the others do not throw
/// *Memory*: 4 MiB during the call.
template <class Optimizer>
void save_checkpoint(const Optimizer& from, const std::string& path,
                     const save_options& options = {.with_parameters = true}) {
  std::optional<detail::temporary_file> temporary;
  detail::open_file* file = nullptr;
  const auto open = [&] { file = &temporary.emplace(path).make(); };
  // Whole tensors: a rank that receives none writes no file, and save_state() keeps an error until its collectives are done.
  if (!options.whole_tensors) open();
  const auto write = [&](std::span<const std::byte> piece) {
    if (file == nullptr) open();
    file->write(piece);
  };
  from.save_state(write, options);
  if (temporary) temporary->replace_target();
}

/// Restores the state and the parameters from a file of `save_checkpoint`.
///
/// The file is read twice: all of it is checked before anything changes. It stays open in between, so replacing it meanwhile does
/// no harm.
///
/// @param to       an `optimizer` or a `chosen_optimizer`
/// @param options  `{.parameters = false}` leaves the parameters as they are; required if the file has none
/// @throws std::invalid_argument naming the path and the mismatch; file_error naming the path if the file cannot be read. Nothing
///         has changed in both cases. Also the exceptions of `load_state`
/// *Memory*: 4 MiB during the call.
template <class Optimizer>
void load_checkpoint(Optimizer& to, const std::string& path, const restore_options& options = {}) {
  const detail::open_file file("load_checkpoint() cannot read", path, path,
                               O_RDONLY | O_NONBLOCK);  // does not block on a pipe
  const byte_source from(
      file.bytes(), [&file](std::uint64_t first, std::span<std::byte> some) { file.read(first, some); },
      "load_checkpoint() was given " + path + ", which holds");
  if (options.parameters && detail::has_no_parameters(from))
    throw std::invalid_argument(
        "slamb: " + from.given_as +
        " a state without the parameters; restore them yourself, and pass restore_options{.parameters "
        "= false}");
  to.load_state(from, options);
}

}  // namespace slamb
