// A Communicator whose collectives are methods of a Python object.
#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <memory>
#include <slamb/core/concepts.hpp>
#include <span>

namespace binding {

namespace nb = nanobind;

/// Ranks of a Python object with the attributes `rank` and `size`, and the methods
///
///     all_reduce_sum(values)       values: memoryview of floats, which become their sum over ranks
///     broadcast(values, root)      memoryview of bytes
///     all_gather(mine, all)        memoryviews of bytes
///     all_to_all(send, receive)    memoryviews of bytes
///
/// as capability::has_all_reduce_sum, … describe them. Memory is the optimizer's, and valid during the call. Exceptions of Python
/// pass through the optimizer to the caller of the step. Can be called without the GIL.
class python_communicator {
 public:
  explicit python_communicator(nb::object ranks)
      : rank_(nb::cast<int>(ranks.attr("rank"))),
        size_(nb::cast<int>(ranks.attr("size"))),
        ranks_(new nb::object(std::move(ranks)), release) {}

  int rank() const noexcept { return rank_; }
  int size() const noexcept { return size_; }

  void all_reduce_sum(std::span<float> values, slamb::host_stream /*stream*/) {
    if (values.empty()) return;
    const nb::gil_scoped_acquire lock;
    ranks_->attr("all_reduce_sum")(view(std::as_writable_bytes(values)));
  }
  void broadcast(std::span<std::byte> values, int root, slamb::host_stream /*stream*/) {
    if (values.empty()) return;
    const nb::gil_scoped_acquire lock;
    ranks_->attr("broadcast")(view(values), root);
  }
  void all_gather(std::span<const std::byte> mine, std::span<std::byte> all, slamb::host_stream /*stream*/) {
    if (mine.empty()) return;
    const nb::gil_scoped_acquire lock;
    ranks_->attr("all_gather")(view(mine), view(all));
  }
  void all_to_all(std::span<const std::byte> send, std::span<std::byte> receive, slamb::host_stream /*stream*/) {
    if (send.empty()) return;
    const nb::gil_scoped_acquire lock;
    ranks_->attr("all_to_all")(view(send), view(receive));
  }

 private:
  static constexpr int writable = 0x200;  // PyBUF_WRITE, which the stable ABI of Python 3.10 does not declare

  // Read-only memory too: torch makes tensors of writable memory alone, and collectives do not write what they send.
  static nb::object view(std::span<const std::byte> bytes) {
    auto* const first = reinterpret_cast<char*>(const_cast<std::byte*>(bytes.data()));
    return nb::steal(PyMemoryView_FromMemory(first, static_cast<Py_ssize_t>(bytes.size()), writable));
  }
  static void release(nb::object* ranks) {
    const nb::gil_scoped_acquire lock;
    delete ranks;
  }

  int rank_;
  int size_;
  std::shared_ptr<nb::object> ranks_;  // destroyed with the GIL, wherever the optimizer is destroyed
};

}  // namespace binding
