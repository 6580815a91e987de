// Output files that are complete or absent: written under a temporary name beside the target, flushed to the disk, then
// renamed.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <ostream>
#include <stdexcept>
#include <string>
#include <system_error>
#include <utility>

namespace programs {

/// A file that cannot be written. The message names option and file.
class output_error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Waits until the bytes of a file, or the names in a folder, are on the disk. So anything written or renamed later can only be
/// on the disk together with them, even if the power fails.
/// @throws std::system_error
inline void flush_to_disk(const std::filesystem::path& path) {
  const int handle = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (handle < 0) throw std::system_error(errno, std::generic_category());
  int failure = 0;
  do {
    failure = ::fsync(handle) == 0 ? 0 : errno;
  } while (failure == EINTR);
  ::close(handle);
  if (failure != 0 && failure != EINVAL && failure != ENOTSUP)  // these file systems have nothing to wait for
    throw std::system_error(failure, std::generic_category());
}

/// A file to be written later. The constructor checks that it can be written, and leaves no file behind.
class output_file {
 public:
  /// @throws output_error if `target` is not a regular file or its folder does not accept files
  output_file(std::string option, const std::filesystem::path& target)
      : option_(std::move(option)), shown_(target.string()) {
    std::error_code error;
    // A symbolic link stays a link: the file it points to is replaced.
    target_ = std::filesystem::weakly_canonical(std::filesystem::absolute(target), error);
    if (error) fail(error.message());
    while (std::filesystem::is_symlink(
        std::filesystem::symlink_status(target_, error))) {  // to a file that does not exist
      target_ = target_.parent_path() / std::filesystem::read_symlink(target_);
      target_ = std::filesystem::weakly_canonical(target_, error);
      if (error) fail(error.message());
    }
    const std::filesystem::file_status status = std::filesystem::status(target_, error);
    if (std::filesystem::is_directory(status)) fail("is a directory");
    if (std::filesystem::exists(status) && !std::filesystem::is_regular_file(status)) fail("is not a regular file");
    if (std::filesystem::exists(status) && access(target_.c_str(), W_OK) != 0) fail(std::strerror(errno));
    temporary_ = target_;
    temporary_ += ".partial-" + std::to_string(getpid());
    const cleanup removed_again{temporary_};
    open();
  }

  const std::filesystem::path& target() const { return target_; }

  /// Lets `fill` write to a temporary file, which then replaces the target.
  ///
  /// @throws output_error or the exceptions of `fill`; the temporary file is then removed and the target unchanged, unless only
  ///   the flush of the target's folder failed
  void write_with(const std::function<void(const std::filesystem::path& temporary)>& fill) const {
    const cleanup on_failure{temporary_};
    fill(temporary_);
    try {
      flush_to_disk(temporary_);
      std::filesystem::rename(temporary_, target_);
      flush_to_disk(target_.parent_path());
    } catch (const std::system_error& failure) {
      fail(failure.code().message());
    }
  }

  /// Lets `fill` write to a stream of the temporary file, which then replaces the target.
  void write(const std::function<void(std::ostream& stream)>& fill) const {
    write_with([&](const std::filesystem::path&) {
      std::ofstream stream = open();
      fill(stream);
      errno = 0;
      stream.close();
      if (!stream) fail(errno != 0 ? std::strerror(errno) : "only a part was written");
    });
  }

 private:
  // Removes the temporary file, if it still exists.
  struct cleanup {
    const std::filesystem::path& file;
    ~cleanup() {
      std::error_code ignored;
      std::filesystem::remove(file, ignored);
    }
  };

  std::ofstream open() const {
    errno = 0;
    std::ofstream stream(temporary_, std::ios::binary | std::ios::trunc);
    if (!stream) fail(std::strerror(errno));
    return stream;
  }

  [[noreturn]] void fail(const std::string& why) const {
    throw output_error(option_ + ": " + shown_ + " cannot be written: " + why);
  }

  std::string option_;
  std::string shown_;
  std::filesystem::path target_;
  std::filesystem::path temporary_;
};

}  // namespace programs
